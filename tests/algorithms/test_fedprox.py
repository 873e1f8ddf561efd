import pytest

from fakes import fleet_of
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.local_work import FullWork, PartialWork
from hybridfl.algorithms.sampling import Uniform
from hybridfl.errors import InputError

FLEET = fleet_of(1, 1, seconds=[1.0, 2.0])


def test_it_is_fedavg_with_a_pull_and_partial_work() -> None:
    assert FedProx(mu=0.2, partial=0.5) == FedAvg(Uniform(10), PartialWork(FullWork(proximal=0.2), 0.5))


def test_without_stragglers_everyone_runs_all_epochs() -> None:
    algorithm = FedProx(mu=0.2, partial=0.0, local=FullWork(epochs=7))
    assert algorithm.local.works([1], 3, FLEET)[0].epochs == 7
    assert algorithm.local.works([1], 3, FLEET)[0].proximal == 0.2


def test_without_pull_and_stragglers_it_is_fedavg() -> None:
    assert FedProx(mu=0.0, partial=0.0) == FedAvg()


def test_mu_must_not_be_negative() -> None:
    with pytest.raises(InputError, match="mu=-1"):
        FedProx(mu=-1)
