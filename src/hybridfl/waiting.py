"""What one sees while one waits for data. Imports nothing that is slow, so that it can be said first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from hybridfl.wording import counted

MANY_DEVICES = 10_000
"""Their data take so long to make that a log gets a line about it too."""


@contextmanager
def under_way(what: str, quiet: bool) -> Iterator[None]:
    """One line on standard error that says what is under way; a terminal sees for how long, and the line goes at the end."""
    if quiet:
        yield
        return
    console = Console(stderr=True)
    if console.is_terminal:
        columns = TextColumn("{task.description} …", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(what, total=None)
            yield
    else:
        print(f"{what} …", file=sys.stderr, flush=True)
        yield


@contextmanager
def making_data(devices: int, quiet: bool) -> Iterator[None]:
    """The data of few devices are there before a log would tell anybody."""
    is_soon = devices < MANY_DEVICES and not sys.stderr.isatty()
    with under_way(f"Making the data of {counted(devices, 'device')}", quiet or is_soon):
        yield
