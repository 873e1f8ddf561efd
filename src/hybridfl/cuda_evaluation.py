# mypy: allow-untyped-calls
"""Scores computed on a GPU, and fetched from it when they are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.evaluation import ModuleForward, Scores
from hybridfl.losses import Loss
from hybridfl.protocol import Vector
from hybridfl.resident import CUDA, resident, uploaded


@dataclass(frozen=True)
class Counts:
    """Over how many samples sums run, and the weight of the L2 term: with them, sums become scores."""

    train: int
    normal: int
    straggler: int
    l2: float

    def scores(self, sums: Sequence[float]) -> Scores:
        """Of (Σ training losses, Σ test losses, right answers on normal devices' and stragglers' samples, ‖w‖²)."""
        train_losses, test_losses, normal, straggler, squares = sums
        tested = self.normal + self.straggler
        return Scores(
            train_loss=_share(train_losses, self.train) + self.l2 * squares,
            test_loss=_share(test_losses, tested),
            test_accuracy=_share(normal + straggler, tested),
            normal_accuracy=_share(normal, self.normal),
            straggler_accuracy=_share(straggler, self.straggler),
        )


def _share(total: float, count: int) -> float:
    return total / count if count else math.nan


@dataclass(frozen=True, eq=False)
class OnItsWay:
    """Scores whose sums are being copied from the GPU; several share one copy."""

    sums: Tensor
    row: int
    counts: Counts
    copied: torch.cuda.Event

    @classmethod
    def of(cls, sums: Tensor, counts: Sequence[Counts]) -> list[OnItsWay]:
        """One for each row of `sums` [m, 5]."""
        here = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        here.copy_(sums, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return [cls(here, row, own, copied) for row, own in enumerate(counts)]

    def is_known(self) -> bool:
        return bool(self.copied.query())

    def scores(self) -> Scores:
        self.copied.synchronize()
        return self.counts.scores(self.sums[self.row].tolist())


class CudaEvaluation:
    """What `Evaluation` computes for any model, on a GPU."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        train: Samples,
        test: Samples,
        stragglers: NDArray[np.bool_],
        l2: float = 0.0,
    ) -> None:
        self._forward = ModuleForward(model, loss, CUDA)
        self._train, self._test = (_on_gpu(samples) for samples in (train, test))
        self._train_rows, self._test_rows = (resident(samples.index) for samples in (train, test))
        from_straggler = stragglers[test.device_of]
        self._from_straggler = uploaded(from_straggler)
        self._counts = Counts(len(train.index), int((~from_straggler).sum()), int(from_straggler.sum()), l2)

    def __call__(self, weights: Vector) -> Scores:
        return self.together([(self, weights)])[0].scores()

    @staticmethod
    def together(wanted: Sequence[tuple[CudaEvaluation, Vector]]) -> list[OnItsWay]:
        sums = torch.stack([evaluation._sums(weights) for evaluation, weights in wanted])
        return OnItsWay.of(sums, [evaluation._counts for evaluation, _ in wanted])

    def _sums(self, weights: Vector) -> Tensor:
        train_losses, _ = self._forward.on_gpu(weights, self._train, self._train_rows)
        test_losses, right = self._forward.on_gpu(weights, self._test, self._test_rows)
        right = right.double()
        return torch.stack(
            [
                train_losses.double().sum(),
                test_losses.double().sum(),
                torch.where(self._from_straggler, 0.0, right).sum(),
                torch.where(self._from_straggler, right, 0.0).sum(),
                weights.double().square().sum(),
            ]
        )


def _on_gpu(samples: Samples) -> Samples:
    return Samples(resident(samples.inputs), resident(samples.targets), samples.index, samples.offsets, samples.scale)
