"""A comparison's summary on the terminal, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridfl.summary import Measure, Row
from hybridfl.wording import harmless

Columns = Mapping[str, Callable[[Row], str]]
"""What a table says of a row, by heading."""

LEAST_NAME = 14
"""So many letters of an algorithm's name stay in one line, however narrow the terminal is."""


def json_row(row: Row) -> dict[str, object]:
    """A row as JSON can hold it: no NaN."""
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in asdict(row).items()}


def print_table(
    rows: Sequence[Row], goal: float, title: str, measure: Measure, bounds: Collection[str], fedavg: str | None
) -> None:
    """Print the rows, which are ordered by `measure`; the best that is no bound (S-SGD is one) stands out.

    `fedavg`: what the speed-up is over; None: nothing, and there is no such column. Where the terminal is too narrow for
    all columns, there are several tables, one below the other.
    """
    console = Console()
    best = next((row for row in rows if row.algorithm not in bounds and not row.diverged), None)
    columns = _columns(goal, measure, fedavg)
    widths = {heading: _width(heading, map(show, rows)) for heading, show in columns.items()}
    longest = _width("Algorithm", (harmless(row.algorithm) for row in rows))
    parts = _parts(widths, console.width - min(longest, LEAST_NAME) - _FRAME)
    inner = max(sum(widths[heading] + 1 for heading in part) for part in parts)
    name_width = max(1, min(longest, console.width - inner - _FRAME))
    whole = min(console.width, name_width + inner + _FRAME)
    console.print(Text(harmless(title), style="table.title"), width=whole)
    for part in parts:
        console.print(_table(rows, {heading: columns[heading] for heading in part}, name_width, best))
    console.print(Text(harmless(_caption(measure, fedavg)), style="table.caption"), width=whole)


_FRAME = 2
"""The blanks at both sides of a table; each column but the first has one before it."""


def _parts(widths: Mapping[str, int], room: int) -> list[list[str]]:
    """The headings of each table: as many as fit beside the names, and one at least."""
    parts: list[list[str]] = [[]]
    for heading in widths:
        if parts[-1] and sum(widths[each] + 1 for each in [*parts[-1], heading]) > room:
            parts.append([])
        parts[-1].append(heading)
    return parts


def _width(heading: str, cells: Iterable[str]) -> int:
    """Of a column's widest line."""
    return max(cell_len(line) for text in (heading, *cells) for line in text.split("\n"))


def _table(rows: Sequence[Row], columns: Columns, name_width: int, best: Row | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("\nAlgorithm", overflow="fold", width=name_width)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [Text(show(row)) for show in columns.values()]
        table.add_row(Text(harmless(row.algorithm)), *cells, style="bold" if row is best else None)
    return table


def _columns(goal: float, measure: Measure, fedavg: str | None) -> Columns:
    discarded = {"Dis-\ncarded": lambda row: f"{row.discarded:,.0f}"}
    if measure == "test_loss":
        return {"Final\ntest loss": lambda row: _final(row, "test_loss"), **discarded}
    by_device: Columns = {
        "Accuracy\nby device": lambda row: _final(row, "device_accuracy"),
        "Worst\ntenth": lambda row: _or_dash(row.worst_accuracy, ".1%"),
        "Below\nchance": lambda row: _or_dash(row.below_chance, ".0%"),
    }
    return {
        **(by_device if measure == "device_accuracy" else {}),
        "Accuracy\nby sample": lambda row: _final(row, "test_accuracy"),
        f"Seconds\nto {goal:.1%}" if math.isfinite(goal) else "Seconds\nto target": lambda row: _seconds(
            row.seconds_to_target
        ),
        **({} if fedavg is None else {"Speed-\nup": _speedup}),
        **discarded,
    }


def _caption(measure: Measure, fedavg: str | None) -> str:
    """What the figures mean."""
    means = "Means over the records of the last 15 % of virtual time; ± standard deviation over seeds."
    if measure == "test_loss":
        return means
    over = "" if fedavg is None else f"; speed-up: {fedavg}'s over these"
    speed = f"Seconds: of the first record at that accuracy by sample, no finer than records (--evaluate-every){over}."
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


def _seconds(seconds: float) -> str:
    """`2.5`, `12`, `1,200`."""
    return _or_dash(seconds, ".1f" if seconds < 9.95 else ",.0f")


def _speedup(row: Row) -> str:
    """Where FedAvg never reached the target, its whole run is a lower bound."""
    return _or_dash(row.speedup, ".1f", " ×") if math.isnan(row.speedup_bound) else f"> {row.speedup_bound:.1f} ×"


def _or_dash(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"
