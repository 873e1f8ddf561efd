"""FedBuff: updates are merged when a buffer of them is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch

from hybridfl.algorithms.local_work import FullWork, Local, jobs_for
from hybridfl.algorithms.staleness import Polynomial, StalenessWeight
from hybridfl.errors import require_positive
from hybridfl.protocol import Fleet, Inbox, Job, Outbox, Receipt, Vector
from hybridfl.vectors import weighted_sum


@dataclass(frozen=True, eq=False)
class FedBuffState:
    """The joint model, the updates s(τ_i)·Δ_i waiting in the buffer, and their (device, version)."""

    version: int
    weights: Vector
    fleet: Fleet
    buffer: tuple[Vector, ...] = ()
    buffered: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class FedBuff:
    """w ← w + η_g · (1/K) Σ_{i in buffer} s(τ_i)·Δ_i,  Δ_i = w_i − w_base,i,  s(τ) = 1/√(1 + τ)

    K: `buffer`; η_g: `server_rate`; w_base,i: the version device i was sent, not the current one; τ_i: versions made since.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022. Every device is always at work, and
    every update counts alike, whatever its number of samples, as published.
    """

    buffer: int = 10
    server_rate: float = 1.0
    staleness: StalenessWeight = Polynomial(0.5)
    local: Local = FullWork()

    def __post_init__(self) -> None:
        require_positive("buffer", self.buffer)
        require_positive("server_rate", self.server_rate)

    def init(self, weights: Vector, fleet: Fleet) -> tuple[FedBuffState, Outbox]:
        state = FedBuffState(0, weights, fleet)
        return state, Outbox(self._jobs(state, list(range(len(fleet))), now=0.0))

    def step(self, state: FedBuffState, inbox: Inbox) -> tuple[FedBuffState, Outbox]:
        receipts = []
        for update in inbox.updates:
            staleness = state.version - update.job.version
            state = replace(
                state,
                buffer=(*state.buffer, self.staleness(staleness) * update.delta),
                buffered=(*state.buffered, (update.job.device, update.job.version)),
            )
            receipts.append(Receipt(staleness))
            if len(state.buffer) == self.buffer:
                state = self._merged(state)
        idle = sorted({update.job.device for update in inbox.updates} | {job.device for job in inbox.lost})
        return state, Outbox(self._jobs(state, idle, inbox.now), receipts=tuple(receipts))

    def _merged(self, state: FedBuffState) -> FedBuffState:
        mean = weighted_sum(torch.full((self.buffer,), self.server_rate / self.buffer), torch.stack(state.buffer))
        return FedBuffState(state.version + 1, state.weights + mean, state.fleet)

    def _jobs(self, state: FedBuffState, devices: list[int], now: float) -> tuple[Job, ...]:
        """A device may get a version again that it has already answered; `repeat` makes it draw other batches then."""
        repeats = Counter(device for device, version in state.buffered if version == state.version)
        jobs = jobs_for(devices, self.local, state.version, state.weights, state.fleet, now)
        return tuple(replace(job, repeat=repeats[job.device]) if job.device in repeats else job for job in jobs)
