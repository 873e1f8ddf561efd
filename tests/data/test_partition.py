import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridfl.data.partition import IID, Dirichlet, Partition, PowerLaw, Rows, Shards, _without_empty, like
from hybridfl.errors import InputError

LABELS = np.repeat(np.arange(10), 300)


def labels_of(part: Rows) -> set[int]:
    return set(LABELS[part].tolist())


@given(
    partition=st.sampled_from(
        [IID(), PowerLaw(), PowerLaw(1, 0.5, 1), Dirichlet(0.05), Dirichlet(10.0), Shards(1), Shards(2)]
    ),
    labels=st.lists(st.integers(0, 4), min_size=30, max_size=200).map(lambda drawn: np.array([0, 1, *drawn])),
    devices=st.integers(1, 15),
    seed=st.integers(0, 5),
)
def test_nothing_is_lost_nothing_is_given_twice_and_nobody_goes_empty(
    partition: Partition, labels: np.ndarray, devices: int, seed: int
) -> None:
    parts = partition(labels, devices, seed)
    assert len(parts) == devices
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= 1


@pytest.mark.parametrize("partition", [IID(), PowerLaw(), Dirichlet(), Shards()])
def test_the_seed_decides(partition: Partition) -> None:
    first, again, other = (partition(LABELS, 20, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_devices_are_of_equal_size_and_see_all_labels() -> None:
    parts = IID()(LABELS, 7, 0)
    assert {len(part) for part in parts} == {428, 429}
    assert all(labels_of(part) == set(range(10)) for part in parts)


def test_power_law_devices_hold_their_two_labels_in_very_different_numbers() -> None:
    parts = PowerLaw()(LABELS, 20, 0)
    for device, part in enumerate(parts):
        assert labels_of(part) == {device % 10, (device + 1) % 10}
        for label in labels_of(part):
            assert np.count_nonzero(LABELS[part] == label) >= 5
    sizes = [len(part) for part in parts]
    assert max(sizes) > 5 * min(sizes)


def test_shards_have_few_labels_and_equal_sizes() -> None:
    parts = Shards(2)(LABELS, 50, 0)
    assert {len(part) for part in parts} == {60}
    assert max(len(labels_of(part)) for part in parts) <= 2


def test_a_small_alpha_is_more_skewed_than_a_large_one() -> None:
    def most_common_share(alpha: float) -> float:
        parts = Dirichlet(alpha)(LABELS, 10, 0)
        return float(np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts]))

    assert most_common_share(0.05) > 0.6
    assert most_common_share(100.0) < 0.2


def test_a_test_set_is_spread_like_the_training_set() -> None:
    """Label 0: devices hold 30, 10 and 0 samples, so 8 others go 6, 2, 0. Label 1 belongs to the last device."""
    labels = np.array([0] * 40 + [1] * 5)
    parts = [np.arange(30), np.arange(30, 40), np.arange(40, 45)]
    others = np.array([1, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    shared = like(parts, labels, others, seed=0)
    assert [len(part) for part in shared] == [6, 2, 2]
    assert shared[2].tolist() == [0, 5]
    assert sorted(np.concatenate(shared).tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (IID(), "10 samples cannot be shared out among 11 devices"),
        (PowerLaw(3), "labels_a_device=3, but the data have 2"),
    ],
)
def test_what_cannot_be_shared_out(partition: Partition, message: str) -> None:
    with pytest.raises(InputError, match=message):
        partition(np.array([0, 1] * 5), 11 if isinstance(partition, IID) else 3, 0)


@pytest.mark.parametrize(("kind", "field"), [(PowerLaw, "sigma"), (Dirichlet, "alpha"), (Shards, "shards_a_device")])
def test_bad_numbers(kind: type, field: str) -> None:
    with pytest.raises(InputError, match=f"{field}=0"):
        kind(**{field: 0})


def test_devices_that_got_nothing_are_served_at_once_by_the_richest() -> None:
    """As many devices as samples: looking for the richest again and again took an hour."""
    parts = PowerLaw()(np.arange(20_000) % 10, 20_000, seed=0)
    assert [len(part) for part in parts] == [1] * 20_000
    few = _without_empty([np.arange(0), np.arange(3), np.arange(3, 6), np.arange(0), np.arange(0)])
    assert [part.tolist() for part in few] == [[0], [2], [4, 5], [3], [1]]
