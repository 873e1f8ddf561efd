"""FedProx is FedAvg with another local work."""

from __future__ import annotations

from dataclasses import replace

from hybridfl.algorithms.averages import Average, Mean
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.local_work import FullWork, PartialWork
from hybridfl.algorithms.sampling import Participants, Uniform
from hybridfl.errors import InputError


def FedProx(  # noqa: N802 - reads as an algorithm, is one
    mu: float = 1.0,
    partial: float | None = None,
    participants: Participants | int = Uniform(10),
    local: FullWork = FullWork(),
    average: Average = Mean(),
) -> FedAvg:
    """FedAvg whose devices minimise F_i(w) + ½μ‖w − w_t‖² and, if they are slow, run only part of the epochs.

    μ: pull towards the joint model; `partial`: the slowest share of the fleet, which runs 1..E epochs, drawn anew
    for every job; by default all who cannot keep the pace of the fleet's fastest tenth, 0 makes everyone run all E.

    Li et al., "Federated Optimization in Heterogeneous Networks", 2020. There the stragglers are drawn anew in every
    round; here slow devices stay slow.
    """
    if not mu >= 0:
        raise InputError(f"mu={mu} must not be negative.")
    proximal = replace(local, proximal=mu)
    return FedAvg(participants, proximal if partial == 0 else PartialWork(proximal, partial), average)
