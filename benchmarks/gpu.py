"""What the GPU's engines take, and how that compares with the loop people write: `python benchmarks/gpu.py`.

Needs a GPU and Fashion-MNIST. Kernels are compiled and data are on the GPU before anything is timed; every time is until the
GPU has finished. Median of the repeats, and their range.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from hybridfl import HFL, CharacterLSTM, FashionMNIST, Job, PaperDelays, Run, Samples, Task, Work
from hybridfl.engines import CPU, trainer_for
from hybridfl.lockstep import execute_all
from hybridfl.tally import Snapshot
from hybridfl.training import JointTrainer
from hybridfl.vectors import flatten, unflatten

CUDA = torch.device("cuda")
REPEATS = 5


def seconds(call: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Of each repeat, after one that does not count."""
    call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return times


def say(name: str, times: Sequence[float], work: float = 0.0, unit: str = "") -> float:
    """Print the median and the range, and `work` a second; return the median."""
    median = statistics.median(times)
    speed = f"   {work / median:,.0f} {unit}/s" if work else ""
    print(f"{name}: {median * 1e3:,.2f} ms ({min(times) * 1e3:,.2f} to {max(times) * 1e3:,.2f}){speed}", flush=True)
    return median


def limits() -> None:
    """What this GPU can do: multiply, and move."""
    n = 8192
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
        a, b = (torch.randn(n, n, device=CUDA, dtype=dtype) for _ in range(2))
        times = seconds(functools.partial(torch.matmul, a, b))
        print(f"matmul {name}: {2 * n**3 / statistics.median(times) / 1e12:,.0f} TFLOP/s")
    big = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    print(f"copy: {2 * big.nbytes / statistics.median(seconds(lambda: big.clone())) / 1e12:.2f} TB/s", flush=True)


def jobs_of(task: Task, devices: Sequence[int], work: Work, where: torch.device) -> list[Job]:
    """One job for each of these devices, all from the first weights."""
    weights = flatten(task.model).to(where)
    return [Job(device, 0, weights, work, 0.0, repeat) for repeat, device in enumerate(devices)]


def launches(task: Task) -> None:
    """One launch of the fused kernel, with few jobs and with many."""
    trainer = trainer_for(task, 0, CUDA)
    largest_first = np.argsort(-task.train.num_samples)
    for count in (1, 26, 100, 1000, 4000):
        jobs = jobs_of(task, [int(largest_first[j % 100]) for j in range(count)], Work(5, 64, 0.01), CUDA)
        steps = [update.num_steps for update in trainer(jobs)]
        times = seconds(functools.partial(trainer, jobs))
        median = say(f"launch of {count} jobs, {sum(steps):,} steps", times, sum(steps), "steps")
        longest = max(steps)
        print(f"  {median / longest * 1e6:.1f} µs for each of the {longest} steps of the longest job")


def paper_runs(tasks: Sequence[Task]) -> None:
    """The paper's run, and sweeps of it."""

    def plan(algorithm: HFL, seed: int, rounds: int = 200) -> Run:
        return Run(tasks[seed], algorithm, PaperDelays(0.9, 10), rounds=rounds, seed=seed, evaluate_every=1.0)

    def play(plans: Sequence[Run], where: torch.device = CUDA) -> list[float]:
        return [e.record.test_accuracy for _, e in execute_all(plans, where) if isinstance(e, Snapshot)]

    started = time.perf_counter()
    play([plan(HFL(), 0, rounds=2), plan(HFL.as_printed(), 0, rounds=2)])
    print(f"first run of two rounds, compiling included: {time.perf_counter() - started:.1f} s")
    for name, algorithm in (("HFL", HFL()), ("HFL as printed", HFL.as_printed())):
        say(f"{name}, 200 rounds, 200 records", seconds(functools.partial(play, [plan(algorithm, 0)])))
    lambdas = [HFL.as_printed(lambda_0=tenths / 10) for tenths in range(1, 10)]
    sweep = [plan(algorithm, seed) for seed in range(5) for algorithm in lambdas]
    say("9 values of λ_0 × 5 seeds, 200 rounds each", seconds(lambda: play(sweep), 3))
    seeds = [plan(HFL(), seed) for seed in range(5)]
    say("HFL × 5 seeds, 200 rounds each", seconds(lambda: play(seeds), 3))
    started = time.perf_counter()
    play([plan(HFL(), 0)], CPU)
    print(f"HFL, 200 rounds, on this machine's CPU: {time.perf_counter() - started:.1f} s", flush=True)


