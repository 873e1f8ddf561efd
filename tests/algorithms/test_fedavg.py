import math

import pytest
import torch
from torch.testing import assert_close

from fakes import Towards, answer, arrivals, fleet_of, lost, vector
from hybridfl.algorithms.fedavg import FedAvg, FedAvgState
from hybridfl.algorithms.sampling import Deadline, Everyone, FirstOf, Uniform
from hybridfl.protocol import Inbox, Job, Outbox
from hybridfl.run import run
from hybridfl.simulation import Simulation


def start(algorithm: FedAvg, *num_samples: int) -> tuple[FedAvgState, dict[int, Job], Outbox]:
    state, outbox = algorithm.init(vector(1.0), fleet_of(*num_samples))
    return state, {job.device: job for job in outbox.jobs}, outbox


def test_the_average_by_hand() -> None:
    """1 + ¼·0.4 + ¾·(−0.8)."""
    state, jobs, _ = start(FedAvg(Everyone()), 1, 3)
    state, outbox = FedAvg(Everyone()).step(state, arrivals(1.0, answer(jobs[0], 0.4), answer(jobs[1], -0.8)))
    assert state.version == 1
    assert_close(state.weights, vector(0.5))
    assert [job.version for job in outbox.jobs] == [1, 1]
    assert all(job.weights is state.weights for job in outbox.jobs)


def test_a_round_waits_for_the_slowest() -> None:
    algorithm = FedAvg(Everyone())
    state, jobs, outbox = start(algorithm, 1, 1)
    assert outbox.wake_at is None
    state, outbox = algorithm.step(state, arrivals(1.0, answer(jobs[1], 1.0)))
    assert (state.version, outbox.jobs) == (0, ())
    state, outbox = algorithm.step(state, arrivals(9.0, answer(jobs[0], 3.0)))
    assert state.version == 1
    assert_close(state.weights, vector(3.0))
    assert len(outbox.jobs) == 2


def test_only_the_chosen_work() -> None:
    state, jobs, _ = start(FedAvg(Uniform(2)), 1, 1, 1, 1, 1)
    assert len(jobs) == 2
    assert state.awaited == set(jobs)


def test_first_of_closes_early_and_discards_the_late() -> None:
    algorithm = FedAvg(FirstOf(count=2, selected=3))
    state, jobs, _ = start(algorithm, 1, 1, 1)
    state, outbox = algorithm.step(state, arrivals(1.0, answer(jobs[0], 2.0)))
    assert state.version == 0
    state, outbox = algorithm.step(state, arrivals(2.0, answer(jobs[1], 4.0)))
    assert state.version == 1
    assert_close(state.weights, vector(4.0))
    assert [job.device for job in outbox.jobs] == [0, 1]  # device 2 is still busy
    state, outbox = algorithm.step(state, arrivals(3.0, answer(jobs[2], 100.0)))
    assert outbox.receipts[0].discarded == "late"
    assert outbox.receipts[0].staleness == 1
    assert_close(state.weights, vector(4.0))


def test_first_of_takes_no_more_than_it_needs_from_one_instant() -> None:
    algorithm = FedAvg(FirstOf(count=2, selected=3))
    state, jobs, _ = start(algorithm, 1, 1, 1)
    inbox = arrivals(1.0, *(answer(jobs[device], 1.0 + device) for device in range(3)))
    state, outbox = algorithm.step(state, inbox)
    assert [receipt.discarded for receipt in outbox.receipts] == [None, None, "round full"]
    assert_close(state.weights, vector(2.5))


def test_a_deadline_closes_the_round_and_discards_the_late() -> None:
    algorithm = FedAvg(Deadline(count=2, seconds=5.0))
    state, jobs, outbox = start(algorithm, 1, 1)
    assert outbox.wake_at == 5.0
    state, outbox = algorithm.step(state, arrivals(1.0, answer(jobs[0], 1.0)))
    assert (state.version, outbox.wake_at) == (0, 5.0)
    state, outbox = algorithm.step(state, Inbox(5.0))
    assert state.version == 1
    assert_close(state.weights, vector(2.0))
    assert [job.device for job in outbox.jobs] == [0]
    assert outbox.wake_at == 10.0
    state, outbox = algorithm.step(state, arrivals(6.0, answer(jobs[1], 50.0)))
    assert outbox.receipts[0].discarded == "late"


def test_a_deadline_that_nobody_meets_makes_no_version() -> None:
    algorithm = FedAvg(Deadline(count=2, seconds=5.0))
    state, jobs, _ = start(algorithm, 1, 1)
    state, outbox = algorithm.step(state, Inbox(5.0))
    assert state.version == 0
    assert (outbox.jobs, outbox.wake_at) == ((), None)  # everyone is busy: nothing to do but wait
    state, outbox = algorithm.step(state, arrivals(7.0, answer(jobs[1], 50.0)))
    assert outbox.receipts[0].discarded == "late"
    assert [job.device for job in outbox.jobs] == [1]


def test_a_lost_job_does_not_hold_the_round() -> None:
    algorithm = FedAvg(Everyone())
    state, jobs, _ = start(algorithm, 1, 1)
    state, _ = algorithm.step(state, arrivals(1.0, answer(jobs[0], 1.0)))
    state, outbox = algorithm.step(state, Inbox(2.0, lost=lost(jobs[1])))
    assert state.version == 1
    assert_close(state.weights, vector(2.0))
    assert [job.device for job in outbox.jobs] == [0, 1]


def test_a_round_in_which_all_is_lost_is_played_again() -> None:
    algorithm = FedAvg(Everyone())
    state, jobs, _ = start(algorithm, 1, 1)
    state, outbox = algorithm.step(state, Inbox(2.0, lost=lost(*jobs.values())))
    assert (state.version, len(outbox.jobs)) == (0, 2)


@pytest.mark.parametrize("participants", [FirstOf(2, 4), Deadline(3, 1.5)])
def test_over_a_long_run_no_device_is_sent_a_second_job(participants: FirstOf | Deadline) -> None:
    """The simulation refuses a second job to a busy device; versions grow and rounds go on."""
    algorithm = FedAvg(participants)
    fleet = fleet_of(*[1] * 8)
    simulation = Simulation(fleet, Towards(), lambda job: (1.0, 1.0, 1.0, 2.0, 3.0, 7.0, 9.0, 20.0)[job.device])
    discarded = 0
    for turn, moment in enumerate(run(algorithm, simulation, *algorithm.init(torch.zeros(2), fleet))):
        discarded += sum(receipt.discarded is not None for receipt in moment.outbox.receipts)
        if turn == 300:
            break
    assert moment.state.version > 30
    assert discarded > 5
    assert math.isfinite(float(moment.state.weights.sum()))
