# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""The shuffles of `randomness.py`, compiled: each job draws its own, in its own thread."""

from __future__ import annotations

import numba
import numpy as np

compiled = numba.njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
"""How all our loops are compiled: the interpreter's lock released, kept for the next process."""


@compiled
def shuffle(key, size, tagged, spare, counts):
    """tagged[:size] ← hash(key, i)·2³² + i in ascending order: the shuffle of `randomness.shuffled`.

    Many are sorted by three passes over 11 bits of the hash each, few by insertion; `spare` and `counts` are room to work in.
    """
    mask = np.uint64(0xFFFFFFFF)
    low, high = key & mask, key >> np.uint64(32)
    for i in range(size):
        number = np.uint64(i)
        tagged[i] = (_mix32(_mix32(number ^ low) ^ high) << np.uint64(32)) | number
    if size < 128:
        for i in range(1, size):
            one = tagged[i]
            at = i
            while at > 0 and tagged[at - 1] > one:
                tagged[at] = tagged[at - 1]
                at -= 1
            tagged[at] = one
        return
    bits = np.uint64(counts.size - 1)
    for shift in (32, 43, 54):
        down = np.uint64(shift)
        counts[:] = 0
        for i in range(size):
            counts[(tagged[i] >> down) & bits] += 1
        total = 0
        for digit in range(counts.size):
            total += counts[digit]
            counts[digit] = total - counts[digit]
        for i in range(size):
            digit = (tagged[i] >> down) & bits
            spare[counts[digit]] = tagged[i]
            counts[digit] += 1
        tagged[:size] = spare[:size]


@compiled
def _mix32(x):
    """As `randomness._mix32`, in the lower half of 64 bits."""
    mask = np.uint64(0xFFFFFFFF)
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D)) & mask
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B)) & mask
    return x ^ (x >> np.uint64(16))
