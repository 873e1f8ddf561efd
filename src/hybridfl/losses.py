"""What a model is trained to make small: one number a sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridfl.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, …], targets [batch, …]) → one loss a sample, [batch]."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target], one number a sample."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def loss_by_sample(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """`loss(outputs, targets)`, which must be one number a sample."""
    losses = loss(outputs, targets)
    if losses.shape != targets.shape[:1]:
        raise InputError(
            f"The loss returned shape {tuple(losses.shape)}, but one number for each of the {len(targets)} samples is "
            "wanted: give it reduction='none', and outputs of the targets' shape."
        )
    return losses
