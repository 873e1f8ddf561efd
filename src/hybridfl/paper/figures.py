"""Figures of studies: each is a function of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from hybridfl.charts import GREY, VERMILLION
from hybridfl.interval import Interval
from hybridfl.paper import ablation, convergence, lambda_0, learning_curves, search
from hybridfl.paper.results import Result, labels, of
from hybridfl.paper.study import Study
from hybridfl.paper.verdict import DRIFT, OURS, PRINTED, final
from hybridfl.plots import NO_DATES, STYLE, TWO_COLUMNS
from hybridfl.summary import Floats, held

Draw = Callable[[Sequence[Result]], Figure]


@dataclass(frozen=True)
class Look:
    """A line's colour and dashes."""

    colour: str
    dash: str = "-"
    width: float = 1.0
    band: float = 0.0
    """How opaque the band from the least to the greatest seed is; with all of them, nothing could be told apart."""


LOOKS = {
    learning_curves.SSGD_: Look(GREY, ":"),
    learning_curves.PRESET: Look("#7A0177", "-", 1.6),
    DRIFT: Look("#CC79A7", "-", 1.4, 0.15),
    OURS: Look(VERMILLION, "-", 1.6, 0.15),
    learning_curves.BY_DEVICE: Look(VERMILLION, "-."),
    PRINTED: Look(VERMILLION, "--"),
    learning_curves.FEDAVG: Look("#0072B2", band=0.1),
    learning_curves.UNIFORM: Look("#0072B2", "--"),
    learning_curves.FEDPROX: Look("#009E73"),
    learning_curves.FEDASYNC: Look("#E69F00", "--"),
    learning_curves.FEDBUFF: Look("#E69F00"),
    "FedAvg with everyone": Look("#0072B2"),
    lambda_0.PRINTED: Look(VERMILLION),
    lambda_0.NORMALISED: Look(VERMILLION, "--"),
    lambda_0.BY_STALENESS: Look("#0072B2"),
    lambda_0.CONSTANT: Look("#009E73"),
}
OTHERS = Look("#56B4E9")
FAILED = 0.3
"""A final accuracy below this, or none, is that of training that diverged."""


def save(study: Study, results: Sequence[Result], aside: Mapping[str, Any] | None, path: Path) -> None:
    """Draw the figure of a study: the same bytes for the same results."""
    with mpl.rc_context(STYLE):
        figure = theorems(results, aside) if aside is not None else _draw_of(study)(results)
        figure.savefig(path, metadata=NO_DATES.get(path.suffix[1:]), dpi=150)


def _draw_of(study: Study) -> Draw:
    if study in learning_curves.STUDIES:
        return curves
    if study in ablation.STUDIES:
        return corrections
    if study in search.STUDIES:
        return grid
    if study in lambda_0.STUDIES:
        return lambda results: sweep(results, "λ_0", series=lambda label: label.split(", λ_0")[0])
    if all(arm.max_delay == 10 for arm in study.arms):
        return lambda results: sweep(results, "share of stragglers")
    return lambda results: sweep(results, "longest delay of a straggler (s)")


def curves(results: Sequence[Result]) -> Figure:
    """Test accuracy above, training loss below; against versions on the left, against virtual time on the right."""
    figure = Figure(figsize=(TWO_COLUMNS, 5.0), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row")
    most = max(
        result.versions[-1] for label in labels(results) for result in of(results, label) if label == labels(results)[0]
    )
    for row, quantity in enumerate(("accuracy", "loss")):
        for column, axis in enumerate(("versions", "seconds")):
            axes = panels[row][column]
            for label in labels(results):
                _draw_curve(axes, of(results, label), axis, quantity, most)
            if axis == "seconds":
                axes.set_xscale("log")
                axes.set_xlim(left=1)
                axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,.0f}"))
            axes.margins(x=0)
        (_percent if quantity == "accuracy" else _log_loss)(panels[row][0])
        panels[row][0].set_ylabel("test accuracy" if quantity == "accuracy" else "training loss")
    panels[1][0].set_xlabel("rounds (versions of the joint model)")
    panels[1][1].set_xlabel("virtual seconds")
    _legend(figure, panels[0][0], columns=4)
    return figure


