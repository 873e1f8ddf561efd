"""The choice of the longest delay: the paper's Figure 4 and, in its supplement, Figures 10 to 14."""

from __future__ import annotations

from hybridfl.algorithms.hfl import HFL
from hybridfl.paper.learning_curves import DRIFT, OURS, PRINTED
from hybridfl.paper.study import Arm, Study

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
