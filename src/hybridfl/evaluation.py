"""How good weights are: losses and accuracies, by sample and by device, normal devices and stragglers apart."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.losses import Loss, loss_by_sample
from hybridfl.protocol import Vector
from hybridfl.threads import CORES, ModelOfEachThread, loss_of_each_thread, pool
from hybridfl.vectors import fill

_CHUNK = 512
"""Samples in one forward pass: a recurrent model needs 80 MB of room for so many Shakespearean windows."""


_CUDA_CHUNK = 8192
"""On a GPU, fewer would leave it idle."""


@dataclass(frozen=True)
class Scores:
    """`train_loss` is the objective Σ p_i F_i(w) + ε‖w‖²; the others are on held-out samples. NaN where there are none.

    `test_accuracy` counts every sample alike, `device_accuracy` every device: one that holds half of the samples decides
    half of the first and little of the second. See `Audience` for the scores by device.
    """

    train_loss: float
    test_loss: float
    test_accuracy: float
    normal_accuracy: float
    straggler_accuracy: float
    device_accuracy: float = math.nan
    worst_accuracy: float = math.nan
    below_chance: float = math.nan
    by_device: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), compare=False, repr=False)
    """The accuracy of every device of the fleet; NaN where it holds no test samples."""
    held_by_device: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), compare=False, repr=False)
    """How many test samples of every device have a class, and were judged by it."""
    has_diverged: bool = False
    """Whether a loss is not finite, or the weights are not: accuracies mean nothing then, and are NaN."""

    @classmethod
    def diverged(cls, train_loss: float, test_loss: float) -> Scores:
        """Of weights that are of no use any more."""
        nothing = math.nan
        return cls(train_loss, test_loss, nothing, nothing, nothing, has_diverged=True)


WORST = 0.1
"""The share of the devices whose mean is `worst_accuracy`; of few devices, at least one."""


@dataclass(frozen=True, eq=False)
class Audience:
    """Who holds the test samples: turns the right answers into scores by sample and by device.

        a_i = right answers of device i / its test samples
        device_accuracy = mean of a_i,   worst_accuracy = mean of the lowest tenth,   below_chance = share with a_i < chance

    All three are over the devices that hold test samples. `chance` is 1/C where a model tells C classes apart, NaN where
    there are no classes.
    """

    offsets: NDArray[np.int64]
    is_straggler: NDArray[np.bool_]
    chance: float

    @classmethod
    def of(cls, test: Samples, is_straggler: NDArray[np.bool_], chance: float) -> Audience:
        return cls(test.offsets, is_straggler, chance)

    def scores(self, right: NDArray[Any], train_loss: float, test_loss: float) -> Scores:
        """`right`: of every test sample, in the order of the devices, 1 or 0; NaN where it has no class."""
        if not math.isfinite(train_loss) or (self.offsets[-1] > 0 and not math.isfinite(test_loss)):
            return Scores.diverged(train_loss, test_loss)
        is_judged = ~np.isnan(right) if math.isfinite(self.chance) else np.zeros(len(right), dtype=bool)
        totals, counts = (self._by_device(each) for each in (np.where(is_judged, right, 0.0), is_judged))
        slow = self.is_straggler
        is_held = counts > 0
        by_device = np.divide(totals, counts, out=np.full(len(counts), math.nan), where=is_held)
        mean, worst, below = device_scores(by_device[is_held], self.chance)
        return Scores(
            train_loss=train_loss,
            test_loss=test_loss,
            test_accuracy=_share(totals, counts),
            normal_accuracy=_share(totals[~slow], counts[~slow]),
            straggler_accuracy=_share(totals[slow], counts[slow]),
            device_accuracy=mean,
            worst_accuracy=worst,
            below_chance=below,
            by_device=by_device,
            held_by_device=counts.astype(np.int64),
        )

    def _by_device(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum over each device's test samples."""
        upto = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        return np.diff(upto[self.offsets])


