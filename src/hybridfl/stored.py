"""What a file says is input: types, sizes and letters are checked before anything makes use of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hybridfl.errors import InputError
from hybridfl.wording import brief, harmless, is_harmless

Check = Callable[[Any], Any]
"""What a value is read as; raises `ValueError` with the rule that it breaks."""

PUT_BACK = "put the file back as it was, or remove the folder and run again"
MOST_BYTES = 32_000_000
"""Of a file that is read as a whole."""
MOST_IN_A_LINE = 4_000_000
MOST_DEPTH = 20
"""Of lists and objects in one another."""
MOST_NAME, MOST_TEXT = 2000, 1_000_000
"""Letters of what names a run, and of what says how something is made."""
MOST_COUNT = 2**53
"""Up to here, a number with a decimal point is exact too."""
MOST_SECONDS = 1e100


def count(value: Any) -> int:
    """A whole number, 0 or more."""
    if type(value) is not int or not 0 <= value <= MOST_COUNT:
        raise ValueError("is no whole number from 0 to 2⁵³")
    return value


def size(value: Any) -> int:
    """A whole number of bytes."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("is no whole number from 0 to 2⁶³ - 1")
    return value


def whole(value: Any) -> int:
    """A whole number, of either sign."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError("is no whole number")
    return value


def seconds(value: Any) -> float:
    """A time, 0 or more."""
    if type(value) not in (int, float) or not 0 <= value <= MOST_SECONDS:
        raise ValueError("is no time in seconds")
    return value if value <= MOST_COUNT else float(value)


def measure(value: Any) -> float:
    """A number; null and what is not finite are NaN."""
    if value is None:
        return math.nan
    if type(value) not in (int, float) or (type(value) is int and abs(value) >= 2**63):
        raise ValueError("is no number")
    return value if math.isfinite(value) else math.nan


def share(value: Any) -> float:
    """A number from 0 to 1, or null; a mean of many may be a rounding off."""
    found = measure(value)
    if not (math.isnan(found) or -1e-3 <= found <= 1 + 1e-3):
        raise ValueError("is no share from 0 to 1")
    return found


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError("is neither true nor false")
    return value


def name(value: Any) -> str:
    """A text in one line that is seen as it is written."""
    if type(value) is not str or len(value) > MOST_NAME:
        raise ValueError(f"is no text of {MOST_NAME:,} letters at most")
    if not is_harmless(value):
        raise ValueError("has control characters or others that are not seen")
    return value


def text(value: Any) -> str:
    """A text that is seen as it is written, of any number of lines."""
    if type(value) is not str or len(value) > MOST_TEXT:
        raise ValueError(f"is no text of {MOST_TEXT:,} letters at most")
    if not is_harmless(value, lines=True):
        raise ValueError("has control characters or others that are not seen")
    return value


def or_none(check: Check) -> Check:
    """What may be null, too."""
    return lambda value: None if value is None else check(value)


def list_of(check: Check) -> Check:
    """A list of such values."""

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("is no list")
        return [check(each) for each in value]

    return read


def texts_by_name(value: Any) -> dict[str, str]:
    """An object whose values are texts."""
    if type(value) is not dict:
        raise ValueError("is no object")
    return {name(key): text(each) for key, each in value.items()}


def checked(
    where: str, row: Any, checks: Mapping[str, Check], needed: Collection[str], remedy: str = PUT_BACK
) -> dict[str, Any]:
    """The fields of an object that have a check; an `InputError` that names the first that is wrong or not there."""
    if type(row) is not dict:
        raise InputError(f"{where}: {shown(row)} is no object: {remedy}.")
    for each in needed:
        if each not in row:
            raise InputError(f"{where}: there is no {each}: {remedy}.")
    found = {}
    for each, check in checks.items():
        if each in row:
            try:
                found[each] = check(row[each])
            except ValueError as error:
                raise InputError(f"{where}: {each}={shown(row[each])} {error}: {remedy}.") from None
    return found


def require_name(what: str, value: Any) -> None:
    """A name is stored, shown and made a folder's: refuse what could not be read back."""
    try:
        name(value)
    except ValueError as error:
        raise InputError(f"{what}={shown(value)} {error}: give a short text in one line.") from None


def shown(value: Any) -> str:
    """A value as a message shows it: in one line, and short."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return brief(harmless(repr(value)), 60)


def read_json(path: Path) -> Any:
    """What a file holds. Raises `OSError` and `ValueError`."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    value = _parsed(content.decode("utf-8"))
    _check_depth(value)
    return value


def rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Every whole line of a file, after where it stands; a last line that was cut off in the middle is left out."""
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"'{path}' is no file: {PUT_BACK}.")
    number = 0
    with path.open("rb") as lines:
        while line := lines.readline(MOST_IN_A_LINE + 1):
            number += 1
            where = f"'{path}', line {number}"
            if len(line) > MOST_IN_A_LINE:
                raise InputError(f"{where} has more than {MOST_IN_A_LINE:,} bytes: {PUT_BACK}.")
            if not line.endswith(b"\n"):
                return
            try:
                row = _parsed(line.decode("utf-8"))
            except ValueError as error:
                raise InputError(f"{where} cannot be read ({error}): {PUT_BACK}.") from None
            yield where, row


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("lists or objects too deep in one another") from None


def _check_depth(value: Any) -> None:
    """Whoever goes through it one inside the other shall come to an end."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError("lists or objects too deep in one another")
