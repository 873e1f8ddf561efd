"""What a device is asked to do with the weights it gets, and how the learning rate falls with the version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hybridfl.algorithms.stragglers import behind_pace, slowest
from hybridfl.errors import InputError, require_positive, require_share, require_whole
from hybridfl.protocol import Fleet, Job, Vector, Work
from hybridfl.randomness import generator

LEAST_RATE = 1e-30
"""What is much smaller is 0 in float32, in which steps are made."""


MOST_EPOCHS = 100_000
"""Of a job. Their order is drawn beforehand: more would fill the memory, and take years."""


def require_rate(name: str, rate: Any) -> None:
    """A learning rate is above 0, in float32 too."""
    require_positive(name, rate)
    if rate < LEAST_RATE:
        raise InputError(f"{name}={rate} is 0 in float32: give {LEAST_RATE:g} or more.")


class Schedule(Protocol):
    """η_t, the learning rate of version t."""

    def __call__(self, version: int) -> float: ...


@dataclass(frozen=True)
class InverseTime:
    """η_t = η_0 / (1 + t), the paper's."""

    initial: float = 0.1

    def __post_init__(self) -> None:
        require_rate("learning rate", self.initial)

    def __call__(self, version: int) -> float:
        return self.initial / (1 + version)


@dataclass(frozen=True)
class InverseSqrt:
    """η_t = η_0 / √(1 + t)."""

    initial: float = 0.1

    def __post_init__(self) -> None:
        require_rate("learning rate", self.initial)

    def __call__(self, version: int) -> float:
        return float(self.initial / (1 + version) ** 0.5)


@dataclass(frozen=True)
class ConstantRate:
    """η_t = η."""

    rate: float = 0.1

    def __post_init__(self) -> None:
        require_rate("learning rate", self.rate)

    def __call__(self, version: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Cosine:
    """η_t = η_0·(1 + cos(π·t/T))/2, and from where that is less, η_0/T: large steps for long, then to rest at version T."""

    initial: float = 0.1
    versions: int = 200

    def __post_init__(self) -> None:
        require_rate("learning rate", self.initial)
        require_whole("versions", self.versions)

    def __call__(self, version: int) -> float:
        part = (1 + math.cos(math.pi * min(1.0, version / self.versions))) / 2
        return self.initial * max(part, 1 / self.versions)


def schedule_of(rate: Any) -> Schedule:
    """A schedule as it is; a number is a rate that stays."""
    if isinstance(rate, int | float | np.number):
        require_rate("learning_rate", rate)
        return ConstantRate(float(rate))
    if not callable(rate):
        raise InputError(
            f"learning_rate={rate!r} is no learning rate: give a number or a schedule, InverseTime(0.1) say."
        )
    schedule: Schedule = rate
    return schedule


class Local(Protocol):
    """The work for each of some devices on one version. `learning_rate` is η_t, which the server's own step may need too."""

    @property
    def learning_rate(self) -> Schedule: ...
    def works(self, devices: Sequence[int], version: int, fleet: Fleet) -> list[Work]: ...


def jobs_for(
    devices: Sequence[int], local: Local, version: int, weights: Vector, fleet: Fleet, now: float
) -> tuple[Job, ...]:
    """The current version for these devices, with the work each is to do."""
    works = local.works(devices, version, fleet)
    return tuple(Job(device, version, weights, work, now) for device, work in zip(devices, works, strict=True))


@dataclass(frozen=True)
class FullWork:
    """Every device runs the same number of epochs of minibatch SGD. The defaults are the paper's.

    `learning_rate` is a schedule; a number is a rate that stays: `learning_rate=0.1` is `ConstantRate(0.1)`. `clip` bounds
    the norm of every step's gradient (∞: not at all); recurrent models want it.

    >>> FullWork(epochs=1, learning_rate=0.1).learning_rate
    ConstantRate(rate=0.1)
    """

    epochs: int = 5
    batch_size: int = 64
    learning_rate: Schedule = InverseTime(0.1)
    proximal: float = 0.0
    clip: float = math.inf

    if TYPE_CHECKING:  # what may be given is more than what is kept

        def __init__(
            self,
            epochs: int = 5,
            batch_size: int = 64,
            learning_rate: Schedule | float = ...,
            proximal: float = 0.0,
            clip: float = math.inf,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", schedule_of(self.learning_rate))
        require_whole("epochs", self.epochs)
        if self.epochs > MOST_EPOCHS:
            raise InputError(f"epochs={self.epochs} are more than a device gets through: give {MOST_EPOCHS} at most.")
        require_whole("batch_size", self.batch_size)
        if self.proximal:
            require_positive("proximal", self.proximal)
        if self.clip != math.inf:
            require_positive("clip", self.clip)

    def works(self, devices: Sequence[int], version: int, fleet: Fleet) -> list[Work]:
        rate = self.learning_rate(version)
        require_positive(f"learning rate of version {version}", rate)  # a schedule of one's own may draw anything
        return [Work(self.epochs, self.batch_size, rate, self.proximal, self.clip)] * len(devices)


@dataclass(frozen=True)
class PartialWork:
    """Stragglers run fewer epochs: uniformly drawn from 1..E anew for every job, as in FedProx's experiments.

    The stragglers are the `share` of the fleet with the longest expected seconds or, by default, who is expected to miss a
    round at the pace of the fleet's fastest tenth (`Learned`). (FedProx draws them anew in every
    round; here slow devices stay slow, as everywhere in this package.)
    """

    full: FullWork = FullWork()
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None:
            require_share("share", self.share)

    @property
    def learning_rate(self) -> Schedule:
        return self.full.learning_rate

    def works(self, devices: Sequence[int], version: int, fleet: Fleet) -> list[Work]:
        is_straggler = behind_pace(fleet) if self.share is None else slowest(fleet, self.share)
        full = self.full.works(devices, version, fleet)
        return [
            _partial(work, fleet.seed, device, version) if is_straggler[device] else work
            for device, work in zip(devices, full, strict=True)
        ]


def _partial(work: Work, seed: int, device: int, version: int) -> Work:
    epochs = int(generator(seed, "partial work", device, version).integers(1, work.epochs, endpoint=True))
    return replace(work, epochs=epochs, part=epochs / work.epochs)
