"""Mistakes with models, losses and samples of one's own: each is refused in one line, or the numbers are right."""

import functools
import math
import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from hybridfl import (
    ConstantRate,
    FedAvg,
    FullWork,
    InputError,
    LogisticRegression,
    Result,
    Samples,
    Task,
    Uniform,
    simulate,
)
from hybridfl.evaluation import Audience, right_answers
from hybridfl.protocol import Job, Work
from hybridfl.training import LocalSGD
from hybridfl.trial import check_trial

DRAW = torch.Generator().manual_seed(0)
INPUTS = [torch.randn(size, 4, generator=DRAW) for size in (5, 9, 16, 30)]
DEVICES = [(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()) for x in INPUTS]
LINE = torch.tensor([1.0, 2.0, -1.0, 0.5])
REGRESSION = [(x, x @ LINE) for x in INPUTS]
ALGORITHM = FedAvg(Uniform(4), FullWork(2, 1000, ConstantRate(0.1)))


def by_sample(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def go(task: Task, **options: Any) -> Result:
    return simulate(task, ALGORITHM, "ConstantSeconds(1)", rounds=2, **options)


class Net(nn.Module):
    """What a subclass does between two layers is its mistake."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.prepare()

    def prepare(self) -> None:
        pass

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.between(self.first(inputs)))
        return outputs

    def between(self, hidden: Tensor) -> Tensor:
        return hidden.tanh()


class OwnBatchNorm(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return (hidden - hidden.mean(0)) / (hidden.std(0) + 1e-5)


class SoftmaxOverTheBatch(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden.softmax(0)


class BatchSecond(Net):
    def prepare(self) -> None:
        self.encoder = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0)

    def between(self, hidden: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(hidden.unsqueeze(1))
        return encoded.squeeze(1)


def class_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets).expand(len(targets))


def normalised_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 3.0])[targets]
    return by_sample(outputs, targets) * weights / weights.sum() * len(targets)


def hardest_half(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = by_sample(outputs, targets)
    return losses * (losses >= losses.median())


@pytest.mark.parametrize("model", [OwnBatchNorm, SoftmaxOverTheBatch, BatchSecond])
def test_a_model_whose_samples_see_one_another_is_refused(model: type[Net]) -> None:
    with pytest.raises(InputError, match="depends on the others in its batch"):
        go(Task.from_devices(DEVICES, model()))


@pytest.mark.parametrize("loss", [class_mean, normalised_weights, hardest_half])
def test_a_loss_whose_samples_see_one_another_is_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(InputError, match="depends on the others in its batch"):
        go(Task.from_devices(DEVICES, chain(), loss=loss))


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: ((outputs - targets) ** 2).mean(1),
        lambda outputs, targets: (outputs - targets).abs().flatten(1).sum(1),
    ],
)
def test_outputs_that_are_broadcast_against_targets_are_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """[batch, 1] less [batch] is [batch, batch]: every output against every target."""
    with pytest.raises(InputError, match="the shape of the targets"):
        go(Task.from_devices(REGRESSION, nn.Linear(4, 1), loss=loss))


def test_an_embedding_that_counts_ids_over_the_batch_is_refused() -> None:
    ids = [(torch.randint(0, 10, (20, 6), generator=DRAW), torch.arange(20) % 3) for _ in range(4)]

    def model(**options: Any) -> nn.Sequential:
        return nn.Sequential(nn.Embedding(10, 4, **options), nn.Flatten(), nn.Linear(24, 3))

    with pytest.raises(InputError, match="scale_grad_by_freq"):
        go(Task.from_devices(ids, model(scale_grad_by_freq=True)))
    with pytest.raises(InputError, match="sparse=False"):
        go(Task.from_devices(ids, model(sparse=True)))
    assert go(Task.from_devices(ids, model())).records[-1].version == 2


def test_a_job_alone_is_a_job_among_others() -> None:
    """What the trial refuses would have broken this."""
    task = Task.from_devices(DEVICES, Net())
    train = LocalSGD(task.train, task.first_model)
    jobs = [Job(device, 0, task.first_weights, Work(2, 1000, 0.1), 0.0) for device in range(4)]
    torch.testing.assert_close(train(jobs[:1])[0].weights, train(jobs)[0].weights, rtol=1e-5, atol=1e-6)


class HoldsItself(Net):
    def prepare(self) -> None:
        self.step: Any = lambda hidden: self.last(hidden.tanh())

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.step(self.first(inputs))
        return outputs


def with_another_forward(model: Any) -> nn.Module:
    before = model.forward
    model.forward = lambda inputs: before(F.normalize(inputs))
    whole: nn.Module = model
    return whole


@pytest.mark.parametrize(
    "model",
    [HoldsItself(), with_another_forward(chain()), with_another_forward(LogisticRegression(4, 3))],
    ids=["lambda", "chain", "softmax"],
)
def test_a_copy_that_computes_with_the_first_models_weights_is_refused(model: nn.Module) -> None:
    """Such layers were not trained, without a word: a lambda is not copied with its model."""
    with pytest.raises(InputError, match="that is no parameter of the model that a run computes with"):
        go(Task.from_devices(DEVICES, model))


def test_a_penalty_on_the_first_models_weights_is_refused() -> None:
    model = chain()

    def penalised(outputs: Tensor, targets: Tensor) -> Tensor:
        return by_sample(outputs, targets) + 0.1 * sum(each.square().sum() for each in model.parameters())

    with pytest.raises(InputError, match=r"Task\(l2=…\)"):
        go(Task.from_devices(DEVICES, model, loss=penalised))


def test_a_teacher_without_gradients_is_taken() -> None:
    teacher = chain().requires_grad_(False)

    class Distilled(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return by_sample(outputs, targets)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        taught: Tensor = teacher(torch.ones(1, 4))
        return by_sample(outputs, targets) + 0.0 * taught.sum()

    assert go(Task.from_devices(DEVICES, Net(), loss=loss)).records[-1].version == 2
    assert go(Task.from_devices(DEVICES, Net(), loss=Distilled())).records[-1].version == 2


def test_a_loss_with_parameters_is_refused() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return by_sample(outputs * self.temperature, targets)

    with pytest.raises(InputError, match="The loss has parameters of its own"):
        go(Task.from_devices(DEVICES, chain(), loss=Tempered()))


def test_a_model_without_a_gradient_is_refused() -> None:
    class Detached(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).detach()

    with pytest.raises(InputError, match="No parameter decides the loss"):
        go(Task.from_devices(DEVICES, Detached()))


def test_a_hook_on_a_parameters_gradient_is_refused() -> None:
    """A copy of the model does not have it: rows that it froze were trained."""
    model = chain()
    hooked: Any = model[0].weight
    hooked.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(InputError, match=r"'0\.weight' has a hook on its gradient"):
        Task.from_devices(DEVICES, model)


DICE = np.random.default_rng(0)


class Rarely(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return -hidden if self.training and DICE.random() < 1e-9 else hidden


class OwnTorchDice(Net):
    def prepare(self) -> None:
        self.dice = torch.Generator().manual_seed(0)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * float(torch.rand((), generator=self.dice) >= 0)


class WarmingUp(Net):
    calls = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden * 2 if self.calls > 100 else hidden


@pytest.mark.parametrize(
    ("model", "what"),
    [(Rarely, "test_own_models"), (OwnTorchDice, "'model'"), (WarmingUp, "'model'")],
)
def test_what_a_model_keeps_from_one_call_to_the_next_is_refused(model: type[Net], what: str) -> None:
    """A generator of its own, whatever comes of it in a trial, and a counter."""
    with pytest.raises(InputError, match=f"Every call of the model or the loss changes a value .*{what}"):
        go(Task.from_devices(DEVICES, model()))


def test_a_cache_that_is_filled_once_is_taken() -> None:
    class Cached(Net):
        def prepare(self) -> None:
            self.known: dict[int, Tensor] = {}

        def between(self, hidden: Tensor) -> Tensor:
            width = hidden.shape[-1]
            if width not in self.known:
                self.known[width] = torch.arange(width) / width
            return hidden + self.known[width]

    assert go(Task.from_devices(DEVICES, Cached())).records[-1].version == 2


def test_noise_in_the_backward_pass_is_found() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, hidden: Tensor) -> Tensor:
            return hidden.clone()

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * float(DICE.random())

    class Net2(Net):
        def between(self, hidden: Tensor) -> Tensor:
            noisy: Tensor = Noisy.apply(hidden)  # type: ignore[no-untyped-call]
            return noisy

    with pytest.raises(InputError, match="two answers"):
        go(Task.from_devices(DEVICES, Net2()))


def test_another_thread_that_draws_is_not_the_models_randomness() -> None:
    """Once is nobody's fault: a model draws at every attempt."""
    attempts: list[int] = []

    class Disturbed(Net):
        def between(self, hidden: Tensor) -> Tensor:
            if len(attempts) < 2:
                attempts.append(1)
                thread = threading.Thread(target=random.random)
                thread.start()
                thread.join()
            return hidden

    attempts.clear()
    samples = Samples.from_devices(DEVICES)
    before = random.getstate()
    check_trial(Disturbed(), by_sample, samples)
    assert attempts
    assert random.getstate() == before


def test_a_loss_that_keeps_something_on_itself_gives_the_same_numbers_every_time() -> None:
    """Threads shared it, and one read what another had kept."""

    class Focal(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.log = F.log_softmax(outputs, 1)
            self.p = self.log.exp()
            own = targets.unsqueeze(1)
            losses: Tensor = -((1 - self.p.gather(1, own).squeeze(1)) ** 2) * self.log.gather(1, own).squeeze(1)
            return losses

    draw = torch.Generator().manual_seed(1)
    devices = [(torch.randn(60, 50, generator=draw), torch.arange(60) % 10) for _ in range(12)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 400), nn.Tanh(), nn.Linear(400, 10))
    task = Task.from_devices(devices, model, loss=Focal())
    found = {simulate(task, "fedavg", "paper", rounds=3).records[-1].train_loss for _ in range(4)}
    assert len(found) == 1


def test_a_loss_that_overwrites_the_outputs_does_not_change_the_accuracy() -> None:
    def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
        rows = torch.arange(len(targets))
        right = outputs[rows, targets].clone()
        outputs[rows, targets] = -1e9
        return (1 + outputs.max(1).values - right).relu()

    task = Task.from_devices(DEVICES, chain(), loss=hinge)
    result = go(task)
    inputs, targets = task.test.take(torch.from_numpy(task.test.index))
    right = float((result.model(inputs).argmax(1) == targets).float().mean())
    assert result.records[-1].test_accuracy == pytest.approx(right)
    assert right > 0


def test_inputs_that_a_forward_overwrites_are_no_randomness() -> None:
    class Centred(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            inputs -= inputs.mean(1, keepdim=True)
            return super().forward(inputs)

    assert go(Task.from_devices(DEVICES, Centred())).records[-1].version == 2


def test_targets_below_0_are_neither_right_nor_wrong() -> None:
    """Device 0: right, none, wrong; device 1: none; device 2: right."""
    outputs = torch.tensor([[0.0, 1.0]] * 5)
    right = right_answers(outputs, torch.tensor([1, -100, 0, -100, 1]))
    assert right.tolist() == pytest.approx([1, math.nan, 0, math.nan, 1], nan_ok=True)
    audience = Audience(np.array([0, 3, 4, 5]), np.zeros(3, dtype=bool), chance=0.5)
    scores = audience.scores(right.numpy(), 1.0, 1.0)
    assert scores.test_accuracy == pytest.approx(2 / 3)
    assert scores.by_device.tolist() == pytest.approx([0.5, math.nan, 1.0], nan_ok=True)
    assert scores.device_accuracy == pytest.approx(0.75)
    several = right_answers(torch.tensor([[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]]), torch.tensor([[1, 0, -100]]))
    assert several.tolist() == [0.5]


def test_a_loss_that_ignores_labels_may_have_them_and_no_others() -> None:
    ignoring = [(x, torch.where(torch.arange(len(y)) % 2 == 0, -100, y)) for x, y in DEVICES]
    record = go(Task.from_devices(ignoring, chain(), loss=nn.CrossEntropyLoss(reduction="none"))).records[-1]
    assert 0 <= record.test_accuracy <= 1
    from_one = [(x, y + 1) for x, y in DEVICES]
    with pytest.raises(InputError, match="has the label 3, but the model has 3 outputs"):
        go(Task.from_devices(from_one, chain(), loss=nn.CrossEntropyLoss(reduction="none")))


def test_whole_numbers_that_are_no_classes_have_no_accuracy() -> None:
    """Mean and log-variance of a count are two outputs, and not two classes."""
    counts = [(x, (x.sum(1) * 3).long().abs() + 5) for x in INPUTS]

    def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.gaussian_nll_loss(outputs[:, 0], targets.float(), outputs[:, 1].exp(), reduction="none")

    assert math.isnan(go(Task.from_devices(counts, nn.Linear(4, 2), loss=gaussian)).records[-1].test_accuracy)


def test_a_model_may_return_several_tensors() -> None:
    class Two(Net):
        def forward(self, inputs: Tensor) -> Any:
            return super().forward(inputs), inputs

    record = go(Task.from_devices(DEVICES, Two(), loss=lambda both, targets: by_sample(both[0], targets))).records[-1]
    assert math.isfinite(record.test_loss)
    assert math.isnan(record.test_accuracy)


@pytest.mark.parametrize("part", ["train", "test"])
def test_ids_beyond_an_embedding_are_refused(part: str) -> None:
    """Stacked with others', such an id read a row of another device's embedding."""
    ids = [(torch.randint(0, 10, (60, 6), generator=DRAW), torch.arange(60) % 3) for _ in range(4)]
    task = Task.from_devices(ids, nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(24, 3)))
    samples = getattr(task, part)
    samples.inputs[samples.rows(1)[3], 2] = 11
    with pytest.raises(InputError, match="whole numbers of the inputs, 0 to 11"):
        go(replace(task, scored=2))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([np.arange(20), np.arange(20, 60)], "Device 1 has row 40 of 40 training samples"),
        ([np.r_[np.arange(10), [-1] * 10], np.arange(20, 40)], "Device 0 has row -1"),
        ([np.arange(40) < 20, np.arange(40) >= 20], "are bool: give whole numbers"),
        ([np.arange(20), np.arange(0)], "Device 1 has no training samples"),
    ],
)
@pytest.mark.parametrize("model", [LogisticRegression(4, 3), chain()], ids=["softmax", "chain"])
def test_rows_that_are_no_rows_are_refused(rows: list[Any], words: str, model: nn.Module) -> None:
    """Rows beyond the data ended Python in the compiled code."""
    samples = Samples.shared_out(torch.randn(40, 4, generator=DRAW), torch.arange(40) % 3, rows)
    with pytest.raises(InputError, match=words):
        go(Task("shared", samples, samples, model))


