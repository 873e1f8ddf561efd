import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.sampling import Everyone
from hybridfl.attacks import Hostile, Noise, NotANumber, Scaled
from hybridfl.availability import AlwaysOn, DayNight, OnOff
from hybridfl.conditions import Conditions, Deaths, FleetTiming, LateJoins, SpeedChange, conditions_of
from hybridfl.data.synthetic import synthetic
from hybridfl.errors import InputError
from hybridfl.experiment import execute, simulate
from hybridfl.laws import Fixed, HalfNormal, Lognormal
from hybridfl.models import LogisticRegression
from hybridfl.plan import Run
from hybridfl.protocol import Job, Loss, Update, Work
from hybridfl.spelling import read_fleet
from hybridfl.task import Task
from hybridfl.timing import ComputeAndLink, ConstantSeconds, Drawn, OwnSeconds, PaperDelays, Roster
from hybridfl.traces import RecordedAvailability

WORK = Work(5, 64, 0.1)


def job(device: int, sent_at: float = 0.0, version: int = 0) -> Job:
    return Job(device, version, torch.zeros(3), WORK, sent_at)


def drawn_up(conditions: Conditions, devices: int = 200, seed: int = 0) -> FleetTiming:
    return conditions.of(Roster(np.full(devices, 10), seed=seed))


def trips(timing: FleetTiming, jobs: list[Job]) -> list[float | Loss]:
    return [timing(each) for each in jobs]


def test_a_pace_alone_loses_nothing_and_everybody_is_there() -> None:
    timing = conditions_of(PaperDelays(0.5, 4)).of(Roster(np.full(50, 10), seed=3))
    plain = PaperDelays(0.5, 4).of(Roster(np.full(50, 10), seed=3))
    assert [timing(job(d)) for d in range(50)] == plain.expected_seconds.tolist()
    assert timing.is_always_on
    assert timing.online(np.arange(50), 7.0).all()
    assert timing.comes_online(7.0) == math.inf


def test_jitter_is_a_factor_of_each_jobs_own() -> None:
    timing = drawn_up(Conditions(Drawn(Lognormal(1.0)), jitter=HalfNormal(2.0)), devices=5)
    factors = [timing(job(d, version=v)) / timing.expected_seconds[d] for d in range(5) for v in range(400)]
    assert np.mean(factors) == pytest.approx(2.0 * math.sqrt(2 / math.pi), rel=0.06)
    assert timing(job(1, version=7)) == timing(job(1, version=7))
    assert timing(job(1, version=7)) != timing(job(1, version=8))


def test_jobs_are_lost_with_their_probability_and_noticed_after_a_while() -> None:
    timing = drawn_up(Conditions(ConstantSeconds(2.0), lost=0.2, notice=3.0), devices=1)
    ends = trips(timing, [job(0, float(at)) for at in range(2000)])
    losses = [end for end in ends if isinstance(end, Loss)]
    assert len(losses) / 2000 == pytest.approx(0.2, abs=0.03)
    assert set(losses) == {Loss(5.0, "lost on the way")}
    assert {end for end in ends if not isinstance(end, Loss)} == {2.0}


def test_a_lost_job_that_is_sent_again_with_the_same_version_has_another_chance() -> None:
    timing = drawn_up(Conditions(lost=0.5), devices=1)
    assert len({type(timing(job(0, sent_at=float(at), version=0))) for at in range(30)}) == 2


def test_the_dead_answer_nothing_any_more() -> None:
    timing = drawn_up(Conditions(ConstantSeconds(), deaths=Deaths(0.3, by=10.0), notice=4.0))
    everyone = np.arange(200)
    assert timing.online(everyone, 0.0).sum() == 200
    assert timing.online(everyone, 10.0).sum() == 140
    dead = everyone[~timing.online(everyone, 10.0)]
    ends = trips(timing, [job(int(device), 0.0) for device in dead])
    for device, end in zip(dead, ends, strict=True):
        died_at = next(at for at in np.arange(0, 10, 0.01) if not timing.online(np.array([device]), at)[0])
        if isinstance(end, Loss):
            assert end.reason == "died"
            assert died_at <= 1.0
            assert end.seconds == pytest.approx(died_at + 4.0, abs=0.02)
        else:
            assert died_at >= 1.0
    assert timing(job(int(dead[0]), 50.0)) == Loss(4.0, "died")  # sent to the dead all the same
    assert timing.comes_online(20.0) == math.inf


