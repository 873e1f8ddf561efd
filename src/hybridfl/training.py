"""Local SGD on many devices at once, for any model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, wait

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.protocol import Job, Update, Vector
from hybridfl.threads import pool
from hybridfl.vectors import unflatten

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, …], targets [batch, …]) → one loss a sample, [batch]."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target], one number a sample."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


Gradients = Callable[[Tensor, Tensor, Tensor, NDArray[np.int64]], tuple[Tensor, Tensor]]
"""(weights [jobs, n], inputs and targets [jobs, width, …], batch sizes [jobs]) → (gradients [jobs, n], losses [jobs])."""


class LocalSGD:
    """w ← w − η·clip(∇ℓ_batch(w) + 2ε·w + μ·(w − w_received)), step after step, E epochs over the device's own samples

    η, μ, E, the batch size and the longest gradient come with each job's work; clip(g) = g·min(1, clip/‖g‖); ε is the L2
    term's (the objective is F_i(w) + ε‖w‖²).

    All jobs advance together: their weights are one matrix, a step is one `vmap` of the gradient over its rows. Jobs of
    different versions, rates and μ share it. They are ordered by their number of steps, so a step touches exactly the
    jobs that still have one to take.

    With recurrent layers a job is trained for itself, by one thread from its first step to its last: on a CPU PyTorch's fused
    recurrent layers beat every way of stacking devices (docs/data.md has the numbers).
    """

    def __init__(
        self, samples: Samples, model: nn.Module, loss: Loss = cross_entropy, l2: float = 0.0, seed: int = 0
    ) -> None:
        check_trainable(model)
        self._samples = samples
        self._l2 = l2
        self._seed = seed
        self._recurrent = any(isinstance(layer, nn.RNNBase) for layer in model.modules())
        self._gradients = (one_by_one if self._recurrent else together)(model, loss)

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        if not self._recurrent:
            return self._train(jobs)
        stop = threading.Event()
        longest_first = np.argsort(-self._samples.num_samples[[job.device for job in jobs]], kind="stable")
        futures = {int(j): pool().submit(self._train, [jobs[j]], stop) for j in longest_first}
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            # An interrupt, or an error in one job: nobody wants the others' answers, and the process could not end.
            stop.set()
            raise
        return [futures[j].result()[0] for j in range(len(jobs))]

    def _train(self, jobs: Sequence[Job], stop: threading.Event | None = None) -> list[Update]:
        batches = Batches.of(jobs, self._samples, self._seed)
        ranked = np.argsort(-batches.num_steps, kind="stable")
        steps = batches.num_steps[ranked]
        received = torch.stack([jobs[j].weights for j in ranked])
        weights = received.clone()
        rates = weights.new_tensor([jobs[j].work.learning_rate for j in ranked]).unsqueeze(1)
        pulls = weights.new_tensor([jobs[j].work.proximal for j in ranked]).unsqueeze(1)
        longest = weights.new_tensor([jobs[j].work.clip for j in ranked]).unsqueeze(1)
        last_epoch_starts = torch.from_numpy(steps - batches.steps_per_epoch[ranked])
        losses = torch.zeros(len(jobs))

        for step in range(steps[0]):
            if stop is not None and stop.is_set():
                raise CancelledError
            active = int(np.searchsorted(-steps, -step))
            rows, sizes = batches.at(step, ranked[:active])
            inputs, targets = self._samples.take(torch.from_numpy(rows))
            now = weights[:active]
            gradients, values = self._gradients(now, inputs, targets, sizes)
            gradients = gradients + 2 * self._l2 * now + pulls[:active] * (now - received[:active])
            gradients = shortened(gradients, longest[:active])
            now -= rates[:active] * gradients
            losses[:active] += torch.where(step >= last_epoch_starts[:active], values, 0.0)

        losses /= torch.from_numpy(batches.steps_per_epoch[ranked])
        updates = {
            int(j): Update(jobs[j], weights[row].clone(), int(steps[row]), float(losses[row]))
            for row, j in enumerate(ranked)
        }
        return [updates[j] for j in range(len(jobs))]


def together(model: nn.Module, loss: Loss) -> Gradients:
    """All jobs' gradients in one `vmap`. A batch shorter than the widest is filled up with samples of no weight."""

    def batch_loss(weights: Vector, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        outputs = functional_call(model, unflatten(model, weights), (inputs,))
        return (loss_by_sample(loss, outputs, targets) * shares).sum()

    vectorized = vmap(grad_and_value(batch_loss))

    def gradients(weights: Tensor, inputs: Tensor, targets: Tensor, sizes: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        filled = np.arange(inputs.shape[1]) < sizes[:, None]
        found: tuple[Tensor, Tensor] = vectorized(
            weights, inputs, targets, torch.from_numpy(filled / sizes[:, None]).to(weights.dtype)
        )
        return found

    return gradients


def one_by_one(model: nn.Module, loss: Loss) -> Gradients:
    """One job's gradient after the other, by plain automatic differentiation."""
    # `functional_call` puts the weights into the module while it runs, so every thread needs a module of its own.
    own = threading.local()

    def gradient(weights: Vector, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(own, "model"):
            own.model = copy.deepcopy(model)
        leaf = weights.detach().requires_grad_()
        outputs = functional_call(own.model, unflatten(own.model, leaf), (inputs,))
        value = loss_by_sample(loss, outputs, targets).mean()
        (slope,) = torch.autograd.grad(value, leaf)
        return slope, value.detach()

    def gradients(weights: Tensor, inputs: Tensor, targets: Tensor, sizes: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        found = [
            gradient(weights[job], inputs[job, :size], targets[job, :size]) for job, size in enumerate(sizes.tolist())
        ]
        slopes, values = zip(*found, strict=True)
        return torch.stack(slopes), torch.stack(values)

    return gradients


def shortened(gradients: Tensor, longest: Tensor) -> Tensor:
    """Each row g as g·min(1, longest/‖g‖)."""
    if bool(torch.isinf(longest).all()):
        return gradients
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return torch.where(norms > longest, gradients * (longest / norms), gradients)


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
