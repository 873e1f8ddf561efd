import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridfl import laws
from hybridfl.errors import InputError
from hybridfl.laws import Fixed, HalfNormal, Law, Lognormal, Pareto, SlowShare, Zipf
from hybridfl.randomness import generator

MANY = 200_000
LAWS: list[Law] = [Fixed(), HalfNormal(), Lognormal(), SlowShare(), Pareto(), Zipf()]


def drawn(law: Law, count: int = MANY, seed: int = 0) -> NDArray[np.float64]:
    return law.draw(generator(seed, "a test"), count)


@pytest.mark.parametrize("law", LAWS)
def test_the_same_generator_gives_the_same_positive_numbers_and_another_one_others(law: Law) -> None:
    numbers = drawn(law, 1000)
    assert numbers.shape == (1000,)
    assert numbers.dtype == np.float64
    assert ((numbers > 0) & np.isfinite(numbers)).all()
    assert np.array_equal(numbers, drawn(law, 1000))
    assert isinstance(law, Fixed) or not np.array_equal(numbers, drawn(law, 1000, seed=1))
    assert drawn(law, 0).shape == (0,)


def test_a_fixed_number_is_the_number() -> None:
    assert drawn(Fixed(2.5), 3).tolist() == [2.5, 2.5, 2.5]


def test_half_normal_has_the_mean_median_and_spread_of_a_normal_without_its_sign() -> None:
    numbers = drawn(HalfNormal(sd=10.0))
    assert numbers.mean() == pytest.approx(10 * math.sqrt(2 / math.pi), rel=0.01)  # 7.98
    assert np.median(numbers) == pytest.approx(6.745, rel=0.01)
    assert (numbers**2).mean() == pytest.approx(100, rel=0.01)
    assert np.quantile(numbers, 0.95) == pytest.approx(19.60, rel=0.01)


def test_half_normal_never_takes_no_time() -> None:
    numbers = drawn(HalfNormal(sd=10.0))
    assert numbers.min() == 0.01
    assert 50 < (numbers == 0.01).sum() < 300  # P(|Z| < 0.001) = 0.0008: 160 expected


@pytest.mark.parametrize("sigma", [0.6, 1.37])
def test_lognormal_has_its_median_and_its_logarithm_is_normal(sigma: float) -> None:
    logarithms = np.log(drawn(Lognormal(sigma, median=3.0)))
    assert logarithms.mean() == pytest.approx(math.log(3), abs=0.01)
    assert logarithms.std() == pytest.approx(sigma, rel=0.01)


@pytest.mark.parametrize(("sigma", "times"), [(0.6, 4.04), (1.37, 24.2)])
def test_one_in_a_hundred_is_that_many_times_slower_than_the_median(sigma: float, times: float) -> None:
    assert np.quantile(drawn(Lognormal(sigma)), 0.99) == pytest.approx(times, rel=0.03)  # e^(2.326·σ)


@pytest.mark.parametrize(("share", "count", "slow"), [(0.0, 10, 0), (0.3, 10, 3), (0.29, 100, 29), (1.0, 7, 7)])
def test_of_a_fleet_exactly_the_share_is_slow(share: float, count: int, slow: int) -> None:
    for seed in range(20):
        assert SlowShare(share).slow(generator(seed, "a test"), count).sum() == slow


def test_where_the_share_is_not_whole_it_is_so_on_average() -> None:
    counts = [int(SlowShare(0.3).slow(generator(seed, "a test"), 5).sum()) for seed in range(2000)]
    assert set(counts) == {1, 2}
    assert np.mean(counts) == pytest.approx(1.5, abs=0.05)


def test_a_single_number_is_slow_with_the_probability_of_the_share() -> None:
    law = SlowShare(0.3, mean=1.0, slow_mean=1e9)
    numbers = np.array([drawn(law, 1, seed)[0] for seed in range(3000)])
    assert (numbers > 1e5).mean() == pytest.approx(0.3, abs=0.03)


