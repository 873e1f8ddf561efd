import math
from typing import Any

import numpy as np
import pytest

from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.staleness import Constant, Hinge, Polynomial, weight_of
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays


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


@pytest.mark.parametrize("algorithm", [FedAsync, FedBuff])
@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, None, "1"])
def test_an_own_weight_that_is_none_is_refused(weight: Any, algorithm: Any) -> None:
    def own(staleness: int) -> Any:
        return weight

    with pytest.raises(
        InputError, match=f"staleness weight own gave {weight!r} to an update 0 versions old: give a finite"
    ):
        simulate(Synthetic().build(4, 0), algorithm(staleness=own), PaperDelays(), rounds=3)


def test_fedasync_does_not_jump_past_an_update() -> None:
    """α·s = 0.6·2."""
    with pytest.raises(
        InputError, match=r"alpha=0\.6 times the staleness weight of an update 0 versions old is 1\.2: it must"
    ):
        simulate(Synthetic().build(4, 0), FedAsync(staleness=lambda staleness: 2.0), PaperDelays(), rounds=3)
    records = simulate(Synthetic().build(4, 0), FedAsync(0.5, lambda staleness: 2.0), PaperDelays(), rounds=3).records
    assert records[-1].version == 3


def test_an_own_weight_may_be_numpys() -> None:
    assert weight_of(lambda staleness: np.float64(0.5), 3) == 0.5
