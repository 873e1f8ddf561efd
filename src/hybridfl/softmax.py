# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""Training and scoring `LogisticRegression`, whose gradient has a closed form: fused loops, compiled, on all cores."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.protocol import Job, Update, Vector

_CORES = os.cpu_count() or 1


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One a process: threads do not survive a fork."""
    return ThreadPoolExecutor(_CORES)


class SoftmaxSGD:
    """w ← w − η·((1/B) Σ_s (softmax(W·x_s + b) − 1_{y_s})·(x_s, 1)ᵀ + 2ε·w + μ·(w − w_received))

    What `LocalSGD` computes for `LogisticRegression` with cross-entropy, to float32 rounding, without Python in any step.
    A job is trained by one thread from its first step to its last, so its bits do not depend on the others; threads
    share the jobs by their number of samples.
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
        self._threads = threads or _CORES

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        for job in jobs:
            _check_width(job.weights, self._inputs, self._num_classes)
        batches = Batches.of(jobs, self._samples, self._seed)
        weights = torch.stack([job.weights for job in jobs]).numpy()
        losses = np.zeros(len(jobs), dtype=np.float64)
        rates = np.array([job.work.learning_rate for job in jobs])
        pulls = np.array([job.work.proximal for job in jobs])
        futures = [
            _pool(os.getpid()).submit(
                _train,
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
        for done in [_pool(os.getpid()).submit(_score, *part) for part in parts]:
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
    size = max(1, -(-len(rows) // _CORES))
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


_unsigned = np.uintp
_compiled = numba.njit(nogil=True, fastmath=True, error_model="numpy", cache=True)


@_compiled
def _train(
    mine,
    weights,
    inputs,
    scale,
    targets,
    order,
    starts,
    num_samples,
    epochs,
    batch_sizes,
    rates,
    pulls,
    l2,
    num_classes,
    losses,
):
    """Train the jobs `mine` in place: `weights[j]` is W [classes, features] row by row, then b [classes].

    Inside, a row of W is followed by its bias and by zeros up to a multiple of 16 (`width`), a sample by a 1 and zeros,
    and there is an even number of rows: W·x + b is one product, and every inner loop is whole SIMD registers. The two
    products run over blocks of 2 classes × 4 samples, which stay in registers. Indices are unsigned: with signed ones
    Numba guards against negative indices, and nothing vectorizes.
    """
    features = inputs.shape[1]
    width = _unsigned((features + 16) // 16 * 16)
    rows = num_classes + num_classes % 2
    widest = (batch_sizes.max() + 3) // 4 * 4
    w = np.zeros(rows * width, dtype=np.float32)
    received = np.zeros_like(w)
    x = np.zeros(widest * width, dtype=np.float32)
    scores = np.zeros(rows * widest, dtype=np.float32)
    powers = np.zeros_like(scores)
    tops, totals, own = np.zeros((3, widest), dtype=np.float32)
    for j in mine:
        _pack(weights[j], w, num_classes, features, width)
        received[:] = w
        rate, pull = np.float32(rates[j]), np.float32(pulls[j])
        keep = np.float32(1.0 - rates[j] * (2.0 * l2 + pulls[j]))
        loss = 0.0
        for epoch in range(epochs[j]):
            begin = starts[j] + epoch * num_samples[j]
            end = begin + num_samples[j]
            for first in range(begin, end, batch_sizes[j]):
                batch = order[first : min(first + batch_sizes[j], end)]
                count = (batch.size + 3) // 4 * 4
                _gather(inputs, scale, batch, x, width)
                _forward(w, x, scores, count, rows, width)
                if epoch == epochs[j] - 1:
                    _scores_of_targets(scores, targets, batch, count, own)
                _softmax(scores, tops, totals, powers, count, num_classes)
                if epoch == epochs[j] - 1:
                    batch_loss = 0.0
                    for s in range(batch.size):
                        batch_loss += np.log(totals[s]) + tops[s] - own[s]
                    loss += batch_loss / batch.size
                _residuals(scores, totals, targets, batch, count, num_classes)
                for i in range(w.size):
                    w[i] = keep * w[i] + rate * pull * received[i]
                _backward(w, x, scores, count, rows, width, rate / np.float32(batch.size))
        _unpack(w, weights[j], num_classes, features, width)
        losses[j] = loss / ((num_samples[j] + batch_sizes[j] - 1) // batch_sizes[j])


@_compiled
def _score(weights, inputs, scale, targets, rows_of, num_classes, losses, right):
    """The cross-entropy of every sample, and whether its target has the largest logit (the first of equals)."""
    features = inputs.shape[1]
    width = _unsigned((features + 16) // 16 * 16)
    rows = num_classes + num_classes % 2
    w = np.zeros(rows * width, dtype=np.float32)
    _pack(weights, w, num_classes, features, width)
    x = np.zeros(64 * width, dtype=np.float32)
    scores = np.zeros(rows * 64, dtype=np.float32)
    powers = np.zeros_like(scores)
    tops, totals, own = np.zeros((3, 64), dtype=np.float32)
    for first in range(0, rows_of.size, 64):
        batch = rows_of[first : first + 64]
        _gather(inputs, scale, batch, x, width)
        _forward(w, x, scores, 64, rows, width)
        _scores_of_targets(scores, targets, batch, 64, own)
        for s in range(batch.size):
            best = 0
            for c in range(1, num_classes):
                if scores[c * 64 + s] > scores[best * 64 + s]:
                    best = c
            right[first + s] = best == targets[batch[s]]
        _softmax(scores, tops, totals, powers, 64, num_classes)
        for s in range(batch.size):
            losses[first + s] = np.log(totals[s]) + tops[s] - own[s]


@_compiled
def _pack(flat, w, num_classes, features, width):
    for c in range(num_classes):
        w[c * width : c * width + features] = flat[c * features : (c + 1) * features]
        w[c * width + features] = flat[num_classes * features + c]


@_compiled
def _unpack(w, flat, num_classes, features, width):
    for c in range(num_classes):
        flat[c * features : (c + 1) * features] = w[c * width : c * width + features]
        flat[num_classes * features + c] = w[c * width + features]


@_compiled
def _gather(inputs, scale, batch, x, width):
    """x[s] ← (sample, 1, 0 …); rows that fill up a block of four samples are 0."""
    features = inputs.shape[1]
    for s in range(batch.size):
        sample = inputs[batch[s]]
        at = _unsigned(s) * width
        for d in range(_unsigned(features)):
            x[at + d] = scale * np.float32(sample[d])
        x[at + _unsigned(features)] = np.float32(1.0)
    for i in range(_unsigned(batch.size) * width, _unsigned((batch.size + 3) // 4 * 4) * width):
        x[i] = np.float32(0.0)


@_compiled
def _forward(w, x, scores, count, rows, width):
    """scores[c, s] = w[c]·x[s]."""
    zero = np.float32(0.0)
    for s in range(0, count, 4):
        x0 = _unsigned(s) * width
        x1, x2, x3 = x0 + width, x0 + width + width, x0 + width + width + width
        for c in range(0, rows, 2):
            wa = _unsigned(c) * width
            wb = wa + width
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for d in range(width):
                a, b = w[wa + d], w[wb + d]
                a0 += a * x[x0 + d]
                a1 += a * x[x1 + d]
                a2 += a * x[x2 + d]
                a3 += a * x[x3 + d]
                b0 += b * x[x0 + d]
                b1 += b * x[x1 + d]
                b2 += b * x[x2 + d]
                b3 += b * x[x3 + d]
            i = c * count + s
            scores[i], scores[i + 1], scores[i + 2], scores[i + 3] = a0, a1, a2, a3
            i += count
            scores[i], scores[i + 1], scores[i + 2], scores[i + 3] = b0, b1, b2, b3


@_compiled
def _softmax(scores, tops, totals, powers, count, num_classes):
    """tops[s] ← max_c scores[c, s];  scores[c, s] ← exp(scores[c, s] − tops[s]);  totals[s] ← Σ_c of these."""
    for s in range(_unsigned(count)):
        tops[s] = scores[s]
    for c in range(1, num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            tops[s] = max(tops[s], scores[at + s])
    for c in range(num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            scores[at + s] -= tops[s]
    _exponentials(scores, powers, num_classes * count)
    for s in range(_unsigned(count)):
        totals[s] = scores[s]
    for c in range(1, num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            totals[s] += scores[at + s]


@_compiled
def _exponentials(values, powers, size):
    """values[i] ← exp(values[i]) for values ≤ 0, to 2e-7 of itself; `powers` is room to work in.

    exp(v) = 2^k·2^f with k whole and |f| ≤ ½: 2^f by a polynomial (Chebyshev, degree 6), 2^k by writing k into the exponent
    bits of a float. A call of the library's exp for each score would take longer than the products around it.
    """
    bits = powers.view(np.int32)
    for i in range(_unsigned(size)):
        v = max(values[i], np.float32(-87.0)) * np.float32(1.4426950408889634)
        k = np.floor(v + np.float32(0.5))
        f = v - k
        p = np.float32(0.00015469732) * f + np.float32(0.0013400431)
        p = p * f + np.float32(0.009618025)
        p = p * f + np.float32(0.055503272)
        p = p * f + np.float32(0.24022651)
        p = p * f + np.float32(0.6931472)
        values[i] = p * f + np.float32(1.0)
        bits[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
    for i in range(_unsigned(size)):
        values[i] *= powers[i]


@_compiled
def _residuals(scores, totals, targets, batch, count, num_classes):
    """scores[c, s] ← scores[c, s]/totals[s] − 1_{c = y_s}."""
    for c in range(num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            scores[at + s] /= totals[s]
    for s in range(batch.size):
        scores[targets[batch[s]] * count + s] -= np.float32(1.0)


@_compiled
def _scores_of_targets(scores, targets, batch, count, own):
    """own[s] ← scores[y_s, s]."""
    for s in range(batch.size):
        own[s] = scores[targets[batch[s]] * count + s]


@_compiled
def _backward(w, x, residuals, count, rows, width, step):
    """w[c] ← w[c] − step·Σ_s residuals[c, s]·x[s]."""
    for s in range(0, count, 4):
        x0 = _unsigned(s) * width
        x1, x2, x3 = x0 + width, x0 + width + width, x0 + width + width + width
        for c in range(0, rows, 2):
            i = c * count + s
            a0, a1, a2, a3 = (
                step * residuals[i],
                step * residuals[i + 1],
                step * residuals[i + 2],
                step * residuals[i + 3],
            )
            i += count
            b0, b1, b2, b3 = (
                step * residuals[i],
                step * residuals[i + 1],
                step * residuals[i + 2],
                step * residuals[i + 3],
            )
            wa = _unsigned(c) * width
            wb = wa + width
            for d in range(width):
                w[wa + d] -= a0 * x[x0 + d] + a1 * x[x1 + d] + a2 * x[x2 + d] + a3 * x[x3 + d]
                w[wb + d] -= b0 * x[x0 + d] + b1 * x[x1 + d] + b2 * x[x2 + d] + b3 * x[x3 + d]
