"""A run is a value: a task, an algorithm, its fleet's conditions, a budget and a seed."""

from __future__ import annotations

import functools
import hashlib
import math
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridfl.algorithms.guard import Guard, Guarded
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.conditions import Conditions, FleetTiming, conditions_of
from hybridfl.contract import begun
from hybridfl.engines import check_task
from hybridfl.errors import InputError, require_positive, require_seed, require_whole
from hybridfl.evaluation import Scores
from hybridfl.kept import Watch
from hybridfl.protocol import Algorithm, Fleet, always_online
from hybridfl.provenance import code_of, repr_of
from hybridfl.records import Config, DeviceScore
from hybridfl.spelling import read_algorithm, read_fleet, read_guard
from hybridfl.stored import require_name
from hybridfl.task import Task
from hybridfl.timing import ConstantSeconds, Pace, Recorded, Roster
from hybridfl.traces import RecordedAvailability, checksum
from hybridfl.trial import watched_closely

NANOSECOND = 1e-9


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm on one task and fleet. It ends after `seconds` of virtual time or `rounds` versions, whichever is first.

    A record is made of the first version in every stretch of `evaluate_every` virtual seconds: by default 200 stretches
    over `seconds` or, with no limit on time, at every instant that makes a version. The last one is made at the very end.

    Algorithm, fleet and guard may be texts, as on the command line: `"FedBuff(buffer=20)"`, `"phones"`, `"on"`.
    """

    task: Task
    algorithm: Algorithm[Any]
    timing: Pace | Conditions
    seconds: float | None = None
    rounds: int | None = None
    evaluate_every: float | None = None
    seed: int = 0
    label: str = ""
    guard: Guard | None = None

    def __post_init__(self) -> None:
        readers: dict[str, Callable[[str], Any]] = {
            "algorithm": read_algorithm,
            "timing": read_fleet,
            "guard": read_guard,
        }
        for name, read in readers.items():
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, read(getattr(self, name)))
        if self.label:
            require_name("label", self.label)
        _check_kind("algorithm", self.algorithm, "step", "HFL() or 'hfl'")
        _check_kind("fleet", self.timing, "of", "PaperDelays() or 'phones'")
        if self.guard is not None:
            _check_kind("guard", self.guard, "norm", "Guard() or 'on'")
        if self.seconds is None and self.rounds is None:
            raise InputError("The run has no end: give seconds, rounds or both.")
        if self.guard is not None and isinstance(self.algorithm, Guarded):
            raise InputError("The algorithm has its guard already: give the run guard=None, or the algorithm without.")
        require_seed(self.seed)
        object.__setattr__(self, "seed", int(self.seed))  # NumPy's is the same run
        if self.rounds is not None:
            require_whole("rounds", self.rounds)
            object.__setattr__(self, "rounds", int(self.rounds))
        for name in ("seconds", "evaluate_every"):
            value = getattr(self, name)
            if value is not None:
                require_positive(name, value)
                if value < NANOSECOND:
                    raise InputError(f"{name}={value} is less than a nanosecond, and the clock knows none: give more.")
                if not isinstance(value, int | float):
                    object.__setattr__(self, name, float(value))

    @cached_property
    def stage(self) -> Stage:
        """What the run really has. Raises `InputError` if the run could not start: all that play one come by here."""
        check_task(self.task)
        try:
            with watched_closely("An algorithm or a fleet"):
                stage = Stage.of(self)
                begun(stage.algorithm, stage.task.first_weights.clone(), stage.fleet)  # who writes into it has a copy
                stage.check_kept()
        except InputError as error:
            raise InputError(f"{self.name}, seed {self.seed}: {error}") from None
        return stage

    @property
    def name(self) -> str:
        return self.label or type(self.algorithm).__name__

    @property
    def seconds_between_records(self) -> float:
        if self.evaluate_every is not None:
            return self.evaluate_every
        return 0.0 if self.seconds is None else self.seconds / 200

    def forget_config(self) -> None:
        """The next `config` is of the run's parts as they are then: data and code may have changed since."""
        self.task.forget_checksum()
        self.__dict__.pop("config", None)

    @cached_property
    def config(self) -> Config:
        """Everything that decides the results: the run's values, the user's own code they reach, and the packages' versions."""
        return {
            "label": self.name,
            "algorithm": repr_of(self.algorithm),
            "task": self.task.describe(),
            "timing": repr_of(self.timing),
            "traces": _traces(self.timing),
            "guard": repr_of(self.guard),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "evaluate_every": self.evaluate_every,
            "seed": self.seed,
            "code": code_of(
                algorithm=self.algorithm,
                model=self.task.first_model,
                loss=self.task.loss,
                fleet=self.timing,
                guard=self.guard,
            ),
            "versions": versions(),
        }


