"""A comparison's summary on the terminal, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from hybridfl.summary import Row


def json_row(row: Row) -> dict[str, object]:
    """A row as JSON can hold it: no NaN."""
    row_values = asdict(row)
    del row_values["speedup_bound"]
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in row_values.items()}


def print_table(rows: Sequence[Row], goal: float, title: str, bounds: Collection[str]) -> None:
    """Print the rows; the best that is no bound (S-SGD is one) stands out."""
    table = Table(
        title=title,
        title_justify="left",
        caption="Final: mean over the last 15 % of virtual time; ± standard deviation over seeds.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("\nAlgorithm", overflow="fold")
    for heading in (
        "Final\naccuracy",
        f"Seconds\nto {goal:.1%}",
        "Speed-up\non FedAvg",
        "Stragglers'\ndata",
        "Updates\ndiscarded",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max((row.test_accuracy for row in rows if row.algorithm not in bounds), default=math.nan)
    for row in rows:
        spread = "" if math.isnan(row.test_accuracy_std) else f" ±{100 * row.test_accuracy_std:5.1f}"
        table.add_row(
            row.algorithm,
            f"{row.test_accuracy:.1%}{spread}",
            _or_dash(row.seconds_to_target, ",.0f"),
            _speedup(row),
            _or_dash(row.straggler_accuracy, ".1%"),
            f"{row.discarded:,.0f}",
            style="bold" if row.test_accuracy == best else None,
        )
    Console().print(table)


def _speedup(row: Row) -> str:
    """Where FedAvg never reached the target, its whole run is a lower bound."""
    return _or_dash(row.speedup, ".1f", " ×") if math.isnan(row.speedup_bound) else f"> {row.speedup_bound:.1f} ×"


def _or_dash(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"