def _share(totals: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    return float(totals.sum() / counts.sum()) if counts.sum() else math.nan


def device_scores(accuracies: NDArray[np.float64], chance: float) -> tuple[float, float, float]:
    """(`device_accuracy`, `worst_accuracy`, `below_chance`) of some devices' accuracies; NaN where there are none."""
    if not len(accuracies):
        return math.nan, math.nan, math.nan
    lowest_first = np.sort(accuracies)
    worst = lowest_first[: math.ceil(WORST * len(lowest_first))]
    below = float((lowest_first < chance).mean()) if math.isfinite(chance) else math.nan
    return float(lowest_first.mean()), float(worst.mean()), below


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
    """For any model, in eval mode. A prediction is right if its largest output is the target's; see `right_answers`."""

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device = torch.device("cpu")) -> None:
        self._models = ModelOfEachThread(model, training=False, device=device)
        self._loss = loss_of_each_thread(loss)

    def __call__(self, weights: Vector, samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Each chunk of rows is one thread's, so that bits do not depend on the number of cores."""
        chunks = torch.split(torch.from_numpy(rows), _CHUNK)
        hands = [range(first, len(chunks), CORES) for first in range(CORES)]
        scores: dict[int, tuple[Tensor, Tensor]] = {}

        stop = threading.Event()

        def score(hand: range) -> None:
            model = self._loaded(weights)
            for number in hand:
                if not stop.is_set():
                    scores[number] = self._score(model, samples, chunks[number])

        try:
            for done in [pool().submit(score, hand) for hand in hands if hand]:
                done.result()
        except BaseException:
            stop.set()  # an interrupt: the process could not end before its threads do
            raise
        losses, right = zip(*(scores[number] for number in range(len(chunks))), strict=True)
        return torch.cat(losses), torch.cat(right)

    def on_gpu(self, weights: Vector, samples: Samples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Likewise where weights, samples and rows are on a GPU."""
        model = self._loaded(weights)
        losses, right = zip(
            *(self._score(model, samples, chunk) for chunk in torch.split(rows, _CUDA_CHUNK)), strict=True
        )
        return torch.cat(losses), torch.cat(right)

    def _loaded(self, weights: Vector) -> nn.Module:
        """What a model has cached of its last weights goes with the change of its mode."""
        return fill(self._models.own().train(), weights).eval()

    @torch.no_grad()
    def _score(self, model: nn.Module, samples: Samples, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = samples.take(rows)
        outputs = model(inputs)
        right = right_answers(outputs, targets)  # before the loss, which may overwrite the outputs
        return loss_by_sample(self._loss, outputs, targets), right


def class_axis(outputs: object, targets: Tensor) -> int | None:
    """The axis of `outputs` along which the classes lie that `targets` number; None where there are no classes.

    It is the one axis that `targets` do not have, the second as PyTorch's losses have it, or the last. A single output is no
    class, and where either axis would do, which one is meant cannot be known.
    """
    if not isinstance(outputs, Tensor) or targets.is_floating_point() or targets.is_complex():
        return None
    if outputs.dim() != targets.dim() + 1:
        return None
    fitting = {axis for axis in (1, outputs.dim() - 1) if _without(outputs, axis) == tuple(targets.shape)}
    (axis,) = fitting if len(fitting) == 1 else (None,)
    return axis if axis is not None and outputs.shape[axis] > 1 else None


def _without(outputs: Tensor, axis: int) -> tuple[int, ...]:
    return (*outputs.shape[:axis], *outputs.shape[axis + 1 :])


def right_answers(outputs: object, targets: Tensor) -> Tensor:
    """[batch]: 1 where the largest output is the target's class, of several targets per sample the share; NaN without classes.

    A target below 0 stands for none, as padding does (−100): it counts neither as right nor as wrong.
    """
    axis = class_axis(outputs, targets)
    if axis is None:
        return torch.full((len(targets),), math.nan, device=targets.device)
    assert isinstance(outputs, Tensor)
    right = torch.where(targets < 0, math.nan, (outputs.argmax(axis) == targets).float())
    return right if right.dim() == 1 else right.flatten(1).nanmean(1)


class Evaluation:
    """Scores weights on all training and test samples, here and now."""

    def __init__(self, forward: Forward, train: Samples, test: Samples, audience: Audience, l2: float = 0.0) -> None:
        self._forward, self._train, self._test, self._audience, self._l2 = forward, train, test, audience, l2

    def __call__(self, weights: Vector) -> Scores:
        train_losses, _ = self._scored(weights, self._train)
        test_losses, right = self._scored(weights, self._test)
        train_loss = _mean(train_losses) + self._l2 * float(weights.double().square().sum())
        return self._audience.scores(right.numpy(), train_loss, _mean(test_losses))

    def _scored(self, weights: Vector, samples: Samples) -> tuple[Tensor, Tensor]:
        """Of no samples, no model or loss is asked: an empty batch is none."""
        if not len(samples.index):
            return torch.zeros(0), torch.zeros(0)
        return self._forward(weights, samples, samples.index)

    @staticmethod
    def together(wanted: Sequence[tuple[Evaluation, Vector]]) -> list[Known]:
        return [Known(evaluate(weights)) for evaluate, weights in wanted]


def _mean(values: Tensor) -> float:
    return float(values.numpy().mean(dtype=np.float64)) if len(values) else math.nan
