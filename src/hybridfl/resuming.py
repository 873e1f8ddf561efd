"""Interrupted runs, made again from what their folders say."""

from __future__ import annotations

import functools
from pathlib import Path

from hybridfl.algorithms.local_work import FullWork
from hybridfl.errors import InputError
from hybridfl.plan import Run
from hybridfl.records import DEPLOYED, RUN, Config, check_folder, load_config
from hybridfl.spelling import read_algorithm, read_fleet, read_guard, read_task
from hybridfl.task import Task
from hybridfl.wording import brief


def planned(folder: str | Path, data_dir: str | Path | None = None) -> dict[Path, Run]:
    """The runs in or below a folder, each by its own folder: they are what they were when they were begun."""
    folder, data_dir = Path(folder), None if data_dir is None else Path(data_dir)
    paths = sorted(folder.rglob(RUN)) if folder.is_dir() else []
    if not paths:
        raise InputError(f"'{folder}' holds no run: give a folder that `hybridfl run --out` or `compare --out` wrote.")
    tasks = functools.cache(functools.partial(_task, data_dir))
    return {path.parent: _run(path.parent, tasks) for path in paths}


def _task(data_dir: Path | None, name: str, devices: int, seed: int) -> Task:
    """Runs of one seed share it."""
    return read_task(name).build(devices, seed, data_dir)


def _run(folder: Path, tasks: functools._lru_cache_wrapper[Task]) -> Run:
    config = load_config(folder)
    if config["timing"] == DEPLOYED:
        raise InputError(
            f"The run in '{folder}' is a deployment's: start its app again with `flwr run`, and it goes on there."
        )
    try:
        plan = _from(config, tasks)
    except (InputError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"The run in '{folder}' cannot be made again from what it says of itself ({brief(str(error), 500)}). If "
            "it was begun from Python, go on there: call `simulate` with the same values and the same `out`. Traces are looked "
            "for where it was begun."
        ) from None
    check_folder(folder, plan.config)
    return plan


def _from(config: Config, tasks: functools._lru_cache_wrapper[Task]) -> Run:
    task = config["task"]
    return Run(
        tasks(task["name"], task["devices"], config["seed"]),
        read_algorithm(config["algorithm"], FullWork()),
        read_fleet(config["timing"]),
        config["seconds"],
        config["rounds"],
        config["evaluate_every"],
        config["seed"],
        config["label"],
        read_guard(config.get("guard", "None")),
    )
