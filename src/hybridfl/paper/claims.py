"""What becomes of the paper's claims: each is measured on the results, for HFL as printed and for our reading of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hybridfl.paper import convergence, lambda_0, learning_curves, max_delay
from hybridfl.paper.interval import Interval
from hybridfl.paper.learning_curves import DRIFT, FEDAVG, FEDPROX, OURS, PRESET, PRINTED, SSGD_
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


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the studies it needs, and how it is judged on them."""

    text: str
    paper: str
    studies: tuple[str, ...]
    judge: Callable[[Book], tuple[str, str, Ruling, str]]

    def verdict(self, book: Book) -> Verdict:
        missing = [name for name in self.studies if name not in book]
        if missing:
            return Verdict(self.text, self.paper, "", "", "cannot tell", f"Not run: {', '.join(missing)}.")
        return Verdict(self.text, self.paper, *self.judge(book))


def verdicts(book: Book) -> list[Verdict]:
    """All claims, in the order of the paper."""
    return [claim.verdict(book) for claim in CLAIMS]


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
        return ours if ours or controlled is not None else None, ""
    return True, "Only with drift control, which goes past the paper. "


def reaches(found: Interval, number: float) -> bool | None:
    """Whether the interval reaches a number; one that is wide proves nothing by it."""
    if found.high < number:
        return False
    return True if found.half <= WIDE else None


def above_zero(found: Interval) -> bool | None:
    """None if the interval holds 0."""
    return True if found.low > 0 else False if found.high <= 0 else None


def is_best(points: Mapping[float, Interval], at: float) -> bool | None:
    """Whether the highest mean stands there; None if it does not, but that may be chance."""
    best = max(points, key=lambda point: points[point].mean)
    if best == at:
        return True if points[at].half <= WIDE else None
    apart = points[best].mean - points[at].mean
    return None if apart <= max(points[best].half, points[at].half) else False


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


def _agrees(study: str, label: str, number: float) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    """A rival's number is the paper's, to a point beyond the interval."""

    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        found = final(book[study], label)
        off = found.mean - number
        agrees = abs(off) <= found.half + POINT
        open_ = agrees and found.half > WIDE
        verdict: Ruling = "cannot tell" if open_ else "holds" if agrees else "does not hold"
        return found.percent(), "", verdict, f"{100 * off:+.1f} points from the paper's."

    return judge


def _reaches(study: str, number: float) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        results = book[study]
        printed, ours, drift, preset = (final(results, label) for label in (PRINTED, OURS, DRIFT, PRESET))
        best = max((drift, preset), key=lambda each: each.mean)
        holds, note = either(reaches(ours, number), reaches(best, number))
        why = (
            f"{note}As printed λ_t dies out within a few rounds and the model learns the normal devices' data only. Remembering"
            f" every straggler gives {ours.percent()}, drift control {drift.percent()}, and a schedule that comes to rest at T "
            f"with it {preset.percent()}."
        )
        return (
            printed.percent(),
            max(ours, best, key=lambda each: each.mean).percent(),
            ruling(reaches(printed, number), holds),
            why,
        )

    return judge


def _best(study: str) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    """More accurate after T rounds than the rivals of the paper, each after T rounds of its own."""

    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        results, rivals = book[study], (FEDAVG, FEDPROX)
        printed, ours, drift = (gain(results, label, rivals) for label in (PRINTED, OURS, DRIFT))
        took = np.mean([result.seconds[-1] for result in of(results, FEDAVG)])
        own = np.mean([result.seconds[-1] for result in of(results, OURS)])
        holds, note = either(above_zero(ours), above_zero(drift))
        why = (
            f"{note}Points ahead of the better of FedAvg and FedProx, after as many rounds of each; FedAvg's take {took:,.0f} "
            f"virtual seconds, HFL's {own:,.0f}."
        )
        shown = f"{ours.percent()}; drift control {drift.percent()}"
        return printed.percent(), shown, ruling(above_zero(printed), holds), why

    return judge