def test_test_samples_of_other_devices_are_refused() -> None:
    task = Task("one test set", Samples.from_devices(DEVICES), Samples.from_devices(DEVICES[:1]), chain())
    with pytest.raises(InputError, match="of 4 devices, the test samples of 1"):
        go(task)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, "cross_entropy"])
def test_what_is_no_loss_is_refused(loss: Any) -> None:
    with pytest.raises(InputError, match="is no loss: give a function"):
        go(Task.from_devices(DEVICES, chain(), loss=loss))


def test_a_frozen_part_of_softmax_regression_is_refused() -> None:
    model = LogisticRegression(4, 3)
    model.linear.bias.requires_grad_(False)
    with pytest.raises(InputError, match="frozen"):
        go(Task.from_devices(DEVICES, model))


def test_a_parameter_made_in_the_first_forward_is_refused() -> None:
    class Later(Net):
        def between(self, hidden: Tensor) -> Tensor:
            if not hasattr(self, "gain"):
                self.gain = nn.Parameter(torch.ones(8))
            return hidden * self.gain

    with pytest.raises(InputError, match="makes parameters in its first forward"):
        go(Task.from_devices(DEVICES, Later()))


def test_a_branch_that_only_large_batches_reach_is_trained_device_by_device() -> None:
    class Branching(Net):
        def between(self, hidden: Tensor) -> Tensor:
            is_small = len(hidden) < 5 or bool(hidden.mean() < 1e9)
            return hidden.tanh() if is_small else hidden

    plain, branching = (go(Task.from_devices(DEVICES, model)).records[-1] for model in (Net(), Branching()))
    assert branching.train_loss == pytest.approx(plain.train_loss, rel=1e-5)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast is on"):
        go(Task.from_devices(DEVICES, chain()))


