"""The GPU's engines give the CPU's numbers. Skipped where there is no GPU."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.sampling import Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.engines import CPU, device_named, evaluator_for, trainer_for
from hybridfl.errors import InputError
from hybridfl.experiment import execute, save_all
from hybridfl.fleets import flaky
from hybridfl.lockstep import execute_all
from hybridfl.models import CharacterLSTM, LogisticRegression
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm, Job, Update, Work
from hybridfl.tally import Snapshot
from hybridfl.task import Task
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays
from hybridfl.vectors import flatten

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")
DRAW = np.random.default_rng(0)


def test_without_a_gpu_asking_for_it_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("auto") == CPU
    assert device_named(torch.device("cpu")) == CPU
    with pytest.raises(InputError, match="Unknown device 'meta': give auto, cpu or cuda"):
        device_named(torch.device("meta"))
    with pytest.raises(InputError, match="sees no GPU here for 'cuda': choose cpu or auto"):
        device_named("cuda")
    with pytest.raises(InputError, match="Unknown device 'tpu': give auto, cpu or cuda"):
        device_named("tpu")


def samples(kind: str, features: int = 50, classes: int = 10, sizes: Sequence[int] = (300, 70, 9, 1)) -> Samples:
    """About 50 features of a sample are not 0: steps that are too long for their inputs would blow rounding up."""
    total = 500
    numbers = DRAW.integers(0, 256, (total, features)) if kind == "bytes" else DRAW.normal(size=(total, features))
    numbers[DRAW.random((total, features)) > 50 / features] = 0
    inputs = torch.from_numpy(numbers.astype(np.uint8 if kind == "bytes" else np.float32))
    targets = torch.from_numpy(DRAW.integers(0, classes, total))
    rows = [DRAW.permutation(total)[:size] for size in sizes]
    return Samples.shared_out(inputs, targets, rows, scale=1 / 255 if kind == "bytes" else None)


def softmax_task(kind: str, features: int = 50, classes: int = 10) -> Task:
    own = samples(kind, features, classes)
    return Task(kind, own, own, LogisticRegression(features, classes), l2=1e-3)


def jobs(task: Task, works: Sequence[Work], drifts: bool = False) -> list[Job]:
    """With `drifts`, every second one has one."""
    size = sum(parameter.numel() for parameter in task.model.parameters())
    draw = torch.Generator().manual_seed(1)
    return [
        Job(
            device % len(task.train),
            3,
            0.05 * torch.randn(size, generator=draw),
            work,
            0.0,
            repeat=device,
            drift=0.05 * torch.randn(size, generator=draw) if drifts and device % 2 == 0 else None,
        )
        for device, work in enumerate(works)
    ]


def on_gpu(job: Job) -> Job:
    return dataclasses.replace(job, weights=job.weights.cuda(), drift=None if job.drift is None else job.drift.cuda())


def assert_same(ours: Sequence[Update], theirs: Sequence[Update], tolerance: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.weights.cpu(), other.weights, rtol=0, atol=tolerance)
        assert float(one.train_loss) == pytest.approx(float(other.train_loss), rel=1e-5, abs=1e-5)
        assert one.num_steps == other.num_steps


WORKS = {
    "plain": [Work(3, 64, 0.1)] * 4,
    "odd batches": [Work(2, 7, 0.1), Work(3, 64, 0.05), Work(1, 1, 0.1), Work(4, 10, 0.2)],
    "large batches": [Work(5, 200, 0.1), Work(3, 1000, 0.1), Work(3, 64, 0.1)],
    "pulled": [Work(3, 16, 0.1, proximal=0.5), Work(3, 64, 0.1)],
    "clipped": [Work(3, 16, 0.1, clip=0.2), Work(3, 64, 0.1), Work(2, 16, 0.1, proximal=0.1, clip=0.05)],
}


@needs_gpu
@pytest.mark.parametrize("drifts", [False, True])
@pytest.mark.parametrize("works", WORKS.values(), ids=WORKS.keys())
@pytest.mark.parametrize(
    ("kind", "features", "classes"), [("bytes", 50, 10), ("floats", 60, 10), ("bytes", 784, 10), ("floats", 200, 62)]
)
def test_softmax_regression(kind: str, features: int, classes: int, works: list[Work], drifts: bool) -> None:
    task = softmax_task(kind, features, classes)
    wanted = jobs(task, works, drifts)
    ours = trainer_for(task, 5, CUDA)([on_gpu(job) for job in wanted])
    assert type(trainer_for(task, 5, CUDA)).__name__ == "CudaSoftmaxSGD"
    assert_same(ours, trainer_for(task, 5)(wanted), 2e-6)


@needs_gpu
def test_shuffles_are_the_same_everywhere() -> None:
    from hybridfl.resident import resident
    from hybridfl.softmax_cuda import _shuffled_rows

    task = softmax_task("bytes")
    wanted = jobs(task, [Work(3, 16, 0.1)] * 6)
    batches = Batches.of(wanted, task.train, seed=9)
    table = np.zeros((6, 12), dtype=np.int64)
    table[:, 3], table[:, 4], table[:, 5] = batches.starts[:-1], batches.num_samples, batches.epochs
    table[:, 7] = [task.train.offsets[job.device] for job in wanted]
    table[:, 8:] = [(9, job.device, job.version, job.repeat) for job in wanted]
    found = _shuffled_rows(table, resident(task.train.index, torch.int32))
    assert found.tolist() == batches.order.tolist()


@needs_gpu
@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_the_others_in_a_launch_do_not_matter(kind: str) -> None:
    one, other = softmax_task(kind), softmax_task(kind)
    first, second = trainer_for(one, 1, CUDA), trainer_for(other, 2, CUDA)
    mine = [on_gpu(job) for job in jobs(one, [*WORKS["odd batches"], *WORKS["pulled"]])]
    theirs = [on_gpu(job) for job in jobs(other, [*WORKS["plain"], *WORKS["clipped"], *WORKS["large batches"]])]
    alone = [
        [update for job in mine for update in first([job])],
        [update for job in theirs for update in second([job])],
    ]
    together = type(first).together([(first, mine), (second, theirs)])
    for ours, separately in zip(together, alone, strict=True):
        for a, b in zip(ours, separately, strict=True):
            assert torch.equal(a.weights, b.weights)
            assert torch.equal(torch.as_tensor(a.train_loss), torch.as_tensor(b.train_loss))


def models() -> list[tuple[Task, float]]:
    own = samples("bytes", 50)
    mlp = nn.Sequential(nn.Linear(50, 20), nn.Tanh(), nn.Linear(20, 10))
    windows = torch.from_numpy(DRAW.integers(0, 80, (300, 12)))
    rows = [DRAW.permutation(300)[:size] for size in (120, 33, 8, 1)]
    text = Samples.shared_out(windows, torch.from_numpy(DRAW.integers(0, 80, 300)), rows)
    return [
        (Task("mlp", own, own, mlp, l2=1e-3), 5e-6),
        (Task("lstm", text, text, CharacterLSTM(hidden=32)), 1e-4),
    ]


@needs_gpu
@pytest.mark.parametrize("works", WORKS.values(), ids=WORKS.keys())
@pytest.mark.parametrize("which", [0, 1], ids=["mlp", "lstm"])
def test_any_model(which: int, works: list[Work]) -> None:
    task, tolerance = models()[which]
    wanted = jobs(task, works)
    trainer = trainer_for(task, 5, CUDA)
    assert type(trainer).__name__ == "GraphSGD"
    assert_same(trainer([on_gpu(job) for job in wanted]), trainer_for(task, 5)(wanted), tolerance)


@needs_gpu
@pytest.mark.parametrize("which", [0, 1], ids=["mlp", "lstm"])
def test_any_model_with_more_jobs_than_slots_and_in_whatever_company(which: int) -> None:
    task, tolerance = models()[which]
    wanted = jobs(task, [Work(1 + number % 3, 16, 0.1) for number in range(45)])
    trainer = trainer_for(task, 5, CUDA)
    together = trainer([on_gpu(job) for job in wanted])
    assert_same(together, trainer_for(task, 5)(wanted), tolerance)
    for place in (0, 20, 44):
        [alone] = trainer([on_gpu(wanted[place])])
        assert torch.equal(alone.weights, together[place].weights)


@needs_gpu
@pytest.mark.parametrize("which", [0, 1, 2], ids=["mlp", "lstm", "softmax"])
def test_a_device_for_itself(which: int) -> None:
    """As a real device trains: nobody else is there."""
    linear = Task("softmax", samples("bytes", 50), samples("bytes", 50), LogisticRegression(50, 10), l2=1e-3)
    task, tolerance = [*models(), (linear, 2e-6)][which]
    own = task.train.with_rows([task.train.rows(1)]).at_place(3)
    alone = dataclasses.replace(task, train=own, test=own)
    for drift in (None, 0.01 * torch.ones_like(flatten(task.model))):
        job = Job(3, 0, flatten(task.model), Work(2, 16, 0.1), 0.0, drift=drift)
        assert_same(trainer_for(alone, 5, CUDA)([on_gpu(job)]), trainer_for(alone, 5)([job]), tolerance)


class StartsFromAState(nn.Module):
    """Its LSTM is given a state, which the stackable one does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 4)
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.linear = nn.Linear(8, 80)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = torch.ones(1, len(inputs), 8, device=inputs.device)
        outputs, _ = self.lstm(self.embedding(inputs), (state, state))
        logits: torch.Tensor = self.linear(outputs[:, -1])
        return logits


