"""Ctrl-C: one line that says how to go on, and exit code 130."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from hybridfl.cli_output import say
from hybridfl.wording import in_one_line

STOPPED = 130
"""The exit code of what Ctrl-C has stopped."""

SHOW_CURSOR = "\x1b[?25h"
"""A display that could not end has left it hidden."""


@dataclass(frozen=True)
class _Leave:
    """What Ctrl-C does when it is pressed again: nothing is waited for any more."""

    how_to_go_on: Callable[[], str]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        shown = SHOW_CURSOR if os.isatty(2) else ""
        os.write(2, f"{shown}\n{in_one_line(self.how_to_go_on())}\n".encode())
        os._exit(STOPPED)


def again() -> str:
    """How to go on with what has left nothing yet."""
    return "Stopped. The same command again finishes it."


@contextmanager
def stoppable(how_to_go_on: Callable[[], str] = again) -> Iterator[None]:
    """Ctrl-C stops what is under way, which may still clean up, and says how to go on; pressed again, it ends all at once.

    What is inside may catch the `KeyboardInterrupt` and use what there is. Any other error after it comes of it.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, _Leave(how_to_go_on))
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the interpreter's end takes a moment too
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    # A shell that starts programs in the background has them ignore it.
    if before is not signal.SIG_IGN and not isinstance(before, _Leave):
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    except typer.Exit:
        raise
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not isinstance(signal.getsignal(signal.SIGINT), _Leave):
            raise
        say(how_to_go_on(), err=True)
        raise typer.Exit(STOPPED) from None
    finally:
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, before)


class Stoppable(TyperGroup):
    """A group of commands each of which ends with one line and exit code 130 when it is stopped."""

    def invoke(self, ctx: Any) -> Any:
        with stoppable():
            return super().invoke(ctx)
