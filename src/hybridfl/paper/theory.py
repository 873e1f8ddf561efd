"""The constants of the paper's convergence theorems, estimated on softmax regression, and the bounds they make.

F(w) = Σ_i p_i·F_i(w),  F_i: mean cross-entropy of device i's samples + ε‖w‖²; in float64 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError

Floats = NDArray[np.float64]
Rows = slice | NDArray[np.int64]
EVERYTHING = slice(None)


@dataclass(frozen=True, eq=False)
class Problem:
    """Softmax regression on the devices' samples; w is W [classes, features] row by row, then b [classes]."""

    inputs: Floats
    """[samples, features + 1]: the last column is 1, for b."""
    targets: NDArray[np.int64]
    devices: tuple[slice, ...]
    """Which samples each device holds: they stand device by device, and all of them are some device's."""
    classes: int
    l2: float

    @classmethod
    def of(cls, samples: Samples, classes: int, l2: float) -> Problem:
        flat = samples.inputs.flatten(1).double().numpy() * (1.0 if samples.scale is None else samples.scale)
        order = samples.index[samples.offsets[0] : samples.offsets[-1]]
        starts = (samples.offsets - samples.offsets[0]).tolist()
        return cls(
            np.concatenate([flat, np.ones((len(flat), 1))], axis=1)[order],
            samples.targets.numpy().astype(np.int64)[order],
            tuple(map(slice, starts[:-1], starts[1:])),
            classes,
            l2,
        )

    @property
    def shares(self) -> Floats:
        """p_i."""
        counts = np.array([rows.stop - rows.start for rows in self.devices], dtype=np.float64)
        return np.asarray(counts / counts.sum())

    def value_and_gradient(self, weights: Floats, rows: Rows) -> tuple[float, Floats]:
        """The mean over these samples, and the L2 term."""
        x, y = self.inputs[rows], self.targets[rows]
        features = x.shape[1] - 1
        joined = np.concatenate(
            [weights[: -self.classes].reshape(self.classes, features).T, weights[None, -self.classes :]]
        )
        z = x @ joined
        z -= z.max(axis=1, keepdims=True)
        powers = np.exp(z)
        totals = powers.sum(axis=1)
        value = float(np.mean(np.log(totals) - z[np.arange(len(y)), y])) + self.l2 * float(weights @ weights)
        residuals = powers / totals[:, None]
        residuals[np.arange(len(y)), y] -= 1.0
        slopes = x.T @ residuals / len(y)
        return value, np.concatenate([slopes[:-1].T.ravel(), slopes[-1]]) + 2 * self.l2 * weights

    def gradient(self, weights: Floats, rows: Rows) -> Floats:
        return self.value_and_gradient(weights, rows)[1]


@dataclass(frozen=True, eq=False)
class Optimum:
    """F* = F(w*), and how far above the true minimum it may be: ‖∇F(w*)‖²/(2μ)."""

    weights: Floats
    value: float
    certified: float


def optimum(problem: Problem, goal: float = 1e-10) -> Optimum:
    """By L-BFGS, until F(w) − F* ≤ `goal` for certain."""
    mu = convexity(problem.l2)
    weights = np.zeros(problem.classes * problem.inputs.shape[1])
    gtol = math.sqrt(2 * mu * goal / len(weights))  # of the largest component, so ‖∇F‖² ≤ 2μ·goal
    for _ in range(20):
        found = minimize(  # type: ignore[call-overload]  # its stubs take whole numbers for options, or floats
            lambda w: problem.value_and_gradient(w, EVERYTHING),
            weights,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 20_000, "maxfun": 40_000, "maxcor": 30, "gtol": gtol, "ftol": 0.0},
        )
        weights = np.asarray(found.x, dtype=np.float64)
        value, slope = problem.value_and_gradient(weights, EVERYTHING)
        certified = float(slope @ slope) / (2 * mu)
        if certified <= goal:
            return Optimum(weights, value, certified)
    raise InputError(f"The minimum is not certain to {goal}, but to {certified:.1e}: give a larger L2 term.")


def convexity(l2: float) -> float:
    """μ = 2ε: cross-entropy itself is convex, but not strongly."""
    return 2 * l2


def smoothness(problem: Problem) -> float:
    """L = ½·λ_max(XᵀX/N) + 2ε: the Hessian of a sample's cross-entropy is (diag(p) − p·pᵀ) ⊗ x·xᵀ, and diag(p) − p·pᵀ ≤ ½."""
    x = problem.inputs
    return 0.5 * float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) + 2 * problem.l2


