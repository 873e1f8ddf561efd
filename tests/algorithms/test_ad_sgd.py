"""g = (2, −1) from w_base = (1, 2) with η = 0.5, so Δ = (−1, 0.5); the model is now at (1.1, 2): d = (0.1, 0), g·d = 0.2."""

import dataclasses
import math

import pytest
import torch
from torch.testing import assert_close

from fakes import vector
from hybridfl.algorithms.ad_sgd import Correction, Delayed, Diagonal, MeanRankOne, NoCorrection, RankOne, Secant
from hybridfl.errors import InputError
from hybridfl.vectors import weighted_sum

W_BASE, DELTA, ETA, W_NOW = vector(1.0, 2.0), vector(-1.0, 0.5), 0.5, vector(1.1, 2.0)


def one_delayed(fresh: bool = False) -> Delayed:
    return Delayed(
        deltas=DELTA.unsqueeze(0),
        rates=vector(ETA),
        steps=vector(4.0),
        offsets=(DELTA * W_BASE).sum().unsqueeze(0),
        squares=DELTA.square().sum().unsqueeze(0),
        fresh=torch.tensor([fresh]),
        bases=W_BASE.unsqueeze(0),
    )


def total(correction: Correction, coefficients: torch.Tensor, delayed: Delayed, weights: torch.Tensor) -> torch.Tensor:
    """Σ_i a_i·Δ̃_i."""
    scales, rows = correction.corrected(delayed, weights)
    return weighted_sum(coefficients * scales, rows)


def test_along_is_g_times_d() -> None:
    assert_close(one_delayed().along(W_NOW), vector(0.2))


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (NoCorrection(), (-1.0, 0.5)),
        (Secant(1.0), (-1.08, 0.54)),  # Δ·d/‖Δ‖² = −0.1/1.25 = −0.08: s = 0.08
        (Secant(3.0), (-1.24, 0.62)),
        (Secant(3.0, trust=0.1), (-1.1, 0.55)),
        (Secant(3.0, trust=0.0), (-1.0, 0.5)),
        (RankOne(math.inf), (-1.2, 0.6)),  # g̃ = 1.2·g = (2.4, −1.2), Δ̃ = −0.5·g̃
        (RankOne(0.1), (-1.1, 0.55)),  # s = clip(0.2, ±0.1) = 0.1
        (RankOne(0.0), (-1.0, 0.5)),
        (MeanRankOne(), (-1.05, 0.525)),  # k = 4: 1 + 0.2/4
        (Diagonal(math.inf), (-1.2, 0.5)),  # g⊙g⊙d = (0.4, 0): g̃ = (2.4, −1)
        (Diagonal(0.1), (-1.1, 0.5)),  # g⊙d = (0.2, 0) → (0.1, 0)
    ],
)
def test_corrections_by_hand(correction: Correction, expected: tuple[float, float]) -> None:
    assert_close(total(correction, vector(1.0), one_delayed(), W_NOW), vector(*expected))
    assert_close(total(correction, vector(0.25), one_delayed(), W_NOW), 0.25 * vector(*expected))


def test_a_gradient_the_model_has_followed_is_damped_and_one_it_went_against_is_raised() -> None:
    followed = W_BASE + 0.3 * DELTA
    opposed = W_BASE - 0.3 * DELTA
    for correction in (RankOne(0.3), Secant()):
        assert total(correction, vector(1.0), one_delayed(), followed).norm() < DELTA.norm()
        assert total(correction, vector(1.0), one_delayed(), opposed).norm() > DELTA.norm()


@pytest.mark.parametrize(("part", "left"), [(0.0, 1.0), (0.1, 0.7), (1 / 3, 0.0), (1.0, 0.0), (-0.1, 1.3), (-1.0, 2.0)])
def test_the_secant_leaves_what_the_model_has_not_made_of_the_step(part: float, left: float) -> None:
    corrected = total(Secant(3.0), vector(1.0), one_delayed(), W_BASE + part * DELTA)
    assert_close(corrected, left * DELTA, rtol=0, atol=1e-6)


