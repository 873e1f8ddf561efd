import numpy as np
import pytest
import torch

from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.data.partition import IID, Dirichlet
from hybridfl.experiment import simulate
from hybridfl.tasks import MNIST, FashionMNIST, Synthetic, SyntheticIID
from hybridfl.timing import PaperDelays


def test_synthetic_tasks_are_the_papers_convex_problem() -> None:
    for recipe, name in ((Synthetic(0, 0.5), "synthetic(0, 0.5)"), (SyntheticIID(), "synthetic-iid")):
        task = recipe.build(5, 0)
        assert (task.name, task.l2, len(task.train)) == (name, 1e-4, 5)
        assert all(not parameter.any() for parameter in task.model.parameters())


@pytest.mark.data
@pytest.mark.parametrize("recipe", [FashionMNIST(), MNIST(), FashionMNIST(Dirichlet(0.3)), MNIST(IID())])
def test_every_image_belongs_to_exactly_one_device(recipe: FashionMNIST | MNIST) -> None:
    task = recipe.build(100, 0)
    assert sorted(task.train.index.tolist()) == list(range(60000))
    assert sorted(task.test.index.tolist()) == list(range(10000))
    assert task.train.inputs.dtype == torch.uint8
    assert float(task.train.take(torch.arange(100)).max()) == 1.0


@pytest.mark.data
def test_a_device_is_tested_on_the_labels_it_trains_on() -> None:
    task = FashionMNIST().build(100, 1)
    for device in range(100):
        trained = set(task.train.targets[task.train.rows(device)].tolist())
        assert set(task.test.targets[task.test.rows(device)].tolist()) <= trained


@pytest.mark.data
def test_all_seeds_share_the_images() -> None:
    first, second = (FashionMNIST().build(50, seed) for seed in (0, 1))
    assert first.train.inputs is second.train.inputs
    assert not np.array_equal(first.train.index, second.train.index)


@pytest.mark.data
def test_ssgd_on_fashion_mnist_reaches_what_the_paper_says() -> None:
    """The paper: 84.58 %."""
    record = simulate(FashionMNIST().build(100, 0), SSGD(), PaperDelays(100), rounds=4)[-1]
    assert record.test_accuracy == pytest.approx(0.84, abs=0.01)


@pytest.mark.data
def test_hfl_learns_fashion_mnist() -> None:
    records = simulate(FashionMNIST().build(100, 0), HFL(), PaperDelays(100), rounds=15, evaluate_every=5)
    assert records[-1].test_accuracy > 0.4
