"""The interactive figures of the report: what plotly.js draws, and the controls that choose between figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridfl import charts
from hybridfl.charts import KINDS, QUANTITIES, Axis, Kind, Quantity
from hybridfl.records import SavedRun
from hybridfl.summary import Floats, by_label
from hybridfl.wording import in_html

WHITE, BLACK, INK, INK_SOFT = "#FFFFFF", "#000000", "#1F2933", "#374151"
AXIS, LINE, GRID, HATCHED = "#9AA3AD", "#D1D5DB", "#EEF0F2", "#E5E7EB"
"""On a light page. The page has the colours that stand for these on a dark one."""

MOST_LETTERS = 200
"""Of a reason, and of a name beside an axis."""

Figure = dict[str, Any]
"""What plotly.js draws: `data` and `layout`."""

X_AXES: dict[Axis, Figure] = {
    "seconds": {"hoverformat": ".1f"},
    "version": {"type": "log", "dtick": 1, "tickformat": ",d", "hoverformat": ",d"},
}
ACCURACY_AXIS: Figure = {"tickformat": ".0%", "rangemode": "tozero"}
LOSS_AXIS: Figure = {
    "type": "log",
    "tickvals": [digit * 10.0**power for power in range(-6, 9) for digit in (1, 2, 5)],
    "tickformat": "~g",
}


@dataclass(frozen=True)
class Control:
    """A row of buttons, of which one is pressed."""

    title: str
    choices: Mapping[Any, str]
    """What is written on a button, by the word that stands for it in a figure's key."""


@dataclass(frozen=True)
class Panel:
    """A part of the page with figures in one place, of which the controls show one.

    A figure's key is what its controls say, in their order, with spaces between; a panel without controls has one figure,
    whose key is empty. Traces whose `meta` is one of the `options` can be switched off.
    """

    name: str
    title: str
    caption: str
    figures: Mapping[str, Figure]
    controls: Sequence[Control] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def panels(runs: Sequence[SavedRun], target: float) -> list[Panel]:
    """All panels of the page; one without figures has nothing to show."""
    groups, end, axes = by_label(runs), charts.timeline_end(runs), charts.axes_of(runs)
    quantities, devices = charts.quantities(runs), devices_figures(runs)
    seeds = max(len(group) for group in groups.values())
    band = " The line is the mean over seeds, the band reaches from the least to the greatest." if seeds > 1 else ""
    keys = {str(place): label for place, label in enumerate(charts.looks(runs)) if groups[label][0].arrivals}
    names = charts.names(groups)
    return [
        Panel(
            "curves",
            "Learning curves",
            f"A joint model counts until the next one is made, hence the steps.{band} A click on a name hides it, a double "
            "click hides all others. Drag to zoom in, double-click to zoom out.",
            {
                f"{quantity} {axis}": curves_figure(runs, axis, quantity, target)
                for quantity in quantities
                for axis in axes
            },
            (Control("show", quantities), Control("against", axes)),
            {"band": "spread over seeds"} if seeds > 1 else {},
        ),
        Panel(
            "devices",
            "Whom the model serves",
            "Every device's accuracy on its own test samples under the last model, from the worst device to the best, all "
            "seeds together: a line that stays at 0 % for long leaves that share of the devices with nothing.",
            devices,
            (Control("show", {kind: text for kind, text in KINDS.items() if kind in devices}),),
        ),
        Panel(
            "stragglers",
            "Whose data the model serves",
            "Final test accuracy by sample on the data of normal devices and of stragglers, mean over seeds. A device with "
            "many samples decides much of it.",
            stragglers_figure(runs),
        ),
        Panel(
            "staleness",
            "Staleness",
            "Percent of the merged updates, by the number of versions made between sending a job and merging its update.",
            staleness_figure(runs),
        ),
        Panel(
            "timeline",
            "What the devices do",
            f"The first {end:.3g} {charts.seconds_of(runs)} of the first seed: a bar is a job, from sending the "
            f"weights until the update arrives. At most {charts.MOST_DEVICES} devices are shown, evenly spread from the "
            "fastest to the slowest.",
            {key: timeline_figure(groups[label][0], end) for key, label in keys.items()},
            (Control("algorithm", {key: names[label] for key, label in keys.items()}),),
        ),
    ]


