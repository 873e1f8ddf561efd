"""A study is what one figure of the paper needs: algorithms on one task and its fleets, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridfl.comparison import slug
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
    quick_task: str = ""
    """The task of a quick look, if that must be smaller, and the paper's, if `task` is smaller."""
    full_task: str = ""
    aside: Callable[[Study, Scale, Path | None], dict[str, Any]] | None = None
    """What is measured besides; it is kept with how the study was run."""
    seeds: int = 5
    rounds: int = ROUNDS
    evaluate_every: float = 1.0
    """Virtual seconds between two records: curves want all, final figures a few."""


@dataclass(frozen=True)
class Scale:
    """How much of a study is run: all of it, or a quick look at whether everything works."""

    devices: int = 100
    rounds: int | None = None
    seeds: int | None = None
    is_quick: bool = False
    is_full: bool = False

    @classmethod
    def quick(cls) -> Scale:
        """Numbers that mean nothing, in a minute or two."""
        return cls(devices=20, rounds=4, seeds=2, is_quick=True)

    def task_of(self, study: Study) -> str:
        if self.is_full and study.full_task:
            return study.full_task
        return study.quick_task if self.is_quick and study.quick_task else study.task

    def rounds_of(self, study: Study) -> int:
        if self.is_full:
            return ROUNDS
        return study.rounds if self.rounds is None else self.rounds

    def arms_of(self, study: Study) -> tuple[Arm, ...]:
        """Of a sweep, a quick look has the ends and the middle; of a long list, every fifth."""
        points = sorted({arm.at for arm in study.arms if arm.at is not None})
        if not self.is_quick:
            return study.arms
        if points:
            shown = {points[0], points[len(points) // 2], points[-1]}
            return tuple(arm for arm in study.arms if arm.at in shown)
        return study.arms if len(study.arms) <= 10 else study.arms[::5]

    def count(self, study: Study) -> int:
        """How many runs it is."""
        return len(self.arms_of(study)) * (study.seeds if self.seeds is None else self.seeds)

    def runs(self, study: Study, data_dir: Path | None = None) -> Iterator[tuple[Arm, Run]]:
        """Seed by seed, so that a seed's data are made once and shared by all arms."""
        rounds = self.rounds_of(study)
        recipe = read_task(self.task_of(study))
        for seed in range(study.seeds if self.seeds is None else self.seeds):
            task = recipe.build(self.devices, seed, data_dir)
            for arm in self.arms_of(study):
                run = Run(
                    task,
                    arm.algorithm,
                    PaperDelays(arm.stragglers, arm.max_delay),
                    seconds=float(rounds) if arm.by_time else None,
                    rounds=None if arm.by_time else rounds,
                    evaluate_every=study.evaluate_every,
                    seed=seed,
                    label=arm.label,
                )
                yield arm, run


def folder_of(out: Path, run: Run) -> Path:
    """Where a run is kept. Studies that need the same run share it."""
    assert isinstance(run.timing, PaperDelays)
    fleet = f"{run.timing.stragglers:.0%} slow, up to {run.timing.max_delay}, every {run.evaluate_every:g} s"
    return out / "runs" / slug(run.task.name) / slug(fleet) / slug(run.name) / f"seed-{run.seed}"


def find(studies: Sequence[Study], name: str) -> Study | None:
    """The study of that name."""
    return next((study for study in studies if study.name == name), None)
