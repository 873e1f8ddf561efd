"""What this machine can do, and how the cost of a round grows: `python benchmarks/growth.py`.

Needs no data set. Every row is the median of the repeats.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import torch
from simulator import simulated

from hybridfl import ConstantSeconds, FedAvg, FullWork, LogisticRegression, Samples, Task, Uniform
from hybridfl.threads import CORES

REPEATS = 5


def median_seconds(call: Callable[[], object]) -> float:
    """After one call that does not count."""
    call()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def limits() -> None:
    """How fast matrices are multiplied, large ones and those of a step, and memory is copied."""
    for threads in (1, CORES):
        torch.set_num_threads(threads)
        a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
        large = 2 * 2048**3 / median_seconds(lambda a=a, b=b: a @ b) / 1e9  # type: ignore[misc]
        x, w, g = torch.randn(64, 784), torch.randn(10, 784), torch.randn(10, 64)

        def step(x: torch.Tensor = x, w: torch.Tensor = w, g: torch.Tensor = g) -> None:
            for _ in range(1000):
                _ = w @ x.T, g @ x

        small = 1000 * 4 * 64 * 784 * 10 / median_seconds(step) / 1e9
        print(f"{threads} cores: sgemm {large:.0f} GFLOP/s; both products of a step of task A {small:.0f} GFLOP/s")
    big = torch.empty(256 << 20, dtype=torch.uint8)
    print(f"copy {2 * big.nbytes / median_seconds(lambda: big.clone()) / 1e9:.0f} GB/s", flush=True)


def task_of(devices: int, features: int, samples_a_device: int = 60) -> Task:
    """Random bytes, as images are; devices share 60,000 of them."""
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (60_000, features)).astype(np.uint8))
    labels = torch.from_numpy(draw.integers(0, 10, 60_000))
    index = np.arange(devices * samples_a_device) % 60_000
    offsets = np.arange(devices + 1) * samples_a_device
    samples = Samples(images, labels, index, offsets, scale=1 / 255)
    return Task("growth", samples, samples, LogisticRegression(features, 10))


def round_of(devices: int, chosen: int, features: int) -> str:
    """Milliseconds a round, and what memory the rounds took at most beside the data."""
    task = task_of(devices, features)
    algorithm = FedAvg(Uniform(chosen), FullWork(epochs=1, batch_size=10))
    rounds = max(3, 2000 // chosen)
    play = simulated(task, algorithm, ConstantSeconds(), rounds)
    milliseconds = 1e3 * median_seconds(play) / rounds
    tracemalloc.start()
    play()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    step = 1e3 * milliseconds / (6 * chosen)
    return f"{milliseconds:.2f} ms a round, {step:.1f} µs a step, {peak:.0f} MB of Python and NumPy"


def starting() -> None:
    """What a user waits for before anything happens; Numba with an empty cache."""
    for name, code in (
        ("import hybridfl", "import hybridfl"),
        ("hybridfl --help", "import sys; sys.argv = ['hybridfl', '--help']; from hybridfl.cli import main; main()"),
    ):
        command = [sys.executable, "-c", code]
        seconds = median_seconds(functools.partial(subprocess.run, command, capture_output=True, check=True))
        print(f"{name}: {seconds:.2f} s")
    run = "from hybridfl import HFL, PaperDelays, Synthetic, simulate; import time; started = time.perf_counter(); "
    run += "simulate(Synthetic().build(10, 0), HFL(), PaperDelays(), rounds=1); print(time.perf_counter() - started)"
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first run of one round, Numba compiling", "the same again"):
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            command = [sys.executable, "-c", run]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            print(f"{name}: {float(done.stdout):.1f} s", flush=True)


def main() -> None:
    """Starting and limits first, then growth."""
    starting()
    limits()
    for devices in (100, 1_000, 10_000, 100_000, 1_000_000):
        print(f"N = {devices:,}, K = 10, 784 features: {round_of(devices, 10, 784)}", flush=True)
    for chosen in (1, 10, 100, 1_000):
        print(f"N = 10,000, K = {chosen:,}, 784 features: {round_of(10_000, chosen, 784)}", flush=True)
    for features in (49, 196, 784, 3136):
        print(f"N = 1,000, K = 10, {features} features: {round_of(1_000, 10, features)}", flush=True)


if __name__ == "__main__":
    main()
