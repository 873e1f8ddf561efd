import math
from dataclasses import replace

import numpy as np
import pytest

from hybridfl import charts
from hybridfl.charts import Axis, bin_name, curves, looks, shade, staleness_bins, staleness_shares
from hybridfl.records import Arrival, DeviceScore, SavedRun
from hybridfl.summary import held
from saved_runs import broken, comparison, fair, no_classes, record, saved


def test_a_value_is_held_until_the_next_one() -> None:
    found = held(np.array([0.9, 1.0, 1.9, 2.0, 5.0]), np.array([1.0, 2.0]), np.array([10.0, 20.0]))
    assert found.tolist() == pytest.approx([math.nan, 10, 10, 20, 20], nan_ok=True)


def test_a_curve_over_two_seeds_by_hand() -> None:
    """Seed 0 goes 0.1, 0.1, 0.5 and stays; seed 1 goes 0.3, 0.3, 0.3, 0.7."""
    runs = [
        saved("hfl", [record(0, 0, 0.1), record(1, 2, 0.5)], seed=0),
        saved("hfl", [record(0, 0, 0.3), record(1, 3, 0.7)], seed=1),
    ]
    curve = curves(runs, "seconds", "test_accuracy")["hfl"]
    assert curve.x.tolist() == [0, 2, 3]
    assert curve.mean == pytest.approx([0.2, 0.4, 0.6])
    assert curve.low == pytest.approx([0.1, 0.3, 0.5])
    assert curve.high == pytest.approx([0.3, 0.5, 0.7])
    assert curves(runs, "seconds", "train_loss")["hfl"].mean == pytest.approx([1.2, 1.4, 1.6])


def test_all_curves_share_a_grid_and_each_ends_with_its_last_record() -> None:
    runs = [saved("a", [record(0, 0), record(1, 4)]), saved("b", [record(0, 0), record(1, 3), record(2, 9)])]
    found = curves(runs, "seconds", "test_loss")
    assert found["a"].x.tolist() == [0, 3, 4]
    assert found["b"].x.tolist() == [0, 3, 4, 9]


def test_versions_start_at_one_as_their_axis_is_logarithmic() -> None:
    runs = [saved("a", [record(0, 0), record(1, 1), record(8, 2)]), saved("b", [record(0, 0)])]
    found = curves(runs, "version", "test_accuracy")
    assert found["a"].x.tolist() == [1, 8]
    assert found["b"].x.tolist() == []


@pytest.mark.parametrize("axis", ["seconds", "version"])
def test_long_curves_are_thinned_but_keep_their_ends(axis: Axis) -> None:
    run = saved("a", [record(place, place / 2, accuracy=place / 9999) for place in range(10_000)])
    curve = curves([run], axis, "test_accuracy")["a"]
    assert 200 < len(curve.x) <= charts.MOST_POINTS
    assert curve.x[-1] == (9999 if axis == "version" else 9999 / 2)
    assert curve.mean[-1] == 1
    if axis == "version":
        assert curve.x[:5].tolist() == [1, 2, 3, 4, 5], "a logarithmic axis shows the first versions best"


def test_what_diverged_is_a_gap() -> None:
    run = saved("a", [record(0, 0), record(1, 1, train_loss=math.inf), record(2, 2, train_loss=math.nan)])
    assert np.isnan(curves([run], "seconds", "train_loss")["a"].mean).tolist() == [False, True, True]


def test_corners_leave_out_points_at_which_nothing_changes() -> None:
    run = saved("a", [record(place, place, accuracy) for place, accuracy in enumerate([0.1, 0.1, 0.2, 0.2, 0.2])])
    assert curves([run], "seconds", "test_accuracy")["a"].corners().x.tolist() == [0, 2, 4]


def test_hfl_is_first_and_widest_and_the_upper_bound_last_and_dotted() -> None:
    found = looks([saved("s-sgd", [record(0, 0)], algorithm="SSGD()"), *comparison()])
    assert list(found) == ["hfl", "fedavg", "s-sgd"]
    assert found["hfl"].width > found["fedavg"].width
    assert found["s-sgd"].dash == "dot"


def test_ten_rivals_look_different() -> None:
    runs = [saved(f"rival {number}", [record(0, 0)], algorithm="FedAvg()") for number in range(10)]
    assert len(set(looks(runs).values())) == 10
    assert charts.main_label(runs) is None


def test_a_staleness_has_a_bin_of_its_own_up_to_16_versions() -> None:
    run = saved("a", [record(0, 0)], [Arrival(0, 0, 0, 1, staleness, None) for staleness in (0, 0, 1, 3)])
    bins = staleness_bins([run])
    assert [bin_name(each) for each in bins] == ["0", "1", "2", "3"]
    assert staleness_shares([run], bins).tolist() == [0.5, 0.25, 0, 0.25]


