"""What has happened in a run: counted as it happens, and turned into records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridfl.errors import InputError
from hybridfl.evaluation import Scores
from hybridfl.protocol import Vector
from hybridfl.records import Arrival, Record
from hybridfl.run import Moment

MOST_DISCARDED_IN_A_ROW = 1000
"""So many updates thrown away one after the other, and a run is given up: it would never make another version."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A record, and the updates that arrived since the previous one."""

    record: Record
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, eq=False)
class Draft:
    """A snapshot whose weights are not scored yet."""

    weights: Vector
    counts: dict[str, Any]
    arrivals: tuple[Arrival, ...]

    def scored(self, scores: Scores, wall_seconds: float) -> Snapshot:
        """The snapshot it is, now that its scores are known."""
        return Snapshot(Record(wall_seconds=round(wall_seconds, 3), **self.counts, **vars(scores)), self.arrivals)


class Tally:
    """Counts what happened since the start, and since the last record."""

    def __init__(self, bytes_a_model: int, sent: int) -> None:
        self._bytes_a_model = bytes_a_model
        self._sent, self._received, self._merged, self._discarded = sent, 0, 0, 0
        self._arrivals: list[Arrival] = []
        self._discarded_in_a_row = 0
        self.recorded_seconds = 0.0

    def count(self, moment: Moment[Any]) -> None:
        """One more turn of the loop."""
        for update, receipt in zip(moment.inbox.updates, moment.outbox.receipts, strict=True):
            job = update.job
            self._arrivals.append(
                Arrival(job.device, job.version, job.sent_at, moment.inbox.now, receipt.staleness, receipt.discarded)
            )
            self._merged += receipt.discarded is None
            self._discarded += receipt.discarded is not None
            self._discarded_in_a_row = 0 if receipt.discarded is None else self._discarded_in_a_row + 1
        if self._discarded_in_a_row >= MOST_DISCARDED_IN_A_ROW:
            raise InputError(
                f"The last {self._discarded_in_a_row} updates were all discarded as '{self._arrivals[-1].discarded}', so "
                "no version will ever be made: give devices more time."
            )
        self._received += len(moment.inbox.updates)
        self._sent += len(moment.outbox.jobs)

    def draft(self, version: int, seconds: float, weights: Vector) -> Draft:
        """What a record says of this instant, but for its scores."""
        staleness = [arrival.staleness for arrival in self._arrivals if arrival.discarded is None]
        counts = {
            "version": version,
            "seconds": seconds,
            "merged": self._merged,
            "mean_staleness": float(np.mean(staleness)) if staleness else math.nan,
            "max_staleness": max(staleness, default=0),
            "bytes_sent": self._sent * self._bytes_a_model,
            "bytes_received": self._received * self._bytes_a_model,
            "discarded": self._discarded,
        }
        arrivals, self._arrivals = tuple(self._arrivals), []
        self.recorded_seconds = seconds
        return Draft(weights, counts, arrivals)
