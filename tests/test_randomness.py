from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridfl.randomness import generator, key, keys, shuffled

KEYS = st.integers(0, 2**64 - 1)
SEGMENTS = st.lists(st.tuples(KEYS, st.integers(0, 40)), max_size=8)


def shuffle_all(segments: list[tuple[int, int]]) -> list[NDArray[np.int64]]:
    each = np.array([k for k, _ in segments], dtype=np.uint64)
    sizes = np.array([n for _, n in segments], dtype=np.int64)
    return np.split(shuffled(each, sizes), np.cumsum(sizes)[:-1]) if segments else []


def test_the_same_key_gives_the_same_numbers() -> None:
    assert key(7, "batches", 3, 4) == key(7, "batches", 3, 4)
    assert np.array_equal(generator(7, "split", 3).random(5), generator(7, "split", 3).random(5))


def test_another_seed_purpose_or_id_gives_another_key() -> None:
    names = [
        (seed, purpose, ids) for seed in (0, 1) for purpose in ("a", "b") for ids in ((), (0,), (1,), (0, 1), (1, 0))
    ]
    assert len({key(seed, purpose, *ids) for seed, purpose, ids in names}) == len(names)


def test_another_key_gives_other_numbers() -> None:
    draws = {generator(*name).random() for name in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))}
    assert len(draws) == 4


def test_a_negative_seed_is_a_seed_like_any_other() -> None:
    assert 0 <= key(-1, "a") < 2**64
    assert key(-1, "a") != key(1, "a")


@given(
    st.integers(-3, 2**63 - 1), st.lists(st.tuples(st.integers(0, 2**40), st.integers(-5, 5)), min_size=1, max_size=5)
)
def test_keys_of_columns_are_the_keys_of_their_rows(seed: int, rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, dtype=np.int64).T
    assert keys(seed, "a", *columns).tolist() == [key(seed, "a", *row) for row in rows]


def test_keys_and_shuffles_never_change_between_releases() -> None:
    assert key(0, "batches", 1, 2) == 0x7AFFC80EE5FCEF56
    assert shuffle_all([(0x0123456789ABCDEF, 8)])[0].tolist() == [3, 0, 6, 4, 7, 5, 2, 1]


@given(SEGMENTS)
def test_every_segment_is_a_permutation(segments: list[tuple[int, int]]) -> None:
    for (_, size), numbers in zip(segments, shuffle_all(segments), strict=True):
        assert sorted(numbers) == list(range(size))


@given(SEGMENTS)
def test_a_shuffle_does_not_depend_on_the_others_in_the_call(segments: list[tuple[int, int]]) -> None:
    for segment, numbers in zip(segments, shuffle_all(segments), strict=True):
        assert np.array_equal(numbers, shuffle_all([segment])[0])


@given(KEYS, st.integers(0, 60))
def test_a_shuffle_orders_the_numbers_by_their_hash(k: int, size: int) -> None:
    def mixed(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
        x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
        return x ^ (x >> 16)

    by_hash = sorted(range(size), key=lambda number: mixed(mixed(number ^ (k % 2**32)) ^ (k >> 32)))
    assert shuffle_all([(k, size)])[0].tolist() == by_hash


def test_no_segments_give_no_numbers() -> None:
    assert len(shuffled(np.array([], dtype=np.uint64), np.array([], dtype=np.int64))) == 0


def test_all_orders_of_four_are_equally_likely() -> None:
    repeats = 24_000
    keys = np.array([key(0, "batches", device) for device in range(repeats)], dtype=np.uint64)
    orders = shuffled(keys, np.full(repeats, 4)).reshape(repeats, 4)
    _, counts = np.unique(orders @ np.array([1000, 100, 10, 1]), return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # χ² with 23 degrees of freedom: 99.9 % are below


def test_every_number_is_equally_likely_in_every_place() -> None:
    repeats, size = 4_000, 40
    keys = np.array([key(0, "batches", device) for device in range(repeats)], dtype=np.uint64)
    orders = shuffled(keys, np.full(repeats, size)).reshape(repeats, size)
    counts = np.stack([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    assert ((counts - 100) ** 2 / 100).sum() < 1698  # χ² with 39² = 1521 degrees of freedom: 99.9 % are below


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint64])
def test_numpys_numbers_make_the_same_key(kind: Any) -> None:
    assert key(kind(7), "batches", kind(1), kind(2)) == key(7, "batches", 1, 2)
