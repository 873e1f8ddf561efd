"""How messages word numbers and sizes, and how they show what others wrote."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from html import escape
from pathlib import PurePath


def counted(count: int, thing: str, things: str = "") -> str:
    """`1 device`, `2 devices`, `300,000 devices`; a thing that takes no s is given in its plural too."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def in_bytes(count: float) -> str:
    """`640 GB`, `1.5 MB`: three digits at most."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count / 1e3:.3g} kB"


_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: a terminal acts on them
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"  # line ends of another kind; what turns the direction of reading round
    "\ud800-\udfff\ufdd0-\ufdef"  # halves of letters, and what is no letter: no file and no terminal takes them
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
_UNSEEN_IN_LINES = re.compile(_UNSEEN.pattern.replace("[\x00-\x1f", "[\x00-\x08\x0b-\x1f"))


def is_harmless(text: str, lines: bool = False) -> bool:
    """Whether a text is seen as it is written. `lines`: tabs and ends of lines may be in it."""
    return (_UNSEEN_IN_LINES if lines else _UNSEEN).search(text) is None


def harmless(text: str, lines: bool = False) -> str:
    r"""A text with every letter that is not seen written out.

    >>> print(harmless("red: \x1b[31m"))
    red: \x1b[31m
    """
    return (_UNSEEN_IN_LINES if lines else _UNSEEN).sub(lambda found: ascii(found[0])[1:-1], text)


def brief(text: str, most: int) -> str:
    """A text of `most` letters or so: of a longer one the beginning and the end."""
    return text if len(text) <= most else f"{text[: most - most // 3]} … {text[-(most // 3) :]}"


def in_one_line(text: object, most: int = 4000) -> str:
    """What a terminal or a log is given: one line of seen letters, however long the text is that somebody put into it."""
    words = brief(str(text), most)
    return harmless(" ".join(words.split()) if "\n" in words else words)


def in_html(text: object, most: int = 10_000) -> str:
    """A text as a page shows it, wherever it stands in the page."""
    return escape(harmless(brief(str(text), most), lines=True))


def say_harmlessly(record: logging.LogRecord) -> bool:
    """For a logger: names, paths and reasons are shown, whatever letters are in them."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            in_one_line(each) if isinstance(each, str | PurePath | BaseException) else each for each in record.args
        )
    return True


def shares_in_words(shares: Sequence[float]) -> str:
    """`90%`, or `30 to 40%` where they are not all alike."""
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{low}%" if low == high else f"{low} to {high}%"
