import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hybridfl import lockstep
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.sampling import Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.data.federated import Samples
from hybridfl.data.synthetic import synthetic
from hybridfl.dense_training import DenseSGD
from hybridfl.engines import CPU
from hybridfl.errors import InputError
from hybridfl.evaluation import Evaluation
from hybridfl.experiment import execute
from hybridfl.lockstep import FROZEN_BY_PYTHON, Event, execute_all
from hybridfl.plan import Run
from hybridfl.playing import Ended
from hybridfl.protocol import Job, Update
from hybridfl.tally import Snapshot
from hybridfl.task import Task
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays
from hybridfl.training import LocalSGD

LOCAL = FullWork(epochs=2, batch_size=16)
ALGORITHMS: list[Any] = [
    HFL(local=LOCAL),
    HFL.as_printed(local=LOCAL),
    FedAvg(Uniform(4), LOCAL),
    FedAsync(local=LOCAL),
    FedBuff(local=LOCAL),
    SSGD(LOCAL),
]


def plans(tasks: Sequence[Task], **budget: Any) -> list[Run]:
    return [
        Run(task, algorithm, PaperDelays(0.5, 4), seed=seed, **budget)
        for seed, task in enumerate(tasks)
        for algorithm in ALGORITHMS
    ]


def softmax_tasks() -> list[Task]:
    return [Synthetic(1, 1).build(8, seed) for seed in range(2)]


def small_network() -> Task:
    """Trained by `vmap`, whose rounding depends on which jobs share a step."""
    torch.manual_seed(0)
    return Task.from_devices(synthetic(1, 1, 8, 0), nn.Sequential(nn.Linear(60, 5), nn.GELU(), nn.Linear(5, 10)))


def large_network() -> Task:
    """Trained one job a thread."""
    torch.manual_seed(0)
    return Task.from_devices(synthetic(1, 1, 8, 0), nn.Sequential(nn.Linear(60, 200), nn.GELU(), nn.Linear(200, 10)))


def said(event: Event) -> str:
    return repr((event.record, event.arrivals) if isinstance(event, Snapshot) else type(event))


