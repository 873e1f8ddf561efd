"""A real fleet on loopback, and a run of the example app on it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from hybridfl.flower.local_fleet import LocalFleet, answers
from hybridfl.records import FINISHED, Arrival, SavedRun, load

APP = Path(__file__).parents[1] / "examples" / "flower"
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(12_000 + 6_000 * WORKER, 200)
"""Below those that the system gives to whoever asks for any."""
Values = dict[str, str | int | float]


class Trial:
    """A fleet, and a run on it. `app` is what runs, `out` where it writes."""

    def __init__(self, folder: Path) -> None:
        self.fleet = LocalFleet(folder / "fleet", next(port for port in _PORTS if not answers(port))).__enter__()
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

    def wait(self, until: Callable[[], bool] | None = None, seconds: float = 400) -> SavedRun:
        """For the end, or for something else."""
        end = time.monotonic() + seconds
        while not (until() if until else (self.out / FINISHED).exists()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)
        return load(self.out)

    def log(self, name: str) -> str:
        return (self.fleet.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        ends = {path.stem: self.log(path.stem).splitlines()[-25:] for path in sorted(self.fleet.folder.glob("*.log"))}
        return "\n".join(f"== {name}\n" + "\n".join(lines) for name, lines in ends.items())

    def has_version(self, version: int) -> Callable[[], bool]:
        return lambda: (self.out / "run.json").exists() and any(r.version >= version for r in load(self.out).records)

    def server_pid(self) -> int:
        """Of the ServerApp, which some process of the fleet has started."""
        pattern = f"flwr-serverapp.*{self.fleet.port}"
        found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0])


def check_counted_once(run: SavedRun) -> None:
    """Every job has one end, no update counts twice, and versions follow one another."""
    ends = [(arrival.device, arrival.version, arrival.sent_at) for arrival in run.arrivals]
    assert len(ends) == len(set(ends))
    assert run.records[-1].merged == sum(arrival.is_merged for arrival in run.arrivals)
    versions = [record.version for record in run.records]
    assert sorted(set(versions)) == list(range(versions[-1] + 1))
    assert versions == sorted(versions)


def of(run: SavedRun, device: int) -> list[Arrival]:
    return [arrival for arrival in run.arrivals if arrival.device == device]
