"""Laws of chance for what differs between devices, or between the jobs of one: seconds, or factors on them.

A law draws from the generator it is given and keeps nothing, so who asks decides what a number belongs to: one call with
`generator(seed, "speeds")` and the size of a fleet draws a number for every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_share, require_whole

_LEAST = 1e-3
"""Nothing takes no time: laws that reach down to 0 stop at this part of their scale."""


class Law(Protocol):
    """A distribution of positive, finite numbers."""

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]: ...


def drawn(law: Law, draw: np.random.Generator, devices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """One number of the law for each of some devices. A law that draws what is no number of seconds is an `InputError`.

    With 0 seconds per job a run would make version after version and its clock would stand still.
    """
    numbers = np.asarray(law.draw(draw, len(devices)), dtype=np.float64)
    if numbers.shape != (len(devices),):
        raise InputError(
            f"{law!r} drew shape {numbers.shape} where {len(devices)} numbers were asked for: draw one each."
        )
    bad = np.flatnonzero(~((numbers > 0) & np.isfinite(numbers)))
    if len(bad):
        raise InputError(
            f"{law!r} drew {numbers[bad[0]]} for device {devices[bad[0]]}: a law of delays draws finite numbers above 0."
        )
    return numbers


@dataclass(frozen=True)
class Fixed:
    """X = value."""

    value: float = 1.0

    def __post_init__(self) -> None:
        require_positive("value", self.value)

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return np.full(count, self.value, dtype=np.float64)


@dataclass(frozen=True)
class HalfNormal:
    """X = |N(0, sd²)|, at least sd/1000. Mean sd·√(2/π) = 0.80·sd, median 0.67·sd.

    What the experiments of FedBuff (Nguyen et al. 2022) draw training times from, after what its authors saw in use.
    """

    sd: float = 1.0

    def __post_init__(self) -> None:
        require_positive("sd", self.sd)

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return self.sd * np.maximum(np.abs(draw.standard_normal(count)), _LEAST)


@dataclass(frozen=True)
class Lognormal:
    """X = median·e^(σZ), Z ~ N(0, 1). Mean median·e^(σ²/2).

    σ = 0.6 and σ = 1.37 are what phones show: at 0.6 one in a hundred is 4 times slower than the median, at 1.37 24 times.
    """

    sigma: float = 0.6
    median: float = 1.0

    def __post_init__(self) -> None:
        require_positive("median", self.median)
        if not 0 < self.sigma <= 10:
            raise InputError(f"sigma={self.sigma} is no spread of a lognormal law: give a number above 0, at most 10.")

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return self.median * np.exp(self.sigma * draw.standard_normal(count))


@dataclass(frozen=True)
class SlowShare:
    """X ~ Exp with mean `slow_mean` for a share of the numbers, with `mean` for the others; at least 1/1000 of the mean.

    Of n numbers drawn together ⌊share·n + U⌋ are slow, U uniform in [0, 1): of a fleet the share itself, exactly where
    share·n is whole; of a single number, one with probability `share`.
    """

    share: float = 0.3
    mean: float = 2.0
    slow_mean: float = 8.0

    def __post_init__(self) -> None:
        require_share("share", self.share)
        require_positive("mean", self.mean)
        require_positive("slow_mean", self.slow_mean)

    def slow(self, draw: np.random.Generator, count: int) -> NDArray[np.bool_]:
        """Which of the numbers are slow that `draw` makes of a generator in the same state. A larger share adds to them."""
        order = draw.permutation(count)
        # Rounded, for 0.29·100 is 28.999…: U is to decide about halves, not about the last bit of a product.
        slow = np.zeros(count, dtype=bool)
        slow[order[: int(round(self.share * count, 9) + draw.random())]] = True
        return slow

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        means = np.where(self.slow(draw, count), self.slow_mean, self.mean)
        return means * np.maximum(draw.standard_exponential(count), _LEAST)


@dataclass(frozen=True)
class Pareto:
    """P(X > x) = (least/x)^shape for least ≤ x < cap·least; all that would lie above is cap·least itself.

    So the cap keeps a probability of cap^−shape: at the defaults, one in a hundred takes 100 times the least. Without it the
    mean is infinite for a shape of at most 1, and one device would make every round as long as it likes.
    """

    shape: float = 1.0
    least: float = 1.0
    cap: float = 100.0

    def __post_init__(self) -> None:
        require_positive("shape", self.shape)
        require_positive("least", self.least)
        require_positive("cap", self.cap)
        if self.cap < 1:
            raise InputError(f"cap={self.cap} is a multiple of the least number: give 1 or more.")

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return self.least * np.minimum(1.0 + draw.pareto(self.shape, count), self.cap)


@dataclass(frozen=True)
class Zipf:
    """P(X = k) = k^−s / Σ_j j^−s for the whole numbers k = 1..cap, s the exponent."""

    exponent: float = 1.2
    cap: int = 100

    def __post_init__(self) -> None:
        require_positive("exponent", self.exponent)
        require_whole("cap", self.cap)
        if self.cap != int(self.cap):
            raise InputError(f"cap={self.cap} is the largest of some whole numbers: give a whole number.")

    def draw(self, draw: np.random.Generator, count: int) -> NDArray[np.float64]:
        return np.searchsorted(self._below, draw.random(count), side="right").astype(np.float64) + 1.0

    @cached_property
    def _below(self) -> NDArray[np.float64]:
        """P(X ≤ k) for every k."""
        sums: NDArray[np.float64] = np.cumsum(np.arange(1, self.cap + 1, dtype=np.float64) ** -self.exponent)
        return sums / float(sums[-1])
