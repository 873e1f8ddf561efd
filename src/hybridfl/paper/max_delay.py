"""The choice of the longest delay: the paper's Figure 4 and, in its supplement, Figures 10 to 14."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridfl.algorithms.hfl import HFL
from hybridfl.interval import Interval
from hybridfl.paper.results import of
from hybridfl.paper.study import Arm, Study
from hybridfl.paper.verdict import (
    DRIFT,
    OURS,
    PRINTED,
    Book,
    Claim,
    Finding,
    Judgement,
    above_zero,
    all_hold,
    by_point,
    is_best,
    judged,
)
from hybridfl.summary import Floats

DELAYS = tuple(range(10, 101, 10))
ALGORITHMS = {OURS: HFL(), PRINTED: HFL.as_printed(), DRIFT: HFL.drift_controlled()}


def _study(name: str, shows: str, task: str) -> Study:
    arms = tuple(
        Arm(label, algorithm, max_delay=delay, at=delay) for delay in DELAYS for label, algorithm in ALGORITHMS.items()
    )
    return Study(name, shows, task, arms, evaluate_every=4.0)


STUDIES = (
    _study("fig4-max-delay-fashion-mnist", "Figure 4", "fashion-mnist"),
    _study("fig10-max-delay-synthetic-1-1", "Figure 10", "synthetic(1, 1)"),
    _study("fig11-max-delay-synthetic-0-0", "Figure 11", "synthetic(0, 0)"),
    _study("fig12-max-delay-synthetic-iid", "Figure 12", "synthetic-iid"),
    _study("fig13-max-delay-mnist", "Figure 13", "mnist"),
    _study("fig14-max-delay-synthetic-0.5-0.5", "Figure 14", "synthetic(0.5, 0.5)"),
)


def _shortest_is_best(study: str) -> Callable[[Book], Judgement]:
    def judge(book: Book) -> Judgement:
        return judged(
            lambda label: is_best(of(book[study], label), min(DELAYS)),
            "Seed by seed. The paper fixes T = 200 rounds; how long a straggler takes changes only how often it is heard.",
        )

    return judge


NAMES = tuple(study.name for study in STUDIES)
ORDER = "Fashion-MNIST / Synthetic(1,1) / (0,0) / i.i.d. / MNIST / (0.5,0.5)"


def _on_all(book: Book, measure: Callable[[dict[float, list[float]]], list[float]], label: str) -> Finding:
    """A number a seed on every data set: whether it is above 0 on all."""
    found = [
        Interval.of(measure(by_point(of(book[name], label), lambda result: result.final_accuracy))) for name in NAMES
    ]
    return Finding(" / ".join(each.percent() for each in found), all_hold(map(above_zero, found)))


def _falls(book: Book) -> Judgement:
    """Accuracy at the shortest delays less that at the longest."""

    def measure(points: dict[float, list[float]]) -> list[float]:
        first, *_, last = points
        return [one - other for one, other in zip(points[first], points[last], strict=True)]

    return judged(
        lambda label: _on_all(book, measure, label),
        f"Points by which max τ = 10 is more accurate than max τ = 100, on {ORDER}.",
    )


def _bump(book: Book) -> Judgement:
    """40, 50 and 60 are better than what comes before them and than what comes after."""

    def measure(points: dict[float, list[float]]) -> list[float]:
        def mean(low: float, high: float) -> Floats:
            return np.asarray(np.mean([values for at, values in points.items() if low <= at <= high], axis=0))

        return list(mean(40, 60) - np.maximum(mean(20, 30), mean(70, 100)))

    return judged(
        lambda label: _on_all(book, measure, label),
        f"Mean accuracy at 40 to 60 less that at 20 and 30 or, if higher, at 70 to 100, in points, on {ORDER}.",
    )


CLAIMS = (
    *(
        Claim(
            f"max τ = 10 is best in accuracy and training loss: {study.task}",
            "10",
            (study.name,),
            _shortest_is_best(study.name),
        )
        for study in STUDIES
    ),
    Claim("HFL learns worse as τ grows, with T fixed", "", NAMES, _falls),
    Claim("max τ = 40, 50 and 60 are better than other settings", "", NAMES, _bump),
)
