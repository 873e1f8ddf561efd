"""Our reading of the paper: every device's last gradient is remembered and counts by its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.algorithms.ad_sgd import Correction, Delayed, Secant
from hybridfl.protocol import Fleet, Update, Vector
from hybridfl.vectors import beside, shares


@dataclass(frozen=True, eq=False)
class Remembered:
    """The last update of every device heard from: row r belongs to device `devices[r]`. See `Delayed` for the rest."""

    devices: NDArray[np.int64]
    versions: NDArray[np.int64]
    rates: NDArray[np.float32]
    steps: NDArray[np.int64]
    deltas: Tensor
    offsets: Tensor
    squares: Tensor
    bases: Tensor | None


@dataclass(frozen=True)
class Memory:
    """w_{t+1} = w_t − η_t Σ_i q_i·g̃_i   over all devices heard from so far

    g̃_i: device i's most recent accumulated gradient, brought up to date by `correction` (AD-SGD); q_i = n_i / Σn over these
    devices; η_t: the current learning rate.

    This is the paper's Eq. (joint), every device by its share of the data and nobody forgotten, but as a step from the
    current model. A fresh gradient has d_i = 0 and η_i = η_t, so without stragglers it is FedAvg, bit for bit. Computed from
    Δ_i = −η_i·g_i as w_t + Σ_i q_i·(η_t/η_i)·Δ̃_i: two matrix-vector products over [devices, n], and no old model is kept.
    """

    correction: Correction = Secant()

    def start(self) -> Remembered | None:
        return None

    def close(
        self,
        remembered: Remembered | None,
        weights: Vector,
        version: int,
        rate: float,
        updates: Sequence[Update],
        fleet: Fleet,
    ) -> tuple[Vector, Remembered]:
        """The weights after a round that `updates` reached, and what is remembered then."""
        arrived = _remembered(updates, self.correction.needs_bases)
        remembered = arrived if remembered is None else _merge(remembered, arrived)
        delayed = Delayed(
            deltas=remembered.deltas,
            rates=torch.from_numpy(remembered.rates),
            steps=torch.from_numpy(remembered.steps),
            offsets=remembered.offsets,
            squares=remembered.squares,
            fresh=torch.from_numpy(remembered.versions == version),
            bases=remembered.bases,
        )
        coefficients = shares(fleet.num_samples[remembered.devices]) * (rate / torch.from_numpy(remembered.rates))
        return weights + self.correction.total(beside(coefficients, weights), delayed, weights), remembered


def _remembered(updates: Sequence[Update], with_bases: bool) -> Remembered:
    bases = torch.stack([update.job.weights for update in updates])
    deltas = torch.stack([update.weights for update in updates]).sub_(bases)
    return Remembered(
        devices=np.array([update.job.device for update in updates]),
        versions=np.array([update.job.version for update in updates]),
        rates=np.array([update.job.work.learning_rate for update in updates], dtype=np.float32),
        steps=np.array([update.num_steps for update in updates]),
        deltas=deltas,
        offsets=(deltas * bases).sum(1),
        squares=deltas.square().sum(1),
        bases=bases if with_bases else None,
    )


def _merge(old: Remembered, new: Remembered) -> Remembered:
    """`new` rows replace their devices' old ones; devices heard from for the first time come at the end."""
    position = {int(device): row for row, device in enumerate(old.devices)}
    rows = np.array([position.get(int(device), -1) for device in new.devices])
    known, first = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
    to, of_known, of_first = (beside(torch.from_numpy(places), old.deltas) for places in (rows[known], known, first))

    def merged(before: Tensor, after: Tensor) -> Tensor:
        replaced = before.index_copy(0, to, after.index_select(0, of_known) if len(first) else after)
        return torch.cat([replaced, after.index_select(0, of_first)]) if len(first) else replaced

    def joined(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
        both = np.concatenate([before, after[first]])
        both[rows[known]] = after[known]
        return both

    return Remembered(
        devices=joined(old.devices, new.devices),
        versions=joined(old.versions, new.versions),
        rates=joined(old.rates, new.rates),
        steps=joined(old.steps, new.steps),
        deltas=merged(old.deltas, new.deltas),
        offsets=merged(old.offsets, new.offsets),
        squares=merged(old.squares, new.squares),
        bases=merged(old.bases, new.bases) if old.bases is not None and new.bases is not None else None,
    )
