import pytest
from torch.testing import assert_close

from fakes import Towards, answer, arrivals, fleet_of, lost, vector
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.staleness import Constant
from hybridfl.errors import InputError
from hybridfl.protocol import Inbox
from hybridfl.run import run
from hybridfl.simulation import Simulation


def test_the_buffer_by_hand() -> None:
    """K = 2, η_g = 0.5: 1 + 0.5·½·(0.4 + 0.8) = 1.3, whatever the devices' numbers of samples."""
    algorithm = FedBuff(buffer=2, server_rate=0.5)
    state, outbox = algorithm.init(vector(1.0), fleet_of(1, 9, 1))
    jobs = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(jobs[0], 0.4)))
    assert (state.version, len(state.buffer)) == (0, 1)
    state, outbox = algorithm.step(state, arrivals(2.0, answer(jobs[1], 0.8)))
    assert (state.version, len(state.buffer)) == (1, 0)
    assert_close(state.weights, vector(1.3))


def test_a_difference_is_against_the_version_the_device_started_from() -> None:
    """Device 2 started from 1.0, the model is at 1.6 by then: Δ = 0.2 counts 1/√2, not its distance to 1.6."""
    algorithm = FedBuff(buffer=2)
    state, outbox = algorithm.init(vector(1.0), fleet_of(1, 1, 1))
    jobs = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(jobs[0], 0.4), answer(jobs[1], 0.8)))
    assert_close(state.weights, vector(1.6))
    again = outbox.jobs[0]
    state, outbox = algorithm.step(state, arrivals(2.0, answer(again, 0.1), answer(jobs[2], 0.2)))
    assert [receipt.staleness for receipt in outbox.receipts] == [0, 1]
    assert_close(state.weights, vector(1.6 + 0.5 * (0.1 + 0.2 / 2**0.5)))


def test_closed_form_of_one_device_and_a_buffer_of_one() -> None:
    """Towards 0 by half each time: w_t = 2^−t·w_0."""
    algorithm = FedBuff(buffer=1, staleness=Constant())
    fleet = fleet_of(1)
    moments = run(
        algorithm, Simulation(fleet, Towards(0.5), lambda job: (1.0,)[job.device]), *algorithm.init(vector(8.0), fleet)
    )
    weights = [float(m.state.weights) for m, _ in zip(moments, range(5), strict=False)]
    assert weights == pytest.approx([4.0, 2.0, 1.0, 0.5, 0.25])


def test_one_instant_can_fill_the_buffer_twice() -> None:
    algorithm = FedBuff(buffer=2)
    state, outbox = algorithm.init(vector(0.0), fleet_of(1, 1, 1, 1, 1))
    state, outbox = algorithm.step(state, arrivals(1.0, *(answer(job, 1.0) for job in outbox.jobs)))
    assert (state.version, len(state.buffer)) == (2, 1)
    assert [receipt.staleness for receipt in outbox.receipts] == [0, 0, 1, 1, 2]
    assert {job.version for job in outbox.jobs} == {2}


def test_a_version_sent_again_to_a_device_is_told_apart() -> None:
    algorithm = FedBuff(buffer=3)
    state, outbox = algorithm.init(vector(0.0), fleet_of(1, 1, 1))
    state, outbox = algorithm.step(state, arrivals(1.0, answer(outbox.jobs[0], 1.0)))
    assert [(job.version, job.repeat) for job in outbox.jobs] == [(0, 1)]
    state, outbox = algorithm.step(state, arrivals(2.0, answer(outbox.jobs[0], 1.0)))
    assert [(job.version, job.repeat) for job in outbox.jobs] == [(0, 2)]
    state, outbox = algorithm.step(state, arrivals(3.0, answer(outbox.jobs[0], 1.0)))
    assert [(job.version, job.repeat) for job in outbox.jobs] == [(1, 0)]


def test_a_lost_job_is_sent_anew() -> None:
    algorithm = FedBuff()
    state, outbox = algorithm.init(vector(1.0), fleet_of(1, 1))
    state, outbox = algorithm.step(state, Inbox(4.0, lost=lost(outbox.jobs[1])))
    assert [(job.device, job.sent_at) for job in outbox.jobs] == [(1, 4.0)]


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="buffer=0"):
        FedBuff(buffer=0)
    with pytest.raises(InputError, match="server_rate=0"):
        FedBuff(server_rate=0)
