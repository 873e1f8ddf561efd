"""How many samples of which label every device holds, and a small table of it for the terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridfl.data.federated import Samples
from hybridfl.fleet_picture import BARS
from hybridfl.wording import counted

NUM_RANGES = 10
"""Targets that are no classes are counted in this many ranges of equal width."""
NONE = "·"


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """`counts[label, device]` samples. A label is a class, or a range of targets that are no classes."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    are_classes: bool

    @classmethod
    def of(cls, samples: Samples) -> LabelCounts:
        """Of a sample with several targets every one counts."""
        targets = samples.targets.reshape(len(samples.targets), -1).numpy()[samples.index]
        are_classes = not samples.targets.is_floating_point()
        least, most = targets.min(), targets.max()
        if are_classes:
            first = min(0, int(least))
            labels, names = targets - first, [str(label) for label in range(first, int(most) + 1)]
        else:
            edges = np.linspace(least, most, NUM_RANGES + 1)
            labels = np.searchsorted(edges[1:-1], targets, side="right")
            names = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(edges)]
        counts = np.zeros((len(names), len(samples)), dtype=np.int64)
        np.add.at(counts, (labels, samples.device_of[:, None]), 1)
        return cls(tuple(names), counts, are_classes)

    @property
    def word(self) -> str:
        return "label" if self.are_classes else "range of targets"


def table(labels: LabelCounts, devices: Sequence[int], width: int) -> list[str]:
    """A line per device, no longer than `width`: its samples, their shares by label, and the labels it holds most of."""
    sizes = labels.counts.sum(axis=0)
    digits, most = len(str(max(devices))), len(f"{max(sizes[device] for device in devices):,}")
    starts = [f"device {device:>{digits}}  {sizes[device]:>{most},}  " for device in devices]
    together = _labels_per_column(labels, width - len(starts[0]))
    columns = -(-len(labels.names) // together)
    lines = [f"{'':{len(starts[0])}}{_scale(labels, columns, together)}"]
    for device, start in zip(devices, starts, strict=True):
        own = labels.counts[:, device]
        line = start + _shares(own, together)
        lines.append(line + _largest(labels, own, width - len(line)))
    return [line.rstrip() for line in lines]


def legend(labels: LabelCounts, width: int) -> str:
    """What the table's columns and letters mean; `width` is the table's."""
    digits = len(f"device {labels.counts.shape[1] - 1}  {labels.counts.sum(axis=0).max():,}  ")
    together = _labels_per_column(labels, width - digits)
    column = (
        labels.word if together == 1 else counted(together, labels.word, f"{labels.word.replace('range', 'ranges')}s")
    )
    return (
        f"Device, its number of training samples, one column per {column}: ▁ up to an eighth of the device's samples, "
        f"█ more than seven eighths, {NONE} none. Then, where there is room, what it holds most of, as {labels.word}: samples."
    )


def _labels_per_column(labels: LabelCounts, room: int) -> int:
    """One where all labels fit into half of the room."""
    return math.ceil(len(labels.names) / max(NUM_RANGES, room // 2))


def _scale(labels: LabelCounts, columns: int, together: int) -> str:
    """The labels' names where each is one letter, else the first and the last."""
    if together == 1 and all(len(name) == 1 for name in labels.names):
        return "".join(labels.names)
    first, last = labels.names[0].split(" ")[0], labels.names[-1].split(" ")[-1]
    return f"{first}{last:>{max(columns - len(first), len(last) + 1)}}"


def _shares(own: NDArray[np.int64], together: int) -> str:
    sums = np.add.reduceat(own, range(0, len(own), together))
    heights = np.ceil(sums / max(1, own.sum()) * len(BARS)).astype(int)
    return "".join(BARS[height - 1] if height else NONE for height in heights)


def _largest(labels: LabelCounts, own: NDArray[np.int64], room: int) -> str:
    """`  8: 6,990, 9: 331, 5 more`, as far as there is room."""
    held = [label for label in np.argsort(-own, kind="stable") if own[label]]
    text = ""
    for place, label in enumerate(held):
        left = len(held) - place - 1
        longer = f"{text}{',' if text else ' '} {labels.names[label]}: {own[label]:,}"
        if len(longer) + (len(f", {left} more") if left else 0) > room:
            return f"{text}, {len(held) - place} more" if text else ""
        text = longer
    return text
