import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from hybridfl import (
    Drawn,
    FedAvg,
    FullWork,
    InputError,
    PaperDelays,
    Run,
    Samples,
    Task,
    Uniform,
    cross_entropy,
    execute,
    simulate,
)
from hybridfl.flower.client import trained
from hybridfl.flower.deployment import Deployment
from hybridfl.protocol import Fleet, Inbox, Job, Work
from hybridfl.trial import chance_of, check_trial
from hybridfl.vectors import flatten

DEVICES = [
    (torch.randn(20, 4, generator=torch.Generator().manual_seed(device)), torch.arange(20) % 3) for device in range(4)
]
ALGORITHM = FedAvg(Uniform(4), FullWork(epochs=1, batch_size=10))


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class Net(nn.Module):
    """A user's model; `width` decides whether its jobs are trained together or each by itself."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.between(self.first(inputs)))
        return outputs

    def between(self, hidden: Tensor) -> Tensor:
        return torch.relu(hidden)


class Dropping(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, 0.5, self.training)


class Noisy(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden + torch.randn_like(hidden)


class Throwing(Net):
    """Python's dice, and mostly with no effect."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * 2 if random.random() < 1e-9 else hidden


class Tossing(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden * float(np.random.rand() < 2)


class Counting(Net):
    """Another answer each time, and no generator in it."""

    calls = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden * self.calls


class Averaging(Net):
    """A buffer that every forward moves."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def between(self, hidden: Tensor) -> Tensor:
        self.seen += 1
        return hidden


def noisy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) * (1 + torch.rand(()))


@pytest.mark.parametrize("model", [chain(), Net(), nn.Sequential(nn.Linear(4, 3))], ids=["chain", "class", "softmax"])
def test_frozen_layers_are_refused_by_every_way_to_run(model: nn.Module) -> None:
    """Without `out`, a chain of linear layers was trained although all of it was frozen."""
    task = Task.from_devices(DEVICES, frozen(model))
    with pytest.raises(InputError, match="frozen"):
        simulate(task, ALGORITHM, PaperDelays(), rounds=1)
    with pytest.raises(InputError, match="frozen"):
        list(execute(Run(task, ALGORITHM, PaperDelays(), rounds=1)))
    job = Job(0, 0, flatten(model), Work(1, 10, 0.1), 0.0)
    one = Task.from_devices(DEVICES[:1], model)
    with pytest.raises(InputError, match="frozen"):
        trained(one, job, seed=0, place=torch.device("cpu"))


@pytest.mark.parametrize("width", [8, 4000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Dropping, "PyTorch's"),
        (Noisy, "PyTorch's"),
        (Throwing, "Python's"),
        (Tossing, "NumPy's"),
        (Counting, "two answers"),
    ],
)
def test_hidden_randomness_is_found_and_refused(kind: type[Net], what: str, width: int) -> None:
    with pytest.raises(InputError, match=what):
        simulate(Task.from_devices(DEVICES, kind(width)), ALGORITHM, PaperDelays(), rounds=1)


def test_a_loss_that_draws_is_refused() -> None:
    with pytest.raises(InputError, match="PyTorch's global generator"):
        simulate(Task.from_devices(DEVICES, Net(), loss=noisy_loss), ALGORITHM, PaperDelays(), rounds=1)


def test_a_forward_that_changes_a_buffer_is_refused() -> None:
    with pytest.raises(InputError, match="buffer 'seen'"):
        simulate(Task.from_devices(DEVICES, Averaging()), ALGORITHM, PaperDelays(), rounds=1)


def test_a_trial_leaves_the_users_model_and_the_global_generators_as_they_were() -> None:
    model, noisy = Averaging().eval(), Noisy()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with pytest.raises(InputError):
        check_trial(model, cross_entropy, Samples.from_devices(DEVICES))
    assert not model.training
    assert model.seen == 0
    with pytest.raises(InputError):
        check_trial(noisy, cross_entropy, Samples.from_devices(DEVICES))
    torch.testing.assert_close(torch.rand(3), expected)


class ByMode(Net):
    """Other scores in train mode than in eval mode."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * 0.0 if self.training else hidden


@pytest.mark.parametrize("width", [8, 4000], ids=["small", "large"])
def test_scores_are_taken_in_eval_mode_and_training_is_in_train_mode_whatever_the_models_mode(width: int) -> None:
    torch.manual_seed(0)
    model = ByMode(width)
    records = [
        simulate(Task.from_devices(DEVICES, model.train(mode)), ALGORITHM, PaperDelays(), rounds=1).records
        for mode in (True, False)
    ]
    assert records[0] == records[1]
    inputs, targets = torch.cat([x for x, _ in DEVICES]), torch.cat([y for _, y in DEVICES])
    task = Task.from_devices(DEVICES, model, test_share=0)
    with torch.no_grad():
        loss = F.cross_entropy(model.eval()(inputs), targets)
    assert simulate(task, ALGORITHM, PaperDelays(), rounds=1).records[0].train_loss == pytest.approx(
        float(loss), rel=1e-5
    )


class Deciding(Net):
    """What `vmap` cannot take: Python looks at a number."""

    def between(self, hidden: Tensor) -> Tensor:
        return torch.relu(hidden) if float(hidden.sum()) > -1e9 else hidden


def test_a_model_that_cannot_be_stacked_is_trained_device_by_device() -> None:
    torch.manual_seed(0)
    plain = Net()
    deciding = Deciding()
    deciding.load_state_dict(plain.state_dict())
    wanted, found = (
        simulate(Task.from_devices(DEVICES, model), ALGORITHM, PaperDelays(), rounds=3).records[-1]
        for model in (plain, deciding)
    )
    assert found.train_loss == pytest.approx(wanted.train_loss, rel=1e-5)


def test_first_weights_that_are_not_finite_are_refused() -> None:
    model = Net()
    with torch.no_grad():
        model.last.bias[1] = float("nan")
    with pytest.raises(InputError, match=r"'last\.bias' starts with NaN"):
        simulate(Task.from_devices(DEVICES, model), ALGORITHM, PaperDelays(), rounds=1)


@pytest.mark.parametrize("name", ["inputs", "targets"])
def test_test_samples_that_are_not_finite_are_refused(name: str) -> None:
    devices = [(x, x[:, :1].clone()) for x, _ in DEVICES]
    task = Task.from_devices(
        devices, nn.Linear(4, 1), loss=lambda outputs, targets: (outputs - targets).square().mean(1)
    )
    getattr(task.test, name)[int(task.test.rows(2)[0])] = float("nan")
    with pytest.raises(InputError, match=f"^Device 2 has NaN or infinite {name}: clean them"):
        simulate(task, ALGORITHM, "paper", rounds=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_parameters_that_are_neither_float32_nor_float64_are_refused(dtype: torch.dtype) -> None:
    remedy = "keep its parts as two real ones" if dtype.is_complex else r"call `model\.float\(\)`"
    refused = pytest.raises(InputError, match=rf"^Parameter 'weight' is {dtype}, .*float32 or float64: {remedy}\.$")
    model = nn.Linear(4, 3, dtype=dtype)
    with refused:
        simulate(Task.from_devices(DEVICES, model), ALGORITHM, "paper", rounds=1)
    with refused:
        Deployment(model, ALGORITHM, Path("nowhere"), rounds=1)


def test_parameters_of_two_kinds_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double())
    with pytest.raises(
        InputError,
        match=r"mixes parameters, '0.bias' is torch.float32 and '1.bias' is torch.float64: call `model.float\(\)`",
    ):
        simulate(Task.from_devices(DEVICES, model), ALGORITHM, "paper", rounds=1)


def test_what_chance_is() -> None:
    samples = Samples.from_devices(DEVICES)
    assert chance_of(Net(), samples) == pytest.approx(1 / 3)
    regression = Samples.from_devices([(x, x[:, 0]) for x, _ in DEVICES])
    assert np.isnan(chance_of(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), regression))