def test_who_joins_late_is_not_there_before() -> None:
    timing = drawn_up(Conditions(ConstantSeconds(), joins=LateJoins(0.25, by=100.0)))
    everyone = np.arange(200)
    late = everyone[~timing.online(everyone, 0.0)]
    assert len(late) == 50
    first = timing.comes_online(0.0)
    assert 0 < first < 20
    assert timing.online(everyone, first).sum() == 151
    assert timing.online(everyone, 100.0).all()
    end = timing(job(int(late[0]), 0.0))  # sent too early, it begins when it is there
    assert isinstance(end, float)
    assert timing.online(late[:1], end - 1.0).all()
    assert not timing.online(late[:1], end - 1.01).any()


def test_a_change_of_speed_is_for_jobs_sent_after_it() -> None:
    for factor in (5.0, 0.2):
        timing = drawn_up(Conditions(ConstantSeconds(2.0), change=SpeedChange(0.1, factor, at=50.0)))
        assert {timing(job(d, 49.0)) for d in range(200)} == {2.0}
        after = [timing(job(d, 50.0)) for d in range(200)]
        assert after.count(2.0 * factor) == 20
        assert after.count(2.0) == 180


def test_a_device_that_goes_away_while_training_comes_back_late_or_never() -> None:
    away = DayNight(period=10.0, on=0.5, spread=0.0)  # there from 0 to 5, from 10 to 15, …
    late = drawn_up(Conditions(ConstantSeconds(3.0), availability=away))
    assert late(job(0, 1.0)) == 3.0
    assert late(job(0, 4.0)) == 8.0  # one second of work, away from 5 to 10, two more seconds
    assert late(job(0, 7.0)) == 6.0  # it begins at 10
    never = drawn_up(Conditions(ConstantSeconds(3.0), availability=away, interrupted=1.0, notice=2.0))
    assert never(job(0, 1.0)) == 3.0
    assert never(job(0, 4.0)) == Loss(3.0, "went away")
    some = drawn_up(Conditions(ConstantSeconds(3.0), availability=away, interrupted=0.5))
    ends = trips(some, [job(d, 4.0) for d in range(200)])
    assert 60 < sum(isinstance(end, Loss) for end in ends) < 140


def test_the_same_seed_is_the_same_fleet_and_a_fixed_one_is_for_all_seeds() -> None:
    conditions = Conditions(Drawn(Lognormal()), jitter=Lognormal(), availability=OnOff(20.0, 5.0), lost=0.1)
    jobs = [job(d, float(at)) for d in range(10) for at in range(10)]
    one, same, other = (drawn_up(conditions, 10, seed) for seed in (1, 1, 2))
    assert trips(one, jobs) == trips(same, jobs)
    assert trips(one, jobs) != trips(other, jobs)
    fixed = Conditions(Drawn(Lognormal()), jitter=Lognormal(), availability=OnOff(20.0, 5.0), lost=0.1, seed=1)
    assert trips(drawn_up(fixed, 10, 5), jobs) == trips(one, jobs)


def test_an_answer_does_not_depend_on_what_was_asked_before() -> None:
    conditions = Conditions(Drawn(Lognormal()), availability=OnOff(5.0, 5.0), lost=0.1, interrupted=0.2)
    jobs = [job(d, 3.0 * at) for d in range(5) for at in range(20)]
    forwards, backwards = drawn_up(conditions), drawn_up(conditions)
    assert trips(forwards, jobs) == trips(backwards, jobs[::-1])[::-1]


@settings(max_examples=40, deadline=None)
@given(
    lost=st.floats(0, 0.9),
    interrupted=st.floats(0, 1),
    share=st.floats(0, 1),
    mean_on=st.floats(0.1, 50),
    mean_off=st.floats(0.1, 50),
    sent_at=st.floats(0, 500),
    seed=st.integers(0, 5),
)
def test_every_job_ends_after_it_was_sent_and_before_for_ever(
    lost: float, interrupted: float, share: float, mean_on: float, mean_off: float, sent_at: float, seed: int
) -> None:
    timing = drawn_up(
        Conditions(
            Drawn(Lognormal(1.37)),
            jitter=Lognormal(),
            availability=OnOff(mean_on, mean_off),
            lost=lost,
            interrupted=interrupted,
            joins=LateJoins(share, 100.0),
            deaths=Deaths(share, 300.0),
            change=SpeedChange(share, 3.0, 50.0),
        ),
        20,
        seed,
    )
    for device in range(20):
        end = timing(job(device, sent_at))
        seconds = end.seconds if isinstance(end, Loss) else end
        assert 0 < seconds < math.inf


