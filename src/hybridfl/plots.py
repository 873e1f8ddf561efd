"""Figures for print, drawn with Matplotlib: small, vector, the same bytes for the same results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from hybridfl import charts
from hybridfl.charts import Axis, Kind, Look, Quantity
from hybridfl.records import SavedRun
from hybridfl.summary import by_label
from hybridfl.wording import harmless

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.0
"""Inches."""

STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "hybridfl",
}
NO_DATES: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":"}


def write_figures(runs: Sequence[SavedRun], folder: Path) -> list[Path]:
    """Draw every figure that has something to show, as SVG and as PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a label may have letters that no font here has
        for name, draw in FIGURES.items():
            figure = draw(runs)
            if figure is not None:
                for kind, metadata in NO_DATES.items():
                    path = folder / f"{name}.{kind}"
                    path.unlink(missing_ok=True)  # a link is not followed
                    figure.savefig(path, metadata=metadata)
                    figure.set_layout_engine("none")  # laid out once: it takes as long as drawing
                    written.append(path)
    return written


ACCURACIES: Sequence[Quantity] = ("device_accuracy", "test_accuracy")
LOSSES: Sequence[Quantity] = ("train_loss", "test_loss")


def accuracy_time(runs: Sequence[SavedRun]) -> Figure | None:
    """Test accuracy against time, by device and by sample."""
    return _curves(runs, "seconds", ACCURACIES)


def accuracy_version(runs: Sequence[SavedRun]) -> Figure | None:
    """Test accuracy against versions, if any was made."""
    made = any(record.version > 0 and not record.has_diverged for run in runs for record in run.records)
    return _curves(runs, "version", ACCURACIES) if made else None


def loss_time(runs: Sequence[SavedRun]) -> Figure | None:
    """Train and test loss against time, side by side."""
    return _curves(runs, "seconds", LOSSES)