def test_other_weights_in_the_shown_model_are_said(caplog: pytest.LogCaptureFixture) -> None:
    task = Task.from_devices(DEVICES, chain())
    result = go(task)
    assert not caplog.messages
    task.model.load_state_dict(result.model.state_dict())
    assert go(task).records == result.records
    assert "`task.model` has other weights" in caplog.text


def test_data_that_numpy_has_written_to_are_other_data(tmp_path: Path) -> None:
    """PyTorch counts its own writes only."""
    task = Task.from_devices(DEVICES, chain())
    go(task, out=tmp_path / "run")
    targets = task.train.targets.numpy()
    targets[:] = (targets + 1) % 3
    with pytest.raises(InputError, match="other data"):
        go(task, out=tmp_path / "run")
    targets[:] = (targets + 2) % 3
    go(task, out=tmp_path / "run")
    task.train.index[[0, 1]] = task.train.index[[1, 0]]
    with pytest.raises(InputError, match="other data"):
        go(task, out=tmp_path / "run")


def test_windows_at_another_offset_are_other_data() -> None:
    text = torch.arange(100) % 7
    labels = torch.arange(40) % 3
    one = Samples(text.unfold(0, 20, 1)[0:40], labels, np.arange(40), np.array([0, 40]))
    other = Samples(text.unfold(0, 20, 1)[7:47], labels, np.arange(40), np.array([0, 40]))
    torch.manual_seed(0)
    model = nn.Linear(20, 3)
    assert Task("windows", one, one, model).checksum != Task("windows", other, other, model).checksum


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64])
def test_a_buffer_of_any_type_has_a_checksum(dtype: torch.dtype) -> None:
    def checksum(value: int) -> str:
        model = chain()
        model.register_buffer("kept", torch.full((3,), value).to(dtype))
        return Task.from_devices(DEVICES, model).checksum

    assert checksum(1) == checksum(1) != checksum(0)


