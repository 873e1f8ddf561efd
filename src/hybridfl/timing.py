"""How long a device takes for its local work, in seconds of virtual time. Nothing here sleeps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_share, require_whole
from hybridfl.laws import Law, Lognormal, drawn
from hybridfl.protocol import Job
from hybridfl.randomness import generator, key
from hybridfl.traces import kind_of, read_capacities, read_seconds
from hybridfl.wording import counted

SLOW = 1.5
"""Who takes more than so many times the median is called a straggler, where nothing else says who is one."""


@dataclass(frozen=True, eq=False)
class Roster:
    """What a fleet's times depend on: its devices' samples, the model's size and the seed."""

    num_samples: NDArray[np.int64]
    model_bytes: int = 0
    seed: int = 0

    def __len__(self) -> int:
        return len(self.num_samples)


class Paces(Protocol):
    """How long a job keeps its device, and what is expected of each device beforehand."""

    @property
    def expected_seconds(self) -> NDArray[np.float64]:
        """Of the full local work."""

    @property
    def is_straggler(self) -> NDArray[np.bool_]:
        """Whom a user would call a straggler."""

    def __call__(self, job: Job) -> float: ...


class Pace(Protocol):
    """A rule that says how long devices take; `of` draws it up for one fleet."""

    def of(self, roster: Roster) -> Paces: ...


@dataclass(frozen=True, eq=False)
class OwnSeconds:
    """Every device takes its own time, for the full work; a job that is only a part of it takes that part."""

    expected_seconds: NDArray[np.float64]
    is_straggler: NDArray[np.bool_]

    def __call__(self, job: Job) -> float:
        return float(self.expected_seconds[job.device]) * job.work.part


def _with_slow_ones(seconds: NDArray[np.float64], slow: float = SLOW) -> OwnSeconds:
    return OwnSeconds(seconds, seconds > slow * float(np.median(seconds)))


@dataclass(frozen=True)
class ConstantSeconds:
    """Every device takes the same time."""

    seconds: float = 1.0

    def __post_init__(self) -> None:
        require_positive("seconds", self.seconds)

    def of(self, roster: Roster) -> OwnSeconds:
        return _with_slow_ones(np.full(len(roster), self.seconds))


@dataclass(frozen=True)
class PaperDelays:
    """A normal device takes 1 s, a straggler 1 + τ_i s, τ_i uniform in 1..max_delay and the device's own for good.

    With rounds of 1 s, τ_i is the number of rounds a straggler is behind: the paper's setting. Exactly
    `stragglers` of the devices, drawn by the seed, are stragglers.
    """

    stragglers: float = 0.9
    max_delay: int = 10

    def __post_init__(self) -> None:
        require_share("stragglers", self.stragglers)
        require_whole("max_delay", self.max_delay)

    def of(self, roster: Roster) -> OwnSeconds:
        is_straggler = chosen(roster, self.stragglers, "stragglers")
        delays = generator(roster.seed, "delays").integers(1, self.max_delay, endpoint=True, size=len(roster))
        return OwnSeconds(np.where(is_straggler, 1.0 + delays, 1.0), is_straggler)


@dataclass(frozen=True)
class PerDevice:
    """Device i takes `seconds[i]`. Who takes more than `slow` times the median is called a straggler."""

    seconds: tuple[float, ...]
    slow: float = SLOW

    def __post_init__(self) -> None:
        require_positive("devices", len(self.seconds))
        for device, seconds in enumerate(self.seconds):
            if not seconds > 0:
                raise InputError(f"Device {device} takes {seconds} seconds: give a number above 0.")

    def of(self, roster: Roster) -> OwnSeconds:
        if len(self.seconds) != len(roster):
            raise InputError(
                f"The seconds are for {counted(len(self.seconds), 'device')}, but the task has {len(roster)}: make them agree."
            )
        return _with_slow_ones(np.array(self.seconds), self.slow)


@dataclass(frozen=True)
class Drawn:
    """Device i takes s_i seconds, drawn from `law` once: a slow device stays slow."""

    law: Law = Lognormal()

    def of(self, roster: Roster) -> OwnSeconds:
        return _with_slow_ones(drawn(self.law, generator(roster.seed, "pace"), np.arange(len(roster))))