def test_the_secant_is_a_rank_one_hessian_along_the_own_step() -> None:
    """R = gain/(η‖g‖²)·g·gᵀ with g = (2, −1), η = ½: R = 3/2.5·((4, −2), (−2, 1)); g̃ = g + R·d, d = (0.1, 0)."""
    g = -DELTA / ETA
    hessian = 3.0 / (ETA * g.square().sum()) * torch.outer(g, g)
    expected = -ETA * (g + hessian @ (W_NOW - W_BASE))
    assert_close(total(Secant(3.0, trust=math.inf), vector(1.0), one_delayed(), W_NOW), expected)


def test_a_device_that_did_not_move_leaves_the_model_alone() -> None:
    still = Delayed(torch.zeros(1, 2), vector(ETA), vector(4.0), torch.tensor([False]), torch.zeros(1, 2))
    assert_close(total(Secant(), vector(1.0), still, W_NOW), torch.zeros(2))


def test_rank_one_is_the_outer_product_without_the_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    deltas, bases = torch.randn(5, 7, generator=generator), torch.randn(5, 7, generator=generator)
    rates, shares = torch.rand(5, generator=generator) + 0.5, torch.rand(5, generator=generator)
    now = torch.randn(7, generator=generator)
    delayed = Delayed(
        deltas=deltas,
        rates=rates,
        steps=torch.ones(5),
        offsets=(deltas * bases).sum(1),
        squares=deltas.square().sum(1),
        fresh=torch.zeros(5, dtype=torch.bool),
        bases=bases,
    )
    expected = torch.zeros(7)
    for i in range(5):
        g = -deltas[i] / rates[i]
        hessian = torch.outer(g, g)
        expected += shares[i] * -rates[i] * (g + hessian @ (now - bases[i]))
    assert_close(total(RankOne(math.inf), shares, delayed, now), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("correction", [NoCorrection(), Secant(), RankOne(0.3), MeanRankOne(), Diagonal(0.3)])
def test_a_fresh_gradient_keeps_its_bits(correction: Correction) -> None:
    assert torch.equal(total(correction, vector(1.0), one_delayed(fresh=True), W_NOW), DELTA)


@pytest.mark.parametrize("correction", [NoCorrection(), Secant(), RankOne(0.3), MeanRankOne()])
def test_a_correction_by_one_scalar_copies_no_rows(correction: Correction) -> None:
    delayed = one_delayed()
    scales, rows = correction.corrected(delayed, W_NOW)
    assert rows is delayed.deltas
    assert scales.shape == (1,)


@pytest.mark.parametrize("correction", [NoCorrection(), Secant(), RankOne(0.3), MeanRankOne(), Diagonal(0.3)])
def test_rows_of_float16_in_units_of_their_own(correction: Correction) -> None:
    """Δ = (−1, ½) in units of 1/1024 is (−1024, 512), which float16 holds exactly."""
    halves = dataclasses.replace(
        one_delayed(), deltas=torch.tensor([[-1024.0, 512.0]], dtype=torch.float16), units=vector(1 / 1024)
    )
    scales, rows = correction.corrected(halves, W_NOW)
    assert_close(scales.unsqueeze(1) * rows, total(correction, vector(1.0), one_delayed(), W_NOW).unsqueeze(0))


@pytest.mark.parametrize("trust", [-0.1, math.nan])
def test_trust_must_not_be_negative(trust: float) -> None:
    with pytest.raises(InputError, match="trust"):
        RankOne(trust)
    with pytest.raises(InputError, match="trust"):
        Diagonal(trust)
    with pytest.raises(InputError, match="trust"):
        Secant(trust=trust)


@pytest.mark.parametrize("gain", [0.0, -1.0, math.nan, math.inf])
def test_gain_must_be_positive(gain: float) -> None:
    with pytest.raises(InputError, match="gain"):
        Secant(gain)
