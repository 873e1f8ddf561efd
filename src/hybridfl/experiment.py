"""Running experiments: one run or many, in memory or into folders."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hybridfl.algorithms.guard import Guard, Guarded
from hybridfl.conditions import Conditions
from hybridfl.engines import CPU, device_named, warn_if_slow
from hybridfl.errors import InputError
from hybridfl.folder_lock import locked
from hybridfl.lockstep import Event, Saves, execute_all
from hybridfl.plan import Run
from hybridfl.playing import Ended, Often
from hybridfl.protocol import Algorithm
from hybridfl.records import (
    Arrival,
    DeviceScore,
    Record,
    changed_code,
    changed_versions,
    check_apart,
    check_folder,
    checked_config,
    load,
    named_folder,
)
from hybridfl.run_folder import RunFolder
from hybridfl.saving import FolderSaves
from hybridfl.standstill import why_no_version
from hybridfl.tally import Snapshot
from hybridfl.task import Task
from hybridfl.timing import Pace

log = logging.getLogger("hybridfl")


@dataclass(frozen=True, eq=False)
class Result:
    """What came of a run: its records and arrivals, how its last model does on each device, and that model.

    >>> from hybridfl import FedAvg, Synthetic
    >>> result = simulate(Synthetic().build(10, 0), FedAvg(5), "paper", rounds=3)
    >>> [record.version for record in result.records]
    [0, 1, 2, 3]
    >>> result.model
    LogisticRegression(
      (linear): Linear(in_features=60, out_features=10, bias=True)
    )
    """

    records: tuple[Record, ...]
    """One per evaluation; the last one is of the last model."""
    arrivals: tuple[Arrival, ...]
    """One per job that has ended."""
    devices: tuple[DeviceScore, ...]
    """Of the devices that hold test samples; empty where there are no classes or the run diverged."""
    model: nn.Module
    """A copy of the task's model with the last weights, in eval mode."""


def execute(plan: Run, device: str | torch.device = "auto") -> Iterator[Snapshot]:
    """Play a run in virtual time: a snapshot at the start and at every evaluation.

    `break` ends it; `plan.task.model_with(snapshot.weights)` is the model as it was then.
    """
    for event in _played(plan, device):
        if isinstance(event, Snapshot):
            yield event


def _played(plan: Run, device: str | torch.device) -> Iterator[Event]:
    """All that comes of a run; what a reader of its numbers should know is a warning."""
    place = device_named(device)
    warn_if_slow(plan.task, place)
    for _, event in execute_all([plan], place):
        if isinstance(event, Snapshot):
            _warn_of_divergence(plan, event.record)
            _warn_of_standstill(plan, event)
        yield event


def _warn_of_divergence(plan: Run, record: Record) -> None:
    if record.has_diverged:
        is_exposed = bool(plan.stage.timing.is_hostile.any()) and not isinstance(plan.stage.algorithm, Guarded)
        log.warning(
            "%s on %s, seed %d, has diverged at version %d, after %g s: its weights or losses are not finite, and it ends "
            "there. %s",
            plan.name,
            plan.task.name,
            plan.seed,
            record.version,
            record.seconds,
            "Its fleet has hostile devices: refuse their updates by a guard, --guard on (in Python guard=Guard())."
            if is_exposed
            else "Use a smaller learning rate, or clip the gradients.",
        )


def _warn_of_other_weights(task: Task) -> None:
    if task.is_shown_changed:
        log.warning(
            "`task.model` has other weights than the task was made with, and runs start from those: to start from these, make "
            "the task from that model (copy.deepcopy(task.model))."
        )


def simulate(
    task: Task,
    algorithm: Algorithm[Any] | str,
    timing: Pace | Conditions | str,
    seconds: float | None = None,
    rounds: int | None = None,
    evaluate_every: float | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    label: str = "",
    device: str | torch.device = "auto",
    guard: Guard | str | None = None,
    checkpoint_every: int | None = None,
    fresh: bool = False,
) -> Result:
    """Run one algorithm in virtual time: its records, arrivals, scores by device and last model.

    Algorithm, fleet and guard are objects or texts, as on the command line: `simulate(task, "hfl", "phones", seconds=50)`.
    `out` keeps them in a folder that `report` can read. A run that was interrupted there goes on, one that has ended is
    not run again, unless `fresh`. `checkpoint_every`: versions between two checkpoints; None: at most one a minute.
    """
    parts: tuple[Any, ...] = algorithm, timing, guard  # a run reads texts
    plan = Run(task, parts[0], parts[1], seconds, rounds, evaluate_every, seed, label, parts[2])
    _warn_of_other_weights(task)
    if out is None:
        return _in_memory(plan, device)
    folder = named_folder("out", out)
    records = save_all([plan], [folder], device, checkpoint_every=checkpoint_every, fresh=fresh)
    files = RunFolder(folder, plan.config)
    if not fresh and files.is_finished:
        log.warning("'%s' holds this run already: it is read back, not run again (fresh=True runs it again).", out)
    try:
        with contextlib.closing(records):
            for _ in records:
                pass
    except KeyboardInterrupt:
        goes_on = (
            "goes on from its last checkpoint" if files.has_checkpoints else "begins again: no checkpoint was due yet"
        )
        log.warning("Interrupted. What was recorded is in '%s'; the same call %s.", out, goes_on)
        raise
    saved = load(folder)
    return Result(saved.records, saved.arrivals, saved.devices, files.read_model(task.first_model))


