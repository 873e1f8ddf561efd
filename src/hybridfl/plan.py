"""A run is a value: a task, an algorithm, a timing, a budget and a seed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from hybridfl.algorithms.ssgd import SSGD
from hybridfl.engines import check_fit
from hybridfl.errors import InputError, require_positive
from hybridfl.protocol import Algorithm, Fleet
from hybridfl.records import Config
from hybridfl.task import Task
from hybridfl.timing import ConstantSeconds, FleetTiming
from hybridfl.training import check_trainable
from hybridfl.vectors import flatten


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm on one task and fleet. It ends after `seconds` of virtual time or `rounds` versions, whichever is first.

    A record is made of the first version in every stretch of `evaluate_every` virtual seconds: by default 200 stretches
    over `seconds` or, with no limit on time, at every instant that makes a version. The last one is made at the very end.
    """

    task: Task
    algorithm: Algorithm[Any]
    timing: FleetTiming
    seconds: float | None = None
    rounds: int | None = None
    evaluate_every: float | None = None
    seed: int = 0
    label: str = ""

    def __post_init__(self) -> None:
        if self.seconds is None and self.rounds is None:
            raise InputError("The run has no end: give seconds, rounds or both.")
        for name in ("seconds", "rounds", "evaluate_every"):
            value = getattr(self, name)
            if value is not None:
                require_positive(name, value)
        devices = len(self.task.test)
        if len(self.timing.expected_seconds) != devices:
            raise InputError(
                f"The timing is for {len(self.timing.expected_seconds)} devices, but the task has {devices}: make them agree."
            )

    def check(self) -> None:
        """Raise `InputError` if the run could not start, before anything is written."""
        check_trainable(self.task.model)
        check_fit(self.task)
        stage = Stage.of(self)
        try:
            self.algorithm.init(flatten(stage.task.model), stage.fleet)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    @property
    def name(self) -> str:
        return self.label or type(self.algorithm).__name__

    @property
    def seconds_between_records(self) -> float:
        if self.evaluate_every is not None:
            return self.evaluate_every
        return 0.0 if self.seconds is None else self.seconds / 200

    def config(self) -> Config:
        """Everything that decides the results, and the versions of what computed them."""
        return {
            "label": self.name,
            "algorithm": repr(self.algorithm),
            "task": self.task.describe(),
            "timing": repr(self.timing),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "evaluate_every": self.evaluate_every,
            "seed": self.seed,
            "versions": _versions(),
        }


@dataclass(frozen=True, eq=False)
class Stage:
    """The task, timing and fleet a run really has: S-SGD has one device that holds all the data and takes 1 s."""

    task: Task
    timing: FleetTiming
    fleet: Fleet

    @classmethod
    def of(cls, plan: Run) -> Stage:
        centralised = isinstance(plan.algorithm, SSGD)
        task = plan.task.pooled() if centralised else plan.task
        timing: FleetTiming = ConstantSeconds(1) if centralised else plan.timing
        return cls(task, timing, Fleet(task.train.num_samples, timing.expected_seconds, plan.seed))


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("hybridfl", "torch", "numpy", "numba") if find_spec(name)}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}
