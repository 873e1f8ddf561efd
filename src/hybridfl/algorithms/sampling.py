"""Who takes part in a synchronous round, and what the round waits for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from hybridfl.errors import InputError, require_positive, require_whole
from hybridfl.protocol import Fleet
from hybridfl.randomness import generator
from hybridfl.wording import counted


class Participants(Protocol):
    """`choose` names a round's devices; the round closes with `enough` answers, or `seconds` after its start."""

    @property
    def enough(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        """Devices for round `number`, ascending: all can be reached, none is in `busy`."""


@dataclass(frozen=True)
class Everyone:
    """All devices; the round waits for the slowest."""

    enough = math.inf
    seconds = math.inf

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        return fleet.reachable([device for device in range(len(fleet)) if device not in busy], now)


@dataclass(frozen=True)
class Uniform:
    """`count` devices drawn uniformly without replacement; the round waits for the slowest of them."""

    count: int = 10
    enough = math.inf
    seconds = math.inf

    def __post_init__(self) -> None:
        require_whole("count", self.count)

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        return drawn(fleet, number, busy, self.count, now)


def participants_of(given: Any) -> Participants:
    """A rule as it is; a number means that many devices, drawn uniformly."""
    if isinstance(given, int | float | np.number):
        require_whole("participants", given)
        return Uniform(int(given))
    if not hasattr(given, "choose"):
        raise InputError(f"participants={given!r} is no rule: give a number of devices or a rule, Uniform(10) say.")
    rule: Participants = given
    return rule


def chosen_by(rule: Participants, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
    """Whom a rule chooses for a round, by their numbers. A rule may answer an array too, or a yes or no for every device."""
    answer: Any = rule.choose(fleet, number, busy, now)
    if type(answer) is list and all(type(device) is int for device in answer):
        return answer
    try:
        devices = np.asarray(answer if isinstance(answer, np.ndarray | Tensor) else list(answer))
    except (TypeError, ValueError, RuntimeError):
        raise _no_devices(rule, fleet, answer) from None
    if devices.ndim == 1 and devices.dtype.kind == "b" and len(devices) == len(fleet):
        return [int(device) for device in np.flatnonzero(devices)]
    if devices.ndim != 1 or (devices.dtype.kind not in "iu" and len(devices)):
        raise _no_devices(rule, fleet, answer)
    return [int(device) for device in devices]


def _no_devices(rule: Participants, fleet: Fleet, answer: object) -> InputError:
    written = repr(answer) if len(repr(answer)) <= 60 else f"{repr(answer)[:60]}…"
    return InputError(
        f"{type(rule).__name__} chose {written}: give a list of devices' numbers, "
        f"0 to {len(fleet) - 1}, or a yes or no for each of them."
    )


@dataclass(frozen=True)
class ProportionalToDelay:
    """`count` devices drawn with probability ∝ expected seconds: how the HFL paper sets FedAvg ("p_i is linear to τ_i").

    It prefers the slowest devices; `Uniform` is the fair setting.
    """

    count: int = 10
    enough = math.inf
    seconds = math.inf

    def __post_init__(self) -> None:
        require_whole("count", self.count)

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        _check_count(fleet, self.count)
        idle = np.array(Everyone().choose(fleet, number, busy, now), dtype=np.int64)
        if not len(idle):
            return []
        seconds = fleet.expected_seconds[idle]
        if np.isnan(seconds).any():
            raise InputError("ProportionalToDelay needs the devices' expected seconds, which this fleet does not know.")
        draw = generator(fleet.seed, "participants", number)
        return sorted(draw.choice(idle, min(self.count, len(idle)), replace=False, p=seconds / seconds.sum()).tolist())


@dataclass(frozen=True)
class FirstOf:
    """Over-selection: `selected` devices are drawn, the round closes with the first `count`, later answers are discarded.

    A device whose answer came too late was busy until then and could not be drawn (Bonawitz et al., "Towards Federated
    Learning at Scale", 2019).
    """

    count: int = 10
    selected: int = 13
    seconds = math.inf

    def __post_init__(self) -> None:
        require_whole("count", self.count)
        require_whole("selected", self.selected)
        if self.selected < self.count:
            raise InputError(
                f"selected={self.selected} is below count={self.count}: select at least as many as needed."
            )

    @property
    def enough(self) -> float:
        return self.count

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        return drawn(fleet, number, busy, self.selected, now)


@dataclass(frozen=True)
class Deadline:
    """`count` devices drawn uniformly; the round closes after `seconds` at the latest, later answers are discarded."""

    count: int = 10
    seconds: float = 1.0
    enough = math.inf

    def __post_init__(self) -> None:
        require_whole("count", self.count)
        require_positive("seconds", self.seconds)

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        return drawn(fleet, number, busy, self.count, now)


def drawn(fleet: Fleet, number: int, busy: frozenset[int], count: int, now: float) -> list[int]:
    """Uniform without replacement among those that are there and idle, fewer than `count` if there are not so many.

    Draws past the others, twice as many again and again until there are enough, so its cost does not grow with the fleet.
    """
    _check_count(fleet, count)
    candidates = count + len(busy) + len(fleet.barred)
    while True:
        candidates = min(candidates, len(fleet))
        some = generator(fleet.seed, "participants", number).choice(len(fleet), candidates, replace=False).tolist()
        there = fleet.reachable([device for device in some if device not in busy], now)
        if len(there) >= count or candidates == len(fleet):
            return sorted(there[:count])
        candidates *= 2


def _check_count(fleet: Fleet, count: int) -> None:
    if count > len(fleet):
        raise InputError(
            f"{counted(count, 'participant')} a round, but the fleet has {counted(len(fleet), 'device')}: ask for "
            f"{len(fleet)} at most, or for `Everyone()`."
        )