def _in_memory(plan: Run, device: str | torch.device) -> Result:
    records: list[Record] = []
    arrivals: list[Arrival] = []
    for event in _played(plan, device):
        if isinstance(event, Snapshot):
            records.append(event.record)
            arrivals += event.arrivals
        elif isinstance(event, Ended):
            ended = event
    return Result(tuple(records), tuple(arrivals), ended.devices, plan.task.model_with(ended.weights))


def save_all(
    plans: Sequence[Run],
    folders: Sequence[str | Path],
    device: str | torch.device = "auto",
    ray: str | None = None,
    checkpoint_every: int | None = None,
    fresh: bool = False,
) -> Generator[tuple[Run, Record]]:
    """Play runs together, writing each one's folder as it goes. A run that could not start is an error now, not later.

    A run that has ended in its folder is not run again (its last record is all that is yielded), one that was interrupted
    goes on from its last checkpoint; with `fresh`, all begin again. After a `break` the same call goes on.
    `ray`: the address of a Ray cluster to spread them over, or `auto`; see `ray_cluster.py`.
    """
    paths = [Path(folder) for folder in folders]
    check_apart([plan.name for plan in plans], paths)
    place = device_named(device) if ray is None else CPU
    for plan in plans:
        plan.forget_config()
    saves = FolderSaves(plans, paths, place, Often(checkpoint_every))
    for plan, folder in zip(plans, paths, strict=True):
        _ = plan.stage  # a run that could not start is an error before anything is written
        checked_config(plan.config, f"{plan.name}, seed {plan.seed}", "it could not be read back, so give another")
        check_folder(folder, plan.config)
        if not fresh:
            _check_code(folder, saves.files(plan))

    for task in {id(plan.task): plan.task for plan in plans}.values():
        warn_if_slow(task, place)

    def play(left: Sequence[Run]) -> Iterator[tuple[Run, Event]]:
        return execute_all(left, place, saves=saves) if ray is None else _on_ray(left, device, ray, saves)

    return _saved(plans, paths, saves, play, fresh)


def _check_code(folder: Path, files: RunFolder) -> None:
    """Refuse to read back, or to go on with, what other code has computed: its numbers would pass for this code's."""
    code = changed_code(folder, files.config)
    versions = changed_versions(folder, files.config) if files.is_finished else []  # going on with others is a warning
    changed = code + versions
    if changed:
        names = ", ".join(f"'{name}'" for name in changed[:3]) + (", …" if len(changed) > 3 else "")
        remark = "; a value that your code itself changes, a cache for example, counts too" if code else ""
        raise InputError(
            f"'{folder}' holds results of other code ({names} changed since{remark}): run it again with "
            "fresh=True (--fresh), or choose another folder."
        )


def _saved(
    plans: Sequence[Run],
    folders: Sequence[Path],
    saves: FolderSaves,
    play: Callable[[Sequence[Run]], Iterator[tuple[Run, Event]]],
    fresh: bool,
) -> Generator[tuple[Run, Record]]:
    with locked(folders):
        for plan in plans:
            saves.files(plan).announce()
            if fresh:
                saves.files(plan).clear()
        for plan in plans:
            if saves.files(plan).is_finished:
                last = load(saves.files(plan).folder).records[-1]
                saves.files(plan).check_model()
                _warn_of_divergence(plan, last)
                yield plan, last
        for plan, event in play([plan for plan in plans if not saves.files(plan).is_finished]):
            saves.write(plan, event)
            if isinstance(event, Snapshot):
                _warn_of_divergence(plan, event.record)
                _warn_of_standstill(plan, event)
                yield plan, event.record


def _warn_of_standstill(plan: Run, said: Snapshot) -> None:
    """Beside its first record, at 0 s, a run that makes no version has one more, at its end, and all its arrivals with it."""
    if said.record.seconds > 0:
        reason = why_no_version(said.record, said.arrivals, plan.stage.timing.expected_seconds)
        if reason is not None:
            log.warning("%s, seed %d: no version was made: %s", plan.name, plan.seed, reason)


def _on_ray(
    plans: Sequence[Run], device: str | torch.device, address: str, saves: Saves
) -> Iterator[tuple[Run, Event]]:
    """Whole runs where there is one for every worker, else their jobs."""
    from hybridfl.ray_cluster import Cluster, RayTrainer, execute_on_cluster

    if device != "auto" and device_named(device) != CPU:
        raise InputError("Ray's workers train on their CPUs: use --device cuda without --ray.")
    if not plans:
        return
    with Cluster(address) as cluster:
        if len(plans) >= len(cluster.workers):
            yield from execute_on_cluster(plans, cluster, saves)
        else:
            yield from execute_all(plans, CPU, functools.partial(RayTrainer, cluster), saves)
