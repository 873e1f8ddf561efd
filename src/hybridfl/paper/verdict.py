"""How a claim is judged on the results of studies: for HFL as printed, for our reading of it, and with drift control."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hybridfl.interval import Interval
from hybridfl.paper.results import Result, of

PRINTED, OURS, DRIFT = "HFL as printed", "HFL", "HFL, drift control"
"""What every claim about HFL is judged for."""
Ruling = Literal["holds", "holds for our reading", "holds with drift control", "does not hold", "cannot tell"]
POINT = 0.01
"""The paper's numbers are of one run each, with no spread: what lies within a point of our interval agrees with them."""
ROUNDING = 1e-9
WIDE = 0.1
"""An interval of more than ten points to either side says nothing about such a number."""


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
class Finding:
    """What was measured of an algorithm, and whether the claim holds of it; None: the intervals leave it open."""

    text: str
    holds: bool | None


NOT_ASKED = Finding("", None)


@dataclass(frozen=True)
class Judgement:
    """What came out, and the sentence that explains it. A claim about a rival is judged by its first finding."""

    printed: Finding
    ours: Finding
    drift: Finding
    why: str

    @property
    def ruling(self) -> Ruling:
        """Drift control goes past the paper: what it leaves open does not leave a claim open."""
        if self.printed.holds:
            return "holds"
        if self.ours.holds:
            return "holds for our reading"
        if self.drift.holds:
            return "holds with drift control"
        asked = [finding for finding in (self.printed, self.ours) if finding is not NOT_ASKED]
        return "does not hold" if all(finding.holds is False for finding in asked) else "cannot tell"


def judged(measure: Callable[[str], Finding], why: str) -> Judgement:
    """Of what `measure` finds of each of the three."""
    return Judgement(measure(PRINTED), measure(OURS), measure(DRIFT), why)


@dataclass(frozen=True)
class Verdict:
    """One row of the table."""

    claim: str
    paper: str
    judgement: Judgement


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
            unknown = Finding("", None)
            return Verdict(
                self.text, self.paper, Judgement(unknown, unknown, unknown, f"Not run: {', '.join(missing)}.")
            )
        return Verdict(self.text, self.paper, self.judge(book))


def at_least(found: Interval, number: float) -> bool | None:
    """None if the number lies inside the interval."""
    return True if found.low >= number else False if found.high < number else None


def above_zero(found: Interval) -> bool | None:
    """None if the interval lies on both sides of 0; what is 0 but for rounding is not above it."""
    return True if found.low > ROUNDING else False if found.high <= ROUNDING else None


def agrees(found: Interval, number: float) -> bool | None:
    """With a number of the paper's, to a point; None of an interval so wide that all would."""
    if abs(found.mean - number) > found.half + POINT:
        return False
    return True if found.half <= WIDE else None


def all_hold(parts: Iterable[bool | None]) -> bool | None:
    """And, where None is unknown."""
    known = set(parts)
    return False if False in known else None if None in known else True


def is_highest(points: Mapping[float, Sequence[float]], at: float) -> bool | None:
    """Whether what stands there, a number a seed, is above all else, seed by seed; None if that may be chance."""
    others = [apart(points[at], values) for point, values in points.items() if point != at]
    if any(other.high < 0 for other in others):
        return False
    return True if all(other.low > 0 for other in others) else None


def apart(values: Sequence[float], others: Sequence[float]) -> Interval:
    """By how much, seed by seed."""
    return Interval.of([value - other for value, other in zip(values, others, strict=True)])


def shown_highest(points: Mapping[float, Sequence[float]], at: float) -> str:
    """`best at 10: 71.2 ± 0.3, 1.0 ± 0.2 above 20`, if it is best where it should be; else by how much it is above that."""
    first, second = sorted(points, key=lambda point: -float(np.mean(points[point])))[:2]
    below = second if first == at else at
    above = apart(points[first], points[below])
    return f"best at {first:g}: {Interval.of(points[first]).percent()}, {above.percent()} above {below:g}"


def by_point(results: Sequence[Result], value: Callable[[Result], float]) -> dict[float, list[float]]:
    """Something of runs, a number a seed, by where they stand on a sweep's axis."""
    points: dict[float, list[float]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        if result.at is not None:
            points.setdefault(result.at, []).append(value(result))
    return dict(sorted(points.items()))


def is_best(results: Sequence[Result], at: float) -> Finding:
    """Whether one point of a sweep has the highest accuracy and the lowest training loss."""
    accuracy = by_point(results, lambda result: result.final_accuracy)
    minus_loss = by_point(results, lambda result: -result.final_loss)
    lowest = max(minus_loss, key=lambda point: float(np.mean(minus_loss[point])))
    text = f"{shown_highest(accuracy, at)}; loss lowest at {lowest:g}"
    return Finding(text, all_hold([is_highest(accuracy, at), is_highest(minus_loss, at)]))


def final(results: Sequence[Result], label: str) -> Interval:
    """Final test accuracy over seeds."""
    return Interval.of([result.final_accuracy for result in of(results, label)])


def gains(
    results: Sequence[Result],
    label: str,
    rivals: Sequence[str],
    value: Callable[[Result], float] = lambda result: result.final_accuracy,
) -> list[float]:
    """By how much an algorithm is above the best of its rivals, each at its own end, by seed."""

    def values(name: str) -> list[float]:
        return [value(result) for result in sorted(of(results, name), key=lambda result: result.seed)]

    best = max(rivals, key=lambda rival: float(np.nan_to_num(np.mean(values(rival)), nan=-np.inf)))
    return [own - other for own, other in zip(values(label), values(best), strict=True)]


def lead(results: Sequence[Result], label: str, rivals: Sequence[str]) -> Interval:
    """By how much an algorithm is more accurate at its end than the best of its rivals at that same virtual second."""
    runs = {(result.label, result.seed): result for result in results}

    def ahead(own: Result) -> float:
        return own.accuracy[-1] - max(_accuracy_at(runs[rival, own.seed], own.seconds[-1]) for rival in rivals)

    return Interval.of([ahead(own) for own in of(results, label)])


def _accuracy_at(result: Result, second: float) -> float:
    """Of the next model of which a point was kept, if not of that very second's: in favour of whom it is asked."""
    return result.accuracy[min(int(np.searchsorted(result.seconds, second)), len(result.seconds) - 1)]
