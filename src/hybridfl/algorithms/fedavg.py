"""FedAvg, and through its fields most of the synchronous family."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hybridfl.algorithms.averages import Average, Mean, averaged
from hybridfl.algorithms.local_work import FullWork, Local, jobs_for
from hybridfl.algorithms.sampling import Participants, Uniform, chosen_by, participants_of
from hybridfl.algorithms.weighting import ByData, Weighting, shares_by
from hybridfl.protocol import Fleet, Inbox, Outbox, Receipt, Update, Vector
from hybridfl.vectors import deltas


@dataclass(frozen=True, eq=False)
class FedAvgState:
    """The joint model and the round that is open.

    `awaited` are the devices that still have to answer it, `late` those that still owe an answer to an earlier one.
    """

    version: int
    weights: Vector
    fleet: Fleet
    round_number: int = 0
    round_started_at: float = 0.0
    awaited: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    arrived: tuple[Update, ...] = ()


@dataclass(frozen=True)
class FedAvg:
    """w_{t+1} = w_t + Σ_i q_i (w_i − w_t),  q_i = n_i / Σn over the devices that answered in the round.

    w_i: device i's weights after its local work on w_t; n_i: its number of samples; another `weighting` has other q_i.
    `participants` says who is asked and when a round closes; a number is so many, drawn uniformly: `FedAvg(5)` is
    `FedAvg(Uniform(5))`. An answer to a closed round is discarded. With another `average`
    than the mean, the sum is a median or a trimmed mean, which a few hostile devices cannot move at will.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017. Written with
    differences instead of Σ q_i w_i: the same number, and the same bits as HFL without stragglers.
    """

    participants: Participants = Uniform(10)
    local: Local = FullWork()
    average: Average = Mean()
    weighting: Weighting = ByData()

    if TYPE_CHECKING:  # what may be given is more than what is kept

        def __init__(
            self,
            participants: Participants | int = ...,
            local: Local = ...,
            average: Average = ...,
            weighting: Weighting = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "participants", participants_of(self.participants))

    def init(self, weights: Vector, fleet: Fleet) -> tuple[FedAvgState, Outbox]:
        return self._open_round(FedAvgState(version=0, weights=weights, fleet=fleet), now=0.0, receipts=())

    def step(self, state: FedAvgState, inbox: Inbox) -> tuple[FedAvgState, Outbox]:
        arrived, receipts = list(state.arrived), []
        for update in inbox.updates:
            if update.job.device not in state.awaited:
                receipts.append(Receipt(state.version - update.job.version, discarded="late"))
            elif len(arrived) >= self.participants.enough:
                receipts.append(Receipt(state.version - update.job.version, discarded="round full"))
            else:
                receipts.append(Receipt(state.version - update.job.version))
                arrived.append(update)
        back = inbox.devices
        state = replace(state, arrived=tuple(arrived), awaited=state.awaited - back, late=state.late - back)

        closes = (
            not state.awaited
            or len(arrived) >= self.participants.enough
            or inbox.now >= state.round_started_at + self.participants.seconds
        )
        if closes:
            return self._open_round(self._merged(state), inbox.now, tuple(receipts))
        return state, Outbox(wake_at=self._deadline(state), receipts=tuple(receipts))

    def _merged(self, state: FedAvgState) -> FedAvgState:
        """The next version, if anything arrived to make it from."""
        if not state.arrived:
            return state
        updates = sorted(state.arrived, key=lambda update: update.job.device)
        own = shares_by(self.weighting, state.fleet.num_samples[[update.job.device for update in updates]])
        weights = state.weights + averaged(self.average, own, own, deltas(updates))
        return replace(state, version=state.version + 1, weights=weights, arrived=())

    def _open_round(self, state: FedAvgState, now: float, receipts: tuple[Receipt, ...]) -> tuple[FedAvgState, Outbox]:
        """Who did not answer the last round is late and stays busy until then; the others may be chosen."""
        late = state.late | state.awaited
        chosen = chosen_by(self.participants, state.fleet, state.round_number, late, now)
        jobs = jobs_for(chosen, self.local, state.version, state.weights, state.fleet, now)
        state = replace(
            state,
            round_number=state.round_number + 1,
            round_started_at=now,
            awaited=frozenset(chosen),
            late=late,
        )
        return state, Outbox(jobs, self._deadline(state), receipts)

    def _deadline(self, state: FedAvgState) -> float | None:
        deadline = state.round_started_at + self.participants.seconds
        return deadline if math.isfinite(deadline) and state.awaited else None
