import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from fakes import answer, arrivals, fleet_of, lost, vector
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.guard import TOO_EARLY, Guard, Guarded, GuardedState
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.sampling import Everyone, Uniform
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm, Fleet, Inbox, Job, Outbox, Update, Work
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays

LOCAL = FullWork(epochs=2, batch_size=4, learning_rate=ConstantRate(0.1))
FLEET = fleet_of(*[10] * 8)  # two epochs of ⌈10/4⌉ = 3 steps make 6
MOST_STEPS = 6


def begun(guard: Guard = Guard(), fleet: Fleet = FLEET) -> tuple[Guarded, GuardedState, Outbox]:
    algorithm = Guarded(FedAvg(Everyone(), LOCAL), guard)
    return algorithm, *algorithm.init(vector(0.0, 0.0), fleet)


def honest(job: Job, *delta: float) -> Update:
    return answer(job, *delta, num_steps=MOST_STEPS)


BAD: dict[str, tuple[Callable[[Update], Update], str]] = {
    "shape": (lambda u: replace(u, weights=torch.zeros(3)), r"shape \[3\] instead of \[2\]"),
    "dtype": (lambda u: replace(u, weights=u.weights.double()), "torch.float64 instead of torch.float32"),
    "NaN": (lambda u: replace(u, weights=vector(math.nan, 0.0)), "not finite"),
    "infinite": (lambda u: replace(u, weights=vector(0.0, -math.inf)), "not finite"),
    "too long": (lambda u: replace(u, weights=u.job.weights + 1000 * u.delta), "too long"),
    "too long to be squared": (lambda u: replace(u, weights=vector(3e38, -3e38)), "not finite"),
    "no steps": (lambda u: replace(u, num_steps=0), "0 steps where its samples make 6"),
    "steps of samples it does not have": (lambda u: replace(u, num_steps=7), "7 steps where its samples make 6"),
    "a version never sent": (lambda u: replace(u, job=replace(u.job, version=5)), "a version never sent"),
    "another time": (lambda u: replace(u, job=replace(u.job, sent_at=-1.0)), "no such job"),
    "a device that is not there": (lambda u: replace(u, job=replace(u.job, device=99)), "no such job"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_update_is_refused_with_a_reason_and_never_touches_the_weights(kind: str) -> None:
    spoil, reason = BAD[kind]
    algorithm, state, outbox = begun()
    good = [honest(job, 1.0, 0.5 + 0.1 * job.device) for job in outbox.jobs[:-1]]
    spoiled = spoil(honest(outbox.jobs[-1], 1.0, 1.0))
    state, outbox = algorithm.step(state, Inbox(1.0, (*good, spoiled)))
    assert [receipt.refused for receipt in outbox.receipts[:-1]] == [None] * 7
    assert outbox.receipts[-1].refused is not None
    assert not outbox.receipts[-1].is_merged
    assert re.search(reason, outbox.receipts[-1].refused)
    if "no such" not in reason and "never sent" not in reason:  # those say nothing of the job the device has
        assert state.version == 1
        assert_close(state.weights, vector(1.0, 0.8))


def test_what_is_good_goes_through_with_the_bits_it_has_without_a_guard() -> None:
    plain = FedAvg(Everyone(), LOCAL)
    bare, first = plain.init(vector(0.0, 0.0), FLEET)
    algorithm, state, outbox = begun()
    for round_number in range(5):
        steps = [(0.1 * job.device, 0.3 + round_number) for job in outbox.jobs]
        state, outbox = algorithm.step(
            state, arrivals(1.0 + round_number, *(honest(j, *s) for j, s in zip(outbox.jobs, steps, strict=True)))
        )
        bare, first = plain.step(
            bare, arrivals(1.0 + round_number, *(honest(j, *s) for j, s in zip(first.jobs, steps, strict=True)))
        )
        assert torch.equal(state.weights, bare.weights)
        assert state.version == bare.version == round_number + 1


def test_a_second_answer_in_the_same_instant_and_a_later_one_are_refused() -> None:
    algorithm, state, outbox = begun(Guard(norm=None))
    job = outbox.jobs[0]
    state, first = algorithm.step(state, Inbox(1.0, (honest(job, 1.0, 0.0), honest(job, 9.0, 0.0))))
    assert [receipt.refused for receipt in first.receipts] == [None, "a second answer"]
    state, later = algorithm.step(state, Inbox(2.0, (honest(job, 9.0, 0.0),)))
    assert later.receipts[0].refused == "its job was answered already"


def test_an_answer_to_a_job_that_was_given_up_is_refused() -> None:
    algorithm, state, outbox = begun()
    job = outbox.jobs[0]
    state, _ = algorithm.step(state, Inbox(1.0, lost=lost(job)))
    state, later = algorithm.step(state, Inbox(2.0, (honest(job, 9.0, 0.0),)))
    assert later.receipts[0].refused == "its job was given up"


def test_a_base_the_device_made_up_is_not_used() -> None:
    """Δ is taken from the weights that were sent, not from those the answer comes with."""
    algorithm = Guarded(FedAsync(alpha=1.0, local=LOCAL))
    state, outbox = algorithm.init(vector(1.0), fleet_of(10))
    forged = replace(honest(outbox.jobs[0], 1.0), job=replace(outbox.jobs[0], weights=vector(50.0)))
    state, outbox = algorithm.step(state, Inbox(1.0, (forged,)))
    assert_close(state.weights, vector(2.0))


def test_the_norm_is_compared_by_step_and_rate_with_the_running_median() -> None:
    """Six devices have mean gradients 1, 1, 1, 1, 1 and x; the bound of 10 × the median lets x = 9 pass and refuses 11."""
    for size, is_refused in ((9.0, False), (11.0, True)):
        algorithm, state, outbox = begun(fleet=fleet_of(*[10] * 6))
        unit = 0.1 * MOST_STEPS  # η·k
        updates = [honest(job, unit, 0.0) for job in outbox.jobs[:5]] + [honest(outbox.jobs[5], size * unit, 0.0)]
        state, outbox = algorithm.step(state, arrivals(1.0, *updates))
        assert (outbox.receipts[5].refused == "too long") is is_refused


def answers(algorithm: Guarded, devices: int, *sent: tuple[int, float]) -> tuple[GuardedState, list[str | None]]:
    """(device, mean gradient) one after the other; why each was refused."""
    state, outbox = algorithm.init(vector(0.0), fleet_of(*[10] * devices))
    jobs = {job.device: job for job in outbox.jobs}
    reasons = []
    for now, (device, size) in enumerate(sent, start=1):
        update = honest(jobs.pop(device), size * 0.1 * MOST_STEPS)
        state, outbox = algorithm.step(state, Inbox(float(now), (update,)))
        jobs |= {job.device: job for job in outbox.jobs}
        reasons.append(outbox.receipts[0].refused)
    return state, reasons


def test_the_median_runs_over_what_each_device_sent_last() -> None:
    algorithm = Guarded(FedAsync(alpha=0.1, local=LOCAL), Guard(norm=3.0, history=5, quarantine=None))
    first = [(device, 1.0) for device in range(5)]
    # 5 · 2: of 1, 1, 1, 1, 1 and the newcomer's own 2.9 the median is 1; then (1, 1, 1, 1, 2.9), of the last five devices.
    state, reasons = answers(algorithm, 7, *first, (5, 2.9), (6, 3.1), (1, 2.9), (2, 2.9), (3, 2.9), (6, 8.7), (4, 8.8))
    assert reasons[5:] == [None, "too long", None, None, None, None, "too long"]
    assert {device: mean for device, (_, mean) in state.lengths.items()} == pytest.approx(
        {5: 2.9, 1: 2.9, 2: 2.9, 3: 2.9, 6: 8.7}
    )


def test_a_step_is_too_long_only_if_it_is_so_altogether_and_by_local_step() -> None:
    """Five devices take 6 steps of mean gradient 1 each; the sixth has ‖Δ‖/η = x and k steps: the bounds are 60 and 10."""
    for x, steps, is_refused in (
        (66.0, 6, True),
        (66.0, 3, True),
        (59.0, 1, False),
        (59.0, 6, False),
        (66.0, 7, False),
    ):
        algorithm = Guarded(FedAvg(Everyone(), LOCAL))
        state, outbox = algorithm.init(vector(0.0), fleet_of(*[10] * 5, 20))
        updates = [honest(job, 6 * 0.1) for job in outbox.jobs[:5]] + [answer(outbox.jobs[5], x * 0.1, num_steps=steps)]
        state, outbox = algorithm.step(state, arrivals(1.0, *updates))
        assert (outbox.receipts[5].refused == "too long") is is_refused


def test_a_fast_device_that_answers_often_counts_once() -> None:
    """What it sends shrinks as it fits its own data; a slow device still sends what all sent at first."""
    algorithm = Guarded(FedAsync(alpha=0.1, local=LOCAL))
    everybody = [(device, 1.0) for device in range(6)]
    _, reasons = answers(algorithm, 6, *everybody, *[(0, 0.01)] * 500, (5, 1.0))
    assert reasons[5:] == [None] * 502


def test_before_anybody_knows_what_is_usual_nothing_goes_through_and_nobody_is_blamed() -> None:
    algorithm = Guarded(FedAsync(alpha=0.1, local=LOCAL), Guard(quarantine=1))
    sent = [(0, 1e6), (1, 1.0), (0, 1e6), (2, 1.1), (0, 1e6), (1, 1.0)]
    state, reasons = answers(algorithm, 8, *sent)
    assert reasons == [TOO_EARLY] * 3 + [None, "too long", None]
    assert state.fleet.barred == {0}
    assert state.weights.abs().max() < 1


def test_a_fleet_of_which_hardly_anybody_answers_is_not_held_up_for_good() -> None:
    algorithm = Guarded(FedAsync(alpha=0.1, local=LOCAL))
    _, reasons = answers(algorithm, 8, *[(0, 1.0), (1, 1.0)] * 15, (0, 11.0))
    assert reasons == [TOO_EARLY] * 20 + [None] * 10 + ["too long"]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_in_a_fleet_of_few_all_must_have_answered(devices: int) -> None:
    algorithm = Guarded(FedAsync(alpha=0.1, local=LOCAL), Guard(quarantine=None))
    sent = [(device, 1.0) for device in range(devices)]
    _, reasons = answers(algorithm, devices, *sent, *sent, (0, 11.0), (0, 9.0))
    assert reasons == [TOO_EARLY] * (devices - 1) + [None] * (devices + 1) + ["too long", None]


@pytest.mark.parametrize("algorithm", [HFL(), FedBuff(), FedAsync()])
def test_in_a_small_fleet_honest_devices_are_left_in_peace(algorithm: Algorithm[Any]) -> None:
    task = Synthetic(1, 1).build(10, 0)
    last = simulate(task, algorithm, PaperDelays(), seconds=100, guard=Guard()).records[-1]
    alone = simulate(task, algorithm, PaperDelays(), seconds=100).records[-1]
    assert last.barred == 0
    assert last.refused <= 8
    assert last.test_accuracy == pytest.approx(alone.test_accuracy, abs=0.05)


def test_a_job_that_is_answered_and_lost_at_one_instant_is_answered() -> None:
    for place in (2, 5):
        algorithm = Guarded(HFL(local=LOCAL))
        state, outbox = algorithm.init(vector(0.0, 0.0), FLEET)
        updates = [honest(job, 1.0, 0.0) for job in outbox.jobs]
        state, outbox = algorithm.step(state, Inbox(1.0, tuple(updates), lost(outbox.jobs[place])))
        assert all(receipt.is_merged for receipt in outbox.receipts)
        assert state.version == 1
        assert list(state.inner.durations.devices) == list(range(8))


@pytest.mark.parametrize(
    "kind",
    [
        {"weights": None},
        {"weights": [1.0, 2.0]},
        {"weights": torch.zeros(2).to_sparse()},
        {"num_steps": None},
        {"num_steps": 1.5},
    ],
)
def test_what_is_no_vector_or_no_number_is_refused(kind: dict[str, Any]) -> None:
    algorithm, state, outbox = begun()
    good = [honest(job, 1.0, 0.0) for job in outbox.jobs[:-1]]
    state, outbox = algorithm.step(state, Inbox(1.0, (*good, replace(honest(outbox.jobs[-1], 1.0, 0.0), **kind))))
    assert outbox.receipts[-1].refused is not None
    assert state.version == 1


def test_weights_that_still_want_gradients_are_taken_as_they_are() -> None:
    algorithm, state, outbox = begun()
    updates = [replace(honest(job, 1.0, 0.0), weights=vector(1.0, 0.0).requires_grad_()) for job in outbox.jobs]
    state, outbox = algorithm.step(state, Inbox(1.0, tuple(updates)))
    assert not state.weights.requires_grad
    assert_close(state.weights, vector(1.0, 0.0))


def test_who_holds_nothing_does_not_count_in_the_median_of_samples() -> None:
    _, _, outbox = begun(fleet=fleet_of(0, 0, 0, 5, 5))
    assert [job.device for job in outbox.jobs] == [3, 4]


def test_a_run_has_one_guard() -> None:
    with pytest.raises(InputError, match="has its guard already"):
        Run(Synthetic().build(4, 0), Guarded(HFL()), PaperDelays(), seconds=1.0, guard=Guard())


def test_switched_off_a_long_update_passes() -> None:
    algorithm, state, outbox = begun(Guard(norm=None))
    updates = [honest(job, 1.0 if job.device else 1e6, 0.0) for job in outbox.jobs]
    _, outbox = algorithm.step(state, arrivals(1.0, *updates))
    assert all(receipt.is_merged for receipt in outbox.receipts)


def nan(job: Job) -> Update:
    return replace(honest(job, 0.0, 0.0), weights=vector(math.nan, math.nan))


def test_a_device_refused_again_and_again_is_put_in_quarantine() -> None:
    algorithm, state, outbox = begun(Guard(quarantine=3))
    for now in range(1, 4):
        assert 3 in [job.device for job in outbox.jobs]
        updates = [nan(job) if job.device == 3 else honest(job, 1.0, 0.0) for job in outbox.jobs]
        state, outbox = algorithm.step(state, arrivals(float(now), *updates))
    assert state.fleet.barred == {3}
    assert [job.device for job in outbox.jobs] == [0, 1, 2, 4, 5, 6, 7]


def test_a_good_answer_in_between_wipes_the_slate_clean() -> None:
    algorithm, state, outbox = begun(Guard(quarantine=2))
    for now in range(1, 9):
        updates = [nan(job) if job.device == 3 and now % 2 else honest(job, 1.0, 0.0) for job in outbox.jobs]
        state, outbox = algorithm.step(state, arrivals(float(now), *updates))
    assert state.fleet.barred == frozenset()


def test_quarantine_off_means_off() -> None:
    algorithm, state, outbox = begun(Guard(quarantine=None))
    for now in range(1, 20):
        updates = [nan(job) if job.device == 3 else honest(job, 1.0, 0.0) for job in outbox.jobs]
        state, outbox = algorithm.step(state, arrivals(float(now), *updates))
        assert 3 in [job.device for job in outbox.jobs]


@pytest.mark.parametrize("count", [0, -5, 10**12])
def test_a_device_with_an_absurd_number_of_samples_gets_no_job(count: int) -> None:
    _, _, outbox = begun(fleet=fleet_of(10, 10, count, 10))
    assert [job.device for job in outbox.jobs] == [0, 1, 3]
    _, _, outbox = begun(Guard(samples=None), fleet_of(10, 10, 10**12, 10))
    assert len(outbox.jobs) == 4


def test_a_refused_answer_frees_its_device_at_once() -> None:
    algorithm = Guarded(FedAsync(local=LOCAL), Guard(quarantine=None))
    state, outbox = algorithm.init(vector(0.0, 0.0), FLEET)
    state, outbox = algorithm.step(state, Inbox(1.0, (nan(outbox.jobs[2]),)))
    assert [(job.device, job.version, job.sent_at) for job in outbox.jobs] == [(2, 0, 1.0)]
    assert state.version == 0


def test_a_guard_of_a_sampled_algorithm_draws_past_the_barred() -> None:
    algorithm = Guarded(FedAvg(Uniform(4), LOCAL), Guard(quarantine=1))
    state, outbox = algorithm.init(vector(0.0, 0.0), FLEET)
    for now in range(1, 60):
        updates = [nan(job) if job.device < 4 else honest(job, 1.0, 0.0) for job in outbox.jobs]
        state, outbox = algorithm.step(state, arrivals(float(now), *updates))
        assert len(outbox.jobs) == 4
    assert state.fleet.barred == {0, 1, 2, 3}


@pytest.mark.parametrize("bad", [{"norm": 0.0}, {"history": 2}, {"quarantine": 0}, {"samples": -1.0}])
def test_bad_numbers_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        Guard(**bad)


def forged(update: Update, **job: Any) -> Update:
    return replace(update, job=replace(update.job, **job))


@pytest.mark.parametrize(
    "what",
    [
        {"weights": vector(1e8, 1e8)},
        {"weights": torch.zeros(7)},
        {"work": Work(2, 4, 1e6)},
        {"work": Work(10**6, 1, 0.1)},
    ],
    ids=["base", "shape of the base", "rate", "epochs"],
)
def test_what_an_answer_says_of_its_own_job_is_not_believed(what: dict[str, Any]) -> None:
    algorithm, state, outbox = begun()
    good = [honest(job, 1.0, 0.0) for job in outbox.jobs[:-1]]
    bad = replace(honest(outbox.jobs[-1], 1e6, 1e6), num_steps=MOST_STEPS)
    state, outbox = algorithm.step(state, Inbox(1.0, (*good, forged(bad, **what))))
    assert outbox.receipts[-1].refused == "too long"
    assert_close(state.weights, vector(1.0, 0.0))


def test_a_loss_that_is_told_twice_frees_its_device_once() -> None:
    algorithm = Guarded(FedAsync(local=LOCAL))
    state, outbox = algorithm.init(vector(0.0, 0.0), FLEET)
    old = outbox.jobs[2]
    state, outbox = algorithm.step(state, Inbox(1.0, lost=lost(old)))
    assert [job.device for job in outbox.jobs] == [2]
    state, outbox = algorithm.step(state, Inbox(2.0, lost=lost(old)))
    assert outbox.jobs == ()


def test_what_was_refused_does_not_move_the_median() -> None:
    algorithm = Guarded(FedAsync(alpha=0.1, local=LOCAL), Guard(norm=3.0, quarantine=None))
    state, reasons = answers(algorithm, 1, *[(0, 1.0)] * 6, *[(0, 50.0)] * 20)
    assert reasons == [None] * 6 + ["too long"] * 20
    assert state.lengths[0] == pytest.approx((6.0, 1.0))
