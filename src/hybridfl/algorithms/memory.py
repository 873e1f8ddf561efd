"""Our reading of the paper: every device's last gradient is remembered and counts by its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.algorithms.ad_sgd import Correction, Delayed, Secant
from hybridfl.protocol import Fleet, Update, Vector
from hybridfl.vectors import shares


@dataclass(frozen=True, eq=False)
class Remembered:
    """The last update of every device heard from: row r belongs to device `devices[r]`."""

    devices: NDArray[np.int64]
    versions: NDArray[np.int64]
    deltas: Tensor
    rates: Tensor
    steps: Tensor
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
        arrived = _remembered(updates, version, self.correction.needs_bases)
        remembered = arrived if remembered is None else _merge(remembered, arrived)
        delayed = Delayed(
            remembered.deltas,
            remembered.rates,
            remembered.steps,
            remembered.offsets,
            remembered.squares,
            torch.from_numpy(remembered.versions == version).to(weights.device),
            remembered.bases,
        )
        coefficients = shares(fleet.num_samples[remembered.devices]).to(weights.device) * (rate / remembered.rates)
        return weights + self.correction.total(coefficients, delayed, weights), remembered


def _remembered(updates: Sequence[Update], version: int, with_bases: bool) -> Remembered:
    delayed = Delayed.of(updates, version)
    return Remembered(
        devices=np.array([update.job.device for update in updates]),
        versions=np.array([update.job.version for update in updates]),
        deltas=delayed.deltas,
        rates=delayed.rates,
        steps=delayed.steps,
        offsets=delayed.offsets,
        squares=delayed.squares,
        bases=delayed.bases if with_bases else None,
    )


def _merge(old: Remembered, new: Remembered) -> Remembered:
    """`new` rows replace their devices' old ones; devices heard from for the first time come at the end."""
    position = {int(device): row for row, device in enumerate(old.devices)}
    rows = np.array([position.get(int(device), -1) for device in new.devices])
    known, first = rows >= 0, rows < 0

    def merged(before: Tensor, after: Tensor) -> Tensor:
        replaced = before.index_copy(0, torch.from_numpy(rows[known]).to(before.device), after[torch.from_numpy(known)])
        return torch.cat([replaced, after[torch.from_numpy(first)]]) if first.any() else replaced

    versions = old.versions.copy()
    versions[rows[known]] = new.versions[known]
    return Remembered(
        devices=np.concatenate([old.devices, new.devices[first]]),
        versions=np.concatenate([versions, new.versions[first]]),
        deltas=merged(old.deltas, new.deltas),
        rates=merged(old.rates, new.rates),
        steps=merged(old.steps, new.steps),
        offsets=merged(old.offsets, new.offsets),
        squares=merged(old.squares, new.squares),
        bases=merged(old.bases, new.bases) if old.bases is not None and new.bases is not None else None,
    )
