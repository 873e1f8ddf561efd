"""What stands between the devices and an algorithm: a bad update never reaches the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hybridfl.contract import begun, stepped
from hybridfl.errors import InputError, require_positive, require_whole
from hybridfl.protocol import Algorithm, Fleet, Inbox, Job, Lost, Outbox, Receipt, Update, Vector
from hybridfl.vectors import deltas

FEWEST = 3
"""Of fewer devices than these, or than all, there is no telling what is usual: a single one could say anything."""

TOO_EARLY = "too early to tell what is usual"
MOST_EARLY = 20
"""So many answers are held back for that reason; then whoever has answered is all there is to go by."""

PAST_JOBS = 1000
"""So many jobs that have ended are remembered, to say what is wrong with another answer to one of them."""


@dataclass(frozen=True)
class Guard:
    """An update is refused if
        its device has no such job: a version never sent, a second answer, an answer to a job that was given up,
        it is not of the model's shape and dtype, or holds a value that is not finite,
        k < 1 or k > the steps that E epochs over the device's samples make,
        both ‖Δ‖/η and ‖Δ‖/(η·k) are more than `norm` × the medians over devices of what each sent last.

    Δ: the device's step, η: its learning rate, k: the number of local steps it says it took. The second is the length of its
    mean gradient: long in a device of few samples, as many steps lead to where there is little left to learn; the first is
    long in one of many. Honest devices are usual in one or the other, whatever they hold. Every device counts once, however
    often it answers: with what it sent before or, if that is nothing, now; of a large fleet the `history` that answered last.

    For the algorithm a refused update is a lost job: its device is free again. Before three devices have answered (or all, if
    there are fewer) nobody knows what is usual: what comes till then, 20 answers at most, is refused and held against nobody.
    A device whose answers to its jobs are refused, or are no updates at all, `quarantine` times in a row gets no more jobs,
    nor does one that says it holds no samples, or more than `samples` × the median of those that hold any. None: no bound.
    """

    norm: float | None = 10.0
    history: int = 200
    samples: float | None = 10_000.0
    quarantine: int | None = 3

    def __post_init__(self) -> None:
        for name in ("norm", "samples"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        require_whole("history", self.history)
        if self.quarantine is not None:
            require_whole("quarantine", self.quarantine)
        if self.history < FEWEST:
            raise InputError(f"history={self.history}: the median of so few says nothing. Give {FEWEST} or more.")


JobName = tuple[int, int, int, float]
"""(device, version, repeat, sent_at): what tells a job from all others."""


Lengths = tuple[float, float]
"""‖Δ‖/η and ‖Δ‖/(η·k) of an answer."""


@dataclass(frozen=True, eq=False)
class GuardedState:
    """An algorithm's state, the jobs whose answers are expected, and what is known of past answers."""

    inner: Any
    jobs: Mapping[JobName, Job] = field(default_factory=dict)
    past: Mapping[JobName, str] = field(default_factory=dict)
    """How the latest jobs ended."""
    lengths: Mapping[int, Lengths] = field(default_factory=dict)
    """Of each device's last answer that was not too long, those that answered last at the end."""
    early: int = 0
    """How many answers came too early to be judged."""
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
        inner, outbox = begun(self.algorithm, weights, replace(fleet, barred=fleet.barred | self._absurd(fleet)))
        return GuardedState(inner, {_name(job): job for job in outbox.jobs}), outbox

    def step(self, state: GuardedState, inbox: Inbox) -> tuple[GuardedState, Outbox]:
        # Nothing an answer says of its own job is believed: it is judged, and merged, by the job that was sent.
        updates = [_as_sent(update, state.jobs) for update in inbox.updates]
        reasons, lengths = self._judge(state, updates)
        good = [update for update, reason in zip(updates, reasons, strict=True) if reason is None]
        refused = {_name(u.job): r for u, r in zip(updates, reasons, strict=True) if r is not None}
        answered = {_name(update.job) for update in good}
        given_up = [Lost(state.jobs[name], refused[name]) for name in (refused.keys() & state.jobs.keys()) - answered]
        # A job ends once: what was answered is not lost as well, whatever a transport's timeout says.
        ended_already = answered | {_name(lost.job) for lost in given_up}
        losses = [lost for lost in inbox.lost if _name(lost.job) in state.jobs.keys() - ended_already]
        faults = [lost.job for lost in given_up if lost.reason != TOO_EARLY]
        state = self._with_strikes(state, good, faults + [lost.job for lost in losses if lost.is_fault])
        fleet = inbox.fleet and replace(inbox.fleet, barred=self._absurd(inbox.fleet))

        inner, outbox = stepped(
            self.algorithm,
            state.inner,
            Inbox(
                inbox.now,
                tuple(good),
                tuple(sorted((*losses, *given_up), key=lambda lost: lost.job.device)),
                fleet,
                inbox.joined,
            ),
        )
        ended = {_name(update.job): "answered already" for update in good} | {
            _name(lost.job): "given up" for lost in (*losses, *given_up)
        }
        jobs = {name: job for name, job in state.jobs.items() if name not in ended}
        jobs |= {_name(job): job for job in outbox.jobs}
        past = dict(list((dict(state.past) | ended).items())[-PAST_JOBS:])
        early = state.early + reasons.count(TOO_EARLY)
        after = replace(state, inner=inner, jobs=jobs, past=past, lengths=lengths, early=early)
        return after, replace(outbox, receipts=_receipts(state.version, updates, reasons, outbox.receipts))

    def _judge(self, state: GuardedState, updates: Sequence[Update]) -> tuple[list[str | None], dict[int, Lengths]]:
        """What is wrong with each update, None if nothing, and the devices' lengths after them."""
        reasons: list[str | None] = []
        seen: set[JobName] = set()
        for update in updates:
            reason = "a second answer" if _name(update.job) in seen else _wrong_with(update, state)
            reasons.append(reason)
            if reason is None:
                seen.add(_name(update.job))
        sound = [place for place, reason in enumerate(reasons) if reason is None]
        if not sound:
            return reasons, dict(state.lengths)
        sent = dict(zip(sound, _lengths([updates[place] for place in sound]), strict=True))
        finite = {updates[place].job.device: lengths for place, lengths in sent.items() if math.isfinite(lengths[0])}
        known = finite | dict(state.lengths)
        fewest = min(FEWEST, len(state.fleet) - len(state.fleet.barred)) if state.early < MOST_EARLY else 0
        is_early = self.guard.norm is not None and len(known) < fewest
        bounds = (math.inf, math.inf)
        if self.guard.norm is not None and known and not is_early:
            first, second = (self.guard.norm * np.median(list(known.values()), axis=0)).tolist()
            bounds = first, second
        for place, lengths in sent.items():
            if not math.isfinite(lengths[0]):
                reasons[place] = "not finite"
            elif is_early:
                reasons[place] = TOO_EARLY
            elif _exceed(lengths, bounds):
                reasons[place] = "too long"
        usual = {device: lengths for device, lengths in finite.items() if not _exceed(lengths, bounds)}
        others = {device: lengths for device, lengths in state.lengths.items() if device not in usual}
        return reasons, dict(list((others | usual).items())[-self.guard.history :])

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
        holding = counts[counts > 0]
        most = self.guard.samples * float(np.median(holding)) if self.guard.samples and len(holding) else math.inf
        return frozenset(np.flatnonzero((counts < 1) | (counts > most)).tolist())


