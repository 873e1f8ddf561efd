"""AD-SGD: what a delayed gradient would be at the current model, by a Taylor step with a cheap Hessian.

g̃ = g + R·d,  d = w_t − w_base   (the paper's Eq. newgrad)

g: the accumulated gradient a device computed from the old model w_base; R: an approximation of the Hessian built from g.
With the paper's R = g·gᵀ the n×n matrix never has to exist: R·d = g·(g·d), so g̃ = (1 + g·d)·g. AD-SGD with a rank-one
Hessian is ONE SCALAR a device: a delayed gradient is damped where the joint model has since moved along it and raised
where it moved against it.

(With w moving along −g, g·d is negative, so a step already taken by others is not taken twice.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hybridfl.algorithms.averages import blocks_of
from hybridfl.errors import InputError, require_positive
from hybridfl.protocol import Update, Vector
from hybridfl.vectors import beside


@dataclass(frozen=True, eq=False)
class Delayed:
    """m delayed updates side by side.

    Kept as Δ_i = w_i − w_base,i = −η_i·g_i and η_i rather than g_i, so that a fresh update enters a sum with exactly
    the bits it has in FedAvg. `rates`, `steps` and `fresh` are the server's own knowledge: they are not on the GPU, even
    where weights are.
    """

    deltas: Tensor
    """[m, n]: Δ_i, or Δ_i/unit_i as float16."""
    rates: Tensor
    """[m]: η_i, the learning rate it was trained with."""
    steps: Tensor
    """[m]: k_i, the number of local steps it took."""
    fresh: Tensor
    """[m]: whether w_base,i is the current model, that is d_i = 0 exactly."""
    bases: Tensor | None = None
    """[m, n]: w_base,i; without them `offsets` must be known."""
    offsets: Tensor | None = None
    """[m]: Δ_i·w_base,i. With it, Δ_i·d_i = Δ_i·w_t − offset_i needs no old model."""
    squares: Tensor | None = None
    """[m]: ‖Δ_i‖², where it is known already."""
    units: Tensor | None = None
    """[m]: what a 1 in row i of `deltas` stands for, where they are float16; `offsets` and `squares` must be known then."""

    @classmethod
    def of(cls, updates: Sequence[Update], version: int) -> Delayed:
        """These updates, as the joint model is at `version`."""
        bases = torch.stack([update.job.weights for update in updates])
        deltas = torch.stack([update.weights for update in updates]).sub_(bases)
        return cls(
            deltas=deltas,
            rates=torch.tensor([update.job.work.learning_rate for update in updates]),
            steps=torch.tensor([update.num_steps for update in updates]),
            fresh=torch.tensor([update.job.version == version for update in updates]),
            bases=bases,
        )

    def along(self, weights: Vector) -> Tensor:
        """[m]: g_i·d_i = −(Δ_i·w_t − Δ_i·w_base,i) / η_i, how far the model has moved along each gradient since."""
        return -self._moved(weights) / beside(self.rates, weights)

    def followed(self, weights: Vector) -> Tensor:
        """[m]: Δ_i·d_i / ‖Δ_i‖², the part of each device's own step that the model has made since."""
        squares = self.deltas.square().sum(1) if self.squares is None else self.squares
        return torch.where(squares > 0, self._moved(weights) / squares, 0.0)

    def _moved(self, weights: Vector) -> Tensor:
        """[m]: Δ_i·d_i."""
        if self.offsets is not None:
            moved = self._times(weights) - self.offsets
        elif self.bases is not None:
            moved = (self.deltas * (weights - self.bases)).sum(1)
        else:
            raise ValueError("How far the model has moved needs the old models, or their products with the deltas.")
        return torch.where(beside(self.fresh, weights), 0.0, moved) if self.fresh.any() else moved

    def _times(self, weights: Vector) -> Tensor:
        """[m]: Δ_i·w. PyTorch has no product of two widths, and w as float16 would lose what d is made of."""
        if self.units is None:
            return self.deltas @ weights
        return self.units * torch.cat([block.to(weights.dtype) @ weights for _, block in blocks_of(self.deltas)])

    def scaled(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """scale_i·Δ_i as a number a row and the rows as they are."""
        return scales if self.units is None else scales * self.units, self.deltas

    def unpacked(self) -> Tensor:
        """[m, n]: Δ_i as float32."""
        return self.deltas if self.units is None else self.deltas * self.units.unsqueeze(1)


class Correction(Protocol):
    """How a delayed gradient is brought up to date."""

    needs_bases: ClassVar[bool]

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        """Δ̃_i = −η_i·g̃_i at the current weights as scale_i·row_i: the scales [m] and the rows [m, n].

        A correction by one scalar a device leaves the rows as they are kept, so that no copy of them is made.
        """


@dataclass(frozen=True)
class NoCorrection:
    """g̃ = g."""

    needs_bases: ClassVar[bool] = False

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        return delayed.scaled(_ones(delayed))


@dataclass(frozen=True)
class Secant:
    """g̃ = (1 + s)·g,  s = −clip(gain·(Δ·d)/‖Δ‖², −trust, +trust)

    Δ = −η·g: the device's own step; (Δ·d)/‖Δ‖²: the part of it that the joint model has made since. The Hessian is rank-one as
    in `RankOne`, R = gain/(η‖g‖²)·g·gᵀ, but measured along the device's own step: where the model has made 1/`gain` of
    that step, nothing is left of the gradient. With `trust` = 1 it is never turned round; ‖g̃ − g‖ ≤ trust·‖g‖.

    A device that holds much data pulls the model along its step in a few rounds and is damped before it overshoots; one
    that holds little is left nearly whole. `RankOne` cannot do that: g·d grows with the number of local steps, so for
    large devices it lies outside the bounds most of the time and only its sign is left. Ours;
    docs/reading-of-the-paper.md has the measurements, and how `gain` was chosen.
    """

    gain: float = 3.0
    trust: float = 1.0
    needs_bases: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive("gain", self.gain)
        _check_trust(self.trust)

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        scale = 1.0 - (self.gain * delayed.followed(weights)).clamp(-self.trust, self.trust)
        return delayed.scaled(scale)


@dataclass(frozen=True)
class RankOne:
    """g̃ = (1 + s)·g,  s = clip(g·d, −trust, +trust)

    so ‖g̃ − g‖ ≤ trust·‖g‖. `trust = inf` is the paper's Eq. (newgrad) with R = g·gᵀ, unbounded: g is a sum over all local
    steps, and g·(g·d) can be enormous.
    """

    trust: float = 0.3
    needs_bases: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_trust(self.trust)

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        scale = 1.0 + delayed.along(weights).clamp(-self.trust, self.trust)
        return delayed.scaled(scale)


@dataclass(frozen=True)
class Damping:
    """g̃ = factor·g for every delayed gradient, however old: no Taylor step at all, to compare others with."""

    factor: float = 0.7
    needs_bases: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        return delayed.scaled(torch.where(beside(delayed.fresh, weights), 1.0, self.factor))


@dataclass(frozen=True)
class MeanRankOne:
    """g̃ = k·(ḡ + ḡ·(ḡ·d)) = (1 + g·d/k)·g,  ḡ = g/k: the rank-one Hessian of the mean step gradient.

    k: the number of local steps in g.
    """

    needs_bases: ClassVar[bool] = False

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        scale = 1.0 + delayed.along(weights) / beside(delayed.steps, weights)
        return delayed.scaled(scale)


@dataclass(frozen=True)
class Diagonal:
    """g̃ = g + clip(g⊙d, −trust, +trust)⊙g: R = diag(g⊙g), entry by entry; `trust = inf` is DC-ASGD's (its λ = 1).

    Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", 2017. Needs the old models.
    """

    trust: float = 0.3
    needs_bases: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_trust(self.trust)

    def corrected(self, delayed: Delayed, weights: Vector) -> tuple[Tensor, Tensor]:
        if delayed.bases is None:
            raise ValueError("Diagonal needs the old models.")
        drift = torch.where(beside(delayed.fresh, weights).unsqueeze(1), 0.0, weights - delayed.bases)
        deltas = delayed.unpacked()
        along = (-deltas / beside(delayed.rates, weights).unsqueeze(1)) * drift
        return _ones(delayed), deltas * (1.0 + along.clamp(-self.trust, self.trust))


def _ones(delayed: Delayed) -> Tensor:
    return torch.ones(len(delayed.deltas), device=delayed.deltas.device)


def _check_trust(trust: float) -> None:
    if not trust >= 0 or math.isnan(trust):
        raise InputError(f"trust={trust} must not be negative; 0 switches the correction off.")
