"""Fleets that grow: devices join while a run is under way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hybridfl.contract import begun, stepped
from hybridfl.protocol import Algorithm, Fleet, Inbox, Outbox, Vector


@dataclass(frozen=True)
class Growing:
    """An algorithm that learns of new devices from its inbox; itself an algorithm like any other.

    From then on it goes by the larger fleet: shares of the data, whom to choose. A new device is free, like one that has
    just answered. Who was barred stays barred.
    """

    algorithm: Algorithm[Any]

    def init(self, weights: Vector, fleet: Fleet) -> tuple[Any, Outbox]:
        return begun(self.algorithm, weights, fleet)

    def step(self, state: Any, inbox: Inbox) -> tuple[Any, Outbox]:
        if inbox.fleet is not None:
            barred = state.fleet.barred | inbox.fleet.barred
            state = replace(state, fleet=replace(inbox.fleet, barred=barred))
        return stepped(self.algorithm, state, inbox)
