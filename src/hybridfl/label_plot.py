"""A picture of a partition: how many samples of which label every device holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hybridfl.charts import VERMILLION
from hybridfl.label_counts import LabelCounts
from hybridfl.plots import NO_DATES, STYLE, TWO_COLUMNS

DOTS: dict[str, Any] = {"color": VERMILLION, "alpha": 0.6}


def write_label_plot(labels: LabelCounts, title: str, path: Path) -> None:
    """Devices from left to right, labels from bottom to top; a dot's area is the number of samples, the bars their sum.

    Dots are never so small that they cannot be seen: the last of the legend's is for all those.
    """
    counts = labels.counts
    devices, rows = np.arange(counts.shape[1]), np.arange(counts.shape[0])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(TWO_COLUMNS, 3.4), layout="constrained")
        bars, dots = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        sizes = counts.sum(axis=0)
        bars.bar(devices, sizes, width=0.8, color="#9CA3AF")
        bars.set_yscale("log" if sizes.max() > 10 * sizes.min() else "linear")
        bars.set_ylabel("samples")
        bars.set_title(title, loc="left")
        label, device = np.nonzero(counts)
        widest = min(0.9 * max(72 * 0.8 * TWO_COLUMNS / max(len(devices), 20), 9.0), _row_height(len(rows)))
        smallest = min(3.0, 60.0 / len(rows))
        areas = np.maximum(counts[label, device] / counts.max() * widest**2, smallest)
        dots.scatter(device, label, s=areas, linewidths=0, **DOTS)
        shown = rows[:: -(-len(rows) // 20)]
        dots.set_yticks(shown, [labels.names[row] for row in shown])
        dots.set_ylim(-0.8, len(rows) - 0.2)
        dots.set_xlim(-1, len(devices))
        dots.xaxis.get_major_locator().set_params(integer=True)
        dots.set_xlabel("device")
        dots.set_ylabel("label" if labels.are_classes else "target")
        most = int(counts.max())
        seen = int(smallest / widest**2 * most)
        references = [count for count in reference_sizes(most) if count > seen]
        names = [f"{count:,}" for count in references] + ([f"≤ {seen:,}"] if seen > 0 else [])
        shown_areas = [count / most * widest**2 for count in references] + ([smallest] if seen > 0 else [])
        handles = [Line2D([], [], ls="", marker="o", mew=0, ms=area**0.5, **DOTS) for area in shown_areas]
        figure.legend(handles, names, title="samples", title_fontsize=7, loc="outside right center", labelspacing=1.0)
        figure.savefig(path, metadata=NO_DATES.get(path.suffix[1:]), dpi=150)


def _row_height(rows: int) -> float:
    """In points, and a little more: the dots of neighbouring labels may touch; where there are many they may overlap."""
    return max(18.0, 1.1 * 72 * 2.0 / (rows + 1))


def reference_sizes(most: int) -> list[int]:
    """At most three round numbers of samples, the largest first, each about a quarter of the one before."""
    sizes = [_rounded_down(most / 4**step) for step in range(3)]
    return sorted({size for size in sizes if size > 0}, reverse=True)


def _rounded_down(value: float) -> int:
    """To 1, 2 or 5 times a power of ten."""
    power = 10 ** (len(str(int(value))) - 1)
    return max((step * power for step in (1, 2, 5) if step * power <= value), default=0)