def devices(runs: Sequence[SavedRun]) -> Figure | None:
    """The accuracy on every device's own samples, from the worst to the best: of normal devices, and of stragglers."""
    looks, groups = charts.looks(runs), by_label(runs)
    kinds: list[Kind] = [
        kind
        for kind in ("normal", "slow")
        if any(charts.device_spread(group, kind) is not None for group in groups.values())
    ]
    if not kinds:
        return None
    figure, panels = _figure(ONE_COLUMN * len(kinds), 2.2 + 0.14 * _legend_lines(looks, len(kinds)), columns=len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        for place, (label, look) in enumerate(looks.items()):
            spread = charts.device_spread(groups[label], kind)
            if spread is not None:
                style = {"color": look.colour, "linestyle": DASHES[look.dash], "linewidth": _width(look)}
                dot = "o" if len(spread.share) == 1 else ""
                axes.plot(
                    spread.share, spread.accuracy, marker=dot, markersize=3, zorder=3 - place / len(looks), **style
                )
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(f"{charts.KINDS[kind]}, from the worst to the best")
        axes.set_ylabel("accuracy on its own samples")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    _legend(figure, looks, len(kinds))
    return figure


def stragglers(runs: Sequence[SavedRun]) -> Figure | None:
    """Final accuracy on the normal devices' data and on the stragglers', if there are any."""
    looks, groups = charts.looks(runs), by_label(runs)
    normal = [charts.final(groups[label], "normal_accuracy") for label in looks]
    slow = [charts.final(groups[label], "straggler_accuracy") for label in looks]
    if not np.isfinite(slow).any():
        return None
    colours = [look.colour for look in looks.values()]
    rows = range(len(looks))
    figure, (axes,) = _figure(ONE_COLUMN, 0.7 + 0.2 * len(looks))
    axes.hlines(rows, slow, normal, colors=colours, linewidth=1.2)
    axes.scatter(slow, rows, s=22, c=colours, zorder=3)
    axes.scatter(normal, rows, s=22, facecolors="white", edgecolors=colours, zorder=3)
    axes.set_yticks(rows, _texts(looks))
    axes.set_ylim(len(looks) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_xlabel("final test accuracy")
    dot: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linestyle": "", "markeredgecolor": charts.GREY}
    figure.legend(
        handles=[
            Line2D([], [], markerfacecolor=charts.GREY, label="stragglers' data", **dot),
            Line2D([], [], markerfacecolor="white", label="normal devices' data", **dot),
        ],
        loc="outside upper center",
        ncols=2,
    )
    return figure


def staleness(runs: Sequence[SavedRun]) -> Figure | None:
    """The share of merged updates by staleness, in percent, a row an algorithm."""
    bins = charts.staleness_bins(runs)
    if not bins:
        return None
    looks, groups = charts.looks(runs), by_label(runs)
    shares = np.array([charts.staleness_shares(groups[label], bins) for label in looks])
    figure, (axes,) = _figure(max(ONE_COLUMN, 1.6 + 0.3 * len(bins)), 0.7 + 0.2 * len(looks))
    axes.pcolormesh(shares, cmap=_colours(charts.NONE_TO_ALL), vmin=0, vmax=1, edgecolors="white", linewidth=1)
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            ink = "white" if share > 0.5 else "black"
            axes.text(column + 0.5, row + 0.5, f"{100 * share:.0f}", ha="center", va="center", fontsize=6, color=ink)
    axes.set_xticks(np.arange(len(bins)) + 0.5, [charts.bin_name(each).replace("–", "–\n") for each in bins])
    axes.set_yticks(np.arange(len(looks)) + 0.5, _texts(looks))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.tick_params(axis="x", labelsize=6)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("staleness (versions)")
    axes.set_title("% of merged updates", loc="right", fontsize=7)
    return figure


def timeline(runs: Sequence[SavedRun]) -> Figure | None:
    """What the devices of the first seed's HFL did at the start, or those of the first run that there is."""
    groups, end = by_label(runs), charts.timeline_end(runs)
    run = groups[next(iter(charts.looks(runs)))][0]
    shown = charts.timeline(run, end)
    if not shown.bars:
        return None
    merged = [bar for bar in shown.bars if bar.arrival.is_merged]
    in_vain = [bar for bar in shown.bars if not bar.arrival.is_merged]
    most = max((bar.arrival.staleness for bar in merged), default=0)
    colours = ScalarMappable(Normalize(0, max(most, 1)), _colours(charts.FRESH_TO_STALE))

    figure, (axes,) = _figure(TWO_COLUMNS, 0.9 + 0.115 * len(shown.devices))
    axes.vlines(shown.made, -0.5, len(shown.devices) - 0.5, colors="0.85", linewidth=0.5, zorder=0)
    bar_style: dict[str, Any] = {"linewidth": 0.9, "edgecolor": "white"}
    axes.barh(*_spans(merged), color=colours.to_rgba(np.array([bar.arrival.staleness for bar in merged])), **bar_style)
    axes.barh(*_spans(in_vain), color="0.85", hatch="//////", **bar_style)
    for bar in merged:
        axes.plot([bar.arrival.arrived_at, bar.merged_at], [bar.row] * 2, color="0.2", linewidth=0.5)
    rows = [bar.row for bar in merged]
    axes.scatter(
        [bar.merged_at for bar in merged], rows, s=5, color="black", edgecolors="white", linewidth=0.4, zorder=3
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, end)
    axes.set_ylim(len(shown.devices) - 0.4, -0.6)
    axes.set_yticks(range(len(shown.devices)), [str(device) for device in shown.devices], fontsize=5.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("device, the fastest first")
    axes.set_xlabel(charts.seconds_of(runs))
    axes.set_title(_text(run.label), loc="left")
    if most > 0:
        key = figure.colorbar(colours, ax=axes, fraction=0.03, pad=0.01, ticks=MaxNLocator(5, integer=True))
        key.set_label("staleness (versions)")
        key.outline.set_visible(False)
    handles: list[Any] = [
        Line2D([], [], color="k", marker=".", markersize=5, linewidth=0.5, label="waits, then is merged"),
        Line2D([], [], color="0.75", linewidth=0.8, label="a version is made"),
    ]
    if in_vain:
        handles.append(Patch(facecolor="0.85", edgecolor="white", hatch="//////", label="not merged"))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)
    return figure


FIGURES: dict[str, Callable[[Sequence[SavedRun]], Figure | None]] = {
    "accuracy-time": accuracy_time,
    "accuracy-version": accuracy_version,
    "loss-time": loss_time,
    "devices": devices,
    "stragglers": stragglers,
    "staleness": staleness,
    "timeline": timeline,
}


def _curves(runs: Sequence[SavedRun], axis: Axis, wanted: Sequence[Quantity]) -> Figure | None:
    """One panel per quantity that the runs know; beneath them, one legend for all."""
    quantities = [quantity for quantity in wanted if quantity in charts.quantities(runs)]
    if not quantities:
        return None
    looks = charts.looks(runs)
    height = 2.2 + 0.14 * _legend_lines(looks, len(quantities))
    figure, panels = _figure(ONE_COLUMN * len(quantities), height, columns=len(quantities))
    for axes, quantity in zip(panels, quantities, strict=True):
        by_algorithm = charts.curves(runs, axis, quantity)
        for place, (label, look) in enumerate(looks.items()):
            _draw(axes, by_algorithm[label].corners(), look, zorder=3 - place / len(looks))
        axes.margins(x=0)
        axes.set_xlabel(charts.axes_of(runs)[axis])
        axes.set_ylabel(charts.QUANTITIES[quantity])
        if axis == "version":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda version, _: f"{version:,.0f}"))
        if charts.is_share(quantity):
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        elif charts.is_wide(runs, quantity):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    _legend(figure, looks, len(quantities))
    return figure


