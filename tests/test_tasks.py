from pathlib import Path

import numpy as np
import pytest
import torch

from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork, InverseSqrt
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.data.partition import IID, Dirichlet, PowerLaw
from hybridfl.data.sent140 import Chosen
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.spelling import read_task
from hybridfl.tasks import MNIST, FashionMNIST, Sent140, Shakespeare, Synthetic, SyntheticIID, _spelled
from hybridfl.timing import PaperDelays
from hybridfl.vectors import flatten


def test_synthetic_tasks_are_the_papers_convex_problem() -> None:
    for recipe, name in ((Synthetic(0, 0.5), "synthetic(0, 0.5)"), (SyntheticIID(), "synthetic-iid")):
        task = recipe.build(5, 0)
        assert (task.name, task.l2, len(task.train)) == (name, 1e-4, 5)
        assert all(not parameter.any() for parameter in task.model.parameters())


@pytest.mark.data("fashion-mnist", "mnist")
@pytest.mark.parametrize("recipe", [FashionMNIST(), MNIST(), FashionMNIST(Dirichlet(0.3)), MNIST(IID())])
def test_every_image_belongs_to_exactly_one_device(recipe: FashionMNIST | MNIST) -> None:
    task = recipe.build(100, 0)
    assert sorted(task.train.index.tolist()) == list(range(60000))
    assert sorted(task.test.index.tolist()) == list(range(10000))
    assert task.train.inputs.dtype == torch.uint8
    assert float(task.train.take(torch.arange(100))[0].max()) == 1.0


@pytest.mark.data("fashion-mnist")
def test_a_device_is_tested_on_the_labels_it_trains_on() -> None:
    task = FashionMNIST().build(100, 1)
    for device in range(100):
        trained = set(task.train.targets[task.train.rows(device)].tolist())
        assert set(task.test.targets[task.test.rows(device)].tolist()) <= trained


@pytest.mark.data("fashion-mnist")
def test_all_seeds_share_the_images() -> None:
    first, second = (FashionMNIST().build(50, seed) for seed in (0, 1))
    assert first.train.inputs is second.train.inputs
    assert not np.array_equal(first.train.index, second.train.index)


@pytest.mark.data("fashion-mnist")
def test_ssgd_on_fashion_mnist_reaches_what_the_paper_says() -> None:
    """The paper: 84.58 %."""
    record = simulate(FashionMNIST().build(100, 0), SSGD(), PaperDelays(), rounds=4).records[-1]
    assert record.test_accuracy == pytest.approx(0.84, abs=0.01)


@pytest.mark.data("shakespeare")
def test_the_papers_shakespeare_has_100_devices_and_517_106_sequences() -> None:
    first, again, other = (Shakespeare.paper(hidden=4).build(100, seed) for seed in (0, 0, 1))
    assert len(first.train) == 100
    assert len(first.train.index) + len(first.test.index) == 517_106
    assert min(first.test.num_samples) >= 1
    assert np.array_equal(first.train.index, again.train.index)
    assert not np.array_equal(first.train.index, other.train.index)
    assert first.train.inputs is other.train.inputs
    assert torch.equal(flatten(first.model), flatten(again.model))
    assert not torch.equal(flatten(first.model), flatten(other.model))


@pytest.mark.data("shakespeare")
def test_all_of_shakespeare_is_a_task() -> None:
    task = Shakespeare(hidden=4).build(1129, 0)
    gaps = 79 * np.count_nonzero(task.test.num_samples)
    assert len(task.train.index) + len(task.test.index) + gaps == 4_226_159
    with pytest.raises(InputError, match="1,130 devices, but the plays have 1,129 roles"):
        Shakespeare(hidden=4).build(1130, 0)


def test_a_text_that_is_not_the_plays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "pg100.txt").write_text("To be or not to be\n")
    with pytest.raises(InputError, match="holds no plays"):
        Shakespeare().build(2, 0, tmp_path)


@pytest.mark.data("sent140")
def test_sent140_makes_100_devices() -> None:
    task = Sent140().build(100, 0)
    assert len(task.train) == 100
    assert task.train.inputs.shape[1] == 25
    assert int(task.train.inputs.max()) == 4999
    assert set(task.train.targets.tolist()) == {0, 1}
    assert any("undecodable" in note for note in task.notes)
    chosen = Sent140(Chosen(at_least=10)).build(20, 0)
    assert min(chosen.train.num_samples + chosen.test.num_samples) >= 10


@pytest.mark.data("sent140")
def test_sent140_takes_a_glove_file(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("good 1 2 3\nthe 4 5 6\n")
    task = Sent140(glove=str(tmp_path / "glove.txt")).build(10, 0)
    (vectors,) = task.model.buffers()
    assert vectors.shape == (5000, 3)
    assert vectors.count_nonzero() == 6


@pytest.mark.data("shakespeare")
def test_an_lstm_learns_shakespeare_beyond_its_most_frequent_character() -> None:
    task = Shakespeare(sequences=4000, hidden=32, layers=1).build(10, 0)
    targets = task.test.targets[task.test.index]
    majority = float((targets == targets.mode().values).float().mean())
    local = FullWork(epochs=2, batch_size=10, learning_rate=ConstantRate(1.0), clip=1.0)
    records = simulate(task, HFL(local=local), PaperDelays(stragglers=0.8), rounds=8, evaluate_every=100).records
    assert records[-1].test_accuracy > majority + 0.04


@pytest.mark.data("fashion-mnist")
def test_hfl_holds_fashion_mnist_where_slow_devices_hold_much_of_it() -> None:
    """Seed 1 with large steps. Lowest of the last 40 s without a correction: 20 %, with RankOne(0.3): 62 %, measured: 68 %."""
    local = FullWork(learning_rate=InverseSqrt())
    fleet = PaperDelays(stragglers=0.9, max_delay=10)
    records = simulate(
        FashionMNIST().build(100, 1), HFL(local=local), fleet, seconds=100, evaluate_every=2, seed=1
    ).records
    assert min(record.test_accuracy for record in records[-20:]) > 0.65


def test_a_task_is_named_by_all_that_makes_it() -> None:
    names = {_spelled("mnist", recipe) for recipe in (MNIST(), MNIST(IID()), MNIST(Dirichlet(0.3)), MNIST(PowerLaw(3)))}
    assert {"mnist", "mnist(partition=IID())", "mnist(partition=Dirichlet(alpha=0.3))"} < names
    assert len(names) == 4
    for text in (_spelled("sent140", Sent140(Chosen(30))), _spelled("shakespeare", Shakespeare(20000, hidden=64))):
        assert _spelled(text.partition("(")[0], read_task(text)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "name", "value"),
    [
        (Shakespeare, "hidden", 0),
        (Shakespeare, "layers", 0),
        (Shakespeare, "embedding", -1),
        (Shakespeare, "sequences", 0),
        (Shakespeare, "scored", -3),
        (Sent140, "tokens", 0),
        (Sent140, "vocabulary", -5),
        (Sent140, "scored", 0),
    ],
)
def test_sizes_must_be_positive(recipe: type, name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name}={value}"):
        recipe(**{name: value})
