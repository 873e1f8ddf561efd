# mypy: allow-untyped-calls
"""Training and scoring `LogisticRegression`, whose gradient has a closed form: compiled loops on all cores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.protocol import Job, Update, Vector
from hybridfl.softmax_kernels import score, train
from hybridfl.threads import CORES, pool


class SoftmaxSGD:
    """w ← w − η·((1/B) Σ_s (softmax(W·x_s + b) − 1_{y_s})·(x_s, 1)ᵀ + 2ε·w + μ·(w − w_received))

    What `LocalSGD` computes for `LogisticRegression` with cross-entropy, to float32 rounding, without Python in any step;
    the gradient in brackets is shortened to the work's `clip` where it is longer. A job is trained by one thread from its
    first step to its last, so its bits do not depend on the others; threads share the jobs by their number of samples.
    """

    def __init__(
        self, samples: Samples, num_classes: int, l2: float = 0.0, seed: int = 0, threads: int | None = None
    ) -> None:
        self._samples = samples
        self._inputs = samples.inputs.flatten(1).contiguous().numpy()
        self._scale = _scale(samples)
        self._targets = _classes(samples, num_classes)
        self._num_classes = num_classes
        self._l2 = l2
        self._seed = seed
        self._threads = threads or CORES

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        for job in jobs:
            _check_width(job.weights, self._inputs, self._num_classes)
        batches = Batches.of(jobs, self._samples, self._seed)
        weights = torch.stack([job.weights for job in jobs]).numpy()
        losses = np.zeros(len(jobs), dtype=np.float64)
        rates = np.array([job.work.learning_rate for job in jobs])
        pulls = np.array([job.work.proximal for job in jobs])
        clips = np.array([job.work.clip if math.isfinite(job.work.clip) else 0.0 for job in jobs])
        futures = [
            pool().submit(
                train,
                mine,
                weights,
                self._inputs,
                self._scale,
                self._targets,
                batches.order,
                batches.starts,
                batches.num_samples,
                batches.epochs,
                batches.batch_sizes,
                rates,
                pulls,
                clips,
                self._l2,
                self._num_classes,
                losses,
            )
            for mine in _shared_out(batches.num_samples * batches.epochs, self._threads)
        ]
        for future in futures:
            future.result()
        steps = batches.num_steps
        return [
            Update(job, torch.from_numpy(weights[j].copy()), int(steps[j]), float(losses[j]))
            for j, job in enumerate(jobs)
        ]


class SoftmaxForward:
    """What `ModuleForward` computes for `LogisticRegression` with cross-entropy, to float32 rounding."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes

    def __call__(self, weights: Vector, samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        inputs = samples.inputs.flatten(1).numpy()
        targets = _classes(samples, self._num_classes)
        _check_width(weights, inputs, self._num_classes)
        losses = np.empty(len(rows), dtype=np.float32)
        right = np.empty(len(rows), dtype=np.bool_)
        parts = [
            (
                weights.numpy(),
                inputs,
                _scale(samples),
                targets,
                part,
                self._num_classes,
                losses[part_at],
                right[part_at],
            )
            for part, part_at in _pieces(rows)
        ]
        for done in [pool().submit(score, *part) for part in parts]:
            done.result()
        return torch.from_numpy(losses), torch.from_numpy(right)


def _scale(samples: Samples) -> np.float32:
    return np.float32(1.0 if samples.scale is None else samples.scale)


def _classes(samples: Samples, num_classes: int) -> NDArray[np.int64]:
    """The targets, checked here because compiled code does not check its indices."""
    if samples.targets.is_floating_point():
        raise InputError("The targets are not whole numbers: logistic regression wants classes, counted from 0.")
    targets: NDArray[np.int64] = samples.targets.long().contiguous().numpy()
    for label in (targets.min(), targets.max()):
        if not 0 <= label < num_classes:
            raise InputError(f"Target {label} is no class: the model has {num_classes}, counted from 0.")
    return targets


def _check_width(weights: Vector, inputs: NDArray[Any], num_classes: int) -> None:
    """Likewise checked here."""
    features = weights.numel() // num_classes - 1
    if features != inputs.shape[1]:
        raise InputError(
            f"The model takes {features} features, but the samples have {inputs.shape[1]}: make them agree."
        )


def _pieces(rows: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], slice]]:
    """The rows in one piece a core, and where each piece belongs."""
    size = max(1, -(-len(rows) // CORES))
    return [(rows[first : first + size], slice(first, first + size)) for first in range(0, len(rows), size)]


def _shared_out(loads: NDArray[np.int64], threads: int) -> list[NDArray[np.int64]]:
    """The jobs' numbers, dealt out largest first to whoever has least; empty hands are left out."""
    hands: list[list[int]] = [[] for _ in range(threads)]
    totals = [0] * threads
    for job in np.argsort(-loads, kind="stable"):
        least = totals.index(min(totals))
        hands[least].append(int(job))
        totals[least] += int(loads[job])
    return [np.array(hand) for hand in hands if hand]
