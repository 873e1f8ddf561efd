import math
from collections.abc import Sequence

import pytest

import saved_runs
from hybridfl.records import Record, SavedRun
from hybridfl.summary import Row, baseline_name, by_label, default_target, measure_of, summarise, tail_mean, unpaired

Points = Sequence[tuple[float, float]]
"""(virtual seconds, test accuracy) of every record."""


def saved(
    label: str, *points: tuple[float, float], seed: int = 0, algorithm: str = "HFL(", discarded: int = 0
) -> SavedRun:
    """A run whose straggler accuracy is half its test accuracy."""
    records = tuple(
        Record(
            version=version,
            seconds=seconds,
            merged=0,
            mean_staleness=math.nan,
            max_staleness=0,
            train_loss=0.0,
            test_loss=0.0,
            test_accuracy=accuracy,
            normal_accuracy=accuracy,
            straggler_accuracy=accuracy / 2,
            bytes_sent=0,
            bytes_received=0,
            discarded=discarded,
        )
        for version, (seconds, accuracy) in enumerate(points, 1)
    )
    return SavedRun({"label": label, "seed": seed, "algorithm": algorithm, "timing": "PaperDelays()"}, records, ())


def row_of(label: str, rows: Sequence[Row]) -> Row:
    return next(row for row in rows if row.algorithm == label)


def test_the_tail_is_the_last_15_percent_of_the_time() -> None:
    assert tail_mean(saved("a", (0, 0.1), (84, 0.9), (85, 0.5), (100, 0.7)).records, "test_accuracy") == pytest.approx(
        0.6
    )
    assert tail_mean(saved("a", (0, 0.1)).records, "test_accuracy") == 0.1


def test_a_row_by_hand() -> None:
    """Final accuracies 0.6 and 0.7: their mean is 0.65, their standard deviation √(2·0.05²/(2 − 1))."""
    runs = [
        saved("hfl", (0, 0.1), (85, 0.5), (100, 0.7), seed=0, discarded=3),
        saved("hfl", (0, 0.1), (84, 0.9), (85, 0.6), (100, 0.8), seed=1, discarded=4),
    ]
    [row] = summarise(runs, target=0.5)
    assert row.algorithm == "hfl"
    assert row.test_accuracy == pytest.approx(0.65)
    assert row.test_accuracy_std == pytest.approx(0.05 * math.sqrt(2))
    assert row.seconds_to_target == 84  # 0.1 held and 0.9: their mean is 0.5
    assert row.straggler_accuracy == pytest.approx(0.325)
    assert row.discarded == 3.5


def test_one_seed_has_no_spread() -> None:
    [row] = summarise([saved("hfl", (0, 0.1), (100, 0.7))])
    assert math.isnan(row.test_accuracy_std)


def test_a_target_is_reached_by_the_mean_over_seeds() -> None:
    runs = [saved("hfl", (1, 0.1), (100, 0.7), seed=0), saved("hfl", (1, 0.1), (200, 0.4), seed=1)]
    assert summarise(runs, target=0.39)[0].seconds_to_target == 100
    assert summarise(runs, target=0.5)[0].seconds_to_target == 200
    [row] = summarise(runs, target=0.6)
    assert math.isnan(row.seconds_to_target)
    assert math.isnan(row.speedup)


def test_a_target_is_reached_when_it_is_first_reached() -> None:
    [row] = summarise([saved("hfl", (1, 0.1), (20, 0.5), (30, 0.2), (100, 0.7))], target=0.5)
    assert row.seconds_to_target == 20


def test_speedup_is_fedavgs_seconds_over_the_algorithms() -> None:
    runs = [
        saved("hfl", (10, 0.6), (100, 0.6)),
        saved("fedavg", (40, 0.6), (100, 0.6), algorithm="FedAvg()"),
        saved("slow", (80, 0.6)),
    ]
    rows = summarise(runs, target=0.5)
    assert {row.algorithm: row.speedup for row in rows} == {"hfl": 4.0, "fedavg": 1.0, "slow": 0.5}
    assert all(math.isnan(row.speedup_bound) for row in rows)


def test_fedavg_is_known_by_its_algorithm_and_not_by_its_label_or_place() -> None:
    runs = [
        saved("fedavg?", (90, 0.6)),
        saved("A FedProx", (80, 0.6), algorithm="FedAvg(local=PartialWork("),
        saved("A pull", (70, 0.6), algorithm="FedAvg(local=FullWork(proximal=0.5, clip=inf))"),
        saved("plain", (40, 0.6), algorithm="FedAvg(local=FullWork(proximal=0.0, clip=inf))"),
        saved("by delay", (20, 0.6), algorithm="FedAvg("),
        saved("hfl", (10, 0.6)),
    ]
    for order in (runs, runs[::-1]):
        assert row_of("hfl", summarise(order, target=0.5)).speedup == 2.0, "`by delay` is the first as a word"
        assert baseline_name(order) == "by delay"
    named = [*runs, saved("fedavg", (30, 0.6), algorithm="FedAvg(")]
    assert row_of("hfl", summarise(named, target=0.5)).speedup == 3.0
    assert baseline_name(named) == "fedavg", "one of several"
    assert baseline_name(named[-2:]) == "FedAvg"
    assert baseline_name(runs[:3]) is None


def test_where_fedavg_falls_short_its_whole_run_bounds_the_speedup() -> None:
    runs = [saved("hfl", (10, 0.6), (100, 0.6)), saved("fedavg", (40, 0.3), (200, 0.3), algorithm="FedAvg()")]
    row = row_of("hfl", summarise(runs, target=0.5))
    assert math.isnan(row.speedup)
    assert row.speedup_bound == 20.0