def _draw_curve(axes: Axes, group: Sequence[Result], axis: str, quantity: str, most: int) -> None:
    """The mean over seeds and a band from the least to the greatest."""
    instants = [np.array(getattr(result, axis), dtype=np.float64) for result in group]
    grid = np.unique(np.concatenate(instants))
    grid = grid[grid <= min(each[-1] for each in instants)]
    if axis == "versions":
        grid = grid[grid <= most]
    values = np.array([held(grid, at, _column(result, quantity)) for at, result in zip(instants, group, strict=True)])
    look = LOOKS.get(group[0].label, OTHERS)
    if look.band:
        axes.fill_between(
            grid, values.min(0), values.max(0), step="post", color=look.colour, alpha=look.band, linewidth=0
        )
    axes.plot(
        grid,
        values.mean(0),
        color=look.colour,
        linestyle=look.dash,
        linewidth=look.width,
        drawstyle="steps-post",
        label=group[0].label,
    )


def _column(result: Result, quantity: str) -> Floats:
    return np.array(result.accuracy if quantity == "accuracy" else result.loss, dtype=np.float64)


def sweep(results: Sequence[Result], axis: str, series: Callable[[str], str] = str) -> Figure:
    """Final accuracy and final training loss against what is swept: means with 95 % intervals over seeds."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.7), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, quantity in zip(panels, ("final_accuracy", "final_loss"), strict=True):
        for name in dict.fromkeys(series(label) for label in labels(results)):
            group = [result for result in results if series(result.label) == name]
            points = sorted({result.at for result in group if result.at is not None})
            at_point = [
                Interval.of([getattr(result, quantity) for result in group if result.at == point]) for point in points
            ]
            look = LOOKS.get(name, OTHERS)
            axes.errorbar(
                points,
                [interval.mean for interval in at_point],
                yerr=[min(interval.half, 10.0) for interval in at_point],
                color=look.colour,
                linestyle=look.dash,
                linewidth=look.width,
                elinewidth=0.6,
                capsize=1.5,
                marker="o",
                markersize=2.5,
                label=name,
            )
        axes.set_xlabel(axis)
        if axis.startswith("share"):
            _whole_percents(axes.xaxis)
    _percent(panels[0])
    panels[0].set_ylim(bottom=max(0.0, panels[0].get_ylim()[0]))
    panels[0].set_ylabel("final test accuracy")
    panels[1].set_ylabel("final training loss")
    _log_loss(panels[1])
    _legend(figure, panels[0], columns=5)
    return figure


def corrections(results: Sequence[Result]) -> Figure:
    """Final accuracy by correction, with the memory and with arrivals only, for both schedules.

    Means with 95 % intervals over seeds. What diverged is named at the edge: to scale, it would leave no room for the rest.
    """
    figure = Figure(figsize=(TWO_COLUMNS, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    names = list(dict.fromkeys(_correction(label) for label in labels(results)))
    found = {label: final(results, label) for label in labels(results)}
    left = min((each.mean for each in found.values() if each.mean > FAILED), default=FAILED) - 0.05
    for axes, schedule, title in zip(
        panels, ablation.SCHEDULES, ("η_t = 0.1/(1 + t)", "η_t = 0.1/√(1 + t)"), strict=True
    ):
        for kind, colour in ((ablation.MEMORY, VERMILLION), (ablation.ARRIVALS, "#0072B2")):
            group = [label for label in labels(results) if label.startswith(kind) and label.endswith(f"({schedule})")]
            intervals = [found[label] for label in group]
            axes.errorbar(
                [interval.mean for interval in intervals],
                [names.index(_correction(label)) for label in group],
                xerr=[min(interval.half, 1.0) for interval in intervals],
                fmt="o",
                markersize=3.5,
                elinewidth=0.7,
                color=colour,
                label=kind,
            )
            for row in [names.index(_correction(label)) for label in group if not found[label].mean >= left]:
                axes.annotate("← diverged", (left, row), color=GREY, va="center", fontsize=6)
        axes.set_xlim(left=left)
        axes.set_title(title)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(axis="y", linewidth=0.3, color="0.85")
        _whole_percents(axes.xaxis)
        axes.set_xlabel("final test accuracy")
    _legend(figure, panels[0], columns=2)
    return figure


def _correction(label: str) -> str:
    """`memory: rank-one, trust 0.3 (sqrt)` is `rank-one, trust 0.3`."""
    return label.split(": ", 1)[1].rsplit(" (", 1)[0]


def grid(results: Sequence[Result]) -> Figure:
    """Accuracy on held-out images of every setting of the search, a row a variant."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.4), layout="constrained")
    axes = figure.subplots()
    variants = [
        variant for variant in search.VARIANTS if any(result.label.startswith(variant + ":") for result in results)
    ]
    for row, variant in enumerate(variants):
        for schedule, colour in zip(search.SCHEDULES, ("#0072B2", "#009E73", VERMILLION), strict=True):
            group = [label for label in labels(results) if label.startswith(f"{variant}: {schedule},")]
            means = [float(np.mean([result.final_accuracy for result in of(results, label)])) for label in group]
            axes.scatter(means, [row] * len(means), s=14, color=colour, alpha=0.8, label=schedule if row == 0 else None)
    axes.set_yticks(range(len(variants)), variants)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.grid(axis="y", linewidth=0.3, color="0.85")
    _whole_percents(axes.xaxis)
    axes.set_xlabel("final accuracy on held-out training images, mean over seeds; a dot a setting of η_0 and E")
    _legend(figure, axes, columns=3)
    return figure


