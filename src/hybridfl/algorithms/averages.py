"""How the steps of many devices become one: their mean, or an average that a few hostile devices cannot move at will.

A step is value_i = f_i·row_i and counts by q_i, its share of the data; c_i = q_i·f_i. With f_i apart from the row, what a
correction or the learning rate does to a whole row costs one number and no copy of the rows.

Where devices differ in what they know, whatever goes by coordinate takes the rare for hostile; shortening does not. Nothing
here sees a hostile step of ordinary length. `benchmarks/hostile.py` measures all of them (docs/reliability.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hybridfl.errors import InputError, require_positive
from hybridfl.protocol import Vector
from hybridfl.vectors import beside, weighted_sum

TIE = 1e-6
"""Shares of the data that differ by less are equal: they are float32 and need not add up to ½ exactly."""


class Average(Protocol):
    """One step made of m."""

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Vector:
        """`shares` [m]: q_i, adding up to 1; `coefficients` [m]: c_i = q_i·f_i; `rows` [m, n], float16, 32 or 64."""


def averaged(average: Average, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Vector:
    """What an average makes of m steps, once it is known to be a step: a single number would move all weights alike."""
    step = average(shares, coefficients, rows)
    if not isinstance(step, Tensor) or step.shape != rows.shape[1:]:
        name = getattr(average, "__name__", type(average).__name__)
        what = f"a tensor of shape {list(step.shape)}" if isinstance(step, Tensor) else f"{type(step).__name__}"
        raise InputError(
            f"The average {name} made {what} of {len(rows)} steps: give one step, a tensor of shape {list(rows.shape[1:])}, as "
            "`rows.T @ coefficients` is."
        )
    return step


@dataclass(frozen=True)
class Mean:
    """Σ_i c_i·row_i = Σ_i q_i·value_i: each step by its data. A single hostile device moves it as far as it likes."""

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Vector:
        if rows.dtype == torch.float16:
            return _sum_of_blocks(beside(coefficients, rows), rows)
        return weighted_sum(coefficients, rows)


@dataclass(frozen=True)
class ClippedMean:
    """Σ_i c_i·min(1, bound/‖value_i‖)·row_i,  bound = factor·median(‖value_i‖)

    A step longer than the bound is shortened to it, and one that is not finite counts as 0. Every device counts alike in the
    median, of the steps that are neither 0 nor infinite: fewer than half of the devices cannot raise it beyond what the
    others send, and each then moves the model by its share of the data times the bound at most.

    The median is not by data: AD-SGD damps those most that hold much, so a bound by data would be too short for the others.

    Sun et al., "Can You Really Backdoor Federated Learning?", 2019, shortens to a fixed length; here it follows the steps,
    which shrink as the model settles.
    """

    factor: float = 2.0

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Vector:
        shares, coefficients = beside(shares, rows), beside(coefficients, rows)
        lengths = _factors(shares, coefficients).abs() * _norms(rows)
        usable = lengths.isfinite() & (lengths > 0)
        bound = self.factor * _middle(*_by_size(lengths.unsqueeze(0), usable))
        shortened = torch.where(usable, coefficients * (bound / lengths).clamp(max=1.0), 0.0)
        return _sum_of_blocks(shortened, rows, usable)


@dataclass(frozen=True)
class Median:
    """median_q(value_i), coordinate by coordinate

    median_q: the value below and above which lies half of the data; between two such values, their mean. Devices that hold
    less than half of the data cannot move it out of the range of the others' values.

    For devices whose data are alike. One with two of ten labels pushes the other eight down, so eight of ten devices push
    each label down, and so does the median.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018, where every device has
    as many samples as any other; here each counts by its data.
    """

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Vector:
        return torch.cat([_middle(values, upto) for values, upto in _coordinates(shares, coefficients, rows)])


@dataclass(frozen=True)
class TrimmedMean:
    """Σ_i a_i·value_i / (1 − 2·share),  coordinate by coordinate,  a_i = |[Q_i − q_i, Q_i] ∩ [share, 1 − share]|

    Q_i: the data of all steps whose value is not above value_i, so that the steps in order of value fill the stretch from
    0 to 1, each for as long as its q_i. What lies in the first or in the last `share` is left out, and of a step across the
    border that part of its weight. Choose it above the share of the data that hostile devices may hold; on data that differ
    between devices, the rare is left out with it, as by `Median`.

    Yin et al., 2018, as `Median`, which it becomes towards share = ½.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 0.5:
            raise InputError(f"share={self.share} is trimmed at either end: give a number from 0 to below 0.5.")

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Vector:
        blocks = _coordinates(shares, coefficients, rows)
        return torch.cat([self._mean(values, upto) for values, upto in blocks])

    def _mean(self, values: Tensor, upto: Tensor) -> Tensor:
        inside = upto.clamp(self.share, 1.0 - self.share)
        kept = inside.diff(dim=1, prepend=torch.full_like(inside[:, :1], self.share)) / (1.0 - 2.0 * self.share)
        # Left out is not times 0: what a hostile device sends may be infinite.
        return torch.where(kept > 0, values * kept, 0.0).sum(1).to(values.dtype)