def test_beyond_16_versions_bins_double() -> None:
    run = saved("a", [record(0, 0)], [Arrival(0, 0, 0, 1, staleness, None) for staleness in (2, 4, 5, 33)])
    bins = staleness_bins([run])
    assert [bin_name(each) for each in bins] == ["0", "1", "2", "3–4", "5–8", "9–16", "17–32", "33–64"]
    assert staleness_shares([run], bins).tolist() == [0, 0, 0.25, 0.25, 0.25, 0, 0, 0.25]


@pytest.mark.parametrize(
    ("greatest", "last"), [(16, "16"), (17, "17–32"), (32, "17–32"), (33, "33–64"), (300, "257–512")]
)
def test_the_last_bin_holds_the_greatest_staleness(greatest: int, last: str) -> None:
    assert bin_name(staleness_bins([saved("a", [], [Arrival(0, 0, 0, 1, greatest, None)])])[-1]) == last


def test_discarded_updates_have_no_staleness() -> None:
    run = saved("a", [record(0, 0)], [Arrival(0, 0, 0, 1, 5, "late")])
    assert staleness_bins([run]) == ()
    assert np.isnan(staleness_shares([run], [range(1)])).all()


def merged_at(run: SavedRun, end: float = 100) -> list[float]:
    return [bar.merged_at for bar in charts.timeline(run, end).bars]


def test_an_update_is_merged_into_the_first_version_made_after_it_arrives() -> None:
    """HFL's rounds close at 1.5 and 2.5: who arrives at 1 or at 1.5 waits for the first, who arrives at 2 for the second."""
    arrivals = [
        Arrival(0, 0, 0, 1, 0, None),
        Arrival(1, 0, 0, 1.5, 0, None),
        Arrival(2, 0, 0, 2, 1, None),
        Arrival(3, 0, 0, 2, 1, "late"),
        Arrival(4, 0, 0, 2.6, 2, None),
    ]
    run = saved("hfl", [record(0, 0), record(1, 1.5), record(2, 2.5)], arrivals)
    found = {bar.arrival.device: bar.merged_at for bar in charts.timeline(run, 100).bars}
    assert [found[device] for device in range(3)] == [1.5, 1.5, 2.5]
    assert math.isnan(found[3]), "it was discarded"
    assert math.isnan(found[4]), "the run ended before"


def test_an_update_that_does_not_fill_the_buffer_waits_though_a_version_is_made_when_it_arrives() -> None:
    """FedBuff with a buffer of 2 and three arrivals at 1 s: the third is merged with the fourth, at 2 s."""
    arrivals = [Arrival(device, 0, 0, 1, 0, None) for device in (0, 1)]
    arrivals += [Arrival(2, 0, 0, 1, 1, None), Arrival(3, 0, 0, 2, 1, None)]
    run = saved("fedbuff", [record(0, 0), record(1, 1), record(2, 2)], arrivals)
    assert sorted(merged_at(run)) == [1, 1, 2, 2]


def test_versions_between_records_are_known_from_the_jobs_sent_with_them() -> None:
    arrivals = [Arrival(0, 0, 0, 1, 0, None), Arrival(0, 1, 1, 2, 0, None), Arrival(0, 2, 2, 3, 0, None)]
    run = saved("a", [record(0, 0), record(3, 3)], arrivals)
    assert merged_at(run) == [1, 2, 3]
    assert charts.timeline(run, 100).made == (1, 2, 3)
    assert charts.timeline(run, 2.5).made == (1, 2)


def test_a_timeline_shows_some_devices_from_the_fastest_to_the_slowest() -> None:
    arrivals = [Arrival(device, 0, 0, 100 - device, 0, None) for device in range(97)]
    shown = charts.timeline(saved("a", [record(0, 0)], arrivals), 200)
    assert shown.devices == tuple(range(96, -1, -4)), "25 of 97, the higher the faster"
    assert [bar.row for bar in sorted(shown.bars, key=lambda bar: bar.arrival.arrived_at)] == list(range(25))
    assert shown.seconds[0] == 4


def test_a_timeline_ends_after_the_slowest_job_has_come_twice() -> None:
    jobs = [Arrival(0, 0, 3, 4, 0, None), Arrival(1, 0, 0, 11, 0, None)]
    assert charts.timeline_end([saved("a", [], jobs)]) == 22
    assert charts.timeline_end([saved("a", [], [*jobs[:1] * 9, replace(jobs[1], arrived_at=1000)])]) == 40
    assert charts.timeline_end([saved("a", [])]) == 0


def test_a_timeline_without_arrivals_is_empty() -> None:
    shown = charts.timeline(saved("a", [record(0, 0)]), 0)
    assert shown.bars == ()
    assert shown.devices == ()


def test_too_many_versions_are_not_marked() -> None:
    run = saved("a", [record(version, version / 100) for version in range(200)])
    assert charts.timeline(run, 1.0).made == tuple(version / 100 for version in range(1, 101))
    assert charts.timeline(run, 1.5).made == ()


def test_a_shade_lies_between_its_stops() -> None:
    stops = ("#000000", "#204060", "#FFFFFF")
    assert [shade(stops, share) for share in (0, 0.25, 0.5, 1)] == ["#000000", "#102030", "#204060", "#FFFFFF"]


