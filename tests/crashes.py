"""Kills a run again and again and lets it go on: `python tests/crashes.py hfl 50`. What is left must be as if nothing was.

Every run is a process of its own, forked from one that has loaded all there is to load but computed nothing: it dies of
SIGKILL at a random moment, in training, between two records or in the middle of a checkpoint's files.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hybridfl.codec
import hybridfl.dense_training  # noqa: F401 - loaded before the first fork
from hybridfl import (
    FedAsync,
    FedAvg,
    FedBuff,
    FedProx,
    FullWork,
    Guard,
    Run,
    Synthetic,
    Task,
    Uniform,
    flaky,
    synthetic,
)
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.experiment import save_all
from hybridfl.fleets import day_night
from hybridfl.protocol import Algorithm

LOCAL = FullWork(epochs=1, batch_size=16)
ROUNDS = 10
FILES = ("records.jsonl", "arrivals.jsonl", "model.safetensors")

ALGORITHMS: dict[str, Algorithm[Any]] = {
    "hfl": HFL(local=LOCAL),
    "hfl-as-printed": HFL.as_printed(local=LOCAL),
    "fedavg": FedAvg(Uniform(4), LOCAL),
    "fedprox": FedProx(1.0, participants=Uniform(4), local=LOCAL),
    "fedasync": FedAsync(local=LOCAL),
    "fedbuff": FedBuff(buffer=3, local=LOCAL),
    "s-sgd": SSGD(LOCAL),
    "network": HFL.drift_controlled(local=LOCAL),
}


def plan(name: str) -> Run:
    """A run that checkpoints in every state there is: jobs trained and untrained, updates waiting, devices away and barred."""
    if name == "network":
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 5), nn.GELU(), nn.Linear(5, 10))
        task = Task.from_devices(synthetic(1, 1, 8, 0), model)
        return Run(task, ALGORITHMS[name], day_night(20.0), rounds=ROUNDS // 2, evaluate_every=0.5)
    return Run(Synthetic().build(8, 0), ALGORITHMS[name], flaky(), rounds=ROUNDS, evaluate_every=0.5, guard=Guard())


def play(name: str, folder: Path) -> None:
    for _ in save_all([plan(name)], [folder], "cpu", checkpoint_every=1):
        pass


def forked(name: str, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            play(name, folder)
        except BaseException as error:
            print(f"{name}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(name: str, kills: int, seed: int = 0) -> None:
    draw = random.Random(f"{name} {seed}")
    top = Path(tempfile.mkdtemp())
    started = time.monotonic()
    assert ended(forked(name, top / "whole")) == 0
    duration = time.monotonic() - started
    whole = {file: (top / "whole" / file).read_bytes() for file in FILES}
    folder, in_a_checkpoint, resumed, killed = top / "broken", 0, 0, 0
    while killed < kills:
        child = forked(name, folder)
        time.sleep(draw.uniform(0.0, duration))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL), f"{name}: a child ended with {code}"
        if code == -signal.SIGKILL:
            killed += 1
            files = list(folder.glob("checkpoints/*"))
            whole_ones = {path.stem for path in files if path.suffix == ".json"}
            in_a_checkpoint += any(path.stem not in whole_ones for path in files)
            resumed += bool(whole_ones)
        if (folder / "finished.json").exists() or killed == kills:
            assert ended(forked(name, folder)) == 0
            for file, content in whole.items():
                assert (folder / file).read_bytes() == content, f"{name}: {file} differs after a crash"
            shutil.rmtree(folder)
    shutil.rmtree(top)
    print(
        f"{name}: {kills} kills, {in_a_checkpoint} of them within a checkpoint's files, {resumed} with one to go on from"
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
