import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridfl.availability import AlwaysOn, Availability, Calendar, DayNight, Intervals, OnOff, finish, next_on
from hybridfl.errors import InputError

DEVICES = 5
DEVICE = st.integers(0, DEVICES - 1)
MOMENT = st.floats(0, 1000)
SEED = st.integers(0, 1000)


def intervals(*records: list[tuple[float, float]], repeat_every: float | None = None) -> Intervals:
    return Intervals(
        tuple(np.array([start for start, _ in record], dtype=np.float64) for record in records),
        tuple(np.array([end for _, end in record], dtype=np.float64) for record in records),
        repeat_every,
    )


def on_at(calendar: Calendar, device: int, at: float) -> bool:
    return bool(calendar.is_on(np.array([device]), at)[0])


def first_few(calendar: Calendar, device: int, after: float, count: int = 8) -> list[tuple[float, float]]:
    return list(itertools.islice(calendar.stretches(device, after), count))


# Some whole, so that stretches touch, and some not, so that sums are rounded.
BORDERS = st.one_of(st.integers(0, 50).map(float), st.floats(0, 50))
RECORD = st.lists(st.tuples(BORDERS, BORDERS).filter(lambda pair: pair[1] - pair[0] >= 0.5), max_size=5)
RECORDS = st.lists(RECORD, min_size=1, max_size=DEVICES)
CALENDAR: st.SearchStrategy[Calendar] = st.one_of(
    st.just(AlwaysOn()),
    st.builds(
        lambda period, on, spread, seed: DayNight(period, on, spread).calendar(DEVICES, seed),
        *(st.floats(1, 500), st.one_of(st.floats(0.1, 1), st.just(1.0)), st.floats(0, 1), SEED),
    ),
    st.builds(
        lambda mean_on, mean_off, seed: OnOff(mean_on, mean_off).calendar(DEVICES, seed),
        *(st.floats(1, 500), st.floats(1, 500), SEED),
    ),
    st.builds(lambda records: intervals(*records), RECORDS),
    st.builds(lambda records, rest: intervals(*records, repeat_every=50 + rest), RECORDS, st.floats(0, 20)),
)


@given(CALENDAR, DEVICE, MOMENT)
def test_stretches_are_in_order_disjoint_and_not_before_the_moment_asked_about(
    calendar: Calendar, device: int, after: float
) -> None:
    stretches = first_few(calendar, device, after)
    for begin, until in stretches:
        assert after <= begin < until
    for (_, until), (begin, _) in itertools.pairwise(stretches):
        assert until <= begin


@given(CALENDAR, DEVICE, MOMENT)
def test_a_device_is_on_in_its_stretches_and_nowhere_else(calendar: Calendar, device: int, after: float) -> None:
    stretches = first_few(calendar, device, after)
    assert on_at(calendar, device, after) == (bool(stretches) and stretches[0][0] == after)
    for begin, until in stretches:
        assert all(on_at(calendar, device, at) for at in moments_in(begin, until))
    for (_, until), (begin, _) in itertools.pairwise([(0, after), *stretches]):
        if until < begin:
            assert not any(on_at(calendar, device, at) for at in moments_in(until, begin))


def moments_in(begin: float, until: float) -> list[float]:
    """The first, the last and one in the middle."""
    last = math.nextafter(until, 0)
    return [begin, min((begin + until) / 2, last), last]


@given(CALENDAR, DEVICE, MOMENT, st.floats(0, 100))
def test_stretches_asked_for_later_are_the_same(calendar: Calendar, device: int, after: float, later: float) -> None:
    late = first_few(calendar, device, after + later, 4)
    early = itertools.takewhile(lambda stretch: stretch[0] <= after + later + 100, calendar.stretches(device, after))
    expected = [(max(begin, after + later), until) for begin, until in early if until > after + later]
    assert all(stretch in expected for stretch in late if stretch[0] <= after + later + 100)
    assert expected[: len(late)] == late[: len(expected)]


