from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from hybridfl.interval import Interval
from hybridfl.paper import lambda_0, max_delay, search
from hybridfl.paper.claims import CLAIMS, verdicts
from hybridfl.paper.learning_curves import FEDAVG, FEDPROX, PRESET, SSGD_
from hybridfl.paper.results import Result
from hybridfl.paper.studies import STUDIES
from hybridfl.paper.verdict import (
    DRIFT,
    NOT_ASKED,
    OURS,
    PRINTED,
    Book,
    Claim,
    Finding,
    Judgement,
    above_zero,
    agrees,
    all_hold,
    at_least,
    gains,
    is_best,
    is_highest,
    lead,
    shown_highest,
)


def results(finals: Mapping[str, Sequence[float]], at: float | None = None) -> list[Result]:
    """Runs that end so, a number a seed."""
    return [
        Result(label, seed, at, final, 1.0, 0.02, 0.01, (0, 200), (0.0, 200.0), (0.1, final), (2.3, 1.0))
        for label, values in finals.items()
        for seed, final in enumerate(values)
    ]


def claim(text: str) -> Claim:
    (found,) = [each for each in CLAIMS if each.text.startswith(text)]
    return found


def finding(holds: bool | None) -> Finding:
    return Finding("", holds)


def ruling(printed: bool | None, ours: bool | None, drift: bool | None = None) -> str:
    return Judgement(finding(printed), finding(ours), finding(drift), "").ruling


def test_rulings() -> None:
    assert ruling(True, False) == "holds"
    assert ruling(False, True) == ruling(None, True) == "holds for our reading"
    assert ruling(False, False) == ruling(False, False, False) == "does not hold"
    assert ruling(None, False) == ruling(False, None) == "cannot tell"
    assert ruling(False, False, True) == ruling(False, None, True) == "holds with drift control"


def test_a_claim_about_a_rival_is_about_it_alone() -> None:
    for holds, word in ((True, "holds"), (False, "does not hold"), (None, "cannot tell")):
        assert Judgement(finding(holds), NOT_ASKED, NOT_ASKED, "").ruling == word


def test_what_an_interval_proves() -> None:
    assert [at_least(Interval(mean, 0.02), 0.83) for mean in (0.85, 0.82, 0.8)] == [True, None, False]
    assert [above_zero(Interval(mean, 0.1)) for mean in (0.2, -0.2, 0.05)] == [True, False, None]
    assert agrees(Interval(0.80, 0.02), 0.83) is True, "to a point"
    assert agrees(Interval(0.79, 0.02), 0.83) is False
    assert agrees(Interval(0.79, 0.2), 0.83) is None, "so would any number"
    assert [all_hold([True, other]) for other in (True, None, False)] == [True, None, False]
    assert [all_hold([None, other]) for other in (None, False)] == [None, False]


def test_the_highest_of_a_sweep_is_so_seed_by_seed() -> None:
    points = {10.0: [0.60, 0.70, 0.80], 20.0: [0.62, 0.68, 0.81], 30.0: [0.71, 0.81, 0.905]}
    assert is_highest(points, 30.0) is True, "in spite of seeds that lie far apart"
    assert is_highest(points, 10.0) is False
    assert is_highest({10.0: points[10.0], 20.0: points[20.0]}, 10.0) is None
    assert is_highest({10.0: [0.1, 0.1], 20.0: [0.1, 0.1]}, 10.0) is None, "nothing changes anything"
    assert shown_highest(points, 30.0) == "best at 30: 80.8 ± 24.2, 10.5 ± 5.4 above 20"
    assert shown_highest(points, 10.0) == "best at 30: 80.8 ± 24.2, 10.8 ± 0.7 above 10"


def test_the_best_has_the_lowest_loss_too() -> None:
    better, worse = results({OURS: [0.8, 0.81]}, 10), results({OURS: [0.6, 0.62]}, 20)
    low, high = ([replace(row, final_loss=loss) for row in rows] for rows, loss in ((better, 0.5), (worse, 0.9)))
    assert is_best([*low, *high], 10).holds is True
    assert is_best([*low, *high], 10).text.endswith("above 20; loss lowest at 10")
    assert is_best([*better, *worse], 10).holds is None, "losses are the same"
    assert is_best([*low, *high], 20).holds is False


def test_gains_are_seed_by_seed_against_the_best_rival() -> None:
    found = gains(results({OURS: [0.5, 0.8], FEDAVG: [0.4, 0.6], FEDPROX: [0.1, 0.7]}), OURS, (FEDAVG, FEDPROX))
    assert found == pytest.approx([0.1, 0.2])