def curves_figure(runs: Sequence[SavedRun], axis: Axis, quantity: Quantity, target: float) -> Figure:
    """One line and one band an algorithm."""
    is_accuracy = charts.is_share(quantity)
    by_algorithm, names = charts.curves(runs, axis, quantity), charts.names(by_label(runs))
    bands, lines, marks = [], [], []
    for place, (label, look) in enumerate(charts.looks(runs).items()):
        curve = by_algorithm[label]
        shared: Figure = {"type": "scatter", "legendgroup": str(place), "x": _numbers(curve.x)}
        edge = {"mode": "lines", "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip", "showlegend": False}
        if (curve.low != curve.high).any():
            fill = {"fill": "tonexty", "fillcolor": _transparent(look.colour, look.band)}
            corners = curve.corners()
            at = {"x": _numbers(corners.x), "meta": "band"}
            bands += [
                {**shared, **edge, **at, "y": _numbers(corners.low)},
                {**shared, **edge, **at, **fill, "y": _numbers(corners.high)},
            ]
        lines.append(
            {
                **shared,
                "y": _numbers(curve.mean),
                "name": in_html(names[label]),
                "mode": "lines" if len(curve.x) > 1 else "markers",
                "line": {"color": look.colour, "width": look.width, "dash": look.dash, "shape": "hv"},
                "marker": {"color": look.colour, "size": 8},
                "zorder": len(by_algorithm) - place,
                "hovertemplate": "%{y:.1%}" if is_accuracy else "%{y:.3f}",
            }
        )
        if curve.end is not None:
            marks.append(_diverged({**shared, "x": [curve.end[0]], "y": [curve.end[1]]}, look.colour, names[label]))
    layout = _layout(
        height=480,
        xaxis={"title": {"text": charts.axes_of(runs)[axis]}, "uirevision": axis, **X_AXES[axis]},
        yaxis={
            "title": {"text": QUANTITIES[quantity]},
            "uirevision": quantity,
            **(ACCURACY_AXIS if is_accuracy else LOSS_AXIS if charts.is_wide(runs, quantity) else {}),
        },
        hovermode="x unified",
    )
    if quantity == "test_accuracy" and math.isfinite(target):
        layout["shapes"] = [_line({"color": charts.GREY, "width": 1, "dash": "dash"}, y=target)]
        layout["annotations"] = [_target_name(target)]
        layout["margin"]["r"] = 60
    return {"data": [*bands, *lines, *marks], "layout": layout}


def _diverged(at: Figure, colour: str, name: str) -> Figure:
    """The mark at the end of a curve of which a seed diverged."""
    return {
        **at,
        "mode": "markers",
        "marker": {"symbol": "x", "size": 11, "color": colour},
        "name": f"{in_html(name)} diverges",
        "hovertemplate": "diverges",
        "showlegend": False,
    }


def devices_figures(runs: Sequence[SavedRun]) -> dict[str, Figure]:
    """One figure per kind of devices that has test samples; nothing where no run says how each device fares."""
    return {kind: figure for kind in KINDS if (figure := devices_figure(runs, kind)) is not None}


