"""How the samples of one data set are shared out among devices: every sample to exactly one device.

A partition is one array of rows a device. All of them are seeded, and give every device at least one sample.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_whole
from hybridfl.randomness import generator
from hybridfl.wording import counted

Rows = NDArray[np.int64]


class Partition(Protocol):
    """Shares out the rows 0..n−1 of samples with these labels."""

    def __call__(self, labels: NDArray[np.int64], devices: int, seed: int) -> list[Rows]: ...


@dataclass(frozen=True)
class IID:
    """Every device gets the same number of samples (± 1), drawn from all."""

    def __call__(self, labels: NDArray[np.int64], devices: int, seed: int) -> list[Rows]:
        _check(labels, devices)
        return _sorted(np.array_split(generator(seed, "partition").permutation(len(labels)), devices))


@dataclass(frozen=True)
class PowerLaw:
    """A few labels a device, and sizes that follow a power law: how FedProx shares out MNIST.

    Device u holds the labels u, u + 1, …, u + `labels_a_device` − 1 (modulo their number): `at_least` samples of each for
    certain, and of what is left of a label a share ∝ lognormal(0, σ) drawn for every device that holds it.

    Li et al., "Federated Optimization in Heterogeneous Networks", 2020. There, a part of the samples is dropped.
    """

    labels_a_device: int = 2
    sigma: float = 2.0
    at_least: int = 5

    def __post_init__(self) -> None:
        require_whole("labels_a_device", self.labels_a_device)
        require_positive("sigma", self.sigma)
        require_whole("at_least", self.at_least)

    def __call__(self, labels: NDArray[np.int64], devices: int, seed: int) -> list[Rows]:
        _check(labels, devices)
        known = np.unique(labels)
        if self.labels_a_device > len(known):
            raise InputError(
                f"labels_a_device={self.labels_a_device}, but the data have {counted(len(known), 'label')}: ask for fewer."
            )
        draw = generator(seed, "partition")
        parts: list[list[Rows]] = [[] for _ in range(devices)]
        for place, label in enumerate(known):
            holders = [u for u in range(devices) if (place - u) % len(known) < self.labels_a_device]
            # With fewer devices than labels, a label that nobody's turn reaches goes to whoever is next.
            holders = holders or [place % devices]
            rows = draw.permutation(np.flatnonzero(labels == label))
            certain = min(self.at_least, len(rows) // len(holders))
            shares = draw.lognormal(0.0, self.sigma, len(holders))
            rest = _cut(rows[certain * len(holders) :], shares)
            for turn, holder in enumerate(holders):
                parts[holder] += [rows[turn * certain : (turn + 1) * certain], rest[turn]]
        return _without_empty([np.concatenate(part) for part in parts])


@dataclass(frozen=True)
class Dirichlet:
    """The devices' shares of each label are drawn from Dirichlet(α): small α, few labels a device; large α, i.i.d.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution", 2019.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)

    def __call__(self, labels: NDArray[np.int64], devices: int, seed: int) -> list[Rows]:
        _check(labels, devices)
        draw = generator(seed, "partition")
        parts: list[list[Rows]] = [[] for _ in range(devices)]
        for label in np.unique(labels):
            rows = draw.permutation(np.flatnonzero(labels == label))
            for part, own in zip(parts, _cut(rows, draw.dirichlet(np.full(devices, self.alpha))), strict=True):
                part.append(own)
        return _without_empty([np.concatenate(part) for part in parts])


@dataclass(frozen=True)
class Shards:
    """Samples sorted by label are cut into equal shards, and every device gets `shards_a_device` of them at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
    """

    shards_a_device: int = 2

    def __post_init__(self) -> None:
        require_whole("shards_a_device", self.shards_a_device)

    def __call__(self, labels: NDArray[np.int64], devices: int, seed: int) -> list[Rows]:
        _check(labels, devices, self.shards_a_device)
        shards = np.array_split(np.argsort(labels, kind="stable"), devices * self.shards_a_device)
        dealt = generator(seed, "partition").permutation(len(shards)).reshape(devices, self.shards_a_device)
        return _sorted([np.concatenate([shards[shard] for shard in hand]) for hand in dealt])


def like(parts: list[Rows], labels: NDArray[np.int64], other_labels: NDArray[np.int64], seed: int) -> list[Rows]:
    """Another set's rows shared out in the same proportions: a sample of a label goes to a device ∝ its samples of that label.

    So a test set is spread over the devices as the training set is. A device may get none.
    """
    draw = generator(seed, "partition like")
    others: list[list[Rows]] = [[] for _ in parts]
    for label in np.unique(other_labels):
        counts = np.array([np.count_nonzero(labels[part] == label) for part in parts], dtype=np.float64)
        rows = draw.permutation(np.flatnonzero(other_labels == label))
        for other, own in zip(others, _cut(rows, counts if counts.any() else counts + 1), strict=True):
            other.append(own)
    return _sorted([np.concatenate(part) for part in others])


def _cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
    """`rows` in consecutive pieces whose sizes are ∝ `shares`."""
    ends = np.round(np.cumsum(shares) / shares.sum() * len(rows)).astype(np.int64)
    return np.split(rows, ends[:-1])


def _without_empty(parts: list[Rows]) -> list[Rows]:
    """A device that got nothing gets one sample of the device that has most, the first of several."""
    richest_first = [(-len(part), device) for device, part in enumerate(parts)]
    heapq.heapify(richest_first)
    for device in range(len(parts)):
        if not len(parts[device]):
            size, richest = richest_first[0]
            parts[device], parts[richest] = parts[richest][:1], parts[richest][1:]
            heapq.heapreplace(richest_first, (size + 1, richest))
            heapq.heappush(richest_first, (-1, device))
    return _sorted(parts)


def _sorted(parts: list[Rows]) -> list[Rows]:
    return [np.sort(part) for part in parts]


def _check(labels: NDArray[np.int64], devices: int, a_device: int = 1) -> None:
    require_whole("devices", devices)
    if devices * a_device > len(labels):
        parts = counted(devices, "device") + (f" of {counted(a_device, 'shard')}" if a_device > 1 else "")
        raise InputError(f"{counted(len(labels), 'sample')} cannot be shared out among {parts}: ask for fewer.")
