"""The tasks that have a name on the command line: a small value each, from which the data are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hybridfl.data.federated import Samples
from hybridfl.data.synthetic import NUM_CLASSES, NUM_FEATURES, synthetic, synthetic_iid
from hybridfl.experiment import Task
from hybridfl.models import LogisticRegression

PAPER_L2 = 1e-4
"""ε of the paper's term ε‖w‖²."""


class TaskRecipe(Protocol):
    """Makes a task for a fleet of so many devices; the seed decides the data."""

    def build(self, devices: int, seed: int) -> Task: ...


@dataclass(frozen=True)
class Synthetic:
    """Synthetic(γ, ξ) with multinomial logistic regression; ξ: how much inputs differ. γ has no effect (see `synthetic`)."""

    gamma: float = 1.0
    xi: float = 1.0

    def build(self, devices: int, seed: int) -> Task:
        return _logistic_regression(
            f"synthetic({self.gamma:g}, {self.xi:g})", synthetic(self.gamma, self.xi, devices, seed), seed
        )


@dataclass(frozen=True)
class SyntheticIID:
    """The i.i.d. variant of Synthetic with multinomial logistic regression."""

    def build(self, devices: int, seed: int) -> Task:
        return _logistic_regression("synthetic-iid", synthetic_iid(devices, seed), seed)


def _logistic_regression(name: str, samples: Samples, seed: int) -> Task:
    train, test = samples.split(0.1, seed)
    return Task(name, train, test, LogisticRegression(NUM_FEATURES, NUM_CLASSES), l2=PAPER_L2)
