"""The vocabulary every part of hybridfl speaks.

An algorithm does no I/O and owns no clock: it is told what arrived (`Inbox`) and says what it wants next (`Outbox`).
A transport carries the jobs to the devices and their updates back, in virtual time (`simulation.py`) or for real.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Vector = Tensor
"""All of a model's weights, flat."""


Online = Callable[[NDArray[np.int64], float], NDArray[np.bool_]]
"""Which of some devices can be reached at an instant."""


def always_online(devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
    """Everybody, all the time."""
    return np.ones(len(devices), dtype=bool)


@dataclass(frozen=True, eq=False)
class Fleet:
    """What the server knows of its devices, column by column; device i is entry i.

    `expected_seconds` is how long a full local training takes according to the device's history, NaN where the server
    has none. `seed` is the run's: whatever an algorithm draws, it draws by key from this seed (`randomness.py`).
    `online` says who is there; it is asked about few devices at a time, so that a fleet may have millions. Who is
    `barred` gets no job.
    """

    num_samples: NDArray[np.int64]
    expected_seconds: NDArray[np.float64]
    seed: int = 0
    online: Online = always_online
    barred: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.num_samples)

    @cached_property
    def total_samples(self) -> int:
        return int(self.num_samples.sum())

    def reachable(self, devices: Sequence[int], now: float) -> list[int]:
        """Those of `devices` that could be given a job now."""
        if self.online is not always_online:
            there = self.online(np.asarray(devices, dtype=np.int64), now)
            devices = [device for device, is_on in zip(devices, there.tolist(), strict=True) if is_on]
        return [device for device in devices if device not in self.barred] if self.barred else list(devices)


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
    batches. `drift` is added to every local gradient, after clipping (`algorithms/drift.py`).
    """

    device: int
    version: int
    weights: Vector
    work: Work
    sent_at: float
    repeat: int = 0
    drift: Vector | None = None


@dataclass(frozen=True, slots=True)
class LocalScores:
    """How the weights a device received do on the samples it holds out itself, where it was asked."""

    loss: float
    accuracy: float
    num_samples: int


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A device's answer to a job: the weights after `num_steps` local steps, and the mean loss of its last epoch.

    From a GPU both may still be on their way; `float(update.train_loss)` waits for it.
    """

    job: Job
    weights: Vector
    num_steps: int
    train_loss: float | Tensor
    scores: LocalScores | None = None

    @property
    def delta(self) -> Vector:
        """Δ = w_i − w_base."""
        return self.weights - self.job.weights

    @property
    def gradient(self) -> Vector:
        """The accumulated gradient g in w_i = w_base − η·g."""
        return self.delta / -self.job.work.learning_rate


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """A job that will not be answered, and why. Its device is free again, if it is there.

    `is_fault`: it was answered, but with what is no update at all.
    """

    job: Job
    reason: str
    is_fault: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Inbox:
    """All that reached the server at one instant, ordered by device: updates, and jobs known to be lost.

    Devices may join a real fleet at any time: `fleet` is the larger one then, whose last devices are new.
    """

    now: float
    updates: tuple[Update, ...] = ()
    lost: tuple[Lost, ...] = ()
    fleet: Fleet | None = None
    joined: frozenset[int] = frozenset()

    @property
    def devices(self) -> frozenset[int]:
        """Who is free again, or for the first time."""
        back = [*(update.job.device for update in self.updates), *(lost.job.device for lost in self.lost)]
        return self.joined.union(back)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What becomes of one update: merged `staleness` versions after its job was sent, or else why not.

    `discarded`: a good update that an algorithm has no use for, being late for example; `refused`: a bad one.
    """

    staleness: int
    discarded: str | None = None
    refused: str | None = None

    @property
    def is_merged(self) -> bool:
        return self.discarded is None and self.refused is None


@dataclass(frozen=True, slots=True, eq=False)
class Outbox:
    """What an algorithm wants next.

    `receipts` answers for every update of the inbox, in its order, so nothing can get lost without a word.
    `wake_at` asks to be stepped again by then, whatever arrives. `forgotten`: how many devices' last updates a bounded
    memory has had to give up with this step.
    """

    jobs: tuple[Job, ...] = ()
    wake_at: float | None = None
    receipts: tuple[Receipt, ...] = ()
    forgotten: int = 0


class State(Protocol):
    """What every algorithm's state shows to the outside; the rest is the algorithm's own."""

    @property
    def version(self) -> int: ...
    @property
    def weights(self) -> Vector: ...
    @property
    def fleet(self) -> Fleet: ...


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


@dataclass(frozen=True, slots=True)
class Loss:
    """A job is lost, and `seconds` after it was sent the server knows."""

    seconds: float
    reason: str


class Timing(Protocol):
    """Seconds from sending a job to the arrival of its update, or its loss; infinite if it never arrives and nobody says so."""

    def __call__(self, job: Job) -> float | Loss: ...
