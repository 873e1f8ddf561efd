"""HFL against FedAvg on a real fleet: six SuperNodes on this machine, three of them slow. Needs `hybridfl[flower]`.

python benchmarks/flower_fleet.py [--seconds 270] [--slow-seconds 60] [--seeds 1]

All run for so many seconds on a fleet of the same kind: FedAvg with everyone, HFL, HFL with drift control. Printed: the
wall-clock seconds until each is at the loss that FedAvg has at its end, and how many times sooner than FedAvg that is.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from pathlib import Path

from hybridfl.flower.local_fleet import LocalFleet
from hybridfl.records import FINISHED, Record, load

APP = Path(__file__).parents[1] / "examples" / "flower"
DEVICES, SLOW = 6, 3
CONTESTANTS = {"FedAvg": "FedAvg(participants=Everyone())", "HFL": "hfl", "HFL, drift control": "hfl-drift"}
WITH_TEST_SET = f'''

def model_and_test(context):
    """All devices' held-out samples: scores that devices report cover only those that have answered."""
    import torch

    task = read_task(str(context.run_config["task"])).build({DEVICES}, int(context.run_config["seed"]))
    return task.model, task.test.take(torch.from_numpy(task.test.index))
'''


def records(algorithm: str, seed: int, seconds: float, slow_seconds: float, port: int) -> tuple[Record, ...]:
    """What a run on a fleet of its own records."""
    with tempfile.TemporaryDirectory() as folder, LocalFleet(Path(folder) / "fleet", port) as fleet:
        out = Path(folder) / "out"
        app = shutil.copytree(APP, Path(folder) / "app")
        with (app / "hybridfl_app" / "task.py").open("a") as file:
            file.write(WITH_TEST_SET)
        fleet.superlink()
        name = fleet.configure()
        for number in range(DEVICES):
            takes = slow_seconds if number >= DEVICES - SLOW else 0.0
            fleet.node(number, {"partition-id": number, "num-partitions": DEVICES, "at-least-seconds": takes})
        said = (
            f"algorithm='{algorithm}' rounds=0 seconds={seconds} devices={DEVICES} seed={seed} guard='off' out='{out}'"
        )
        result = fleet.flwr("run", str(app), name, "--run-config", said)
        assert result.returncode == 0, result.stdout + result.stderr
        while not (out / FINISHED).exists():
            time.sleep(1)
        return load(out).records


def first_below(found: tuple[Record, ...], loss: float) -> float:
    """When a run's test loss was first at or below this."""
    return next((record.seconds for record in found if record.test_loss <= loss), math.inf)


def compared(seed: int, seconds: float, slow_seconds: float) -> dict[str, float]:
    """How many times sooner than FedAvg each is at FedAvg's last loss; 0: it never was."""
    found = {
        name: records(algorithm, seed, seconds, slow_seconds, 24_000 + 400 * number)
        for number, (name, algorithm) in enumerate(CONTESTANTS.items())
    }
    goal = found["FedAvg"][-1].test_loss
    needed = {name: first_below(run, goal) for name, run in found.items()}
    for name, run in found.items():
        last = run[-1]
        print(
            f"seed {seed}, {name}: {last.version} versions, {last.seconds / max(last.version, 1):.1f} s each; test loss "
            f"{last.test_loss:.3f} after {last.seconds:.0f} s; at {goal:.3f} after {needed[name]:.0f} s",
            flush=True,
        )
    return {name: needed["FedAvg"] / each for name, each in needed.items()}


def main() -> None:
    """One fleet after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--slow-seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    ratios = [compared(seed, given.seconds, given.slow_seconds) for seed in range(given.seeds)]
    for name in CONTESTANTS:
        each = ", ".join(f"{ratio[name]:.1f}" for ratio in ratios)
        print(f"{name}: {each} times FedAvg's speed to FedAvg's last loss")


if __name__ == "__main__":
    main()