@given(CALENDAR, DEVICE, MOMENT)
def test_the_next_time_it_is_on_is_the_first_at_which_it_is(calendar: Calendar, device: int, at: float) -> None:
    on = next_on(calendar, device, at)
    assert (on == at) == on_at(calendar, device, at)
    assert on == math.inf or on_at(calendar, device, on)


@given(CALENDAR, DEVICE, MOMENT, st.floats(0, 200))
def test_work_is_done_after_so_many_seconds_of_being_on(
    calendar: Calendar, device: int, start: float, seconds: float
) -> None:
    done, away = finish(calendar, device, start, seconds)
    assert done > start + seconds or done == pytest.approx(start + seconds, rel=1e-12)
    if away == math.inf:
        assert done == start + seconds
    else:
        assert start <= away < done
        assert not on_at(calendar, device, away)
        assert away == start or on_at(calendar, device, math.nextafter(away, 0))
    if done < math.inf:
        parts = itertools.takewhile(lambda stretch: stretch[0] < done, calendar.stretches(device, start))
        assert math.fsum(min(until, done) - begin for begin, until in parts) == pytest.approx(seconds, abs=1e-9)


@given(st.lists(st.integers(0, 49), max_size=12), st.integers(0, 99), st.integers(0, 99))
def test_an_interruption_and_nothing_else_makes_it_take_longer(hours: list[int], start: int, seconds: int) -> None:
    calendar = intervals([(hour, hour + 1) for hour in hours], repeat_every=50.0)
    done, away = finish(calendar, 0, start, seconds)  # whole numbers: nothing is rounded
    assert done >= start + seconds
    assert (done == start + seconds) == (away == math.inf)


def test_always_on_is_one_stretch_without_an_end() -> None:
    calendar = AlwaysOn().calendar(3, seed=0)
    assert calendar.is_on(np.arange(3), 1e9).tolist() == [True, True, True]
    assert list(calendar.stretches(0, 5.0)) == [(5.0, math.inf)]
    assert finish(calendar, 0, 5.0, 2.0) == (7.0, math.inf)


def test_work_stops_while_a_device_is_away_and_goes_on_where_it_was() -> None:
    calendar = intervals([(0, 10), (20, 25), (30, 50)])
    assert finish(calendar, 0, 2, 8) == (10, math.inf)  # just in time
    assert finish(calendar, 0, 2, 9) == (21, 10)
    assert finish(calendar, 0, 2, 15) == (32, 10)
    assert finish(calendar, 0, 12, 1) == (21, 12)  # away when it starts
    assert finish(calendar, 0, 45, 6) == (math.inf, 50)  # never again
    assert finish(calendar, 0, 60, 1) == (math.inf, 60)
    assert finish(calendar, 0, 5, 0) == (5, math.inf)


def test_stretches_that_touch_are_no_interruption() -> None:
    night_shift = DayNight(period=10.0, on=1.0, spread=0.0).calendar(1, seed=0)
    assert first_few(night_shift, 0, 3.0, 2) == [(3.0, 10.0), (10.0, 20.0)]
    assert finish(night_shift, 0, 3.0, 40.0) == (43.0, math.inf)
    whole_lap = intervals([(0, 10)], repeat_every=10.0)
    assert finish(whole_lap, 0, 3.0, 40.0) == (43.0, math.inf)


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_nobody_works_for_ever(seconds: float) -> None:
    with pytest.raises(InputError, match=f"seconds={seconds}"):
        finish(DayNight().calendar(1, 0), 0, 0.0, seconds)


@pytest.mark.parametrize("availability", [AlwaysOn(), DayNight(), OnOff()])
def test_nothing_comes_after_the_end_of_time(availability: Availability) -> None:
    calendar = availability.calendar(1, 0)
    assert next_on(calendar, 0, math.inf) == math.inf
    assert finish(calendar, 0, math.inf, 1.0) == (math.inf, math.inf)


