"""Randomness by key, never from a shared stream.

Every draw is a function of (seed, purpose, ids …), so a result does not depend on what else was drawn before it, on how
jobs were batched, or on where a run was resumed.

A shuffle orders 0..n−1 by a hash of (key, index). Nothing in it is sequential, so all shuffles of all devices are one
vector expression and any engine, on any hardware, can compute the same order for itself.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

_MASK64 = (1 << 64) - 1


def key(seed: int, purpose: str, *ids: int) -> int:
    """A 64-bit key for one purpose: a chain of SplitMix64 over the seed, the purpose's name and the ids."""
    state = _of_purpose(purpose)
    for number in (seed, *ids):
        state = _splitmix64((state ^ (int(number) & _MASK64)) & _MASK64)
    return state


@functools.cache
def _of_purpose(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


def keys(seeds: int | NDArray[np.int64], purpose: str, *ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`key(seed, purpose, a, b, …)` for every (a, b, …) of some columns of ids, with one seed for all or one each."""
    state: NDArray[np.uint64] = np.full(len(ids[0]), _of_purpose(purpose), dtype=np.uint64)
    for column in (seeds, *ids):
        state = _splitmix64_all(state ^ np.asarray(column, dtype=np.int64).astype(np.uint64))
    return state


def generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """A random generator of its own for one purpose."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *ids)))


def shuffled(keys: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each pair (k, n) of `keys` and `sizes`, the numbers 0..n−1 ordered by hash(k, number); one after the other.

    Equal hashes (32 bits) keep their numbers' order.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    ends = np.cumsum(sizes)
    numbers = np.arange(sizes.sum(), dtype=np.int64) - np.repeat(ends - sizes, sizes)
    keys = np.asarray(keys, dtype=np.uint64)
    low = np.repeat((keys & np.uint64(0xFFFFFFFF)).astype(np.uint32), sizes)
    high = np.repeat((keys >> np.uint64(32)).astype(np.uint32), sizes)
    hashes = _mix32(_mix32(numbers.astype(np.uint32) ^ low) ^ high)
    # Hash above, number below: sorting these is sorting by hash, and the number comes out with it.
    tagged = (hashes.astype(np.uint64) << np.uint64(32)) | numbers.astype(np.uint64)
    for start, end in zip(ends - sizes, ends, strict=True):
        tagged[start:end].sort()
    return (tagged & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A 32-bit finalizer (lowbias32): every input bit flips every output bit with probability near ½."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _splitmix64_all(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