def together(runs: Sequence[Run]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {id(run): [] for run in runs}
    for run, event in execute_all(runs, CPU):
        if isinstance(event, Snapshot):
            found[id(run)].append(said(event))
    return found


@pytest.mark.parametrize(
    "tasks", [softmax_tasks(), [small_network()], [large_network()]], ids=["softmax", "vmap", "threads"]
)
def test_runs_together_leave_the_records_of_runs_alone(tasks: list[Task]) -> None:
    runs = plans(tasks, seconds=9 if len(tasks) > 1 else 4)
    found = together(runs)
    for run in runs:
        assert found[id(run)] == [said(each) for each in execute(run, "cpu")], run.algorithm


def test_runs_of_different_length_and_budget() -> None:
    [task, _] = softmax_tasks()
    timing = PaperDelays(0.5, 4)
    runs = [
        Run(task, HFL(local=LOCAL), timing, rounds=3),
        Run(task, FedAsync(local=LOCAL), timing, seconds=5, evaluate_every=2),
        Run(task, FedAvg(Uniform(4), LOCAL), timing, seconds=30, rounds=2),
    ]
    found = together(runs)
    for run in runs:
        assert found[id(run)] == [said(each) for each in execute(run, "cpu")]


def test_what_runs_want_at_a_time_is_trained_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []
    original = DenseSGD.together

    def counted(wanted: Sequence[tuple[DenseSGD, Sequence[Job]]]) -> list[list[Update]]:
        calls.append([len(jobs) for _, jobs in wanted])
        return original(wanted)

    monkeypatch.setattr(DenseSGD, "together", staticmethod(counted))
    [task, _] = softmax_tasks()
    rates = [0.01, 0.03, 0.1]
    runs = [
        Run(task, FedAvg(Uniform(4), FullWork(1, 16, ConstantRate(rate))), PaperDelays(0.5, 4), rounds=5)
        for rate in rates
    ]
    together(runs)
    assert calls == [[4, 4, 4]] * 5


def test_when_memory_is_short_fewer_runs_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    [task, _] = softmax_tasks()
    runs = plans([task], rounds=2)
    everything = together(runs)
    needed = 4 * 8 * 610 * 4
    for free, width in ((10 * needed, 5), (2 * needed, 1), (0, 1)):
        monkeypatch.setattr(lockstep, "free_bytes", lambda device, free=free: free)
        assert lockstep.runs_that_fit(runs, CPU) == width
        assert together(runs) == everything


def test_records_come_as_soon_as_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU a record does not wait for the next jobs to be trained."""
    calls: list[int] = []
    original = DenseSGD.together

    def counted(wanted: Sequence[tuple[DenseSGD, Sequence[Job]]]) -> list[list[Update]]:
        calls.append(len(wanted))
        return original(wanted)

    monkeypatch.setattr(DenseSGD, "together", staticmethod(counted))
    [task, _] = softmax_tasks()
    for made, _ in enumerate(execute(Run(task, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=3), "cpu")):
        assert len(calls) == made


def test_the_collector_is_put_back() -> None:
    import gc

    [task, _] = softmax_tasks()
    list(execute(Run(task, HFL(local=LOCAL), PaperDelays(0.5, 4), rounds=1)))
    assert gc.get_freeze_count() <= FROZEN_BY_PYTHON


def test_two_iterations_at_once_leave_threads_as_they_were() -> None:
    [task, _] = softmax_tasks()
    before = torch.get_num_threads()
    one, other = (execute(Run(task, HFL(local=LOCAL), PaperDelays(0.5, 4), rounds=2)) for _ in range(2))
    next(one), next(other)
    assert torch.get_num_threads() == before
    list(one), list(other)
    assert torch.get_num_threads() == before


class FiniteOnly(LocalSGD):
    """Trains no weights that are not finite."""

    @staticmethod
    def together(wanted: Any) -> Any:
        assert all(bool(job.weights.isfinite().all()) for _, jobs in wanted for job in jobs)
        return LocalSGD.together(wanted)


def exploding() -> Task:
    """With a rate of 100 the L2 term makes weights 200 times as large with every step, and losses stay finite for long."""
    inputs = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    train = Samples.from_devices([(own, torch.arange(3)) for own in inputs])
    torch.manual_seed(0)
    return Task("exploding", train, train, nn.Linear(2, 3), l2=1.0)


EXPLODING = FullWork(epochs=1, batch_size=16, learning_rate=ConstantRate(100))


@pytest.mark.parametrize("algorithm", [FedAvg(Uniform(4), EXPLODING), FedAsync(local=EXPLODING), HFL(local=EXPLODING)])
def test_a_run_ends_at_the_first_version_whose_weights_are_not_finite_however_rarely_it_is_scored(
    algorithm: Any,
) -> None:
    def make(task: Task, seed: int) -> Any:
        return FiniteOnly(task.train, task.model, task.loss, task.l2, seed)

    found = set()
    for seconds, rounds, every in [(None, 5000, None), (5000, None, None), (5000, None, 1000), (None, 5000, 9.0)]:
        plan = Run(exploding(), algorithm, PaperDelays(0.5, 4), seconds, rounds, every)
        *_, last, end = (event for _, event in execute_all([plan], CPU, make))
        assert isinstance(last, Snapshot)
        assert isinstance(end, Ended)
        assert not bool(last.weights.isfinite().all())
        assert last.record.diverged_at == last.record.version > 3
        found.add((last.record.version, last.record.seconds, last.record.merged))
    assert len(found) == 1, "at the same version each time"


def test_no_runs_are_no_records() -> None:
    assert list(execute_all([], CPU)) == []


def test_an_error_in_a_run_names_it() -> None:
    [task, _] = softmax_tasks()
    plan = Run(task, FedAvg(Uniform(10)), PaperDelays(0.5, 4), rounds=1, seed=3, label="mine")
    with pytest.raises(InputError, match="mine, seed 3: 10 participants a round, but the fleet has 8 devices"):
        list(execute(plan))


@pytest.mark.parametrize("bad", ["training", "test"])
def test_a_first_model_whose_loss_is_not_finite_is_refused_before_anything_is_trained(bad: str) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        is_bad = targets == (1.0 if bad == "training" else 2.0)
        return (outputs[:, 0] - targets).square() + torch.where(is_bad, math.inf, 0.0)

    def never(task: Task, seed: int) -> Any:
        return Never(task.train, task.model, task.loss)

    class Never(LocalSGD):
        @staticmethod
        def together(wanted: Any) -> Any:
            raise AssertionError

    targets = torch.tensor([0.0, 1.0, 2.0])
    samples = Samples.from_devices([(torch.ones(3, 2), targets)] * 4)
    train, test = (samples.with_rows([samples.rows(d)[part] for d in range(4)]) for part in (slice(2), slice(2, 3)))
    task = Task("mine", train, test, nn.Linear(2, 1), loss)
    plan = Run(task, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=2, label="mine")
    with pytest.raises(
        InputError,
        match=f"^mine, seed 0: the first model's loss on the {bad} samples is not finite: check the first weights, the loss",
    ):
        list(execute_all([plan], CPU, never))


def test_weights_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[torch.Tensor] = []
    score = Evaluation.__call__

    def counted(evaluation: Evaluation, weights: torch.Tensor) -> Any:
        scored.append(weights)
        return score(evaluation, weights)

    monkeypatch.setattr(Evaluation, "__call__", counted)
    [task, _] = softmax_tasks()
    plans = [
        Run(task, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=3),
        Run(task, FedAsync(local=LOCAL), PaperDelays(0.5, 4), seconds=9.7, evaluate_every=4),
        Run(task, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=2, seed=1),
    ]
    events = list(execute_all(plans, CPU))
    drafts = {(id(run), id(event.weights)) for run, event in events if isinstance(event, Snapshot)}
    assert len(scored) == len(drafts)
    for plan in plans:
        *_, last, end = (event for run, event in events if run is plan)
        assert isinstance(end, Ended)
        assert isinstance(last, Snapshot)
        held = sum(score.num_samples for score in end.devices)
        right = sum(score.accuracy * score.num_samples for score in end.devices)
        assert right / held == pytest.approx(last.record.test_accuracy)


DIVERGING = FullWork(epochs=2, batch_size=16, learning_rate=ConstantRate(1e30))


def test_a_run_that_diverges_ends_with_the_record_that_says_so() -> None:
    [task, other] = softmax_tasks()
    runs = [
        Run(task, FedAvg(Uniform(4), DIVERGING), PaperDelays(0.5, 4), rounds=50, label="diverging"),
        Run(other, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=5, label="good"),
    ]
    events = list(execute_all(runs, CPU))
    first = [event for run, event in events if run is runs[0]]
    records = [event.record for event in first if isinstance(event, Snapshot)]
    last = records[-1]
    assert last.version < 5, "far from its 50 rounds"
    assert last.has_diverged
    assert last.diverged_at == last.version
    assert math.isnan(last.test_accuracy)
    assert math.isnan(last.device_accuracy)
    assert not any(record.has_diverged for record in records[:-1])
    assert isinstance(first[-1], Ended)
    assert first[-1].devices == ()
    good = [event for run, event in events if run is runs[1]]
    alone = [event for _, event in execute_all([runs[1]], CPU)]
    assert [e.record for e in good if isinstance(e, Snapshot)] == [e.record for e in alone if isinstance(e, Snapshot)]
    assert isinstance(good[-1], Ended)


def test_a_run_ends_with_what_its_model_does_for_each_device() -> None:
    [task, _] = softmax_tasks()
    run = Run(task, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=5)
    events = [event for _, event in execute_all([run], CPU)]
    record = [event.record for event in events if isinstance(event, Snapshot)][-1]
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert [each.device for each in ended.devices] == list(range(8))
    assert sum(each.is_straggler for each in ended.devices) == 4
    assert np.mean([each.accuracy for each in ended.devices]) == pytest.approx(record.device_accuracy)
    right = sum(each.accuracy * each.num_samples for each in ended.devices)
    assert right / sum(each.num_samples for each in ended.devices) == pytest.approx(record.test_accuracy)
