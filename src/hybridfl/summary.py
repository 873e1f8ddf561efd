"""What a comparison comes down to: one row an algorithm, over all its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridfl.records import Record, SavedRun

Floats = NDArray[np.float64]

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
    """Virtual seconds until the mean over seeds of the test accuracy first reaches the target; NaN if it never does."""
    speedup: float
    """Seconds to target of FedAvg (the label `fedavg`, else the first that starts so) over this algorithm's."""
    speedup_bound: float
    """Where FedAvg did not reach the target: its whole run over this algorithm's seconds. Else NaN."""
    straggler_accuracy: float
    discarded: float
    """Updates that arrived and were thrown away."""


def by_label(runs: Sequence[SavedRun]) -> dict[str, list[SavedRun]]:
    """The runs of each algorithm, in the order of their first appearance, each in the order of the seeds."""
    groups: dict[str, list[SavedRun]] = {}
    for saved in runs:
        groups.setdefault(saved.label, []).append(saved)
    return {label: sorted(group, key=lambda saved: saved.seed) for label, group in groups.items()}


def is_bound(group: Sequence[SavedRun]) -> bool:
    """Whether these runs hold all the data in one place: the upper bound, not a contestant."""
    return str(group[0].config["algorithm"]).startswith(CENTRALISED)


def tail_mean(records: Sequence[Record], name: str) -> float:
    """The mean of one column over the last part of the run's virtual time."""
    start = records[-1].seconds * (1 - TAIL)
    return float(np.mean([getattr(record, name) for record in records if record.seconds >= start]))


def default_target(runs: Sequence[SavedRun]) -> float:
    """95 % of the best final accuracy that any federated algorithm reaches."""
    finals = [
        float(np.mean([tail_mean(saved.records, "test_accuracy") for saved in group]))
        for group in by_label(runs).values()
        if not is_bound(group)
    ]
    return 0.95 * max(finals) if finals else math.nan


def summarise(runs: Sequence[SavedRun], target: float | None = None) -> list[Row]:
    """One row an algorithm, the most accurate first; `target` is an accuracy, by default `default_target`."""
    goal = default_target(runs) if target is None else target
    groups = by_label(runs)
    reached = {label: _seconds_to(group, goal) for label, group in groups.items()}
    candidates = sorted(
        (label for label in groups if label.lower().startswith("fedavg")), key=lambda name: name != "fedavg"
    )
    baseline = candidates[0] if candidates else None
    needed = reached[baseline] if baseline else math.nan
    endured = float(np.mean([s.records[-1].seconds for s in groups[baseline]])) if baseline else math.nan
    rows = [
        Row(
            algorithm=label,
            test_accuracy=float(np.mean(finals := [tail_mean(s.records, "test_accuracy") for s in group])),
            test_accuracy_std=float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan,
            seconds_to_target=reached[label],
            speedup=math.nan if is_bound(group) else _ratio(needed, reached[label]),
            speedup_bound=_ratio(endured, reached[label]) if math.isnan(needed) and not is_bound(group) else math.nan,
            straggler_accuracy=float(np.mean([tail_mean(s.records, "straggler_accuracy") for s in group])),
            discarded=float(np.mean([s.records[-1].discarded for s in group])),
        )
        for label, group in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.test_accuracy)


def held(at: Floats, instants: Floats, values: Floats) -> Floats:
    """A step function: the last of `values` that is not later than `at`; NaN before the first."""
    index = np.searchsorted(instants, at, side="right") - 1
    return np.where(index < 0, math.nan, values[index])


def _seconds_to(group: Sequence[SavedRun], target: float) -> float:
    """Seeds have other data and other records; a joint model counts until the next one is recorded."""
    seconds = [np.array([record.seconds for record in saved.records]) for saved in group]
    accuracy = [np.array([record.test_accuracy for record in saved.records]) for saved in group]
    instants = np.unique(np.concatenate(seconds))
    mean = np.mean([held(instants, *columns) for columns in zip(seconds, accuracy, strict=True)], axis=0)
    reached = instants[mean >= target]
    return float(reached[0]) if len(reached) else math.nan


def _ratio(seconds: float, to: float) -> float:
    return seconds / to if to else math.nan
