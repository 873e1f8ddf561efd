"""FedAsync: every update is merged the moment it arrives."""

from __future__ import annotations

from dataclasses import dataclass

from hybridfl.algorithms.concurrency import Crew, first_crew, next_crew, wake_at
from hybridfl.algorithms.local_work import FullWork, Local, jobs_for
from hybridfl.algorithms.staleness import Polynomial, StalenessWeight, weight_of
from hybridfl.errors import InputError, require_positive, require_share, require_whole
from hybridfl.protocol import Fleet, Inbox, Outbox, Receipt, Vector


@dataclass(frozen=True, eq=False)
class FedAsyncState:
    """The joint model, and who is at work: every update is merged at once."""

    version: int
    weights: Vector
    fleet: Fleet
    crew: Crew


@dataclass(frozen=True)
class FedAsync:
    """w ← (1 − α_t)·w + α_t·w_i,  α_t = α·s(τ)

    w_i: the arriving weights; τ: versions made since their device was sent its job; s: `staleness`. Each update makes
    one version; updates of one instant are merged one after the other, by device. α is fixed: α_t starts from it anew for
    every update (some libraries let it shrink from update to update).

    Xie et al., "Asynchronous Federated Optimization", 2019. Every device that is there is always at work or, with
    `concurrency`, so many at a time, each drawn uniformly when another is back.
    """

    alpha: float = 0.6
    staleness: StalenessWeight = Polynomial(0.5)
    local: Local = FullWork()
    concurrency: int | None = None

    def __post_init__(self) -> None:
        require_share("alpha", self.alpha)
        require_positive("alpha", self.alpha)
        if self.concurrency is not None:
            require_whole("concurrency", self.concurrency)

    def init(self, weights: Vector, fleet: Fleet) -> tuple[FedAsyncState, Outbox]:
        crew, devices = first_crew(fleet, self.concurrency)
        return FedAsyncState(0, weights, fleet, crew), Outbox(
            jobs_for(devices, self.local, 0, weights, fleet, now=0.0), wake_at(crew, fleet, self.concurrency, 0.0)
        )

    def step(self, state: FedAsyncState, inbox: Inbox) -> tuple[FedAsyncState, Outbox]:
        version, weights, receipts = state.version, state.weights, []
        for update in inbox.updates:
            staleness = version - update.job.version
            alpha = self.alpha * weight_of(self.staleness, staleness)
            if alpha > 1:
                raise InputError(
                    f"alpha={self.alpha} times the staleness weight of an update {staleness} versions old is {alpha}: it "
                    "must be 1 at most, or the model would jump past the update."
                )
            weights = (1 - alpha) * weights + alpha * update.weights
            version += 1
            receipts.append(Receipt(staleness))
        crew, devices = next_crew(state.crew, state.fleet, self.concurrency, inbox.devices, inbox.now)
        jobs = jobs_for(devices, self.local, version, weights, state.fleet, inbox.now)
        return FedAsyncState(version, weights, state.fleet, crew), Outbox(
            jobs, wake_at(crew, state.fleet, self.concurrency, inbox.now), tuple(receipts)
        )
