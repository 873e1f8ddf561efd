"""FedAsync: every update is merged the moment it arrives."""

from __future__ import annotations

from dataclasses import dataclass

from hybridfl.algorithms.local_work import FullWork, Local, jobs_for
from hybridfl.algorithms.staleness import Polynomial, StalenessWeight
from hybridfl.errors import require_positive, require_share
from hybridfl.protocol import Fleet, Inbox, Job, Outbox, Receipt, Vector


@dataclass(frozen=True, eq=False)
class FedAsyncState:
    """Nothing but the joint model: every update is merged at once."""

    version: int
    weights: Vector
    fleet: Fleet


@dataclass(frozen=True)
class FedAsync:
    """w ← (1 − α_t)·w + α_t·w_i,  α_t = α·s(τ)

    w_i: the arriving weights; τ: versions made since their device was sent its job; s: `staleness`. Each update makes
    one version; updates of one instant are merged one after the other, by device. α is fixed: α_t starts from it anew for
    every update (some libraries let it shrink from update to update).

    Xie et al., "Asynchronous Federated Optimization", 2019. Every device is always at work.
    """

    alpha: float = 0.6
    staleness: StalenessWeight = Polynomial(0.5)
    local: Local = FullWork()

    def __post_init__(self) -> None:
        require_share("alpha", self.alpha)
        require_positive("alpha", self.alpha)

    def init(self, weights: Vector, fleet: Fleet) -> tuple[FedAsyncState, Outbox]:
        state = FedAsyncState(0, weights, fleet)
        return state, Outbox(self._jobs(state, range(len(fleet)), now=0.0))

    def step(self, state: FedAsyncState, inbox: Inbox) -> tuple[FedAsyncState, Outbox]:
        version, weights, receipts = state.version, state.weights, []
        for update in inbox.updates:
            staleness = version - update.job.version
            alpha = self.alpha * self.staleness(staleness)
            weights = (1 - alpha) * weights + alpha * update.weights
            version += 1
            receipts.append(Receipt(staleness))
        state = FedAsyncState(version, weights, state.fleet)
        idle = sorted({update.job.device for update in inbox.updates} | {job.device for job in inbox.lost})
        return state, Outbox(self._jobs(state, idle, inbox.now), receipts=tuple(receipts))

    def _jobs(self, state: FedAsyncState, devices: range | list[int], now: float) -> tuple[Job, ...]:
        return jobs_for(devices, self.local, state.version, state.weights, state.fleet, now)