def _legend_lines(looks: Mapping[str, Look], columns: int) -> int:
    return -(-len(looks) // (2 * columns))


def _legend(figure: Figure, looks: Mapping[str, Look], columns: int) -> None:
    """One for all panels, beneath them."""
    handles = [
        Line2D([], [], color=look.colour, linestyle=DASHES[look.dash], linewidth=_width(look), label=text)
        for look, text in zip(looks.values(), _texts(looks), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns)


def _draw(axes: Axes, curve: charts.Curve, look: Look, zorder: float) -> None:
    """A line, and a band from the least to the greatest seed. A run of one record is a dot."""
    dot = "o" if len(curve.x) == 1 else ""
    axes.fill_between(
        curve.x, curve.low, curve.high, step="post", color=look.colour, alpha=look.band, linewidth=0, zorder=zorder - 2
    )
    axes.plot(
        curve.x,
        curve.mean,
        marker=dot,
        markersize=3,
        color=look.colour,
        linestyle=DASHES[look.dash],
        linewidth=_width(look),
        drawstyle="steps-post",
        zorder=zorder,
    )
    if curve.end is not None:  # a seed diverges there
        axes.plot(*([each] for each in curve.end), marker="x", markersize=5, color=look.colour, zorder=zorder + 1)


def _spans(bars: Sequence[charts.Bar]) -> tuple[list[int], list[float], float, list[float]]:
    """What `barh` wants: rows, widths, height, left ends."""
    arrivals = [bar.arrival for bar in bars]
    return (
        [bar.row for bar in bars],
        [arrival.arrived_at - arrival.sent_at for arrival in arrivals],
        0.72,
        [arrival.sent_at for arrival in arrivals],
    )


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure that pyplot does not know of, and its panels."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False).flat)


def _colours(stops: Sequence[str]) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("", list(stops))


def _width(look: Look) -> float:
    """Lines are thinner on paper than on a screen."""
    return look.width * 0.6


def _text(label: str) -> str:
    """A label as Matplotlib takes it: a dollar sign would start a formula."""
    return charts.short(harmless(label)).replace("$", r"\$")


def _texts(labels: Iterable[str]) -> list[str]:
    """Labels as Matplotlib takes them, each unlike the others."""
    return [_text(name) for name in charts.names(map(harmless, labels)).values()]
