import math

import pytest
import torch
from torch.testing import assert_close

from fakes import answer, fleet_of, job, vector
from hybridfl.algorithms.ad_sgd import NoCorrection, RankOne
from hybridfl.algorithms.blend import Blend, ByStaleness, ConstantWeight, DataShare, Printed
from hybridfl.errors import InputError

FLEET = fleet_of(1, 3)
FRESH = answer(job(0, version=5, base=[1.0], rate=0.1), -0.2)
LATE = answer(job(1, version=3, base=[0.8], rate=0.2), 0.3)
"""g = −1.5 from 0.8; at w_t = 1: d = 0.2, g·d = −0.3, g̃ = 0.7·(−1.5) = −1.05."""


def test_the_readings_of_lambda_by_hand() -> None:
    staleness = vector(0.0, 2.0)
    assert_close(Printed(0.5)(5, staleness, 0.75), 0.5 * vector(math.exp(-5), math.exp(-3)))
    assert_close(ByStaleness(0.5)(5, staleness, 0.75), 0.5 * vector(1.0, math.exp(-2)))
    assert_close(ConstantWeight(0.3)(5, staleness, 0.75), vector(0.3, 0.3))
    assert_close(DataShare()(5, staleness, 0.75), vector(0.75, 0.75))


def test_as_printed_lambda_grows_with_staleness_and_vanishes_with_time() -> None:
    weight = Printed(0.5)
    assert weight(5, vector(4.0), 0.0) > weight(5, vector(1.0), 0.0)
    assert weight(30, vector(5.0), 0.0) < 1e-10


def test_equation_new_letter_by_letter() -> None:
    """λ = ½, p = ¼ and ¾ and not normalised: ½·¼·0.8 + ½·¾·(0.8 − 0.1·(−1.05)) = 0.1 + 0.375·0.905."""
    blend = Blend(ConstantWeight(0.5), RankOne(math.inf), normalised=False)
    weights, _ = blend.close(None, vector(1.0), 5, 0.1, [FRESH, LATE], FLEET)
    assert_close(weights, vector(0.1 + 0.375 * 0.905))


def test_equation_new_normalised() -> None:
    """½·0.8 + ½·0.905."""
    blend = Blend(ConstantWeight(0.5), RankOne(math.inf), normalised=True)
    weights, _ = blend.close(None, vector(1.0), 5, 0.1, [FRESH, LATE], FLEET)
    assert_close(weights, vector(0.5 * 0.8 + 0.5 * 0.905))


def test_stragglers_of_different_staleness_have_their_own_lambda() -> None:
    """By staleness with λ_0 = 1: e^−1 and e^−2, shares ¼ and ¾ of what is late, no fresh update, so ŵ = w_t = 2."""
    late = [answer(job(0, 4, [1.0]), 0.5), answer(job(1, 3, [1.0]), -0.5)]
    blend = Blend(ByStaleness(1.0), NoCorrection(), normalised=True)
    weights, _ = blend.close(None, vector(2.0), 5, 0.1, late, FLEET)
    a, b = 0.25 * math.exp(-1), 0.75 * math.exp(-2)
    assert_close(weights, vector((1 - a - b) * 2.0 + a * 1.5 + b * 0.5))


def test_a_round_without_stragglers_is_the_kernel_alone() -> None:
    normalised, _ = Blend(normalised=True).close(None, vector(1.0), 5, 0.1, [FRESH], FLEET)
    printed, _ = Blend(normalised=False).close(None, vector(1.0), 5, 0.1, [FRESH], FLEET)
    assert_close(normalised, vector(0.8))
    assert_close(printed, vector(0.25 * 0.8))


def test_the_step_starts_from_the_old_model() -> None:
    blend = Blend(ConstantWeight(1.0), NoCorrection(), normalised=True)
    weights, _ = blend.close(None, vector(100.0), 5, 0.2, [LATE], FLEET)
    assert_close(weights, vector(1.1))


def test_lambda_is_a_share() -> None:
    for weight in (Printed, ByStaleness, ConstantWeight):
        with pytest.raises(InputError, match=r"1\.5"):
            weight(1.5)


def test_nothing_is_remembered() -> None:
    assert Blend().close(None, vector(1.0), 5, 0.1, [FRESH, LATE], FLEET)[1] is None
    assert Blend().forgotten(None) == 0
    assert torch.isfinite(Blend().close(None, vector(1.0), 5, 0.1, [FRESH, LATE], FLEET)[0]).all()
