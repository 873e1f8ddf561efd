"""Samples out of a Hugging Face dataset, or out of Flower Datasets. Both need `pip install 'hybridfl[datasets]'`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError, nearest

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets import FederatedDataset


def from_hugging_face(
    dataset: Dataset, partition: str, inputs: str, targets: str, scale: float | None = None
) -> Samples:
    """A device is one value of the column `partition`, in the order of first appearance.

    `inputs` and `targets` are columns too, of numbers, arrays or images of one size. Images stay bytes; with
    `scale=1 / 255` a model sees them between 0 and 1.
    """
    _check_column(dataset, partition)
    owners = dataset[partition][:]
    if None in owners:
        raise InputError(f"Row {owners.index(None)} of column '{partition}' is empty: every row must be somebody's.")
    _, first_seen, who = np.unique(np.array(owners), return_index=True, return_inverse=True)
    place = np.empty_like(first_seen)
    place[np.argsort(first_seen)] = np.arange(len(first_seen))
    devices = place[who]
    rows = np.split(np.argsort(devices, kind="stable"), np.cumsum(np.bincount(devices))[:-1])
    samples = Samples.shared_out(_column(dataset, inputs), _column(dataset, targets), rows, scale)
    return samples.checked()


def from_flower(
    federated: FederatedDataset, inputs: str, targets: str, split: str = "train", scale: float | None = None
) -> Samples:
    """A device is one partition of a `FederatedDataset`'s split; `inputs` and `targets` are columns, as above."""
    if split not in federated.partitioners:
        raise InputError(
            f"The federated dataset has no partitioner for '{split}'. It has: {', '.join(federated.partitioners)}."
        )
    # Loading the first partition is what makes the partitioner know how many there are.
    parts = [federated.load_partition(0, split)]
    parts += [federated.load_partition(i, split) for i in range(1, federated.partitioners[split].num_partitions)]
    return Samples.from_devices([(_column(part, inputs), _column(part, targets)) for part in parts], scale)


def _column(dataset: Dataset, name: str) -> Tensor:
    """A whole column as one tensor."""
    _check_column(dataset, name)
    values = dataset.with_format("numpy")[name][:]
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        raise InputError(
            f"The rows of column '{name}' differ in shape or are no numbers: make them arrays of one size first."
        )
    # Arrays of bytes come as int64, eight times their size.
    stored = getattr(dataset.features[name], "dtype", "")
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.uint8 if stored == "uint8" else None))


def _check_column(dataset: Dataset, name: str) -> None:
    known = dataset.column_names
    if name not in known:
        raise InputError(f"The dataset has no column '{name}'.{nearest(name, known)} It has: {', '.join(known)}.")
