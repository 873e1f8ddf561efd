"""What HFL's corrections do on seeds that chose nothing, and on harder fleets: `python benchmarks/corrections.py`.

The tables of docs/reading-of-the-paper.md that no `hybridfl compare` prints. About 20 minutes on 2 cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridfl import (
    HFL,
    Algorithm,
    FedBuff,
    FullWork,
    InverseSqrt,
    InverseTime,
    KnownShare,
    Learned,
    Memory,
    PaperDelays,
)
from hybridfl.algorithms.ad_sgd import Correction, Delayed, NoCorrection, RankOne, Secant
from hybridfl.algorithms.stragglers import Stragglers
from hybridfl.comparison import Comparison
from hybridfl.experiment import execute
from hybridfl.protocol import Vector
from hybridfl.spelling import read_task

CORRECTIONS: dict[str, Correction] = {
    "no correction": NoCorrection(),
    "RankOne(0.3)": RankOne(0.3),
    "Secant(3)": Secant(),
}


@dataclass(frozen=True)
class Watched(RankOne):
    """RankOne(0.3) that remembers g·d and the steps of all delayed gradients it sees."""

    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        """As `RankOne`."""
        self.seen.append((delayed.along(weights)[~delayed.fresh], delayed.steps[~delayed.fresh]))
        return super().corrected(delayed, weights)


def late_accuracies(
    task: str,
    algorithms: Mapping[str, Algorithm[Any]],
    seeds: range,
    seconds: float = 200.0,
    part: float = 0.15,
    stragglers: float = 0.9,
    max_delay: int = 10,
) -> dict[str, list[list[float]]]:
    """Per algorithm and seed, the test accuracies in percent of the last `part` of the time."""
    plans = Comparison(
        read_task(task), dict(algorithms), PaperDelays(stragglers, max_delay), 100, seeds, seconds, evaluate_every=2.0
    ).runs()
    found: dict[str, list[list[float]]] = {}
    for plan in plans:
        records = [snapshot.record for snapshot in execute(plan)]
        late = [100 * record.test_accuracy for record in records if record.seconds > (1 - part) * seconds]
        found.setdefault(plan.name, []).append(late)
    return found


def hfl(correction: Correction, local: FullWork = FullWork(), stragglers: Stragglers = Learned()) -> HFL:
    """HFL with this correction."""
    return HFL(Memory(correction), stragglers, local=local)


def outside_the_bounds() -> None:
    """How often |g·d| > 0.3, for all delayed gradients and for the tenth of them with most steps."""
    for task in ("synthetic(0, 0)", "synthetic(1, 1)"):
        watched = Watched(0.3)
        late_accuracies(task, {"hfl": hfl(watched)}, range(3))
        along, steps = (torch.cat(column) for column in zip(*watched.seen, strict=True))
        outside, largest = along.abs() > 0.3, steps > steps.quantile(0.9)
        print(
            f"{task}: {outside.float().mean():.0%} outside ±0.3, {outside[largest].float().mean():.0%} of the largest"
        )


def fresh_seeds() -> None:
    """Seeds 3 to 8: mean of the records of the last 15 % of the time, and of the seeds."""
    for task in ("synthetic(0, 0)", "synthetic(1, 1)", "fashion-mnist"):
        for schedule in (InverseTime(), InverseSqrt()):
            local = FullWork(learning_rate=schedule)
            corrections = {**CORRECTIONS, "Secant(2)": Secant(2.0), "Secant(4)": Secant(4.0)}
            algorithms: dict[str, Algorithm[Any]] = {name: hfl(each, local) for name, each in corrections.items()}
            found = late_accuracies(task, {**algorithms, "FedBuff": FedBuff(local=local)}, range(3, 9))
            means = ", ".join(f"{name} {np.mean(list(map(np.mean, late))):.1f}" for name, late in found.items())
            print(f"{task}, {schedule}: {means}", flush=True)


def harder_fleets() -> None:
    """Whether a model swings: lowest and highest of the second half; then long delays."""
    almost_all = {name: hfl(each, stragglers=KnownShare(0.95)) for name, each in CORRECTIONS.items()}
    for name, late in late_accuracies("synthetic(0, 0)", almost_all, range(3), part=0.5, stragglers=0.95).items():
        print(f"95 % stragglers, {name}: {', '.join(f'{min(each):.0f}-{max(each):.0f}' for each in late)}", flush=True)
    for max_delay in (30, 100):
        corrected = {name: hfl(each) for name, each in CORRECTIONS.items()}
        found = late_accuracies("synthetic(1, 1)", corrected, range(3), 400.0, 0.25, max_delay=max_delay)
        for name, late in found.items():
            means = [float(np.mean(each)) for each in late]
            print(
                f"delays up to {max_delay}, {name}: {np.mean(means):.1f} ({', '.join(f'{m:.1f}' for m in means)})",
                flush=True,
            )


if __name__ == "__main__":
    outside_the_bounds()
    harder_fleets()
    fresh_seeds()
