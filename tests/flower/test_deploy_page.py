"""Every command of docs/deploy.md, on loopback: programs that stay are left running, the others are waited for."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_trial import APP, WORKER
from hybridfl.flower.local_fleet import descendants
from hybridfl.records import load

pytestmark = pytest.mark.flower
ROOT = Path(__file__).parents[2]
INSTALLS = re.compile(r"^(apt-get|python3 -m venv|pip) ")
STAYS = re.compile(r"^(flower-|nginx )")
PORT = 30_000 + 300 * WORKER


def commands(section: str) -> list[str]:
    text = (ROOT / "docs" / "deploy.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    return [line for line in lines if not INSTALLS.match(line)]


class Shell:
    """A folder where commands are run, one after the other."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.folder, self._ports = folder, ports
        self.staying: list[subprocess.Popen[bytes]] = []
        shutil.copytree(APP, folder / "examples" / "flower")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
        self._variables = {**os.environ, "HOME": str(folder), "PATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
        self._variables.pop("FLWR_HOME", None)

    def run(self, command: str) -> str:
        for before, after in self._ports.items():
            command = re.sub(rf"\b{before}\b", str(after), command)
        command = command.replace("fl.example.org:", "127.0.0.1:")
        if STAYS.match(command):
            arguments = ["bash", "-c", f"exec {command}"]
            with (self.folder / f"{len(self.staying)}.log").open("wb") as log:
                self.staying.append(
                    subprocess.Popen(arguments, cwd=self.folder, env=self._variables, stdout=log, stderr=log)
                )
            time.sleep(1)
            if command.startswith("flower-superlink"):
                self.wait_for(self._ports["8000"])
            return ""
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def wait_for(self, port: int, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            time.sleep(0.2)
        raise AssertionError([path.read_text() for path in self.folder.glob("*.log")])

    def stop(self) -> None:
        theirs = descendants([process.pid for process in self.staying])
        for process in self.staying:
            process.terminate()
        for process in self.staying:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
        for pid in theirs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    names = ("8000", "8443", "9094", "9095", "9096")
    made = Shell(tmp_path, {name: PORT + number for number, name in enumerate(names)})
    yield made
    made.stop()


def test_four_machines_with_tls_keys_and_a_proxy(shell: Shell) -> None:
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("There is no nginx here: apt-get install nginx-light.")
    lines = commands("Four machines, with TLS, keys and a proxy")
    assert len(lines) >= 15
    for line in lines:
        shell.run(line)
    run = load(shell.folder / "results" / "first")
    assert run.records[-1].version == 3
    assert {arrival.device for arrival in run.arrivals} == {0, 1, 2}
    report = (shell.folder / "results" / "first" / "report.html").read_text()
    assert "Flower" in report


@contextlib.contextmanager
def local_fleet(shell: Shell, command: str, ending: signal.Signals) -> Iterator[None]:
    """While it runs; it ends when it is told to, and leaves nothing."""
    port, said = PORT + 100, shell.folder / "local.log"
    with said.open("wb") as log:
        fleet = subprocess.Popen(
            [*shlex.split(command), "--port", str(port)],
            cwd=shell.folder,
            executable=Path(sys.executable).with_name("hybridfl"),
            stdout=log,
            stderr=log,
        )
    try:
        while "Ctrl-C ends it" not in said.read_text():
            assert fleet.poll() is None, said.read_text()
            time.sleep(0.2)
        yield
    finally:
        fleet.send_signal(ending)
        assert fleet.wait(20) == 0
    assert "Stopping" in said.read_text()
    left = subprocess.run(["pgrep", "-f", f"flower-super.*{port}"], capture_output=True, text=True, check=False)
    assert left.stdout == "", "nothing is left running"


def test_a_fleet_on_one_machine(shell: Shell) -> None:
    start, run, report = commands("On one machine first")
    with local_fleet(shell, start.replace("--slow-seconds 30", "--slow-seconds 20"), signal.SIGINT):
        shell.run(run)
        shell.run(report)
    assert (shell.folder / "results" / "flower" / "report.html").exists()


def test_a_fleet_goes_on_without_a_device_and_leaves_nothing_when_it_is_terminated(shell: Shell) -> None:
    said = shell.folder / "local.log"
    with local_fleet(shell, "hybridfl deploy local --devices 2", signal.SIGTERM):
        pattern = f"flower-supernode.*--port {PORT + 201}"
        (pid,) = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True).stdout.split()
        os.kill(int(pid), signal.SIGKILL)
        until = time.monotonic() + 20
        while "node-1 has ended" not in said.read_text() and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(1)
        assert said.read_text().count("node-1 has ended: see 'local-fleet/node-1.log'.") == 1
