"""Device-steps a second, against the loop people write: `make bench`, or `python benchmarks/simulator.py`.

A: Fashion-MNIST, 100 devices of two labels and power-law sizes, FedAvg of 10 a round, E = 5, batch 64.
B: MNIST, 1,000 devices of 60 samples, FedAvg of 10 a round, E = 1, batch 10.
C: A's data, all devices always busy (90 of them 2 to 11 s, the others 1 s), E = 5, batch 64:
   updates a second of FedBuff and HFL.

One step is one SGD step on one batch of one device. Ours is the whole simulation without evaluation: choosing devices, event
heap, batches, training, merging. The plain loop trains the same devices with a `DataLoader` and `optim.SGD`, one after the
other, on all cores. Contestants take turns; median of the ratios and of the speeds over the repeats, and their range.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hybridfl import (
    HFL,
    IID,
    MNIST,
    Algorithm,
    ConstantSeconds,
    FashionMNIST,
    FedAvg,
    FedBuff,
    Fleet,
    FullWork,
    PaperDelays,
    Simulation,
    Task,
    run,
)
from hybridfl.engines import trainer_for
from hybridfl.protocol import Job, Trainer, Update
from hybridfl.timing import Pace, Roster
from hybridfl.vectors import flatten

REPEATS = 5
PAPER = FullWork(epochs=5, batch_size=64)
SMALL = FullWork(epochs=1, batch_size=10)


class Timed:
    """A trainer, and how long it has trained."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.seconds = 0.0

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        started = time.perf_counter()
        updates = self._trainer(jobs)
        self.seconds += time.perf_counter() - started
        return updates


def simulated(
    task: Task, algorithm: Algorithm[Any], timing: Pace, versions: int, trainer: Trainer | None = None
) -> Callable[[], tuple[int, int, float]]:
    """(steps, updates, seconds) of so many versions, trainer and data set up beforehand."""
    paces = timing.of(Roster(task.train.num_samples))
    fleet = Fleet(task.train.num_samples, paces.expected_seconds)
    trainer = trainer or trainer_for(task, 0)

    def play() -> tuple[int, int, float]:
        with one_torch_thread():
            return play_alone()

    def play_alone() -> tuple[int, int, float]:
        started = time.perf_counter()
        transport = Simulation(fleet, trainer, paces)
        steps = updates = 0
        for moment in run(algorithm, transport, *algorithm.init(flatten(task.model), fleet)):
            steps += sum(update.num_steps for update in moment.inbox.updates)
            updates += len(moment.inbox.updates)
            if moment.state.version >= versions:
                return steps, updates, time.perf_counter() - started
        raise AssertionError

    return play


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """As `execute` has it: training brings its own threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def plain_loop(task: Task, work: FullWork, seconds: float) -> Callable[[], float]:
    """Steps a second of what people write, for so long."""
    draw = np.random.default_rng(0)

    def train() -> float:
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            rows = torch.from_numpy(task.train.rows(int(draw.integers(len(task.train)))))
            inputs, targets = task.train.take(rows)
            loader = DataLoader(TensorDataset(inputs, targets), work.batch_size, shuffle=True)
            optimiser = torch.optim.SGD(task.model.parameters(), lr=0.01, weight_decay=2 * task.l2)
            for _ in range(work.epochs):
                for x, y in loader:
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(task.model(x), y).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    steps += 1
                    if time.perf_counter() - started > seconds:
                        break
        return steps / (time.perf_counter() - started)

    return train


def line(name: str, values: list[float], form: str) -> str:
    """Median and range."""
    return f"{name}: {statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def against_plain(name: str, task: Task, work: FullWork, rounds: int) -> None:
    """Print the speeds of both, and their ratio."""
    trainer = Timed(trainer_for(task, 0))
    play = simulated(task, FedAvg(local=work), ConstantSeconds(), rounds, trainer)
    loop = plain_loop(task, work, seconds=2.0)
    play(), loop()
    ours, theirs, overheads = [], [], []
    for _ in range(REPEATS):
        trainer.seconds = 0.0
        steps, _, seconds = play()
        ours.append(steps / seconds)
        overheads.append(seconds / trainer.seconds - 1)
        theirs.append(loop())
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(line(f"{name} ours, steps/s", ours, ",.0f"))
    print(line(f"{name} plain loop, steps/s", theirs, ",.0f"))
    print(line(f"{name} ratio", ratios, ".1f"))
    print(line(f"{name} ours, all but training, as part of training", overheads, ".1%"), flush=True)


class Network(nn.Module):
    """The same network as an `nn.Module` that nobody can look into: it is trained by automatic differentiation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(784, 200), nn.Linear(200, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.second(torch.relu(self.first(inputs)))
        return logits


def with_mlp(task: Task, model: nn.Module | None = None) -> Task:
    """The same data and a network of 200 hidden units; as `nn.Sequential`, it has a closed form."""
    train, test = (samples.with_inputs(samples.inputs.flatten(1)) for samples in (task.train, task.test))
    return Task("mlp", train, test, model or nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)))


def updates_a_second(task: Task) -> None:
    """Print task C, and how much of it is not training."""
    for name, algorithm, versions in (("FedBuff", FedBuff(local=PAPER), 100), ("HFL", HFL(local=PAPER), 40)):
        trainer = Timed(trainer_for(task, 0))
        play = simulated(task, algorithm, PaperDelays(stragglers=0.9, max_delay=10), versions, trainer)
        play()
        speeds, overheads = [], []
        for _ in range(REPEATS):
            trainer.seconds = 0.0
            _, updates, seconds = play()
            speeds.append(updates / seconds)
            overheads.append(seconds / trainer.seconds - 1)
        print(line(f"C {name}, updates/s", speeds, ",.0f"))
        print(line(f"C {name}, all but training, as part of training", overheads, ".1%"), flush=True)


def main() -> None:
    """All three tasks."""
    images, digits = FashionMNIST().build(100, 0), MNIST(IID()).build(1000, 0)
    against_plain("A", images, PAPER, rounds=30)
    against_plain("B", digits, SMALL, rounds=300)
    updates_a_second(images)
    against_plain("A with an MLP", with_mlp(images), PAPER, rounds=5)
    against_plain("B with an MLP", with_mlp(digits), SMALL, rounds=30)
    against_plain("A with an MLP of a class of its own", with_mlp(images, Network()), PAPER, rounds=5)
    against_plain("B with an MLP of a class of its own", with_mlp(digits, Network()), SMALL, rounds=30)


if __name__ == "__main__":
    main()
