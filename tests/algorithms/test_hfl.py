import itertools
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.testing import assert_close

from fakes import Towards, answer, arrivals, fleet_of, lost, vector
from hybridfl.algorithms.ad_sgd import NoCorrection, RankOne
from hybridfl.algorithms.blend import Blend, Printed
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import FirstOf, Uniform
from hybridfl.algorithms.stragglers import KnownShare, Learned
from hybridfl.errors import InputError
from hybridfl.protocol import Inbox, Job, Loss, Timing
from hybridfl.run import run
from hybridfl.simulation import Simulation

CONSTANT = FullWork(learning_rate=ConstantRate(0.1))
HALF = KnownShare(0.5)
FLEET = fleet_of(1, 1, 2, seconds=[1.0, 1.0, 5.0])
ONE_SLOW = KnownShare(1 / 3)


def test_as_printed_is_the_papers_rule() -> None:
    assert HFL.as_printed(lambda_0=0.3).merge == Blend(Printed(0.3), RankOne(math.inf), normalised=False)


def test_a_round_waits_for_normal_devices_only() -> None:
    algorithm = HFL(stragglers=ONE_SLOW)
    state, outbox = algorithm.init(vector(0.0), FLEET)
    assert [job.device for job in outbox.jobs] == [0, 1, 2]
    assert outbox.wake_at is None
    jobs = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(jobs[0], 1.0)))
    assert (state.version, outbox.jobs) == (0, ())
    state, outbox = algorithm.step(state, arrivals(2.0, answer(jobs[1], 3.0)))
    assert state.version == 1
    assert_close(state.weights, vector(2.0))
    assert [(job.device, job.version, job.sent_at) for job in outbox.jobs] == [(0, 1, 2.0), (1, 1, 2.0)]


def test_late_work_is_merged_at_the_next_closing_with_its_correction() -> None:
    """Three rounds by hand, η = 0.1 throughout, q = ¼, ¼, ½ once all were heard from."""
    algorithm = HFL(Memory(RankOne(0.3)), ONE_SLOW, local=CONSTANT)
    state, outbox = algorithm.init(vector(0.0), FLEET)
    a, b, slow = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(a, 0.01), answer(b, 0.03)))
    assert_close(state.weights, vector(0.02))
    a, b = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.5, answer(slow, 0.05)))  # g = −0.5, w_base = 0
    assert (state.version, outbox.jobs, outbox.receipts[0].staleness) == (1, (), 1)
    assert outbox.receipts[0].discarded is None
    state, outbox = algorithm.step(state, arrivals(2.0, answer(a, 0.01), answer(b, 0.03)))
    assert state.version == 2
    s = -0.5 * 0.02  # g·d
    assert_close(state.weights, vector(0.02 + 0.25 * 0.01 + 0.25 * 0.03 + 0.5 * (1 + s) * 0.05))
    assert [job.device for job in outbox.jobs] == [0, 1, 2]  # the straggler gets the new version now
    merged = float(state.weights)
    a, b, slow = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(3.0, answer(a, 0.01), answer(b, 0.03)))
    s = -0.5 * merged  # remembered, corrected from the same old model
    assert_close(state.weights, vector(merged + 0.25 * 0.01 + 0.25 * 0.03 + 0.5 * (1 + s) * 0.05))


def test_a_deadline_closes_a_round_and_a_normal_device_that_missed_it_is_merged_late() -> None:
    algorithm = HFL(Memory(NoCorrection()), KnownShare(0.0), round_seconds=4.0, local=CONSTANT)
    state, outbox = algorithm.init(vector(0.0), fleet_of(1, 1, seconds=[1.0, 1.0]))
    assert outbox.wake_at == 4.0
    on_time, late = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(on_time, 1.0)))
    assert (state.version, outbox.wake_at) == (0, 4.0)
    state, outbox = algorithm.step(state, Inbox(4.0))
    assert state.version == 1
    assert_close(state.weights, vector(1.0))
    assert [job.device for job in outbox.jobs] == [0]
    (on_time,) = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(5.0, answer(on_time, 1.0), answer(late, 4.0)))
    assert state.version == 2
    assert [receipt.staleness for receipt in outbox.receipts] == [0, 1]
    assert_close(state.weights, vector(1.0 + 0.5 * 1.0 + 0.5 * 4.0))


