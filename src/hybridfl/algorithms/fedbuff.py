"""FedBuff: updates are merged when a buffer of them is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch

from hybridfl.algorithms.averages import Average, Mean, averaged
from hybridfl.algorithms.concurrency import Crew, first_crew, next_crew, wake_at
from hybridfl.algorithms.local_work import FullWork, Local, jobs_for
from hybridfl.algorithms.staleness import Polynomial, StalenessWeight, weight_of
from hybridfl.errors import require_positive, require_whole
from hybridfl.protocol import Fleet, Inbox, Job, Outbox, Receipt, Vector


@dataclass(frozen=True, eq=False)
class FedBuffState:
    """The joint model, who is at work, the updates s(τ_i)·Δ_i waiting in the buffer, and their (device, version)."""

    version: int
    weights: Vector
    fleet: Fleet
    crew: Crew
    buffer: tuple[Vector, ...] = ()
    buffered: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class FedBuff:
    """w ← w + η_g · (1/K) Σ_{i in buffer} s(τ_i)·Δ_i,  Δ_i = w_i − w_base,i,  s(τ) = 1/√(1 + τ)

    K: `buffer`; η_g: `server_rate`; w_base,i: the version device i was sent, not the current one; τ_i: versions made since.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022. Every device that is there is always
    at work or, with `concurrency`, so many at a time, each drawn uniformly when another is back. Every update counts alike,
    whatever its number of samples, as published.
    """

    buffer: int = 10
    server_rate: float = 1.0
    staleness: StalenessWeight = Polynomial(0.5)
    local: Local = FullWork()
    concurrency: int | None = None
    average: Average = Mean()

    def __post_init__(self) -> None:
        require_whole("buffer", self.buffer)
        require_positive("server_rate", self.server_rate)
        if self.concurrency is not None:
            require_whole("concurrency", self.concurrency)

    def init(self, weights: Vector, fleet: Fleet) -> tuple[FedBuffState, Outbox]:
        crew, devices = first_crew(fleet, self.concurrency)
        state = FedBuffState(0, weights, fleet, crew)
        return state, Outbox(self._jobs(state, devices, now=0.0), wake_at(crew, fleet, self.concurrency, 0.0))

    def step(self, state: FedBuffState, inbox: Inbox) -> tuple[FedBuffState, Outbox]:
        receipts = []
        for update in inbox.updates:
            staleness = state.version - update.job.version
            state = replace(
                state,
                buffer=(*state.buffer, weight_of(self.staleness, staleness) * update.delta),
                buffered=(*state.buffered, (update.job.device, update.job.version)),
            )
            receipts.append(Receipt(staleness))
            if len(state.buffer) == self.buffer:
                state = self._merged(state)
        crew, devices = next_crew(state.crew, state.fleet, self.concurrency, inbox.devices, inbox.now)
        state = replace(state, crew=crew)
        look_again = wake_at(crew, state.fleet, self.concurrency, inbox.now)
        return state, Outbox(self._jobs(state, devices, inbox.now), look_again, tuple(receipts))

    def _merged(self, state: FedBuffState) -> FedBuffState:
        alike, rates = (
            torch.full((self.buffer,), 1 / self.buffer),
            torch.full((self.buffer,), self.server_rate / self.buffer),
        )
        mean = averaged(self.average, alike, rates, torch.stack(state.buffer))
        return FedBuffState(state.version + 1, state.weights + mean, state.fleet, state.crew)

    def _jobs(self, state: FedBuffState, devices: list[int], now: float) -> tuple[Job, ...]:
        """A device may get a version again that it has already answered; `repeat` makes it draw other batches then."""
        repeats = Counter(device for device, version in state.buffered if version == state.version)
        jobs = jobs_for(devices, self.local, state.version, state.weights, state.fleet, now)
        return tuple(replace(job, repeat=repeats[job.device]) if job.device in repeats else job for job in jobs)