@dataclass(frozen=True)
class Constants:
    """What the theorems' bounds are made of; τ: the longest delay in versions."""

    mu: float
    smooth: float
    """L."""
    gradient: float
    """G: the longest accumulated gradient that a device sent."""
    stochastic: float
    """σ: the longest gradient of a minibatch, of one drawn a device and version."""
    dissimilarity: float
    """B: √(Σ p_i‖∇F_i(w_t)‖²)/‖∇F(w_t)‖, the greatest over versions."""
    normal_share: float
    """Ψ1; Ψ2 = 1 − Ψ1."""
    taylor: float
    """L2: 2‖∇F_i(w_t) − ∇F_i(w_s) − R·d‖/‖d‖², R = ∇F_i(w_s)·∇F_i(w_s)ᵀ, d = w_t − w_s; the greatest over devices, versions."""
    delay: float

    @property
    def slow_share(self) -> float:
        return 1.0 - self.normal_share

    def convex_bound(self, versions: Floats) -> Floats:
        """L2·L³·τ²·G²·σ²/(μ⁶·(t+τ)²·B2) + L³·G²/(2·(t+τ)·μ⁴·B2),  B2 = B⁸·Ψ1²·Ψ2²   (Theorem 1)."""
        b2 = self.dissimilarity**8 * self.normal_share**2 * self.slow_share**2
        after = versions + self.delay
        cubed, squared = self.smooth**3, self.gradient**2
        high = self.taylor * cubed * self.delay**2 * squared * self.stochastic**2 / (self.mu**6 * after**2 * b2)
        return high + cubed * squared / (2 * after * self.mu**4 * b2)

    def convex_rate(self, versions: Floats) -> Floats:
        """η_t ≤ L/(μ²·t·B⁴·Ψ1·Ψ2), Theorem 1's condition for it."""
        return np.asarray(self.smooth / (self.mu**2 * versions * self._b1))

    def non_convex_bound(self, gap: float, rate: float, rounds: Floats) -> Floats:
        """(F(w_0) − F*)/(T·η·B1),  B1 = B⁴·Ψ1·Ψ2   (Theorem 2)."""
        return gap / (rounds * rate * self._b1)

    def largest_rate(self) -> float:
        """η ≤ (2/L)·√(Ψ1·B1/Ψ2), the corollary's condition for it."""
        return 2 / self.smooth * math.sqrt(self.normal_share * self._b1 / self.slow_share)

    @property
    def _b1(self) -> float:
        return self.dissimilarity**4 * self.normal_share * self.slow_share


def dissimilarity(problem: Problem, models: Sequence[Floats]) -> float:
    """B over these models."""

    def ratio(weights: Floats) -> float:
        slopes = np.array([problem.gradient(weights, rows) for rows in problem.devices])
        joint = problem.shares @ slopes
        return math.sqrt(float(problem.shares @ (slopes**2).sum(axis=1)) / float(joint @ joint))

    return max(map(ratio, models))


def stochastic(problem: Problem, models: Sequence[Floats], batch_size: int, draw: np.random.Generator) -> float:
    """σ: the longest gradient of one minibatch of each device at each model."""
    lengths = [
        float(
            np.linalg.norm(
                problem.gradient(weights, rows.start + draw.permutation(rows.stop - rows.start)[:batch_size])
            )
        )
        for weights in models
        for rows in problem.devices
    ]
    return max(lengths)


def taylor(problem: Problem, models: Sequence[Floats], delay: int) -> float:
    """L2 over pairs of models so many versions apart, and all devices."""
    return max(_remainders(problem, models, delay), default=math.nan)


def _remainders(problem: Problem, models: Sequence[Floats], delay: int) -> Iterator[float]:
    for old, new in zip(models, models[delay:], strict=False):
        moved = new - old
        length = float(moved @ moved)
        if length == 0:
            continue
        for rows in problem.devices:
            before, after = problem.gradient(old, rows), problem.gradient(new, rows)
            yield 2 * float(np.linalg.norm(after - before - before * float(before @ moved))) / length


def exponent(versions: Floats, gaps: Floats, delay: float) -> float:
    """α in log(gap) ≈ a − α·log(t + τ), by least squares.

    Over versions from τ on: before, not every device has been heard from. NaN of fewer than three.
    """
    use = (versions >= max(delay, 1.0)) & (gaps > 0)
    if use.sum() < 3:
        return math.nan
    return -float(np.polyfit(np.log(versions[use] + delay), np.log(gaps[use]), 1)[0])
