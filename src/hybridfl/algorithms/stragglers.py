"""Who is a straggler: by a known share, or learned from how long each device took.

The server sees nothing but when it sent a job and when the answer came.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_share
from hybridfl.protocol import Fleet, Update

Seconds = NDArray[np.float64]
"""One number a device: how long it takes as far as the server has seen; infinite for a device never heard from."""


class Stragglers(Protocol):
    """Splits the fleet into S1 (normal) and S2 (stragglers), anew at every version."""

    def observe(self, seconds: Seconds, updates: Sequence[Update], now: float) -> Seconds:
        """What is known of the devices' durations after these answers."""

    def round_seconds(self, seconds: Seconds) -> float:
        """How long a round may wait for S1; infinite for as long as it takes."""

    def normal(self, fleet: Fleet, seconds: Seconds, round_seconds: float) -> NDArray[np.bool_]:
        """Who belongs to S1."""


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

    def observe(self, seconds: Seconds, updates: Sequence[Update], now: float) -> Seconds:
        return seconds

    def round_seconds(self, seconds: Seconds) -> float:
        return math.inf

    def normal(self, fleet: Fleet, seconds: Seconds, round_seconds: float) -> NDArray[np.bool_]:
        return ~slowest(fleet, self.share)


@dataclass(frozen=True)
class Learned:
    """m_i ← (1 − β)·m_i + β·(seconds device i just took);  S1 = {i : m_i ≤ the round's length}.

    m_i: exponentially weighted mean, ∞ until the device first answers; β: `smoothing`.
    Where HFL sets no `round_seconds`, the round's length is `slack` × the `fastest` quantile of all m_i: the pace of the
    fleet's fastest tenth, and half as long again. It is infinite until that tenth has been heard from, so the first round
    finds the pace by waiting for them, and a normal device that suddenly slows down holds a round up by `slack` at most.
    """

    smoothing: float = 0.3
    fastest: float = 0.1
    slack: float = 1.5

    def __post_init__(self) -> None:
        require_share("smoothing", self.smoothing)
        require_share("fastest", self.fastest)
        require_positive("slack", self.slack)

    def observe(self, seconds: Seconds, updates: Sequence[Update], now: float) -> Seconds:
        if not updates:
            return seconds
        devices = np.array([update.job.device for update in updates])
        took = np.array([now - update.job.sent_at for update in updates])
        known = np.isfinite(seconds[devices])
        before = np.where(known, seconds[devices], took)
        after = seconds.copy()
        after[devices] = (1 - self.smoothing) * before + self.smoothing * took
        return after

    def round_seconds(self, seconds: Seconds) -> float:
        rank = max(1, math.ceil(self.fastest * len(seconds))) - 1
        return self.slack * float(np.partition(seconds, rank)[rank])

    def normal(self, fleet: Fleet, seconds: Seconds, round_seconds: float) -> NDArray[np.bool_]:
        return seconds <= round_seconds


@functools.lru_cache(maxsize=16)
def behind_pace(fleet: Fleet) -> NDArray[np.bool_]:
    """Who is expected to miss a round at the pace of the fleet's fastest tenth, as `Learned` judges it."""
    return fleet.expected_seconds > Learned().round_seconds(fleet.expected_seconds)
