"""What a comparison comes down to: one row an algorithm, over all its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridfl.records import Record, SavedRun

TAIL = 0.15
"""A final figure is the mean over this last part of a run's virtual time, as single evaluations oscillate."""

CENTRALISED = "SSGD("
"""S-SGD holds all the data in one place: it is the upper bound, not a contestant, and sets no target."""


@dataclass(frozen=True)
class Row:
    """One algorithm. Means over seeds; a spread is the standard deviation over seeds. NaN where there is nothing to say."""

    algorithm: str
    test_accuracy: float
    test_accuracy_std: float
    seconds_to_target: float
    """Virtual seconds until the test accuracy first reaches the target; NaN if any seed never does."""
    speedup: float
    """FedAvg's seconds to target over this algorithm's."""
    straggler_accuracy: float
    discarded: float
    """Updates that arrived and were thrown away."""


def by_label(runs: Sequence[SavedRun]) -> dict[str, list[SavedRun]]:
    """The runs of each algorithm, in the order of their first appearance, each in the order of the seeds."""
    groups: dict[str, list[SavedRun]] = {}
    for saved in sorted(runs, key=lambda saved: saved.seed):
        groups.setdefault(saved.label, []).append(saved)
    return groups


def tail_mean(records: Sequence[Record], name: str) -> float:
    """The mean of one column over the last part of the run's virtual time."""
    start = records[-1].seconds * (1 - TAIL)
    return float(np.mean([getattr(record, name) for record in records if record.seconds >= start]))


def default_target(runs: Sequence[SavedRun]) -> float:
    """95 % of the best final accuracy that any federated algorithm reaches."""
    finals = [
        float(np.mean([tail_mean(saved.records, "test_accuracy") for saved in group]))
        for group in by_label(runs).values()
        if not str(group[0].config["algorithm"]).startswith(CENTRALISED)
    ]
    return 0.95 * max(finals) if finals else math.nan


def summarise(runs: Sequence[SavedRun], target: float | None = None) -> list[Row]:
    """One row an algorithm; `target` is an accuracy, by default `default_target`."""
    goal = default_target(runs) if target is None else target
    groups = by_label(runs)
    reached = {label: float(np.mean([_seconds_to(s.records, goal) for s in group])) for label, group in groups.items()}
    baseline = next(
        (reached[label] for label, group in groups.items() if str(group[0].config["algorithm"]).startswith("FedAvg(")),
        math.nan,
    )
    return [
        Row(
            algorithm=label,
            test_accuracy=float(np.mean(finals := [tail_mean(s.records, "test_accuracy") for s in group])),
            test_accuracy_std=float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan,
            seconds_to_target=reached[label],
            speedup=baseline / reached[label],
            straggler_accuracy=float(np.mean([tail_mean(s.records, "straggler_accuracy") for s in group])),
            discarded=float(np.mean([s.records[-1].discarded for s in group])),
        )
        for label, group in groups.items()
    ]


def _seconds_to(records: Sequence[Record], target: float) -> float:
    return next((record.seconds for record in records if record.test_accuracy >= target), math.nan)
