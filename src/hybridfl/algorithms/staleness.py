"""s(τ): how much an update counts that is τ versions old (Xie et al., "Asynchronous Federated Optimization", 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hybridfl.errors import InputError, is_single_number


class StalenessWeight(Protocol):
    """s(τ), 1 for a fresh update."""

    def __call__(self, staleness: int) -> float: ...


def weight_of(rule: StalenessWeight, staleness: int) -> float:
    """s(τ), once it is known to be a weight: a number that is finite and not negative."""
    weight = rule(staleness)
    if not is_single_number(weight) or not 0 <= weight < math.inf:
        name = getattr(rule, "__name__", type(rule).__name__)
        raise InputError(
            f"The staleness weight {name} gave {weight!r} to an update {staleness} versions old: give a finite one, 0 or more."
        )
    return weight


@dataclass(frozen=True)
class Constant:
    """s(τ) = 1."""

    def __call__(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial:
    """s(τ) = (τ + 1)^−a; a = ½ is FedBuff's 1/√(1 + τ)."""

    a: float = 0.5

    def __post_init__(self) -> None:
        _not_negative("a", self.a)

    def __call__(self, staleness: int) -> float:
        return float((staleness + 1) ** -self.a)


@dataclass(frozen=True)
class Hinge:
    """s(τ) = 1 if τ ≤ b, else 1 / (a·(τ − b) + 1)."""

    a: float = 10.0
    b: float = 4.0

    def __post_init__(self) -> None:
        _not_negative("a", self.a)
        _not_negative("b", self.b)

    def __call__(self, staleness: int) -> float:
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"{name}={value} must not be negative: an older update would count more.")
