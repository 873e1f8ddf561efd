"""The tasks that have a name on the command line: a small value each, from which the data are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from torch import Tensor

from hybridfl.data.federated import Samples
from hybridfl.data.idx import read_idx
from hybridfl.data.partition import Partition, PowerLaw, like
from hybridfl.data.store import locate
from hybridfl.data.synthetic import NUM_CLASSES, NUM_FEATURES, synthetic, synthetic_iid
from hybridfl.experiment import Task
from hybridfl.models import LogisticRegression

PAPER_L2 = 1e-4
"""ε of the paper's term ε‖w‖²."""


class TaskRecipe(Protocol):
    """Makes a task for a fleet of so many devices; the seed decides the data, or how they are shared out.

    `data_dir` is where downloaded data lie, if not in the usual place (`data/store.py`).
    """

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task: ...


@dataclass(frozen=True)
class Synthetic:
    """Synthetic(γ, ξ) with multinomial logistic regression; ξ: how much inputs differ. γ has no effect (see `synthetic`)."""

    gamma: float = 1.0
    xi: float = 1.0

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _logistic_regression(
            f"synthetic({self.gamma:g}, {self.xi:g})", synthetic(self.gamma, self.xi, devices, seed), seed
        )


@dataclass(frozen=True)
class SyntheticIID:
    """The i.i.d. variant of Synthetic with multinomial logistic regression."""

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _logistic_regression("synthetic-iid", synthetic_iid(devices, seed), seed)


@dataclass(frozen=True)
class FashionMNIST:
    """Fashion-MNIST with multinomial logistic regression; by default two labels a device and power-law sizes."""

    partition: Partition = PowerLaw()

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _images("fashion-mnist", self.partition, devices, seed, data_dir)


@dataclass(frozen=True)
class MNIST:
    """MNIST with multinomial logistic regression; by default two labels a device and power-law sizes."""

    partition: Partition = PowerLaw()

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _images("mnist", self.partition, devices, seed, data_dir)


def _logistic_regression(name: str, samples: Samples, seed: int) -> Task:
    train, test = samples.split(0.1, seed)
    return Task(name, train, test, LogisticRegression(NUM_FEATURES, NUM_CLASSES), l2=PAPER_L2)


def _images(name: str, partition: Partition, devices: int, seed: int, data_dir: Path | None) -> Task:
    """The published training images shared out by `partition`, the published test images in the same proportions."""
    images, labels, test_images, test_labels = _read_images(tuple(locate(name, data_dir)))
    rows = partition(labels.numpy(), devices, seed)
    test_rows = like(rows, labels.numpy(), test_labels.numpy(), seed)
    train = Samples.shared_out(images, labels, rows, scale=1 / 255)
    test = Samples.shared_out(test_images, test_labels, test_rows, scale=1 / 255)
    return Task(name, train, test, LogisticRegression(images[0].numel(), NUM_CLASSES), l2=PAPER_L2)


@lru_cache(maxsize=2)
def _read_images(paths: tuple[Path, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images stay bytes; all seeds and runs share them."""
    images, labels, test_images, test_labels = (read_idx(path) for path in paths)
    return images, labels.long(), test_images, test_labels.long()
