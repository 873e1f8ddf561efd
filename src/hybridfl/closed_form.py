"""What the closed forms require; checked here, because compiled code does not check its indices."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from hybridfl.data.federated import Samples
from hybridfl.dense import Dense
from hybridfl.errors import InputError
from hybridfl.protocol import Vector
from hybridfl.wording import counted


def checked_classes(samples: Samples, num_classes: int) -> Tensor:
    """The targets as whole numbers, each of them a class."""
    if samples.targets.is_floating_point():
        raise InputError("The targets are not whole numbers: cross-entropy wants classes, counted from 0.")
    samples.check_classes(num_classes)
    return samples.targets.long().contiguous()


def flat_inputs(samples: Samples) -> NDArray[Any]:
    """The inputs as one row a sample."""
    if samples.inputs.dim() < 2:
        raise InputError(
            "The inputs are one number a sample: give them as a matrix of one column, inputs.unsqueeze(1)."
        )
    flat: NDArray[Any] = samples.inputs.detach().flatten(1).contiguous().numpy()
    return flat


def check_size(weights: Vector, num_features: int, dense: Dense) -> None:
    """The model takes as many features as the samples have, and the weights are the model's."""
    if dense.num_features != num_features:
        raise InputError(
            f"The model takes {counted(dense.num_features, 'feature')}, but the samples have {num_features}: make them agree."
        )
    if weights.numel() != dense.num_parameters:
        raise InputError(
            f"The weights are {counted(weights.numel(), 'number')}, but the model has {dense.num_parameters}."
        )