def test_numbers_of_numpy_make_the_same_run(tmp_path: Path) -> None:
    """They could not be written to run.json."""

    def run(name: str, **numbers: Any) -> str:
        task = replace(Task.from_devices(DEVICES, chain()), scored=numbers.pop("scored"), l2=numbers.pop("l2"))
        simulate(task, ALGORITHM, "ConstantSeconds(1)", out=tmp_path / name, **numbers)
        return (tmp_path / name / "run.json").read_text()

    plain = run("plain", seconds=3.0, rounds=2, evaluate_every=1.0, seed=1, scored=5, l2=0.5)
    numpys = run(
        "numpy",
        seconds=np.float32(3),
        rounds=np.int64(2),
        evaluate_every=np.float32(1),
        seed=np.int32(1),
        scored=np.int64(5),
        l2=np.float32(0.5),
    )
    assert plain == numpys


@pytest.mark.parametrize("name", ["seconds", "evaluate_every"])
def test_less_than_a_nanosecond_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=1e-308 is less than a nanosecond"):
        go(Task.from_devices(DEVICES, chain()), **{name: 1e-308})


def test_complex_inputs_are_refused_by_a_model_of_real_weights() -> None:
    devices = [(x.to(torch.complex64), y) for x, y in DEVICES]
    with pytest.raises(InputError, match=r"does not fit the samples, inputs torch\.complex64"):
        go(Task.from_devices(devices, LogisticRegression(4, 3)))


