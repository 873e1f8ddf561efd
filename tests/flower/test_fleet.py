"""Real SuperLinks and SuperNodes on loopback, killed by their own pids."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridfl.flower.local_fleet import LocalFleet
from hybridfl.records import Arrival, SavedRun, load
from hybridfl.run_folder import FINISHED

pytestmark = pytest.mark.flower
APP = Path(__file__).parents[2] / "examples" / "flower"
_PORTS = itertools.count(21_000 + 1_000 * (os.getpid() % 20), 200)


class Trial:
    """A fleet, and a run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = LocalFleet(folder / "fleet", next(_PORTS)).__enter__()
        self.out = folder / "out"
        self.app = APP

    def begin(self, seconds: tuple[float, ...], *superlink: str) -> Trial:
        """A SuperLink and a device for each of these, which takes so long for a job."""
        self.fleet.superlink(*superlink)
        self.fleet.configure()
        for number, each in enumerate(seconds):
            self.node(number, len(seconds), each)
        return self

    def node(self, number: int, count: int, seconds: float = 0.0, **config: str) -> None:
        said = {"partition-id": number, "num-partitions": count, "at-least-seconds": seconds}
        self.fleet.node(number, said | config)  # type: ignore[arg-type]

    def run(self, **config: str | int | float) -> str:
        """Start a run, and return its number."""
        said = {"out": str(self.out), "guard": "off"} | config
        text = " ".join(f"{n.replace('_', '-')}={v!r}" for n, v in said.items())
        result = self.fleet.flwr("run", str(self.app), "local-fleet", "--run-config", text, "--format", "json")
        assert result.returncode == 0, result.stdout + result.stderr
        import json

        return str(json.loads(result.stdout)["run-id"])

    def wait(self, until: Callable[[], bool] | None = None, seconds: float = 240) -> SavedRun:
        end = time.monotonic() + seconds
        while not (until() if until else (self.out / FINISHED).exists()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)
        return load(self.out)

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in sorted(self.fleet.folder.glob("*.log"))
        )

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        return load(self.out).arrivals if (self.out / "run.json").exists() else ()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    made.fleet.stop()


def once_each(arrivals: tuple[Arrival, ...]) -> bool:
    """No job has two ends: nothing is counted twice."""
    ends = [(arrival.device, arrival.version, arrival.sent_at) for arrival in arrivals]
    return len(ends) == len(set(ends))


def test_rounds_close_at_the_normal_devices_pace_and_late_work_is_merged(trial: Trial) -> None:
    trial.begin((0, 0, 0, 30, 45, 60))
    trial.run(algorithm="hfl", rounds=8, devices=6)
    run = trial.wait()
    slow = [arrival for arrival in run.arrivals if arrival.device >= 3]
    assert slow
    assert all(arrival.is_merged for arrival in run.arrivals)
    assert once_each(run.arrivals)
    versions = {arrival.arrived_at: None for arrival in slow}
    assert versions
    for arrival in slow:
        assert arrival.staleness >= 1
    print([(r.version, r.seconds) for r in run.records], [(a.device, a.staleness, a.arrived_at) for a in slow])
