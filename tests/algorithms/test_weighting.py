from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from fakes import answer, arrivals, fleet_of, job, vector
from hybridfl.algorithms.ad_sgd import RankOne
from hybridfl.algorithms.drift import DriftControl
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import FullWork
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import Everyone
from hybridfl.algorithms.stragglers import KnownShare
from hybridfl.algorithms.weighting import ByData, ByDevice, shares_by
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays

FLEET = fleet_of(1, 3)


def test_shares_by_hand() -> None:
    assert ByData()(np.array([1, 3])).tolist() == [0.25, 0.75]
    assert ByDevice()(np.array([1, 3, 4, 92])).tolist() == [0.25] * 4


def test_memory_by_device_by_hand() -> None:
    """Device 0: fresh, g = 2. Device 1: two versions old, g = −1.5, corrected by −0.2; each counts ½ (test_memory.py)."""
    fresh = answer(job(0, version=5, base=[1.0], rate=0.1), -0.2)
    late = answer(job(1, version=3, base=[0.8], rate=0.2), 0.3)
    weights, _ = Memory(RankOne(0.2), weighting=ByDevice()).close(None, vector(1.0), 5, 0.1, [fresh, late], FLEET)
    assert_close(weights, vector(1.0 - 0.1 * (0.5 * 2 + 0.5 * 0.8 * -1.5)))


def test_drift_control_by_device_by_hand() -> None:
    """c_0 = 2, c_1 = −1: c = ½·2 − ½·1 = ½."""
    free = DriftControl(trust=float("inf"), weighting=ByDevice())
    known = free.observed(
        None, [answer(job(0, 0, [1.0]), -0.4, num_steps=2), answer(job(1, 0, [1.0]), 0.2, num_steps=2)]
    )
    first, second = free.controls(known, [0, 1], vector(1.0), FLEET)
    assert_close(first, vector(0.5 - 2.0))
    assert_close(second, vector(0.5 + 1.0))


def test_fedavg_by_device_by_hand() -> None:
    """w = 0 + ½·1 + ½·(−2)."""
    algorithm = FedAvg(Everyone(), weighting=ByDevice())
    state, outbox = algorithm.init(vector(0.0), FLEET)
    state, _ = algorithm.step(
        state, arrivals(1.0, *(answer(each, step) for each, step in zip(outbox.jobs, (1.0, -2.0), strict=True)))
    )
    assert_close(state.weights, vector(-0.5))


def test_by_device_without_stragglers_hfl_is_fedavg_by_device() -> None:
    task, local = Synthetic().build(8, 0), FullWork(epochs=1)
    hfl = HFL(Memory(weighting=ByDevice()), KnownShare(0.0), local=local)
    fedavg = FedAvg(Everyone(), local, weighting=ByDevice())
    left, right = (simulate(task, each, PaperDelays(0.0), rounds=5).records for each in (hfl, fedavg))
    assert [record.test_loss for record in left] == [record.test_loss for record in right]


@pytest.mark.parametrize("make", [HFL.by_device, lambda: HFL.drift_controlled(weighting=ByDevice())])
def test_by_device_the_accuracy_by_device_is_higher(make: object) -> None:
    """Synthetic(1, 1), where one of 30 devices holds a quarter of the data."""
    assert callable(make)
    task = Synthetic().build(30, 0)
    by_data = HFL() if make == HFL.by_device else HFL.drift_controlled()
    one, other = (simulate(task, each, PaperDelays(), seconds=60).records[-1] for each in (by_data, make()))
    assert other.device_accuracy > one.device_accuracy


def raw_counts(num_samples: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(num_samples.astype(np.float32))


WRONG: list[tuple[Callable[[NDArray[np.int64]], Any], str]] = [
    (raw_counts, "raw_counts gave 2 devices shares that add up to 4: give a tensor, one number each"),
    (lambda counts: torch.tensor([0.5]), r"numbers of shape \[1\]"),
    (lambda counts: torch.full((2, 1), 0.5), r"numbers of shape \[2, 1\]"),
    (lambda counts: torch.tensor([1.5, -0.5]), r"a share of -0\.5"),
    (lambda counts: torch.tensor([1.0, np.nan]), "a share of nan"),
    (lambda counts: torch.tensor([1.0, np.inf]), "shares that add up to inf"),
    (lambda counts: None, "gave 2 devices None: give a tensor"),
    (lambda counts: "ab", "gave 2 devices 'ab': give a tensor"),
]


@pytest.mark.parametrize(("own", "message"), WRONG)
def test_an_own_weighting_that_gives_no_shares_is_refused(own: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        shares_by(own, np.array([1, 3]))


def test_an_own_weighting_may_be_an_array_or_a_list_and_off_by_rounding() -> None:
    assert shares_by(cast(Any, lambda counts: counts / counts.sum()), np.array([1, 3])).tolist() == [0.25, 0.75]
    assert shares_by(cast(Any, lambda counts: [0.25, 0.7501]), np.array([1, 3])).tolist() == pytest.approx(
        [0.25, 0.7501]
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(Everyone(), weighting=raw_counts),
        HFL(Memory(weighting=raw_counts)),
        HFL(Memory(), drift=DriftControl(weighting=raw_counts)),
    ],
    ids=["FedAvg", "Memory", "DriftControl"],
)
def test_whoever_takes_a_weighting_refuses_raw_counts(algorithm: Any) -> None:
    with pytest.raises(InputError, match=r"The weighting raw_counts gave .* shares that add up to"):
        simulate(Synthetic().build(8, 0), algorithm, PaperDelays(), rounds=3)
