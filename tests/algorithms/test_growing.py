from typing import Any

import numpy as np
import pytest
import torch

from fakes import Towards, fleet_of
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.growing import Growing
from hybridfl.algorithms.guard import Guard, Guarded
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.sampling import Everyone, Uniform
from hybridfl.protocol import Algorithm, Inbox, Outbox

ALL = [
    HFL(),
    FedAvg(Everyone()),
    FedBuff(buffer=2),
    FedAsync(),
    HFL(participants=Uniform(2)),
    FedBuff(2, concurrency=2),
]


def answered(outbox: Outbox, now: float) -> Inbox:
    return Inbox(now, tuple(sorted(Towards()(outbox.jobs), key=lambda update: update.job.device)))


@pytest.mark.parametrize("algorithm", ALL, ids=repr)
def test_who_joins_gets_jobs_and_counts_by_its_samples(algorithm: Algorithm[Any]) -> None:
    growing = Growing(algorithm)
    state, outbox = growing.init(torch.zeros(2), fleet_of(1, 1))
    larger = fleet_of(1, 1, 8)
    jobs = list(outbox.jobs)
    state, outbox = growing.step(state, Inbox(0.5, fleet=larger, joined=frozenset({2})))
    assert state.fleet.num_samples.tolist() == [1, 1, 8]
    asked, now = {job.device for job in outbox.jobs}, 1.0
    jobs += outbox.jobs
    for _ in range(6):
        inbox = answered(Outbox(tuple(jobs)), now)
        state, outbox = growing.step(state, inbox)
        jobs, now = list(outbox.jobs), now + 1
        asked |= {job.device for job in jobs}
    assert 2 in asked
    assert state.version > 1


def test_without_joins_it_is_the_algorithm_itself() -> None:
    weights = []
    for algorithm in (HFL(), Growing(HFL())):
        state, outbox = algorithm.init(torch.tensor([1.0, -1.0]), fleet_of(3, 5, 2))
        for turn in range(4):
            state, outbox = algorithm.step(state, answered(outbox, turn + 1.0))
        weights.append(state.weights)
    assert torch.equal(*weights)


def test_who_was_barred_stays_so_and_a_liar_is_barred_when_it_joins() -> None:
    guarded = Guarded(Growing(HFL()), Guard(samples=100.0))
    state, _ = guarded.init(torch.zeros(2), fleet_of(10, 10, 0))
    assert state.fleet.barred == {2}
    state, _ = guarded.step(state, Inbox(1.0, fleet=fleet_of(10, 10, 0, 10**6, 11), joined=frozenset({3, 4})))
    assert state.fleet.barred == {2, 3}
    assert np.array_equal(state.fleet.num_samples, [10, 10, 0, 10**6, 11])
