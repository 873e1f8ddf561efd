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
from hybridfl.algorithms.averages import Average, Mean, averaged
from hybridfl.algorithms.weighting import ByData, Weighting, shares_by
from hybridfl.errors import InputError, nearest, require_whole
from hybridfl.protocol import Fleet, Update, Vector
from hybridfl.vectors import beside


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
    units: Tensor | None
    bases: Tensor | None
    forgotten: int = 0
    """How many devices' updates had to make room since the start; a device forgotten twice counts twice."""

    def __len__(self) -> int:
        return len(self.devices)


@dataclass(frozen=True)
class Memory:
    """w_{t+1} = w_t − η_t Σ_i q_i·g̃_i   over all devices heard from so far

    g̃_i: device i's most recent accumulated gradient, brought up to date by `correction` (AD-SGD); q_i = n_i / Σn over these
    devices, or what `weighting` says; η_t: the current learning rate. Another `average` than the mean withstands hostile
    devices.

    This is the paper's Eq. (joint), every device by its share of the data and nobody forgotten, but as a step from the
    current model. A fresh gradient has d_i = 0 and η_i = η_t, so without stragglers it is FedAvg, bit for bit. Computed from
    Δ_i = −η_i·g_i as w_t + Σ_i q_i·(η_t/η_i)·Δ̃_i: two matrix-vector products over [devices, n], and no old model is kept.

    With `most`, the updates of so many devices are remembered. Who makes room is whose update began from the oldest model,
    of equals the one with the higher id, but nobody who answered in this very round. If more than `most` did, all of them
    count now, nobody else does, and then those that make room are forgotten.

    `storage="float16"` takes half the memory: a row is kept as float16 in a unit of its own, since Δ shrinks with the learning
    rate, with 3 digits (a relative error of 2⁻¹¹ in each number). Δ_i·d_i is of the step as kept, so it stays the product of
    that step with d_i. Old models, where `correction` needs them, stay float32: d_i is the small difference of two.

    `normalised`: what a correction takes from some is given to all, q_i·(1 + s_i)/Σ_j q_j·(1 + s_j). Where most devices are
    slow and damped, those that are not count by their share of what is left, and the model moves on at full speed.
    """

    correction: Correction = Secant()
    average: Average = Mean()
    most: int | None = None
    storage: str = "float32"
    normalised: bool = False
    weighting: Weighting = ByData()

    def __post_init__(self) -> None:
        if self.most is not None:
            require_whole("most", self.most)
        if self.storage not in _STORAGES:
            raise InputError(
                f"Unknown storage '{self.storage}'.{nearest(self.storage, _STORAGES)} Known: {', '.join(_STORAGES)}."
            )

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
        arrived = self._remembered(updates)
        remembered = arrived if remembered is None else _merge(remembered, arrived, self.most)
        delayed = Delayed(
            deltas=remembered.deltas,
            rates=torch.from_numpy(remembered.rates),
            steps=torch.from_numpy(remembered.steps),
            offsets=remembered.offsets,
            squares=remembered.squares,
            fresh=torch.from_numpy(remembered.versions == version),
            bases=remembered.bases,
            units=remembered.units,
        )
        own_shares = shares_by(self.weighting, fleet.num_samples[remembered.devices])
        coefficients = own_shares * (rate / torch.from_numpy(remembered.rates))
        scales, rows = self.correction.corrected(delayed, weights)
        if self.normalised:
            scales = scales / _left(beside(own_shares, weights), scales)
        step = averaged(self.average, own_shares, beside(coefficients, weights) * scales, rows)
        return weights + step, remembered if self.most is None else _newest(remembered, self.most)

    def forgotten(self, memory: Remembered | None) -> int:
        """How many devices' updates had to make room since the start."""
        return 0 if memory is None else memory.forgotten

    def _remembered(self, updates: Sequence[Update]) -> Remembered:
        bases = torch.stack([update.job.weights for update in updates])
        deltas = torch.stack([update.weights for update in updates]).sub_(bases)
        kept, units = (deltas, None) if self.storage == "float32" else _halved(deltas)
        if units is not None:
            deltas = kept * units.unsqueeze(1)
        return Remembered(
            devices=np.array([update.job.device for update in updates]),
            versions=np.array([update.job.version for update in updates]),
            rates=np.array([update.job.work.learning_rate for update in updates], dtype=np.float32),
            steps=np.array([update.num_steps for update in updates]),
            deltas=kept,
            offsets=(deltas * bases).sum(1),
            squares=deltas.square().sum(1),
            units=units,
            bases=bases if self.correction.needs_bases else None,
        )


