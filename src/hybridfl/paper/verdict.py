"""How a claim is judged on the results of studies: for HFL as printed, and for our reading of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hybridfl.paper.interval import Interval
from hybridfl.paper.results import Result, of

Ruling = Literal["holds", "holds for our reading", "does not hold", "cannot tell"]
WIDE = 0.1
"""An interval of more than ten points to either side says nothing."""
POINT = 0.01
"""The paper's numbers are of one run each, with no spread: what lies within a point of our interval agrees with them."""


@dataclass(frozen=True)
class Book:
    """The results of every study that was run, by its name, and what was measured aside."""

    results: Mapping[str, Sequence[Result]]
    asides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __getitem__(self, study: str) -> Sequence[Result]:
        return self.results[study]

    def __contains__(self, study: object) -> bool:
        return study in self.results


@dataclass(frozen=True)
class Verdict:
    """One row of the table. Accuracies in %, mean ± 95 % interval over seeds."""

    claim: str
    paper: str
    printed: str
    """Of the algorithm as printed, or of a rival, which is what it is."""
    ours: str
    ruling: Ruling
    why: str


Judgement = tuple[str, str, Ruling, str]
"""(as printed, our reading, ruling, why)"""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the studies it needs, and how it is judged on them."""

    text: str
    paper: str
    studies: tuple[str, ...]
    judge: Callable[[Book], Judgement]

    def verdict(self, book: Book) -> Verdict:
        missing = [name for name in self.studies if name not in book]
        if missing:
            return Verdict(self.text, self.paper, "", "", "cannot tell", f"Not run: {', '.join(missing)}.")
        return Verdict(self.text, self.paper, *self.judge(book))


def ruling(printed: bool | None, ours: bool | None) -> Ruling:
    """Whether a claim holds of the algorithm as printed, or at least of our reading; None: the intervals leave it open."""
    if printed:
        return "holds"
    if ours:
        return "holds for our reading"
    return "does not hold" if printed is False and ours is False else "cannot tell"


def either(ours: bool | None, controlled: bool | None) -> tuple[bool | None, str]:
    """Whether a claim holds of HFL or, if only so, with drift control; and what must then be said."""
    if ours or not controlled:
        return ours, ""
    return True, "Only with drift control, which goes past the paper. "


def reaches(found: Interval, number: float) -> bool | None:
    """Whether the interval reaches a number; one that is wide proves nothing by it."""
    if found.high < number:
        return False
    return True if found.half <= WIDE else None


def above_zero(found: Interval) -> bool | None:
    """None if the interval holds 0."""
    return True if found.low > 0 else False if found.high <= 0 else None


def is_best(points: Mapping[float, Sequence[float]], at: float) -> bool | None:
    """Whether what stands there, a number a seed, is above all else, seed by seed; None if that may be chance."""
    others = [_apart(points[at], values) for point, values in points.items() if point != at]
    if any(other.high < 0 for other in others):
        return False
    return True if all(other.low > 0 for other in others) else None


def _apart(values: Sequence[float], others: Sequence[float]) -> Interval:
    return Interval.of([value - other for value, other in zip(values, others, strict=True)])


def shown_best(points: Mapping[float, Sequence[float]], at: float) -> str:
    """`best at 10: 71.2 ± 0.3, 1.0 ± 0.2 above 20`, if it is best where it should be; else by how much it is above that."""
    first, second = sorted(points, key=lambda point: -float(np.mean(points[point])))[:2]
    below = second if first == at else at
    apart = _apart(points[first], points[below])
    return f"best at {first:g}: {Interval.of(points[first]).percent()}, {apart.percent()} above {below:g}"


def by_point(results: Sequence[Result]) -> dict[float, list[float]]:
    """Final accuracies, a number a seed, by where they stand on a sweep's axis."""
    points: dict[float, list[float]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        if result.at is not None:
            points.setdefault(result.at, []).append(result.final_accuracy)
    return dict(sorted(points.items()))


def final(results: Sequence[Result], label: str) -> Interval:
    """Final test accuracy over seeds."""
    return Interval.of([result.final_accuracy for result in of(results, label)])


def gain(results: Sequence[Result], label: str, rivals: Sequence[str]) -> Interval:
    """By how much an algorithm is more accurate at its end than the best of its rivals at theirs, seed by seed."""
    seeds = sorted({result.seed for result in of(results, label)})

    def accuracy(name: str, seed: int) -> float:
        return next(result.final_accuracy for result in of(results, name) if result.seed == seed)

    best = max(rivals, key=lambda rival: final(results, rival).mean)
    return Interval.of([accuracy(label, seed) - accuracy(best, seed) for seed in seeds])


def lead(results: Sequence[Result], label: str, rivals: Sequence[str]) -> Interval:
    """By how much an algorithm is more accurate at its end than the best of its rivals at that same virtual second."""
    runs = {(result.label, result.seed): result for result in results}

    def ahead(own: Result) -> float:
        return own.accuracy[-1] - max(_accuracy_at(runs[rival, own.seed], own.seconds[-1]) for rival in rivals)

    return Interval.of([ahead(own) for own in of(results, label)])


def _accuracy_at(result: Result, second: float) -> float:
    """Of the next model of which a point was kept, if not of that very second's: in favour of whom it is asked."""
    return result.accuracy[min(int(np.searchsorted(result.seconds, second)), len(result.seconds) - 1)]