def _larger_on_synthetic(book: Book) -> tuple[str, str, Ruling, str]:
    def gaps(label: str) -> list[float]:
        names = ("fig2-fashion-mnist", "fig2-synthetic-0-0", "fig2-synthetic-1-1")
        return [gain(book[name], label, (FEDAVG, FEDPROX)).mean for name in names]

    def shown(values: Sequence[float]) -> str:
        return " / ".join(f"{100 * value:+.1f}" for value in values)

    printed, ours, drift = gaps(PRINTED), gaps(OURS), gaps(DRIFT)
    is_larger = [min(values[1:]) > values[0] and min(values) > 0 for values in (printed, ours, drift)]
    why = "Points ahead on Fashion-MNIST / Synthetic(0,0) / Synthetic(1,1); it must be ahead on all to be so by more on two."
    text = f"{shown(ours)}; drift control {shown(drift)}"
    return shown(printed), text, ruling(is_larger[0], is_larger[1] or is_larger[2]), why


def _slower(book: Book) -> tuple[str, str, Ruling, str]:
    """Rounds until nine tenths of what is reached at the end."""

    def rounds(study: str, label: str) -> Interval:
        return Interval.of([_rounds_to(result, 0.9) for result in of(book[study], label)])

    def shown(label: str) -> tuple[str, bool | None]:
        even, uneven = rounds("fig2-synthetic-0-0", label), rounds("fig2-synthetic-1-1", label)
        apart = None if even.low <= uneven.high and uneven.low <= even.high else uneven.mean > even.mean
        return f"{even.mean:.0f} / {uneven.mean:.0f}", apart

    (printed, is_printed), (ours, is_ours) = shown(PRINTED), shown(OURS)
    return printed, ours, ruling(is_printed, is_ours), "Rounds to 90 % of the own final accuracy, (0,0) / (1,1)."


def _rounds_to(result: Result, part: float) -> float:
    goal = part * result.final_accuracy
    return next((float(v) for v, a in zip(result.versions, result.accuracy, strict=True) if a >= goal), math.nan)


def _shown_best(points: Mapping[float, Interval], at: float) -> str:
    best = max(points, key=lambda point: points[point].mean)
    return f"best at {best:g}: {points[best].percent()}; at {at:g}: {points[at].percent()}"


def _lambda_best(book: Book) -> tuple[str, str, Ruling, str]:
    shown, best = {}, {}
    for reading in (lambda_0.PRINTED, lambda_0.CONSTANT):
        points = _by_lambda(book, reading)
        shown[reading], best[reading] = _shown_best(points, 0.5), is_best(points, 0.5)
    why = (
        "Our HFL has no λ_0; 'our reading' here is λ_0 for every straggler at all times, normalised and bounded, the one that "
        "uses it most."
    )
    return (
        shown[lambda_0.PRINTED],
        shown[lambda_0.CONSTANT],
        ruling(best[lambda_0.PRINTED], best[lambda_0.CONSTANT]),
        why,
    )


def _lambda_spread(book: Book) -> tuple[str, str, Ruling, str]:
    def spread(reading: str) -> float:
        means = [interval.mean for interval in _by_lambda(book, reading).values()]
        return max(means) - min(means)

    printed, constant = spread(lambda_0.PRINTED), spread(lambda_0.CONSTANT)
    why = "Highest less lowest mean over λ_0. A small spread as printed says that λ_0 hardly matters, since λ_t is nearly 0."
    shown = [f"{100 * value:.1f} points" for value in (printed, constant)]
    return shown[0], shown[1], ruling(printed <= 0.004 + POINT / 2, constant <= 0.004 + POINT / 2), why


def _by_lambda(book: Book, reading: str) -> dict[float, Interval]:
    results = [result for result in book["fig3-lambda"] if result.label.split(", λ_0")[0] == reading]
    return {
        at: Interval.of([result.final_accuracy for result in results if result.at == at])
        for at in sorted({result.at for result in results if result.at is not None})
    }


def _by_delay(results: Sequence[Result], label: str) -> dict[float, Interval]:
    group = of(results, label)
    return {
        at: Interval.of([result.final_accuracy for result in group if result.at == at])
        for at in sorted({result.at for result in group if result.at is not None})
    }


def _shortest_is_best(study: str) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        shown, best = {}, {}
        for label in (PRINTED, OURS, DRIFT):
            points = _by_delay(book[study], label)
            shown[label], best[label] = _shown_best(points, min(points)), is_best(points, min(points))
        why = f"With drift control {shown[DRIFT]}."
        return shown[PRINTED], shown[OURS], ruling(best[PRINTED], best[OURS]), why

    return judge


