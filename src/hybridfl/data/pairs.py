"""One device's samples as people have them: two tensors, two NumPy arrays, or a PyTorch dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hybridfl.errors import InputError

Pair = tuple[Tensor | np.ndarray, Tensor | np.ndarray] | Dataset[Any]
"""(inputs, targets), one row per sample, or a dataset of (input, target)."""

_WANTED = "give a pair (inputs, targets) of tensors or NumPy arrays, or a torch Dataset of such pairs"


def tensors_of(devices: Sequence[Pair]) -> list[tuple[Tensor, Tensor]]:
    """(inputs, targets) of every device. Whatever cannot be put together is an `InputError` that names the device."""
    if not devices:
        raise InputError("The list of devices is empty: give one (inputs, targets) pair per device.")
    pairs = [_pair(device, given) for device, given in enumerate(devices)]
    for device, (inputs, targets) in enumerate(pairs):
        if len(inputs) != len(targets):
            raise InputError(f"Device {device} has {len(inputs)} inputs but {len(targets)} targets: give one each.")
    for place, name in enumerate(("inputs", "targets")):
        _check_alike(name, [pair[place] for pair in pairs])
    return pairs


def _pair(device: int, given: Any) -> tuple[Tensor, Tensor]:
    if isinstance(given, TensorDataset):
        given = given.tensors
    if isinstance(given, Dataset):
        return _read(device, given)
    if not isinstance(given, tuple | list):
        raise InputError(f"Device {device}'s samples are a {type(given).__name__}: {_WANTED}.")
    if len(given) != 2:
        raise InputError(f"Device {device}'s samples are {len(given)} things, not 2: {_WANTED}.")
    return _tensor(f"Device {device}'s inputs", given[0]), _tensor(f"Device {device}'s targets", given[1])


def _read(device: int, dataset: Dataset[Any]) -> tuple[Tensor, Tensor]:
    """All items of a dataset, each read once."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(f"Device {device}'s dataset has no length: give one with `__len__` and `__getitem__`.")
    items = [dataset[place] for place in range(len(dataset))]
    for place, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"Item {place} of device {device}'s dataset is no pair (input, target): {_WANTED}.")
    return tuple(_stacked(device, name, [item[k] for item in items]) for k, name in enumerate(("input", "target")))  # type: ignore[return-value]


def _stacked(device: int, name: str, values: list[Any]) -> Tensor:
    """One row per item."""
    if not values:
        return torch.zeros(0)
    rows = [_row(f"The {name} of item {place} of device {device}'s dataset", each) for place, each in enumerate(values)]
    for place, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise InputError(
                f"The {name} of item {place} of device {device}'s dataset has shape {tuple(row.shape)}, that of item 0 "
                f"{tuple(rows[0].shape)}: give all of them one shape."
            )
    return torch.stack(rows)


def _row(what: str, value: Any) -> Tensor:
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return torch.as_tensor(value)
    return _as_tensor(what, value)


def _tensor(what: str, value: Any) -> Tensor:
    tensor = _as_tensor(what, value)
    if tensor.dim() == 0:
        raise InputError(f"{what} are a single number: give one row per sample.")
    return tensor


def _as_tensor(what: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if not isinstance(value, np.ndarray):
        made = "its `to_numpy()` makes one" if hasattr(value, "to_numpy") else "`numpy.array` makes one of numbers"
        raise InputError(f"{what}: a {type(value).__name__} is no tensor and no NumPy array ({made}).")
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        raise InputError(f"{what} are a NumPy array of {value.dtype}: make it one of numbers.")
    return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))


def _check_alike(name: str, tensors: Sequence[Tensor]) -> None:
    """All devices' rows have one shape, and all are floating-point numbers or none is."""
    for what, kinds in (
        ("the shape", [tuple(tensor.shape[1:]) for tensor in tensors]),
        ("the kind", ["floating-point" if tensor.is_floating_point() else "whole" for tensor in tensors]),
    ):
        (usual, _), *others = Counter(kinds).most_common()
        if others:
            device = next(device for device, kind in enumerate(kinds) if kind != usual)
            raise InputError(
                f"Device {device} has {name} of {what} {kinds[device]}, other devices {usual}: give all devices samples of one "
                "kind."
            )
