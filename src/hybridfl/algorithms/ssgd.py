"""S-SGD: sequential SGD with all the data in one place, the upper bound every federated algorithm is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from hybridfl.algorithms.fedavg import FedAvg, FedAvgState
from hybridfl.algorithms.local_work import FullWork, Local
from hybridfl.algorithms.sampling import Everyone
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet, Inbox, Outbox, Vector


@dataclass(frozen=True)
class SSGD:
    """w_{t+1} = w_t after one local work on ALL the data: FedAvg on a fleet of one device that holds everything.

    Zinkevich et al., "Parallelized Stochastic Gradient Descent", 2010, as the HFL paper uses it.
    """

    local: Local = FullWork()

    def init(self, weights: Vector, fleet: Fleet) -> tuple[FedAvgState, Outbox]:
        if len(fleet) != 1:
            raise InputError(
                f"S-SGD trains in one place, but the fleet has {len(fleet)} devices: pool their data, or choose another "
                "algorithm."
            )
        return FedAvg(Everyone(), self.local).init(weights, fleet)

    def step(self, state: FedAvgState, inbox: Inbox) -> tuple[FedAvgState, Outbox]:
        return FedAvg(Everyone(), self.local).step(state, inbox)
