"""How long a device takes, in seconds of virtual time. Nothing here sleeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_share
from hybridfl.protocol import Job, Timing
from hybridfl.randomness import generator


class FleetTiming(Timing, Protocol):
    """A timing that knows its devices: what they take on average, and which of them a user would call stragglers."""

    @property
    def expected_seconds(self) -> NDArray[np.float64]: ...
    @property
    def is_straggler(self) -> NDArray[np.bool_]: ...


@dataclass(frozen=True)
class ConstantSeconds:
    """Every device takes the same time."""

    devices: int
    seconds: float = 1.0

    def __post_init__(self) -> None:
        require_positive("devices", self.devices)
        require_positive("seconds", self.seconds)

    def __call__(self, job: Job) -> float:
        return self.seconds * job.work.part

    @property
    def expected_seconds(self) -> NDArray[np.float64]:
        return np.full(self.devices, self.seconds)

    @property
    def is_straggler(self) -> NDArray[np.bool_]:
        return np.zeros(self.devices, dtype=bool)


@dataclass(frozen=True)
class PaperDelays:
    """A normal device takes 1 s, a straggler 1 + τ_i s, τ_i uniform in 1..max_delay and the device's own for good.

    With rounds of 1 s, τ_i is the number of rounds a straggler is behind: the paper's setting. Exactly
    `stragglers` of the devices, drawn by the seed, are stragglers.
    A job that is only a part of the full local work takes that part of the time.
    """

    devices: int
    stragglers: float = 0.9
    max_delay: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("devices", self.devices)
        require_share("stragglers", self.stragglers)
        require_positive("max_delay", self.max_delay)

    def __call__(self, job: Job) -> float:
        return float(self.expected_seconds[job.device]) * job.work.part

    @cached_property
    def is_straggler(self) -> NDArray[np.bool_]:
        chosen = generator(self.seed, "stragglers").permutation(self.devices)
        mask = np.zeros(self.devices, dtype=bool)
        mask[chosen[: round(self.stragglers * self.devices)]] = True
        return mask

    @cached_property
    def expected_seconds(self) -> NDArray[np.float64]:
        delays = generator(self.seed, "delays").integers(1, self.max_delay, endpoint=True, size=self.devices)
        return np.where(self.is_straggler, 1.0 + delays, 1.0)


@dataclass(frozen=True)
class PerDevice:
    """Device i takes `seconds[i]`. Who takes more than `slow` times the median is called a straggler."""

    seconds: tuple[float, ...]
    slow: float = 1.5

    def __post_init__(self) -> None:
        require_positive("devices", len(self.seconds))
        for device, seconds in enumerate(self.seconds):
            if not seconds > 0:
                raise InputError(f"Device {device} takes {seconds} seconds: give a number above 0.")

    def __call__(self, job: Job) -> float:
        return self.seconds[job.device] * job.work.part

    @property
    def expected_seconds(self) -> NDArray[np.float64]:
        return np.array(self.seconds)

    @property
    def is_straggler(self) -> NDArray[np.bool_]:
        return self.expected_seconds > self.slow * float(np.median(self.seconds))
