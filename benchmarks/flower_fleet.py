"""HFL against FedAvg on a real fleet: six SuperNodes on this machine, three of them slow. Needs `hybridfl[flower]`.

python benchmarks/flower_fleet.py [--seconds 240] [--slow-seconds 60]

Both run for so many seconds on the same kind of fleet, FedAvg with everyone and HFL. Printed: the wall-clock seconds until
each is at the loss that FedAvg has at its end, and their ratio.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from pathlib import Path

from hybridfl.flower.local_fleet import LocalFleet
from hybridfl.records import Record, load
from hybridfl.run_folder import FINISHED

APP = Path(__file__).parents[1] / "examples" / "flower"
DEVICES, SLOW = 6, 3
WITH_TEST_SET = f'''

def model_and_test(context):
    """All devices' held-out samples: scores that devices report cover only those that have answered."""
    import torch

    task = read_task(str(context.run_config["task"])).build({DEVICES}, int(context.run_config["seed"]))
    return task.model, task.test.take(torch.from_numpy(task.test.index))
'''


def records(algorithm: str, seconds: float, slow_seconds: float, port: int) -> tuple[Record, ...]:
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
        said = f"algorithm='{algorithm}' rounds=0 seconds={seconds} devices={DEVICES} guard='off' out='{out}'"
        result = fleet.flwr("run", str(app), name, "--run-config", said)
        assert result.returncode == 0, result.stdout + result.stderr
        while not (out / FINISHED).exists():
            time.sleep(1)
        return load(out).records


def first_below(found: tuple[Record, ...], loss: float) -> float:
    """When a run's test loss was first at or below this."""
    return next((record.seconds for record in found if record.test_loss <= loss), math.inf)


def main() -> None:
    """One fleet after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--slow-seconds", type=float, default=60.0)
    given = parser.parse_args()
    found = {
        algorithm: records(algorithm, given.seconds, given.slow_seconds, 24_000 + 400 * number)
        for number, algorithm in enumerate(("FedAvg(participants=Everyone())", "hfl"))
    }
    fedavg, hfl = found.values()
    goal = fedavg[-1].test_loss
    for algorithm, run in found.items():
        print(f"{algorithm}: {', '.join(f'{r.seconds:.0f} s {r.test_loss:.3f}' for r in run)}")
        last = run[-1]
        rounds = f"{last.version} versions, {last.seconds / max(last.version, 1):.1f} s each"
        print(f"{algorithm}: {rounds}, test loss {last.test_loss:.3f}, accuracy {last.test_accuracy:.1%}")
    seconds = first_below(fedavg, goal), first_below(hfl, goal)
    print(
        f"seconds to test loss {goal:.3f}: FedAvg {seconds[0]:.0f}, HFL {seconds[1]:.0f}, {seconds[0] / seconds[1]:.1f} times"
    )


if __name__ == "__main__":
    main()
