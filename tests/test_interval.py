import math

import pytest

from hybridfl.interval import Interval


def test_three_seeds_by_hand() -> None:
    """mean 2, s = 1, t_{0.975, 2} = 4.3027: 4.3027/√3 = 2.484."""
    found = Interval.of([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == pytest.approx((2.0, 2.4841), abs=1e-4)
    assert (found.low, found.high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)


def test_a_single_seed_says_nothing_about_the_spread() -> None:
    assert Interval.of([0.5]) == Interval(0.5, math.inf)
    assert Interval.of([0.5]).percent() == "50.0"
    assert Interval(0.8341, 0.0042).percent() == "83.4 ± 0.4"
