"""The choice of λ_0: the paper's Figure 3, for λ as printed and for the other readings that have one."""

from __future__ import annotations

import numpy as np

from hybridfl.algorithms.ad_sgd import RankOne
from hybridfl.algorithms.blend import Blend, ByStaleness, ConstantWeight
from hybridfl.algorithms.hfl import HFL, Merge
from hybridfl.paper.results import Result
from hybridfl.paper.study import Arm, Study
from hybridfl.paper.verdict import NOT_ASKED, POINT, Book, Claim, Finding, Judgement, apart, by_point, is_best

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


ASKED = (
    "Our HFL has no λ_0; 'our reading' here is λ_0 for every straggler at all times, normalised and bounded, the one that uses "
    "it most."
)


def _best(book: Book) -> Judgement:
    printed, constant = (is_best(_of(book, reading), 0.5) for reading in (PRINTED, CONSTANT))
    return Judgement(printed, constant, NOT_ASKED, ASKED)


def _symmetric(book: Book) -> Judgement:
    """λ_0 and 1 − λ_0 are equally accurate, seed by seed, to a point."""

    def measure(reading: str) -> Finding:
        points = by_point(_of(book, reading), lambda result: result.final_accuracy)
        pairs = [
            apart(points[low], points[round(1 - low, 1)]) for low in points if low < 0.5 and round(1 - low, 1) in points
        ]
        uneven = [pair for pair in pairs if not pair.low <= 0 <= pair.high]
        is_same = all(abs(pair.mean) + pair.half <= POINT for pair in pairs)
        text = " / ".join(pair.percent() for pair in pairs)
        return Finding(text, False if uneven else True if is_same else None)

    why = (
        "Accuracy at λ_0 less that at 1 − λ_0, for 0.1 / 0.2 / 0.3 / 0.4, in points. As printed nothing depends on λ_0."
    )
    return Judgement(measure(PRINTED), measure(CONSTANT), NOT_ASKED, why)


def _spread(book: Book) -> Judgement:
    """The best λ_0 less the worst, seed by seed."""

    def measure(reading: str) -> Finding:
        points = by_point(_of(book, reading), lambda result: result.final_accuracy)
        worst, *_, best = sorted(points, key=lambda point: float(np.mean(points[point])))
        found = apart(points[best], points[worst])
        return Finding(found.percent(), True if found.high <= 0.004 else False if found.low > 0.004 else None)

    why = (
        "Points between the best λ_0 and the worst. It says nothing good of the algorithm as printed: λ_t is nearly 0 whatever "
        "λ_0 is, and the model stays at chance."
    )
    return Judgement(measure(PRINTED), measure(CONSTANT), NOT_ASKED, why)


def _of(book: Book, reading: str) -> list[Result]:
    return [result for result in book["fig3-lambda"] if result.label.split(", λ_0")[0] == reading]


CLAIMS = (
    Claim("λ_0 = 0.5 is best in accuracy and training loss", "0.5", ("fig3-lambda",), _best),
    Claim("Accuracy is symmetric in λ_0 about 0.5", "", ("fig3-lambda",), _symmetric),
    Claim("λ_0 from 0.1 to 0.9 makes a difference of 0.4 points at most", "0.4 points", ("fig3-lambda",), _spread),
)
