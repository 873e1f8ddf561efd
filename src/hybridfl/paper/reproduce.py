"""Runs studies: what is done is skipped, what was interrupted goes on, and the runs of a study are trained together."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hybridfl.checkpoints import write_aside
from hybridfl.data.store import DATA_SETS, locate
from hybridfl.engines import device_named
from hybridfl.experiment import save_all
from hybridfl.paper import results
from hybridfl.paper.results import Result, distilled
from hybridfl.paper.study import Arm, Study, folder_of
from hybridfl.plan import Run
from hybridfl.progress import bars, part_done
from hybridfl.records import FINISHED, Record, load, load_config, wall_seconds
from hybridfl.threads import CORES
from hybridfl.wording import counted


@dataclass(frozen=True)
class Plan:
    """Some studies, kept in a folder."""

    studies: Sequence[Study]
    out: Path
    data_dir: Path | None = None

    def results_of(self, study: Study) -> Path:
        return self.out / "results" / f"{study.name}.jsonl"

    def about(self, study: Study) -> Path:
        """How it was run."""
        return self.results_of(study).with_suffix(".about.json")

    def check(self, device: str = "auto") -> None:
        """Raise `InputError` if data or the device are missing, before anything is run."""
        device_named(device)
        for task in dict.fromkeys(study.task.split("(")[0] for study in self.studies):
            if (name := task.removesuffix("-paper")) in DATA_SETS:
                locate(name, self.data_dir)

    def play(self, study: Study, device: str) -> Iterator[tuple[Run, Record]]:
        """Run all that is left of a study; at its end its results are written, and how they were made."""
        started = time.perf_counter()
        arms, runs = zip(*study.runs(self.data_dir), strict=True)
        folders = [folder_of(self.out, run) for run in runs]
        is_done = self._is_done(study, folders)
        yield from save_all(runs, folders, device)
        if is_done:
            return
        found = list(map(_result, arms, folders))
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
        # The results come last: where they are, all is.
        self.about(study).parent.mkdir(parents=True, exist_ok=True)
        write_aside(self.about(study), (json.dumps(about, indent=2) + "\n").encode())
        results.write(self.results_of(study), found)

    def _is_done(self, study: Study, folders: Sequence[Path]) -> bool:
        """Whether its runs have ended and their results, of these arms and seeds, are written."""
        if not all((folder / FINISHED).exists() for folder in folders) or not self.results_of(study).exists():
            return False
        written = {(result.label, result.at, result.seed) for result in results.read(self.results_of(study))}
        return written == {(arm.label, arm.at, seed) for arm in study.arms for seed in range(study.seeds)}


def describe(device: torch.device) -> str:
    """`NVIDIA H200`, or `2 CPU cores`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return counted(CORES, "CPU core")


def _result(arm: Arm, folder: Path) -> Result:
    return distilled(load(folder), arm.at, wall_seconds(folder))


class PlanDisplay:
    """How far the study at hand is, and the whole plan."""

    def __init__(self, plan: Plan, quiet: bool) -> None:
        self.progress = bars(36, 20, 30, quiet)
        self._counts = {study.name: len(study.arms) * study.seeds for study in plan.studies}
        self._all = self.progress.add_task("all studies", total=sum(self._counts.values()), news="", style="bold")
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


def reproduce(plan: Plan, device: str = "auto", quiet: bool = False) -> None:
    """Run all studies of a plan."""
    display = PlanDisplay(plan, quiet)
    with display.progress:
        for study in plan.studies:
            display.follow(study, plan.play(study, device))