def devices_figure(runs: Sequence[SavedRun], kind: Kind) -> Figure | None:
    """One line per algorithm over the devices of one kind, the worst device on the left."""
    looks, groups = charts.looks(runs), by_label(runs)
    names, lines = charts.names(groups), []
    for place, (label, look) in enumerate(looks.items()):
        spread = charts.device_spread(groups[label], kind)
        if spread is not None:
            lines.append(
                {
                    "type": "scatter",
                    "mode": "lines" if len(spread.share) > 1 else "markers",
                    "legendgroup": str(place),
                    "name": in_html(names[label]),
                    "x": _numbers(spread.share),
                    "y": _numbers(spread.accuracy),
                    "line": {"color": look.colour, "width": look.width, "dash": look.dash},
                    "marker": {"color": look.colour, "size": 8},
                    "zorder": len(looks) - place,
                    "hovertemplate": "%{y:.0%}",
                }
            )
    if not lines:
        return None
    layout = _layout(
        height=400,
        xaxis={
            "title": {"text": f"{KINDS[kind]}, from the worst to the best"},
            "tickformat": ".0%",
            "hoverformat": ".0%",
            "range": [0, 1],
            "uirevision": kind,
        },
        yaxis={"title": {"text": "accuracy on its own samples"}, "range": [-0.02, 1.02], **ACCURACY_AXIS},
        hovermode="x unified",
    )
    return {"data": lines, "layout": layout}


def _line(line: Figure, x: float | None = None, y: float | None = None) -> Figure:
    """A line across the whole figure, beneath everything: upright at `x`, or level at `y`."""
    xs = {"xref": "paper", "x0": 0, "x1": 1} if x is None else {"x0": x, "x1": x}
    ys = {"yref": "paper", "y0": 0, "y1": 1} if y is None else {"y0": y, "y1": y}
    return {"type": "line", "layer": "below", "line": line, **xs, **ys}


def _target_name(target: float) -> Figure:
    """What the target's line is called, beside its right end."""
    text = {"text": f"target<br>{100 * target:.1f} %", "font": {"size": 11, "color": charts.GREY}, "align": "left"}
    return {**text, "xref": "paper", "x": 1, "y": target, "xanchor": "left", "xshift": 4, "showarrow": False}


def stragglers_figure(runs: Sequence[SavedRun]) -> dict[str, Figure]:
    """A dumbbell an algorithm; nothing if no fleet has stragglers."""
    looks, groups = charts.looks(runs), by_label(runs)
    names = charts.names(groups)
    ends = {
        label: (charts.final(groups[label], "straggler_accuracy"), charts.final(groups[label], "normal_accuracy"))
        for label in looks
    }
    if all(math.isnan(slow) for slow, _ in ends.values()):
        return {}
    dumbbells = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": _numbers(ends[label]),
            "y": [row, row],
            "line": {"color": look.colour, "width": 2.5},
            "marker": {"size": 12, "color": [look.colour, WHITE], "line": {"color": look.colour, "width": 2.5}},
            "text": ["stragglers' data", "normal devices' data"],
            "customdata": [in_html(names[label])] * 2,
            "hovertemplate": "%{customdata}<br>%{text}: %{x:.1%}<extra></extra>",
            "showlegend": False,
        }
        for row, (label, look) in enumerate(looks.items())
    ]
    keys = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": name,
            "marker": {"size": 12, "color": colour, "line": {"color": charts.GREY, "width": 2.5}},
            "hoverinfo": "skip",
        }
        for name, colour in (("stragglers' data", charts.GREY), ("normal devices' data", WHITE))
    ]
    layout = _layout(
        height=110 + 32 * len(looks),
        xaxis={"title": {"text": "final test accuracy"}, "tickformat": ".0%"},
        yaxis=_rows([names[label] for label in looks]),
        hovermode="closest",
    )
    return {"": {"data": [*dumbbells, *keys], "layout": layout}}


