# mypy: allow-untyped-calls
"""Training chains of linear layers, and scoring softmax regression: compiled loops on all cores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.closed_form import check_size, checked_classes, flat_inputs
from hybridfl.data.federated import Samples
from hybridfl.dense import Dense
from hybridfl.dense_kernels import score, train
from hybridfl.protocol import Job, Update, Vector
from hybridfl.randomness import keys
from hybridfl.threads import CORES, pool, shared_out
from hybridfl.vectors import drifts


class DenseSGD:
    """W_l ← W_l − η·(δ_lᵀ·a_{l−1} + 2ε·W_l + μ·(W_l − W_l,received)) − η·drift_l

        δ_last = (softmax(z) − 1_y)/B,   δ_{l−1} = (δ_l·W_l)⊙f'(z_{l−1})

    a_l = f(z_l): a layer's outputs after its activation, followed by a 1 for the biases; a_0 = x. What `LocalSGD` computes for
    such a chain with cross-entropy, to float32 rounding, without Python in any step; the gradient in brackets is shortened
    to the work's `clip` where it is longer. A job is trained by one thread from its first step to its last, so its bits
    do not depend on the others; threads share the jobs by their number of samples.
    """

    def __init__(
        self, samples: Samples, dense: Dense, l2: float = 0.0, seed: int = 0, threads: int | None = None
    ) -> None:
        self._samples = samples
        self._inputs = flat_inputs(samples)
        self._scale = _scale(samples)
        self._targets = checked_classes(samples, dense.num_classes).numpy()
        self._dense = dense
        self._shapes = np.array(dense.shapes)
        self._kinds = np.array(dense.activations, dtype=np.int64)
        self._l2 = l2
        self._seed = seed
        self._threads = threads or CORES

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return self.together([(self, jobs)])[0]

    @staticmethod
    def together(wanted: Sequence[tuple[DenseSGD, Sequence[Job]]]) -> list[list[Update]]:
        """The jobs of several trainers, dealt out to the threads as if they were one trainer's."""
        answers: list[list[Update]] = [[] for _ in wanted]
        for numbers, parts in _rounds(wanted):
            loads = np.concatenate([part.loads for part in parts])
            owner = np.repeat(np.arange(len(parts)), [len(part.loads) for part in parts])
            place = np.concatenate([np.arange(len(part.loads)) for part in parts])
            threads = max(wanted[number][0]._threads for number in numbers)
            stop = np.zeros(1, dtype=np.uint8)
            hands = (
                [(part, place[hand[owner[hand] == p]]) for p, part in enumerate(parts)]
                for hand in shared_out(loads, threads)
            )
            futures = [pool().submit(_train_hand, hand, stop) for hand in hands]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                stop[0] = 1  # an interrupt: the process could not end before the compiled loops do
                raise
            for number, part in zip(numbers, parts, strict=True):
                answers[number] += part.updates()
        return answers

    def bundles(self, jobs: Sequence[Job]) -> list[list[int]]:
        return [[place] for place in range(len(jobs))]

    def _prepared(self, jobs: Sequence[Job]) -> _Part:
        for job in jobs:
            check_size(job.weights, self._inputs.shape[1], self._dense)
        devices, versions, repeats, epochs, sizes = np.array(
            [(job.device, job.version, job.repeat, job.work.epochs, job.work.batch_size) for job in jobs],
            dtype=np.int64,
        ).T
        firsts = self._samples.offsets[devices]
        num_samples = self._samples.offsets[devices + 1] - firsts
        batch_sizes = np.minimum(sizes, num_samples)
        each = np.repeat(np.arange(len(jobs)), epochs)
        key_starts = np.cumsum(epochs) - epochs
        epoch = np.arange(len(each)) - key_starts[each]
        weights = torch.stack([job.weights for job in jobs]).numpy()
        losses = np.zeros(len(jobs))
        added = drifts(jobs)
        return _Part(
            jobs,
            loads=num_samples * epochs,
            num_steps=-(-num_samples // batch_sizes) * epochs,
            weights=weights,
            losses=losses,
            arguments=(
                weights,
                self._inputs,
                self._scale,
                self._targets,
                self._samples.index,
                firsts,
                num_samples,
                keys(self._seed, "batches", devices[each], versions[each], repeats[each], epoch),
                key_starts,
                epochs,
                batch_sizes,
                np.array([job.work.learning_rate for job in jobs]),
                np.array([job.work.proximal for job in jobs]),
                np.zeros((0, 0), dtype=np.float32) if added is None else added.numpy(),
                np.array([job.work.clip if math.isfinite(job.work.clip) else 0.0 for job in jobs]),
                self._l2,
                self._shapes,
                self._kinds,
                losses,
            ),
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """Some jobs of one trainer, as the compiled loop takes them."""

    jobs: Sequence[Job]
    loads: NDArray[np.int64]
    """How many samples each job visits."""
    num_steps: NDArray[np.int64]
    weights: NDArray[np.float32]
    losses: NDArray[np.float64]
    arguments: tuple[Any, ...]

    def updates(self) -> list[Update]:
        return [
            Update(job, torch.from_numpy(own.copy()), steps, loss)
            for job, own, steps, loss in zip(
                self.jobs, self.weights, self.num_steps.tolist(), self.losses.tolist(), strict=True
            )
        ]


def _train_hand(hand: Sequence[tuple[_Part, NDArray[np.int64]]], stop: NDArray[np.uint8]) -> None:
    """One thread's jobs, which may be of several trainers."""
    for part, mine in hand:
        if len(mine):
            train(*(mine, *part.arguments, stop))


def _rounds(
    wanted: Sequence[tuple[DenseSGD, Sequence[Job]]],
) -> Iterator[tuple[list[int], list[_Part]]]:
    """All jobs in rounds of at most 256 MB of weights, so that room to work in does not grow with their number."""
    pairs = [(number, job) for number, (_, jobs) in enumerate(wanted) for job in jobs]
    most = max(1, (1 << 28) // max((job.weights.nbytes for _, job in pairs), default=1))
    for first in range(0, len(pairs), most):
        groups: dict[int, list[Job]] = {}
        for number, job in pairs[first : first + most]:
            groups.setdefault(number, []).append(job)
        yield list(groups), [wanted[number][0]._prepared(jobs) for number, jobs in groups.items()]


class SoftmaxForward:
    """What `ModuleForward` computes for softmax regression with cross-entropy, to float32 rounding."""

    def __init__(self, dense: Dense) -> None:
        self._dense = dense

    def __call__(self, weights: Vector, samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        inputs = flat_inputs(samples)
        targets = checked_classes(samples, self._dense.num_classes).numpy()
        check_size(weights, inputs.shape[1], self._dense)
        losses = np.empty(len(rows), dtype=np.float32)
        right = np.empty(len(rows), dtype=np.bool_)
        parts = [
            (
                weights.numpy(),
                inputs,
                _scale(samples),
                targets,
                part,
                self._dense.num_classes,
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


def _pieces(rows: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], slice]]:
    """The rows in one piece a core, and where each piece belongs."""
    size = max(1, -(-len(rows) // CORES))
    return [(rows[first : first + size], slice(first, first + size)) for first in range(0, len(rows), size)]
