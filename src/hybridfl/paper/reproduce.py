"""Runs studies: what is done is skipped, what was interrupted goes on, and the runs of a study are trained together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hybridfl.data.store import DATA_SETS, locate
from hybridfl.engines import device_named
from hybridfl.experiment import save_all
from hybridfl.paper import results
from hybridfl.paper.results import Result, distilled
from hybridfl.paper.study import Arm, Study, folder_of
from hybridfl.plan import Run
from hybridfl.progress import bars, part_done
from hybridfl.records import Record, load, load_config
from hybridfl.run_folder import FINISHED
from hybridfl.threads import CORES


@dataclass(frozen=True)
class Plan:
    """Some studies, kept in a folder."""

    studies: Sequence[Study]
    out: Path
    data_dir: Path | None = None

    def results_of(self, study: Study) -> Path:
        return self.out / "results" / f"{study.name}.jsonl"

    def check(self) -> None:
        """Raise `InputError` if data are missing, before anything is run."""
        for task in dict.fromkeys(study.task.split("(")[0] for study in self.studies):
            if (name := task.removesuffix("-paper")) in DATA_SETS:
                locate(name, self.data_dir)

    def play(self, study: Study, device: str) -> Iterator[tuple[Run, Record]]:
        """Run all that is left of a study; at its end its results are written, and how they were made."""
        started = time.perf_counter()
        arms, runs = zip(*study.runs(self.data_dir), strict=True)
        folders = [folder_of(self.out, run) for run in runs]
        yield from save_all(runs, folders, device)
        found = list(map(_result, arms, folders))
        results.write(self.results_of(study), found)
        versions = load_config(folders[0])["versions"]
        task = runs[0].task.describe()
        about = {
            "task": task["name"],
            "data": {name: task[name] for name in ("train_samples", "test_samples", "model", "parameters")},
            "devices": study.devices,
            "rounds": study.rounds,
            "device": describe(device_named(device)),
            "versions": {name: number for name, number in versions.items() if name != "platform"},
        }
        if study.aside is not None:
            about["aside"] = study.aside(study, self.data_dir)
        earlier = max(result.wall_seconds for result in found)  # of what was interrupted, all of it
        about["wall_seconds"] = round(max(time.perf_counter() - started, earlier))
        self.results_of(study).with_suffix(".about.json").write_text(json.dumps(about, indent=2) + "\n")


def describe(device: torch.device) -> str:
    """`NVIDIA H200`, or `2 CPU cores`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{CORES} CPU core{'s' if CORES > 1 else ''}"


def _result(arm: Arm, folder: Path) -> Result:
    wall_seconds = json.loads((folder / FINISHED).read_text())["wall_seconds"]
    return distilled(load(folder), arm.at, wall_seconds)


class PlanDisplay:
    """How far the study at hand is, and the whole plan."""

    def __init__(self, plan: Plan, quiet: bool) -> None:
        self.progress = bars(36, 20, 30, quiet)
        self._counts = {study.name: len(study.arms) * study.seeds for study in plan.studies}
        self._all = self.progress.add_task("[bold]all studies", total=sum(self._counts.values()), news="")
        self._done = 0.0

    def follow(self, study: Study, playing: Iterator[tuple[Run, Record]]) -> None:
        """Show a study's runs until it is done."""
        line = self.progress.add_task(study.name, total=self._counts[study.name], news="")
        parts: dict[int, float] = {}
        for run, record in playing:
            parts[id(run)] = part_done(run, record)
            news = f"{run.name}, seed {run.seed}: {record.test_accuracy:.1%}"
            self.progress.update(line, completed=sum(parts.values()), news=news)
            self.progress.update(self._all, completed=self._done + sum(parts.values()))
        self._done += self._counts[study.name]
        self.progress.update(line, completed=self._counts[study.name], news="done")
        self.progress.update(self._all, completed=self._done)


def reproduce(
    plan: Plan, device: str = "auto", quiet: bool = False, each: Callable[[Study], None] = lambda study: None
) -> None:
    """Run all studies of a plan; `each` is told of every one that is done."""
    display = PlanDisplay(plan, quiet)
    with display.progress:
        for study in plan.studies:
            display.follow(study, plan.play(study, device))
            each(study)
