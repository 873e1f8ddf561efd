"""A picture of a partition: how many samples of which label every device holds."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hybridfl.charts import VERMILLION
from hybridfl.data.federated import Samples
from hybridfl.plots import NO_DATES, STYLE, TWO_COLUMNS


def label_counts(samples: Samples) -> NDArray[np.int64]:
    """[labels, devices]: how many samples of each label each device holds."""
    labels = samples.targets.numpy()[samples.index]
    counts = np.zeros((int(labels.max()) + 1, len(samples)), dtype=np.int64)
    np.add.at(counts, (labels, samples.device_of), 1)
    return counts


def write_label_plot(samples: Samples, title: str, path: Path) -> None:
    """Devices from left to right, labels from bottom to top; a dot's area is the number of samples, the bars their sum."""
    counts = label_counts(samples)
    devices, labels = np.arange(counts.shape[1]), np.arange(counts.shape[0])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(TWO_COLUMNS, 3.4), layout="constrained")
        bars, dots = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        sizes = counts.sum(axis=0)
        bars.bar(devices, sizes, width=0.8, color="#9CA3AF")
        bars.set_yscale("log" if sizes.max() > 10 * sizes.min() else "linear")
        bars.set_ylabel("samples")
        bars.set_title(title, loc="left")
        label, device = np.nonzero(counts)
        widest = 72 * TWO_COLUMNS / max(len(devices), 20)
        areas = counts[label, device] / counts.max() * (0.9 * max(widest, 9.0)) ** 2
        smallest = min(3.0, 60.0 / len(labels))
        dots.scatter(device, label, s=np.maximum(areas, smallest), color=VERMILLION, alpha=0.6, linewidths=0)
        dots.set_yticks(labels[:: -(-len(labels) // 20)])
        dots.set_ylim(-0.8, len(labels) - 0.2)
        dots.set_xlim(-1, len(devices))
        dots.set_xlabel("device")
        dots.set_ylabel("label")
        figure.savefig(path, metadata=NO_DATES.get(path.suffix[1:]), dpi=150)
