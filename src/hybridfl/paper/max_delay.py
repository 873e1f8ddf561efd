"""The choice of the longest delay: the paper's Figure 4 and, in its supplement, Figures 10 to 14."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridfl.algorithms.hfl import HFL
from hybridfl.paper.learning_curves import DRIFT, OURS, PRINTED
from hybridfl.paper.results import of
from hybridfl.paper.study import Arm, Study
from hybridfl.paper.verdict import (
    Book,
    Claim,
    Judgement,
    by_point,
    is_best,
    ruling,
    shown_best,
)

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
        shown, best = {}, {}
        for label in (PRINTED, OURS, DRIFT):
            points = by_point(of(book[study], label))
            shown[label], best[label] = shown_best(points, min(points)), is_best(points, min(points))
        why = f"With drift control {shown[DRIFT]}."
        return shown[PRINTED], shown[OURS], ruling(best[PRINTED], best[OURS]), why

    return judge


def _bump(book: Book) -> Judgement:
    """40, 50 and 60 better than 20, 30 before and 70 to 100 after them, on average."""
    shown, is_bump = {}, {}
    for label in (PRINTED, OURS):
        points = by_point(of(book["fig4-max-delay-fashion-mnist"], label))
        inside = [float(np.mean(points[at])) for at in points if 40 <= at <= 60]
        around = [float(np.mean(points[at])) for at in points if 20 <= at <= 30 or at >= 70]
        shown[label] = f"{100 * float(np.mean(inside)):.1f} against {100 * float(np.mean(around)):.1f}"
        is_bump[label] = min(inside) > max(around)
    return (
        shown[PRINTED],
        shown[OURS],
        ruling(is_bump[PRINTED], is_bump[OURS]),
        "Mean at 40–60 against all others but 10.",
    )


CLAIMS = (
    *(
        Claim(f"max τ = 10 is best: {study.task}", "10", (study.name,), _shortest_is_best(study.name))
        for study in STUDIES
    ),
    Claim(
        "max τ = 40, 50 and 60 are better than the other settings on Fashion-MNIST",
        "",
        ("fig4-max-delay-fashion-mnist",),
        _bump,
    ),
)