@dataclass(frozen=True, eq=False)
class Stage:
    """What a run really has: its algorithm behind a guard, if it wants one, and its fleet drawn up by the seed.

    S-SGD has one device that holds all the data, takes 1 s and is always there.
    """

    algorithm: Algorithm[Any]
    task: Task
    timing: FleetTiming
    fleet: Fleet
    is_straggler: NDArray[np.bool_]
    """By device of the task, to score normal devices' samples and stragglers' apart."""
    watched: tuple[Watch, ...] = ()

    @classmethod
    def of(cls, plan: Run) -> Stage:
        parts = Watch.over(algorithm=plan.algorithm, fleet=plan.timing, guard=plan.guard)
        roster = Roster(plan.task.train.num_samples, plan.task.first_weights.nbytes, plan.seed)
        timing = conditions_of(plan.timing).of(roster)
        is_straggler, task = timing.is_straggler, plan.task
        if isinstance(plan.algorithm, SSGD):
            task = plan.task.pooled()
            timing = conditions_of(ConstantSeconds(1)).of(Roster(task.train.num_samples, seed=plan.seed))
        online = always_online if timing.is_always_on else timing.online
        fleet = Fleet(task.train.num_samples, timing.expected_seconds, plan.seed, online)
        algorithm = plan.algorithm if plan.guard is None else Guarded(plan.algorithm, plan.guard)
        return cls(algorithm, task, timing, fleet, is_straggler, (parts, Watch.over(paces=timing.paces)))

    def check_kept(self) -> None:
        """Raise `InputError` if algorithm, fleet or guard keep something from one call to the next."""
        for watch in self.watched:
            watch.check()

    def by_device(self, scores: Scores) -> tuple[DeviceScore, ...]:
        """How a model does on each device that has test samples that are scored; nothing where there are no classes."""
        return tuple(
            DeviceScore(device, accuracy, count, bool(self.is_straggler[device]))
            for device, (accuracy, count) in enumerate(
                zip(scores.by_device.tolist(), scores.held_by_device.tolist(), strict=True)
            )
            if not math.isnan(accuracy)
        )


def _check_kind(what: str, given: object, has: str, example: str) -> None:
    """A class that was not called, for example, is said now and not in the middle of a run."""
    if isinstance(given, type) or not hasattr(given, has):
        written = getattr(given, "__name__", repr_of(given))
        raise InputError(f"{written} is no {what}: give an object or its text, {example} for example.")


def _traces(timing: object) -> dict[str, str]:
    """The recordings a fleet replays, and what was in them: a trace that has changed makes another run."""
    if isinstance(timing, Recorded | RecordedAvailability):
        return {timing.path: checksum(timing.path)}
    parts = [getattr(timing, field.name) for field in fields(timing)] if is_dataclass(timing) else []
    return {path: checksum for part in parts for path, checksum in _traces(part).items()}


def versions() -> dict[str, str]:
    """Of what computes."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "numba") if find_spec(name)}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hybridfl": own_version(Path(__file__).parent),
        **packages,
    }


SHOWING = (
    "cli",
    "paper",
    "report",
    "charts",
    "panels",
    "plots",
    "summary",
    "headline",
    "tensorboard",
    "fault_table",
    "label_",
)
"""How modules begin that show results and compute none."""


@functools.cache
def own_version(package: Path) -> str:
    """hybridfl's version, and of a clone, whose code changes while its version stays, a digest of what computes."""
    version = metadata.version("hybridfl")
    if package.is_relative_to(sysconfig.get_paths()["purelib"]):
        return version
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if not name.startswith(SHOWING):
            digest.update(name.encode() + b"\0" + file.read_bytes())
    return f"{version}+{digest.hexdigest()}"
