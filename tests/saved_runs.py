"""Small runs with numbers known by heart, for the tests of what reads result folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridfl.records import Arrival, DeviceScore, Record, SavedRun
from hybridfl.run_folder import RunFolder


def record(version: int, seconds: float, accuracy: float = 0.5, **more: Any) -> Record:
    """An evaluation whose train loss is 1 + accuracy, whose test loss is 2 + accuracy."""
    values: dict[str, Any] = {
        "merged": version,
        "mean_staleness": math.nan,
        "max_staleness": 0,
        "train_loss": 1 + accuracy,
        "test_loss": 2 + accuracy,
        "test_accuracy": accuracy,
        "normal_accuracy": accuracy + 0.1,
        "straggler_accuracy": accuracy - 0.1,
        "bytes_sent": 0,
        "bytes_received": 0,
        "discarded": 0,
    }
    return Record(version=version, seconds=seconds, **(values | more))


def saved(
    label: str,
    records: Sequence[Record],
    arrivals: Sequence[Arrival] = (),
    seed: int = 0,
    algorithm: str = "HFL()",
    **config: Any,
) -> SavedRun:
    """A run of ten virtual seconds."""
    values = {
        "label": label,
        "algorithm": algorithm,
        "task": {"name": "toy", "devices": 3},
        "timing": "PaperDelays(stragglers=0.9, max_delay=10)",
        "seconds": 10,
        "rounds": None,
        "evaluate_every": None,
        "seed": seed,
        "versions": {"python": "3"},
    }
    return SavedRun(values | config, tuple(records), tuple(arrivals))


def fair(seed: int, by_device: float, label: str = "hfl", by_sample: float = 0.75) -> SavedRun:
    """A run that says how each of two devices fares."""
    last = record(1, 9, by_sample, device_accuracy=by_device, worst_accuracy=0.05, below_chance=0.2)
    devices = (DeviceScore(0, by_device, 5, False), DeviceScore(1, by_device, 3, True))
    return replace(
        saved(label, [replace(last, seconds=0.0, version=0, test_accuracy=0.1), last], seed=seed), devices=devices
    )


def broken(label: str = "hfl", seed: int = 0) -> SavedRun:
    """A run that diverged at version 3."""
    nothing = dict.fromkeys(("train_loss", "test_accuracy", "normal_accuracy", "straggler_accuracy"), math.nan)
    return saved(label, [record(0, 0, 0.1), record(3, 4, diverged_at=3, **nothing)], seed=seed)


def no_classes(label: str, loss: float) -> SavedRun:
    """A run of a task whose targets are no classes."""
    nothing = dict.fromkeys(("test_accuracy", "normal_accuracy", "straggler_accuracy"), math.nan)
    return saved(label, [record(0, 0, test_loss=2 * loss, **nothing), record(1, 9, test_loss=loss, **nothing)])


def write(folder: Path, *runs: SavedRun) -> Path:
    """Each run in a folder of its own below `folder`."""
    for place, run in enumerate(runs):
        files = RunFolder(folder / f"{place}", run.config)
        files.announce()
        files.write(run.records[0], run.arrivals)
        for each in run.records[1:]:
            files.write(each, ())
        if run.is_finished:
            files.finish({}, 1.0)
    return folder


def comparison() -> list[SavedRun]:
    """HFL ends at 0.75 with two seeds, FedAvg at 0.4 after throwing one update away, S-SGD at 0.9."""
    hfl = [
        saved(
            "hfl",
            [record(0, 0, 0.1), record(1, 1, 0.5), record(2, 2, 0.6 + seed / 10), record(9, 10, 0.7 + seed / 10)],
            [Arrival(0, 0, 0, 1, 0, None), Arrival(1, 0, 0, 1.5, 1, None), Arrival(0, 1, 1, 2, 0, None)],
            seed=seed,
        )
        for seed in (0, 1)
    ]
    fedavg = saved(
        "fedavg",
        [record(0, 0, 0.1), record(1, 3, 0.2), record(2, 10, 0.4, discarded=1)],
        [Arrival(0, 0, 0, 1, 0, None), Arrival(2, 0, 0, 3, 0, None), Arrival(1, 0, 0, 4, 1, "late")],
        algorithm="FedAvg()",
    )
    ssgd = saved("s-sgd", [record(0, 0, 0.1), record(1, 10, 0.9)], [Arrival(0, 0, 0, 1, 0, None)], algorithm="SSGD()")
    return [*hfl, fedavg, ssgd]