def staleness_figure(runs: Sequence[SavedRun]) -> dict[str, Figure]:
    """A row an algorithm, a column a bin of staleness; nothing if nothing was merged."""
    bins = charts.staleness_bins(runs)
    if not bins:
        return {}
    looks, groups = charts.looks(runs), by_label(runs)
    names = charts.names(groups)
    shares = [charts.staleness_shares(groups[label], bins) for label in looks]
    heatmap = {
        "type": "heatmap",
        "x": list(range(len(bins))),
        "y": list(range(len(looks))),
        "z": [_numbers(row) for row in shares],
        "customdata": [[charts.bin_name(each) for each in bins]] * len(looks),
        "hovertemplate": "staleness %{customdata}: %{z:.1%} of the merged updates<extra></extra>",
        "colorscale": _colorscale(charts.NONE_TO_ALL),
        "zmin": 0,
        "zmax": 1,
        "xgap": 2,
        "ygap": 2,
        "showscale": False,
    }
    layout = _layout(
        height=90 + 32 * len(looks),
        xaxis={
            "title": {"text": "staleness (versions)"},
            "tickvals": list(range(len(bins))),
            "ticktext": [charts.bin_name(each) for each in bins],
            "range": [-0.5, len(bins) - 0.5],
            "showgrid": False,
            "showline": False,
        },
        yaxis={**_rows([names[label] for label in looks]), "showgrid": False},
        hovermode="closest",
    )
    return {"": {"data": [heatmap, _percents(shares)], "layout": layout}}


DEEP = 0.65
"""From this share on a cell's colour is so deep, on a dark page so light, that the page's own colour is read best on it."""


def _percents(shares: Sequence[Floats]) -> Figure:
    """What is written in the cells of the heatmap, which itself would write grey on some of a dark page's colours."""
    cells = [(x, y, float(share)) for y, row in enumerate(shares) for x, share in enumerate(row) if share >= 0.005]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [x for x, _, _ in cells],
        "y": [y for _, y, _ in cells],
        "text": [f"{100 * share:.0f}" for _, _, share in cells],
        "textfont": {"size": 12, "color": [WHITE if share >= DEEP else BLACK for _, _, share in cells]},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def timeline_figure(run: SavedRun, end: float) -> Figure:
    """A row a device, a bar a job, a dot where its update was merged."""
    shown = charts.timeline(run, end)
    merged = [bar for bar in shown.bars if bar.arrival.is_merged]
    in_vain = [bar for bar in shown.bars if not bar.arrival.is_merged]
    most = max((bar.arrival.staleness for bar in merged), default=0)
    colours = [charts.shade(charts.FRESH_TO_STALE, bar.arrival.staleness / max(most, 1)) for bar in merged]
    outline = {"color": WHITE, "width": 1.5}
    hatched = {"line": outline, "color": HATCHED, "pattern": {"shape": "/", "fgcolor": charts.GREY, "size": 5}}
    data: list[Figure] = [
        {**_jobs(merged), "marker": {"color": colours, "line": outline}, "showlegend": False},
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x for bar in merged for x in (bar.arrival.arrived_at, *_numbers([bar.merged_at]), None)],
            "y": [y for bar in merged for y in (bar.row, bar.row, None)],
            "line": {"color": INK_SOFT, "width": 1},
            "hoverinfo": "skip",
            "name": "an update waits",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": _numbers([bar.merged_at for bar in merged]),
            "y": [bar.row for bar in merged],
            "marker": {"color": BLACK, "size": 6, "line": {"color": WHITE, "width": 1}},
            "hoverinfo": "skip",
            "name": "and is merged",
        },
    ]
    if most > 0:
        data.append(_staleness_key(most))
    if in_vain:
        data.append({**_jobs(in_vain), "marker": hatched, "name": "not merged"})
    names = [f"{device} · {seconds:.3g} s" for device, seconds in zip(shown.devices, shown.seconds, strict=True)]
    layout = _layout(
        height=130 + 20 * len(shown.devices),
        xaxis={"title": {"text": charts.seconds_of([run])}, "range": [0, end], "showgrid": False},
        yaxis={**_rows(names), "title": {"text": "device · seconds a job"}, "showgrid": False},
        hovermode="closest",
        barmode="overlay",
        bargap=0.2,
        shapes=[
            {**_line({"color": LINE, "width": 1}, x=x), "name": "a version is made", "showlegend": number == 0}
            for number, x in enumerate(shown.made)
        ],
    )
    layout["yaxis"]["tickfont"] = {"size": 11}
    return {"data": data, "layout": layout}


