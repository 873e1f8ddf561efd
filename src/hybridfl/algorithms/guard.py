"""What stands between the devices and an algorithm: a bad update never reaches the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hybridfl.errors import InputError, require_positive
from hybridfl.protocol import Algorithm, Fleet, Inbox, Job, Lost, Outbox, Receipt, Update, Vector
from hybridfl.vectors import deltas

FEWEST_NORMS = 5
"""With fewer updates than these there is no telling what is usual."""

PAST_JOBS = 1000
"""So many jobs that have ended are remembered, to say what is wrong with another answer to one of them."""


@dataclass(frozen=True)
class Guard:
    """An update is refused if
        its device has no such job: a version never sent, a second answer, an answer to a job that was given up,
        it is not of the model's shape and dtype, or holds a value that is not finite,
        k < 1 or k > the steps that E epochs over the device's samples make,
        ‖Δ‖/(η·k) > `norm` × the median of the last `history` updates that were not refused, its own instant's included.

    Δ: the device's step, η: its learning rate, k: the number of local steps it says it took. Divided by η·k, devices with much
    data and with little, early and late ones, can be compared: it is the length of the mean gradient.

    For the algorithm a refused update is a lost job: its device is free again. A device whose answers to its jobs are
    refused `quarantine` times in a row gets no more jobs, nor does one that says it holds no samples, or more than `samples` ×
    the fleet's median. None: no bound.
    """

    norm: float | None = 10.0
    history: int = 200
    samples: float | None = 10_000.0
    quarantine: int | None = 3

    def __post_init__(self) -> None:
        for name in ("norm", "history", "samples", "quarantine"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.history < FEWEST_NORMS:
            raise InputError(f"history={self.history}: the median of so few says nothing. Give {FEWEST_NORMS} or more.")


JobName = tuple[int, int, int, float]
"""(device, version, repeat, sent_at): what tells a job from all others."""


@dataclass(frozen=True, eq=False)
class GuardedState:
    """An algorithm's state, the jobs whose answers are expected, and what is known of past answers."""

    inner: Any
    jobs: Mapping[JobName, Job] = field(default_factory=dict)
    past: Mapping[JobName, str] = field(default_factory=dict)
    """How the latest jobs ended."""
    norms: tuple[float, ...] = ()
    strikes: Mapping[int, int] = field(default_factory=dict)
    """Refusals in a row, by device."""

    @property
    def version(self) -> int:
        return int(self.inner.version)

    @property
    def weights(self) -> Vector:
        weights: Vector = self.inner.weights
        return weights

    @property
    def fleet(self) -> Fleet:
        fleet: Fleet = self.inner.fleet
        return fleet