class LaterNoise(Net):
    """Noise that a trial of few samples does not show."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden + torch.rand_like(hidden) if len(hidden) > 64 else hidden


@dataclass(frozen=True)
class Coin:
    """An algorithm that draws from a global generator."""

    draw: Callable[[], object]
    at_once: bool = False

    def init(self, weights: Tensor, fleet: Fleet) -> Any:
        if self.at_once:
            self.draw()
        return ALGORITHM.init(weights, fleet)

    def step(self, state: Any, inbox: Inbox) -> Any:
        self.draw()
        return ALGORITHM.step(state, inbox)


@dataclass(frozen=True)
class Dice:
    """A law that draws from NumPy's global generator."""

    def draw(self, generator: np.random.Generator, count: int) -> Any:
        return 1 + np.random.rand(count)


@pytest.mark.parametrize("width", [8, 4000], ids=["small", "large"])
def test_randomness_that_the_trial_cannot_see_is_found_when_it_is_drawn(width: int) -> None:
    with pytest.raises(InputError, match="A model or its loss drew from PyTorch's global generator"):
        simulate(Task.from_devices(DEVICES, LaterNoise(width)), ALGORITHM, PaperDelays(), rounds=2)


@pytest.mark.parametrize(
    ("draw", "stream"),
    [(lambda: torch.rand(1), "PyTorch's"), (lambda: np.random.rand(), "NumPy's"), (random.random, "Python's")],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_an_algorithm_that_draws_unkeyed_is_found(draw: Callable[[], object], stream: str, at_once: bool) -> None:
    with pytest.raises(InputError, match=f"An algorithm or a fleet drew from {stream} global generator"):
        simulate(Task.from_devices(DEVICES, Net()), Coin(draw, at_once), PaperDelays(), rounds=2)


def test_a_law_that_draws_unkeyed_is_found() -> None:
    with pytest.raises(InputError, match="An algorithm or a fleet drew from NumPy's global generator"):
        simulate(Task.from_devices(DEVICES, Net()), ALGORITHM, Drawn(Dice()), rounds=2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear, "is no torch.nn.Module: make one"),
        (nn.Linear(4, 3, device="meta"), "holds no numbers yet"),
        (nn.Sequential(nn.LazyLinear(3)), "holds no numbers yet"),
        (nn.Identity(), "has no parameters to train"),
    ],
    ids=["a class", "meta", "lazy", "nothing"],
)
def test_what_is_no_model_yet_is_refused(model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(Task.from_devices(DEVICES, model), ALGORITHM, PaperDelays(), rounds=1)


@pytest.mark.parametrize("l2", [-1, float("nan"), "x"])
def test_the_weight_of_the_l2_term_is_checked(l2: Any) -> None:
    with pytest.raises(InputError, match="is no weight of the L2 term"):
        Task.from_devices(DEVICES, Net(), l2=l2)


def test_data_that_were_written_to_make_another_task(tmp_path: Path) -> None:
    task = Task.from_devices(DEVICES, Net())
    before = task.checksum
    simulate(task, ALGORITHM, PaperDelays(), rounds=1, out=tmp_path)
    task.train.inputs.mul_(0.5)
    assert task.checksum != before
    with pytest.raises(InputError, match="holds results of"):
        simulate(task, ALGORITHM, PaperDelays(), rounds=1, out=tmp_path)


@dataclass(frozen=True)
class InPlace:
    """An algorithm that writes into its weights, but not into those it has sent."""

    def init(self, weights: Tensor, fleet: Fleet) -> Any:
        state, outbox = ALGORITHM.init(weights, fleet)
        return replace(state, weights=weights.clone()), outbox

    def step(self, state: Any, inbox: Inbox) -> Any:
        after, outbox = ALGORITHM.step(state, inbox)
        state.weights.copy_(after.weights)
        return replace(after, weights=state.weights), outbox


def test_weights_that_are_written_to_in_place_are_scored_each_time() -> None:
    torch.manual_seed(0)
    task = Task.from_devices(DEVICES, Net())
    scores = [
        [record.test_loss for record in simulate(task, algorithm, PaperDelays(), rounds=3).records]
        for algorithm in (InPlace(), ALGORITHM)
    ]
    assert len(set(scores[0])) == 4
    assert scores[0] == scores[1]
