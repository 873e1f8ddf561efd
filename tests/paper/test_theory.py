import math

import numpy as np
import pytest
import torch

from hybridfl.data.federated import Samples
from hybridfl.data.synthetic import synthetic
from hybridfl.evaluation import Audience, Evaluation, ModuleForward
from hybridfl.losses import cross_entropy
from hybridfl.models import LogisticRegression
from hybridfl.paper import theory
from hybridfl.paper.theory import Constants, Problem
from hybridfl.vectors import flatten

TINY = Problem.of(
    Samples.from_devices(
        [
            (torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])),
            (torch.tensor([[2.0], [-2.0], [0.5], [1.0]]), torch.tensor([0, 0, 1, 1])),
        ]
    ),
    classes=2,
    l2=0.05,
)


def test_the_objective_and_its_gradient_by_hand() -> None:
    """At w = 0 both classes have probability ½: a loss of ln 2, and ∇W_c = mean((½ − 1_{y=c})·x), ∇b_c = mean(½ − 1_{y=c})."""
    value, slope = TINY.value_and_gradient(np.zeros(4), TINY.devices[0])
    assert value == pytest.approx(math.log(2))
    assert slope.tolist() == pytest.approx([-0.5, 0.5, 0.0, 0.0])
    value, slope = TINY.value_and_gradient(np.array([1.0, 0.0, 2.0, 0.0]), slice(0, 1))
    likely = 1 / (1 + math.exp(-3.0))  # z = (3, 0) for x = 1
    assert value == pytest.approx(-math.log(likely) + 0.05 * 5)
    assert slope.tolist() == pytest.approx([likely - 1 + 0.1, 1 - likely, likely - 1 + 0.2, 1 - likely])


def test_it_is_what_runs_record_as_their_training_loss() -> None:
    samples = synthetic(1.0, 1.0, 5, seed=3)
    model = LogisticRegression(60, 10)
    weights = 0.1 * torch.randn(610, generator=torch.Generator().manual_seed(0))
    everybody = Audience.of(samples, np.zeros(5, dtype=bool), chance=0.1)
    scores = Evaluation(ModuleForward(model, cross_entropy), samples, samples, everybody, 1e-4)(weights)
    problem = Problem.of(samples, 10, 1e-4)
    assert problem.value_and_gradient(weights.double().numpy(), theory.EVERYTHING)[0] == pytest.approx(
        scores.train_loss
    )
    assert len(flatten(model)) == 610


def test_the_minimum_is_certain() -> None:
    lowest = theory.optimum(TINY, 1e-10)
    value, slope = TINY.value_and_gradient(lowest.weights, theory.EVERYTHING)
    assert value == lowest.value
    assert float(slope @ slope) / (2 * theory.convexity(0.05)) == pytest.approx(lowest.certified)
    assert lowest.certified <= 1e-10
    draw = np.random.default_rng(0)
    for _ in range(20):
        assert TINY.value_and_gradient(lowest.weights + 0.1 * draw.normal(size=4), theory.EVERYTHING)[0] > value


def test_smoothness_by_hand() -> None:
    """XᵀX/N of x = 1, −1 with a column of ones is the unit matrix: ½·1 + 2ε."""
    problem = Problem(TINY.inputs[:2], TINY.targets[:2], (slice(0, 2),), 2, 0.05)
    assert theory.smoothness(problem) == pytest.approx(0.5 + 0.1)


def test_no_gradient_changes_faster_than_smoothness_allows() -> None:
    draw, smooth = np.random.default_rng(1), theory.smoothness(TINY)
    for _ in range(50):
        one, other = draw.normal(size=(2, 4))
        change = TINY.gradient(one, theory.EVERYTHING) - TINY.gradient(other, theory.EVERYTHING)
        assert np.linalg.norm(change) <= smooth * np.linalg.norm(one - other) * (1 + 1e-12)


def test_dissimilarity_is_1_where_all_hold_the_same() -> None:
    same = Problem(np.tile(TINY.inputs[:2], (2, 1)), np.tile(TINY.targets[:2], 2), (slice(0, 2), slice(2, 4)), 2, 0.05)
    assert theory.dissimilarity(same, [np.array([0.3, 0.1, 0.0, 0.2])]) == pytest.approx(1.0)


def test_dissimilarity_by_hand() -> None:
    """At w = 0, ∇W_0 = mean((½ − 1_{y=0})·x) is −½ and (−1 + 1 + ¼ + ½)/4 = 3/16, ∇b = 0; shares ⅓ and ⅔.

    Σ p‖∇F_i‖² = 2·(⅓·¼ + ⅔·9/256), ‖∇F‖² = 2·(−⅙ + ⅛)².
    """
    expected = math.sqrt((1 / 12 + 2 / 3 * 9 / 256) / (1 / 8 - 1 / 6) ** 2)
    assert theory.dissimilarity(TINY, [np.zeros(4)]) == pytest.approx(expected)


CONSTANTS = Constants(
    mu=0.5, smooth=2.0, gradient=3.0, stochastic=1.5, dissimilarity=2.0, normal_share=0.2, taylor=0.1, delay=10
)


def test_the_first_bound_by_hand() -> None:
    """B2 = 2⁸·0.2²·0.8² = 6.5536; t = 10: 0.1·8·100·9·2.25/(0.5⁶·400·6.5536) + 8·9/(2·20·0.5⁴·6.5536)."""
    high = 0.1 * 8 * 100 * 9 * 2.25 / (0.015625 * 400 * 6.5536)
    low = 8 * 9 / (2 * 20 * 0.0625 * 6.5536)
    assert CONSTANTS.convex_bound(np.array([10.0])).tolist() == pytest.approx([high + low])


def test_the_first_theorems_condition_by_hand() -> None:
    """B⁴·Ψ1·Ψ2 = 2.56; t = 10: 2/(0.25·10·2.56)."""
    assert CONSTANTS.convex_rate(np.array([10.0])).tolist() == pytest.approx([2 / 6.4])


def test_the_second_bound_by_hand() -> None:
    """B1 = 2⁴·0.2·0.8 = 2.56: 3/(100·0.1·2.56); its rate: (2/2)·√(0.2·2.56/0.8) = 0.8."""
    assert CONSTANTS.non_convex_bound(3.0, 0.1, np.array([100.0])).tolist() == pytest.approx([3 / 25.6])
    assert CONSTANTS.largest_rate() == pytest.approx(0.8)


def test_what_the_taylor_step_leaves_out_by_hand() -> None:
    """One device, from w = 0 to w: 2‖∇F(w) − ∇F(0) − ∇F(0)·(∇F(0)·w)‖/‖w‖²."""
    one = Problem(TINY.inputs[:2], TINY.targets[:2], (slice(0, 2),), 2, 0.05)
    there = np.array([1.0, 0.0, 0.0, 0.0])
    before, after = one.gradient(np.zeros(4), one.devices[0]), one.gradient(there, one.devices[0])
    expected = 2 * np.linalg.norm(after - before - before * before[0])
    assert theory.taylor(one, [np.zeros(4), there], 1) == pytest.approx(expected)


def test_a_rate_is_found_again() -> None:
    versions = np.arange(1.0, 200.0)
    assert theory.exponent(versions, 7.0 / (versions + 10) ** 0.7, 10) == pytest.approx(0.7)
    assert theory.exponent(np.arange(50.0), np.r_[1.0, 3.0 / np.arange(1.0, 50.0)], 0) == pytest.approx(1.0)
    assert math.isnan(theory.exponent(np.arange(4.0), np.ones(4), 10))
