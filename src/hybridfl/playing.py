"""One run in virtual time, from its beginning or from where it stood, to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridfl.contract import begun, stepped
from hybridfl.errors import InputError, require_whole
from hybridfl.plan import Run, Stage
from hybridfl.protocol import Job, State, Update, Vector
from hybridfl.records import DeviceScore
from hybridfl.run import Moment
from hybridfl.simulation import NobodyLeft, Simulation, Traffic
from hybridfl.tally import Draft, Tally, models_in
from hybridfl.vectors import is_finite


@dataclass(frozen=True, eq=False)
class Savepoint:
    """Where a run stands between two turns: it goes on from here exactly, as if it had never stopped."""

    state: Any
    traffic: Traffic
    tally: Tally
    due: float
    """From when on a record is made of the next version."""


@dataclass(frozen=True)
class Often:
    """How often a run can be saved: every `versions` or, with None, after `seconds` of real time."""

    versions: int | None = None
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.versions is not None:
            require_whole("checkpoint_every", self.versions)

    def clock(self, version: int) -> Callable[[int], bool]:
        """Asked once a turn which version a run is at, from `version` on, it says whether to save it now."""
        last_version, last_at = version, time.monotonic()

        def is_due(version: int) -> bool:
            nonlocal last_version, last_at
            if self.versions is None:
                due = time.monotonic() >= last_at + self.seconds
            else:
                due = version >= last_version + self.versions
            if due:
                last_version, last_at = version, time.monotonic()
            return due

        return is_due


NEVER = Often(seconds=math.inf)

LOOKED_AT = 2
"""After so many versions, and at the end, it is looked whether algorithm or fleet keep something between calls."""


@dataclass(frozen=True, eq=False)
class Ended:
    """A run has said its last; these are its weights, and how they do on each device's test samples."""

    weights: Vector
    devices: tuple[DeviceScore, ...] = ()


Playing = Generator[Sequence[Job] | Draft | Savepoint | Ended, list[Update] | None, None]
"""A run in virtual time. It yields drafts of its records, savepoints, and jobs, for which it wants to be sent their updates."""


def play(
    plan: Run,
    stage: Stage,
    device: torch.device,
    savepoint: Savepoint | None = None,
    often: Often = NEVER,
) -> Playing:
    """One run, from its first record or from a savepoint to its last."""
    algorithm, timing = stage.algorithm, stage.timing
    traffic = None if savepoint is None else savepoint.traffic
    simulation = Simulation(stage.fleet, _nobody, timing, timing.comes_online, timing.answer, traffic)
    if savepoint is None:
        weights = stage.task.first_weights.to(device, non_blocking=True, copy=True)
        state, outbox = begun(algorithm, weights, stage.fleet)
        tally = Tally(bytes_a_model=weights.numel() * weights.element_size(), sent=models_in(outbox.jobs))
        due = 0.0
        yield tally.draft(0, 0.0, weights)
        simulation.send(outbox)
    else:
        state, tally, due = savepoint.state, savepoint.tally.copied(), savepoint.due

    on_cpu = device.type == "cpu"  # a GPU would have to be waited for: there, a record's scores tell
    merged_before, weights_before = tally.merged, state.weights  # when this version was made
    is_due, every = often.clock(state.version), plan.seconds_between_records
    new_versions = 0
    while True:
        try:
            jobs = simulation.jump(state.fleet.barred)
        except NobodyLeft:
            if plan.seconds is None:
                raise InputError(
                    f"Nobody is left to train: at version {state.version}, {simulation.now:g} s after the start, no device is "
                    f"at work and none that may get a job will come back ({len(state.fleet.barred)} are in quarantine). Give "
                    "the run --seconds to end it, or its fleet fewer deaths."
                ) from None
            break
        if plan.seconds is not None and simulation.now > plan.seconds:
            break
        if jobs:
            updates = yield jobs
            assert updates is not None
            simulation.trained(updates)
        inbox = simulation.receive()
        before = state.version
        state, outbox = stepped(algorithm, state, inbox)
        tally.count(Moment(inbox, state, outbox))
        is_new = state.version > before
        if is_new:
            merged_before, weights_before = tally.merged, state.weights
            new_versions += 1
            if new_versions == LOOKED_AT:
                stage.check_kept()
        if plan.seconds is None:
            tally.check_progress()
            tally.check_versions(merged_before, len(state.fleet), state.weights is not weights_before)
        if is_new and on_cpu and not is_finite(state.weights):
            yield tally.draft(state.version, inbox.now, state.weights)
            yield Ended(state.weights)
            return
        is_last = _has_all_rounds(plan, state)
        # Only the instant that makes a version is worth a record: all that arrived has been merged into it.
        if is_new and (inbox.now >= due or is_last):
            yield tally.draft(state.version, inbox.now, state.weights)
            due = (math.floor(inbox.now / every) + 1) * every if every else inbox.now
        if is_last:
            break
        simulation.send(outbox)
        if is_due(state.version):
            yield Savepoint(state, simulation.traffic, tally.copied(), due)
    if plan.seconds is not None and tally.recorded_seconds < plan.seconds and not _has_all_rounds(plan, state):
        yield tally.draft(state.version, float(plan.seconds), state.weights)
    stage.check_kept()
    yield Ended(state.weights)


def _has_all_rounds(plan: Run, state: State) -> bool:
    return plan.rounds is not None and state.version >= plan.rounds


def _nobody(jobs: Sequence[Job]) -> list[Update]:
    raise AssertionError("Jobs are trained between send and receive.")
