"""What the command line says: one line after the other, whatever names, paths and reasons are in it."""

from __future__ import annotations

import typer

from hybridfl.wording import in_one_line


def say(text: str, err: bool = False) -> None:
    """A line on standard output, or on standard error: nothing in it moves a cursor or begins another line."""
    typer.echo(in_one_line(text), err=err)
