# mypy: allow-untyped-calls
"""Training and scoring `LogisticRegression`, whose gradient has a closed form: compiled loops on all cores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.batches import Batches
from hybridfl.closed_form import check_width, checked_classes
from hybridfl.data.federated import Samples
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
        self._targets = checked_classes(samples, num_classes).numpy()
        self._num_classes = num_classes
        self._l2 = l2
        self._seed = seed
        self._threads = threads or CORES

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return self.together([(self, jobs)])[0]

    @staticmethod
    def together(wanted: Sequence[tuple[SoftmaxSGD, Sequence[Job]]]) -> list[list[Update]]:
        """The jobs of several trainers, dealt out to the threads as if they were one trainer's."""
        for trainer, jobs in wanted:
            for job in jobs:
                check_width(job.weights, trainer._inputs.shape[1], trainer._num_classes)
        places = [(number, place) for number, (_, jobs) in enumerate(wanted) for place in range(len(jobs))]
        loads = np.concatenate([trainer._loads(jobs) for trainer, jobs in wanted])
        updates: dict[tuple[int, int], Update] = {}

        def train_hand(hand: NDArray[np.int64]) -> None:
            for number, group in itertools.groupby(sorted(places[i] for i in hand), key=lambda place: place[0]):
                trainer, jobs = wanted[number]
                mine = [place for _, place in group]
                for few in _chunks(mine, trainer._most_at_once):
                    answers = trainer._train([jobs[place] for place in few])
                    updates.update(zip(((number, place) for place in few), answers, strict=True))

        threads = max(trainer._threads for trainer, _ in wanted)
        for done in [pool().submit(train_hand, hand) for hand in _shared_out(loads, threads)]:
            done.result()
        return [[updates[number, place] for place in range(len(jobs))] for number, (_, jobs) in enumerate(wanted)]

    def _loads(self, jobs: Sequence[Job]) -> NDArray[np.int64]:
        """How many samples each job visits."""
        epochs = np.array([job.work.epochs for job in jobs])
        loads: NDArray[np.int64] = self._samples.num_samples[np.array([job.device for job in jobs])] * epochs
        return loads

    @property
    def _most_at_once(self) -> int:
        """Jobs whose weights fill 64 MB: a thread's room to work in does not grow with the number of jobs."""
        return max(1, (1 << 24) // (self._num_classes * (int(self._inputs.shape[1]) + 1)))

    def _train(self, jobs: Sequence[Job]) -> list[Update]:
        """One thread's part."""
        batches = Batches.of(jobs, self._samples, self._seed)
        weights = torch.stack([job.weights for job in jobs]).numpy()
        losses = np.zeros(len(jobs), dtype=np.float64)
        train(
            weights,
            self._inputs,
            self._scale,
            self._targets,
            batches.order,
            batches.starts,
            batches.num_samples,
            batches.epochs,
            batches.batch_sizes,
            np.array([job.work.learning_rate for job in jobs]),
            np.array([job.work.proximal for job in jobs]),
            np.array([job.work.clip if math.isfinite(job.work.clip) else 0.0 for job in jobs]),
            self._l2,
            self._num_classes,
            losses,
        )
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
        targets = checked_classes(samples, self._num_classes).numpy()
        check_width(weights, inputs.shape[1], self._num_classes)
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


def _pieces(rows: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], slice]]:
    """The rows in one piece a core, and where each piece belongs."""
    size = max(1, -(-len(rows) // CORES))
    return [(rows[first : first + size], slice(first, first + size)) for first in range(0, len(rows), size)]


def _chunks(places: list[int], size: int) -> list[list[int]]:
    return [places[first : first + size] for first in range(0, len(places), size)]


def _shared_out(loads: NDArray[np.int64], threads: int) -> list[NDArray[np.int64]]:
    """The jobs' numbers, dealt out largest first to whoever has least; empty hands are left out."""
    hands: list[list[int]] = [[] for _ in range(threads)]
    totals = [0] * threads
    for job in np.argsort(-loads, kind="stable"):
        least = totals.index(min(totals))
        hands[least].append(int(job))
        totals[least] += int(loads[job])
    return [np.array(hand) for hand in hands if hand]
