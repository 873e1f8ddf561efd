"""Whom a joint model is for: how much each device counts in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.errors import InputError
from hybridfl.vectors import shares
from hybridfl.wording import counted

ROUNDING = 1e-3
"""How far from 1 shares may add up to."""


class Weighting(Protocol):
    """q_i of some devices, adding up to 1."""

    def __call__(self, num_samples: NDArray[np.int64]) -> Tensor:
        """[m], float32, for devices that hold so many samples each."""


def shares_by(weighting: Weighting, num_samples: NDArray[np.int64]) -> Tensor:
    """q_i ≥ 0 with Σ q_i = 1: the weighting's answer for devices with these numbers of samples, or an `InputError`.

    The answer may be an array or a list too. Values on a GPU are not checked, since the check would wait for the GPU.
    """
    answer = weighting(num_samples)
    try:
        own = torch.as_tensor(answer)
    except (TypeError, ValueError, RuntimeError):
        raise _no_shares(weighting, num_samples, f"{answer!r}") from None
    if own.shape != (len(num_samples),):
        raise _no_shares(weighting, num_samples, f"numbers of shape {list(own.shape)}")
    if own.device.type != "cpu":
        return own
    least, total = own.min().item(), own.sum().item()
    if not least >= 0:
        raise _no_shares(weighting, num_samples, f"a share of {least}")
    if not abs(total - 1) <= ROUNDING:
        raise _no_shares(weighting, num_samples, f"shares that add up to {total:g}")
    return own


def _no_shares(weighting: Weighting, num_samples: NDArray[np.int64], what: str) -> InputError:
    name = getattr(weighting, "__name__", type(weighting).__name__)
    return InputError(
        f"The weighting {name} gave {counted(len(num_samples), 'device')} {what}: give a tensor, one number each, 0 or more, "
        "that add up to 1 (divide them by their sum)."
    )


@dataclass(frozen=True)
class ByData:
    """q_i = n_i / Σn: every sample counts alike, as in the paper. A device with half of the data decides half of the step.

    The joint model then minimises the mean loss over samples, and is judged by the accuracy by sample.
    """

    def __call__(self, num_samples: NDArray[np.int64]) -> Tensor:
        return shares(num_samples)


@dataclass(frozen=True)
class ByDevice:
    """q_i = 1/m: every device counts alike, however little it holds.

    The joint model then minimises the mean over devices of each one's mean loss, and is judged by the accuracy by device. What
    it learns from devices with few samples is noisier.
    """

    def __call__(self, num_samples: NDArray[np.int64]) -> Tensor:
        return torch.full((len(num_samples),), 1 / len(num_samples))
