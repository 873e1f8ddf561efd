"""An algorithm that reduces to another one gives its numbers, to the last bit where the arithmetic is the same."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hybridfl.algorithms.ad_sgd import Correction, Diagonal, MeanRankOne, NoCorrection, RankOne, Secant
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork, InverseSqrt, InverseTime, Schedule
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import Everyone, Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.algorithms.staleness import Constant
from hybridfl.algorithms.stragglers import KnownShare, Learned, Stragglers
from hybridfl.batches import Batches
from hybridfl.data.synthetic import synthetic
from hybridfl.dense import Dense
from hybridfl.dense_training import DenseSGD
from hybridfl.experiment import execute
from hybridfl.models import LogisticRegression
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm, Fleet, Job, Trainer, Work
from hybridfl.records import Record
from hybridfl.run import run
from hybridfl.simulation import Simulation
from hybridfl.task import Task
from hybridfl.timing import ConstantSeconds, Pace, PaperDelays, PerDevice, Roster
from hybridfl.training import LocalSGD
from hybridfl.vectors import flatten

DEVICES = 12
TRAIN, TEST = synthetic(1.0, 1.0, DEVICES, seed=3).split(0.1, seed=3)
SOFTMAX = Dense(((10, 60, 1),))
TASK = Task("synthetic(1, 1)", TRAIN, TEST, LogisticRegression(60, 10), l2=1e-4)
UNEQUAL_BUT_WAITED_FOR = PerDevice(tuple(1.0 + 0.1 * (device % 4) for device in range(DEVICES)))


def weights_by_version(
    algorithm: Algorithm[Any], timing: Pace, versions: int, trainer: Trainer | None = None, seed: int = 0
) -> list[torch.Tensor]:
    paces = timing.of(Roster(TRAIN.num_samples, seed=seed))
    fleet = Fleet(TRAIN.num_samples, paces.expected_seconds, seed)
    start = torch.zeros(610)
    simulation = Simulation(fleet, trainer or DenseSGD(TRAIN, SOFTMAX, l2=1e-4, seed=seed), paces)
    seen: list[torch.Tensor] = []
    for moment in run(algorithm, simulation, *algorithm.init(start, fleet)):
        if moment.state.version > len(seen):
            seen.append(moment.state.weights)
        if len(seen) == versions:
            break
    return seen


def records(plan: Run) -> list[Record]:
    return [snapshot.record for snapshot in execute(plan)]


def same_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("schedule", [InverseTime(0.1), InverseSqrt(0.1), ConstantRate(0.05)])
@pytest.mark.parametrize("stragglers", [KnownShare(0.0), Learned(slack=2.0)])
@pytest.mark.parametrize("timing", [ConstantSeconds(), UNEQUAL_BUT_WAITED_FOR])
def test_hfl_without_stragglers_is_fedavg_of_everyone(schedule: Schedule, stragglers: Stragglers, timing: Pace) -> None:
    local = FullWork(epochs=2, learning_rate=schedule)
    hfl = weights_by_version(HFL(stragglers=stragglers, local=local), timing, versions=8)
    fedavg = weights_by_version(FedAvg(Everyone(), local), timing, versions=8)
    assert same_bits(hfl, fedavg)


@pytest.mark.parametrize("correction", [NoCorrection(), Secant(), RankOne(0.0), MeanRankOne(), Diagonal(0.3)])
def test_every_correction_leaves_fresh_updates_alone(correction: Correction) -> None:
    local = FullWork(epochs=1)
    hfl = weights_by_version(HFL(Memory(correction), KnownShare(0.0), local=local), ConstantSeconds(), 4)
    assert same_bits(hfl, weights_by_version(FedAvg(Everyone(), local), ConstantSeconds(), 4))


def test_hfl_with_stragglers_is_not_fedavg() -> None:
    timing = PaperDelays(0.5, 4)
    hfl = weights_by_version(HFL(), timing, versions=8)
    assert not torch.allclose(hfl[-1], weights_by_version(FedAvg(Everyone()), timing, versions=8)[-1])


def test_as_printed_and_normalised_without_stragglers_is_fedavg_of_everyone() -> None:
    local = FullWork(epochs=1)
    printed = HFL.as_printed(normalised=True, stragglers=KnownShare(0.0), local=local)
    ours = weights_by_version(printed, ConstantSeconds(), 6)
    assert same_bits(ours, weights_by_version(FedAvg(Everyone(), local), ConstantSeconds(), 6))


def test_fedprox_without_pull_is_fedavg() -> None:
    timing = PaperDelays(0.5, 4)
    local = FullWork(epochs=2)
    fedprox = FedProx(mu=0.0, partial=0.0, participants=Uniform(5), local=local)
    assert same_bits(weights_by_version(fedprox, timing, 8), weights_by_version(FedAvg(Uniform(5), local), timing, 8))


def test_fedprox_with_a_strong_pull_stays_nearer() -> None:
    timing = ConstantSeconds()
    local = FullWork(epochs=2, learning_rate=ConstantRate(0.05))
    pulled = weights_by_version(FedProx(mu=10.0, partial=0.0, participants=Everyone(), local=local), timing, 1)
    free = weights_by_version(FedAvg(Everyone(), local), timing, 1)
    assert pulled[0].norm() < 0.5 * free[0].norm()


def test_fedbuff_of_one_is_fedasync_with_alpha_one_on_one_device() -> None:
    """w + (w_i − w) and 0·w + w_i are the same number; the first rounds once more."""
    pooled = TRAIN.pooled()
    timing = ConstantSeconds().of(Roster(pooled.num_samples))
    fleet = Fleet(pooled.num_samples, timing.expected_seconds)
    results = []
    for algorithm in (FedBuff(buffer=1, server_rate=1.0, staleness=Constant()), FedAsync(1.0, Constant())):
        simulation = Simulation(fleet, DenseSGD(pooled, SOFTMAX), timing)
        moments = run(algorithm, simulation, *algorithm.init(torch.zeros(610), fleet))
        results.append([moment.state.weights for moment, _ in zip(moments, range(3), strict=False)])
    for buffered, asynchronous in zip(*results, strict=True):
        assert_close(buffered, asynchronous, rtol=0, atol=1e-6)


def test_ssgd_is_a_plain_pytorch_loop() -> None:
    """torch.optim.SGD with weight_decay = 2ε over the same batches; η_0/(1 + t) falls with each round of E epochs."""
    local = FullWork(epochs=2, batch_size=32, learning_rate=InverseTime(0.1))
    plan = Run(TASK, SSGD(local), PaperDelays(), rounds=3, seed=5)
    ours = [snapshot.record for snapshot in execute(plan)][-1]

    model = LogisticRegression(60, 10)
    pooled = TRAIN.pooled()
    for version in range(3):
        job = Job(0, version, flatten(model), Work(2, 32, 0.1 / (1 + version)), sent_at=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + version), weight_decay=2 * TASK.l2)
        order = torch.from_numpy(Batches.of([job], pooled, seed=5).order)
        for epoch in torch.chunk(order, 2):
            for rows in torch.split(epoch, 32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(pooled.inputs[rows]), pooled.targets[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    with torch.no_grad():
        rows = torch.from_numpy(TEST.index)
        outputs = model(TEST.inputs[rows])
        loss = float(nn.functional.cross_entropy(outputs, TEST.targets[rows]))
        accuracy = float((outputs.argmax(1) == TEST.targets[rows]).double().mean())
    assert ours.version == 3
    assert ours.test_loss == pytest.approx(loss, abs=1e-5)
    assert ours.test_accuracy == pytest.approx(accuracy, abs=1e-9)


ALL = [
    HFL(),
    HFL.as_printed(),
    FedAvg(Uniform(4)),
    FedProx(participants=Uniform(4)),
    FedAsync(),
    FedBuff(buffer=3),
    SSGD(),
]


@pytest.mark.parametrize("algorithm", ALL, ids=lambda algorithm: type(algorithm).__name__)
def test_the_same_seed_gives_the_same_records_twice(algorithm: Algorithm[Any]) -> None:
    timing = PaperDelays(0.5, 4)
    first, second = (records(Run(TASK, algorithm, timing, seconds=12, seed=1)) for _ in range(2))
    assert repr(first) == repr(second)  # NaN equals itself this way
    assert repr(first) != repr(records(Run(TASK, algorithm, timing, seconds=12, seed=2)))


class OneByOne:
    """Trains every job in a call of its own."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def __call__(self, jobs: Any) -> Any:
        return [self._trainer([job])[0] for job in jobs]


@pytest.mark.parametrize(
    "algorithm",
    [HFL(local=FullWork(1)), FedAsync(local=FullWork(1)), FedBuff(3, local=FullWork(1))],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_jobs_trained_one_by_one_give_the_same_numbers(algorithm: Algorithm[Any]) -> None:
    """To the last bit in closed form. In general to 1e-6: PyTorch multiplies a stack of matrices by another kernel than a
    single one, and a batch that shares a step with a longer one is filled up, so sums are added in another order."""
    timing = PaperDelays(0.5, 4)
    closed_form = DenseSGD(TRAIN, SOFTMAX, l2=1e-4)
    together = weights_by_version(algorithm, timing, 8, closed_form)
    assert same_bits(together, weights_by_version(algorithm, timing, 8, OneByOne(closed_form)))

    general = LocalSGD(TRAIN, LogisticRegression(60, 10), l2=1e-4)
    together = weights_by_version(algorithm, timing, 3, general)
    apart = weights_by_version(algorithm, timing, 3, OneByOne(general))
    assert_close(torch.stack(together), torch.stack(apart), rtol=0, atol=1e-6)
