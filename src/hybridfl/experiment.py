"""A run is a value: a task, an algorithm, a timing, a budget and a seed. `execute` plays it in virtual time."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridfl.algorithms.ssgd import SSGD
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError, require_positive
from hybridfl.evaluation import Evaluation, Forward, ModuleForward
from hybridfl.models import LogisticRegression
from hybridfl.protocol import Algorithm, Fleet, Trainer
from hybridfl.records import Arrival, Config, Record, RunFolder
from hybridfl.run import Moment, run
from hybridfl.simulation import Simulation
from hybridfl.timing import ConstantSeconds, FleetTiming
from hybridfl.training import LocalSGD, Loss, check_trainable, cross_entropy, loss_by_sample
from hybridfl.vectors import flatten


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned: samples by device, a model whose parameters are w_0, a loss a sample, and ε of the L2 term ε‖w‖²."""

    name: str
    train: Samples
    test: Samples
    model: nn.Module
    loss: Loss = cross_entropy
    l2: float = 0.0
    scored: int | None = None
    """Scores are taken on at most so many training samples and so many test samples, drawn by the run's seed; None: on all."""
    notes: tuple[str, ...] = ()
    """What a reader of results should know of the data."""

    @classmethod
    def from_devices(
        cls,
        devices: Samples | Sequence[tuple[Tensor, Tensor]],
        model: nn.Module,
        name: str = "custom",
        loss: Loss = cross_entropy,
        l2: float = 0.0,
        test_share: float = 0.1,
        seed: int = 0,
    ) -> Task:
        """One (inputs, targets) pair a device, or samples by device; `test_share` of each device's is held out for testing."""
        samples = devices if isinstance(devices, Samples) else Samples.from_devices(devices)
        train, test = samples.split(test_share, seed)
        return cls(name, train, test, model, loss, l2)

    def pooled(self) -> Task:
        """The same task with all training samples on one device."""
        return replace(self, train=self.train.pooled())

    def describe(self) -> dict[str, Any]:
        """What `run.json` says of a task; the checksum tells apart tasks that only differ in their numbers."""
        return {
            "name": self.name,
            "devices": len(self.test),
            "train_samples": len(self.train.index),
            "test_samples": len(self.test.index),
            "model": " ".join(repr(self.model).split()),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "loss": _name_of(self.loss),
            "l2": self.l2,
            "scored": self.scored,
            "notes": list(self.notes),
            "checksum": self._checksum(),
        }

    def _checksum(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        held = [(samples.inputs, samples.targets) for samples in (self.train, self.test)]
        shared = held[0][0] is held[1][0] and held[0][1] is held[1][1]
        for tensor in (*held[0], *(() if shared else held[1]), flatten(self.model), *self.model.buffers()):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
            digest.update(_held_once(tensor).numpy().data)
        for array in (self.train.index, self.train.offsets, self.test.index, self.test.offsets):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(f"{self.train.scale} {self.test.scale}".encode())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm on one task and fleet. It ends after `seconds` of virtual time or `rounds` versions, whichever is first.

    A record is made of the first version in every stretch of `evaluate_every` virtual seconds: by default 200 stretches
    over `seconds` or, with no limit on time, at every instant that makes a version. The last one is made at the very end.
    """

    task: Task
    algorithm: Algorithm[Any]
    timing: FleetTiming
    seconds: float | None = None
    rounds: int | None = None
    evaluate_every: float | None = None
    seed: int = 0
    label: str = ""

    def __post_init__(self) -> None:
        if self.seconds is None and self.rounds is None:
            raise InputError("The run has no end: give seconds, rounds or both.")
        for name in ("seconds", "rounds", "evaluate_every"):
            value = getattr(self, name)
            if value is not None:
                require_positive(name, value)
        devices = len(self.task.test)
        if len(self.timing.expected_seconds) != devices:
            raise InputError(
                f"The timing is for {len(self.timing.expected_seconds)} devices, but the task has {devices}: make them agree."
            )

    def check(self) -> None:
        """Raise `InputError` if the run could not start, before anything is written."""
        check_trainable(self.task.model)
        _check_fit(self.task)
        task, _, fleet = _stage(self)
        try:
            self.algorithm.init(flatten(task.model), fleet)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    @property
    def name(self) -> str:
        return self.label or type(self.algorithm).__name__

    @property
    def seconds_between_records(self) -> float:
        if self.evaluate_every is not None:
            return self.evaluate_every
        return 0.0 if self.seconds is None else self.seconds / 200

    def config(self) -> Config:
        """Everything that decides the results, and the versions of what computed them."""
        return {
            "label": self.name,
            "algorithm": repr(self.algorithm),
            "task": self.task.describe(),
            "timing": repr(self.timing),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "evaluate_every": self.evaluate_every,
            "seed": self.seed,
            "versions": _versions(),
        }


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A record, and the updates that arrived since the previous one."""

    record: Record
    arrivals: tuple[Arrival, ...]


def trainer_for(task: Task, seed: int) -> Trainer:
    """The fastest trainer that is right for the task's model."""
    classes = _closed_form_classes(task)
    if classes is None:
        return LocalSGD(task.train, task.model, task.loss, task.l2, seed)
    from hybridfl.softmax import SoftmaxSGD

    return SoftmaxSGD(task.train, classes, task.l2, seed)


def forward_for(task: Task) -> Forward:
    """The fastest forward pass that is right for the task's model."""
    classes = _closed_form_classes(task)
    if classes is None:
        return ModuleForward(task.model, task.loss)
    from hybridfl.softmax import SoftmaxForward

    return SoftmaxForward(classes)


def _closed_form_classes(task: Task) -> int | None:
    """The number of classes where the task is softmax regression and Numba is there to compile its closed form."""
    if type(task.model) is LogisticRegression and task.loss is cross_entropy and find_spec("numba") is not None:
        return task.model.linear.out_features
    return None


def _check_fit(task: Task) -> None:
    """Try the model and the loss on two samples. (The closed form checks all of them itself.)"""
    if _closed_form_classes(task) is not None:
        return
    inputs, targets = task.train.take(torch.from_numpy(task.train.index[:2]))
    try:
        with torch.no_grad():
            loss_by_sample(task.loss, task.model(inputs), targets)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0]
        raise InputError(
            f"The model or the loss does not fit the samples, inputs {inputs.dtype} {list(inputs.shape)} and targets "
            f"{targets.dtype} {list(targets.shape)}: {reason}"
        ) from error