def _bump(book: Book) -> tuple[str, str, Ruling, str]:
    """40, 50 and 60 better than 20, 30 before and 70 to 100 after them, on average."""
    shown, is_bump = {}, {}
    for label in (PRINTED, OURS):
        points = _by_delay(book["fig4-max-delay-fashion-mnist"], label)
        inside = [points[at].mean for at in points if 40 <= at <= 60]
        around = [points[at].mean for at in points if 20 <= at <= 30 or at >= 70]
        shown[label] = f"{100 * float(np.mean(inside)):.1f} against {100 * float(np.mean(around)):.1f}"
        is_bump[label] = min(inside) > max(around)
    return (
        shown[PRINTED],
        shown[OURS],
        ruling(is_bump[PRINTED], is_bump[OURS]),
        "Mean at 40–60 against all others but 10.",
    )


def _oscillations(book: Book) -> tuple[str, str, Ruling, str]:
    shown, shrink = {}, {}
    for label in (PRINTED, OURS, DRIFT):
        group = of(book["fig2-fashion-mnist"], label)
        early, late = (Interval.of([getattr(r, name) for r in group]) for name in ("early_swing", "late_swing"))
        shown[label] = f"{100 * early.mean:.2f} → {100 * late.mean:.2f}"
        shrink[label] = above_zero(Interval.of([r.early_swing - r.late_swing for r in group]))
    why = (
        f"Mean change of accuracy a round in points, rounds 20–40 → 180–200; with drift control {shown[DRIFT]}. The falling "
        "learning rate alone would do it."
    )
    return shown[PRINTED], shown[OURS], ruling(shrink[PRINTED], shrink[OURS]), why


def _ahead_by(study: str, points: float) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        results, rivals = book[study], (FEDAVG, FEDPROX)
        printed, ours, drift = (gain(results, label, rivals) for label in (PRINTED, OURS, DRIFT))
        holds, note = either(reaches(ours, points), reaches(drift, points))
        why = (
            f"{note}Points ahead of the better of FedAvg and FedProx; S-SGD is at {final(results, SSGD_).percent()} %."
        )
        shown = f"{ours.percent()}; drift control {drift.percent()}"
        return printed.percent(), shown, ruling(reaches(printed, points), holds), why

    return judge


def _first_bound(study: str) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    """F(w_t) − F* lies below Theorem 1's bound in every seed and version."""

    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        shown, below, bounds = {}, {}, []
        for label in (PRINTED, OURS):
            last = []
            below[label] = True
            for result, seed in zip(of(book[study], label), book.asides[study]["seeds"], strict=True):
                gaps = convergence.gaps(result.loss, seed)
                bound = convergence.constants_of(seed).convex_bound(np.array(result.versions, dtype=np.float64))
                below[label] &= bool((gaps <= bound).all())
                last.append(float(gaps[-1]))
                bounds.append(float(bound[-1]))
            shown[label] = f"{np.mean(last):.2f}"
        why = f"F(w_T) − F*; the bound there is {np.median(bounds):.0e}: it holds, and says nothing."
        return shown[PRINTED], shown[OURS], ruling(below[PRINTED], below[OURS]), why

    return judge


def _fast(exponent: Interval) -> bool | None:
    return True if exponent.low >= 1 else False if exponent.high < 1 else None


def _rate(study: str) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    """The exponent fitted to F(w_t) − F* is 1 or more."""

    def exponent(book: Book, label: str) -> Interval:
        pairs = zip(of(book[study], label), book.asides[study]["seeds"], strict=True)
        return Interval.of([convergence.fitted(result, seed).exponent for result, seed in pairs])

    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        printed, ours, drift = (exponent(book, label) for label in (PRINTED, OURS, DRIFT))
        shown = [f"{each.mean:.2f} ± {each.half:.2f}" for each in (printed, ours, drift)]
        holds, note = either(_fast(ours), _fast(drift))
        why = (
            f"{note}α in F(w_t) − F* ∝ 1/(t + τ)^α, fitted from t = τ to T. With η_t = 0.1/(1 + t) and μ = 2·10⁻⁴ the "
            "theorem's premises hold, but 200 rounds may be far from where its rate would show."
        )
        return shown[0], f"{shown[1]}; drift control {shown[2]}", ruling(_fast(printed), holds), why

    return judge


