"""Deployments and devices as an app's configuration says: `[tool.flwr.app.config]`, or `flwr run --run-config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from torch import Tensor, nn

from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import FullWork
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError, nearest
from hybridfl.flower.deployment import Deployment
from hybridfl.losses import Loss, cross_entropy
from hybridfl.protocol import Algorithm
from hybridfl.spelling import read_algorithm, read_guard
from hybridfl.task import Task
from hybridfl.wording import counted

KEYS = {
    "task": str,
    "algorithm": str,
    "guard": str,
    "rounds": int,
    "seconds": float,
    "round-seconds": float,
    "devices": int,
    "seed": int,
    "out": str,
}
"""What an app's configuration may say, besides what is the app's own."""


def deployment_of(
    context: Context,
    model: nn.Module,
    test: tuple[Tensor, Tensor] | None = None,
    loss: Loss = cross_entropy,
    local: FullWork = FullWork(),
) -> Deployment:
    """The deployment an app is configured for. `local` is the work of algorithms that are given by name."""
    said = _checked(context.run_config)
    algorithm = read_algorithm(str(said.get("algorithm", "hfl")), local)
    return Deployment(
        model,
        _paced(algorithm, float(said.get("round-seconds", 0))),
        Path(str(said.get("out", "results/flower"))),
        rounds=int(said.get("rounds", 0)) or None,
        seconds=float(said.get("seconds", 0)) or None,
        devices=int(said.get("devices", 2)),
        seed=int(said.get("seed", 0)),
        guard=read_guard(str(said.get("guard", "on"))),
        test=test,
        loss=loss,
        name=str(said.get("task", "deployment")),
        label=str(said.get("algorithm", "hfl")),
    )


def partition_of(context: Context) -> tuple[int, int]:
    """(partition-id, num-partitions) of a device's node-config: which part of the data is its own, and of how many."""
    try:
        return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as missing:
        raise InputError(
            f"The node-config has no {missing.args[0]}: start the SuperNode with, say, "
            '--node-config "partition-id=0 num-partitions=3".'
        ) from None


def part_of(task: Task, device: int) -> Task:
    """One device's part of a task: what that device alone would have."""
    if not 0 <= device < len(task.train):
        raise InputError(
            f"partition-id={device}, but the task has {counted(len(task.train), 'partition')}: count from 0."
        )
    return replace(task, train=_part(task.train, device), test=_part(task.test, device))


def _part(samples: Samples, device: int) -> Samples:
    return samples.with_rows([samples.rows(device)])


def _paced(algorithm: Algorithm[Any], round_seconds: float) -> Algorithm[Any]:
    if not round_seconds:
        return algorithm
    if not isinstance(algorithm, HFL):
        raise InputError(
            f"round-seconds={round_seconds:g} is for HFL; {type(algorithm).__name__} has no such rounds: give 0."
        )
    return replace(algorithm, round_seconds=round_seconds)


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse values of the wrong kind, and names that are almost ours."""
    for name, value in config.items():
        kind = KEYS.get(name)
        if kind is None and (hint := nearest(name, KEYS)):
            raise InputError(f"Unknown setting '{name}'.{hint}")
        fits = isinstance(value, (int, float) if kind is float else kind or object)
        if kind is not None and (not fits or isinstance(value, bool)):
            raise InputError(f"{name}={value!r} should be of type {kind.__name__}.")
    if config.get("out") == "":
        raise InputError("out='' is no folder: give one to keep the results in.")
    return config