_STORAGES = ("float32", "float16")

LEAST_LEFT = 1e-3
"""Normalised shares are made at most a thousand times larger: where all are damped, all that is left is rounding."""


def _left(own_shares: Tensor, scales: Tensor) -> Tensor:
    """Σ q_i·(1 + s_i)/Σ q_i: exactly 1 where nothing is corrected."""
    return ((own_shares * scales).sum() / own_shares.sum()).clamp(min=LEAST_LEFT)


def _halved(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as float16, and the unit of each: its largest number becomes 2¹⁵, at the upper end of what float16 holds."""
    units = rows.abs().amax(1) / 2**15
    units = torch.where(units == 0, 1.0, units)
    return (rows / units.unsqueeze(1)).half(), units


def _merge(old: Remembered, new: Remembered, most: int | None) -> Remembered:
    """`new` rows replace their devices' old ones, or those of devices forgotten for them; the rest come at the end.

    All others stay in their rows: a sum in another order has other bits. The old memory stays as it was, since a state may be
    gone on from again, and that takes a copy: with very many devices more than half of a closing, mostly the system's for
    fresh pages (fewer with THP_MEM_ALLOC_ENABLE=1 set before PyTorch is loaded).
    """
    places, freed = _places(old, new.devices, most)
    more = len(new) - int((places < len(old)).sum())
    to = beside(torch.from_numpy(places), old.deltas)

    def merged(before: Tensor, after: Tensor) -> Tensor:
        copied = torch.cat([before, after[:more]]) if more else before.clone()
        return copied.index_copy_(0, to, after)

    def joined(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
        copied = np.concatenate([before, after[:more]])
        copied[places] = after
        return copied

    return Remembered(
        devices=joined(old.devices, new.devices),
        versions=joined(old.versions, new.versions),
        rates=joined(old.rates, new.rates),
        steps=joined(old.steps, new.steps),
        deltas=merged(old.deltas, new.deltas),
        offsets=merged(old.offsets, new.offsets),
        squares=merged(old.squares, new.squares),
        units=merged(old.units, new.units) if old.units is not None and new.units is not None else None,
        bases=merged(old.bases, new.bases) if old.bases is not None and new.bases is not None else None,
        forgotten=old.forgotten + freed,
    )


def _places(old: Remembered, devices: NDArray[np.int64], most: int | None) -> tuple[NDArray[np.int64], int]:
    """The row each of these devices gets: its own, that of one forgotten for it, or a new one; and how many were forgotten."""
    own_rows = np.flatnonzero(np.isin(old.devices, devices))
    row_of = dict(zip(old.devices[own_rows].tolist(), own_rows.tolist(), strict=True))
    places = np.array([row_of.get(device, -1) for device in devices.tolist()])
    first_time = np.flatnonzero(places < 0)
    excess = 0 if most is None else max(0, len(old) + len(first_time) - most)
    others = np.delete(np.arange(len(old)), own_rows)
    freed = _stalest(old, others)[:excess] if excess else others[:0]
    places[first_time] = np.concatenate([freed, len(old) + np.arange(len(first_time) - len(freed))])
    return places, len(freed)


def _newest(remembered: Remembered, most: int) -> Remembered:
    """Without those that have to make room."""
    if len(remembered) <= most:
        return remembered
    kept = np.sort(_stalest(remembered, np.arange(len(remembered)))[-most:])
    rows = beside(torch.from_numpy(kept), remembered.deltas)
    return Remembered(
        devices=remembered.devices[kept],
        versions=remembered.versions[kept],
        rates=remembered.rates[kept],
        steps=remembered.steps[kept],
        deltas=remembered.deltas[rows],
        offsets=remembered.offsets[rows],
        squares=remembered.squares[rows],
        units=None if remembered.units is None else remembered.units[rows],
        bases=None if remembered.bases is None else remembered.bases[rows],
        forgotten=remembered.forgotten + len(remembered) - most,
    )


def _stalest(remembered: Remembered, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """These rows, the first to be forgotten first."""
    order = np.lexsort((-remembered.devices[rows], remembered.versions[rows]))
    return rows[order]
