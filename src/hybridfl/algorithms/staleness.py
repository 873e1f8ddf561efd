"""s(τ): how much an update counts that is τ versions old (Xie et al., "Asynchronous Federated Optimization", 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hybridfl.errors import InputError


class StalenessWeight(Protocol):
    """s(τ), 1 for a fresh update."""

    def __call__(self, staleness: int) -> float: ...


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