def test_leads_are_at_the_same_virtual_second() -> None:
    def rival(label: str, seconds: tuple[float, ...], accuracy: tuple[float, ...]) -> Result:
        return Result(label, 0, None, accuracy[-1], 1.0, 0.02, 0.01, (0, 1, 2), seconds, accuracy, (2.3, 1.5, 1.0))

    ours = results({OURS: [0.5]})
    exact = rival(FEDAVG, (0.0, 200.0, 2000.0), (0.1, 0.2, 0.7))
    between = rival(FEDPROX, (0.0, 190.0, 2000.0), (0.1, 0.15, 0.3))
    early = rival(FEDPROX, (0.0, 50.0, 100.0), (0.1, 0.15, 0.45))
    assert lead([*ours, exact], OURS, (FEDAVG,)).mean == pytest.approx(0.3)
    assert lead([*ours, exact, between], OURS, (FEDAVG, FEDPROX)).mean == pytest.approx(0.2), (
        "the next point that was kept"
    )
    assert lead([*ours, early], OURS, (FEDPROX,)).mean == pytest.approx(0.05), "who has ended stays where it was"


def test_the_search_says_its_grid_its_best_and_where_the_preset_stands() -> None:
    best = search.label_of("drift control, trust 1", "cosine", 0.3, 5)
    rival = search.label_of("FedAvg, uniform", "cosine", 0.1, 5)
    near = search.says(results({best: [0.85, 0.80], search.PRESET: [0.84, 0.81], rival: [0.7, 0.7]}))
    assert "3 settings" in near
    assert f"The best of FedAvg, *{rival}*, has 70.0 ± 0.0 %" in near
    assert f"Best is *{best}*. It is 0.0 ± 12.7 points above the preset" in near
    assert "may be chance" in near
    far = search.says(results({best: [0.85, 0.82], search.PRESET: [0.83, 0.80], rival: [0.7, 0.7]}))
    assert "2.0 ± 0.0 points" in far
    assert "more than chance" in far
    assert "preset" not in search.says(results({best: [0.85]}))


FINALS = {
    SSGD_: [0.845, 0.846],
    FEDAVG: [0.70, 0.73],
    FEDPROX: [0.60, 0.61],
    OURS: [0.76, 0.77],
    PRINTED: [0.20, 0.21],
    DRIFT: [0.81, 0.82],
    PRESET: [0.834, 0.836],
}


def judge(text: str, **studies: Sequence[Result]) -> Judgement:
    return claim(text).verdict(Book({name.replace("_", "-"): rows for name, rows in studies.items()})).judgement


def test_numbers_of_the_paper_are_judged_by_what_was_found() -> None:
    book = results(FINALS)
    assert judge("S-SGD", fig2_fashion_mnist=book).ruling == "holds"
    ours = judge("HFL reaches 83.41", fig2_fashion_mnist=book)
    assert ours.ruling == "cannot tell", "the seeds lie too far apart: 83.5 ± 1.3"
    assert ours.drift.text == "81.5 ± 6.4, cosine 83.5 ± 1.3"
    near = FINALS | {PRESET: [0.8345, 0.8355]}
    assert judge("HFL reaches 83.41", fig2_fashion_mnist=results(near)).ruling == "holds with drift control"
    assert judge("FedProx reaches", fig2_fashion_mnist=book).ruling == "does not hold"
    printed = FINALS | {PRINTED: [0.83, 0.831]}
    assert judge("HFL reaches 83.41", fig2_fashion_mnist=results(printed)).ruling == "holds"
    nobody = FINALS | {PRESET: [0.80, 0.801], DRIFT: [0.8, 0.8], OURS: [0.7, 0.7], PRINTED: [0.1, 0.1]}
    assert judge("HFL reaches 83.41", fig2_fashion_mnist=results(nobody)).ruling == "does not hold"
    assert judge("HFL's oscillations", fig2_fashion_mnist=book).ruling == "holds"


def test_more_accurate_and_by_how_much() -> None:
    finals = FINALS | {OURS: [0.75, 0.78], FEDAVG: [0.70, 0.73], DRIFT: [0.85, 0.88]}
    said = judge("HFL is more accurate than FedAvg and FedProx: fashion-mnist", fig2_fashion_mnist=results(finals))
    assert (said.ruling, said.ours.text, said.drift.text) == ("holds for our reading", "5.0 ± 0.0", "15.0 ± 0.0")
    assert "FedAvg's take 200 virtual seconds, HFL's 200, when it is 5.0 ± 0.0 ahead" in said.why
    by_twelve = judge("HFL is at least 12 points ahead", fig5_shakespeare=results(finals))
    assert by_twelve.ruling == "holds with drift control"
    assert "`shakespeare(sequences=25000, hidden=128)`" in by_twelve.why


