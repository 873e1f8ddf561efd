"""Drift control: a device is told how its own gradient differs from the fleet's, so its local steps follow the fleet's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.algorithms.averages import Average, Mean, averaged
from hybridfl.algorithms.weighting import ByData, Weighting, shares_by
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet, Update, Vector
from hybridfl.vectors import beside, deltas


@dataclass(frozen=True, eq=False)
class Gradients:
    """The last mean gradient of every device heard from: row r is of device `devices[r]`."""

    devices: NDArray[np.int64]
    rows: Tensor


@dataclass(frozen=True)
class DriftControl:
    """Device i adds  d_i = (c − c_i)·min(1, trust·‖c_i‖/‖c − c_i‖)  to every local gradient

        c_i = −Δ_i/(η_i·k_i) − d_i,old,   c = Σ_i q_i·c_i

    Δ_i: its last step, of k_i local steps with rate η_i and d_i,old added to each, so that c_i is the mean gradient of the
    device's own samples; q_i: its share of the data among the devices heard from, or what `weighting` says, which should be
    that of the merge rule. Who was not heard from adds nothing.

    A device that holds two labels out of ten, left alone, runs off to a model that knows no others; with c − c_i its steps go
    on average where the whole fleet's would. Both c and c_i are old where devices are slow, and what is wrong in them adds up
    over the local steps: `trust` bounds a device's control by its own gradient (∞: not at all).

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020, its option II, but the server
    works out c_i from what it gets anyway: a device keeps nothing and sends nothing more; what it receives is twice as long.
    Another `average` than the mean withstands hostile devices.
    """

    trust: float = 2.0
    average: Average = Mean()
    weighting: Weighting = ByData()

    def __post_init__(self) -> None:
        if not self.trust > 0 or math.isnan(self.trust):
            raise InputError(f"trust={self.trust} must be above 0; drift=None switches drift control off.")

    def observed(self, known: Gradients | None, updates: Sequence[Update]) -> Gradients:
        """What is known after these updates, of one device each."""
        devices = np.array([update.job.device for update in updates])
        steps = torch.tensor([update.job.work.learning_rate * update.num_steps for update in updates])
        rows = deltas(updates).div_(-beside(steps, updates[0].weights).unsqueeze(1))
        for row, update in zip(rows, updates, strict=True):
            if update.job.drift is not None:
                row.sub_(update.job.drift)
        if known is None:
            return Gradients(devices, rows)
        row_of = {device: row for row, device in enumerate(known.devices.tolist())}
        is_new = np.array([device not in row_of for device in devices.tolist()])
        place = beside(torch.tensor([row_of[device] for device in devices[~is_new].tolist()], dtype=torch.int64), rows)
        old, new = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~is_new, is_new))
        kept = known.rows.index_copy(0, place, rows[old]) if len(place) else known.rows
        return Gradients(
            np.concatenate([known.devices, devices[is_new]]), torch.cat([kept, rows[new]]) if is_new.any() else kept
        )

    def controls(self, known: Gradients | None, devices: Sequence[int], weights: Vector, fleet: Fleet) -> list[Vector]:
        """d_i of each device; `weights` are the current model's."""
        nothing = torch.zeros_like(weights)
        if known is None:
            return [nothing] * len(devices)
        own_shares = shares_by(self.weighting, fleet.num_samples[known.devices])
        joint = averaged(self.average, own_shares, own_shares, known.rows)
        row_of = {device: row for row, device in enumerate(known.devices.tolist())}
        heard = [device for device in devices if device in row_of]
        own = known.rows[beside(torch.tensor([row_of[device] for device in heard], dtype=torch.int64), weights)]
        difference = joint - own
        allowed = self.trust * torch.linalg.vector_norm(own, dim=1, keepdim=True)
        length = torch.linalg.vector_norm(difference, dim=1, keepdim=True)
        bounded = torch.where(length > allowed, difference * (allowed / length), difference)
        found = dict(zip(heard, bounded.unbind(0), strict=True))
        return [found.get(device, nothing) for device in devices]