def blocks_of(rows: Tensor, usable: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """The rows some at a time, where they are, as float32 if they are float16, and with 0 in those that are not `usable`.

    A block lasts until the next one is asked for: they share their memory, which is small enough for the cache.
    """
    height = max(1, _block_size(rows) // max(1, rows.shape[1]))
    buffer = torch.empty((min(height, len(rows)), rows.shape[1]), dtype=_computed_in(rows), device=rows.device)
    for start in range(0, len(rows), height):
        some = slice(start, start + height)
        block = buffer[: len(rows[some])].copy_(rows[some])
        yield some, block if usable is None else block.masked_fill_(~usable[some].unsqueeze(1), 0.0)


def _sum_of_blocks(coefficients: Tensor, rows: Tensor, usable: Tensor | None = None) -> Vector:
    """Σ_i c_i·row_i, of float16 rows in float32."""
    total = torch.zeros(rows.shape[1], dtype=_computed_in(rows), device=rows.device)
    coefficients = coefficients.to(total.dtype)
    for some, block in blocks_of(rows, usable):
        total.addmv_(block.T, coefficients[some])
    return total


def _computed_in(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


def _norms(rows: Tensor) -> Tensor:
    """[m]: ‖row_i‖."""
    return torch.cat([block.norm(dim=1) for _, block in blocks_of(rows)])


def _factors(shares: Tensor, coefficients: Tensor) -> Tensor:
    """[m]: f_i = c_i/q_i; a device without data has none."""
    return torch.where(shares > 0, coefficients / shares, 0.0)


def _coordinates(shares: Tensor, coefficients: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some coordinates at a time, as `_by_size` puts their values."""
    shares = beside(shares, rows)
    factors = _factors(shares, beside(coefficients, rows)).unsqueeze(1)
    width = max(1, _block_size(rows) // len(rows))
    for start in range(0, rows.shape[1], width):
        yield _by_size((rows[:, start : start + width] * factors).T, shares)


def _by_size(values: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """[b, m] each: every line of `values` from small to large, NaN last, and the data up to and with each of them."""
    ordered, places = values.contiguous().sort(dim=1, stable=True)
    # float32 shares add up exactly in float64, so the order of the devices makes no difference.
    upto = shares.double()[places].cumsum(1)
    return ordered, upto / upto[:, -1:]


def _middle(ordered: Tensor, upto: Tensor) -> Tensor:
    """[b]: the value at ½ of the data, or the mean of the two that meet there."""
    lower = (upto < 0.5 - TIE).sum(1, keepdim=True)
    upper = (upto <= 0.5 + TIE).sum(1, keepdim=True)
    return (0.5 * ordered.gather(1, lower) + 0.5 * ordered.gather(1, upper)).squeeze(1)


def _block_size(rows: Tensor) -> int:
    """Numbers worked on at a time: few enough for a processor's cache, enough to keep a GPU busy."""
    return 2**23 if rows.is_cuda else 2**19