def test_losses_are_better_below() -> None:
    losses = {OURS: 0.5, PRINTED: 2.0, DRIFT: 0.4, FEDAVG: 0.8, FEDPROX: 0.9}
    rows = [replace(row, final_loss=losses[row.label] + row.seed) for row in results(FINALS) if row.label in losses]
    said = judge("HFL's training loss is lower than theirs: mnist", fig9_mnist=rows)
    assert (said.printed.text, said.ours.text, said.ruling) == ("1.20 ± 0.00", "-0.30 ± 0.00", "holds for our reading")


def reached(label: str, rounds: Sequence[int]) -> list[Result]:
    """Runs that are at their final accuracy after so many rounds, a number a seed."""
    return [
        Result(
            label, seed, None, 0.8, 1.0, 0.02, 0.01, (0, at, 200), (0.0, 1.0, 200.0), (0.1, 0.8, 0.8), (2.3, 1.0, 1.0)
        )
        for seed, at in enumerate(rounds)
    ]


def test_slower_is_judged_seed_by_seed() -> None:
    """Intervals of 44–58 and 54–81 rounds overlap; no seed was quicker."""
    others = [row for label in (PRINTED, DRIFT) for row in reached(label, [5] * 5)]
    said = judge(
        "HFL converges more slowly on Synthetic(1,1)",
        fig2_synthetic_0_0=[*others, *reached(OURS, [44, 41, 51, 58, 47])],
        fig2_synthetic_1_1=[*others, *reached(OURS, [61, 54, 71, 81, 61])],
    )
    assert (said.ruling, said.ours.text) == ("holds for our reading", "48 ± 8 / 66 ± 13")


def swept(label: Callable[[str, float], str], accuracies: Mapping[str, Mapping[float, float]]) -> list[Result]:
    return [
        row
        for name, points in accuracies.items()
        for at, accuracy in points.items()
        for row in results({label(name, at): [accuracy, accuracy + 0.01, accuracy - 0.01]}, at)
    ]


def test_lambda_is_judged_for_the_printed_and_for_the_reading_that_uses_it_most() -> None:
    flat = dict.fromkeys(lambda_0.LAMBDAS, 0.1)
    peaked = {at: 0.6 - abs(at - 0.5) for at in lambda_0.LAMBDAS}
    rows = swept(lambda name, at: f"{name}, λ_0 = {at}", {lambda_0.PRINTED: flat, lambda_0.CONSTANT: peaked})
    rows = [replace(row, final_loss=1 - row.final_accuracy) for row in rows]
    assert judge("λ_0 = 0.5 is best", fig3_lambda=rows).ruling == "holds for our reading"
    assert judge("Accuracy is symmetric", fig3_lambda=rows).ruling == "holds"
    spread = judge("λ_0 from 0.1 to 0.9", fig3_lambda=rows)
    assert (spread.printed.text, spread.ours.text, spread.ruling) == ("0.0 ± 0.0", "40.0 ± 0.0", "holds")
    skewed = peaked | {0.9: 0.5}
    rows = swept(lambda name, at: f"{name}, λ_0 = {at}", {lambda_0.PRINTED: skewed, lambda_0.CONSTANT: skewed})
    assert judge("Accuracy is symmetric", fig3_lambda=rows).ruling == "does not hold"


def test_the_choice_of_the_longest_delay() -> None:
    falling = {float(at): 0.9 - at / 200 for at in max_delay.DELAYS}
    rows = swept(lambda name, at: name, {OURS: falling, DRIFT: falling, PRINTED: dict.fromkeys(falling, 0.1)})
    rows = [replace(row, final_loss=1 - row.final_accuracy) for row in rows]
    best = judge("max τ = 10 is best in accuracy and training loss: fashion-mnist", fig4_max_delay_fashion_mnist=rows)
    assert best.ruling == "holds for our reading"
    assert best.ours.text.startswith("best at 10: 85.0 ± 2.5, 5.0 ± 0.0 above 20")
    book = Book(dict.fromkeys(max_delay.NAMES, rows))
    falls, bump = (claim(text).verdict(book).judgement for text in ("HFL learns worse", "max τ = 40"))
    assert (falls.ruling, falls.ours.text) == ("holds for our reading", " / ".join(["45.0 ± 0.0"] * 6))
    assert (bump.ruling, bump.ours.text) == ("does not hold", " / ".join(["-12.5 ± 0.0"] * 6))


def test_what_was_not_run_cannot_be_told() -> None:
    assert {verdict.judgement.ruling for verdict in verdicts(Book({}))} == {"cannot tell"}


def test_claims_name_studies_that_exist() -> None:
    names = {study.name for study in STUDIES}
    assert {name for each in CLAIMS for name in each.studies} <= names


def test_claims_have_one_sentence_each() -> None:
    assert len({each.text for each in CLAIMS}) == len(CLAIMS)
