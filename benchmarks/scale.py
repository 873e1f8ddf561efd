"""How large a fleet one machine simulates: starting time, memory and time a round at 10,000 to 1,000,000 devices.

    python benchmarks/scale.py
    python benchmarks/scale.py --devices 1000000 --rounds 300

Every line is a process of its own. A round asks 100 devices of the fleet; a version of FedBuff is made of 10 updates. Medians
of all rounds, of the first third and of the last: what grows from one to the other is what HFL remembers, not the fleet.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

STRETCHES = 3


def algorithms() -> dict[str, Any]:
    """What is measured."""
    from hybridfl import HFL, FedAvg, FedBuff, Memory, Uniform

    return {
        "FedAvg": FedAvg(Uniform(100)),
        "FedBuff": FedBuff(concurrency=100),
        "HFL": HFL(participants=Uniform(100)),
        "HFL, float16": HFL(Memory(storage="float16"), participants=Uniform(100)),
        "HFL, at most 2,000": HFL(Memory(most=2000), participants=Uniform(100)),
    }


def measure(name: str, devices: int, rounds: int) -> dict[str, float]:
    """One run, from nothing: importing, generating the data, the first record, then the rounds."""
    started = time.perf_counter()
    import torch

    from hybridfl import Run, SyntheticCrowd, execute, phones

    run = Run(SyntheticCrowd().build(devices, 0), algorithms()[name], phones(), rounds=rounds, evaluate_every=1e9)
    from hybridfl.algorithms.hfl import HFLState
    from hybridfl.engines import CPU, trainer_for
    from hybridfl.plan import Stage
    from hybridfl.simulation import Simulation
    from hybridfl.vectors import flatten

    first = next(iter(execute(run, "cpu")))
    assert first.record.version == 0
    stage = Stage.of(run)
    trainer = trainer_for(stage.task, 0, CPU)
    torch.set_num_threads(1)
    simulation = Simulation(stage.fleet, trainer, stage.timing)
    state, outbox = stage.algorithm.init(flatten(stage.task.model), stage.fleet)
    ready = time.perf_counter()
    turns: list[float] = []
    while state.version < rounds:
        before, begun = state.version, time.perf_counter()
        while state.version == before:
            simulation.send(outbox)
            state, outbox = stage.algorithm.step(state, simulation.receive())
        turns.append(time.perf_counter() - begun)
    parts = [1000 * statistics.median(part) for part in np.array_split(turns[5:], STRETCHES)]
    remembered = len(state.memory) if isinstance(state, HFLState) else 0
    return {
        "start": ready - started,
        "first": parts[0],
        "last": parts[-1],
        "middle": 1000 * statistics.median(turns[5:]),
        "remembered": remembered,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    """A table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, devices = arguments.one
        print(json.dumps(measure(name, int(devices), arguments.rounds)))
        return
    heads = ("algorithm", "devices", "start s", "memory GiB", "ms a round", "(first third", "last third)", "remembered")
    print("  ".join(f"{head:>{width}}" for head, width in zip(heads, (18, 9, 7, 10, 10, 12, 11, 10), strict=True)))
    for name in algorithms():
        for devices in arguments.devices:
            command = [sys.executable, __file__, "--one", name, str(devices), "--rounds", str(arguments.rounds)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(
                f"{name:>18}  {devices:>9,}  {found['start']:>7.1f}  {found['memory']:>10.2f}  {found['middle']:>10.1f}  "
                f"{found['first']:>12.1f}  {found['last']:>11.1f}  {found['remembered']:>10,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
