import functools
import math
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.losses import cross_entropy
from hybridfl.models import CharacterLSTM
from hybridfl.protocol import Job, Update, Work
from hybridfl.threads import pool
from hybridfl.training import ALONE_FROM, LocalSGD
from hybridfl.vectors import flatten, unflatten


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).square()


def one_sample(x: float, y: float) -> Samples:
    return Samples.from_devices([(torch.tensor([[x]]), torch.tensor([y]))])


def random_samples(*sizes: int, shape: tuple[int, ...] = (6,), classes: int = 3) -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples.from_devices(
        [(torch.randn(size, *shape, generator=draw), torch.randint(classes, (size,), generator=draw)) for size in sizes]
    )


def random_texts(*sizes: int) -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples.from_devices(
        [
            (torch.randint(3, (size, 9), generator=draw).to(torch.uint8), torch.randint(3, (size,), generator=draw))
            for size in sizes
        ]
    )


SIZES = [(100_000, 0), (1, 7)]
"""A device that would train for a minute, and one that fails at once."""


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def wide() -> nn.Module:
    """Large enough to be trained one a thread with batches of 8 and more, and not with smaller ones."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 2600), nn.Tanh(), nn.Linear(2600, 3))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return CharacterLSTM(characters=3, embedding=4, hidden=5, layers=2)


def mixed_jobs(weights: Tensor) -> list[Job]:
    """Different versions, weights, epochs, batch sizes, rates and μ, hence different numbers of steps."""
    return [
        Job(0, 4, weights, Work(1, 8, 0.1), 0.0),
        Job(1, 2, weights + 0.05, Work(3, 10, 0.02, proximal=0.5), 0.0),
        Job(2, 3, weights - 0.02, Work(2, 1000, 0.3, proximal=2.0), 0.0),
        Job(3, 4, weights, Work(5, 1, 0.05, clip=0.7), 0.0, drift=0.02 * weights),
    ]


def by_torch_optim(job: Job, samples: Samples, model: nn.Module, l2: float, seed: int) -> tuple[Tensor, int, float]:
    """(weights, steps, last epoch's mean loss) of a plain loop over the same batches."""
    torch.nn.utils.vector_to_parameters(job.weights.clone(), model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=job.work.learning_rate, weight_decay=2 * l2)
    order = torch.from_numpy(Batches.of([job], samples, seed).order)
    losses: list[float] = []
    for epoch in order.view(job.work.epochs, -1):
        losses.clear()
        for rows in epoch.split(job.work.batch_size):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(samples.inputs[rows]), samples.targets[rows])
            losses.append(loss.item())
            moved = nn.utils.parameters_to_vector(model.parameters()) - job.weights
            (loss + 0.5 * job.work.proximal * moved.square().sum()).backward()  # type: ignore[no-untyped-call]
            if math.isfinite(job.work.clip):
                # What the optimiser adds as weight decay belongs to the gradient that is clipped.
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad += 2 * l2 * parameter.detach()
                nn.utils.clip_grad_norm_(model.parameters(), job.work.clip)
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad -= 2 * l2 * parameter.detach()
            optimiser.step()
            if job.drift is not None:
                with torch.no_grad():
                    for parameter, added in zip(model.parameters(), unflatten(model, job.drift).values(), strict=True):
                        parameter.sub_(added, alpha=job.work.learning_rate)
    return flatten(model), job.work.epochs * len(losses), sum(losses) / len(losses)


def test_two_steps_by_hand() -> None:
    """y = a·x + b from (a, b) = (1, ½) on the sample (2, 1), squared error, η = 0.1, ε = 0.1, μ = 0.5.

    step 1: error 1.5, ∇ = (6, 3),        2εw = (0.2, 0.1),     μ·0                        → (0.38, 0.19)
    step 2: error −0.05, ∇ = (−0.2, −0.1), 2εw = (0.076, 0.038), μ(w − w_0) = (−0.31, −0.155) → (0.4234, 0.2117)
    """
    train = LocalSGD(one_sample(2.0, 1.0), nn.Linear(1, 1), squared_error, l2=0.1)
    [update] = train([Job(0, 0, torch.tensor([1.0, 0.5]), Work(2, 1, 0.1, proximal=0.5), 0.0)])
    assert update.weights.tolist() == pytest.approx([0.4234, 0.2117], abs=1e-6)
    assert update.train_loss == pytest.approx(0.0025, abs=1e-7)
    assert update.num_steps == 2


