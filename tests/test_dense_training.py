import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.evaluation import ModuleForward
from hybridfl.losses import cross_entropy
from hybridfl.models import LogisticRegression
from hybridfl.protocol import Job, Update, Work
from hybridfl.randomness import shuffled
from hybridfl.shuffle_kernels import shuffle
from hybridfl.training import LocalSGD
from hybridfl.vectors import flatten

pytest.importorskip("numba")

from hybridfl.dense import Dense
from hybridfl.dense_training import DenseSGD, SoftmaxForward

SHAPES = [(3, 5), (7, 17), (10, 60), (11, 31), (2, 1), (4, 16)]
"""(classes, features): odd and even classes; features below, at and above multiples of the SIMD width."""


def softmax(features: int, classes: int) -> Dense:
    return Dense(((classes, features, 1),))


def softmax_sgd(samples: Samples, classes: int, l2: float = 0.0, seed: int = 0, threads: int | None = None) -> DenseSGD:
    return DenseSGD(samples, softmax(samples.inputs[0].numel(), classes), l2, seed, threads)


def random_samples(classes: int, features: int, *sizes: int) -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples.from_devices(
        [
            (torch.randn(size, features, generator=draw), torch.randint(classes, (size,), generator=draw))
            for size in sizes
        ]
    )


def random_weights(classes: int, features: int) -> Tensor:
    return torch.randn((features + 1) * classes, generator=torch.Generator().manual_seed(1))


def mixed_jobs(weights: Tensor) -> list[Job]:
    """Different versions, weights, epochs, batch sizes (odd ones, and larger than the data), rates, μ and clips."""
    return [
        Job(0, 4, weights, Work(1, 64, 0.1), 0.0),
        Job(1, 2, weights + 0.05, Work(3, 6, 0.02, proximal=0.5), 0.0),
        Job(2, 3, weights - 0.02, Work(2, 1000, 0.3, proximal=2.0), 0.0),
        Job(3, 4, weights, Work(4, 5, 0.05, clip=0.3), 0.0, drift=-0.2 * weights),
        Job(4, 4, weights, Work(2, 1, 0.05), 0.0),
    ]


