"""What devices say of the model and of themselves, and the scores a record makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from hybridfl.data.federated import Samples
from hybridfl.evaluation import ModuleForward, Scores, device_scores
from hybridfl.flower.deployment import Deployment
from hybridfl.flower.wire import MOST_LOSS
from hybridfl.losses import cross_entropy
from hybridfl.protocol import Fleet, LocalScores, Update, Vector


@dataclass(eq=False)
class Heard:
    """Each device's last training loss, and its last scores, by device."""

    losses: dict[int, float] = field(default_factory=dict)
    scores: dict[int, LocalScores] = field(default_factory=dict)

    def listen(self, updates: Iterable[Update]) -> None:
        """To be told of merged updates only: what else is said may be a lie."""
        for update in updates:
            if abs(loss := float(update.train_loss)) <= MOST_LOSS:
                self.losses[update.job.device] = loss
            if update.scores is not None:
                self.scores[update.job.device] = update.scores


class Scoring:
    """train_loss = Σ n_i·ℓ_i/Σ n_i of the losses devices reported; test scores by the server, or Σ m_i·s_i/Σ m_i of theirs.

    n_i: samples of device i; ℓ_i: the loss it reported last; m_i: the samples it holds out; s_i: what it said of them. What a
    server cannot know, normal devices' samples and stragglers' apart, is NaN. Scores by device are those they reported last.
    What devices say is claimed, not known: it is cut to what can be true, which for a cross-entropy is 0 or more.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._forward = ModuleForward(deployment.model, deployment.loss)
        self._least = 0.0 if deployment.loss is cross_entropy else -MOST_LOSS
        self._test = None if deployment.test is None else Samples.from_devices([deployment.test])

    def __call__(self, weights: Vector, heard: Heard, fleet: Fleet) -> Scores:
        claimed = [self._possible(loss) for loss in heard.losses.values()]
        train_loss = _mean(claimed, [int(fleet.num_samples[device]) for device in heard.losses])
        if self._test is not None:
            losses, right = self._forward(weights, self._test, self._test.index)
            test_loss, accuracy = float(losses.double().mean()), float(right.double().nanmean())
        else:
            # Nobody holds out more than there is: a device's word does not weigh more than its samples.
            held_out = [min(said.num_samples, int(fleet.num_samples[device])) for device, said in heard.scores.items()]
            test_loss = _mean([self._possible(scores.loss) for scores in heard.scores.values()], held_out)
            accuracy = _mean([scores.accuracy for scores in heard.scores.values()], held_out)
        if not bool(torch.isfinite(weights).all()):
            return Scores.diverged(train_loss, test_loss)
        reported = np.array([said.accuracy for said in heard.scores.values()])
        by_device, worst, _ = device_scores(reported[~np.isnan(reported)], chance=math.nan)
        return Scores(
            train_loss,
            test_loss,
            accuracy,
            normal_accuracy=math.nan,
            straggler_accuracy=math.nan,
            device_accuracy=by_device,
            worst_accuracy=worst,
        )

    def _possible(self, loss: float) -> float:
        return min(max(loss, self._least), MOST_LOSS)


def _mean(values: list[float], weights: list[int]) -> float:
    return float(np.average(values, weights=weights)) if values else math.nan