def update() -> Update:
    return Update(Job(0, 0, torch.tensor([1.0, 2.0]), WORK, 0.0), torch.tensor([2.0, 4.0]), 3, 0.5)


def test_attacks() -> None:
    draw = np.random.default_rng(0)
    assert Scaled(-10.0)(update(), draw).weights.tolist() == [-9.0, -18.0]
    assert torch.isnan(NotANumber()(update(), draw).weights).all()
    noisy = torch.stack([Noise(2.0)(update(), draw).weights for _ in range(4000)])
    assert noisy.mean(0).tolist() == pytest.approx([1.0, 2.0], abs=0.15)
    assert noisy.std(0).tolist() == pytest.approx([2.0, 2.0], rel=0.05)


def test_exactly_the_share_of_the_devices_is_hostile() -> None:
    timing = drawn_up(Conditions(hostile=Hostile(0.1)))
    assert timing.is_hostile.sum() == 20
    hostile, honest = (int(np.flatnonzero(timing.is_hostile == flag)[0]) for flag in (True, False))
    for device in (hostile, honest):
        one = Update(Job(device, 0, torch.zeros(2), WORK, 0.0), torch.ones(2), 3, 0.5)
        assert timing.answer(one).weights.tolist() == ([-10.0, -10.0] if device == hostile else [1.0, 1.0])


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(),
        Conditions(Drawn(HalfNormal()), jitter=Fixed(2.0), notice=0.5, seed=4),
        Conditions(availability=DayNight(20.0, 0.3), interrupted=0.25, lost=0.5),
        Conditions(joins=LateJoins(), deaths=Deaths(), change=SpeedChange(), hostile=Hostile(0.2, Noise(3.0))),
    ],
)
def test_conditions_print_as_they_can_be_written(conditions: Conditions) -> None:
    assert read_fleet(repr(conditions)) == conditions


def test_what_is_as_by_default_is_not_printed() -> None:
    assert repr(Conditions()) == "Conditions()"
    assert repr(Conditions(lost=0.5, availability=AlwaysOn())) == "Conditions(lost=0.5)"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Conditions(lost=1.0), "lost=1.0"),
        (lambda: Conditions(lost=-0.1), "lost=-0.1"),
        (lambda: Conditions(interrupted=1.5), "interrupted=1.5"),
        (lambda: Conditions(notice=math.inf), "notice=inf"),
        (lambda: Conditions(notice=0.0), "notice=0.0"),
        (lambda: Deaths(2.0), "share of deaths=2.0"),
        (lambda: LateJoins(0.1, by=0.0), "by=0.0"),
        (lambda: SpeedChange(0.1, factor=0.0), "factor=0.0"),
        (lambda: SpeedChange(0.1, at=-1.0), "at=-1.0"),
        (lambda: Hostile(1.1), "share of hostile devices=1.1"),
        (lambda: Scaled(math.nan), "factor=nan"),
        (lambda: Noise(0.0), "sd=0.0"),
    ],
)
def test_refuses_what_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


TASK = Task.from_devices(synthetic(1.0, 1.0, 8, seed=2), LogisticRegression(60, 10))


def test_a_run_in_which_everybody_dies_ends_when_its_time_is_up() -> None:
    fleet = Conditions(ConstantSeconds(), deaths=Deaths(1.0, by=5.0), notice=1.0)
    records = simulate(TASK, HFL(), fleet, seconds=60).records
    assert records[-1].seconds == 60.0
    assert 3 < records[-1].lost <= 8
    assert records[-1].version == records[-2].version
    with pytest.raises(InputError, match=r"Nobody is left to train: at version \d"):
        simulate(TASK, HFL(), fleet, rounds=60)


def test_arrivals_say_what_became_of_every_job() -> None:
    fleet = Conditions(ConstantSeconds(), lost=0.3, notice=2.0)
    snapshots = list(execute(Run(TASK, HFL(), fleet, seconds=30)))
    arrivals = [arrival for snapshot in snapshots for arrival in snapshot.arrivals]
    last = snapshots[-1].record
    assert sum(arrival.lost is not None for arrival in arrivals) == last.lost > 10
    assert sum(arrival.is_merged for arrival in arrivals) == last.merged > 50
    assert {arrival.lost for arrival in arrivals} == {None, "lost on the way"}
    assert last.discarded == last.refused == last.forgotten == 0