def test_a_drift_is_added_to_every_clipped_gradient() -> None:
    """By hand, η = 0.1 and d = (1, −2), which is not clipped.

    One step as above, (6.2, 3.1) clipped to 3.1: w − η·((6.2, 3.1)/√5 + d).
    Two steps on 3a + b, whose gradient is (3, 1) everywhere: w − 2η·((3, 1) + d).
    """
    train = LocalSGD(one_sample(2.0, 1.0), nn.Linear(1, 1), squared_error, l2=0.1)
    job = Job(0, 0, torch.tensor([1.0, 0.5]), Work(1, 1, 0.1, clip=3.1), 0.0, drift=torch.tensor([1.0, -2.0]))
    [update] = train([job])
    part = 0.1 / math.sqrt(5)
    assert update.weights.tolist() == pytest.approx([1 - 6.2 * part - 0.1, 0.5 - 3.1 * part + 0.2], abs=1e-6)
    train = LocalSGD(one_sample(3.0, 0.0), nn.Linear(1, 1), lambda outputs, targets: outputs.squeeze(1))
    [update] = train([Job(0, 0, torch.tensor([1.0, 2.0]), Work(2, 1, 0.1), 0.0, drift=torch.tensor([1.0, -2.0]))])
    assert update.weights.tolist() == pytest.approx([1 - 0.2 * 4, 2 - 0.2 * -1], abs=1e-6)


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_a_pull_of_one_over_the_rate_never_gets_further_than_one_step(epochs: int) -> None:
    """μη = 1 makes every step w_0 − η∇; the gradient of 3a + b is (3, 1) everywhere."""
    train = LocalSGD(one_sample(3.0, 0.0), nn.Linear(1, 1), lambda outputs, targets: outputs.squeeze(1))
    [update] = train([Job(0, 0, torch.tensor([1.0, 2.0]), Work(epochs, 1, 0.1, proximal=10.0), 0.0)])
    assert update.weights.tolist() == pytest.approx([0.7, 1.9], abs=1e-6)


def test_a_clipped_step_by_hand() -> None:
    """As above, one step: the gradient (6, 3) + (0.2, 0.1) = (6.2, 3.1) has length 3.1·√5; a clip of 3.1 leaves 1/√5 of it."""
    train = LocalSGD(one_sample(2.0, 1.0), nn.Linear(1, 1), squared_error, l2=0.1)
    for clip, factor in ((3.1, 1 / math.sqrt(5)), (100.0, 1.0), (math.inf, 1.0)):
        [update] = train([Job(0, 0, torch.tensor([1.0, 0.5]), Work(1, 1, 0.1, clip=clip), 0.0)])
        assert update.weights.tolist() == pytest.approx([1 - 0.62 * factor, 0.5 - 0.31 * factor], abs=1e-6)


@pytest.mark.parametrize(
    ("make_model", "make_samples"),
    [
        (mlp, random_samples),
        (convolution, functools.partial(random_samples, shape=(1, 5, 5))),
        (recurrent, random_texts),
        (wide, random_samples),
    ],
)
def test_equals_a_plain_loop_of_torch_optim(
    make_model: Callable[[], nn.Module], make_samples: Callable[..., Samples]
) -> None:
    samples, model = make_samples(20, 33, 7, 5), make_model()
    jobs = mixed_jobs(flatten(model))
    for job, update in zip(jobs, LocalSGD(samples, model, l2=0.01, seed=5)(jobs), strict=True):
        weights, steps, loss = by_torch_optim(job, samples, make_model(), l2=0.01, seed=5)
        assert update.job is job
        torch.testing.assert_close(update.weights, weights, rtol=3e-6, atol=1e-6)
        assert update.num_steps == steps
        assert update.train_loss == pytest.approx(loss, abs=1e-6)


