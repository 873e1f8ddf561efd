"""Device-steps a second, against other simulators: `make bench-peers`, or `python benchmarks/peers.py`.

The tasks are those of `simulator.py`, and so are ours and the plain loop. Every peer gets the same samples on the same
devices and runs in a virtual environment of its own, `.peers/NAME`, which is made when it is missing. How a peer is used
is said in `peers/NAME_peer.py`.

A: Fashion-MNIST, 100 devices of two labels and power-law sizes, FedAvg of 10 a round, E = 5, batch 64.
B: MNIST, 1,000 devices of 60 samples, FedAvg of 10 a round, E = 1, batch 10.
C: A's data, all devices always busy (90 of them 2 to 11 s, the others 1 s), FedBuff with a buffer of 10, E = 5, batch 64.

One step is one SGD step on one batch of one device. Measured is the whole simulation without evaluation, after a warm-up
that starts and compiles what is to be started and compiled. Contestants take turns; the table has the median and the
range over the repeats. A peer that cannot be installed, fails or hangs is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from simulator import PAPER, REPEATS, SMALL, plain_loop, simulated

from hybridfl import IID, MNIST, ConstantSeconds, FashionMNIST, FedAvg, FedBuff, FullWork, PaperDelays, Task
from hybridfl.threads import CORES

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".peers"
STRETCH_SECONDS = 3.0
WARM_UP_LIMIT, STRETCH_LIMIT, GOODBYE_LIMIT = 180.0, 120.0, 10.0


class PeerError(Exception):
    """A peer cannot be measured; says why."""


@dataclass(frozen=True)
class Peer:
    """What to install, which tasks it can do, and what its script is to be started with, if not alone."""

    requirements: tuple[str, ...]
    tasks: str = "AB"
    launcher: tuple[str, ...] = ()


# torch is always pinned: a looser request would fetch another one.
TORCH = f"torch=={torch.__version__.partition('+')[0]}"
PEERS = {
    "flower": Peer(("flwr[simulation]==1.41.0", "ray==2.55.1", "numpy==2.4.6", TORCH)),
    "pfl": Peer(
        ("pfl[pytorch]==0.6.0", "numpy==2.4.6", TORCH),
        launcher=("-m", "torch.distributed.run", f"--nproc-per-node={CORES}"),
    ),
    # FedJAX calls jax.tree_map, which later versions of JAX lack; these are the libraries of that time.
    "fedjax": Peer(
        ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12", "optax==0.2.3", "numpy==1.26.4")
    ),
    "flsim": Peer(("flsim==0.1.0", "numpy==2.4.6", TORCH), tasks="ABC"),
}


@dataclass(frozen=True)
class Stretch:
    """What was simulated in a stretch of time."""

    steps: float
    updates: float
    seconds: float

    def speed(self, unit: str) -> float:
        """Steps or updates a second."""
        return (self.updates if unit == "updates/s" else self.steps) / self.seconds


Contestant = Callable[[], Stretch]


@dataclass(frozen=True)
class Bench:
    """A task, the contestants of this process, and what peers are asked to do."""

    name: str
    task: Task
    work: FullWork
    contestants: dict[str, Contestant]
    units: tuple[str, ...] = ("steps/s",)
    options: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of a peer's script, after the data."""
        return ("--batch-size", str(self.work.batch_size), "--epochs", str(self.work.epochs), *self.options)


def say(text: str) -> None:
    """Progress; the tables alone go to standard output."""
    print(text, file=sys.stderr, flush=True)


def reason(log: str) -> str:
    """Why a program failed: the last line that speaks of an error, or the last of all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error\b|exception\b", line, re.IGNORECASE)]
    return (errors or lines or ["it ended without a word"])[-1][:160]


def installed(name: str) -> Path:
    """The Python of a peer's virtual environment, made if it is missing or holds other versions."""
    home, wanted = ENVIRONMENTS / name, "\n".join(PEERS[name].requirements)
    python, receipt = home / "bin" / "python", home / "installed"
    if receipt.exists() and receipt.read_text() == wanted:
        return python
    say(f"{name}: installing {', '.join(PEERS[name].requirements)}")
    make = [sys.executable, "-m", "venv", "--clear", str(home)]
    fill = [str(python), "-m", "pip", "install", "--quiet", *PEERS[name].requirements]
    for command in (make, fill):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise PeerError(f"not installed: {reason(done.stderr)}")
    receipt.write_text(wanted)
    return python


