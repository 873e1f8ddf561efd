"""Several algorithms on the same data, fleet and delays, over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridfl.algorithms.guard import Guard
from hybridfl.conditions import Conditions
from hybridfl.errors import InputError, require_whole
from hybridfl.free_memory import check_room
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm
from hybridfl.records import RUN, check_apart, check_folder, difference, difference_of_seeds, files_below, load_config
from hybridfl.task import Task
from hybridfl.tasks import TaskRecipe
from hybridfl.timing import Pace, PaperDelays

MOST_LETTERS = 200
"""Of a folder's name: disks take 255."""


@dataclass(frozen=True)
class Comparison:
    """Every algorithm runs once a seed. The seed decides the data, who is slow and by how much, and all draws of the run."""

    recipe: TaskRecipe
    algorithms: dict[str, Algorithm[Any]]
    timing: Pace | Conditions = PaperDelays()
    devices: int = 100
    seeds: Sequence[int] = (0, 1, 2)
    seconds: float | None = None
    rounds: int | None = None
    evaluate_every: float | None = None
    data_dir: Path | None = None
    guard: Guard | None = None

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise InputError("There is nothing to compare: name at least one algorithm.")
        if len(self.seeds) == 0:  # an array has no truth of its own
            raise InputError("There is nothing to run: ask for at least one seed.")
        require_whole("devices", self.devices)

    def runs(self) -> Iterator[Run]:
        """Seed by seed, so that a seed's data are made once and shared by all algorithms."""
        first: Task | None = None
        for number, seed in enumerate(self.seeds):
            task = self.recipe.build(self.devices, seed, self.data_dir)
            if first is not None and number == 1:
                check_room("seeds", len(self.seeds), _own_bytes(task, first))
            first = first or task
            for label, algorithm in self.algorithms.items():
                yield Run(
                    task,
                    algorithm,
                    self.timing,
                    self.seconds,
                    self.rounds,
                    self.evaluate_every,
                    seed,
                    label,
                    self.guard,
                )


def _own_bytes(task: Task, other: Task) -> int:
    """What a seed's task holds that the other's does not: images, for example, are shared."""
    inputs = task.train.inputs
    own = 0 if inputs is other.train.inputs else inputs.untyped_storage().nbytes()
    return own + sum(samples.index.nbytes + samples.offsets.nbytes for samples in (task.train, task.test))


def folder_of(out: Path, run: Run) -> Path:
    """Where a comparison keeps a run: OUT/label/seed-0."""
    return out / slug(run.name) / f"seed-{run.seed}"


def slug(text: str) -> str:
    """A text as the name of a folder."""
    name = re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-")
    if not name.strip("."):  # '..' would be the folder above
        name = "run"
    if len(name) > MOST_LETTERS:
        raise InputError(
            f"'{text[:40]}…' has {len(text):,} letters and is too long to name a folder: give the algorithm a label, "
            "'small=FedBuff(buffer=5)' for example, or name the folder (--out)."
        )
    return name


def check_out(out: Path, runs: Sequence[Run]) -> None:
    """Refuse to write where another configuration's results lie, or beside runs that could not be compared with these."""
    folders = [folder_of(out, run) for run in runs]
    check_apart([run.name for run in runs], folders)
    for folder, run in zip(folders, runs, strict=True):
        if not folder.resolve().is_relative_to(out.resolve()):
            raise InputError(
                f"'{folder}' is behind a link that leads out of '{out}': remove the link, or choose another folder."
            )
        check_folder(folder, run.config)
    configs = [run.config for run in runs]
    by_label = {config["label"]: config for config in configs}
    for path in files_below(out, RUN):
        found = load_config(path.parent)
        nearest = next((config for config in configs if config["seed"] == found["seed"]), configs[0])
        differing = difference(found, nearest)
        if not differing and found["label"] in by_label:
            differing = difference_of_seeds(found, by_label[found["label"]])
        if differing:
            raise InputError(
                f"'{path.parent}' cannot be compared with this ({differing}): choose another folder, or remove that one."
            )
