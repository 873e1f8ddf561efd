"""Running experiments: one run or many, in memory or into folders."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hybridfl.engines import CPU, device_named
from hybridfl.errors import InputError
from hybridfl.lockstep import execute_all
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm
from hybridfl.records import Record, RunFolder
from hybridfl.tally import Snapshot
from hybridfl.task import Task
from hybridfl.timing import FleetTiming


def execute(plan: Run, device: str = "auto") -> Iterator[Snapshot]:
    """Play a run in virtual time: a snapshot at the start and at every evaluation."""
    for _, snapshot in execute_all([plan], device_named(device)):
        yield snapshot


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
    device: str = "auto",
) -> list[Record]:
    """Run one algorithm in virtual time and return its records; `out` keeps them in a folder that `report` can read."""
    plan = Run(task, algorithm, timing, seconds, rounds, evaluate_every, seed, label)
    if out is None:
        return [snapshot.record for snapshot in execute(plan, device)]
    return [record for _, record in save_all([plan], [Path(out)], device)]


def save_all(
    plans: Sequence[Run], folders: Sequence[Path], device: str = "auto", ray: str | None = None
) -> Iterator[tuple[Run, Record]]:
    """Play runs together, writing each one's folder as it goes; a run that cannot start writes nothing.

    `ray`: the address of a Ray cluster to spread them over, or `auto`; see `ray_cluster.py`.
    """
    snapshots = execute_all(plans, device_named(device)) if ray is None else _execute_on_ray(plans, device, ray)
    folder_of = {id(plan): folder for plan, folder in zip(plans, folders, strict=True)}
    files: dict[int, RunFolder] = {}
    for plan, snapshot in snapshots:
        if id(plan) not in files:
            files[id(plan)] = RunFolder(folder_of[id(plan)], plan.config())
        files[id(plan)].write(snapshot.record, snapshot.arrivals)
        yield plan, snapshot.record


def _execute_on_ray(plans: Sequence[Run], device: str, address: str) -> Iterator[tuple[Run, Snapshot]]:
    """Whole runs where there is one for every worker, else their jobs."""
    from hybridfl.ray_cluster import Cluster, RayTrainer, execute_on_cluster

    if device != "auto" and device_named(device) != CPU:
        raise InputError("Ray's workers train on their CPUs: use --device cuda without --ray.")
    with Cluster(address) as cluster:
        if len(plans) >= len(cluster.workers):
            yield from execute_on_cluster(plans, cluster)
        else:
            yield from execute_all(plans, CPU, functools.partial(RayTrainer, cluster))
