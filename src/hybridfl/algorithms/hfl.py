"""Hybrid Federated Learning: a synchronous kernel for normal devices, an asynchronous updater for stragglers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hybridfl.algorithms.ad_sgd import RankOne, Secant
from hybridfl.algorithms.blend import Blend, Printed
from hybridfl.algorithms.drift import DriftControl, Gradients
from hybridfl.algorithms.local_work import FullWork, Local, jobs_for
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import Everyone, Participants, chosen_by, participants_of
from hybridfl.algorithms.stragglers import Durations, Learned, Stragglers, normal_of
from hybridfl.algorithms.weighting import ByData, ByDevice, Weighting
from hybridfl.errors import InputError, require_positive
from hybridfl.protocol import Fleet, Inbox, Outbox, Receipt, Update, Vector


class Merge(Protocol):
    """What the closing of a round makes of the updates that reached it; `memory` is the rule's own."""

    def start(self) -> Any: ...
    def close(
        self, memory: Any, weights: Vector, version: int, rate: float, updates: Sequence[Update], fleet: Fleet
    ) -> tuple[Vector, Any]: ...
    def forgotten(self, memory: Any) -> int:
        """How many devices' last updates had to be given up since the start, for lack of room."""


@dataclass(frozen=True, eq=False)
class HFLState:
    """The joint model, the round that is open, and what is remembered of the devices."""

    version: int
    weights: Vector
    fleet: Fleet
    memory: Any
    """What the merge rule remembers."""
    durations: Durations = Durations()
    """What is known of each device's duration."""
    round_number: int = 0
    round_started_at: float = 0.0
    round_ends_at: float = math.inf
    """Its deadline; ∞ as long as the fleet's pace is not known."""
    awaited: frozenset[int] = frozenset()
    """Normal devices the round still waits for."""
    has_kernel: bool = True
    """Whether the round waits for anybody; without a normal device its deadline closes it, or without one the next answer."""
    busy: frozenset[int] = frozenset()
    """Devices with a job."""
    missed: frozenset[int] = frozenset()
    """Those of them that a round has waited for in vain: it was slow, or is dead. The next ones do not wait for it."""
    waiting: tuple[Update, ...] = ()
    """Updates that arrived since the last closing."""
    gradients: Gradients | None = None
    """What drift control knows of the devices."""