@dataclass(frozen=True)
class Guarded:
    """An algorithm that sees only what its guard lets through; itself an algorithm like any other."""

    algorithm: Algorithm[Any]
    guard: Guard = Guard()

    def init(self, weights: Vector, fleet: Fleet) -> tuple[GuardedState, Outbox]:
        inner, outbox = self.algorithm.init(weights, replace(fleet, barred=fleet.barred | self._absurd(fleet)))
        return GuardedState(inner, {_name(job): job for job in outbox.jobs}), outbox

    def step(self, state: GuardedState, inbox: Inbox) -> tuple[GuardedState, Outbox]:
        # Nothing an answer says of its own job is believed: it is judged, and merged, by the job that was sent.
        updates = [replace(update, job=state.jobs.get(_name(update.job), update.job)) for update in inbox.updates]
        losses = [lost for lost in inbox.lost if _name(lost.job) in state.jobs]
        reasons, norms = self._judge(state, updates)
        good = [update for update, reason in zip(updates, reasons, strict=True) if reason is None]
        refused = {_name(u.job): r for u, r in zip(updates, reasons, strict=True) if r is not None}
        answered = {_name(update.job) for update in good}
        given_up = [Lost(state.jobs[name], refused[name]) for name in (refused.keys() & state.jobs.keys()) - answered]
        state = self._with_strikes(state, good, [lost.job for lost in given_up])

        inner, outbox = self.algorithm.step(
            state.inner,
            Inbox(
                inbox.now,
                tuple(good),
                tuple(sorted((*losses, *given_up), key=lambda lost: lost.job.device)),
            ),
        )
        ended = {_name(update.job): "answered already" for update in good} | {
            _name(lost.job): "given up" for lost in (*losses, *given_up)
        }
        jobs = {name: job for name, job in state.jobs.items() if name not in ended}
        jobs |= {_name(job): job for job in outbox.jobs}
        past = dict(list((dict(state.past) | ended).items())[-PAST_JOBS:])
        after = replace(state, inner=inner, jobs=jobs, past=past, norms=(state.norms + norms)[-self.guard.history :])
        return after, replace(outbox, receipts=_receipts(state.version, updates, reasons, outbox.receipts))

    def _judge(self, state: GuardedState, updates: Sequence[Update]) -> tuple[list[str | None], tuple[float, ...]]:
        """What is wrong with each update, None if nothing, and the norms of the good ones."""
        reasons: list[str | None] = []
        seen: set[JobName] = set()
        for update in updates:
            reason = "a second answer" if _name(update.job) in seen else _wrong_with(update, state)
            reasons.append(reason)
            if reason is None:
                seen.add(_name(update.job))
        sound = [place for place, reason in enumerate(reasons) if reason is None]
        if not sound:
            return reasons, ()
        lengths = _mean_gradients([updates[place] for place in sound])
        finite = lengths[np.isfinite(lengths)]
        known = np.concatenate([state.norms, finite])
        bound = math.inf
        if self.guard.norm is not None and len(known) >= FEWEST_NORMS:
            bound = self.guard.norm * float(np.median(known))
        for place, length in zip(sound, lengths.tolist(), strict=True):
            if not math.isfinite(length):
                reasons[place] = "not finite"
            elif length > bound > 0:
                reasons[place] = "too long"
        good = [length for place, length in zip(sound, lengths.tolist(), strict=True) if reasons[place] is None]
        return reasons, tuple(good)

    def _with_strikes(self, state: GuardedState, good: Sequence[Update], refused: Sequence[Job]) -> GuardedState:
        """Count refusals in a row; who has too many is barred."""
        if not refused and not state.strikes:
            return state
        strikes = dict(state.strikes)
        for update in good:
            strikes.pop(update.job.device, None)
        for job in refused:
            strikes[job.device] = strikes.get(job.device, 0) + 1
        limit = math.inf if self.guard.quarantine is None else self.guard.quarantine
        barred = frozenset(device for device, count in strikes.items() if count >= limit)
        inner = state.inner
        if not barred <= state.fleet.barred:
            inner = replace(inner, fleet=replace(state.fleet, barred=state.fleet.barred | barred))
        return replace(state, inner=inner, strikes={d: count for d, count in strikes.items() if d not in barred})

    def _absurd(self, fleet: Fleet) -> frozenset[int]:
        """Whose number of samples cannot be true."""
        counts = fleet.num_samples
        most = math.inf if self.guard.samples is None else self.guard.samples * float(np.median(counts))
        return frozenset(np.flatnonzero((counts < 1) | (counts > most)).tolist())


def _wrong_with(update: Update, state: GuardedState) -> str | None:
    """All that can be said without looking at the numbers."""
    name, job = _name(update.job), update.job
    if name not in state.jobs:
        if name in state.past:
            return f"its job was {state.past[name]}"
        return "a version never sent" if job.version > state.version or job.version < 0 else "no such job"
    if update.weights.shape != state.weights.shape:
        return f"shape {list(update.weights.shape)} instead of {list(state.weights.shape)}"
    if update.weights.dtype != state.weights.dtype:
        return f"{update.weights.dtype} instead of {state.weights.dtype}"
    samples = int(state.fleet.num_samples[job.device])
    most = job.work.epochs * -(-samples // min(job.work.batch_size, samples))
    if not 1 <= update.num_steps <= most:
        return f"{update.num_steps} steps where its samples make {most}"
    return None


def _mean_gradients(updates: Sequence[Update]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """‖Δ‖/(η·k) of each; NaN or ∞ where anything in it is."""
    steps = deltas(updates)
    norms = torch.linalg.vector_norm(steps, dim=1).double().cpu().numpy()
    scale = np.array([update.job.work.learning_rate * update.num_steps for update in updates])
    return np.asarray(norms / scale, dtype=np.float64)


def _receipts(
    version: int, updates: Sequence[Update], reasons: Sequence[str | None], of_good: Sequence[Receipt]
) -> tuple[Receipt, ...]:
    """The algorithm's receipts for what it saw, ours for the rest, in the inbox's order."""
    good = iter(of_good)
    return tuple(
        next(good) if reason is None else Receipt(max(0, version - update.job.version), refused=reason)
        for update, reason in zip(updates, reasons, strict=True)
    )


def _name(job: Job) -> JobName:
    return job.device, job.version, job.repeat, job.sent_at