def execute(plan: Run) -> Iterator[Snapshot]:
    """Play a run in virtual time: a snapshot at the start and at every evaluation."""
    _check_fit(plan.task)
    task, timing, fleet = _stage(plan)
    with _cores_left_to_training(task):
        yield from _play(plan, task, timing, fleet)


def _play(plan: Run, task: Task, timing: FleetTiming, fleet: Fleet) -> Iterator[Snapshot]:
    simulation = Simulation(fleet, trainer_for(task, plan.seed), timing)
    evaluate = _evaluation(plan, task)

    weights = flatten(task.model)
    state, outbox = plan.algorithm.init(weights, fleet)
    tally = _Tally(bytes_a_model=weights.numel() * weights.element_size(), sent=len(outbox.jobs))
    started = time.perf_counter()
    yield tally.snapshot(0, 0.0, 0.0, asdict(evaluate(weights)))

    every, due = plan.seconds_between_records, 0.0
    for moment in run(plan.algorithm, simulation, state, outbox):
        now, version = moment.inbox.now, moment.state.version
        if plan.seconds is not None and now > plan.seconds:
            break
        tally.count(moment)
        is_last = plan.rounds is not None and version >= plan.rounds
        # Only the instant that makes a version is worth a record: all that arrived has been merged into it.
        if version > state.version and (now >= due or is_last):
            yield tally.snapshot(version, now, time.perf_counter() - started, asdict(evaluate(moment.state.weights)))
            due = (math.floor(now / every) + 1) * every if every else now
        state = moment.state
        if is_last:
            return
    assert plan.seconds is not None
    if tally.recorded_seconds < plan.seconds:
        wall_seconds = time.perf_counter() - started
        yield tally.snapshot(state.version, float(plan.seconds), wall_seconds, asdict(evaluate(state.weights)))


def _evaluation(plan: Run, task: Task) -> Evaluation:
    train, test = (
        samples if task.scored is None else samples.drawn(task.scored, plan.seed) for samples in (task.train, task.test)
    )
    return Evaluation(forward_for(task), train, test, plan.timing.is_straggler, task.l2)


