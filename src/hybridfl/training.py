"""Local SGD on many devices at once, for any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.protocol import Job, Update, Vector
from hybridfl.vectors import unflatten

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, …], targets [batch, …]) → one loss a sample, [batch]."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target], one number a sample."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


class LocalSGD:
    """w ← w − η·(∇ℓ_batch(w) + 2ε·w + μ·(w − w_received)), step after step, E epochs over the device's own samples

    η, μ, E and the batch size come with each job's work; ε is the L2 term's (the objective is F_i(w) + ε‖w‖²).

    All jobs advance together: their weights are one matrix, a step is one `vmap` of the gradient over its rows. Jobs of
    different versions, rates and μ share it. They are ordered by their number of steps, so a step touches exactly the
    jobs that still have one to take.
    """

    def __init__(
        self, samples: Samples, model: nn.Module, loss: Loss = cross_entropy, l2: float = 0.0, seed: int = 0
    ) -> None:
        check_trainable(model)
        self._samples = samples
        self._model = model
        self._loss = loss
        self._l2 = l2
        self._seed = seed
        self._gradients = vmap(grad_and_value(self._batch_loss))

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        batches = Batches.of(jobs, self._samples, self._seed)
        ranked = np.argsort(-batches.num_steps, kind="stable")
        steps = batches.num_steps[ranked]
        received = torch.stack([jobs[j].weights for j in ranked])
        weights = received.clone()
        rates = weights.new_tensor([jobs[j].work.learning_rate for j in ranked]).unsqueeze(1)
        pulls = weights.new_tensor([jobs[j].work.proximal for j in ranked]).unsqueeze(1)
        last_epoch_starts = torch.from_numpy(steps - batches.steps_per_epoch[ranked])
        losses = torch.zeros(len(jobs))

        for step in range(steps[0]):
            active = int(np.searchsorted(-steps, -step))
            rows, sizes = batches.at(step, ranked[:active])
            shape = rows.shape
            flat = torch.from_numpy(rows.reshape(-1))
            inputs = self._samples.take(flat).view(*shape, *self._samples.inputs.shape[1:])
            targets = self._samples.targets[flat].view(*shape, *self._samples.targets.shape[1:])
            counts = torch.from_numpy((np.arange(shape[1]) < sizes[:, None]) / sizes[:, None]).to(weights.dtype)
            now = weights[:active]
            gradients, values = self._gradients(now, inputs, targets, counts)
            gradients = gradients + 2 * self._l2 * now + pulls[:active] * (now - received[:active])
            now -= rates[:active] * gradients
            losses[:active] += torch.where(step >= last_epoch_starts[:active], values, 0.0)

        losses /= torch.from_numpy(batches.steps_per_epoch[ranked])
        updates = {
            int(j): Update(jobs[j], weights[row].clone(), int(steps[row]), float(losses[row]))
            for row, j in enumerate(ranked)
        }
        return [updates[j] for j in range(len(jobs))]

    def _batch_loss(self, weights: Vector, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        """Σ_s share_s·ℓ_s: the mean over the batch; a sample that only fills up the row has share 0."""
        outputs = functional_call(self._model, unflatten(self._model, weights), (inputs,))
        return (loss_by_sample(self._loss, outputs, targets) * shares).sum()


def loss_by_sample(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """`loss(outputs, targets)`, which must be one number a sample."""
    losses = loss(outputs, targets)
    if losses.shape != targets.shape[:1]:
        raise InputError(
            f"The loss returned shape {tuple(losses.shape)}, but one number for each of the {len(targets)} samples is "
            "wanted: give it reduction='none', and outputs of the targets' shape."
        )
    return losses


def check_trainable(model: nn.Module) -> None:
    """Refuse layers that would make a job's answer depend on anything but the job."""
    if not any(True for _ in model.parameters()):
        raise InputError(f"{type(model).__name__} has no parameters to train.")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise InputError(f"Parameter '{name}' is frozen, but all parameters are trained: make it a buffer instead.")
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise InputError(
                f"Layer '{name}' is {type(layer).__name__}: its running statistics belong to no device. "
                "Use GroupNorm or LayerNorm."
            )
        drops = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(drops, float) and drops > 0:
            raise InputError(
                f"Layer '{name}' is {type(layer).__name__}: its dropout is not keyed, so runs would not repeat. Set it to 0."
            )
