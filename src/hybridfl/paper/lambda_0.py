"""The choice of λ_0: the paper's Figure 3, for λ as printed and for the other readings that have one."""

from __future__ import annotations

from hybridfl.algorithms.ad_sgd import RankOne
from hybridfl.algorithms.blend import Blend, ByStaleness, ConstantWeight
from hybridfl.algorithms.hfl import HFL, Merge
from hybridfl.paper.study import Arm, Study

LAMBDAS = tuple(round(0.1 * k, 1) for k in range(1, 10))
PRINTED, NORMALISED, BY_STALENESS, CONSTANT = "as printed", "as printed, normalised", "λ_0·exp(−τ)", "λ_0 for all"
BOUNDED = RankOne(0.3)


def _merges(lambda_0: float) -> dict[str, Merge]:
    return {
        PRINTED: HFL.as_printed(lambda_0).merge,
        NORMALISED: HFL.as_printed(lambda_0, normalised=True).merge,
        BY_STALENESS: Blend(ByStaleness(lambda_0), BOUNDED, normalised=True),
        CONSTANT: Blend(ConstantWeight(lambda_0), BOUNDED, normalised=True),
    }


STUDIES = (
    Study(
        "fig3-lambda",
        "Figure 3",
        "fashion-mnist",
        tuple(
            Arm(f"{reading}, λ_0 = {lambda_0}", HFL(merge), at=lambda_0)
            for lambda_0 in LAMBDAS
            for reading, merge in _merges(lambda_0).items()
        ),
        evaluate_every=4.0,
    ),
)