def test_without_any_normal_device_rounds_close_by_the_deadline_alone() -> None:
    algorithm = HFL(stragglers=KnownShare(1.0), round_seconds=2.0, local=CONSTANT)
    fleet = fleet_of(1, 1, seconds=[3.0, 5.0])
    simulation = Simulation(fleet, Towards(), lambda job: (3.0, 5.0)[job.device])
    closings: list[float] = []
    for moment in run(algorithm, simulation, *algorithm.init(vector(1.0), fleet)):
        if moment.state.version > len(closings):
            closings.append(moment.inbox.now)
        if moment.inbox.now >= 12:
            break
    # Answers at 3 and 5, then every device again 3 s or 5 s after the closing that sent it: 4 → 7, 6 → 11, 8 → 11;
    # at 11 everybody has answered and there is nothing left to wait for.
    assert closings == [4.0, 6.0, 8.0, 11.0]


def test_without_normal_devices_and_deadline_every_answer_closes_a_round() -> None:
    algorithm = HFL(stragglers=KnownShare(1.0), local=CONSTANT)
    state, outbox = algorithm.init(vector(0.0), FLEET)
    assert (len(outbox.jobs), outbox.wake_at) == (3, None)
    first, second, _ = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(2.0, answer(first, 1.0)))
    assert (state.version, [job.device for job in outbox.jobs]) == (1, [0])
    state, outbox = algorithm.step(state, arrivals(3.0, answer(second, 1.0)))
    assert (state.version, [job.device for job in outbox.jobs]) == (2, [1])


def test_if_all_normal_devices_die_the_stragglers_go_on() -> None:
    """Their jobs sent at 4 are lost at 7; the stragglers' arrive at 8, and from then on every 4 s."""
    algorithm, fleet = HFL(stragglers=HALF), fleet_of(1, 1, 1, 1, seconds=[1.0, 1.0, 4.0, 4.0])
    alive = replace(fleet, online=lambda devices, now: (devices > 1) | (now < 5.0))

    def timing(job: Job) -> float | Loss:
        return Loss(3.0, "died") if job.device < 2 and job.sent_at > 3 else 1.0 + 3 * (job.device > 1)

    closings = []
    for moment in run(algorithm, Simulation(alive, Towards(), timing), *algorithm.init(vector(1.0), alive)):
        if moment.outbox.jobs:
            closings.append((moment.inbox.now, len(moment.inbox.updates)))
        if moment.inbox.now > 20:
            break
    assert [at for at, _ in closings if at > 7] == [8.0, 12.0, 16.0, 20.0, 24.0]


def test_a_deadline_without_arrivals_makes_no_version() -> None:
    algorithm = HFL(stragglers=HALF, round_seconds=2.0)
    state, outbox = algorithm.init(vector(0.0), fleet_of(1, 1, seconds=[1.0, 9.0]))
    state, outbox = algorithm.step(state, Inbox(2.0))
    assert (state.version, outbox.jobs, outbox.wake_at) == (0, (), 4.0)


def test_a_lost_job_frees_its_device_at_the_next_closing_or_at_once_where_there_is_no_deadline() -> None:
    for deadline, at_once in ((None, [0, 2]), (4.0, [])):
        algorithm = HFL(stragglers=ONE_SLOW, round_seconds=deadline)
        state, outbox = algorithm.init(vector(0.0), FLEET)
        jobs = outbox.jobs
        state, outbox = algorithm.step(state, Inbox(0.5, lost=lost(jobs[0], jobs[2])))
        assert [(job.device, job.version) for job in outbox.jobs] == [(device, 0) for device in at_once]
        state, outbox = algorithm.step(state, arrivals(4.0, answer(jobs[1], 1.0)))
        assert (state.version, 1 in [job.device for job in outbox.jobs]) == ((1, True) if deadline else (0, False))


def test_who_is_free_gets_a_job_although_nobody_answers() -> None:
    """One fast device that loses every other job, two that take for ever: rounds are made of the fast one's answers."""

    def timing(job: Job) -> float | Loss:
        if job.device:
            return 1000.0
        return Loss(2.0, "lost on the way") if round(job.sent_at) % 2 else 1.0

    fleet = fleet_of(1, 1, 1)
    versions = 0
    for moment in run(HFL(), Simulation(fleet, Towards(), timing), *HFL().init(vector(1.0), fleet)):
        versions = moment.state.version
        if moment.inbox.now > 300:
            break
    assert versions > 60


def test_the_pace_is_that_of_the_living() -> None:
    """The fastest tenth dies; rounds take the pace of those who are left, and wait for them."""
    fleet = replace(fleet_of(*[1] * 20), online=lambda devices, now: (devices > 1) | (now < 10.0))

    def timing(job: Job) -> float | Loss:
        if job.device < 2:
            return Loss(2.0, "died") if job.sent_at > 8 else 1.0
        return 5.0

    for moment in run(HFL(), Simulation(fleet, Towards(), timing), *HFL().init(vector(1.0), fleet)):
        if moment.inbox.now > 100:
            break
    assert moment.state.round_ends_at - moment.state.round_started_at == pytest.approx(7.5)
    assert moment.state.has_kernel