def one_by_one(task: Task, jobs: Sequence[Job]) -> Callable[[], None]:
    """What people write: a model on the GPU, `optim.SGD`, the device's batches in turn; data on the GPU already."""
    model = task.model.to(CUDA)
    inputs, targets = task.train.inputs.to(CUDA), task.train.targets.to(CUDA)

    def train() -> None:
        for job in jobs:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), unflatten(model, job.weights).values(), strict=True):
                    parameter.copy_(value)
            optimiser = torch.optim.SGD(model.parameters(), lr=job.work.learning_rate)
            rows = torch.from_numpy(task.train.rows(job.device)).to(CUDA)
            for _ in range(job.work.epochs):
                for batch in torch.split(rows[torch.randperm(len(rows), device=CUDA)], job.work.batch_size):
                    x = inputs[batch]
                    x = x.float() * task.train.scale if task.train.scale else x
                    optimiser.zero_grad()
                    task.loss(model(x), targets[batch]).mean().backward()  # type: ignore[no-untyped-call]
                    optimiser.step()

    return train


def any_model(name: str, task: Task, devices: Sequence[int], work: Work) -> None:
    """Our engine for any model against one device after the other, in turns."""
    trainer: JointTrainer = trainer_for(task, 0, CUDA)
    jobs = jobs_of(task, devices, work, CUDA)
    steps = sum(update.num_steps for update in trainer(jobs))
    loop = one_by_one(task, jobs)
    loop()
    ours, theirs = [], []
    for _ in range(REPEATS):
        ours += seconds(lambda: trainer(jobs), 1)
        theirs += seconds(loop, 1)
    fast = say(f"{name}, {len(jobs)} devices, ours", ours, steps, "steps")
    slow = say(f"{name}, {len(jobs)} devices, one by one", theirs, steps, "steps")
    print(f"  ratio {slow / fast:.1f}", flush=True)


def text(devices: int, windows: int) -> Task:
    """Data of Shakespeare's shape."""
    draw = np.random.default_rng(0)
    inputs = torch.from_numpy(draw.integers(0, 80, (devices * windows, 80)))
    rows = [np.arange(device * windows, (device + 1) * windows) for device in range(devices)]
    samples = Samples.shared_out(inputs, torch.from_numpy(draw.integers(0, 80, devices * windows)), rows)
    return Task("text", samples, samples, CharacterLSTM())


def main() -> None:
    """Everything, or the parts named on the command line."""
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    parts = sys.argv[1:] or ["limits", "launches", "paper", "mlp", "lstm"]
    tasks = [FashionMNIST().build(100, seed) for seed in range(5)]
    if "limits" in parts:
        limits()
    if "launches" in parts:
        launches(tasks[0])
    if "paper" in parts:
        paper_runs(tasks)
    if "mlp" in parts:
        images = tasks[0].train.with_inputs(tasks[0].train.inputs.flatten(1))
        mlp = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
        task = Task("mlp", images, images, mlp)
        any_model("MLP of 200 hidden units", task, range(20), Work(1, 64, 0.1))
    if "lstm" in parts:
        any_model("LSTM 2 × 256, batch 10", text(20, 200), range(20), Work(1, 10, 0.5, clip=1.0))
        any_model("LSTM 2 × 256, batch 64", text(20, 640), range(20), Work(1, 64, 0.5, clip=1.0))


if __name__ == "__main__":
    main()
