"""What has happened in a run: counted as it happens, and turned into records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from hybridfl.errors import InputError
from hybridfl.evaluation import Scores
from hybridfl.protocol import Job, Vector
from hybridfl.records import Arrival, Record
from hybridfl.run import Moment

MOST_IN_ONE_VERSION, A_DEVICE = 10_000, 100
"""So many merged updates, or so many a device, into weights that are others but still of the same version, and a run is given
up: whoever moves on with every update or every round says so far earlier. A buffer (FedBuff's) may wait for any number of
updates, since the weights stay the very same tensor until it is full."""
MOST_WITHOUT_WEIGHTS = 1_000_000
"""So many where the weights stay the same tensor: no buffer of vectors is that long."""
MOST_IN_VAIN = 1000
"""So many instants at which jobs ended, and all in vain, and a run is given up: it would never make another version."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A record, and the jobs that ended since the previous one."""

    record: Record
    arrivals: tuple[Arrival, ...]
    weights: Vector
    """What was scored; `task.model_with(weights)` is that model."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A snapshot whose weights are not scored yet."""

    weights: Vector
    counts: dict[str, Any]
    arrivals: tuple[Arrival, ...]

    def scored(self, scores: Scores) -> Snapshot:
        """The snapshot it is, now that its scores are known."""
        record = Record(
            **self.counts,
            **{name: getattr(scores, name) for name in _SCORED},
            diverged_at=self.counts["version"] if scores.has_diverged else math.nan,
        )
        return Snapshot(record, self.arrivals, self.weights)


_SCORED = sorted({field.name for field in fields(Scores)} & {field.name for field in fields(Record)})


def models_in(jobs: Sequence[Job]) -> int:
    """A job carries a model and, under drift control, a vector of the same length."""
    return sum(1 if job.drift is None else 2 for job in jobs)


@dataclass(eq=False)
class Tally:
    """Counts what happened since the start, and since the last record."""

    bytes_a_model: int
    sent: int
    """Vectors of the model's length on their way to devices."""
    received: int = 0
    merged: int = 0
    discarded: int = 0
    refused: int = 0
    lost: int = 0
    forgotten: int = 0
    barred: int = 0
    in_vain: int = 0
    """Instants at which jobs ended since one at which an update was merged."""
    arrivals: list[Arrival] = field(default_factory=list)
    recorded_seconds: float = 0.0

    def copied(self) -> Tally:
        """As it is now, whatever it counts later."""
        return replace(self, arrivals=list(self.arrivals))

    def count(self, moment: Moment[Any]) -> None:
        """One more turn of the loop."""
        now, version = moment.inbox.now, moment.state.version
        for update, receipt in zip(moment.inbox.updates, moment.outbox.receipts, strict=True):
            job = update.job
            self.arrivals.append(
                Arrival(
                    job.device, job.version, job.sent_at, now, receipt.staleness, receipt.discarded, receipt.refused
                )
            )
            self.merged += receipt.is_merged
            self.discarded += receipt.discarded is not None
            self.refused += receipt.refused is not None
        for lost in moment.inbox.lost:
            job = lost.job
            staleness = version - job.version
            self.arrivals.append(Arrival(job.device, job.version, job.sent_at, now, staleness, lost=lost.reason))
            self.lost += 1
        if any(receipt.is_merged for receipt in moment.outbox.receipts):
            self.in_vain = 0
        elif moment.inbox.devices:
            self.in_vain += 1
        self.received += len(moment.inbox.updates)
        self.sent += models_in(moment.outbox.jobs)
        self.forgotten += moment.outbox.forgotten
        self.barred = len(moment.state.fleet.barred)

    def check_progress(self) -> None:
        """Raise `InputError` if nothing of use has come for very long: a run that ends with a version would never end."""
        if self.in_vain >= MOST_IN_VAIN:
            last = self.arrivals[-1]
            reason = last.discarded or last.refused or last.lost
            raise InputError(
                f"{self.in_vain} times in a row all that came was in vain, the last time as '{reason}', so no version will "
                "ever be made: give devices more time, or fewer faults, or end the run after so many seconds."
            )

    def check_versions(self, merged_before: int, devices: int, has_moved: bool) -> None:
        """Raise `InputError` if very much has been merged since the last version, when `merged_before` had been.

        `has_moved`: whether the weights are another tensor since. A run that ends with a version would never end.
        """
        merged = self.merged - merged_before
        if merged > max(MOST_IN_ONE_VERSION if has_moved else MOST_WITHOUT_WEIGHTS, A_DEVICE * devices):
            raise InputError(
                f"{merged} updates were merged and no version was made of them, so the run would never end: an algorithm "
                "raises its state's version by 1 with each new model. Or end the run after so many seconds."
            )

    def draft(self, version: int, seconds: float, weights: Vector) -> Draft:
        """What a record says of this instant, but for its scores."""
        staleness = [arrival.staleness for arrival in self.arrivals if arrival.is_merged]
        counts = {
            "version": version,
            "seconds": seconds,
            "merged": self.merged,
            "mean_staleness": float(np.mean(staleness)) if staleness else math.nan,
            "max_staleness": max(staleness, default=0),
            "bytes_sent": self.sent * self.bytes_a_model,
            "bytes_received": self.received * self.bytes_a_model,
            "discarded": self.discarded,
            "refused": self.refused,
            "lost": self.lost,
            "forgotten": self.forgotten,
            "barred": self.barred,
        }
        arrivals, self.arrivals = tuple(self.arrivals), []
        self.recorded_seconds = seconds
        return Draft(weights, counts, arrivals)
