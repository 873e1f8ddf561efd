"""A study is what one figure of the paper needs: algorithms on one task and its fleets, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridfl.comparison import slug
from hybridfl.paper.results import Result
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm
from hybridfl.spelling import read_task
from hybridfl.timing import PaperDelays

ROUNDS = 200
"""T of the paper."""


@dataclass(frozen=True)
class Arm:
    """One line, or one point, of a figure: an algorithm and its fleet. `at` is where it stands on a sweep's axis."""

    label: str
    algorithm: Algorithm[Any]
    stragglers: float = 0.9
    max_delay: int = 10
    at: float | None = None
    by_time: bool = False
    """It makes a version of every few arrivals: it runs for as many seconds as HFL makes rounds, about one a second."""


@dataclass(frozen=True)
class Study:
    """Its arms run on one task, which the seed makes or shares out."""

    name: str
    shows: str
    """What the paper has there."""
    task: str
    arms: tuple[Arm, ...]
    devices: int = 100
    seeds: int = 5
    rounds: int = ROUNDS
    evaluate_every: float = 1.0
    """Virtual seconds between two records: curves want all, final figures a few."""
    aside: Callable[[Study, Path | None], dict[str, Any]] | None = None
    """What is measured besides; it is kept with how the study was run."""
    setting: str = ""
    """How devices train, if not as in the paper."""
    says: Callable[[Sequence[Result]], str] | None = None
    """What its results come to, where no claim of the paper says it."""
    small_task: str = ""
    """The task of a quick look, if that must be smaller."""
    full: Study | None = None
    """The study at the paper's size, if this is smaller."""

    def quick(self) -> Study:
        """A look at whether everything works, in seconds: its numbers mean nothing."""
        return replace(
            self, task=self.small_task or self.task, arms=_few(self.arms), devices=20, seeds=2, rounds=4, full=None
        )

    def at_full_size(self) -> Study:
        return self if self.full is None else self.full

    def runs(self, data_dir: Path | None = None) -> Iterator[tuple[Arm, Run]]:
        """Seed by seed, so that a seed's data are made once and shared by all arms."""
        recipe = read_task(self.task)
        for seed in range(self.seeds):
            task = recipe.build(self.devices, seed, data_dir)
            for arm in self.arms:
                run = Run(
                    task,
                    arm.algorithm,
                    PaperDelays(arm.stragglers, arm.max_delay),
                    seconds=float(self.rounds) if arm.by_time else None,
                    rounds=None if arm.by_time else self.rounds,
                    evaluate_every=self.evaluate_every,
                    seed=seed,
                    label=arm.label,
                )
                yield arm, run


def _few(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """Of a sweep the ends and the middle, of a long list every fifth."""
    points = sorted({arm.at for arm in arms if arm.at is not None})
    if points:
        shown = {points[0], points[len(points) // 2], points[-1]}
        return tuple(arm for arm in arms if arm.at in shown)
    return arms if len(arms) <= 12 else arms[::5]


def folder_of(out: Path, run: Run) -> Path:
    """Where a run is kept. Studies that need the same run share it."""
    assert isinstance(run.timing, PaperDelays)
    fleet = f"{run.timing.stragglers:.0%} slow, up to {run.timing.max_delay}, every {run.evaluate_every:g} s"
    return out / "runs" / slug(run.task.name) / slug(fleet) / slug(run.name) / f"seed-{run.seed}"
