"""Real SuperLinks and SuperNodes on loopback, killed by their own pids. What is shown is shown from `arrivals.jsonl`."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
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
Values = dict[str, str | int | float]


class Trial:
    """A fleet, and a run on it."""

    def __init__(self, folder: Path) -> None:
        self.fleet = LocalFleet(folder / "fleet", next(_PORTS)).__enter__()
        self.out = folder / "out"
        self.app = APP

    def begin(self, *seconds: float, superlink: tuple[str, ...] = ()) -> Trial:
        """A SuperLink and a device for each of these, which takes so long for a job."""
        self.fleet.superlink(*superlink)
        self.fleet.configure()
        for number, each in enumerate(seconds):
            self.node(number, len(seconds), {"at-least-seconds": each})
        return self

    def node(self, number: int, count: int, config: Values | None = None, *options: str) -> None:
        place: Values = {"partition-id": number, "num-partitions": count}
        self.fleet.node(number, place | (config or {}), *options)

    def run(self, **config: str | int | float) -> str:
        """Start a run, and return its number."""
        said = {"out": str(self.out), "guard": "off"} | config
        text = " ".join(f"{name.replace('_', '-')}={value!r}" for name, value in said.items())
        result = self.fleet.flwr("run", str(self.app), "local-fleet", "--run-config", text, "--format", "json")
        assert result.returncode == 0, result.stdout + result.stderr
        return str(json.loads(result.stdout)["run-id"])

    def wait(self, until: Callable[[], bool] | None = None, seconds: float = 240) -> SavedRun:
        """For the end, or for something else."""
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

    def has_version(self, version: int) -> Callable[[], bool]:
        return lambda: (self.out / "run.json").exists() and any(r.version >= version for r in load(self.out).records)

    def server_pid(self) -> int:
        """Of the ServerApp, which some process of the fleet has started."""
        found = subprocess.run(
            ["pgrep", "-f", f"flwr-serverapp.*{self.fleet.port}"], capture_output=True, text=True, check=True
        )
        return int(found.stdout.split()[0])


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    made.fleet.stop()


def check_counted_once(run: SavedRun) -> None:
    """Every job has one end, no update counts twice, and versions follow one another."""
    ends = [(arrival.device, arrival.version, arrival.sent_at) for arrival in run.arrivals]
    assert len(ends) == len(set(ends))
    assert run.records[-1].merged == sum(arrival.is_merged for arrival in run.arrivals)
    assert [record.version for record in run.records] == list(range(len(run.records)))


def of(run: SavedRun, device: int) -> list[Arrival]:
    return [arrival for arrival in run.arrivals if arrival.device == device]


def test_rounds_close_at_the_normal_devices_pace_and_late_work_is_merged(trial: Trial) -> None:
    trial.begin(0, 0, 0, 30, 45, 60)
    trial.run(algorithm="hfl", rounds=7, devices=6)
    run = trial.wait()
    check_counted_once(run)
    assert all(arrival.is_merged for arrival in run.arrivals)
    made = [record.seconds for record in run.records]
    for arrival in run.arrivals:
        version_then = sum(at <= arrival.arrived_at for at in made[1:])
        assert arrival.staleness in (version_then - arrival.version, version_then - arrival.version - 1)
        assert (arrival.arrived_at - arrival.sent_at > 30) == (arrival.device >= 3)
        assert arrival.staleness == 0 or arrival.device >= 3
    assert {arrival.device for arrival in run.arrivals if arrival.staleness >= 2} >= {3, 4}
    rounds = [after - before for before, after in itertools.pairwise(made[1:])]
    assert max(rounds) < 30, "nobody waits for a straggler"


def test_a_straggler_killed_in_mid_training_comes_back(trial: Trial) -> None:
    """Flower takes a minute to notice; then it has its old place."""
    trial.begin(0, 0, 25)
    trial.run(rounds=0, seconds=120.0, devices=3)
    trial.wait(trial.has_version(1))
    trial.fleet.kill("node-2")
    trial.node(2, 3, {"at-least-seconds": 12})
    run = trial.wait()
    check_counted_once(run)
    straggler = of(run, 2)
    assert [arrival.lost for arrival in straggler if arrival.lost] == ["its device came back as another node"]
    assert any(arrival.is_merged for arrival in straggler), "under its old number"
    assert all(arrival.is_merged for device in (0, 1) for arrival in of(run, device))
    assert {arrival.device for arrival in run.arrivals} == {0, 1, 2}


def test_the_server_app_is_killed_and_goes_on(trial: Trial, tmp_path: Path) -> None:
    """The straggler, at work for a run that is gone, keeps its answer and gives it when it is asked again."""
    trial.begin(0, 0)
    trial.node(2, 3, {"at-least-seconds": 35, "answers": str(tmp_path / "answers")})
    trial.run(rounds=9, devices=3)
    before = trial.wait(trial.has_version(2))
    os.kill(trial.server_pid(), signal.SIGKILL)
    trial.run(rounds=9, devices=3)
    run = trial.wait()
    check_counted_once(run)
    merged = [(arrival.device, arrival.version) for arrival in before.arrivals]
    again = [(arrival.device, arrival.version) for arrival in run.arrivals]
    assert again[: len(merged)] == merged, "what had arrived is not asked for again"
    assert any(arrival.version == 0 and arrival.is_merged for arrival in of(run, 2)), "the straggler's job goes on"
    assert not [arrival for arrival in run.arrivals if arrival.lost]


def test_the_superlink_is_killed_and_started_again(trial: Trial, tmp_path: Path) -> None:
    """With its state on the disk and the ServerApp in a process of its own, nothing is lost."""
    options = ("--insecure", "--isolation", "process", "--database", str(tmp_path / "state.db"))
    trial.begin(0, 0, 40, superlink=options)
    trial.fleet.start("superexec", "flower-superexec", "--insecure", "--runtime-api-address", trial.fleet.address)
    trial.run(rounds=7, devices=3)
    trial.wait(trial.has_version(2))
    trial.fleet.kill("superlink")
    time.sleep(5)
    trial.fleet.superlink(*options)
    run = trial.wait()
    check_counted_once(run)
    assert all(arrival.is_merged for arrival in run.arrivals), [a for a in run.arrivals if not a.is_merged]
    assert any(arrival.version == 0 for arrival in of(run, 2)), "the answer in flight included"