def test_with_no_spread_all_are_on_for_the_first_part_of_every_period() -> None:
    calendar = DayNight(period=10.0, on=0.25, spread=0.0).calendar(2, seed=3)
    assert first_few(calendar, 1, 0.0, 2) == [(0.0, 2.5), (10.0, 12.5)]
    assert first_few(calendar, 1, 1.0, 2) == [(1.0, 2.5), (10.0, 12.5)]
    assert first_few(calendar, 1, 2.5, 1) == [(10.0, 12.5)]
    on = [bool(calendar.is_on(np.arange(2), at).all()) for at in (0.0, 2.4, 2.5, 9.9, 10.0, 12.4, 12.5)]
    assert on == [True, True, False, False, True, True, False]


@pytest.mark.parametrize("at", [0.0, 30_000.0, 86_400.0, 1e6])
def test_all_over_the_globe_the_same_share_is_on_at_any_time(at: float) -> None:
    calendar = DayNight(on=0.3).calendar(20_000, seed=0)
    assert calendar.is_on(np.arange(20_000), at).mean() == pytest.approx(0.3, abs=0.015)


def test_half_a_spread_begins_within_half_a_day() -> None:
    calendar = DayNight(period=100.0, on=0.1, spread=0.5).calendar(1000, seed=0)
    begins = np.array([next_on(calendar, device, 20.0) for device in range(1000)])
    begins[begins > 100] -= 100
    assert 0 <= begins.min() < 2
    assert 48 < begins.max() < 50


def test_a_device_keeps_its_hours_in_a_larger_fleet_and_has_others_with_another_seed() -> None:
    everyone = np.arange(50)
    few, many = DayNight().calendar(50, seed=1), DayNight().calendar(90, seed=1)
    assert np.array_equal(few.is_on(everyone, 5e4), many.is_on(everyone, 5e4))
    assert not np.array_equal(few.is_on(everyone, 5e4), DayNight().calendar(50, seed=2).is_on(everyone, 5e4))


def test_a_million_devices_have_their_day_in_a_moment() -> None:
    calendar = DayNight().calendar(1_000_000, seed=0)
    began = time.process_time()
    calendar.is_on(np.arange(1_000_000), 1e6)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("at", [0.0, 5.0, 1000.0])
def test_a_chain_is_in_its_stationary_state_from_the_start(at: float) -> None:
    calendar = OnOff(mean_on=10.0, mean_off=30.0).calendar(4000, seed=0)
    assert calendar.is_on(np.arange(4000), at).mean() == pytest.approx(0.25, abs=0.02)


def test_stretches_of_a_chain_are_exponential_around_their_means() -> None:
    stretches = first_few(OnOff(mean_on=10.0, mean_off=30.0).calendar(1, seed=0), 0, 0.0, 20_000)
    on = np.array([until - begin for begin, until in stretches[1:]])
    off = np.array([begin - until for (_, until), (begin, _) in itertools.pairwise(stretches)])
    for lengths, mean in ((on, 10.0), (off, 30.0)):
        assert lengths.mean() == pytest.approx(mean, rel=0.03)
        assert lengths.std() == pytest.approx(mean, rel=0.03)
        assert np.median(lengths) == pytest.approx(mean * math.log(2), rel=0.03)


@given(st.lists(st.tuples(DEVICE, MOMENT), max_size=10), SEED)
def test_a_chain_does_not_depend_on_the_order_of_the_questions(questions: list[tuple[int, float]], seed: int) -> None:
    asked = OnOff(20.0, 20.0).calendar(DEVICES, seed)
    for device, at in questions:
        on_at(asked, device, at)
        first_few(asked, device, at, 3)
    fresh = OnOff(20.0, 20.0).calendar(DEVICES, seed)
    for device in range(DEVICES):
        assert first_few(asked, device, 0.0, 40) == first_few(fresh, device, 0.0, 40)


def test_chains_differ_by_device_and_by_seed() -> None:
    calendar, other = OnOff().calendar(2, seed=0), OnOff().calendar(2, seed=1)
    runs = [first_few(calendar, 0, 0.0), first_few(calendar, 1, 0.0), first_few(other, 0, 0.0)]
    assert len({str(run) for run in runs}) == 3


def test_only_devices_asked_about_cost_anything() -> None:
    calendar = OnOff().calendar(10**15, seed=0)
    assert calendar.is_on(np.array([0, 10**15 - 1]), 100.0).shape == (2,)


