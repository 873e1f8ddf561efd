import pytest
from torch.testing import assert_close

from fakes import Towards, answer, arrivals, fleet_of, lost, vector
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.staleness import Constant, Polynomial
from hybridfl.errors import InputError
from hybridfl.protocol import Inbox
from hybridfl.run import run
from hybridfl.simulation import Simulation


def test_two_arrivals_of_one_instant_by_hand() -> None:
    """α = 0.5, s = (τ+1)^−1. Device 0: τ = 0, w = ½·1 + ½·3 = 2. Device 1: τ = 1, α_t = ¼, w = ¾·2 + ¼·6 = 3."""
    algorithm = FedAsync(alpha=0.5, staleness=Polynomial(1.0))
    state, outbox = algorithm.init(vector(1.0), fleet_of(1, 9))
    first, second = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(first, 2.0), answer(second, 5.0)))
    assert state.version == 2
    assert_close(state.weights, vector(3.0))
    assert [receipt.staleness for receipt in outbox.receipts] == [0, 1]
    assert [(job.device, job.version) for job in outbox.jobs] == [(0, 2), (1, 2)]


def test_alpha_does_not_shrink_from_update_to_update() -> None:
    """Closed form: one device whose answer is always 1: 1 − w_t = (1 − α)^t·(1 − w_0). A cumulative α would be slower."""
    algorithm = FedAsync(alpha=0.25, staleness=Constant())
    state, outbox = algorithm.init(vector(0.0), fleet_of(1))
    for t in range(1, 21):
        (job,) = outbox.jobs
        state, outbox = algorithm.step(state, arrivals(float(t), answer(job, 1.0 - float(job.weights))))
        assert float(state.weights) == pytest.approx(1 - 0.75**t, rel=1e-5)


def test_staleness_counts_versions_since_the_job_was_sent() -> None:
    """Device 0 takes 1 s, device 1 takes 3.5 s: at its first answer three versions were made, so α_t = α/√4."""
    algorithm = FedAsync(alpha=0.5, staleness=Polynomial(0.5))
    fleet = fleet_of(1, 1)
    simulation = Simulation(fleet, Towards(part=1.0), lambda job: (1.0, 3.5)[job.device])
    moments = run(algorithm, simulation, *algorithm.init(vector(8.0), fleet))
    staleness = [(m.inbox.now, m.outbox.receipts[0].staleness) for m, _ in zip(moments, range(5), strict=False)]
    assert staleness == [(1.0, 0), (2.0, 0), (3.0, 0), (3.5, 3), (4.0, 1)]


def test_weights_follow_the_recurrence_with_a_straggler() -> None:
    """8 → 4 → 2 → 1 by device 0 (towards 0), then ¾·1 + ¼·1 by device 1 (its answer is 1)."""
    algorithm = FedAsync(alpha=0.5, staleness=Polynomial(0.5))
    fleet = fleet_of(1, 1)
    simulation = Simulation(fleet, Towards(part=1.0), lambda job: (1.0, 3.5)[job.device])
    moments = run(algorithm, simulation, *algorithm.init(vector(8.0), fleet))
    weights = [float(m.state.weights) for m, _ in zip(moments, range(4), strict=False)]
    assert weights == pytest.approx([4.0, 2.0, 1.0, 1.0])


def test_a_lost_job_is_sent_anew() -> None:
    algorithm = FedAsync()
    state, outbox = algorithm.init(vector(1.0), fleet_of(1, 1))
    state, outbox = algorithm.step(state, Inbox(4.0, lost=lost(outbox.jobs[1])))
    assert [(job.device, job.sent_at) for job in outbox.jobs] == [(1, 4.0)]
    assert state.version == 0


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_alpha_is_a_share_above_zero(alpha: float) -> None:
    with pytest.raises(InputError, match=f"alpha={alpha}"):
        FedAsync(alpha=alpha)