@given(st.integers(0, 100), st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_who_is_slow_at_a_small_share_is_slow_at_a_larger_one(seed: int, count: int, one: float, other: float) -> None:
    few = SlowShare(min(one, other)).slow(generator(seed, "a test"), count)
    many = SlowShare(max(one, other)).slow(generator(seed, "a test"), count)
    assert not (few & ~many).any()


def test_both_kinds_are_exponential_around_their_means_and_it_says_who_is_slow() -> None:
    law = SlowShare(share=0.3, mean=2.0, slow_mean=8.0)
    numbers, slow = drawn(law), law.slow(generator(0, "a test"), MANY)
    for mean, some in ((2.0, numbers[~slow]), (8.0, numbers[slow])):
        assert some.mean() == pytest.approx(mean, rel=0.02)
        assert np.median(some) == pytest.approx(mean * math.log(2), rel=0.02)
        assert some.std() == pytest.approx(mean, rel=0.02)
        assert some.min() == pytest.approx(mean / 1000)


def test_pareto_halves_when_the_number_doubles_and_piles_up_at_the_cap() -> None:
    numbers = drawn(Pareto(shape=1.0, least=2.0, cap=100.0))
    assert numbers.min() >= 2.0
    for x, probability in ((4.0, 0.5), (8.0, 0.25), (20.0, 0.1), (199.9, 0.01)):
        assert (numbers > x).mean() == pytest.approx(probability, rel=0.05)
    assert (numbers == 200.0).mean() == pytest.approx(0.01, rel=0.1)
    assert numbers.max() == 200.0
    assert numbers.mean() == pytest.approx(2 * (1 + math.log(100)), rel=0.02)  # ∫ P(X > x) dx, 11.2


def test_a_very_long_tail_is_capped_too() -> None:
    assert drawn(Pareto(shape=1e-3, cap=7.0), 1000).max() == 7.0


def test_zipf_draws_whole_numbers_with_the_probabilities_of_their_powers() -> None:
    numbers, counts = np.unique(drawn(Zipf(exponent=1.0, cap=3)), return_counts=True)
    assert numbers.tolist() == [1, 2, 3]
    assert counts / MANY == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.005)  # 1 + ½ + ⅓ = 11/6


def test_zipf_reaches_its_cap_and_no_further() -> None:
    numbers = drawn(Zipf())
    assert (numbers.min(), numbers.max()) == (1, 100)
    assert (numbers == 1).mean() / (numbers == 2).mean() == pytest.approx(2**1.2, rel=0.03)
    assert set(drawn(Zipf(cap=1), 100)) == {1.0}


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (Fixed, {"value": 0.0}, "value=0.0"),
        (Fixed, {"value": math.inf}, "value=inf"),
        (HalfNormal, {"sd": -1.0}, "sd=-1.0"),
        (Lognormal, {"sigma": 0.0}, "sigma=0.0"),
        (Lognormal, {"sigma": 11.0}, "sigma=11.0"),
        (Lognormal, {"sigma": math.nan}, "sigma=nan"),
        (Lognormal, {"median": 0.0}, "median=0.0"),
        (SlowShare, {"share": 1.1}, "share=1.1"),
        (SlowShare, {"mean": 0.0}, "mean=0.0"),
        (SlowShare, {"slow_mean": math.nan}, "slow_mean=nan"),
        (Pareto, {"shape": 0.0}, "shape=0.0"),
        (Pareto, {"least": 0.0}, "least=0.0"),
        (Pareto, {"cap": 0.5}, "cap=0.5"),
        (Pareto, {"cap": math.inf}, "cap=inf"),
        (Zipf, {"exponent": 0.0}, "exponent=0.0"),
        (Zipf, {"cap": 0}, "cap=0"),
        (Zipf, {"cap": 2.5}, "cap=2.5"),
    ],
)
def test_refuses_what_is_no_law(make: type, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make(**arguments)


@dataclass(frozen=True)
class Own:
    """A user's law: 1 s for all but the third number."""

    third: float

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return np.where(np.arange(count) == 2, self.third, 1.0)


@dataclass(frozen=True)
class Short:
    """A user's law that draws one number, whatever is asked for."""

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return np.ones(1)


def test_a_good_law_of_ones_own_is_taken() -> None:
    assert laws.drawn(Own(2.0), generator(0, "a test"), [7, 8, 9]).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_law_that_draws_no_seconds_is_an_error_that_names_law_device_and_value(value: float) -> None:
    with pytest.raises(InputError, match=rf"Own\(third={value}\) drew {value} for device 9"):
        laws.drawn(Own(value), generator(0, "a test"), [7, 8, 9])


def test_a_law_that_draws_too_few_numbers_is_an_error() -> None:
    with pytest.raises(InputError, match=r"Short\(\) drew shape \(1,\) where 3 numbers"):
        laws.drawn(Short(), generator(0, "a test"), [7, 8, 9])