def switches(calendar: Calendar, device: int, count: int = 8) -> list[float]:
    return list(itertools.chain(*first_few(calendar, device, 0.0, count)))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([], []),
        ([(3, 5)], [3, 5]),
        ([(6, 8), (1, 2)], [1, 2, 6, 8]),  # in any order
        ([(1, 4), (3, 6)], [1, 6]),  # overlapping
        ([(1, 9), (2, 3), (4, 5)], [1, 9]),  # one in the other
        ([(1, 2), (2, 3), (5, 6)], [1, 3, 5, 6]),  # touching
        ([(1, 2), (1, 2)], [1, 2]),
    ],
)
def test_intervals_are_sorted_and_joined(record: list[tuple[float, float]], expected: list[float]) -> None:
    assert switches(intervals(record), 0) == expected


def test_a_recording_is_over_or_starts_again() -> None:
    record: list[tuple[float, float]] = [(1, 2), (5, 7)]
    assert switches(intervals(record), 0) == [1, 2, 5, 7]
    assert next_on(intervals(record), 0, 7) == math.inf
    again = intervals(record, repeat_every=10.0)
    assert switches(again, 0, 5) == [1, 2, 5, 7, 11, 12, 15, 17, 21, 22]
    assert [on_at(again, 0, at) for at in (0, 1, 2, 11.5, 12, 105, 106.9, 107)] == [
        *(False, True, False, True, False, True, True, False)
    ]


def test_a_device_without_an_interval_is_never_on() -> None:
    calendar = intervals([], [(0, 1)], repeat_every=10.0)
    assert calendar.is_on(np.array([0, 1]), 0.5).tolist() == [False, True]
    assert next_on(calendar, 0, 0.0) == math.inf


def test_a_larger_fleet_follows_the_recorded_devices_in_turn() -> None:
    calendar = intervals([(0, 1)], [(1, 2)], [(2, 3)])
    assert calendar.is_on(np.arange(7), 1.5).tolist() == [False, True, False, False, True, False, False]
    assert list(calendar.stretches(5, 0.0)) == [(2, 3)]


@given(RECORDS, st.lists(DEVICE, max_size=6), MOMENT)
def test_many_devices_asked_about_at_once_are_as_they_are_alone(
    records: list[list[tuple[float, float]]], devices: list[int], at: float
) -> None:
    calendar = intervals(*records, repeat_every=50.0)
    together: NDArray[np.bool_] = calendar.is_on(np.array(devices, dtype=np.int64), at)
    assert together.tolist() == [on_at(calendar, device, at) for device in devices]


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (DayNight, {"period": 0.0}, "period=0.0"),
        (DayNight, {"on": 0.0}, "on=0.0"),
        (DayNight, {"on": 1.5}, "on=1.5"),
        (DayNight, {"on": 1e-12}, "on=1e-12"),
        (DayNight, {"spread": -0.1}, "spread=-0.1"),
        (OnOff, {"mean_on": 0.0}, "mean_on=0.0"),
        (OnOff, {"mean_on": 1e-9}, "mean_on=1e-09"),
        (OnOff, {"mean_off": math.inf}, "mean_off=inf"),
        (Intervals, {"starts": (), "ends": ()}, "recorded devices=0"),
        (Intervals, {"starts": (np.ones(1),), "ends": (np.ones(1),)}, "from 1.0 until 1.0"),
        (Intervals, {"starts": (np.full(1, -1.0),), "ends": (np.ones(1),)}, "from -1.0 until 1.0"),
        (Intervals, {"starts": (np.zeros(1),), "ends": (np.full(1, math.nan),)}, "from 0.0 until nan"),
        (Intervals, {"starts": (np.zeros(1),), "ends": (np.ones(1),), "repeat_every": 0.5}, "give 1.0 or more"),
        (Intervals, {"starts": (np.zeros(1),), "ends": (np.ones(1),), "repeat_every": 0.0}, "repeat_every=0.0"),
    ],
)
def test_refuses_what_is_no_calendar(make: type, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make(**arguments)
