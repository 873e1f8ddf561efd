"""A mean over seeds with its 95 % confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """mean ± t_{0.975, m−1}·s/√m over m seeds; ±∞ of a single one."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        from scipy.stats import t  # of an extra, and slow to import

        array = np.asarray(values, dtype=np.float64)
        if len(array) < 2:
            return cls(float(array.mean()) if len(array) else math.nan, math.inf)
        half = t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array))
        return cls(float(array.mean()), float(half))

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def shown(self, digits: int) -> str:
        """`0.38 ± 0.14`."""
        spread = f" ± {self.half:.{digits}f}" if math.isfinite(self.half) else ""
        return f"{round(self.mean, digits) + 0.0:.{digits}f}{spread}"  # + 0.0: no -0.0

    def percent(self, digits: int = 1) -> str:
        """`83.4 ± 0.3`, in percent."""
        return Interval(100 * self.mean, 100 * self.half).shown(digits)