def test_without_fedavg_there_is_no_speedup() -> None:
    [row] = summarise([saved("hfl", (10, 0.6), (100, 0.6))], target=0.5)
    assert math.isnan(row.speedup)
    assert math.isnan(row.speedup_bound)


def test_a_target_may_be_reached_from_the_start() -> None:
    rows = summarise([saved("hfl", (0, 0.5), (100, 0.5)), saved("fedavg", (0, 0.5), (100, 0.5))])
    assert [row.seconds_to_target for row in rows] == [0.0, 0.0]
    assert all(math.isnan(row.speedup) for row in rows)


def test_the_target_is_95_percent_of_the_best_federated_algorithm() -> None:
    runs = [
        saved("hfl", (100, 0.7), seed=0),
        saved("hfl", (100, 0.5), seed=1),
        saved("fedavg", (100, 0.55), seed=0),
        saved("s-sgd", (100, 0.9), seed=0, algorithm="SSGD(local="),
    ]
    assert default_target(runs) == pytest.approx(0.95 * 0.6)


def test_s_sgd_alone_sets_no_target() -> None:
    runs = [saved("s-sgd", (100, 0.9), algorithm="SSGD(local=")]
    assert math.isnan(default_target(runs))
    assert math.isnan(summarise(runs)[0].seconds_to_target)


def test_rows_come_most_accurate_first() -> None:
    runs = [saved("a", (100, 0.5)), saved("b", (100, 0.9)), saved("c", (100, 0.7))]
    assert [row.algorithm for row in summarise(runs)] == ["b", "c", "a"]


def test_runs_are_grouped_by_label_and_ordered_by_seed() -> None:
    runs = [saved("a", (1, 0.5), seed=2), saved("b", (1, 0.5), seed=0), saved("a", (1, 0.5), seed=0)]
    assert {label: [run.seed for run in group] for label, group in by_label(runs).items()} == {"b": [0], "a": [0, 2]}


def test_the_upper_bound_has_no_speedup() -> None:
    runs = [saved("s-sgd", (1, 0.9), (100, 0.9), algorithm="SSGD()"), saved("fedavg", (40, 0.6), (100, 0.6))]
    row = row_of("s-sgd", summarise(runs, target=0.5))
    assert math.isnan(row.speedup)
    row = row_of("s-sgd", summarise(runs, target=0.7))
    assert math.isnan(row.speedup_bound)


def test_a_mean_over_seeds_does_not_leave_out_the_one_that_diverged() -> None:
    runs = [saved_runs.fair(0, 0.5), saved_runs.broken(seed=1), saved_runs.fair(0, 0.4, "fedbuff")]
    rows = summarise(runs, target=0.2)
    assert [row.algorithm for row in rows] == ["fedbuff", "hfl"], "what has no figures comes last"
    ours = row_of("hfl", rows)
    assert (ours.seeds, ours.diverged) == (2, 1)
    assert math.isnan(ours.test_accuracy)
    assert math.isnan(ours.device_accuracy)
    assert math.isnan(ours.seconds_to_target), "though the mean of both was there for a while"


def test_a_fedavg_that_diverged_bounds_no_speed_up() -> None:
    runs = [saved("hfl", (10, 0.6), (100, 0.6)), saved_runs.broken("fedavg")]
    row = row_of("hfl", summarise(runs, target=0.5))
    assert math.isnan(row.speedup)
    assert math.isnan(row.speedup_bound)


def test_one_that_diverged_sets_no_target() -> None:
    assert default_target([saved_runs.broken("fedavg"), saved("hfl", (100, 0.4))]) == pytest.approx(0.38)
    assert math.isnan(default_target([saved_runs.broken("fedavg")]))


def test_results_from_before_divergence_was_recorded_have_diverged_if_their_last_loss_is_no_number() -> None:
    old = saved_runs.saved("hfl", [saved_runs.record(0, 0), saved_runs.record(1, 9, train_loss=math.nan)])
    assert old.has_diverged
    assert not saved_runs.saved("hfl", [saved_runs.record(0, 0)]).has_diverged


def test_rows_are_ordered_by_device_where_that_is_known_and_by_loss_where_there_are_no_classes() -> None:
    runs = [saved_runs.fair(0, 0.5, "a", by_sample=0.6), saved_runs.fair(0, 0.3, "b", by_sample=0.9)]
    assert measure_of(runs) == "device_accuracy"
    assert [row.algorithm for row in summarise(runs)] == ["a", "b"]
    assert measure_of([*runs, saved("c", (1, 0.7))]) == "test_accuracy", "older results do not say it"
    losses = [saved_runs.no_classes("a", 0.9), saved_runs.no_classes("b", 0.4)]
    assert measure_of(losses) == "test_loss"
    assert [row.algorithm for row in summarise(losses)] == ["b", "a"]


def test_a_model_that_nobody_trained_reaches_no_target_and_sets_none() -> None:
    untrained = saved_runs.saved("hfl", [saved_runs.record(0, 0, 0.6), saved_runs.record(0, 10, 0.6)])
    assert math.isnan(default_target([untrained]))
    assert math.isnan(summarise([untrained], target=0.5)[0].seconds_to_target)


def test_algorithms_on_other_seeds_are_not_paired() -> None:
    runs = [saved("hfl", (1, 0.5), seed=seed) for seed in (0, 1, 2, 3, 7)]
    assert unpaired(runs) == []
    others = [saved(label, (1, 0.5)) for label in ("a", "b", "c")]
    [line] = unpaired([*runs, *others])
    assert "(hfl has seeds 0 to 3 and 7; a, b and c have seed 0): every seed has other data, so" in line