def theorems(results: Sequence[Result], aside: Mapping[str, Any]) -> Figure:
    """F(w_t) − F* and the rate; Theorem 1's bound above it; Theorem 2's bound and min ‖∇F‖²."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.8), layout="constrained")
    rate, first, second = figure.subplots(1, 3)
    seeds = aside["seeds"]
    for label in labels(results):
        look = LOOKS.get(label, OTHERS)
        for place, (result, seed) in enumerate(zip(of(results, label), seeds, strict=True)):
            after = np.array(result.versions) + convergence.MAX_DELAY
            line: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "linewidth": 0.8}
            gaps = convergence.gaps(result.loss, seed)
            rate.plot(after, gaps, label=label if place == 0 else None, **line)
            if label == OURS:
                first.plot(after, gaps, **line)
                bound = convergence.first_bound(seed, label, np.array(result.versions, dtype=np.float64))
                first.plot(after, bound, color=GREY, linewidth=0.8)
    start = rate.get_ylim()[1]
    span = np.array([convergence.MAX_DELAY, max(result.versions[-1] for result in results) + convergence.MAX_DELAY])
    rate.plot(span, start * span[0] / span, color="black", linestyle=":", linewidth=0.8, label="∝ 1/(t + τ)")
    for seed in seeds:
        rounds, least, bound = convergence.squared_gradients(seed, OURS)
        second.plot(rounds, least, color=VERMILLION, linewidth=0.8)
        second.plot(rounds, bound, color=GREY, linewidth=0.8)
    for axes in (rate, first, second):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rounds, _: f"{rounds:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    _log_loss(rate)
    rate.set_xlabel("t + τ")
    rate.set_title("F(w_t) − F*", loc="left")
    first.set_xlabel("t + τ")
    first.set_title("HFL's, and Theorem 1's bound (grey)", loc="left", fontsize=7)
    second.set_xlabel("T")
    second.set_title("HFL's min ‖∇F‖², and Theorem 2's (grey)", loc="left", fontsize=7)
    _legend(figure, rate, columns=4)
    return figure


def _percent(axes: Axes) -> None:
    _whole_percents(axes.yaxis)


def _whole_percents(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def _log_loss(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
