"""Local SGD on many devices at once, for any model."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.losses import Loss, cross_entropy, loss_by_sample
from hybridfl.protocol import Job, Trainer, Update, Vector, Work
from hybridfl.threads import CORES, ModelOfEachThread, loss_of_each_thread, pool, shared_out
from hybridfl.trial import check_trainable
from hybridfl.vectors import drifts, fill, flatten, unflatten


class JointTrainer(Trainer, Protocol):
    """A trainer that can train its jobs together with those of others of its kind: each gets the answers it has alone."""

    @staticmethod
    def together(wanted: Sequence[tuple[Any, Sequence[Job]]]) -> list[list[Update]]:
        """The updates of each pair of a trainer of this kind and its jobs."""

    def bundles(self, jobs: Sequence[Job]) -> list[list[int]]:
        """The places of jobs that must stay together, because they have a part in one another's rounding."""


_USUAL_BATCH = 32
_ROUNDING = 1e-3
"""Two ways to the same gradient round differently, by far less."""

ALONE_FROM = 200_000
"""From so many parameters × samples of a batch on, a job is trained for itself: arithmetic then outweighs Python's part."""


class LocalSGD:
    """w ← w − η·(clip(∇ℓ_batch(w) + 2ε·w + μ·(w − w_received)) + drift), E epochs over the device's own samples

    drift comes with the job, η, μ, E, the batch size and the longest gradient with its work; clip(g) = g·min(1, clip/‖g‖);
    ε is the L2 term's (the objective is F_i(w) + ε‖w‖²).

    Jobs advance together: their weights are one matrix, a step is one `vmap` of the gradient over its rows. Jobs of
    different versions, rates and μ share it. They are ordered by their number of steps, so a step touches exactly the
    jobs that still have one to take.

    A job with recurrent layers or with large steps is trained for itself instead, from its first step to its last: weights
    stay in the core's cache, and PyTorch's fused recurrent layers beat every way of stacking devices
    (docs/performance.md has the numbers). So is every job of a model that `vmap` cannot take, because Python looks at its
    numbers for example. Either way it is one thread's work, so bits do not depend on the number of cores.
    """

    def __init__(
        self, samples: Samples, model: nn.Module, loss: Loss = cross_entropy, l2: float = 0.0, seed: int = 0
    ) -> None:
        check_trainable(model)
        self._samples = samples
        self._model = model
        self._loss = loss_of_each_thread(loss)
        self._l2 = l2
        self._seed = seed
        self._recurrent = is_recurrent(model)
        self._num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._models = ModelOfEachThread(model, training=True)

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return self.together([(self, jobs)])[0]

    @staticmethod
    def together(wanted: Sequence[tuple[LocalSGD, Sequence[Job]]]) -> list[list[Update]]:
        """Bundles of all trainers' jobs, dealt out to the threads by how many samples they visit."""
        bundles = [bundle for number, (own, jobs) in enumerate(wanted) for bundle in own._ready(number, jobs)]
        loads = np.array([bundle.load for bundle in bundles])
        updates: dict[tuple[int, int], Update] = {}
        stop = threading.Event()

        def train(hand: NDArray[np.int64]) -> None:
            for mine in hand:
                bundle = bundles[mine]
                answers = wanted[bundle.trainer][0]._train(bundle, stop)
                updates.update(zip(((bundle.trainer, place) for place in bundle.places), answers, strict=True))

        futures = [pool().submit(train, hand) for hand in shared_out(loads, CORES)]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            # An interrupt, or an error in one job: nobody wants the others' answers, and the process could not end.
            stop.set()
            raise
        return [[updates[number, place] for place in range(len(jobs))] for number, (_, jobs) in enumerate(wanted)]

    def bundles(self, jobs: Sequence[Job]) -> list[list[int]]:
        alone = [[place] for place, job in enumerate(jobs) if self._is_alone(job)]
        small = [place for place, job in enumerate(jobs) if not self._is_alone(job)]
        return [*alone, small] if small else alone

    def _ready(self, number: int, jobs: Sequence[Job]) -> Iterator[_Bundle]:
        """The bundles with their batches, which are drawn for all in one go."""
        bundles = self.bundles(jobs)
        alone = [jobs[places[0]] for places in bundles if len(places) == 1]
        batches = Batches.of(alone, self._samples, self._seed) if alone else None
        parts = itertools.count()
        for places in bundles:
            own = [jobs[place] for place in places]
            if batches is not None and len(places) == 1:
                yield _Bundle(number, places, own, batches.part(next(parts)))
            else:
                yield _Bundle(number, places, own, Batches.of(own, self._samples, self._seed))

    def _train(self, bundle: _Bundle, stop: threading.Event) -> list[Update]:
        if len(bundle.jobs) == 1 and self._is_alone(bundle.jobs[0]):
            return [self._train_alone(bundle.jobs[0], bundle.batches, stop)]
        return self._train_stacked(bundle.jobs, bundle.batches, stop)

    def _is_alone(self, job: Job) -> bool:
        batch_size = min(job.work.batch_size, int(self._samples.num_samples[job.device]))
        is_large = self._recurrent or self._num_parameters * batch_size >= ALONE_FROM
        return is_large or not self._can_be_stacked

    @cached_property
    def _can_be_stacked(self) -> bool:
        """Whether `vmap` takes the model and the loss, and makes the same gradient: tried on a usual batch."""
        inputs, targets = self._samples.take(torch.from_numpy(self._samples.index[:_USUAL_BATCH]))
        model, weights = self._models.own(), flatten(self._model)
        shares = torch.full((len(targets),), 1 / len(targets), dtype=weights.dtype)
        once = (each.unsqueeze(0) for each in (weights, inputs.clone(), targets.clone(), shares))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what stands in vmap's way; it is not gone that way then
                stacked, _ = vmap(grad_and_value(self._batch_loss(model)))(*once)
                value = loss_by_sample(self._loss, fill(model, weights)(inputs), targets).mean()
                alone = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)
        except Exception:
            return False  # what fails by itself too says so there, in its own words
        own = torch.cat([each.reshape(-1) for each in alone])
        # A model may hold its parameters in places that PyTorch does not put others into: a list of its own, for example.
        return bool((stacked[0] - own).norm() <= _ROUNDING * own.norm()) or not bool(own.isfinite().all())

    def _batch_loss(self, model: nn.Module) -> Callable[[Vector, Tensor, Tensor, Tensor], Tensor]:
        """Σ_s share_s·ℓ_s: the mean over the batch; a sample that only fills up the row has share 0."""

        def batch_loss(weights: Vector, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
            outputs = functional_call(model, unflatten(model, weights), (inputs,))
            return (loss_by_sample(self._loss, outputs, targets) * shares).sum()

        return batch_loss

    def _train_alone(self, job: Job, batches: Batches, stop: threading.Event) -> Update:
        """By plain automatic differentiation."""
        order = torch.from_numpy(batches.order).view(job.work.epochs, -1)
        model = self._models.own()
        received = list(unflatten(model, job.weights).values())
        with torch.no_grad():
            for parameter, start in zip(model.parameters(), received, strict=True):
                parameter.copy_(start)
        drift = None if job.drift is None else list(unflatten(model, job.drift).values())
        losses = []
        for epoch, rows_of_epoch in enumerate(order, start=1):
            for rows in torch.split(rows_of_epoch, int(batches.batch_sizes[0])):
                if stop.is_set():
                    raise CancelledError
                inputs, targets = self._samples.take(rows)
                value = self._step(model, inputs, targets, received, drift, job.work)
                if epoch == job.work.epochs:
                    losses.append(float(value))
        return Update(job, flatten(model), int(batches.num_steps[0]), math.fsum(losses) / len(losses))

    def _step(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        received: Sequence[Tensor],
        drift: Sequence[Tensor] | None,
        work: Work,
    ) -> Tensor:
        parameters = list(model.parameters())
        value = loss_by_sample(self._loss, model(inputs), targets).mean()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            descend(parameters, gradients, received, drift, work, self._l2)
        return value.detach()

    def _train_stacked(self, jobs: Sequence[Job], batches: Batches, stop: threading.Event) -> list[Update]:
        """All jobs' gradients in one `vmap`. A batch shorter than the widest is filled up with samples of no weight."""
        gradients_of = vmap(grad_and_value(self._batch_loss(self._models.own())))
        ranked = np.argsort(-batches.num_steps, kind="stable")
        steps = batches.num_steps[ranked]
        received = torch.stack([jobs[j].weights for j in ranked])
        weights = received.clone()
        rates = weights.new_tensor([jobs[j].work.learning_rate for j in ranked]).unsqueeze(1)
        pulls = weights.new_tensor([jobs[j].work.proximal for j in ranked]).unsqueeze(1)
        longest = weights.new_tensor([jobs[j].work.clip for j in ranked]).unsqueeze(1)
        added = drifts([jobs[j] for j in ranked])
        last_epoch_starts = torch.from_numpy(steps - batches.steps_per_epoch[ranked])
        losses = torch.zeros(len(jobs))

        for step in range(steps[0]):
            if stop.is_set():
                raise CancelledError
            active = int(np.searchsorted(-steps, -step))
            rows, sizes = batches.at(step, ranked[:active])
            inputs, targets = self._samples.take(torch.from_numpy(rows))
            now = weights[:active]
            filled = np.arange(rows.shape[1]) < sizes[:, None]
            shares = torch.from_numpy(filled / sizes[:, None]).to(weights.dtype)
            gradients, values = gradients_of(now, inputs, targets, shares)
            gradients = gradients + 2 * self._l2 * now + pulls[:active] * (now - received[:active])
            gradients = shortened(gradients, longest[:active])
            if added is not None:
                gradients = gradients + added[:active]
            now -= rates[:active] * gradients
            losses[:active] += torch.where(step >= last_epoch_starts[:active], values, 0.0)

        losses /= torch.from_numpy(batches.steps_per_epoch[ranked])
        updates = {
            int(j): Update(jobs[j], weights[row].clone(), int(steps[row]), float(losses[row]))
            for row, j in enumerate(ranked)
        }
        return [updates[j] for j in range(len(jobs))]


@dataclass(frozen=True, eq=False)
class _Bundle:
    """Jobs that one thread trains in one go: of which trainer, and at which places among its jobs."""

    trainer: int
    places: list[int]
    jobs: list[Job]
    batches: Batches

    @property
    def load(self) -> int:
        """How many samples are visited."""
        return len(self.batches.order)


def descend(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    received: Sequence[Tensor],
    drift: Sequence[Tensor] | None,
    work: Work,
    l2: float,
) -> None:
    """w ← w − η·(clip(g + 2ε·w + μ·(w − w_received)) + drift), in place; `gradients` are used up."""
    for weight, gradient, start in zip(parameters, gradients, received, strict=True):
        gradient.add_(weight, alpha=2 * l2 + work.proximal)
        if work.proximal:
            gradient.sub_(start, alpha=work.proximal)
    if math.isfinite(work.clip):
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
        if length > work.clip:
            for gradient in gradients:
                gradient.mul_(work.clip / length)
    for added, gradient in zip(drift or (), gradients, strict=drift is not None):
        gradient.add_(added)
    for weight, gradient in zip(parameters, gradients, strict=True):
        weight.sub_(gradient, alpha=work.learning_rate)


def shortened(gradients: Tensor, longest: Tensor) -> Tensor:
    """Each row g as g·min(1, longest/‖g‖)."""
    if bool(torch.isinf(longest).all()):
        return gradients
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return torch.where(norms > longest, gradients * (longest / norms), gradients)


def is_recurrent(model: nn.Module) -> bool:
    """Whether it has recurrent layers, which PyTorch fuses but cannot stack."""
    return any(isinstance(layer, nn.RNNBase) for layer in model.modules())