@dataclass(frozen=True)
class HFL:
    """A round closes when all of S1 has answered, or when its time is up. Whatever arrived by then is merged:

        w_{t+1} = w_t − η_t Σ_i q_i·(1 + s_i)·g_i,  s_i = −clip(gain·Δ_i·(w_t − w_base,i)/‖Δ_i‖², −trust, +trust)

    S1: the normal devices according to `stragglers`; g_i: the last accumulated gradient of device i, fresh or not;
    Δ_i: the step it made; q_i: its share of the data among the devices heard from. See `Memory` and `Secant`.

    Late work is merged at the next closing and never discarded. Every device that answered gets the new version at
    the closing or, with `participants=Uniform(K)` (or just K), K devices drawn from all that have no job. A version is made
    of something new: a deadline that passes with no arrival starts the wait again, and free devices get the same version.
    `drift` keeps devices' local steps together (`DriftControl`).

    "Stragglers Are Not Disaster: A Hybrid Federated Learning Algorithm with Delayed Gradients". The paper's own merge rule
    is `HFL.as_printed()`; docs/reading-of-the-paper.md says where and why the default differs.
    """

    merge: Merge = Memory(Secant())
    stragglers: Stragglers = Learned()
    round_seconds: float | None = None
    local: Local = FullWork()
    participants: Participants = Everyone()
    drift: DriftControl | None = None

    if TYPE_CHECKING:  # what may be given is more than what is kept

        def __init__(
            self,
            merge: Merge = ...,
            stragglers: Stragglers = ...,
            round_seconds: float | None = None,
            local: Local = ...,
            participants: Participants | int = ...,
            drift: DriftControl | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "participants", participants_of(self.participants))
        if self.round_seconds is not None:
            require_positive("round_seconds", self.round_seconds)
        if self.participants.enough != math.inf or self.participants.seconds != math.inf:
            raise InputError(
                f"participants={self.participants}: HFL itself decides when a round closes. Use Everyone or Uniform."
            )

    @classmethod
    def as_printed(
        cls,
        lambda_0: float = 0.5,
        normalised: bool = False,
        stragglers: Stragglers = Learned(),
        round_seconds: float | None = None,
        local: Local = FullWork(),
        participants: Participants | int = Everyone(),
    ) -> HFL:
        """Eq. (New) and Eq. (Lambda) letter by letter: unbounded correction, a step from the old model."""
        merge = Blend(Printed(lambda_0), RankOne(math.inf), normalised)
        return cls(merge, stragglers, round_seconds, local, participants)

    @classmethod
    def drift_controlled(
        cls,
        trust: float = 2.0,
        stragglers: Stragglers = Learned(),
        round_seconds: float | None = None,
        local: Local = FullWork(),
        participants: Participants | int = Everyone(),
        weighting: Weighting = ByData(),
    ) -> HFL:
        """With drift control and normalised shares: the most accurate we know; a device receives twice as much."""
        merge = Memory(Secant(), normalised=True, weighting=weighting)
        drift = DriftControl(trust, weighting=weighting)
        return cls(merge, stragglers, round_seconds, local, participants, drift)

    @classmethod
    def by_device(
        cls,
        stragglers: Stragglers = Learned(),
        round_seconds: float | None = None,
        local: Local = FullWork(),
        participants: Participants | int = Everyone(),
    ) -> HFL:
        """Every device counts alike, whatever it holds: q_i = 1/m over the m devices heard from."""
        merge = Memory(Secant(), weighting=ByDevice())
        return cls(merge, stragglers, round_seconds, local, participants)

    def init(self, weights: Vector, fleet: Fleet) -> tuple[HFLState, Outbox]:
        return self._open_round(HFLState(0, weights, fleet, self.merge.start()), now=0.0)

    def step(self, state: HFLState, inbox: Inbox) -> tuple[HFLState, Outbox]:
        back = inbox.devices
        lost = sorted(back - {update.job.device for update in inbox.updates})
        state = replace(
            state,
            durations=self.stragglers.observe(state.durations.without(lost), inbox.updates, inbox.now),
            waiting=state.waiting + inbox.updates,
            awaited=state.awaited - back,
            busy=state.busy - back,
            missed=state.missed - back,
        )
        receipts = tuple(Receipt(state.version - update.job.version) for update in inbox.updates)

        if state.round_ends_at == math.inf:
            state = replace(state, round_ends_at=state.round_started_at + self._round_seconds(state))
        # With neither a normal device at work nor a deadline, the next answer is all there is to wait for.
        waits_for_kernel = state.has_kernel or state.round_ends_at == math.inf
        closes = not state.busy or (waits_for_kernel and not state.awaited) or inbox.now >= state.round_ends_at
        if closes:
            state = replace(state, missed=state.missed | state.awaited)
        if closes and state.waiting:
            merged = self._merged(state)
            forgotten = self.merge.forgotten(merged.memory) - self.merge.forgotten(state.memory)
            return self._open_round(merged, inbox.now, receipts, forgotten)
        if closes or (lost and state.round_ends_at == math.inf):
            # Nothing to make a version of, or no deadline to wait for: who is free gets this version again.
            return self._open_round(state, inbox.now, receipts)
        return state, Outbox(wake_at=_wake_at(state.round_ends_at), receipts=receipts)

    def _merged(self, state: HFLState) -> HFLState:
        updates = sorted(state.waiting, key=lambda update: update.job.device)
        rate = self.local.learning_rate(state.version)
        weights, memory = self.merge.close(state.memory, state.weights, state.version, rate, updates, state.fleet)
        gradients = None if self.drift is None else self.drift.observed(state.gradients, updates)
        return replace(
            state, version=state.version + 1, weights=weights, memory=memory, waiting=(), gradients=gradients
        )

    def _open_round(
        self, state: HFLState, now: float, receipts: tuple[Receipt, ...] = (), forgotten: int = 0
    ) -> tuple[HFLState, Outbox]:
        """Judge anew who is normal, and give the current version to devices that have no job."""
        chosen = chosen_by(self.participants, state.fleet, state.round_number, state.busy, now)
        state = replace(
            state,
            durations=state.durations.with_devices(chosen),
            round_number=state.round_number + 1,
            round_started_at=now,
            busy=state.busy.union(chosen),
        )
        seconds = self._round_seconds(state)
        busy = np.array(sorted(state.busy), dtype=np.int64)
        normal = normal_of(self.stragglers, state.fleet, state.durations, seconds, busy)
        awaited = frozenset(normal.tolist()) - state.missed
        jobs = jobs_for(chosen, self.local, state.version, state.weights, state.fleet, now)
        if self.drift is not None:
            controls = self.drift.controls(state.gradients, chosen, state.weights, state.fleet)
            jobs = tuple(replace(job, drift=own) for job, own in zip(jobs, controls, strict=True))
        # With nobody at work there is nothing to wait for but somebody who comes online: no deadline.
        state = replace(
            state, round_ends_at=now + seconds if state.busy else math.inf, awaited=awaited, has_kernel=bool(awaited)
        )
        return state, Outbox(jobs, _wake_at(state.round_ends_at), receipts, forgotten)

    def _round_seconds(self, state: HFLState) -> float:
        return self.stragglers.round_seconds(state.durations) if self.round_seconds is None else self.round_seconds


def _wake_at(deadline: float) -> float | None:
    return deadline if math.isfinite(deadline) else None
