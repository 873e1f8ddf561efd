import pytest

from hybridfl.algorithms.staleness import Constant, Hinge, Polynomial
from hybridfl.errors import InputError


def test_constant() -> None:
    assert [Constant()(tau) for tau in (0, 1, 100)] == [1.0, 1.0, 1.0]


def test_polynomial_by_hand() -> None:
    assert [Polynomial(0.5)(tau) for tau in (0, 3, 8)] == pytest.approx([1.0, 1 / 2, 1 / 3])
    assert Polynomial(1.0)(4) == pytest.approx(1 / 5)


def test_hinge_by_hand() -> None:
    hinge = Hinge(a=10, b=4)
    assert [hinge(tau) for tau in (0, 4, 5, 6)] == pytest.approx([1.0, 1.0, 1 / 11, 1 / 21])


def test_an_older_update_never_counts_more() -> None:
    for make in (lambda: Polynomial(-1.0), lambda: Hinge(a=-1.0), lambda: Hinge(b=-1.0)):
        with pytest.raises(InputError, match="must not be negative"):
            make()