def test_updates_come_in_the_order_of_the_jobs() -> None:
    model = mlp()
    jobs = mixed_jobs(flatten(model))[::-1]
    assert [update.job for update in LocalSGD(random_samples(20, 33, 7, 5), model)(jobs)] == jobs


def test_what_a_job_trains_to_does_not_depend_on_the_others() -> None:
    """Not always to the bit: the matrix product sums in another order for another number, width or alignment of rows."""
    model = mlp()
    train, jobs = LocalSGD(random_samples(20, 33, 7, 5), model, l2=0.01), mixed_jobs(flatten(model))
    for job, with_others in zip(jobs, train(jobs), strict=True):
        [alone] = train([job])
        torch.testing.assert_close(with_others.weights, alone.weights, rtol=0, atol=1e-6)
        assert with_others.train_loss == pytest.approx(alone.train_loss, abs=1e-6)
        assert with_others.num_steps == alone.num_steps


def test_with_recurrent_layers_it_does_not_depend_on_the_others_by_a_single_bit() -> None:
    model = recurrent()
    train, jobs = LocalSGD(random_texts(20, 33, 7, 5), model, l2=0.01), mixed_jobs(flatten(model))
    for job, with_others in zip(jobs, train(jobs), strict=True):
        [alone] = train([job])
        assert torch.equal(with_others.weights, alone.weights)
        assert with_others.train_loss == alone.train_loss


def test_an_error_in_one_job_stops_the_others() -> None:
    """An embedding of three characters has none for the code 7, which only the second device has."""
    samples = Samples.from_devices(
        [(torch.full((size, 9), code, dtype=torch.uint8), torch.zeros(size, dtype=torch.long)) for size, code in SIZES]
    )
    model = recurrent()
    started = time.perf_counter()
    with pytest.raises(IndexError):
        LocalSGD(samples, model)([Job(device, 0, flatten(model), Work(1, 1, 0.1), 0.0) for device in (0, 1)])
    pool().submit(int).result()
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("make_model", [mlp, recurrent])
def test_one_a_thread_and_all_together_agree(
    make_model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    samples = random_texts(20, 33, 7, 5) if make_model is recurrent else random_samples(20, 33, 7, 5)
    jobs = mixed_jobs(flatten(model))
    monkeypatch.setattr("hybridfl.training.ALONE_FROM", 0)
    train = LocalSGD(samples, model, l2=0.01)
    alone = train(jobs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "performance drop": no batching rule for PyTorch's own LSTM
        together = train._train_stacked(jobs, Batches.of(jobs, samples, 0), threading.Event())
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-6)
        assert one.train_loss == pytest.approx(other.train_loss, abs=1e-6)
        assert one.num_steps == other.num_steps


def test_a_layer_the_model_does_not_use_only_shrinks() -> None:
    """One step of η = 0.1 with ε = 0.25 leaves 1 − 2·0.25·0.1 = 0.95 of it."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(200, 100)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.used(inputs)
            return outputs

    model = Large()
    assert 10 * flatten(model).numel() > ALONE_FROM
    [update] = LocalSGD(random_samples(10), model, l2=0.25)([Job(0, 0, flatten(model), Work(1, 10, 0.1), 0.0)])
    torch.testing.assert_close(update.weights[21:], 0.95 * flatten(model)[21:])


def test_the_same_call_gives_the_same_bits() -> None:
    def updates() -> list[Update]:
        model = mlp()
        return LocalSGD(random_samples(20, 33, 7, 5), model, seed=3)(mixed_jobs(flatten(model)))

    for first, second in zip(updates(), updates(), strict=True):
        assert torch.equal(first.weights, second.weights)
        assert first.train_loss == second.train_loss


def test_train_loss_is_the_mean_over_the_last_epochs_batches() -> None:
    """With η = 0 a sample's loss is its own: target² = 0, 1, 4, 9, 16."""
    targets = torch.arange(5.0)
    samples = Samples.from_devices([(torch.zeros(5, 1), targets)])
    job = Job(0, 0, torch.zeros(2), Work(3, 2, learning_rate=0.0), 0.0)
    a, b, c, d, e = targets[torch.from_numpy(Batches.of([job], samples, seed=0).order)[-5:]].square().tolist()
    [update] = LocalSGD(samples, nn.Linear(1, 1), squared_error)([job])
    assert update.train_loss == pytest.approx(((a + b) / 2 + (c + d) / 2 + e) / 3)
    assert update.train_loss != pytest.approx(6.0)


def test_weights_that_jobs_share_are_left_alone() -> None:
    model = mlp()
    weights = flatten(model)
    sent = weights.clone()
    LocalSGD(random_samples(20, 7), model)([Job(device, 0, weights, Work(1, 4, 0.1), 0.0) for device in (0, 1)])
    assert torch.equal(weights, sent)
    assert torch.equal(flatten(model), sent)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(6), ["'0'", "BatchNorm1d", "GroupNorm"]),
        (nn.Dropout(0.1), ["'0'", "Dropout", "Set it to 0"]),
        (nn.AlphaDropout(0.1), ["'0'", "AlphaDropout", "Set it to 0"]),
        (nn.BatchNorm1d(6, track_running_stats=False), ["'0'", "BatchNorm1d", "GroupNorm"]),
        (nn.InstanceNorm1d(6, track_running_stats=True), ["'0'", "InstanceNorm1d", "GroupNorm"]),
        (nn.LSTM(6, 6, num_layers=2, dropout=0.5), ["'0'", "LSTM", "Set it to 0"]),
        (nn.Linear(6, 6).requires_grad_(False), ["'0.weight'", "frozen", "buffer"]),
    ],
)
def test_refuses_layers_that_make_an_answer_depend_on_more_than_the_job(layer: nn.Module, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        LocalSGD(random_samples(4), nn.Sequential(layer, nn.Linear(6, 3)))
    assert all(word in str(error.value) for word in words)


def test_accepts_dropout_that_drops_nothing() -> None:
    LocalSGD(random_samples(4), nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 3)))


