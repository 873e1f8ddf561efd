"""What hostile or broken devices answer instead of what they trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from hybridfl.errors import InputError, require_share
from hybridfl.protocol import Update


class Attack(Protocol):
    """What a device makes of the update it trained; `draw` is this job's own."""

    def __call__(self, update: Update, draw: np.random.Generator) -> Update: ...


@dataclass(frozen=True)
class Scaled:
    """w_base + factor·Δ: with −10, ten steps backwards."""

    factor: float = -10.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise InputError(f"factor={self.factor} must be finite; NotANumber() sends NaN.")

    def __call__(self, update: Update, draw: np.random.Generator) -> Update:
        return replace(update, weights=update.job.weights + self.factor * update.delta)


@dataclass(frozen=True)
class NotANumber:
    """NaN in every place, as broken hardware or a diverged training sends."""

    def __call__(self, update: Update, draw: np.random.Generator) -> Update:
        return replace(update, weights=torch.full_like(update.weights, math.nan))


@dataclass(frozen=True)
class Noise:
    """w_base + N(0, `sd`²) in every place."""

    sd: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.sd < math.inf:
            raise InputError(f"sd={self.sd} must be above 0 and finite.")

    def __call__(self, update: Update, draw: np.random.Generator) -> Update:
        noise = torch.from_numpy(draw.normal(0.0, self.sd, update.weights.numel())).to(update.weights)
        return replace(update, weights=update.job.weights + noise)


@dataclass(frozen=True)
class Hostile:
    """This share of the devices, drawn by the seed, answers every job with an `attack`."""

    share: float = 0.1
    attack: Attack = Scaled()

    def __post_init__(self) -> None:
        require_share("share of hostile devices", self.share)
