"""What the peer scripts share: the devices' samples, and speeds measured when they are asked for.

A peer script is started with the arguments of `assignment()`. It warms up, answers `{"ready": true}`, and from then on
answers every line of its standard input, a number of seconds, with `{"steps": n, "updates": n, "seconds": s}` of what it
simulated in about that time. It ends with its input. So contestants can take turns on one machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LEARNING_RATE = 0.01
COHORT = 10

# What frameworks print must not get in between the answers: it goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


@dataclass(frozen=True)
class Assignment:
    """Device i holds the rows `offsets[i]` to `offsets[i + 1]` of inputs and targets."""

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]
    offsets: NDArray[np.int64]
    weight_decay: float
    batch_size: int
    epochs: int
    asynchronous: bool

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.offsets) - 1

    def samples(self, device: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(inputs, targets) of a device."""
        rows = slice(self.offsets[device], self.offsets[device + 1])
        return self.inputs[rows], self.targets[rows]


@functools.cache
def assignment(*arguments: str) -> Assignment:
    """What the command line asks for; read once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="an .npz of inputs, targets, offsets and weight_decay")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--asynchronous", action="store_true", help="FedBuff with a buffer of 10 and all devices busy")
    asked = parser.parse_args(arguments)
    with np.load(asked.data) as data:
        return Assignment(
            data["inputs"],
            data["targets"],
            data["offsets"],
            float(data["weight_decay"]),
            asked.batch_size,
            asked.epochs,
            asked.asynchronous,
        )


def answer(play: Callable[[], tuple[int, int]]) -> None:
    """Answer requests; `play` simulates a few rounds and says how many (steps, updates) that were."""
    play()
    print(json.dumps({"ready": True}), file=ANSWERS)
    for request in sys.stdin:
        started, steps, updates = time.perf_counter(), 0, 0
        while (seconds := time.perf_counter() - started) < float(request):
            more_steps, more_updates = play()
            if more_steps == 0:
                raise RuntimeError("nothing was trained")
            steps, updates = steps + more_steps, updates + more_updates
        print(json.dumps({"steps": steps, "updates": updates, "seconds": seconds}), file=ANSWERS)
