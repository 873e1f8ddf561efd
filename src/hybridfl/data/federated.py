"""A fleet's samples: held once, devices are ranges of an index into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.data.pairs import Pair, tensors_of
from hybridfl.errors import InputError, require_seed, require_share
from hybridfl.randomness import generator
from hybridfl.vectors import is_finite

_MOST_EXTREMES = 1000


@dataclass(frozen=True, eq=False)
class Samples:
    """Device i holds the rows `index[offsets[i]:offsets[i + 1]]` of `inputs` and `targets`.

    Inputs may be stored compactly, images as bytes for example: a model sees them as float32 times `scale`.
    """

    inputs: Tensor
    targets: Tensor
    index: NDArray[np.int64]
    offsets: NDArray[np.int64]
    scale: float | None = None

    @classmethod
    def from_devices(cls, devices: Sequence[Pair], scale: float | None = None) -> Samples:
        """One pair (inputs, targets) of tensors or NumPy arrays per device, or one PyTorch dataset of such pairs."""
        pairs = tensors_of(devices)
        sizes = [len(inputs) for inputs, _ in pairs]
        samples = cls(
            inputs=torch.cat([inputs for inputs, _ in pairs]),
            targets=torch.cat([targets for _, targets in pairs]),
            index=np.arange(sum(sizes)),
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            scale=scale,
        )
        return samples.checked()

    @classmethod
    def shared_out(
        cls, inputs: Tensor, targets: Tensor, rows: Sequence[NDArray[np.int64]], scale: float | None = None
    ) -> Samples:
        """One set of samples, shared out as `rows` says: one array of rows a device."""
        return cls(inputs, targets, np.arange(0), np.zeros(1, dtype=np.int64), scale).with_rows(rows)

    def with_rows(self, rows: Sequence[NDArray[np.int64]]) -> Samples:
        """The same inputs and targets, shared out as `rows` says: one array of rows a device."""
        sizes = [len(part) for part in rows]
        index = np.concatenate(rows)
        if index.dtype.kind in "iu" and index.dtype not in (np.int32, np.int64):
            index = index.astype(np.int64)  # PyTorch takes no others for rows
        return replace(self, index=index, offsets=np.concatenate([[0], np.cumsum(sizes)]))

    def with_inputs(self, inputs: Tensor) -> Samples:
        """Other inputs in the same rows."""
        return replace(self, inputs=inputs)

    def of_dtype(self, dtype: torch.dtype) -> Samples:
        """Floating-point inputs and targets as numbers of this type; whole numbers stay what they are."""
        inputs, targets = (each.to(dtype) if each.is_floating_point() else each for each in (self.inputs, self.targets))
        if inputs is self.inputs and targets is self.targets:
            return self
        _check_rounding("inputs", self.inputs, inputs)
        _check_rounding("targets", self.targets, targets)
        return replace(self, inputs=inputs, targets=targets).checked()

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, targets) in these rows, as a model sees them; the shape of `rows` comes first in theirs."""
        flat = rows.reshape(-1)
        inputs, targets = self.inputs.index_select(0, flat), self.targets.index_select(0, flat)
        if self.scale is not None:
            inputs = inputs.float() * self.scale
        return inputs.view(*rows.shape, *inputs.shape[1:]), targets.view(*rows.shape, *targets.shape[1:])

    def drawn(self, count: int, seed: int) -> Samples:
        """At most `count` of all samples, drawn by the seed; devices keep their places, some may be left with none."""
        if count >= len(self.index):
            return self
        chosen = np.sort(generator(seed, "drawn").permutation(len(self.index))[:count])
        return replace(self, index=self.index[chosen], offsets=np.searchsorted(chosen, self.offsets))

    def checked(self) -> Samples:
        """Itself, if every device has samples and all of them are finite; whole-number targets as classes (int64)."""
        for device, count in enumerate(self.num_samples):
            if count == 0:
                raise InputError(f"Device {device} has no samples: leave it out or give it some.")
        self.check_finite()
        return self if self.targets.is_floating_point() else replace(self, targets=self.targets.long())

    def check_finite(self) -> None:
        """Raise `InputError` unless all that devices hold is finite; what no device holds does no harm."""
        for kind, values in (("inputs", self.inputs), ("targets", self.targets)):
            if not values.is_floating_point() or is_finite(values):
                continue
            held = values[torch.from_numpy(self.index)].reshape(len(self.index), -1)
            bad = torch.nonzero(~torch.isfinite(held).all(1)).flatten()
            if len(bad):
                device = self.device_of[int(bad[0])]
                raise InputError(f"Device {device} has NaN or infinite {kind}: clean them or leave the device out.")

    def check_classes(self, count: int, ignored: int | None = None) -> None:
        """Raise `InputError` unless every target is one of `count` classes, counted from 0, or the one to be ignored."""
        lowest, highest = self.targets.aminmax() if len(self.targets) else (0, 0)
        if lowest >= 0 and highest < count:
            return
        held = self.targets[torch.from_numpy(self.index)].reshape(len(self.index), -1)
        is_wrong = (held < 0) | (held >= count)
        places = torch.nonzero(is_wrong if ignored is None else is_wrong & (held != ignored)).tolist()
        if places:  # what no device holds does no harm
            sample, place = places[0]
            raise InputError(
                f"Device {self.device_of[sample]} has the label {held[sample, place]}, but the model has {count} outputs, for "
                f"labels 0 to {count - 1}: give the model more outputs, or number the labels from 0."
            )

    def largest_target(self) -> int:
        """Of those that devices hold, 0 where there are none; for targets that are whole numbers."""
        held = self.targets[torch.from_numpy(self.index)]
        return int(held.max()) if held.numel() else 0

    def extremes(self) -> Tensor:
        """Rows of samples with the largest and the smallest number in every place of the inputs; at most 1,000."""
        held = self.inputs[torch.from_numpy(self.index)].reshape(len(self.index), -1)
        places = torch.cat([held.argmax(0), held.argmin(0)])[:_MOST_EXTREMES]
        anywhere = torch.stack([held.amax(1).argmax(), held.amin(1).argmin()])
        chosen: NDArray[np.int64] = np.unique(torch.cat([anywhere, places]).numpy())
        return torch.from_numpy(self.index[chosen])

    def check_rows(self, who: str) -> None:
        """Raise `InputError` unless every device has samples and its rows are rows of the inputs and the targets."""
        rows = self.index
        if rows.dtype.kind not in "iu":
            raise InputError(
                f"The rows of the {who} samples are {rows.dtype}: give whole numbers, the rows of the inputs."
            )
        offsets = np.asarray(self.offsets)
        if offsets[:1].tolist() != [0] or (np.diff(offsets) < 0).any() or offsets[-1] != len(rows):
            raise InputError(
                f"The offsets of the {who} samples have to go from 0 to the {len(rows)} rows of the index without falling: "
                "device i holds index[offsets[i]:offsets[i + 1]]. Use Samples.with_rows, which makes both."
            )
        if len(self.inputs) != len(self.targets):
            raise InputError(f"The {who} samples are {len(self.inputs)} inputs and {len(self.targets)} targets.")
        bad = np.flatnonzero((rows < 0) | (rows >= len(self.inputs)))
        if len(bad):
            raise InputError(
                f"Device {self.device_of[bad[0]]} has row {rows[bad[0]]} of {len(self.inputs)} {who} samples: rows count "
                "from 0."
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def rows(self, device: int) -> NDArray[np.int64]:
        """The rows of `inputs` and `targets` that belong to one device."""
        return self.index[self.offsets[device] : self.offsets[device + 1]]

    @property
    def device_of(self) -> NDArray[np.int64]:
        """The device of every entry of `index`."""
        return np.repeat(np.arange(len(self)), self.num_samples)

    def pooled(self) -> Samples:
        """The same samples as one device that holds them all."""
        return replace(self, offsets=np.array([0, len(self.index)]))

    def at_place(self, device: int) -> Samples:
        """All of these samples as those of this device, in a fleet whose other devices' samples are elsewhere."""
        return replace(self, offsets=np.array([0] * (device + 1) + [len(self.index)]))

    def split(self, test_share: float = 0.1, seed: int = 0) -> tuple[Samples, Samples]:
        """(train, test): of each device's samples, `test_share` (rounded up, drawn by the seed) are held out.

        A device keeps at least one sample to train on; one with a single sample has none to test on.
        """
        _check_test_share(test_share)
        require_seed(seed)
        train, test = [], []
        for device in range(len(self)):
            rows = generator(seed, "split", device).permutation(self.rows(device))
            held_out = min(int(np.ceil(test_share * len(rows))), len(rows) - 1)
            train.append(np.sort(rows[held_out:]))
            test.append(np.sort(rows[:held_out]))
        return self.with_rows(train), self.with_rows(test)

    def split_in_order(self, test_share: float = 0.1, gap: int = 0) -> tuple[Samples, Samples]:
        """(train, test): of each device's samples the last `test_share` is held out, and `gap` before them are unused.

        For samples that overlap their neighbours, such as windows over a text: with a gap of a window's length less one,
        nothing of a test input is in a training input. A device too short for all three parts has none to test on.
        """
        _check_test_share(test_share)
        train, test = [], []
        for device in range(len(self)):
            rows = self.rows(device)
            usable = len(rows) - gap
            held_out = min(int(np.ceil(test_share * usable)), usable - 1)
            train.append(rows[: usable - held_out] if held_out > 0 else rows)
            test.append(rows[len(rows) - held_out :] if held_out > 0 else rows[:0])
        return self.with_rows(train), self.with_rows(test)


MOST_LOST = 0.01
"""The part of a column's standard deviation that a number in it may lose by rounding."""
ROUNDED_ALREADY = 1e-13
"""A spread of this part of the numbers is what float64 itself has rounded."""


def _check_rounding(kind: str, before: Tensor, after: Tensor) -> None:
    """Refuse numbers that become equal, or nearly, where a narrower type has fewer digits: timestamps, for example."""
    if after is before or after.dtype.itemsize >= before.dtype.itemsize or not before.numel():
        return
    flat = before.reshape(len(before), -1)
    spread, largest = flat.std(0, correction=0), flat.abs().amax(0)
    sides = (torch.split(each, _ROWS_AT_A_TIME) for each in (flat, after.reshape(len(after), -1)))
    lost = torch.stack([(old - new.to(old.dtype)).abs().amax(0) for old, new in zip(*sides, strict=True)]).amax(0)
    bad = torch.nonzero((spread > ROUNDED_ALREADY * largest) & (lost > MOST_LOST * spread)).flatten().tolist()
    if bad:
        column = bad[0]
        raise InputError(
            f"Column {column} of the {kind} loses what it says as {str(after.dtype).removeprefix('torch.')}: its numbers, up "
            f"to {largest[column]:.6g}, differ by {spread[column]:.3g} (standard deviation) and are rounded by up to "
            f"{lost[column]:.3g}. Subtract its mean and divide by its standard deviation first."
        )


_ROWS_AT_A_TIME = 8192


def _check_test_share(share: float) -> None:
    require_share("test_share", share)
    if share >= 1:
        raise InputError(f"test_share={share} leaves nothing to train on: give a number below 1, 0.1 for example.")
