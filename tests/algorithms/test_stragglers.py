import math

import numpy as np
import pytest

from fakes import answer, fleet_of, job
from hybridfl.algorithms.stragglers import Durations, KnownShare, Learned, slowest
from hybridfl.errors import InputError

FLEET = fleet_of(1, 1, 1, 1, seconds=[1.0, 4.0, 2.0, 3.0])
ALL = np.arange(4)
UNKNOWN = Durations().with_devices(range(4))


def test_the_slowest_share() -> None:
    assert slowest(FLEET, 0.5).tolist() == [False, True, False, True]
    assert slowest(FLEET, 0.0).sum() == 0
    assert slowest(FLEET, 1.0).sum() == 4


def test_a_fleet_without_history_has_no_known_share() -> None:
    with pytest.raises(InputError, match=r"Use Learned\(\)"):
        slowest(fleet_of(1, 1), 0.5)


def test_known_share_never_changes_its_mind() -> None:
    judge = KnownShare(0.5)
    seconds = judge.observe(UNKNOWN, [answer(job(0, 0, [0.0]), 0.0)], now=100.0)
    assert judge.normal(FLEET, seconds, judge.round_seconds(seconds), ALL).tolist() == [True, False, True, False]
    assert judge.round_seconds(seconds) == math.inf


def test_the_mean_by_hand() -> None:
    """β = 0.3: first 2 s as it is, then 0.7·2 + 0.3·7 = 3.5."""
    judge = Learned(smoothing=0.3)
    once = judge.observe(UNKNOWN, [answer(job(1, 0, [0.0], sent_at=5.0), 0.0)], now=7.0)
    twice = judge.observe(once, [answer(job(1, 1, [0.0], sent_at=7.0), 0.0)], now=14.0)
    assert once.seconds.tolist() == [math.inf, 2.0, math.inf, math.inf]
    assert twice.seconds[1] == pytest.approx(3.5)
    assert UNKNOWN.seconds[1] == math.inf


def test_the_round_lasts_as_long_as_the_fastest_need_and_some_slack() -> None:
    """The fastest half of four devices: the second smallest of 1, 4, 2, ∞ is 2; slack 1.5."""
    seconds = Durations(ALL, np.array([1.0, 4.0, 2.0, math.inf]))
    judge = Learned(fastest=0.5, slack=1.5)
    assert judge.round_seconds(seconds) == 3.0
    assert judge.normal(FLEET, seconds, 3.0, ALL).tolist() == [True, False, True, False]


def test_durations_have_entries_for_those_who_got_a_job_only() -> None:
    some = Durations().with_devices([7, 900_000]).with_devices([3, 7])
    assert some.devices.tolist() == [3, 7, 900_000]
    assert some.seconds.tolist() == [math.inf] * 3
    heard = Learned().observe(some, [answer(job(7, 0, [0.0]), 0.0)], now=2.0)
    assert heard.with_devices([5]).of(np.array([3, 5, 7])).tolist() == [math.inf, math.inf, 2.0]
    assert Learned(fastest=0.1).round_seconds(Durations()) == math.inf


def test_who_lost_a_job_has_no_part_in_the_pace() -> None:
    """Of 20 devices one takes 1 s, ten are never heard from, nine take 4 s. A tenth of 20 are 2, of the ten left, 1."""
    seconds = np.array([1.0] + [math.inf] * 10 + [4.0] * 9)
    durations, judge = Durations(np.arange(20), seconds), Learned(fastest=0.1, slack=1.5)
    assert judge.round_seconds(durations) == 6.0
    assert judge.round_seconds(durations.without(range(1, 11))) == 1.5
    assert durations.without([]) is durations


def test_before_anything_is_known_everyone_is_normal_and_a_round_has_no_end() -> None:
    judge = Learned()
    assert judge.round_seconds(UNKNOWN) == math.inf
    assert judge.normal(FLEET, UNKNOWN, math.inf, ALL).all()


@pytest.mark.parametrize("bad", [{"smoothing": 1.5}, {"fastest": -0.1}, {"slack": 0.0}])
def test_bad_numbers_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        Learned(**bad)
    with pytest.raises(InputError, match="share=2"):
        KnownShare(2)