@needs_gpu
@pytest.mark.parametrize("which", ["state", "gru"])
def test_recurrent_models_that_cannot_be_stacked(which: str) -> None:
    text = models()[1][0]
    gru = nn.Sequential(nn.Embedding(80, 4), Last(nn.GRU(4, 8, batch_first=True)), nn.Linear(8, 80))
    task = dataclasses.replace(text, model=StartsFromAState() if which == "state" else gru)
    wanted = jobs(task, WORKS["clipped"])
    assert_same(trainer_for(task, 5, CUDA)([on_gpu(job) for job in wanted]), trainer_for(task, 5)(wanted), 1e-4)


class Last(nn.Module):
    """A recurrent layer's last output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)[0]
        return outputs[:, -1]


@needs_gpu
@pytest.mark.parametrize("kind", ["bytes", "floats", "mlp", "lstm"])
def test_scores(kind: str) -> None:
    task = {"mlp": models()[0][0], "lstm": models()[1][0]}.get(kind) or softmax_task(kind)
    stragglers = np.array([True, False, True, False])
    [job] = jobs(task, [Work(1, 1, 0.1)])
    here = evaluator_for(task, stragglers, 0)(job.weights)
    there = evaluator_for(task, stragglers, 0, CUDA)(job.weights.cuda())
    assert dataclasses.asdict(there) == pytest.approx(dataclasses.asdict(here), rel=1e-5)


@needs_gpu
def test_scores_of_nobody_are_nan() -> None:
    task = softmax_task("floats")
    scores = evaluator_for(task, np.zeros(4, dtype=bool), 0, CUDA)(torch.zeros(510, device="cuda"))
    assert math.isnan(scores.straggler_accuracy)


ALGORITHMS: list[Any] = [
    HFL(),
    HFL.as_printed(),
    HFL.as_printed(normalised=True),
    FedAvg(Uniform(5)),
    FedProx(participants=Uniform(5)),
    FedAsync(),
    FedBuff(),
    SSGD(),
]


def plans(seeds: Sequence[int] = (0, 1), **budget: Any) -> list[Run]:
    return [
        Run(task, algorithm, PaperDelays(0.8, 5), seed=seed, label=str(number), **budget)
        for seed in seeds
        for task in [Synthetic(1, 1).build(20, seed)]
        for number, algorithm in enumerate(ALGORITHMS)
    ]


@needs_gpu
def test_whole_runs_are_the_same_as_on_the_cpu() -> None:
    """Accuracies apart: to a model that has not met a class, it is as likely as the next one, and rounding decides.

    FedBuff's long steps blow rounding up, on the CPU between two trainers as well.
    """
    for plan in plans(seeds=(0,), seconds=15):
        there, here = list(execute(plan, "cuda")), list(execute(plan, "cpu"))
        assert [snapshot.arrivals for snapshot in there] == [snapshot.arrivals for snapshot in here]
        for name in ("version", "seconds", "merged", "bytes_sent"):
            assert [getattr(each.record, name) for each in there] == [getattr(each.record, name) for each in here]
        for name in ("train_loss", "test_loss"):
            expected = [getattr(each.record, name) for each in here]
            found = [getattr(each.record, name) for each in there]
            assert found == pytest.approx(expected, rel=1e-2 if isinstance(plan.algorithm, FedBuff) else 1e-3)
        if isinstance(plan.algorithm, SSGD):
            assert there[-1].record.test_accuracy == pytest.approx(here[-1].record.test_accuracy, abs=2e-3)


@needs_gpu
def test_runs_together_leave_the_records_of_runs_alone() -> None:
    together: dict[int, list[Any]] = {}
    everything = plans(seconds=12)
    for plan, event in execute_all(everything, CUDA):
        if isinstance(event, Snapshot):
            together.setdefault(id(plan), []).append((event.record, event.arrivals))
    for plan in everything:
        alone = [(each.record, each.arrivals) for each in execute(plan, "cuda")]
        assert repr(together[id(plan)]) == repr(alone), plan.algorithm


@needs_gpu
def test_a_models_run_on_the_gpu() -> None:
    task, _ = models()[0]
    algorithm = HFL(local=FullWork(1, 16, ConstantRate(0.05)))
    plan = Run(task, algorithm, PaperDelays(0.5, 3), seconds=10)
    there, here = ([each.record for each in execute(plan, where)] for where in ("cuda", "cpu"))
    assert [record.train_loss for record in there] == pytest.approx([record.train_loss for record in here], rel=1e-3)


@needs_gpu
def test_nothing_waits_for_the_gpu_inside_a_round() -> None:
    """PyTorch raises an error at whatever would wait; only scores are fetched, by an event."""
    everything = plans(seeds=(0,), seconds=6)
    list(execute_all(everything, CUDA))  # kernels are compiled and data are copied
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(execute_all(everything, CUDA))) > 40
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("kind", ["softmax", "network"])
def test_a_run_on_the_gpu_goes_on_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    """Guarded, on a fleet with every fault; trained updates and untrained jobs are in the checkpoint."""
    task = Synthetic().build(20, 0) if kind == "softmax" else models()[0][0]
    local = FullWork(epochs=1, batch_size=16)
    algorithms: list[Algorithm[Any]] = [HFL(local=local), FedBuff(buffer=3, local=local)]
    for number, algorithm in enumerate(algorithms):
        plan = Run(task, algorithm, flaky(), rounds=12, evaluate_every=1.0, guard=Guard())
        whole, broken = tmp_path / f"whole {number}", tmp_path / f"broken {number}"
        for _ in save_all([plan], [whole], "cuda"):
            pass
        events = save_all([plan], [broken], "cuda", checkpoint_every=2)
        for _ in range(6):
            next(events)
        events.close()
        assert list(broken.glob("checkpoints/*.json"))
        for _ in save_all([plan], [broken], "cuda"):
            pass
        for file in ("records.jsonl", "arrivals.jsonl", "model.safetensors"):
            assert (broken / file).read_bytes() == (whole / file).read_bytes(), algorithm


@needs_gpu
def test_a_run_begun_on_the_gpu_does_not_go_on_on_the_cpu(tmp_path: Path) -> None:
    plan = Run(Synthetic().build(20, 0), HFL(), PaperDelays(), rounds=12)
    events = save_all([plan], [tmp_path], "cuda", checkpoint_every=2)
    for _ in range(6):
        next(events)
    events.close()
    with pytest.raises(InputError, match="--device cuda"):
        list(save_all([plan], [tmp_path], "cpu"))
