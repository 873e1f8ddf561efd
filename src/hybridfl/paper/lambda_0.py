"""The choice of λ_0: the paper's Figure 3, for λ as printed and for the other readings that have one."""

from __future__ import annotations

import numpy as np

from hybridfl.algorithms.ad_sgd import RankOne
from hybridfl.algorithms.blend import Blend, ByStaleness, ConstantWeight
from hybridfl.algorithms.hfl import HFL, Merge
from hybridfl.paper.study import Arm, Study
from hybridfl.paper.verdict import (
    POINT,
    Book,
    Claim,
    Judgement,
    by_point,
    is_best,
    ruling,
    shown_best,
)

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


def _lambda_best(book: Book) -> Judgement:
    shown, best = {}, {}
    for reading in (PRINTED, CONSTANT):
        points = _by_lambda(book, reading)
        shown[reading], best[reading] = shown_best(points, 0.5), is_best(points, 0.5)
    why = (
        "Our HFL has no λ_0; 'our reading' here is λ_0 for every straggler at all times, normalised and bounded, the one that "
        "uses it most."
    )
    return (
        shown[PRINTED],
        shown[CONSTANT],
        ruling(best[PRINTED], best[CONSTANT]),
        why,
    )


def _lambda_spread(book: Book) -> Judgement:
    def spread(reading: str) -> float:
        means = [float(np.mean(values)) for values in _by_lambda(book, reading).values()]
        return max(means) - min(means)

    printed, constant = spread(PRINTED), spread(CONSTANT)
    why = "Highest less lowest mean over λ_0. A small spread as printed says that λ_0 hardly matters, since λ_t is nearly 0."
    shown = [f"{100 * value:.1f} points" for value in (printed, constant)]
    return shown[0], shown[1], ruling(printed <= 0.004 + POINT / 2, constant <= 0.004 + POINT / 2), why


def _by_lambda(book: Book, reading: str) -> dict[float, list[float]]:
    return by_point([result for result in book["fig3-lambda"] if result.label.split(", λ_0")[0] == reading])


CLAIMS = (
    Claim("λ_0 = 0.5 is best", "0.5", ("fig3-lambda",), _lambda_best),
    Claim(
        "λ_0 from 0.1 to 0.9 makes a difference of 0.4 points at most", "0.4 points", ("fig3-lambda",), _lambda_spread
    ),
)