def _as_sent(update: Update, jobs: Mapping[JobName, Job]) -> Update:
    weights = update.weights.detach() if isinstance(update.weights, torch.Tensor) else update.weights
    return replace(update, job=jobs.get(_name(update.job), update.job), weights=weights)


def _wrong_with(update: Update, state: GuardedState) -> str | None:
    """All that can be said without looking at the numbers."""
    name, job = _name(update.job), update.job
    if name not in state.jobs:
        if name in state.past:
            return f"its job was {state.past[name]}"
        return "a version never sent" if job.version > state.version or job.version < 0 else "no such job"
    if not isinstance(update.weights, torch.Tensor) or update.weights.layout != torch.strided:
        return "not a vector"
    if update.weights.shape != state.weights.shape:
        return f"shape {list(update.weights.shape)} instead of {list(state.weights.shape)}"
    if update.weights.dtype != state.weights.dtype:
        return f"{update.weights.dtype} instead of {state.weights.dtype}"
    samples = int(state.fleet.num_samples[job.device])
    most = job.work.epochs * -(-samples // min(job.work.batch_size, samples))
    if not isinstance(update.num_steps, int) or not 1 <= update.num_steps <= most:
        return f"{update.num_steps} steps where its samples make {most}"
    return None


def _lengths(updates: Sequence[Update]) -> list[Lengths]:
    """NaN or ∞ where anything in an update is."""
    norms = torch.linalg.vector_norm(deltas(updates), dim=1).tolist()
    lengths = [norm / update.job.work.learning_rate for norm, update in zip(norms, updates, strict=True)]
    return [(length, length / update.num_steps) for length, update in zip(lengths, updates, strict=True)]


def _exceed(lengths: Lengths, bounds: Lengths) -> bool:
    return all(length > bound > 0 for length, bound in zip(lengths, bounds, strict=True))


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
