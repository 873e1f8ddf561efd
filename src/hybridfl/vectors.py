"""A model's weights as one flat vector, and sums of such vectors."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.protocol import Job, Update, Vector


def flatten(model: nn.Module) -> Vector:
    """A copy of all parameters of `model` as one vector, in the order of `named_parameters()`."""
    pieces = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    return torch.cat(pieces).clone() if pieces else torch.zeros(0)


def unflatten(model: nn.Module, weights: Vector) -> dict[str, Tensor]:
    """Views of `weights` under the names and shapes of `model`'s parameters, as `torch.func.functional_call` takes them."""
    named = dict(model.named_parameters())
    pieces = torch.split(weights, [parameter.numel() for parameter in named.values()])
    return {name: piece.view(parameter.shape) for (name, parameter), piece in zip(named.items(), pieces, strict=True)}


@torch.no_grad()
def fill(model: nn.Module, weights: Vector) -> nn.Module:
    """The model itself, its parameters set to `weights`."""
    for parameter, piece in zip(model.parameters(), unflatten(model, weights).values(), strict=True):
        parameter.copy_(piece)
    return model


def state_of(model: nn.Module, weights: Vector) -> dict[str, Tensor]:
    """What `load_state_dict` wants, of a model with these weights: buffers too, and one entry for every name of a tensor.

    Every entry is a copy of its own, since a file of tensors holds no tensor twice.
    """
    state = fill(copy.deepcopy(model), weights).state_dict()
    return {
        name: each.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, each in state.items()
        if isinstance(each, Tensor)
    }


def shares(num_samples: NDArray[np.int64]) -> Tensor:
    """q_i = n_i / Σn as float32: each device counts by its data."""
    counts = np.asarray(num_samples, dtype=np.float64)
    return torch.from_numpy((counts / counts.sum()).astype(np.float32))


def beside(values: Tensor | Sequence[float], vector: Tensor) -> Tensor:
    """A column of numbers where `vector` is. On a GPU nothing waits: what was queued before goes on."""
    column = values if isinstance(values, Tensor) else torch.tensor(values, dtype=vector.dtype)
    return column if column.device == vector.device else column.to(vector.device, non_blocking=True)


def deltas(updates: Sequence[Update]) -> Tensor:
    """[m, n]: Δ_i = w_i − w_base,i of each update."""
    bases = [update.job.weights for update in updates]
    shared = all(base is bases[0] for base in bases)
    return torch.stack([update.weights for update in updates]).sub_(bases[0] if shared else torch.stack(bases))


def drifts(jobs: Sequence[Job]) -> Tensor | None:
    """[m, n]: what each job adds to its gradients; None where none adds anything."""
    if all(job.drift is None for job in jobs):
        return None
    return torch.stack([torch.zeros_like(job.weights) if job.drift is None else job.drift for job in jobs])


def weighted_sum(coefficients: Tensor, rows: Tensor) -> Vector:
    """Σ_i a_i·row_i: one matrix-vector product. Every algorithm that averages does it here, hence with the same bits."""
    return beside(coefficients, rows).to(rows.dtype) @ rows


def is_finite(numbers: Tensor) -> bool:
    """Whether none is NaN or infinite. A finite sum says so, for less than looking at each; a sum may overflow by itself."""
    return math.isfinite(numbers.sum().item()) or bool(torch.isfinite(numbers).all())


def times_written(tensor: Tensor) -> int:
    """How often a tensor has been written to in place; 0 where PyTorch does not count it."""
    return 0 if tensor.is_inference() else tensor._version
