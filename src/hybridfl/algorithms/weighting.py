"""Whom a joint model is for: how much each device counts in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.vectors import shares


class Weighting(Protocol):
    """q_i of some devices, adding up to 1."""

    def __call__(self, num_samples: NDArray[np.int64]) -> Tensor:
        """[m], float32, for devices that hold so many samples each."""


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