class ThroughAList(Net):
    def prepare(self) -> None:
        self.held = [self.first.weight, self.last.weight]

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(F.linear(inputs, self.held[0], self.first.bias).tanh(), self.held[1], self.last.bias)


class ThroughAPartial(Net):
    def prepare(self) -> None:
        self.slope = nn.Parameter(torch.full((1,), 0.25))
        self.act = functools.partial(F.prelu, weight=self.slope)

    def between(self, hidden: Tensor) -> Tensor:
        return self.act(hidden)


class AsItShould(Net):
    def prepare(self) -> None:
        self.slope = nn.Parameter(torch.full((1,), 0.25))

    def between(self, hidden: Tensor) -> Tensor:
        return F.prelu(hidden, self.slope)


@pytest.mark.parametrize(("held", "plain"), [(ThroughAList, Net), (ThroughAPartial, AsItShould)])
def test_parameters_that_a_model_reaches_in_its_own_way_are_trained(held: type[Net], plain: type[Net]) -> None:
    """Stacked, such a model was not trained at all."""
    found, wanted = (go(Task.from_devices(DEVICES, model())).records for model in (held, plain))
    assert found[-1].train_loss == pytest.approx(wanted[-1].train_loss, rel=1e-5)
    assert found[-1].train_loss < found[0].train_loss


