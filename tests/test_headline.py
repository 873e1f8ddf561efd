import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hybridfl.headline import headline, paired, percent
from hybridfl.records import SavedRun
from hybridfl.summary import summarise
from saved_runs import broken, comparison, fair, record, saved


def words(*runs: SavedRun, target: float = math.nan) -> str:
    """The headline without its tags."""
    sentences = headline(runs, summarise(runs, target), target)
    return re.sub(r"<[^>]+>", "", sentences).replace("\N{NO-BREAK SPACE}", " ")


def test_the_headline_compares_with_the_best_rival_and_with_fedavg() -> None:
    assert words(*comparison(), target=0.5) == (
        "Over 2 seeds, hfl ends at a test accuracy of 75.0 % ± 7.1, against fedavg at 40.0 %. "
        "hfl is the first at the target of 50.0 % by sample after 1.0 virtual seconds; FedAvg does not reach it, in a run "
        "10.0 × as long. With all the data in one place, s-sgd reaches 90.0 %: the upper bound."
    )
    assert "FedAvg needs 3.0 × as long." in words(*comparison(), target=0.2)
    assert "The target of 95.0 % by sample is not reached by any." in words(*comparison(), target=0.95)


def at_the_end(label: str, *accuracies: float) -> list[SavedRun]:
    """A run per seed, with its accuracy."""
    return [saved(label, [record(0, 0, each)], seed=seed) for seed, each in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        ((0.70, 0.72, 0.71), (0.60, 0.62, 0.61), "ahead of"),  # differences 0.1, 0.1, 0.1
        ((0.60, 0.62, 0.61), (0.70, 0.72, 0.71), "behind"),
        ((0.70, 0.60, 0.80), (0.60, 0.61, 0.62), "level with"),  # 0.10, −0.01, 0.18: 0.09 ± 0.24
        ((0.695, 0.650, 0.741), (0.694, 0.690, 0.698), "level with"),  # 69.5 ± 4.6 beside 69.4 ± 0.4
        ((0.9,), (0.1,), "against"),  # one seed says nothing of the spread
    ],
)
def test_ahead_is_said_only_where_the_paired_interval_says_so(
    ours: Sequence[float], theirs: Sequence[float], place: str
) -> None:
    assert f", {place} fedbuff at" in words(*at_the_end("hfl", *ours), *at_the_end("fedbuff", *theirs))


def test_pairs_are_of_one_seed() -> None:
    """Differences 0.1 and 0.3: 0.2 ± t(0.975, 1)·0.1 = 0.2 ± 1.27."""
    one = [saved("a", [record(0, 0, value)], seed=seed) for seed, value in ((4, 0.9), (1, 0.5), (2, 0.3))]
    other = [saved("b", [record(0, 0, value)], seed=seed) for seed, value in ((1, 0.4), (4, 0.6), (7, 0.0))]
    difference = paired(one, other, "test_accuracy")
    assert difference.mean == pytest.approx(0.2)
    assert difference.half == pytest.approx(1.2706, abs=1e-4)


def test_the_headline_speaks_for_devices_first_and_then_for_samples() -> None:
    ours = [fair(seed, 0.3 + seed / 100) for seed in range(3)]
    theirs = [fair(seed, 0.6 + seed / 100, "fedbuff", 0.5) for seed in range(3)]
    assert words(*ours, *theirs).startswith(
        "Over 3 seeds, hfl ends, by device, at a test accuracy of 31.0 % ± 1.0, behind fedbuff at 61.0 % ± 1.0. "
        "By sample it ends at 75.0 % ± 0.0, ahead of fedbuff at 50.0 % ± 0.0."
    )


def test_the_headline_names_who_reached_the_target_first() -> None:
    early = saved("fedbuff", [record(0, 0, 0.1), record(1, 2, 0.5)], algorithm="FedBuff()")
    late = saved("hfl", [record(0, 0, 0.1), record(1, 2, 0.2), record(2, 8, 0.9)])
    assert (
        "fedbuff is the first at the target of 50.0 % by sample after 2.0 virtual seconds; hfl reaches it after 8.0."
        in words(early, late, target=0.5)
    )
    assert words(early, saved("hfl", [record(0, 0, 0.1)]), target=0.5).endswith("; hfl does not reach it.")


def test_no_place_is_claimed_where_a_seed_is_missing() -> None:
    ours = at_the_end("hfl", 0.80, 0.81, 0.20)
    theirs = at_the_end("fedbuff", 0.70, 0.71)
    assert "ends at a test accuracy of 60.3 % ± 34.9, against fedbuff at 70.5 % ± 0.7." in words(*ours, *theirs)


def test_a_rival_that_diverged_sets_no_speed_up() -> None:
    runs = [*at_the_end("hfl", 0.7, 0.7), *at_the_end("fedbuff", 0.5, 0.5), broken("fedavg", 0), broken("fedavg", 1)]
    assert "FedAvg does not reach" not in words(*runs, target=0.6)
    assert words(broken(), target=0.6).startswith("hfl has no final figures: it diverged.")


def test_the_headline_of_one_run_compares_with_nothing() -> None:
    run = saved("fedavg", [record(0, 0, 0.1), record(1, 9, 0.4, straggler_accuracy=math.nan)], algorithm="FedAvg()")
    assert words(run) == "fedavg ends at a test accuracy of 40.0 %."
    assert words(run, target=0.3).endswith("It reaches the target of 30.0 % by sample after 9.0 virtual seconds.")


def test_percent() -> None:
    assert percent(0.7126) == "71.3\N{NO-BREAK SPACE}%"
    assert percent(math.nan) == "–"


def test_who_ties_for_the_first_place_is_named_with_the_others() -> None:
    runs = [saved(label, [record(0, 0, 0.1), record(1, 2, 0.5)]) for label in ("hfl", "a", "b")]
    assert words(*runs, target=0.5).endswith(
        "hfl, a and b are the first at the target of 50.0 % by sample after 2.0 virtual seconds, at the same time."
    )
    late = saved("hfl", [record(0, 0, 0.1), record(1, 8, 0.5)])
    assert "a and b are the first at" in words(late, *runs[1:], target=0.5)
    assert words(late, *runs[1:], target=0.5).endswith("at the same time; hfl reaches it after 8.0.")


def test_a_run_without_a_version_reaches_no_target() -> None:
    run = saved("hfl", [record(0, 0, 0.5), record(0, 10, 0.5)])
    assert "0.0 virtual seconds" not in words(run, target=0.4)


def test_a_baseline_of_another_name_is_named() -> None:
    runs = [saved("hfl", [record(1, 2, 0.5)]), saved("plain", [record(1, 4, 0.5)], algorithm="FedAvg()")]
    assert words(*runs, target=0.5).endswith("; plain needs 2.0 × as long.")


def test_of_runs_that_have_not_ended_only_that_is_said() -> None:
    runs = [replace(run, is_finished=False) for run in comparison()]
    assert "is the first" in words(*runs, target=0.5), "their records reach the end, as those of earlier versions do"
    runs[0] = replace(runs[0], records=runs[0].records[:3])
    said = words(*runs, target=0.5)
    assert said.startswith("Not finished: 1 of 4 runs has not ended (hfl, seed 0, at 2 of 10 virtual seconds).")
    assert "first" not in said
    by_rounds = replace(saved("a", [record(3, 9)], seconds=None, rounds=7), is_finished=False)
    assert "(a, seed 0, at version 3 of 7)" in words(by_rounds)
    five = [replace(by_rounds, config={**by_rounds.config, "seed": seed}) for seed in range(5)]
    assert "a, seed 2, at version 3 of 7; 2 more)" in words(*five)
