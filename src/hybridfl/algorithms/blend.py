"""The paper's own rule for merging stragglers, letter by letter, with the readings of its λ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.algorithms.ad_sgd import Correction, Delayed, RankOne
from hybridfl.errors import require_share
from hybridfl.protocol import Fleet, Update, Vector
from hybridfl.vectors import beside, shares, weighted_sum


class Weight(Protocol):
    """λ_i: how much of the joint model comes from straggler i."""

    def __call__(self, version: int, staleness: Tensor, late_share: float) -> Tensor: ...


@dataclass(frozen=True)
class Printed:
    """λ = λ_0·exp(−(t − τ)), Eq. (Lambda) as printed: it GROWS with τ and is nearly 0 after a few rounds."""

    initial: float = 0.5

    def __post_init__(self) -> None:
        require_share("λ_0", self.initial)

    def __call__(self, version: int, staleness: Tensor, late_share: float) -> Tensor:
        return self.initial * torch.exp(staleness - version)


@dataclass(frozen=True)
class ByStaleness:
    """λ = λ_0·exp(−τ): a slower straggler counts less, as the paper's text says."""

    initial: float = 0.5

    def __post_init__(self) -> None:
        require_share("λ_0", self.initial)

    def __call__(self, version: int, staleness: Tensor, late_share: float) -> Tensor:
        return self.initial * torch.exp(-staleness)


@dataclass(frozen=True)
class ConstantWeight:
    """λ = λ_0."""

    initial: float = 0.5

    def __post_init__(self) -> None:
        require_share("λ_0", self.initial)

    def __call__(self, version: int, staleness: Tensor, late_share: float) -> Tensor:
        return torch.full_like(staleness, self.initial)


@dataclass(frozen=True)
class DataShare:
    """λ = the stragglers' share of the data that arrived in this round."""

    def __call__(self, version: int, staleness: Tensor, late_share: float) -> Tensor:
        return torch.full_like(staleness, late_share)


@dataclass(frozen=True)
class Blend:
    """w_{t+1} = (1 − λ)·ŵ + λ·Σ_{i late} p_i·(w_base,i − η_t·g̃_i),  ŵ = Σ_{i fresh} p_i·w_i   (Eq. New)

    p_i = n_i / Σn over ALL devices, as printed, so both sums fall short of 1 and the model shrinks; `normalised` divides
    each sum's p_i by their own total. λ differs between stragglers of different τ_i: each counts with its own λ_i, and ŵ
    with 1 minus their mean by data. Sums run over what arrived in this round (Algorithm 2); Eq. (joint) sums over all
    stragglers in every round, whether or not anything came from them. A round without fresh updates has ŵ = w_t.
    """

    weight: Weight = Printed(0.5)
    correction: Correction = RankOne(float("inf"))
    normalised: bool = False

    def start(self) -> None:
        return None

    def close(
        self, memory: None, weights: Vector, version: int, rate: float, updates: Sequence[Update], fleet: Fleet
    ) -> tuple[Vector, None]:
        """The weights after a round that `updates` reached. Nothing is remembered."""
        fresh = [update for update in updates if update.job.version == version]
        late = [update for update in updates if update.job.version < version]
        kernel = self._kernel(weights, fresh, fleet)
        if not late:
            return kernel, None

        shares_of_late = self._shares(late, fleet)
        staleness = torch.tensor([float(version - update.job.version) for update in late])
        of_late, of_all = (int(_samples(group, fleet).sum()) for group in (late, updates))
        blend = self.weight(version, staleness, of_late / of_all)
        coefficients = blend * shares_of_late
        mean_blend = float(coefficients.sum() / shares_of_late.sum())

        delayed = Delayed.of(late, version)
        assert delayed.bases is not None
        old_models = weighted_sum(coefficients, delayed.bases)
        of_deltas = beside(coefficients * rate / delayed.rates, weights)
        scales, rows = self.correction.corrected(delayed, weights)
        stepped = old_models + weighted_sum(of_deltas * scales, rows)
        return (1 - mean_blend) * kernel + stepped, None

    def forgotten(self, memory: None) -> int:
        """Nothing is remembered, so nobody is forgotten."""
        return 0

    def _kernel(self, weights: Vector, fresh: Sequence[Update], fleet: Fleet) -> Vector:
        """ŵ = Σ p_i·w_i = (Σ p_i)·w_t + Σ p_i·Δ_i."""
        if not fresh:
            return weights
        own_shares = self._shares(fresh, fleet)
        kernel = weighted_sum(own_shares, torch.stack([update.weights for update in fresh]) - weights)
        return (1.0 if self.normalised else float(own_shares.sum())) * weights + kernel

    def _shares(self, updates: Sequence[Update], fleet: Fleet) -> Tensor:
        samples = _samples(updates, fleet)
        return shares(samples) if self.normalised else shares(samples) * float(samples.sum() / fleet.total_samples)


def _samples(updates: Sequence[Update], fleet: Fleet) -> NDArray[np.int64]:
    samples: NDArray[np.int64] = fleet.num_samples[[update.job.device for update in updates]]
    return samples