def test_refuses_a_model_without_parameters() -> None:
    with pytest.raises(InputError, match="Tanh has no parameters"):
        LocalSGD(random_samples(4), nn.Tanh())


def test_refuses_a_loss_that_is_one_number_for_the_batch() -> None:
    model = mlp()
    train = LocalSGD(random_samples(4), model, nn.functional.cross_entropy)
    with pytest.raises(InputError, match=r"shape \(\), but .* each of the 4 samples .*reduction='none'"):
        train([Job(0, 0, flatten(model), Work(1, 4, 0.1), 0.0)])


def test_cross_entropy_is_one_number_a_sample() -> None:
    losses = cross_entropy(torch.tensor([[0.0, 0.0], [0.0, 2.0]]).log_softmax(1), torch.tensor([0, 1]))
    assert losses.tolist() == pytest.approx([0.693147, 0.126928], abs=1e-6)


def test_bits_do_not_depend_on_the_number_of_cores() -> None:
    """Neither for jobs that are stacked nor for those trained alone: in processes with other limits."""
    code = """
import torch
from torch import nn
from hybridfl import Job, LocalSGD, Samples, Work
from hybridfl.vectors import flatten, unflatten
torch.manual_seed(0)
samples = Samples.from_devices([(torch.randn(40 + 9 * d, 60), torch.randint(10, (40 + 9 * d,))) for d in range(6)])
for hidden in (5, 200):
    model = nn.Sequential(nn.Linear(60, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    jobs = [Job(d, 0, flatten(model), Work(2, 16, 0.1), 0.0) for d in range(6)]
    for update in LocalSGD(samples, model)(jobs):
        print(update.weights.double().sum().item(), update.weights[::7].tolist(), update.train_loss)
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **limits}, capture_output=True, text=True, check=True
        ).stdout
        for limits in ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"}, {"HYBRIDFL_THREADS": "1"})
    ]
    assert found[0] == found[1] == found[2]
    assert len(found[0].splitlines()) == 12