class Lazily(Net):
    mean: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = hidden.detach().mean(0)
        return hidden - self.mean


class WeightsOfTheFirstBatch:
    weights: Tensor | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.weights is None:
            self.weights = 1 / (outputs.detach().square().sum(0) + 1)
        return F.cross_entropy(outputs, targets, weight=self.weights, reduction="none")


def test_what_the_first_batch_decides_is_refused() -> None:
    """Every thread had another first batch."""
    with pytest.raises(InputError, match="answers by what it has seen before"):
        go(Task.from_devices(DEVICES, Lazily()))
    with pytest.raises(InputError, match="answers by what it has seen before"):
        go(Task.from_devices(DEVICES, Net(), loss=WeightsOfTheFirstBatch()))


SEEN: dict[str, Tensor] = {}
STEPS = 0


class KeepsItOutside(Net):
    def between(self, hidden: Tensor) -> Tensor:
        SEEN["mask"] = (hidden > 0).float()
        return hidden * SEEN["mask"]


def counting(outputs: Tensor, targets: Tensor) -> Tensor:
    global STEPS
    STEPS += 1
    return by_sample(outputs, targets) * (1.0 if STEPS < 1000 else 0.1)


def test_what_threads_would_share_is_refused() -> None:
    with pytest.raises(InputError, match=r"keeps something of a batch outside of itself \('.*SEEN'\)"):
        go(Task.from_devices(DEVICES, KeepsItOutside()))
    with pytest.raises(InputError, match=r"changes a value .*STEPS"):
        go(Task.from_devices(DEVICES, Net(), loss=counting))


class Merging(Net):
    """A weight that evaluation computes once, until training begins again."""

    merged: Tensor | None = None

    def train(self, mode: bool = True) -> "Merging":
        self.merged = None
        super().train(mode)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            return self.last(self.first(inputs))  # type: ignore[no-any-return]
        if self.merged is None:
            self.merged = (self.last.weight @ self.first.weight).detach()
        bias = self.last.weight @ self.first.bias + self.last.bias
        return inputs @ self.merged.T + bias


def test_scores_are_of_the_weights_that_are_scored() -> None:
    """What a model caches for evaluation was of the first weights for ever."""
    task = Task.from_devices(DEVICES, Merging())
    result = go(task)
    inputs, targets = task.test.take(torch.from_numpy(task.test.index))
    with torch.no_grad():
        wanted = float(by_sample(result.model(inputs), targets).mean())
    assert result.records[-1].test_loss == pytest.approx(wanted, rel=1e-5)


