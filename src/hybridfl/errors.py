"""The one exception a user's mistake raises: its message names the value and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class InputError(ValueError):
    """A value the user gave is wrong. The command line prints the message as one line and exits with code 2."""


def nearest(word: str, words: Iterable[str]) -> str:
    """`" Did you mean 'fedavg'?"` where something near `word` exists, else an empty string."""
    known = {known.lower(): known for known in words}
    matches = difflib.get_close_matches(word.lower(), known, n=1)
    return f" Did you mean '{known[matches[0]]}'?" if matches else ""


def require_share(name: str, value: float) -> None:
    """A share lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{name}={value} is not a share: give a number from 0 to 1.")


MOST_SEED = 2**63 - 1


def require_seed(seed: int) -> None:
    """A seed is a whole number that a machine's word holds."""
    if not 0 <= seed <= MOST_SEED:
        raise InputError(f"seed={seed} is no seed: give a whole number from 0 to {MOST_SEED} (2⁶³ - 1).")


def require_positive(name: str, value: float) -> None:
    """A count, a rate or a time is above zero and finite."""
    if not 0 < value < math.inf:
        raise InputError(f"{name}={value} must be above 0 and finite.")
