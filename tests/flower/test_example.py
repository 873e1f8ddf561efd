"""The example app in Flower's own simulation, as its README says."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_trial import APP
from hybridfl.flower.local_fleet import answers, descendants
from hybridfl.records import load

pytestmark = pytest.mark.flower
PORT = 39091
"""Where `flwr` starts a SuperLink of its own, and leaves it."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    if answers(PORT):
        pytest.skip(f"A local SuperLink is running already on port {PORT}.")
    yield tmp_path / "flwr"
    found = subprocess.run(["pgrep", "-f", f"flower-superlink.*{PORT}"], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in found.stdout.split()]
    for pid in [*descendants(pids), *pids]:
        os.kill(pid, signal.SIGKILL)
    while answers(PORT):
        time.sleep(0.1)


@pytest.mark.parametrize("devices", [2, 3])
def test_the_example_runs_in_flowers_simulation(home: Path, tmp_path: Path, devices: int) -> None:
    app = shutil.copytree(APP, tmp_path / "app")
    command = next(line for line in (app / "README.md").read_text().splitlines() if line.startswith("flwr run"))
    more = ["--federation-config", f"num-supernodes={devices}"] if devices != 2 else []
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    said = subprocess.run(
        [*command.split(), *more, "--run-config", f"rounds=3 devices={devices} out='{tmp_path / 'out'}'"],
        cwd=app,
        env={**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    run = load(tmp_path / "out")
    assert run.records[-1].version == 3, said.stdout
    assert {arrival.device for arrival in run.arrivals} == set(range(devices))
    assert all(arrival.is_merged or arrival.refused == "too early to tell what is usual" for arrival in run.arrivals)
