"""A yes or no for each of some devices, as rules of one's own answer it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError


def flags_of(given: Any, count: int, who: str) -> NDArray[np.bool_]:
    """`given` as True or False, one for each of `count` devices; 0 and 1 are taken for these, or they would be indices."""
    if isinstance(given, np.ndarray) and given.dtype == np.bool_ and given.shape == (count,):
        return given
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a GPU
        raise _no_flags(f"a {type(given).__name__}", count, who) from None
    if numbers.shape != (count,):
        raise _no_flags(f"values of shape {list(numbers.shape)}", count, who)
    if numbers.dtype.kind not in "biuf" and count:
        raise _no_flags(f"values of {numbers.dtype}", count, who)
    others = numbers[(numbers != 0) & (numbers != 1)]
    if len(others):
        raise _no_flags(f"{others[0]}", count, who)
    return numbers.astype(np.bool_)


def _no_flags(what: str, count: int, who: str) -> InputError:
    return InputError(
        f"{who} gave {what} where a yes or no for each device is wanted: give an array of {count} booleans."
    )