def test_a_device_that_pauses_and_dies_before_it_is_done_is_lost_when_it_dies() -> None:
    """There from 0 to 5 and from 10 to 15: of 7 s of work begun at 1, it would be done at 13; it dies before."""
    away = DayNight(period=10.0, on=0.5, spread=0.0)
    fleet = Conditions(ConstantSeconds(7.0), availability=away, deaths=Deaths(1.0, by=12.0), notice=1.0)
    timing = drawn_up(fleet, 50)
    for device in range(50):
        on = [at for at in np.arange(0.0, 12.0, 0.01) if timing.online(np.array([device]), float(at))[0]]
        end = timing(job(device, 1.0))
        assert isinstance(end, Loss)
        if max(on) > 10:
            assert end.reason == "died"
            assert end.seconds == pytest.approx(max(on) - 1.0 + 1.0, abs=0.02)


def test_everybody_in_quarantine_ends_a_run_although_they_come_and_go() -> None:
    fleet = Conditions(ConstantSeconds(), availability=DayNight(20.0), hostile=Hostile(1.0, NotANumber()))
    with pytest.raises(InputError, match=r"Nobody is left to train.*8 are in quarantine"):
        simulate(TASK, HFL(), fleet, rounds=10, guard=Guard(quarantine=1))
    record = simulate(TASK, HFL(), fleet, seconds=500, guard=Guard(quarantine=1)).records[-1]
    assert (record.version, record.refused, record.barred) == (0, 8, 8)


def test_nobody_waits_for_who_is_in_quarantine_however_often_they_come(tmp_path: Path) -> None:
    """Device 0 is away from 20 s to 5,000 s; the two hostile ones come and go every second."""
    trace = tmp_path / "there.csv"
    comings = "".join(f"b1,{2 * k},{2 * k + 1}\nb2,{2 * k + 1},{2 * k + 2}\n" for k in range(2600))
    trace.write_text(f"device,start,end\ngood,0,20\ngood,5000,5200\n{comings}")
    task = Task.from_devices(synthetic(1.0, 1.0, 3, seed=2), LogisticRegression(60, 10))
    fleet = Conditions(
        ConstantSeconds(0.4),
        availability=RecordedAvailability(str(trace)),
        hostile=Hostile(2 / 3, NotANumber()),
        interrupted=1.0,
    )
    seed = next(s for s in range(20) if not drawn_up(fleet, 3, s).is_hostile[0])
    snapshots = list(execute(Run(task, HFL(), fleet, rounds=200, seed=seed, guard=Guard())))
    assert snapshots[-1].record.version == 200
    assert snapshots[-1].record.seconds > 5000


def test_many_losses_at_one_instant_do_not_end_a_run() -> None:
    task = Task.from_devices([(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))] * 2500, LogisticRegression(3, 2))
    fleet = Conditions(ConstantSeconds(), lost=0.5, notice=1.0)
    assert simulate(task, FedAvg(Everyone()), fleet, rounds=2).records[-1].lost > 1000


@dataclass(frozen=True)
class Always:
    """A user's law, and a user's mistake."""

    value: float

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return np.full(count, self.value)


@pytest.mark.parametrize("value", [0.0, -2.0, math.nan])
@pytest.mark.parametrize("algorithm", [HFL(), FedBuff()])
@pytest.mark.parametrize("place", ["pace", "jitter", "link"])
def test_a_law_that_draws_no_seconds_ends_no_run_in_silence(value: float, algorithm: Any, place: str) -> None:
    law = Always(value)
    fleet = {
        "pace": Conditions(Drawn(law)),
        "jitter": Conditions(jitter=law),
        "link": Conditions(ComputeAndLink(seconds_per_sample=law)),
    }[place]
    task = Task.from_devices(synthetic(1, 1, 5, 0), LogisticRegression(60, 10))
    with pytest.raises(InputError, match=rf"Always\(value={value}\) drew {value} for device 0"):
        simulate(task, algorithm, fleet, seconds=5)


@dataclass(frozen=True)
class OwnPace:
    """A user's pace."""

    expected: tuple[float, ...]

    def of(self, roster: Roster) -> OwnSeconds:
        return OwnSeconds(np.array(self.expected), np.zeros(len(self.expected), dtype=bool))


def test_a_pace_that_expects_no_seconds_is_an_error_and_nan_means_not_known() -> None:
    with pytest.raises(InputError, match=r"expects device 1 to take 0\.0 s"):
        _ = drawn_up(Conditions(OwnPace((1.0, 0.0))), devices=2).expected_seconds
    with pytest.raises(InputError, match=r"shape \(2,\), but the fleet has 3 devices"):
        _ = drawn_up(Conditions(OwnPace((1.0, 1.0))), devices=3).expected_seconds
    assert np.isnan(drawn_up(Conditions(OwnPace((1.0, math.nan))), devices=2).expected_seconds[1])
