"""A live display of runs: how far, how accurate, how long still."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from hybridfl.plan import Run
from hybridfl.records import Record
from hybridfl.waiting import MANY_DEVICES
from hybridfl.wording import harmless

FIRST_MODEL, FIRST_ROUND = "scoring the first model", "first round"
"""What is under way while there is no news yet."""


class NameColumn(ProgressColumn):
    """What a line is called, letter by letter: brackets in a name are no markup. A line may have a style."""

    def render(self, task: Task) -> Text:
        return Text(harmless(task.description), style=task.fields.get("style", ""))


def bars(name_width: int, bar_width: int, news_width: int, quiet: bool) -> Progress:
    """Lines of name, bar, news and time left, on standard error, so that standard output stays clean."""
    return Progress(
        NameColumn(table_column=Column(max_width=name_width, no_wrap=True)),
        BarColumn(bar_width=bar_width),
        TextColumn("{task.fields[news]}", markup=False, table_column=Column(min_width=news_width, no_wrap=True)),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        disable=quiet,
    )


def part_done(run: Run, record: Record) -> float:
    """How much of a run lies behind it, by versions or by time, whichever is more; one that diverged has ended."""
    if record.has_diverged:
        return 1.0
    by_version = record.version / run.rounds if run.rounds else 0.0
    by_time = record.seconds / run.seconds if run.seconds else 0.0
    return min(1.0, max(by_version, by_time))


def score_of(record: Record) -> str:
    """How good a record's model is, in a few letters: by device, or its loss where there are no classes."""
    if record.has_diverged:
        return "diverged"
    if math.isfinite(record.device_accuracy):
        return f"{record.device_accuracy:.0%} by device"
    return f"loss {record.test_loss:.3g}"


class RunsDisplay:
    """One line an algorithm, over its seeds, and one for all."""

    def __init__(self, runs: Sequence[Run], quiet: bool) -> None:
        self._progress = bars(22, 10, 36, quiet)
        self._lines = {
            name: self._progress.add_task(
                name, total=sum(run.name == name for run in runs), news=FIRST_MODEL, start=False
            )
            for name in dict.fromkeys(run.name for run in runs)
        }
        self._all = self._progress.add_task("all runs", total=len(runs), news="", style="bold")
        self._is_long = any(len(run.task.train) >= MANY_DEVICES for run in runs)
        self._parts: dict[str, dict[int, float]] = {name: {} for name in self._lines}

    def show(self, run: Run, record: Record) -> None:
        """The newest record of a run that is under way."""
        self._parts[run.name][run.seed] = part_done(run, record)
        far = f"{record.seconds:,.0f} virtual s" if record.seconds else FIRST_ROUND
        news = f"seed {run.seed}  {score_of(record)}  {far}"
        self._progress.start_task(self._lines[run.name])
        self._progress.update(self._lines[run.name], news=news, completed=sum(self._parts[run.name].values()))
        self._progress.update(self._all, completed=sum(sum(parts.values()) for parts in self._parts.values()))

    def __enter__(self) -> Self:
        self._progress.start()
        if self._is_long and not self._progress.disable and not self._progress.console.is_terminal:
            self._progress.console.print("Scoring the first model, then training the first round …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
