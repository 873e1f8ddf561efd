import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=6)


def of_sizes(*sizes: int) -> Samples:
    """Sample s of all samples is (s, −s)."""
    numbers = torch.split(torch.arange(float(sum(sizes))), list(sizes))
    return Samples.from_devices([(own.unsqueeze(1), -own) for own in numbers])


def test_devices_are_ranges_of_the_samples() -> None:
    samples = of_sizes(2, 3, 1)
    assert samples.offsets.tolist() == [0, 2, 5, 6]
    assert samples.num_samples.tolist() == [2, 3, 1]
    assert len(samples) == 3
    assert samples.device_of.tolist() == [0, 0, 1, 1, 1, 2]
    assert samples.inputs[samples.rows(1)].flatten().tolist() == [2, 3, 4]
    assert samples.targets[samples.rows(1)].tolist() == [-2, -3, -4]


@given(SIZES, st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 3))
def test_a_split_parts_each_devices_rows_in_two(sizes: list[int], share: float, seed: int) -> None:
    samples = of_sizes(*sizes)
    train, test = samples.split(share, seed)
    for device, size in enumerate(sizes):
        kept, held_out = train.rows(device).tolist(), test.rows(device).tolist()
        assert sorted(kept + held_out) == samples.rows(device).tolist()
        assert len(held_out) == min(math.ceil(share * size), size - 1)
    assert train.inputs is test.inputs is samples.inputs


def test_a_device_with_one_sample_trains_on_it() -> None:
    train, test = of_sizes(1, 10).split(0.5)
    assert train.num_samples.tolist() == [1, 5]
    assert test.num_samples.tolist() == [0, 5]


def test_a_split_can_be_split_again() -> None:
    train, _ = of_sizes(20, 30).split(0.2)
    fit, validation = train.split(0.25)
    for device in (0, 1):
        assert sorted([*fit.rows(device), *validation.rows(device)]) == train.rows(device).tolist()
    assert validation.num_samples.tolist() == [4, 6]


@pytest.mark.parametrize("share", [1.0, 1, 1.5])
def test_a_split_leaves_something_to_train_on(share: float) -> None:
    for split in (of_sizes(50, 50).split, of_sizes(50, 50).split_in_order):
        with pytest.raises(InputError, match=f"test_share={share} .*: give a number"):
            split(share)
    assert len(of_sizes(50, 50).split(0)[1].index) == 0


def test_a_seed_may_be_numpys() -> None:
    for first, second in zip(of_sizes(50, 50).split(0.2, 3), of_sizes(50, 50).split(0.2, np.int64(3)), strict=True):  # type: ignore[arg-type]
        assert np.array_equal(first.index, second.index)


def test_a_split_is_drawn_by_its_seed() -> None:
    samples = of_sizes(50, 50)
    first, again, other = (samples.split(0.2, seed)[1].index for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:10], first[10:] - 50)


def test_what_a_device_holds_out_does_not_depend_on_the_other_devices() -> None:
    few, many = of_sizes(50, 20), of_sizes(50, 20, 7, 9)
    for device in (0, 1):
        assert np.array_equal(few.split(0.2)[1].rows(device), many.split(0.2)[1].rows(device))


@given(SIZES, st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 20))
def test_a_split_in_order_keeps_order_and_gap(sizes: list[int], share: float, gap: int) -> None:
    samples = of_sizes(*sizes)
    train, test = samples.split_in_order(share, gap)
    for device, size in enumerate(sizes):
        rows, kept, held_out = (part.rows(device).tolist() for part in (samples, train, test))
        assert kept
        assert kept == rows[: len(kept)]
        if held_out:
            assert held_out == rows[len(rows) - len(held_out) :]
            assert size == len(kept) + gap + len(held_out)
        else:
            assert kept == rows
            assert share == 0 or size - gap < 2


@given(SIZES, st.integers(1, 40), st.integers(0, 3))
def test_drawn_samples_stay_with_their_devices(sizes: list[int], count: int, seed: int) -> None:
    samples = of_sizes(*sizes)
    drawn = samples.drawn(count, seed)
    assert len(drawn.index) == min(count, sum(sizes))
    assert len(drawn) == len(sizes)
    for device in range(len(sizes)):
        rows = drawn.rows(device).tolist()
        assert sorted(set(rows)) == rows
        assert set(rows) <= set(samples.rows(device).tolist())
    assert np.array_equal(drawn.index, samples.drawn(count, seed).index)


def test_rows_are_taken_in_their_shape() -> None:
    inputs, targets = of_sizes(4, 2).take(torch.tensor([[0, 5], [2, 2]]))
    assert inputs.tolist() == [[[0.0], [5.0]], [[2.0], [2.0]]]
    assert targets.tolist() == [[0.0, -5.0], [-2.0, -2.0]]


def test_a_share_beyond_all_is_refused() -> None:
    with pytest.raises(InputError, match=r"test_share=1\.5"):
        of_sizes(3).split(1.5)


def test_pooled_keeps_every_row_on_one_device() -> None:
    train, _ = of_sizes(10, 20, 1).split(0.3)
    pooled = train.pooled()
    assert len(pooled) == 1
    assert np.array_equal(pooled.rows(0), train.index)
    assert pooled.num_samples.tolist() == [train.num_samples.sum()]


def test_an_empty_list_of_devices_is_refused() -> None:
    with pytest.raises(InputError, match="list of devices is empty"):
        Samples.from_devices([])


def test_a_device_without_samples_is_refused_by_number() -> None:
    with pytest.raises(InputError, match="Device 1 has no samples"):
        of_sizes(2, 0, 1)


def test_unequal_numbers_of_inputs_and_targets_are_refused_by_number() -> None:
    with pytest.raises(InputError, match="Device 1 has 3 inputs but 2 targets"):
        Samples.from_devices([(torch.zeros(1, 2), torch.zeros(1)), (torch.zeros(3, 2), torch.zeros(2))])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "shape",
    [(4,), (2, 2), ()],
)
def test_inputs_that_are_not_finite_are_refused_by_device(value: float, shape: tuple[int, ...]) -> None:
    inputs = [torch.zeros(3, *shape) for _ in range(3)]
    inputs[1].view(-1)[-1] = value
    with pytest.raises(InputError, match="Device 1 has NaN or infinite inputs"):
        Samples.from_devices([(own, torch.zeros(3)) for own in inputs])


def test_targets_that_are_not_finite_are_refused_by_device() -> None:
    fine, broken = torch.zeros(2), torch.tensor([0.0, math.nan])
    with pytest.raises(InputError, match="Device 1 has NaN or infinite targets"):
        Samples.from_devices([(torch.zeros(2, 1), fine), (torch.zeros(2, 1), broken)])


def test_what_no_device_holds_may_be_anything() -> None:
    samples = Samples.from_devices([(torch.ones(4, 2), torch.zeros(4))])
    samples.inputs[3] = math.nan
    samples.with_rows([samples.rows(0)[:3]]).check_finite()
    with pytest.raises(InputError, match="Device 0 has NaN or infinite inputs"):
        samples.check_finite()


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.bool])
def test_whole_number_targets_are_classes(kind: torch.dtype) -> None:
    samples = Samples.from_devices([(torch.zeros(2, 1), torch.tensor([0, 1], dtype=kind))])
    assert samples.targets.dtype == torch.int64


def test_whole_numbers_are_inputs_too() -> None:
    tokens = Samples.from_devices([(torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1]))])
    assert tokens.inputs.dtype == torch.int64
