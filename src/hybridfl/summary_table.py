"""A comparison's summary on the terminal, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridfl.summary import Measure, Row


def json_row(row: Row) -> dict[str, object]:
    """A row as JSON can hold it: no NaN."""
    row_values = asdict(row)
    del row_values["speedup_bound"]
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in row_values.items()}


def print_table(rows: Sequence[Row], goal: float, title: str, measure: Measure, bounds: Collection[str]) -> None:
    """Print the rows, which are ordered by `measure`; the best that is no bound (S-SGD is one) stands out."""
    table = Table(
        title=title,
        title_justify="left",
        caption=_caption(measure),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("\nAlgorithm", overflow="fold")
    columns = _columns(goal, measure)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    best = next((row for row in rows if row.algorithm not in bounds and not row.diverged), None)
    for row in rows:
        cells = [Text(show(row)) for show in columns.values()]
        table.add_row(Text(row.algorithm), *cells, style="bold" if row is best else None)
    Console().print(table)


def _columns(goal: float, measure: Measure) -> dict[str, Callable[[Row], str]]:
    """What the table says of a row, by heading."""
    discarded = {"Dis-\ncarded": lambda row: f"{row.discarded:,.0f}"}
    if measure == "test_loss":
        return {"Final\ntest loss": lambda row: _final(row, "test_loss"), **discarded}
    by_device: dict[str, Callable[[Row], str]] = {
        "Accuracy\nby device": lambda row: _final(row, "device_accuracy"),
        "Worst\ntenth": lambda row: _or_dash(row.worst_accuracy, ".1%"),
        "Below\nchance": lambda row: _or_dash(row.below_chance, ".0%"),
    }
    return {
        **(by_device if measure == "device_accuracy" else {}),
        "Accuracy\nby sample": lambda row: _final(row, "test_accuracy"),
        f"Seconds\nto {goal:.1%}" if math.isfinite(goal) else "Seconds\nto target": lambda row: _or_dash(
            row.seconds_to_target, ",.0f"
        ),
        "Speed-\nup": _speedup,
        **discarded,
    }


def _caption(measure: Measure) -> str:
    """What the figures mean."""
    means = "Means over the last 15 % of virtual time; ± standard deviation over seeds."
    if measure == "test_loss":
        return means
    speed = "Seconds: until the accuracy by sample is reached; speed-up: FedAvg's over these."
    if measure == "test_accuracy":
        return f"{means} {speed}"
    return (
        f"{means} By device: each counts alike, on its own test samples; the worst tenth of them; those that a guess would "
        f"serve better. By sample: a device with many counts for much. {speed}"
    )


def _final(row: Row, measure: Measure) -> str:
    """`73.7% ± 7.9`, `0.412 ± 0.011`, or how many of the seeds diverged."""
    if row.diverged:
        return f"{row.diverged} of {row.seeds}\ndiverged"
    value, spread = getattr(row, measure), getattr(row, f"{measure}_std")
    if measure == "test_loss":
        return _or_dash(value, ".3g") + ("" if math.isnan(spread) else f" ± {spread:.2g}")
    return _or_dash(value, ".1%") + ("" if math.isnan(spread) else f" ±{100 * spread:4.1f}")


def _speedup(row: Row) -> str:
    """Where FedAvg never reached the target, its whole run is a lower bound."""
    return _or_dash(row.speedup, ".1f", " ×") if math.isnan(row.speedup_bound) else f"> {row.speedup_bound:.1f} ×"


def _or_dash(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"
