"""A fleet of processes on this machine: a real SuperLink and real SuperNodes on loopback, to try things out."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridfl.errors import InputError


@dataclass(eq=False)
class LocalFleet:
    """Processes by name (`superlink`, `node-0`, ...), each with a log of its own in `folder`.

    `port` is the SuperLink's; SuperNodes take those from `port + 100` on. Flower's own settings are kept in `folder` too.
    """

    folder: Path
    port: int = 8000
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "flwr"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LocalFleet:
        self.home.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def superlink(self, *options: str) -> None:
        """With these options; without any, in the open."""
        if answers(self.port):
            raise InputError(f"Somebody listens on port {self.port} already: choose another --port.")
        fixed = ("--port", str(self.port), "--disable-runtime-dependency-installation")
        self.start("superlink", "flower-superlink", *(options or ("--insecure",)), *fixed)
        self._wait_for_superlink()

    def node(self, number: int, config: Mapping[str, str | int | float], *options: str) -> None:
        """A SuperNode with this node-config, and these options; without any, in the open."""
        said = " ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in config.items()
        )
        where = () if "--superlink" in options else ("--superlink", self.address)
        self.start(
            f"node-{number}",
            "flower-supernode",
            *(options or ("--insecure",)),
            *where,
            *("--port", str(self.port + 100 + number), "--node-config", said),
        )

    def start(self, name: str, command: str, *arguments: str) -> None:
        """One of Flower's programs, from the environment this Python runs in."""
        program = Path(sys.executable).with_name(command)
        if not program.exists():
            raise InputError(f"There is no '{program}': pip install 'hybridfl[flower]'.")
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *arguments], stdout=log, stderr=log, env=self.variables, start_new_session=True
            )

    @property
    def variables(self) -> dict[str, str]:
        """Flower starts programs of its own, by name."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        return {**os.environ, "PATH": path, "FLWR_HOME": str(self.home), **quiet, **self.environment}

    def kill(self, name: str) -> None:
        """SIGKILL to this very process. What it started notices, and ends."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """All of them, and all that they started."""
        processes, self.processes = list(self.processes.values()), {}
        theirs = descendants([process.pid for process in processes])
        for process in processes:
            process.terminate()
        until = time.monotonic() + 5
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            process.kill()
            process.wait()
        for pid in theirs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def configure(self, name: str = "local-fleet", options: Sequence[str] = ("insecure = true",)) -> str:
        """Let `flwr` know this SuperLink by a name."""
        lines = [
            "[superlink]",
            f'default = "{name}"',
            "",
            f"[superlink.{name}]",
            f'address = "{self.address}"',
            *options,
        ]
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")
        return name

    def flwr(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Flower's command line, as its user would call it."""
        command = [str(Path(sys.executable).with_name("flwr")), *arguments]
        return subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=timeout, check=False)

    def _wait_for_superlink(self, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not answers(self.port):
            if self.processes["superlink"].poll() is not None or time.monotonic() > until:
                log = self.folder / "superlink.log"
                last = " ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
                raise InputError(f"The SuperLink does not start: {last} (all of it in '{log}')")
            time.sleep(0.1)


def answers(port: int) -> bool:
    """Whether somebody listens there, on this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def descendants(pids: Sequence[int]) -> list[int]:
    """The processes these have started, and those that these have."""
    said = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in map(str.split, said.splitlines())}
    found: list[int] = []
    open_ends = set(pids)
    while open_ends:
        open_ends = {pid for pid, parent in parents.items() if parent in open_ends}
        found += sorted(open_ends)
    return found