@contextmanager
def _cores_left_to_training(task: Task) -> Iterator[None]:
    """The closed form brings its own threads, one a core; PyTorch's would wait in busy loops and take the cores from them."""
    threads = torch.get_num_threads()
    if _closed_form_classes(task) is not None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _stage(plan: Run) -> tuple[Task, FleetTiming, Fleet]:
    """The task, timing and fleet a run really has: S-SGD has one device that holds all the data and takes 1 s."""
    centralised = isinstance(plan.algorithm, SSGD)
    task = plan.task.pooled() if centralised else plan.task
    timing: FleetTiming = ConstantSeconds(1) if centralised else plan.timing
    return task, timing, Fleet(task.train.num_samples, timing.expected_seconds, plan.seed)


MOST_DISCARDED_IN_A_ROW = 1000
"""So many updates thrown away one after the other, and a run is given up: it would never make another version."""


class _Tally:
    """Counts what happened since the start, and since the last record."""

    def __init__(self, bytes_a_model: int, sent: int) -> None:
        self._bytes_a_model = bytes_a_model
        self._sent, self._received, self._merged, self._discarded = sent, 0, 0, 0
        self._arrivals: list[Arrival] = []
        self._discarded_in_a_row = 0
        self.recorded_seconds = 0.0

    def count(self, moment: Moment[Any]) -> None:
        for update, receipt in zip(moment.inbox.updates, moment.outbox.receipts, strict=True):
            job = update.job
            self._arrivals.append(
                Arrival(job.device, job.version, job.sent_at, moment.inbox.now, receipt.staleness, receipt.discarded)
            )
            self._merged += receipt.discarded is None
            self._discarded += receipt.discarded is not None
            self._discarded_in_a_row = 0 if receipt.discarded is None else self._discarded_in_a_row + 1
        if self._discarded_in_a_row >= MOST_DISCARDED_IN_A_ROW:
            raise InputError(
                f"The last {self._discarded_in_a_row} updates were all discarded as '{self._arrivals[-1].discarded}', so "
                "no version will ever be made: give devices more time."
            )
        self._received += len(moment.inbox.updates)
        self._sent += len(moment.outbox.jobs)

    def snapshot(self, version: int, seconds: float, wall_seconds: float, scores: dict[str, float]) -> Snapshot:
        staleness = [arrival.staleness for arrival in self._arrivals if arrival.discarded is None]
        record = Record(
            version=version,
            seconds=seconds,
            wall_seconds=round(wall_seconds, 3),
            merged=self._merged,
            mean_staleness=float(np.mean(staleness)) if staleness else math.nan,
            max_staleness=max(staleness, default=0),
            bytes_sent=self._sent * self._bytes_a_model,
            bytes_received=self._received * self._bytes_a_model,
            discarded=self._discarded,
            **scores,
        )
        arrivals, self._arrivals = tuple(self._arrivals), []
        self.recorded_seconds = seconds
        return Snapshot(record, arrivals)


def simulate(
    task: Task,
    algorithm: Algorithm[Any],
    timing: FleetTiming,
    seconds: float | None = None,
    rounds: int | None = None,
    evaluate_every: float | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    label: str = "",
) -> list[Record]:
    """Run one algorithm in virtual time and return its records; `out` keeps them in a folder that `report` can read."""
    plan = Run(task, algorithm, timing, seconds, rounds, evaluate_every, seed, label)
    if out is None:
        return [snapshot.record for snapshot in execute(plan)]
    return list(save(plan, Path(out)))


def save(plan: Run, folder: Path) -> Iterator[Record]:
    """Execute a run, writing its folder as it goes; a run that cannot start writes nothing."""
    snapshots = execute(plan)
    first = next(snapshots)
    with RunFolder(folder, plan.config()) as files:
        for snapshot in itertools.chain([first], snapshots):
            files.write(snapshot.record, snapshot.arrivals)
            yield snapshot.record


def _held_once(tensor: Tensor) -> Tensor:
    """The numbers behind a tensor. Overlapping windows are a view of far fewer numbers than they have entries."""
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.contiguous() if tensor.numel() <= stored else tensor.as_strided((stored,), (1,), 0)


def _name_of(loss: Loss) -> str:
    """A name without a memory address, so that the same run has the same configuration tomorrow."""
    if isinstance(loss, functools.partial):
        given = [*map(repr, loss.args), *(f"{name}={value!r}" for name, value in loss.keywords.items())]
        return f"{_name_of(loss.func)}({', '.join(given)})"
    return str(getattr(loss, "__name__", type(loss).__name__))


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("hybridfl", "torch", "numpy", "numba") if find_spec(name)}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}