def _second_bound(study: str) -> Callable[[Book], tuple[str, str, Ruling, str]]:
    """min ‖∇F‖² lies below Theorem 2's bound."""

    def judge(book: Book) -> tuple[str, str, Ruling, str]:
        pairs = [convergence.squared_gradients(seed) for seed in book.asides[study]["seeds"]]
        is_below = all(bool((least <= bound).all()) for _, least, bound in pairs)
        rates = [convergence.constants_of(seed).largest_rate() for seed in book.asides[study]["seeds"]]
        is_allowed = min(rates) >= convergence.CONSTANT_RATE
        least, bound = (float(np.median([pair[place][-1] for pair in pairs])) for place in (1, 2))
        why = (
            f"Median over seeds of min ‖∇F‖² after T rounds with η = {convergence.CONSTANT_RATE}; its condition allows up "
            f"to {min(rates):.2g}. The bound is {bound:.1e}. It divides by B⁴: the more devices differ, the better it says "
            "training goes."
        )
        verdict: Ruling = "holds for our reading" if is_below else "does not hold"
        return "", f"{least:.1e}", verdict if is_allowed else "cannot tell", why

    return judge


FASHION = "fig2-fashion-mnist"
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "S-SGD, the upper bound, reaches 84.58 % on Fashion-MNIST", "84.58", (FASHION,), _agrees(FASHION, SSGD_, 0.8458)
    ),
    Claim("HFL reaches 83.41 % on Fashion-MNIST", "83.41", (FASHION,), _reaches(FASHION, 0.8341)),
    Claim("FedAvg reaches only 71.92 % on Fashion-MNIST", "71.92", (FASHION,), _agrees(FASHION, FEDAVG, 0.7192)),
    Claim("FedProx reaches only 75.49 % on Fashion-MNIST", "75.49", (FASHION,), _agrees(FASHION, FEDPROX, 0.7549)),
    *(
        Claim(f"HFL is more accurate than FedAvg and FedProx: {study.task}", "", (study.name,), _best(study.name))
        for study in learning_curves.STUDIES
        if study.name != "fig5-shakespeare"
    ),
    Claim(
        "The improvement is greater on both synthetic data sets than on Fashion-MNIST",
        "",
        (FASHION, "fig2-synthetic-0-0", "fig2-synthetic-1-1"),
        _larger_on_synthetic,
    ),
    Claim(
        "HFL converges more slowly on Synthetic(1,1) than on Synthetic(0,0)",
        "",
        ("fig2-synthetic-0-0", "fig2-synthetic-1-1"),
        _slower,
    ),
    Claim("HFL's oscillations become smaller as t grows", "", (FASHION,), _oscillations),
    Claim("λ_0 = 0.5 is best", "0.5", ("fig3-lambda",), _lambda_best),
    Claim(
        "λ_0 from 0.1 to 0.9 makes a difference of 0.4 points at most", "0.4 points", ("fig3-lambda",), _lambda_spread
    ),
    *(
        Claim(f"max τ = 10 is best: {study.task}", "10", (study.name,), _shortest_is_best(study.name))
        for study in max_delay.STUDIES
    ),
    Claim(
        "max τ = 40, 50 and 60 are better than the other settings on Fashion-MNIST",
        "",
        ("fig4-max-delay-fashion-mnist",),
        _bump,
    ),
    Claim(
        "HFL is at least 12 points ahead of FedAvg and FedProx on Shakespeare",
        "≥ 12 points",
        ("fig5-shakespeare",),
        _ahead_by("fig5-shakespeare", 0.12),
    ),
    *(
        Claim(f"{text}: {study.task}", paper, (study.name,), make(study.name))
        for study in convergence.STUDIES
        for text, paper, make in (
            ("Theorem 1 bounds F(w_t) − F*", "", _first_bound),
            ("HFL converges at O(1/(t + τ))", "α = 1", _rate),
            ("Theorem 2 bounds min ‖∇F‖²", "", _second_bound),
        )
    ),
)
