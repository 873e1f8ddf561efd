from collections.abc import Mapping, Sequence

import pytest

from hybridfl.paper import search
from hybridfl.paper.claims import CLAIMS, verdicts
from hybridfl.paper.interval import Interval
from hybridfl.paper.learning_curves import DRIFT, FEDAVG, FEDPROX, OURS, PRESET, PRINTED, SSGD_
from hybridfl.paper.results import Result
from hybridfl.paper.studies import STUDIES
from hybridfl.paper.verdict import Book, Claim, above_zero, either, gain, is_best, lead, reaches, ruling, shown_best


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


def test_rulings() -> None:
    assert ruling(True, False) == "holds"
    assert ruling(False, True) == ruling(None, True) == "holds for our reading"
    assert ruling(False, False) == "does not hold"
    assert ruling(None, False) == ruling(False, None) == "cannot tell"


def test_what_holds_with_drift_control_only_is_said_to() -> None:
    assert either(True, False) == (True, "")
    assert either(False, True) == either(None, True) == (True, "Only with drift control, which goes past the paper. ")
    assert either(False, False) == either(False, None) == (False, "")
    assert either(None, False) == either(None, None) == (None, "")


def test_what_an_interval_proves() -> None:
    assert reaches(Interval(0.82, 0.02), 0.83) is True
    assert reaches(Interval(0.82, 0.005), 0.83) is False
    assert reaches(Interval(0.5, 0.4), 0.83) is None
    assert [above_zero(Interval(mean, 0.1)) for mean in (0.2, -0.2, 0.05)] == [True, False, None]


def test_the_best_of_a_sweep_is_so_seed_by_seed() -> None:
    points = {10.0: [0.60, 0.70, 0.80], 20.0: [0.62, 0.68, 0.81], 30.0: [0.71, 0.81, 0.905]}
    assert is_best(points, 30.0) is True, "in spite of seeds that lie far apart"
    assert is_best(points, 10.0) is False
    assert is_best({10.0: points[10.0], 20.0: points[20.0]}, 10.0) is None
    assert is_best({10.0: [0.1, 0.1], 20.0: [0.1, 0.1]}, 10.0) is None, "nothing changes anything"
    assert shown_best(points, 30.0) == "best at 30: 80.8 ± 24.2, 10.5 ± 5.4 above 20"
    assert shown_best(points, 10.0) == "best at 30: 80.8 ± 24.2, 10.8 ± 0.7 above 10"


def test_gains_are_seed_by_seed_against_the_best_rival() -> None:
    found = gain(results({OURS: [0.5, 0.7], FEDAVG: [0.4, 0.6], FEDPROX: [0.1, 0.2]}), OURS, (FEDAVG, FEDPROX))
    assert (found.mean, found.half) == pytest.approx((0.1, 0.0))


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
    near = search.says(results({best: [0.85, 0.80], search.PRESET: [0.84, 0.81]}))
    assert "2 settings" in near
    assert f"Best is *{best}*. It is 0.0 ± 12.7 points above the preset" in near
    assert "may be chance" in near
    assert "2.0 ± 0.0 points" in (far := search.says(results({best: [0.85, 0.82], search.PRESET: [0.83, 0.80]})))
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


def test_numbers_of_the_paper_are_judged_by_what_was_found() -> None:
    book = Book({"fig2-fashion-mnist": results(FINALS)})
    assert claim("S-SGD").verdict(book).ruling == "holds"
    ours = claim("HFL reaches 83.41").verdict(book)
    assert (ours.ruling, ours.ours) == ("holds for our reading", "83.5 ± 1.3")
    assert claim("FedProx reaches").verdict(book).ruling == "does not hold"
    printed = FINALS | {PRINTED: [0.83, 0.84], PRESET: [0.5, 0.51]}
    assert claim("HFL reaches 83.41").verdict(Book({"fig2-fashion-mnist": results(printed)})).ruling == "holds"
    nobody = FINALS | {PRESET: [0.80, 0.81]}
    verdict = claim("HFL reaches 83.41").verdict(Book({"fig2-fashion-mnist": results(nobody)}))
    assert verdict.ruling == "holds for our reading", "drift control's interval reaches it"
    assert claim("HFL's oscillations").verdict(book).ruling == "holds"


def test_the_choice_of_the_longest_delay() -> None:
    rows = [
        row
        for delay, ours in ((10, 0.8), (50, 0.7), (100, 0.6))
        for row in results({OURS: [ours, ours + 0.01], PRINTED: [1 - ours, 1 - ours], DRIFT: [ours, ours]}, delay)
    ]
    verdict = claim("max τ = 10 is best: fashion-mnist").verdict(Book({"fig4-max-delay-fashion-mnist": rows}))
    assert verdict.ruling == "holds for our reading"
    assert verdict.printed.startswith("best at 100")
    assert verdict.ours.startswith("best at 10:")


def test_what_was_not_run_cannot_be_told() -> None:
    assert {verdict.ruling for verdict in verdicts(Book({}))} == {"cannot tell"}


def test_claims_name_studies_that_exist() -> None:
    names = {study.name for study in STUDIES}
    assert {name for each in CLAIMS for name in each.studies} <= names
