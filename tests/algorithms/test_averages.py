"""By hand: steps (3, 4), (0, 1) and (0, 2) of devices that hold 20, 30 and 50 % of the data."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from torch.testing import assert_close

from fakes import vector
from hybridfl.algorithms import averages
from hybridfl.algorithms.averages import Average, ClippedMean, Mean, Median, TrimmedMean
from hybridfl.errors import InputError
from hybridfl.vectors import weighted_sum

SHARES = vector(0.2, 0.3, 0.5)
ROWS = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]])
UNTIMED = settings(deadline=None)
ALL = [Mean(), ClippedMean(), ClippedMean(0.5), Median(), TrimmedMean(0.0), TrimmedMean(), TrimmedMean(0.3)]


def of_steps(average: Average, shares: Tensor, rows: Tensor) -> Tensor:
    """With f_i = 1: the rows are the steps."""
    return average(shares, shares, rows)


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        (Mean(), (0.6, 2.1)),
        (ClippedMean(1.0), (0.24, 1.62)),  # lengths 5, 1, 2, so the bound is 2, and (3, 4) becomes (1.2, 1.6)
        (ClippedMean(2.0), (0.48, 1.94)),  # (2.4, 3.2)
        (ClippedMean(3.0), (0.6, 2.1)),
        (Median(), (0.0, 2.0)),  # of 0 to 80 %, 3 to 100 %, and of 1 to 30 %, 2 to 80 %, 4 to 100 %
        (TrimmedMean(0.0), (0.6, 2.1)),
        (TrimmedMean(0.1), (0.375, 2.0)),  # (0.7·0 + 0.1·3)/0.8 and (0.2·1 + 0.5·2 + 0.1·4)/0.8
        (TrimmedMean(0.25), (0.0, 1.9)),  # (0.05·1 + 0.45·2)/0.5
        (TrimmedMean(0.4), (0.0, 2.0)),
    ],
)
def test_by_hand(average: Average, expected: tuple[float, float]) -> None:
    assert_close(of_steps(average, SHARES, ROWS), vector(*expected))


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        (Mean(), 0.2 * 4.0 + 0.3 * 3.0 - 0.5 * 2.0),
        (ClippedMean(1.0), 0.2 * 3.0 + 0.3 * 3.0 - 0.5 * 2.0),  # the median of the lengths 4, 3, 2 is 3
        (Median(), 0.5),  # −2 and 3 meet at ½
        (TrimmedMean(0.1), (0.4 * -2.0 + 0.3 * 3.0 + 0.1 * 4.0) / 0.8),
    ],
)
def test_what_counts_is_the_factor_times_the_row(average: Average, expected: float) -> None:
    """f = (4, 3, −2) on rows of 1."""
    assert_close(average(SHARES, SHARES * vector(4.0, 3.0, -2.0), torch.ones(3, 1)), vector(expected))


def test_the_median_of_an_even_number_of_lengths_is_between_two() -> None:
    """Of 1, 2, 4, 9 it is 3, whatever their data."""
    shares, rows = vector(0.7, 0.1, 0.1, 0.1), torch.diag(vector(1.0, 2.0, 4.0, 9.0))
    assert_close(of_steps(ClippedMean(1.0), shares, rows), vector(0.7, 0.2, 0.3, 0.3))


def test_steps_of_length_0_leave_the_bound_alone() -> None:
    """A correction may damp most devices to nothing. The bound is the median of 1 and 3, so 2."""
    rows = torch.diag(vector(0.0, 0.0, 0.0, 1.0, 3.0))
    shares = torch.full((5,), 0.2)
    assert_close(of_steps(ClippedMean(1.0), shares, rows), vector(0.0, 0.0, 0.0, 0.2, 0.4))
    assert_close(of_steps(ClippedMean(1.0), shares, torch.zeros(5, 2)), torch.zeros(2))


def test_thirds_and_sixths_are_a_tie_though_float32_has_neither() -> None:
    assert_close(of_steps(Median(), vector(1 / 6, 1 / 3, 1 / 2), vector(1.0, 2.0, 10.0).unsqueeze(1)), vector(6.0))


@pytest.mark.parametrize("average", ALL)
def test_a_device_without_data_has_no_part(average: Average) -> None:
    shares = vector(0.2, 0.3, 0.5, 0.0)
    rows = torch.cat([ROWS, torch.full((1, 2), 1e6)])
    assert_close(of_steps(average, shares, rows), of_steps(average, SHARES, ROWS))


def test_bounds_of_what_can_be_set() -> None:
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="factor"):
            ClippedMean(factor)
    for share in (-0.1, 0.5, 1.0, math.nan):
        with pytest.raises(InputError, match="share"):
            TrimmedMean(share)


@st.composite
def steps(draw: st.DrawFn, least: int = 1) -> tuple[Tensor, Tensor]:
    """Shares of the data, and a row each."""
    count, length = draw(st.integers(least, 12)), draw(st.integers(1, 5))
    samples = torch.tensor(draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count)), dtype=torch.float64)
    numbers = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
    rows = torch.from_numpy(draw(hnp.arrays("float32", (count, length), elements=numbers)))
    return (samples / samples.sum()).float(), rows


@UNTIMED
@given(steps(), st.lists(st.floats(-2.0, 2.0, width=32, allow_subnormal=False), min_size=12, max_size=12))
def test_the_mean_is_the_weighted_sum_bit_for_bit(given: tuple[Tensor, Tensor], factors: list[float]) -> None:
    shares, rows = given
    coefficients = shares * vector(*factors)[: len(shares)]
    assert torch.equal(Mean()(shares, coefficients, rows), weighted_sum(coefficients, rows))


@UNTIMED
@given(steps(), st.sampled_from(ALL))
def test_an_average_lies_between_the_lowest_and_the_highest(given: tuple[Tensor, Tensor], average: Average) -> None:
    """A shortened step lies between 0 and itself."""
    shares, rows = given
    found = of_steps(average, shares, rows)
    if isinstance(average, ClippedMean):
        rows = torch.cat([rows, torch.zeros_like(rows[:1])])
    slack = 1e-5 * rows.abs().amax(0) + 1e-6
    assert (found >= rows.amin(0) - slack).all()
    assert (found <= rows.amax(0) + slack).all()


@UNTIMED
@given(steps(), st.sampled_from(ALL), st.randoms(use_true_random=False))
def test_the_order_of_the_devices_makes_no_difference(
    given: tuple[Tensor, Tensor], average: Average, random: Random
) -> None:
    shares, rows = given
    order = list(range(len(shares)))
    random.shuffle(order)
    slack = 1e-6 * max(1.0, float(rows.abs().max()))
    shuffled = of_steps(average, shares[order], rows[order])
    assert_close(shuffled, of_steps(average, shares, rows), rtol=1e-5, atol=slack)


@UNTIMED
@given(steps(), st.floats(-100.0, 100.0, width=32))
def test_towards_one_half_the_trimmed_mean_is_the_median(given: tuple[Tensor, Tensor], factor: float) -> None:
    """But where less than the part kept lies between two steps."""
    shares, rows = given
    coefficients = shares * factor
    ends = torch.cumsum(shares[rows[:, 0].argsort(stable=True)].double(), 0)
    if ((ends - 0.5).abs() > 1e-3).all():
        trimmed = TrimmedMean(0.4999)(shares, coefficients, rows[:, :1])
        assert_close(trimmed, Median()(shares, coefficients, rows[:, :1]), rtol=1e-5, atol=1e-3)


ARBITRARY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@UNTIMED
@given(steps(least=2), st.data())
def test_the_median_stays_among_the_honest_if_they_hold_more_than_half(
    given: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    shares, rows = given
    hostile = torch.zeros(len(shares), dtype=torch.bool)
    for device in data.draw(st.permutations(range(len(shares)))):
        if shares[hostile].sum() + shares[device] < 0.499:
            hostile[device] = True
    sent = data.draw(hnp.arrays("float32", tuple(rows[hostile].shape), elements=ARBITRARY))
    rows[hostile] = torch.from_numpy(sent)
    found = of_steps(Median(), shares, rows)
    assert (found >= rows[~hostile].amin(0)).all()
    assert (found <= rows[~hostile].amax(0)).all()


@UNTIMED
@given(steps(least=2), st.data())
def test_the_trimmed_mean_stays_among_the_honest_if_the_others_hold_no_more_than_is_trimmed(
    given: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    shares, rows = given
    hostile = int(shares.argmin())
    share = min(0.49, float(shares[hostile]) + 1e-4)
    honest = [device for device in range(len(shares)) if device != hostile]
    if shares[hostile] < share:
        rows[hostile] = torch.from_numpy(data.draw(hnp.arrays("float32", rows.shape[1], elements=ARBITRARY)))
        found = of_steps(TrimmedMean(share), shares, rows)
        slack = 1e-5 * rows[honest].abs().amax(0) + 1e-6
        assert (found >= rows[honest].amin(0) - slack).all()
        assert (found <= rows[honest].amax(0) + slack).all()


@UNTIMED
@given(steps(least=3), st.data())
def test_a_hostile_device_moves_the_clipped_mean_by_its_share_of_the_longest_honest_step_at_most(
    given: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    shares, rows = given
    hostile = data.draw(st.integers(0, len(shares) - 1))
    rows[hostile] = torch.from_numpy(data.draw(hnp.arrays("float32", rows.shape[1], elements=ARBITRARY)))
    found = of_steps(ClippedMean(1.0), shares, rows)
    longest = torch.cat([rows[:hostile], rows[hostile + 1 :]]).norm(dim=1).max()
    if (rows.norm(dim=1) > 0).sum() >= 3:
        assert found.norm() <= longest * (1 + 1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("average", [ClippedMean(), Median(), TrimmedMean(0.3)])
def test_what_is_no_number_or_beyond_all_bounds_does_no_harm(average: Average, bad: float) -> None:
    rows = torch.cat([ROWS, torch.full((1, 2), bad)])
    found = of_steps(average, vector(0.16, 0.24, 0.4, 0.2), rows)
    assert found.isfinite().all()
    assert found.abs().max() <= 5.0


@pytest.mark.parametrize("average", ALL)
def test_blocks_give_what_all_at_once_gives(average: Average, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    shares, rows = torch.rand(7, generator=draw), torch.randn(7, 23, generator=draw)
    shares, factors = shares / shares.sum(), torch.randn(7, generator=draw)
    once = average(shares, shares * factors, rows)
    once_halves = average(shares, shares * factors, rows.half())
    for size in (1, 10, 50):
        monkeypatch.setattr(averages, "_block_size", lambda rows, size=size: size)
        assert_close(average(shares, shares * factors, rows), once)
        assert_close(average(shares, shares * factors, rows.half()), once_halves)


@pytest.mark.parametrize("average", ALL)
def test_rows_of_float16_are_averaged_in_float32(average: Average) -> None:
    draw = torch.Generator().manual_seed(1)
    shares, rows = torch.full((50,), 0.02), torch.randn(50, 9, generator=draw).half()
    found = of_steps(average, shares, rows)
    assert found.dtype == torch.float32
    assert_close(found, of_steps(average, shares, rows.float()), rtol=1e-6, atol=1e-7)