def assert_same_bits(some: list[Update], others: list[Update]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.job is other.job
        assert torch.equal(one.weights, other.weights)
        assert (one.train_loss, one.num_steps) == (other.train_loss, other.num_steps)


def test_one_step_by_hand() -> None:
    """From w = 0 both classes have probability ½: ∇W = (½·2, −½·2), ∇b = (½, −½) for x = 2, y = 1."""
    samples = Samples.from_devices([(torch.tensor([[2.0]]), torch.tensor([1]))])
    [update] = softmax_sgd(samples, 2)([Job(0, 0, torch.zeros(4), Work(1, 1, 0.1), 0.0)])
    assert update.weights.tolist() == pytest.approx([-0.1, 0.1, -0.05, 0.05])
    assert update.train_loss == pytest.approx(math.log(2))
    assert update.num_steps == 1


def test_one_clipped_step_by_hand() -> None:
    """As above: the gradient (1, −1, ½, −½) has length √2.5; a clip of half of that halves the step."""
    samples = Samples.from_devices([(torch.tensor([[2.0]]), torch.tensor([1]))])
    clipped = Work(1, 1, 0.1, clip=math.sqrt(2.5) / 2)
    [update] = softmax_sgd(samples, 2)([Job(0, 0, torch.zeros(4), clipped, 0.0)])
    assert update.weights.tolist() == pytest.approx([-0.05, 0.05, -0.025, 0.025])


def test_two_steps_with_a_drift_by_hand() -> None:
    """Where all features are 0 the gradient of W is, and W only drifts: −2·0.1·d."""
    samples = Samples.from_devices([(torch.tensor([[0.0]]), torch.tensor([1]))])
    drift = torch.tensor([1.0, -3.0, 0.0, 0.0])
    [update] = softmax_sgd(samples, 2)([Job(0, 0, torch.zeros(4), Work(2, 1, 0.1), 0.0, drift=drift)])
    assert update.weights[:2].tolist() == pytest.approx([-0.2, 0.6])


@pytest.mark.parametrize(("classes", "features"), SHAPES)
def test_trains_to_what_local_sgd_trains_to(classes: int, features: int) -> None:
    samples = random_samples(classes, features, 100, 33, 7, 13, 1)
    jobs = mixed_jobs(random_weights(classes, features))
    expected = LocalSGD(samples, LogisticRegression(features, classes), l2=0.01, seed=5)(jobs)
    for update, other in zip(softmax_sgd(samples, classes, l2=0.01, seed=5)(jobs), expected, strict=True):
        torch.testing.assert_close(update.weights, other.weights, rtol=0, atol=1e-5)
        assert update.train_loss == pytest.approx(other.train_loss, rel=1e-5, abs=1e-6)
        assert update.num_steps == other.num_steps


def test_images_are_flattened_as_the_model_does() -> None:
    flat = random_samples(3, 12, 20)
    images = Samples(flat.inputs.view(20, 3, 4), flat.targets, flat.index, flat.offsets)
    jobs = [Job(0, 0, random_weights(3, 12), Work(1, 8, 0.1), 0.0)]
    assert_same_bits(softmax_sgd(images, 3)(jobs), softmax_sgd(flat, 3)(jobs))


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_does_not_change_a_bit(threads: int) -> None:
    samples, jobs = random_samples(7, 17, 100, 33, 7, 13, 1), mixed_jobs(random_weights(7, 17))
    assert_same_bits(softmax_sgd(samples, 7, threads=threads)(jobs), softmax_sgd(samples, 7, threads=1)(jobs))


@pytest.mark.parametrize(("classes", "features"), SHAPES)
def test_which_jobs_go_together_does_not_change_a_bit(classes: int, features: int) -> None:
    train = softmax_sgd(random_samples(classes, features, 100, 33, 7, 13, 1), classes, l2=0.01)
    jobs = mixed_jobs(random_weights(classes, features))
    together = train(jobs)
    assert_same_bits([train([job])[0] for job in jobs], together)
    assert_same_bits(train(jobs[:2]) + train(jobs[2:]), together)
    assert_same_bits(train(jobs[::-1])[::-1], together)


def test_weights_that_jobs_share_are_left_alone() -> None:
    weights = random_weights(3, 5)
    sent = weights.clone()
    jobs = [Job(device, 0, weights, Work(2, 4, 0.1), 0.0) for device in (0, 1)]
    softmax_sgd(random_samples(3, 5, 20, 7), 3)(jobs)
    assert torch.equal(weights, sent)


@pytest.mark.parametrize(("classes", "features"), SHAPES)
def test_scores_as_the_module_does(classes: int, features: int) -> None:
    samples, weights = random_samples(classes, features, 150, 51), random_weights(classes, features)
    rows = np.random.default_rng(0).permutation(201)[:170]
    losses, right = SoftmaxForward(softmax(features, classes))(weights, samples, rows)
    expected = ModuleForward(LogisticRegression(features, classes), cross_entropy)(weights, samples, rows)
    torch.testing.assert_close(losses, expected[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(right, expected[1])


def test_of_equal_logits_the_first_is_the_prediction() -> None:
    samples = Samples.from_devices([(torch.ones(3, 1), torch.tensor([0, 1, 2]))])
    losses, right = SoftmaxForward(softmax(1, 3))(torch.zeros(6), samples, samples.index)
    assert right.tolist() == [True, False, False]
    assert losses.tolist() == pytest.approx([math.log(3)] * 3)


def test_no_rows_give_no_scores() -> None:
    losses, right = SoftmaxForward(softmax(5, 3))(
        torch.zeros(18), random_samples(3, 5, 4), np.array([], dtype=np.int64)
    )
    assert (len(losses), len(right)) == (0, 0)


@pytest.mark.parametrize("label", [3, -1])
def test_refuses_a_label_that_is_no_class(label: int) -> None:
    samples = Samples.from_devices([(torch.ones(1, 5), torch.tensor([label]))])
    with pytest.raises(InputError, match=f"{label}"):
        softmax_sgd(samples, 3)


@pytest.mark.parametrize("logit", [1e4, -1e4])
def test_extreme_logits_stay_finite(logit: float) -> None:
    """One feature, x = 1, y = 0, W = (logit, −logit): one class has all the probability."""
    samples = Samples.from_devices([(torch.ones(1, 1), torch.tensor([0]))])
    weights = torch.tensor([logit, -logit, 0.0, 0.0])
    losses, right = SoftmaxForward(softmax(1, 2))(weights, samples, samples.index)
    [update] = softmax_sgd(samples, 2)([Job(0, 0, weights, Work(1, 1, 1.0), 0.0)])
    loss, step = (0.0, 0.0) if logit > 0 else (2e4, 1.0)
    assert (losses.tolist(), right.tolist()) == ([loss], [logit > 0])
    assert update.train_loss == loss
    assert update.delta.tolist() == pytest.approx([step, -step, step, -step], abs=1e-30)


NETWORKS = {
    "relu": lambda: nn.Sequential(nn.Linear(17, 9), nn.ReLU(), nn.Linear(9, 4)),
    "tanh": lambda: nn.Sequential(nn.Linear(17, 20), nn.Tanh(), nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 4)),
    "sigmoid without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(17, 6, bias=False), nn.Sigmoid(), nn.Linear(6, 4, bias=False)
    ),
    "mixed biases": lambda: nn.Sequential(nn.Linear(17, 6, bias=False), nn.Tanh(), nn.Linear(6, 4)),
    "linear": lambda: nn.Sequential(nn.Linear(17, 4, bias=False)),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_networks_train_to_what_local_sgd_trains_them_to(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    samples = random_samples(4, 17, 40, 33, 7, 13, 1)
    jobs = mixed_jobs(flatten(model))
    dense = Dense.of(model, cross_entropy)
    assert dense is not None
    expected = LocalSGD(samples, model, l2=0.01, seed=5)(jobs)
    for update, other in zip(DenseSGD(samples, dense, l2=0.01, seed=5)(jobs), expected, strict=True):
        torch.testing.assert_close(update.weights, other.weights, rtol=0, atol=2e-6)
        assert update.train_loss == pytest.approx(other.train_loss, rel=1e-5, abs=1e-6)
        assert update.num_steps == other.num_steps


def test_a_network_step_by_hand() -> None:
    """x = 1, hidden a = relu(2·1) = 2, logits (2, −2)·1 = z; y = 1.

    p = softmax(2, −2) = (p, 1 − p), δ = (p, −p); ∂W2 = δ·a = (2p, −2p); ∂a = δ·W2 = p·1 + (−p)(−1) = 2p; ∂W1 = 2p·x.
    """
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False))
    samples = Samples.from_devices([(torch.ones(1, 1), torch.tensor([1]))])
    dense = Dense.of(model, cross_entropy)
    assert dense is not None
    [update] = DenseSGD(samples, dense)([Job(0, 0, torch.tensor([2.0, 1.0, -1.0]), Work(1, 1, 0.1), 0.0)])
    p = 1 / (1 + math.exp(-4))
    assert update.weights.tolist() == pytest.approx([2 - 0.1 * 2 * p, 1 - 0.1 * 2 * p, -1 + 0.1 * 2 * p], abs=1e-6)
    assert update.train_loss == pytest.approx(math.log(1 + math.exp(4)), abs=1e-5)


def tied() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    return model


def pruned() -> nn.Module:
    layer = nn.Linear(2, 2)
    torch.nn.utils.prune.l1_unstructured(layer, "weight", 0.5)  # type: ignore[no-untyped-call]
    return nn.Sequential(layer)


class Mine(nn.Sequential):
    """May compute anything."""


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(),
        nn.Sequential(nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Flatten(2), nn.Linear(2, 2)),
        Mine(nn.Linear(2, 2)),
        nn.Linear(2, 2),
        nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(2, 2)),
        tied(),
        hooked(),
        pruned(),
    ],
)
def test_what_is_no_chain_is_left_to_others(model: nn.Module) -> None:
    assert Dense.of(model, cross_entropy) is None