def test_a_long_label_is_cut() -> None:
    assert charts.names(["a" * 40, "hfl"]) == {"a" * 40: "a" * 31 + "…", "hfl": "hfl"}


def test_long_labels_are_told_apart_by_the_part_in_which_they_differ() -> None:
    labels = [f"HFL(merge=Memory(correction=RankOne(trust={trust})))" for trust in (0.3, 0.6)]
    assert list(charts.names(labels).values()) == ["HFL(…trust=0.3…", "HFL(…trust=0.6…"]


@pytest.mark.parametrize(
    "labels",
    [
        ["x" * 50, "x" * 51],
        ["HFL(" + "a" * 60 + ")", "HFL(" + "a" * 60 + ", most=5)"],
        ["HFL(a=(1, 2), " + "b" * 40 + "1" + "c" * 40, "HFL(a=(1, 2), " + "b" * 40 + "2" + "c" * 40],
        ["F" * 33 + "(1)", "F" * 33 + "(2)", "F" * 33],
    ],
)
def test_no_two_labels_look_alike(labels: list[str]) -> None:
    shown = charts.names(labels)
    assert len(set(shown.values())) == len(labels)
    assert all(len(text) <= charts.MOST_LETTERS + 3 for text in shown.values())


def test_the_report_is_about_hfl_or_the_best_hfl() -> None:
    worse = saved("HFL(worse)", [record(0, 0, 0.2)], algorithm="HFL(1)")
    better = saved("HFL(better)", [record(0, 0, 0.8)], algorithm="HFL(2)")
    plain = saved("hfl", [record(0, 0, 0.1)], algorithm="HFL()")
    rival = saved("fedavg", [record(0, 0, 0.9)], algorithm="FedAvg()")
    assert charts.main_label([worse, better, rival, plain]) == "hfl"
    assert charts.main_label([worse, better, rival]) == "HFL(better)"
    assert charts.main_label([rival]) is None


def test_only_what_is_known_is_offered() -> None:
    old = saved("hfl", [record(0, 0)])
    assert list(charts.quantities([old])) == ["test_accuracy", "test_loss", "train_loss"]
    assert next(iter(charts.quantities([fair(0, 0.5)]))) == "device_accuracy", "and it comes first"
    assert list(charts.quantities([no_classes("hfl", 0.5)])) == ["test_loss", "train_loss"]


def test_a_curve_ends_where_a_seed_diverges() -> None:
    whole = saved("hfl", [record(0, 0, 0.1), record(1, 2, 0.3), record(2, 9, 0.5)], seed=0)
    curve = charts.curves([whole, broken(seed=1)], "seconds", "test_accuracy")["hfl"]
    assert curve.x.tolist() == [0, 2, 4, 9]
    assert curve.mean[:2].tolist() == pytest.approx([0.1, 0.2])  # 0.3 and 0.1 held
    assert np.isnan(curve.mean[2:]).all()
    assert curve.end == pytest.approx((2, 0.2))
    assert charts.curves([whole], "seconds", "test_accuracy")["hfl"].end is None


def test_devices_are_ordered_from_the_worst_to_the_best_over_all_seeds() -> None:
    group = [fair(0, 0.5), fair(1, 0.3)]  # two devices each, one of them slow, with the same accuracy
    spread = charts.device_spread(group, "all")
    assert spread is not None
    assert spread.accuracy.tolist() == [0.3, 0.3, 0.5, 0.5]
    assert spread.share.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    slow = charts.device_spread(group, "slow")
    assert slow is not None
    assert slow.accuracy.tolist() == [0.3, 0.5]


def test_a_diverged_seed_has_no_devices_and_neither_have_the_others() -> None:
    assert charts.device_spread([fair(0, 0.5), broken(seed=1)], "all") is None
    assert charts.device_spread([saved("hfl", [record(0, 0)])], "all") is None


def test_many_devices_are_thinned() -> None:
    crowd = replace(fair(0, 0.5), devices=tuple(DeviceScore(i, i / 5000, 1, False) for i in range(5001)))
    spread = charts.device_spread([crowd], "normal")
    assert spread is not None
    assert len(spread.share) <= charts.MOST_POINTS
    assert (spread.accuracy[0], spread.accuracy[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("losses", "is_wide"), [((3.0, 1.0), True), ((1.1, 1.0), False), ((1.0, 0.0), False), ((1.0, -2.0), False)]
)
def test_a_loss_is_shown_on_a_logarithmic_axis_where_that_suits_it(losses: tuple[float, float], is_wide: bool) -> None:
    run = saved("a", [record(version, version, test_loss=loss) for version, loss in enumerate(losses)])
    assert charts.is_wide([run], "test_loss") is is_wide


def test_what_diverged_does_not_stretch_an_axis() -> None:
    assert not charts.is_wide([saved("hfl", [record(0, 0), record(3, 4, diverged_at=3, test_loss=1e30)])], "test_loss")