def hardest_of_many(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = by_sample(outputs, targets)
    return losses * (losses >= losses.topk(min(16, len(losses))).values[-1])


def test_a_loss_that_sees_others_in_large_batches_only_is_refused() -> None:
    with pytest.raises(InputError, match="depends on the others in its batch"):
        go(Task.from_devices(DEVICES, Net(), loss=hardest_of_many))


def test_a_scale_that_the_batch_decides_is_refused() -> None:
    """One device's images are scaled already."""

    class Scaling(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs / 255 if float(inputs.max()) > 1.5 else inputs)

    draw = torch.Generator().manual_seed(0)
    devices = [(torch.rand(20, 4, generator=draw) * (1 if d == 2 else 255), torch.arange(20) % 3) for d in range(6)]
    with pytest.raises(InputError, match="depends on the others in its batch"):
        simulate(Task.from_devices(devices, Scaling()), "fedavg", "paper", rounds=1)


def test_a_copy_that_is_the_model_itself_is_refused() -> None:
    class Single(Net):
        def __deepcopy__(self, memo: object) -> "Single":
            return self

    with pytest.raises(InputError, match="is the model itself"):
        go(Task.from_devices(DEVICES, Single()))


def test_numbers_that_two_tensors_share_are_refused() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers: Any = tied
    layers[1].weight.data = layers[0].weight.data
    with pytest.raises(InputError, match=r"'1\.weight' shares its numbers with '0\.weight'"):
        Task.from_devices(DEVICES, tied)
    aliased: Any = chain()
    aliased[0].alias = aliased[0].weight.data
    with pytest.raises(InputError, match=r"'0\.alias' shares its numbers"):
        Task.from_devices(DEVICES, aliased)
    layers[1].weight = layers[0].weight
    assert Task.from_devices(DEVICES, tied).first_weights.numel() == 16 + 4 + 4


def test_a_patched_layer_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfOnesOwn(nn.Sequential):
        pass

    def built(kind: type[nn.Sequential]) -> float:
        torch.manual_seed(0)
        return go(Task.from_devices(DEVICES, kind(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))).records[-1].train_loss

    plain = built(nn.Sequential)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, inputs: F.leaky_relu(inputs, 0.3))
    assert built(nn.Sequential) == pytest.approx(built(OfOnesOwn), rel=1e-5)
    assert abs(built(nn.Sequential) - plain) > 1e-4


def test_torchscript_is_refused_as_a_model_and_taken_as_a_loss() -> None:
    """A copy of a scripted module computes with the first one's weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        model: nn.Module = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)))
        loss = torch.jit.script(by_sample)
        with pytest.raises(InputError, match="is TorchScript"):
            go(Task.from_devices(DEVICES, model))
        found, wanted = (go(Task.from_devices(DEVICES, Net(), loss=each)).records[-1] for each in (loss, by_sample))
    assert found.train_loss == pytest.approx(wanted.train_loss, rel=1e-5)


def test_a_gradient_inside_a_forward_is_taken() -> None:
    class Forces(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            with torch.enable_grad():
                inputs = inputs.requires_grad_()
                energy = super().forward(inputs).sum()
                (force,) = torch.autograd.grad(energy, inputs, create_graph=True)
            return force[:, :3]

    assert go(Task.from_devices(DEVICES, Forces())).records[-1].version == 2


@pytest.mark.parametrize("model", [LogisticRegression(4, 3), chain(), Net()], ids=["softmax", "chain", "class"])
def test_data_are_checked_again_before_every_run(model: nn.Module) -> None:
    """The trial is made once per task; what NumPy writes to the data in between is found all the same."""
    task = Task.from_devices(DEVICES, model)
    go(task)
    task.train.targets.numpy()[int(task.train.rows(1)[0])] = 7
    with pytest.raises(InputError, match="Device 1 has the label 7"):
        go(task)
    task.train.targets.numpy()[int(task.train.rows(1)[0])] = 0
    task.train.index[3] = 10**6
    with pytest.raises(InputError, match="has row 1000000"):
        go(task)


def test_a_model_whose_code_changes_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task.from_devices(DEVICES, Net())
    go(task)
    monkeypatch.setattr(Net, "between", OwnBatchNorm.between)
    with pytest.raises(InputError, match="depends on the others in its batch"):
        go(task)
