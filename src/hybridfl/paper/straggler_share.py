"""How many devices are slow, 0 to 90 %: a figure the paper leaves out."""

from __future__ import annotations

from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.sampling import Everyone
from hybridfl.paper.learning_curves import FEDBUFF
from hybridfl.paper.study import Arm, Study
from hybridfl.paper.verdict import DRIFT, OURS, PRINTED

SHARES = tuple(round(0.1 * k, 1) for k in range(10))
EVERYONE = "FedAvg with everyone"


def _arms(share: float) -> tuple[Arm, ...]:
    return (
        Arm(OURS, HFL(), share, at=share),
        Arm(PRINTED, HFL.as_printed(), share, at=share),
        Arm(DRIFT, HFL.drift_controlled(), share, at=share),
        Arm(FEDBUFF, FedBuff(), share, at=share, by_time=True),
        Arm(EVERYONE, FedAvg(Everyone()), share, at=share, by_time=True),
    )


STUDIES = tuple(
    Study(
        f"straggler-share-{name}",
        "left out by the paper",
        task,
        tuple(arm for share in SHARES for arm in _arms(share)),
        evaluate_every=4.0,
    )
    for name, task in (("fashion-mnist", "fashion-mnist"), ("synthetic-1-1", "synthetic(1, 1)"))
)
