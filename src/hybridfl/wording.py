"""How messages word numbers and sizes."""

from __future__ import annotations

from collections.abc import Sequence


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


def shares_in_words(shares: Sequence[float]) -> str:
    """`90%`, or `30 to 40%` where they are not all alike."""
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{low}%" if low == high else f"{low} to {high}%"