@dataclass(frozen=True)
class ComputeAndLink:
    """seconds = c_i·n_i·E + B/down_i + B/up_i + latency

    c_i: seconds a sample, n_i: the device's samples, E: epochs of the job, B: bytes of the model, twice as many down where
    drift is controlled; c_i and the bytes a second down and up are the device's own, drawn from their laws once. What is
    expected of a device beforehand is for `expected_epochs`.
    """

    seconds_per_sample: Law = Lognormal(0.6, median=0.001)
    bytes_per_second_down: Law = Lognormal(0.6, median=2_500_000.0)
    bytes_per_second_up: Law = Lognormal(0.6, median=1_000_000.0)
    latency: float = 0.05
    expected_epochs: int = 5

    def __post_init__(self) -> None:
        _check_latency(self.latency)
        require_whole("expected_epochs", self.expected_epochs)

    def of(self, roster: Roster) -> LinkedPaces:
        per_sample, down, up = (
            drawn(law, generator(roster.seed, purpose), np.arange(len(roster)))
            for law, purpose in (
                (self.seconds_per_sample, "compute"),
                (self.bytes_per_second_down, "downlink"),
                (self.bytes_per_second_up, "uplink"),
            )
        )
        return LinkedPaces(
            per_sample * roster.num_samples,
            roster.model_bytes / down,
            roster.model_bytes / up + self.latency,
            self.expected_epochs,
        )


@dataclass(frozen=True, eq=False)
class LinkedPaces:
    """seconds = epochs × seconds of an epoch + seconds of the link down and up, device by device."""

    seconds_per_epoch: NDArray[np.float64]
    seconds_down: NDArray[np.float64]
    seconds_up: NDArray[np.float64]
    expected_epochs: int

    @property
    def expected_seconds(self) -> NDArray[np.float64]:
        return self.seconds_per_epoch * self.expected_epochs + (self.seconds_down + self.seconds_up)

    @property
    def is_straggler(self) -> NDArray[np.bool_]:
        return _with_slow_ones(self.expected_seconds).is_straggler

    def __call__(self, job: Job) -> float:
        down, up = self.seconds_down[job.device], self.seconds_up[job.device]
        link = (down if job.drift is None else 2 * down) + up
        return float(self.seconds_per_epoch[job.device] * job.work.epochs + link)


@dataclass(frozen=True)
class Recorded:
    """Times replayed from a file: how long jobs took, or what devices and links can do (docs/fleets.md has the formats).

    Device i of the fleet is device i mod (number in the file). Of several recorded jobs of a device, each job draws one.
    `latency` and `expected_epochs` are as in `ComputeAndLink`, for a file of capacities.
    """

    path: str
    latency: float = 0.05
    expected_epochs: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.fspath(self.path))  # a Path and its text are the same fleet
        _check_latency(self.latency)
        require_whole("expected_epochs", self.expected_epochs)

    def of(self, roster: Roster) -> Paces:
        if kind_of(self.path) == "capacities":
            capacities = read_capacities(self.path)
            place = np.arange(len(roster)) % len(capacities.seconds_per_sample)
            down, up = capacities.bytes_per_second_down[place], capacities.bytes_per_second_up[place]
            return LinkedPaces(
                capacities.seconds_per_sample[place] * roster.num_samples,
                roster.model_bytes / down,
                roster.model_bytes / up + self.latency,
                self.expected_epochs,
            )
        return RecordedSeconds.of(read_seconds(self.path), roster)


@dataclass(frozen=True, eq=False)
class RecordedSeconds:
    """Each job takes one of its device's recorded times, drawn by its key."""

    recorded: tuple[NDArray[np.float64], ...]
    expected_seconds: NDArray[np.float64]
    is_straggler: NDArray[np.bool_]
    seed: int

    @classmethod
    def of(cls, recorded: tuple[NDArray[np.float64], ...], roster: Roster) -> RecordedSeconds:
        means = np.array([seconds.mean() for seconds in recorded])
        expected = _with_slow_ones(means[np.arange(len(roster)) % len(recorded)])
        return cls(recorded, expected.expected_seconds, expected.is_straggler, roster.seed)

    def __call__(self, job: Job) -> float:
        seconds = self.recorded[job.device % len(self.recorded)]
        drawn = key(self.seed, "recorded", job.device, job.version, job.repeat) % len(seconds)
        return float(seconds[drawn]) * job.work.part


def chosen(roster: Roster, share: float, purpose: str) -> NDArray[np.bool_]:
    """Exactly `share` of the devices, drawn by the seed; those of a smaller share are among those of a larger."""
    mask = np.zeros(len(roster), dtype=bool)
    mask[generator(roster.seed, purpose).permutation(len(roster))[: round(share * len(roster))]] = True
    return mask


def _check_latency(latency: float) -> None:
    if not 0 <= latency < float("inf"):
        raise InputError(f"latency={latency} must be 0 or more seconds.")
