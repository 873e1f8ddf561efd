"""The vocabulary every part of hybridfl speaks.

An algorithm does no I/O and owns no clock: it is told what arrived (`Inbox`) and says what it wants next (`Outbox`).
A transport carries the jobs to the devices and their updates back, in virtual time (`simulation.py`) or for real.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Vector = Tensor
"""All of a model's weights, flat."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """What the server knows of its devices, column by column; device i is entry i.

    `expected_seconds` is how long a full local training takes according to the device's history, NaN where the server
    has none. `seed` is the run's: whatever an algorithm draws, it draws by key from this seed (`randomness.py`).
    """

    num_samples: NDArray[np.int64]
    expected_seconds: NDArray[np.float64]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.num_samples)


@dataclass(frozen=True, slots=True)
class Work:
    """What a device does with the weights it gets: `epochs` of minibatch SGD on F_i(w) + ½·proximal·‖w − w_received‖².

    A step's gradient longer than `clip` is shortened to it. `part` is how much of the full local work this is: a device
    that does less is back sooner.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    proximal: float = 0.0
    clip: float = math.inf
    part: float = 1.0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Job:
    """Weights of one version on their way to one device, with the work to do there.

    `weights` is the backup w_{t−τ} of the paper's Algorithm 2: the jobs of one version share one tensor, which is freed
    with the last of them. `repeat` tells apart several jobs of one version to one device, so that they draw different
    batches.
    """

    device: int
    version: int
    weights: Vector
    work: Work
    sent_at: float
    repeat: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A device's answer to a job: the weights after `num_steps` local steps, and the mean loss of its last epoch.

    From a GPU both may still be on their way; `float(update.train_loss)` waits for it.
    """

    job: Job
    weights: Vector
    num_steps: int
    train_loss: float | Tensor

    @property
    def delta(self) -> Vector:
        """Δ = w_i − w_base."""
        return self.weights - self.job.weights

    @property
    def gradient(self) -> Vector:
        """The accumulated gradient g in w_i = w_base − η·g."""
        return self.delta / -self.job.work.learning_rate


@dataclass(frozen=True, slots=True, eq=False)
class Inbox:
    """All that reached the server at one instant, ordered by device: updates, and jobs known to be lost."""

    now: float
    updates: tuple[Update, ...] = ()
    lost: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """What becomes of one update: merged `staleness` versions after its job was sent, or discarded and why."""

    staleness: int
    discarded: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outbox:
    """What an algorithm wants next.

    `receipts` answers for every update of the inbox, in its order, so nothing can get lost without a word.
    `wake_at` asks to be stepped again by then, whatever arrives.
    """

    jobs: tuple[Job, ...] = ()
    wake_at: float | None = None
    receipts: tuple[Receipt, ...] = ()


class State(Protocol):
    """What every algorithm's state shows to the outside; the rest is the algorithm's own."""

    @property
    def version(self) -> int: ...
    @property
    def weights(self) -> Vector: ...


S = TypeVar("S", bound=State)


class Algorithm(Protocol[S]):
    """A frozen dataclass of hyperparameters. Both functions are pure."""

    def init(self, weights: Vector, fleet: Fleet) -> tuple[S, Outbox]: ...
    def step(self, state: S, inbox: Inbox) -> tuple[S, Outbox]: ...


class Transport(Protocol):
    """Carries jobs to devices and updates back: `Simulation` in virtual time, others on real machines."""

    @property
    def fleet(self) -> Fleet: ...
    def send(self, outbox: Outbox) -> None:
        """Send the jobs (never a second one to a busy device) and set, or clear, the wake-up."""

    def receive(self) -> Inbox:
        """Wait for the next arrival or the wake-up. Nothing in flight and no wake-up is an error."""


class Trainer(Protocol):
    """Trains many devices at once. An update depends on its job alone, so it does not matter which jobs go together."""

    def __call__(self, jobs: Sequence[Job]) -> list[Update]: ...


class Timing(Protocol):
    """Seconds from sending a job to the arrival of its update; infinite if it never arrives."""

    def __call__(self, job: Job) -> float: ...
