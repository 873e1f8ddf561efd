"""Who takes part in a synchronous round, and what the round waits for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hybridfl.errors import InputError, require_positive
from hybridfl.protocol import Fleet
from hybridfl.randomness import generator


class Participants(Protocol):
    """`choose` names a round's devices; the round closes with `enough` answers, or `seconds` after its start."""

    @property
    def enough(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    def choose(self, fleet: Fleet, number: int, busy: frozenset[int]) -> list[int]:
        """Devices for round `number`, ascending, none of them in `busy`."""


@dataclass(frozen=True)
class Everyone:
    """All devices; the round waits for the slowest."""

    enough = math.inf
    seconds = math.inf

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int]) -> list[int]:
        return [device for device in range(len(fleet)) if device not in busy]


@dataclass(frozen=True)
class Uniform:
    """`count` devices drawn uniformly without replacement; the round waits for the slowest of them."""

    count: int = 10
    enough = math.inf
    seconds = math.inf

    def __post_init__(self) -> None:
        require_positive("count", self.count)

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int]) -> list[int]:
        return _draw(fleet, number, busy, self.count)


@dataclass(frozen=True)
class ProportionalToDelay:
    """`count` devices drawn with probability ∝ expected seconds: how the HFL paper sets FedAvg ("p_i is linear to τ_i").

    It prefers the slowest devices; `Uniform` is the fair setting.
    """

    count: int = 10
    enough = math.inf
    seconds = math.inf

    def __post_init__(self) -> None:
        require_positive("count", self.count)

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int]) -> list[int]:
        _check_count(fleet, self.count)
        idle = np.setdiff1d(np.arange(len(fleet)), list(busy))
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
        require_positive("count", self.count)
        if self.selected < self.count:
            raise InputError(
                f"selected={self.selected} is below count={self.count}: select at least as many as needed."
            )

    @property
    def enough(self) -> float:
        return self.count

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int]) -> list[int]:
        return _draw(fleet, number, busy, self.selected)


@dataclass(frozen=True)
class Deadline:
    """`count` devices drawn uniformly; the round closes after `seconds` at the latest, later answers are discarded."""

    count: int = 10
    seconds: float = 1.0
    enough = math.inf

    def __post_init__(self) -> None:
        require_positive("count", self.count)
        require_positive("seconds", self.seconds)

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int]) -> list[int]:
        return _draw(fleet, number, busy, self.count)


def _draw(fleet: Fleet, number: int, busy: frozenset[int], count: int) -> list[int]:
    """Uniform without replacement among the idle. Draws past the busy ones, so its cost does not grow with the fleet."""
    _check_count(fleet, count)
    candidates = min(count + len(busy), len(fleet))
    drawn = generator(fleet.seed, "participants", number).choice(len(fleet), candidates, replace=False)
    idle = [int(device) for device in drawn if int(device) not in busy]
    return sorted(idle[:count])


def _check_count(fleet: Fleet, count: int) -> None:
    if count > len(fleet):
        raise InputError(
            f"{count} participants a round, but the fleet has {len(fleet)} devices: ask for fewer, "
            f"for example participants=Uniform({len(fleet)})."
        )
