"""What AD-SGD's correction does: with the memory and without, none, a constant damping, and every Hessian there is."""

from __future__ import annotations

import math

from hybridfl.algorithms.ad_sgd import Correction, Damping, Diagonal, MeanRankOne, NoCorrection, RankOne, Secant
from hybridfl.algorithms.blend import Blend, DataShare
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import FullWork, InverseSqrt, InverseTime, Schedule
from hybridfl.algorithms.memory import Memory
from hybridfl.paper.study import Arm, Study

CORRECTIONS: dict[str, Correction] = {
    "none": NoCorrection(),
    "damping 0.7": Damping(0.7),
    "rank-one, trust 0.1": RankOne(0.1),
    "rank-one, trust 0.3": RankOne(0.3),
    "rank-one, trust 0.6": RankOne(0.6),
    "rank-one, trust 1": RankOne(1.0),
    "rank-one, unbounded": RankOne(math.inf),
    "mean rank-one": MeanRankOne(),
    "diagonal": Diagonal(),
    "secant, gain 1": Secant(1.0),
    "secant, gain 3": Secant(3.0),
}
MEMORY, ARRIVALS = "memory", "arrivals only"
SCHEDULES: dict[str, Schedule] = {"inverse": InverseTime(), "sqrt": InverseSqrt()}


def _arms(schedule: str) -> tuple[Arm, ...]:
    local = FullWork(learning_rate=SCHEDULES[schedule])
    remembered = [
        Arm(f"{MEMORY}: {name} ({schedule})", HFL(Memory(correction), local=local))
        for name, correction in CORRECTIONS.items()
    ]
    arrived = [
        Arm(f"{ARRIVALS}: {name} ({schedule})", HFL(Blend(DataShare(), correction, normalised=True), local=local))
        for name, correction in CORRECTIONS.items()
    ]
    drift = Arm(f"{MEMORY}: secant, normalised, drift control ({schedule})", HFL.drift_controlled(local=local))
    normalised = Arm(f"{MEMORY}: secant, normalised ({schedule})", HFL(Memory(normalised=True), local=local))
    return (*remembered, normalised, drift, *arrived)


STUDIES = tuple(
    Study(f"ablation-{name}", "not in the paper", task, _arms("inverse") + _arms("sqrt"), evaluate_every=4.0)
    for name, task in (
        ("fashion-mnist", "fashion-mnist"),
        ("synthetic-0-0", "synthetic(0, 0)"),
        ("synthetic-1-1", "synthetic(1, 1)"),
    )
)
