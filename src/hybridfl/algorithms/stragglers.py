"""Who is a straggler: by a known share, or learned from how long each device took.

The server sees nothing but when it sent a job and when the answer came.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_share
from hybridfl.flags import flags_of
from hybridfl.protocol import Fleet, Update


@dataclass(frozen=True, eq=False)
class Durations:
    """How long each device takes as far as the server has seen; ∞ for a device never heard from.

    Only devices that were ever given a job have an entry, ascending: a fleet may have millions.
    """

    devices: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def with_devices(self, devices: Sequence[int]) -> Durations:
        """An entry for each of these too."""
        new = np.setdiff1d(np.asarray(devices, dtype=np.int64), self.devices, assume_unique=True)
        if not len(new):
            return self
        places = np.searchsorted(self.devices, new)
        return Durations(np.insert(self.devices, places, new), np.insert(self.seconds, places, np.inf))

    def without(self, devices: Sequence[int]) -> Durations:
        """None for these: who lost a job may be gone, and is judged anew when it answers again."""
        if not devices:
            return self
        kept = ~np.isin(self.devices, devices)
        return Durations(self.devices[kept], self.seconds[kept])

    def of(self, devices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The seconds of devices that have an entry."""
        known: NDArray[np.float64] = self.seconds[np.searchsorted(self.devices, devices)]
        return known


class Stragglers(Protocol):
    """Splits the fleet into S1 (normal) and S2 (stragglers), anew at every version."""

    def observe(self, durations: Durations, updates: Sequence[Update], now: float) -> Durations:
        """What is known of the devices' durations after these answers."""

    def round_seconds(self, durations: Durations) -> float:
        """How long a round may wait for S1; infinite for as long as it takes."""

    def normal(
        self, fleet: Fleet, durations: Durations, round_seconds: float, devices: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which of `devices` belong to S1."""


def normal_of(
    rule: Stragglers, fleet: Fleet, durations: Durations, round_seconds: float, devices: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Those of `devices` that a rule says belong to S1."""
    answer = rule.normal(fleet, durations, round_seconds, devices)
    return devices[flags_of(answer, len(devices), f"{type(rule).__name__}.normal")]


@functools.lru_cache(maxsize=16)
def slowest(fleet: Fleet, share: float) -> NDArray[np.bool_]:
    """The `share` of the fleet with the longest expected seconds; of equals, the higher ids."""
    if np.isnan(fleet.expected_seconds).any():
        raise InputError("The slowest share is not known: the fleet has no expected seconds. Use Learned().")
    count = round(share * len(fleet))
    mask = np.zeros(len(fleet), dtype=bool)
    mask[np.argsort(fleet.expected_seconds, kind="stable")[len(fleet) - count :]] = True
    mask.flags.writeable = False
    return mask


@dataclass(frozen=True)
class KnownShare:
    """S2 is the `share` of the fleet with the longest expected seconds, for good. A round waits for all of S1."""

    share: float = 0.9

    def __post_init__(self) -> None:
        require_share("share", self.share)

    def observe(self, durations: Durations, updates: Sequence[Update], now: float) -> Durations:
        return durations

    def round_seconds(self, durations: Durations) -> float:
        return math.inf

    def normal(
        self, fleet: Fleet, durations: Durations, round_seconds: float, devices: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        return ~slowest(fleet, self.share)[devices]


@dataclass(frozen=True)
class Learned:
    """m_i ← (1 − β)·m_i + β·(seconds device i just took);  S1 = {i : m_i ≤ the round's length}.

    m_i: exponentially weighted mean, ∞ until the device first answers; β: `smoothing`.
    Where HFL sets no `round_seconds`, the round's length is `slack` × the `fastest` quantile of the m_i of all devices that
    ever got a job: the pace of their fastest tenth, and half as long again. It is infinite until that tenth has been heard
    from, so the first round finds the pace by waiting for them, and a normal device that suddenly slows down, or dies, holds
    one round up by `slack` at most: from then until its answer HFL does not wait for it.
    """

    smoothing: float = 0.3
    fastest: float = 0.1
    slack: float = 1.5

    def __post_init__(self) -> None:
        require_share("smoothing", self.smoothing)
        require_share("fastest", self.fastest)
        require_positive("slack", self.slack)

    def observe(self, durations: Durations, updates: Sequence[Update], now: float) -> Durations:
        if not updates:
            return durations
        places = np.searchsorted(durations.devices, np.array([update.job.device for update in updates]))
        took = np.array([now - update.job.sent_at for update in updates])
        before = durations.seconds[places]
        before = np.where(np.isfinite(before), before, took)
        after = durations.seconds.copy()
        after[places] = (1 - self.smoothing) * before + self.smoothing * took
        return replace(durations, seconds=after)

    def round_seconds(self, durations: Durations) -> float:
        return self.slack * _quantile(durations.seconds, self.fastest)

    def normal(
        self, fleet: Fleet, durations: Durations, round_seconds: float, devices: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        return durations.of(devices) <= round_seconds


def _quantile(seconds: NDArray[np.float64], share: float) -> float:
    """What the fastest `share` of them stay within; ∞ if there are none."""
    rank = max(1, math.ceil(share * len(seconds))) - 1
    return float(np.partition(seconds, rank)[rank]) if len(seconds) else math.inf


@functools.lru_cache(maxsize=16)
def behind_pace(fleet: Fleet) -> NDArray[np.bool_]:
    """Who is expected to miss a round at the pace of the fleet's fastest tenth, as `Learned` judges it."""
    pace = Learned()
    return fleet.expected_seconds > pace.slack * _quantile(fleet.expected_seconds, pace.fastest)