def test_another_loss_is_left_to_others() -> None:
    assert Dense.of(LogisticRegression(2, 2), lambda outputs, targets: cross_entropy(outputs, targets)) is None


@settings(deadline=None)  # the first call compiles
@given(st.integers(0, 2**64 - 1), st.integers(1, 700))
def test_shuffles_are_those_of_every_other_engine(key: int, size: int) -> None:
    tagged, spare = np.zeros((2, size), dtype=np.uint64)
    shuffle(np.uint64(key), size, tagged, spare, np.zeros(1 << 11, dtype=np.int64))
    found = (tagged & np.uint64(0xFFFFFFFF)).astype(np.int64)
    assert found.tolist() == shuffled(np.array([key], dtype=np.uint64), np.array([size])).tolist()


def test_it_can_be_stopped() -> None:
    """An interrupt of the waiting thread ends the compiled loops, which would take minutes."""
    code = """
import signal, threading, time, torch
from hybridfl import Job, Samples, Work
from hybridfl.dense import Dense
from hybridfl.dense_training import DenseSGD
samples = Samples.from_devices([(torch.randn(20_000, 784), torch.randint(10, (20_000,)))] * 2)
trainer = DenseSGD(samples, Dense(((10, 784, 1),)))
trainer([Job(0, 0, torch.zeros(7850), Work(1, 20_000, 0.01), 0.0)])
main = threading.main_thread().ident
threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
try:
    trainer([Job(d, 0, torch.zeros(7850), Work(10_000, 64, 0.01), 0.0) for d in range(2)])
except KeyboardInterrupt:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "stopped\n"