class Running:
    """A peer's process: it answers a line with a line (see `peers/stretches.py`)."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.log = folder / "log"
        # In a process group of its own: an interrupt is for us, and we end it in good order.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            env={**os.environ, "TMPDIR": str(folder)},  # some leave files behind
            text=True,
            start_new_session=True,
        )

    def ask(self, seconds: float) -> Stretch:
        """What it simulates in so many seconds. If it fails or hangs, it is ended."""
        assert self.process.stdin is not None
        try:
            with suppress(OSError):  # it has ended, and its answer will say so
                print(seconds, file=self.process.stdin, flush=True)
            return Stretch(**self.answer(STRETCH_LIMIT))
        except PeerError:
            self.end()
            raise

    def answer(self, limit: float) -> dict[str, Any]:
        """Its next one, which must come in time."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise PeerError(f"no answer in {limit:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(reason(self.log.read_text(errors="replace")))
        values: dict[str, Any] = json.loads(line)
        return values

    def end(self) -> None:
        """With its input; if it does not, it is killed with all that it started."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        with suppress(OSError):
            self.process.stdin.close()
        left = []
        try:
            self.process.wait(GOODBYE_LIMIT)
        except subprocess.TimeoutExpired:
            left = descendants(self.process.pid)  # torchrun puts its workers into other process groups
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that they did (Linux only)."""
    found = [process]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found[1:]


@contextmanager
def started(name: str, bench: Bench, data: Path) -> Iterator[Contestant]:
    """A peer that has warmed up."""
    python, script = installed(name), HERE / "peers" / f"{name}_peer.py"
    say(f"{bench.name}: {name} warms up")
    folder = data.parent / name
    folder.mkdir()
    running = Running([str(python), *PEERS[name].launcher, str(script), str(data), *bench.arguments], folder)
    try:
        running.answer(WARM_UP_LIMIT)
        yield lambda: running.ask(STRETCH_SECONDS)
    finally:
        running.end()


def write(task: Task, path: Path) -> None:
    """The samples as a model sees them, device after device."""
    inputs, targets = task.train.take(torch.from_numpy(task.train.index))
    np.savez(
        path,
        inputs=inputs.flatten(1).numpy(),
        targets=targets.numpy(),
        offsets=task.train.offsets,
        weight_decay=2 * task.l2,
    )


def measure(bench: Bench, names: list[str]) -> None:
    """All contestants in turns, and the tables."""
    contestants, failures = dict(bench.contestants), dict[str, str]()
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "samples.npz"
        write(bench.task, data)
        for name in names:
            try:
                contestants[name] = stack.enter_context(started(name, bench, data))
            except PeerError as error:
                failures[name] = str(error)
                say(f"{bench.name}: {name} failed: {error}")
        for play in bench.contestants.values():
            play()
        stretches = take_turns(bench, contestants, failures)
    for unit in bench.units:
        print_table(f"{bench.name}, {unit}", unit, stretches, failures)


def take_turns(bench: Bench, contestants: dict[str, Contestant], failures: dict[str, str]) -> dict[str, list[Stretch]]:
    """One stretch of each in every repeat; who fails is out, and its failure is noted."""
    stretches: dict[str, list[Stretch]] = {name: [] for name in contestants}
    for repeat in range(REPEATS):
        for name in list(stretches):
            try:
                stretch = contestants[name]()
            except PeerError as error:
                failures[name] = str(error)
                del stretches[name]
                say(f"{bench.name}: {name} failed: {error}")
            else:
                stretches[name].append(stretch)
                speed = stretch.speed(bench.units[0])
                say(f"{bench.name}: repeat {repeat + 1} of {REPEATS}, {name}: {speed:,.0f} {bench.units[0]}")
    return stretches


def print_table(title: str, unit: str, stretches: dict[str, list[Stretch]], failures: dict[str, str]) -> None:
    """Speeds, and how many times faster ours is: medians and ranges."""
    ours = [stretch.speed(unit) for stretch in stretches["ours"]]
    print(f"{title:16}{'median':>9} {'range':20}{'ours/theirs':>12} range")
    for name, played in stretches.items():
        speeds = [stretch.speed(unit) for stretch in played]
        row = f"{name:16}{statistics.median(speeds):>9,.0f} {f'{min(speeds):,.0f} to {max(speeds):,.0f}':20}"
        if name != "ours":
            ratios = [one / other for one, other in zip(ours, speeds, strict=True)]
            row += f"{statistics.median(ratios):>12.1f} {min(ratios):.1f} to {max(ratios):.1f}"
        print(row)
    for name, failure in failures.items():
        print(f"{name:16}failed: {failure}")
    print(flush=True)


def for_a_while(play: Callable[[], tuple[int, int, float]]) -> Contestant:
    """As often as fits into a stretch, as peers do."""

    def play_on() -> Stretch:
        total = Stretch(0, 0, 0)
        while total.seconds < STRETCH_SECONDS:
            steps, updates, seconds = play()
            total = Stretch(total.steps + steps, total.updates + updates, total.seconds + seconds)
        return total

    return play_on


def synchronous(name: str, task: Task, work: FullWork, rounds: int) -> Bench:
    """FedAvg, against the plain loop too."""
    play = simulated(task, FedAvg(local=work), ConstantSeconds(), rounds)
    loop = plain_loop(task, work, STRETCH_SECONDS)
    return Bench(name, task, work, {"ours": for_a_while(play), "plain loop": lambda: Stretch(loop(), 0, 1)})


def asynchronous(task: Task) -> Bench:
    """FedBuff. Devices differ in size, and not all simulators take them equally often: hence both units."""
    play = simulated(task, FedBuff(local=PAPER), PaperDelays(stragglers=0.9, max_delay=10), 100)
    return Bench("C", task, PAPER, {"ours": for_a_while(play)}, ("updates/s", "steps/s"), ("--asynchronous",))


def benches(names: str) -> Iterator[Bench]:
    """Those asked for; one at a time."""
    if "A" in names:
        yield synchronous("A", FashionMNIST().build(100, 0), PAPER, rounds=30)
    if "B" in names:
        yield synchronous("B", MNIST(IID()).build(1000, 0), SMALL, rounds=300)
    if "C" in names:
        yield asynchronous(FashionMNIST().build(100, 0))


def main() -> None:
    """All tasks that are asked for, against the peers that are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PEERS), help="peers, with commas: %(default)s")
    parser.add_argument("--tasks", default="ABC", help="letters of tasks: %(default)s")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := set(names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}. There are: {', '.join(PEERS)}.")
    # So that peers are ended then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    possible = {task for name in names for task in PEERS[name].tasks}
    for bench in benches("".join(possible & set(asked.tasks))):
        measure(bench, [name for name in names if bench.name in PEERS[name].tasks])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
