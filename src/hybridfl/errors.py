"""The one exception a user's mistake raises: its message names the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


class InputError(ValueError):
    """A value the user gave is wrong. The command line prints the message as one line and exits with code 2."""


MOST_LETTERS = 100
"""Of a word that is compared with others: no name is longer."""


def nearest(word: str, words: Iterable[str]) -> str:
    """`" Did you mean 'fedavg'?"` where a known word is one slip away from `word`, else an empty string.

    A word of eight letters may have two slips, one of twelve three. The beginning of one known word alone is enough too.
    """
    wanted = _plain(word[:MOST_LETTERS])
    known = {each: _plain(each) for each in words}
    slips = {each: _slips(wanted, plain) for each, plain in known.items()}
    best = min(slips, key=lambda each: slips[each], default="")
    begun = [each for each, plain in known.items() if len(wanted) >= 3 and plain.startswith(wanted)]
    if best and slips[best] <= max(1, len(wanted) // 4) and slips[best] < min(len(wanted), len(known[best])):
        return f" Did you mean '{best}'?"
    return f" Did you mean '{begun[0]}'?" if len(begun) == 1 else ""


def _plain(word: str) -> str:
    return word.strip().lower().translate(str.maketrans("", "", "-_. "))


def _slips(written: str, meant: str) -> int:
    """Letters left out, put in or mistaken, and neighbours swapped (Damerau's distance)."""
    before_last: list[int] = []
    last = list(range(len(meant) + 1))
    for i, letter in enumerate(written, 1):
        row = [i]
        for j, other in enumerate(meant, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other)))
            if i > 1 and j > 1 and (letter, written[i - 2]) == (meant[j - 2], other):
                row[j] = min(row[j], before_last[j - 2] + 1)
        before_last, last = last, row
    return last[-1]


def require_share(name: str, value: float) -> None:
    """A share lies in [0, 1]."""
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name}={value!r} is not a share: give a number from 0 to 1.")


MOST_SEED = MOST_WHOLE = 2**63 - 1


def require_seed(seed: int) -> None:
    """A seed is a whole number that a machine's word holds."""
    if not _is_whole(seed) or not 0 <= seed <= MOST_SEED:
        raise InputError(f"seed={seed!r} is no seed: give a whole number from 0 to {MOST_SEED} (2⁶³ - 1).")


def require_positive(name: str, value: Any) -> None:
    """A rate or a time is above zero and finite."""
    if not _is_number(value):
        raise InputError(f"{name}={value!r} is not a number: give one above 0.")
    if not 0 < value < math.inf:
        raise InputError(f"{name}={value} must be above 0 and finite.")
    _check_size(name, value)


def require_whole(name: str, value: Any, least: int = 1) -> None:
    """A count is a whole number, `least` or more."""
    if not _is_whole(value) or value < least:
        raise InputError(f"{name}={value!r} must be a whole number, {least} or more.")
    _check_size(name, value)


def is_single_number(value: Any) -> bool:
    """Whether arithmetic takes it for a number: Python's, NumPy's, or the only one in an array or a tensor."""
    try:
        return not isinstance(value, str | bytes) and isinstance(float(value), float)
    except (TypeError, ValueError):
        return False


def _is_number(value: object) -> bool:
    """NumPy's numbers are numbers too; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_size(name: str, value: Any) -> None:
    """A machine's word holds no larger ones."""
    if _is_whole(value) and value > MOST_WHOLE:
        raise InputError(f"{name}={value} is too large: give {MOST_WHOLE} (2⁶³ - 1) at most.")