def test_what_a_bounded_memory_forgets_is_said_once() -> None:
    algorithm, fleet = HFL(Memory(most=2), local=CONSTANT, participants=Uniform(2)), fleet_of(*[1] * 12)
    told, seen = 0, set()
    for moment in run(algorithm, Simulation(fleet, Towards(), lambda job: 1.0), *algorithm.init(vector(1.0), fleet)):
        told += moment.outbox.forgotten
        seen |= {update.job.device for update in moment.inbox.updates}
        assert told == algorithm.merge.forgotten(moment.state.memory)
        if moment.inbox.now > 20:
            break
    assert told >= len(seen) - 2 > 5


def test_if_all_is_lost_everyone_starts_again() -> None:
    algorithm = HFL(stragglers=ONE_SLOW)
    state, outbox = algorithm.init(vector(0.0), FLEET)
    state, outbox = algorithm.step(state, Inbox(3.0, lost=lost(*outbox.jobs)))
    assert (state.version, [job.sent_at for job in outbox.jobs]) == (0, [3.0, 3.0, 3.0])


class Changing:
    """Device 1 takes `before` seconds for jobs sent until `at`, `after` for later ones; all others take 1 s."""

    def __init__(self, before: float, after: float, at: float) -> None:
        self._before, self._after, self._at = before, after, at

    def __call__(self, job: Job) -> float:
        return 1.0 if job.device != 1 else self._before if job.sent_at < self._at else self._after


def closings_with(timing: Timing, until: float) -> list[tuple[float, bool]]:
    """(when a round closed, whether device 1 was normal for the next) under the learned judgement."""
    algorithm = HFL(stragglers=Learned(smoothing=0.3, fastest=0.5, slack=1.5), local=CONSTANT)
    fleet = fleet_of(1, 1, 1, 1)
    closings: list[tuple[float, bool]] = []
    for moment in run(algorithm, Simulation(fleet, Towards(), timing), *algorithm.init(vector(1.0), fleet)):
        if moment.state.version > len(closings):
            closings.append((moment.inbox.now, 1 in moment.state.awaited))
        if moment.inbox.now >= until:
            return closings
    raise AssertionError


def test_the_first_round_finds_the_pace_and_stragglers_do_not_hold_the_next() -> None:
    """The fastest half answers at 1 s, so the round ends at 1.5 s; from then on device 1 is not waited for."""
    closings = closings_with(Changing(before=7.0, after=7.0, at=0.0), until=6.0)
    assert closings[:4] == [(1.5, False), (2.5, False), (3.5, False), (4.5, False)]


def test_a_normal_device_that_slows_down_holds_up_one_round_for_its_slack_only() -> None:
    closings = closings_with(Changing(before=1.0, after=9.0, at=5.0), until=40.0)
    times = [at for at, _ in closings]
    assert times[:6] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.5]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) == 1.5
    assert (
        sum(gap > 1.0 for gap in gaps) == 1
    )  # from then on until its answer it is not waited for, and then it is slow
    assert not closings[-1][1]


def test_a_normal_device_that_slows_down_a_little_holds_up_a_few_rounds() -> None:
    """2 s instead of 1: m = 1, 1.3, 1.51 > 1.5; each of the two answers costs one round its slack."""
    closings = closings_with(Changing(before=1.0, after=2.0, at=5.0), until=40.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(at for at, _ in closings)]
    assert sum(gap > 1.0 for gap in gaps) <= 3
    assert not closings[-1][1]


def test_a_normal_device_that_dies_holds_up_one_round() -> None:
    closings = closings_with(Changing(before=1.0, after=math.inf, at=5.0), until=40.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(at for at, _ in closings)]
    assert sorted(set(gaps)) == [1.0, 1.5]
    assert gaps.count(1.5) == 1


def test_a_lost_job_of_a_normal_device_holds_up_one_round_and_the_device_is_normal_again() -> None:
    def timing(job: Job) -> float | Loss:
        return Loss(6.0, "lost on the way") if job.device == 1 and job.sent_at == 5.0 else 1.0

    closings = closings_with(timing, until=30.0)
    assert [at for at, _ in closings][:9] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 7.5, 8.5, 9.5]
    assert [normal for _, normal in closings[5:10]] == [False] * 5
    assert closings[-1][1]


