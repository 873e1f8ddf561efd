"""How good weights are: losses and accuracies, also for normal devices and stragglers separately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.losses import Loss, loss_by_sample
from hybridfl.protocol import Vector
from hybridfl.threads import CORES, ModelOfEachThread, pool
from hybridfl.vectors import unflatten

_CHUNK = 512
"""Samples in one forward pass: a recurrent model needs 80 MB of room for so many Shakespearean windows."""


_CUDA_CHUNK = 8192
"""On a GPU, fewer would leave it idle."""


@dataclass(frozen=True)
class Scores:
    """`train_loss` is the objective Σ p_i F_i(w) + ε‖w‖²; the others are on held-out samples. NaN where there are none."""

    train_loss: float
    test_loss: float
    test_accuracy: float
    normal_accuracy: float
    straggler_accuracy: float


class Scoring(Protocol):
    """Scores that may still be on their way from a GPU."""

    def is_known(self) -> bool: ...
    def scores(self) -> Scores:
        """Waits for them."""


class Evaluator(Protocol):
    """Scores a task's weights. Several evaluators of one kind can score at once, with the numbers each has alone."""

    def __call__(self, weights: Vector) -> Scores: ...
    @staticmethod
    def together(wanted: Sequence[tuple[Any, Vector]]) -> Sequence[Scoring]:
        """One scoring for each pair of an evaluator of this kind and weights."""


@dataclass(frozen=True)
class Known:
    """Scores that are there."""

    known: Scores

    def is_known(self) -> bool:
        return True

    def scores(self) -> Scores:
        return self.known


class Forward(Protocol):
    """(the loss, whether the prediction is right) of each of the rows of some samples."""

    def __call__(self, weights: Vector, samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...


class ModuleForward:
    """For any model. A prediction is right if its largest output is the target's; NaN where targets are no classes."""

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device = torch.device("cpu")) -> None:
        self._models = ModelOfEachThread(model, device)
        self._loss = loss

    def __call__(self, weights: Vector, samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Each chunk of rows is one thread's, so that bits do not depend on the number of cores."""
        chunks = torch.split(torch.from_numpy(rows), _CHUNK)
        hands = [range(first, len(chunks), CORES) for first in range(CORES)]
        scores: dict[int, tuple[Tensor, Tensor]] = {}

        def score(hand: range) -> None:
            model = self._loaded(weights)
            scores.update({number: self._score(model, samples, chunks[number]) for number in hand})

        for done in [pool().submit(score, hand) for hand in hands if hand]:
            done.result()
        losses, right = zip(*(scores[number] for number in range(len(chunks))), strict=True)
        return torch.cat(losses), torch.cat(right)

    def on_gpu(self, weights: Vector, samples: Samples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Likewise where weights, samples and rows are on a GPU."""
        model = self._loaded(weights)
        losses, right = zip(
            *(self._score(model, samples, chunk) for chunk in torch.split(rows, _CUDA_CHUNK)), strict=True
        )
        return torch.cat(losses), torch.cat(right)

    @torch.no_grad()
    def _loaded(self, weights: Vector) -> nn.Module:
        model = self._models.own()
        for parameter, piece in zip(model.parameters(), unflatten(model, weights).values(), strict=True):
            parameter.copy_(piece)
        return model

    @torch.no_grad()
    def _score(self, model: nn.Module, samples: Samples, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = samples.take(rows)
        outputs = model(inputs)
        losses = loss_by_sample(self._loss, outputs, targets)
        if targets.is_floating_point() or outputs.dim() <= targets.dim():
            return losses, torch.full((len(rows),), math.nan, device=rows.device)
        return losses, outputs.argmax(-1) == targets


class Evaluation:
    """Scores weights on all training and test samples, here and now."""

    def __init__(
        self, forward: Forward, train: Samples, test: Samples, stragglers: NDArray[np.bool_], l2: float = 0.0
    ) -> None:
        self._forward, self._train, self._test, self._l2 = forward, train, test, l2
        self._from_straggler = torch.from_numpy(stragglers[test.device_of])

    def __call__(self, weights: Vector) -> Scores:
        train_losses, _ = self._forward(weights, self._train, self._train.index)
        test_losses, right = self._forward(weights, self._test, self._test.index)
        return Scores(
            train_loss=_mean(train_losses) + self._l2 * float(weights.double().square().sum()),
            test_loss=_mean(test_losses),
            test_accuracy=_mean(right),
            normal_accuracy=_mean(right[~self._from_straggler]),
            straggler_accuracy=_mean(right[self._from_straggler]),
        )

    @staticmethod
    def together(wanted: Sequence[tuple[Evaluation, Vector]]) -> list[Known]:
        return [Known(evaluate(weights)) for evaluate, weights in wanted]


def _mean(values: Tensor) -> float:
    return float(values.numpy().mean(dtype=np.float64)) if len(values) else float("nan")