def _staleness_key(most: int) -> Figure:
    """The colour bar: plotly.js hangs it on a trace, and on one of bars it would warn of every colour that is a number."""
    bar = {
        "title": {"text": "staleness", "side": "right", "font": {"size": 13}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickformat": "d",
    }
    scale = _colorscale(charts.FRESH_TO_STALE)
    marker = {"color": [0], "colorscale": scale, "cmin": 0, "cmax": most, "showscale": True, "colorbar": bar}
    return {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "marker": marker, "showlegend": False}


def _jobs(bars: Sequence[charts.Bar]) -> Figure:
    """Bars from sending to arrival, with all that is known of each job when the pointer is on it."""
    return {
        "type": "bar",
        "orientation": "h",
        "y": [bar.row for bar in bars],
        "base": [bar.arrival.sent_at for bar in bars],
        "x": [round(bar.arrival.arrived_at - bar.arrival.sent_at, 9) for bar in bars],
        "customdata": [
            [
                in_html(bar.arrival.device, MOST_LETTERS),
                bar.arrival.version,
                f"{bar.arrival.sent_at:g}",
                f"{bar.arrival.arrived_at:g}",
                _fate(bar),
            ]
            for bar in bars
        ],
        "hovertemplate": "device %{customdata[0]}, version %{customdata[1]}<br>sent at %{customdata[2]} s, "
        "arrived at %{customdata[3]} s<br>%{customdata[4]}<extra></extra>",
    }


def _fate(bar: charts.Bar) -> str:
    for fate in ("discarded", "refused", "lost"):
        reason = getattr(bar.arrival, fate)
        if reason is not None:
            return f"{fate}: {in_html(reason, MOST_LETTERS)}"
    at = "" if math.isnan(bar.merged_at) else f" at {bar.merged_at:g} s"
    return f"merged{at}, staleness {bar.arrival.staleness}"


def _layout(height: int, xaxis: Figure, yaxis: Figure, **more: Any) -> Figure:
    """What all figures have in common."""
    axis = {
        "gridcolor": GRID,
        "linecolor": AXIS,
        "showline": True,
        "zeroline": False,
        "automargin": True,
        "ticks": "",
        "ticklabelstandoff": 4,
    }
    return {
        "height": height,
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "font": {
            "family": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif",
            "size": 13,
            "color": INK,
        },
        "paper_bgcolor": WHITE,
        "plot_bgcolor": WHITE,
        "xaxis": _titled({**axis, **xaxis}),
        "yaxis": _titled({**axis, **yaxis}),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hoverlabel": {
            "bgcolor": WHITE,
            "bordercolor": LINE,
            "font": {"size": 12, "color": INK},
            "namelength": -1,
        },
        "uirevision": "kept",
        **more,
    }


def _titled(axis: Figure) -> Figure:
    return {**axis, "title": {"font": {"size": 13}, "standoff": 12, **axis.get("title", {})}}


def _rows(names: Sequence[str]) -> Figure:
    """A vertical axis with a name a row, the first on top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [in_html(name, MOST_LETTERS) for name in names],
        "range": [len(names) - 0.4, -0.6],
        "showline": False,
    }


def _numbers(values: Floats | Sequence[float]) -> list[float | None]:
    """JSON has no NaN, and five digits are more than a screen shows."""
    rounded = (float(f"{value:.5g}") for value in values)  # of the greatest numbers there are, up to infinity
    return [value if math.isfinite(value) else None for value in rounded]


def _colorscale(colours: Sequence[str]) -> list[tuple[float, str]]:
    return [(place / (len(colours) - 1), colour) for place, colour in enumerate(colours)]


def _transparent(colour: str, opacity: float) -> str:
    return f"{colour}{round(255 * opacity):02X}"