def test_a_model_version_is_freed_with_its_lost_job() -> None:
    algorithm, fleet = HFL(stragglers=KnownShare(0.5)), fleet_of(1, 1, seconds=[1.0, 4.0])
    simulation = Simulation(fleet, Towards(), lambda job: Loss(4.5, "died") if job.device == 1 else 1.0)
    old: list[weakref.ref[torch.Tensor]] = []
    for moment in run(algorithm, simulation, *algorithm.init(torch.zeros(3), fleet)):
        old.extend(weakref.ref(job.weights) for job in moment.outbox.jobs if job.device == 1)
        if moment.inbox.now > 20:
            break
    assert len(old) == 4
    assert [weights() is None for weights in old] == [True, True, True, False]


class Here:
    """Devices are there from an instant on."""

    def __init__(self, *since: float) -> None:
        self._since = np.array(since)

    def __call__(self, devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = self._since[devices] <= now
        return there

    def next(self, now: float) -> float:
        return min((float(at) for at in self._since if at > now), default=math.inf)


def test_who_joins_late_gets_the_newest_version_at_the_next_closing() -> None:
    here = Here(0.0, 0.0, 3.5)
    algorithm, fleet = HFL(), replace(fleet_of(1, 1, 1), online=here)
    simulation = Simulation(fleet, Towards(), lambda job: 1.0)
    jobs: list[tuple[float, int]] = []
    for moment in run(algorithm, simulation, *algorithm.init(vector(1.0), fleet)):
        jobs.extend((job.sent_at, job.version) for job in moment.outbox.jobs if job.device == 2)
        if moment.inbox.now >= 6:
            break
    assert jobs == [(4.0, 4), (5.0, 5), (6.0, 6)]


def test_with_nobody_there_it_waits_until_somebody_comes() -> None:
    here = Here(7.0, 9.0)
    algorithm, fleet = HFL(), replace(fleet_of(1, 1), online=here)
    simulation = Simulation(fleet, Towards(), lambda job: 1.0, lambda now, barred: here.next(now))
    state, outbox = algorithm.init(vector(1.0), fleet)
    assert (outbox.jobs, outbox.wake_at) == ((), None)
    moments = run(algorithm, simulation, state, outbox)
    assert [job.device for job in next(moments).outbox.jobs] == [0]
    assert next(moments).inbox.now == 8.0


def test_with_participants_drawn_each_round_asks_so_many_idle_devices() -> None:
    algorithm, fleet = HFL(participants=Uniform(3)), fleet_of(*[1] * 20)
    simulation = Simulation(fleet, Towards(), lambda job: 1.0 if job.device < 10 else 4.0)
    asked: list[list[int]] = []
    for moment in run(algorithm, simulation, *algorithm.init(vector(1.0), fleet)):
        if moment.outbox.jobs:
            asked.append([job.device for job in moment.outbox.jobs])
        if len(asked) == 30:
            break
    assert {len(devices) for devices in asked} == {3}
    assert {device for devices in asked for device in devices} == set(range(20))
    assert moment.state.durations.devices.tolist() == list(range(20))


def test_participants_that_close_rounds_themselves_are_refused() -> None:
    with pytest.raises(InputError, match="HFL itself decides when a round closes"):
        HFL(participants=FirstOf(2, 3))


def test_a_straggler_that_speeds_up_joins_the_normal_devices() -> None:
    closings = closings_with(Changing(before=6.0, after=1.0, at=10.0), until=40.0)
    assert not closings[1][1]
    assert closings[-1][1]


def test_old_models_live_exactly_as_long_as_a_job_that_was_sent_them() -> None:
    algorithm = HFL(stragglers=KnownShare(0.5))
    fleet = fleet_of(1, 1, 1, 1, seconds=[1.0, 1.0, 4.0, 7.0])
    simulation = Simulation(fleet, Towards(), lambda job: (1.0, 1.0, 4.0, 7.0)[job.device])
    versions: dict[int, weakref.ref[torch.Tensor]] = {}
    most = 0
    for moment in run(algorithm, simulation, *algorithm.init(torch.zeros(3), fleet)):
        versions |= {job.version: weakref.ref(job.weights) for job in moment.outbox.jobs}
        alive = {version for version, weights in versions.items() if weights() is not None}
        needed = {job.version for job in (*simulation.in_flight, *moment.outbox.jobs)}
        needed |= {update.job.version for update in (*moment.inbox.updates, *moment.state.waiting)}
        assert alive <= needed | {moment.state.version}
        most = max(most, len(alive))
        if moment.inbox.now >= 60:
            break
    assert moment.state.version == 60
    assert 3 <= most <= 5


def test_bad_round_seconds() -> None:
    with pytest.raises(InputError, match="round_seconds=0"):
        HFL(round_seconds=0)
