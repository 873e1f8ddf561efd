# mypy: allow-untyped-calls
"""Scores computed on a GPU, and fetched from it when they are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.evaluation import Audience, ModuleForward, Scores
from hybridfl.losses import Loss
from hybridfl.protocol import Vector
from hybridfl.resident import CUDA, resident


@dataclass(frozen=True, eq=False)
class Totals:
    """Over how many samples sums run, who holds the test samples, and the weight of the L2 term: sums become scores."""

    train: int
    test: int
    audience: Audience
    l2: float

    def scores(self, sums: Sequence[float], right: NDArray[Any]) -> Scores:
        """Of (Σ training losses, Σ test losses, ‖w‖²), and whether the answer to each test sample is right."""
        train_losses, test_losses, squares = sums
        train_loss = _share(train_losses, self.train) + self.l2 * squares
        return self.audience.scores(right[: self.test], train_loss, _share(test_losses, self.test))


def _share(total: float, count: int) -> float:
    return total / count if count else math.nan


@dataclass(frozen=True, eq=False)
class OnItsWay:
    """Scores whose sums and right answers are being copied from the GPU; several share one copy."""

    sums: Tensor
    right: Tensor
    row: int
    totals: Totals
    copied: torch.cuda.Event

    @classmethod
    def of(cls, sums: Tensor, right: Tensor, totals: Sequence[Totals]) -> list[OnItsWay]:
        """One for each row of `sums` [m, 3] and of `right` [m, at least as many as there are test samples]."""
        sums_here, right_here = (_copied(each) for each in (sums, right))
        copied = torch.cuda.Event()
        copied.record()
        return [cls(sums_here, right_here, row, own, copied) for row, own in enumerate(totals)]

    def is_known(self) -> bool:
        return bool(self.copied.query())

    def scores(self) -> Scores:
        self.copied.synchronize()
        return self.totals.scores(self.sums[self.row].tolist(), self.right[self.row].numpy())


def _copied(tensor: Tensor) -> Tensor:
    """On its way to this side; what is queued later does not wait for it."""
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


class CudaEvaluation:
    """What `Evaluation` computes for any model, on a GPU."""

    def __init__(
        self, model: nn.Module, loss: Loss, train: Samples, test: Samples, audience: Audience, l2: float = 0.0
    ) -> None:
        self._forward = ModuleForward(model, loss, CUDA)
        self._train, self._test = (_on_gpu(samples) for samples in (train, test))
        self._train_rows, self._test_rows = (resident(samples.index) for samples in (train, test))
        self._totals = Totals(len(train.index), len(test.index), audience, l2)

    def __call__(self, weights: Vector) -> Scores:
        return self.together([(self, weights)])[0].scores()

    @staticmethod
    def together(wanted: Sequence[tuple[CudaEvaluation, Vector]]) -> list[OnItsWay]:
        return [scoring for evaluation, weights in wanted for scoring in evaluation._begun(weights)]

    def _begun(self, weights: Vector) -> list[OnItsWay]:
        train_losses, _ = self._forward.on_gpu(weights, self._train, self._train_rows)
        test_losses, right = self._forward.on_gpu(weights, self._test, self._test_rows)
        sums = torch.stack([train_losses.double().sum(), test_losses.double().sum(), weights.double().square().sum()])
        return OnItsWay.of(sums.unsqueeze(0), right.unsqueeze(0), [self._totals])


def _on_gpu(samples: Samples) -> Samples:
    return Samples(resident(samples.inputs), resident(samples.targets), samples.index, samples.offsets, samples.scale)
