import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.evaluation import Audience, Evaluation, ModuleForward, class_axis, device_scores, right_answers
from hybridfl.losses import cross_entropy
from hybridfl.models import LogisticRegression
from hybridfl.protocol import Vector
from hybridfl.vectors import flatten

ROWS = torch.zeros(10, 1)
NORMAL, STRAGGLER = False, True


def look_up(weights: Vector, samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Row r has loss r, and is predicted right if r is even."""
    numbers = torch.from_numpy(rows)
    return numbers.float(), numbers % 2 == 0


def devices(*rows: list[int]) -> Samples:
    """Device i holds `rows[i]`."""
    offsets = np.cumsum([0, *(len(own) for own in rows)])
    return Samples(ROWS, ROWS, np.array([row for own in rows for row in own], dtype=np.int64), offsets)


def audience(test: Samples, *kinds: bool, chance: float = 0.5) -> Audience:
    return Audience.of(test, np.array(kinds), chance)


def test_scores_by_hand() -> None:
    """A sample counts as much as any other, whatever its device: device 0 has three of the four training samples."""
    train, test = devices([0, 1, 2], [5], [9]), devices([2, 3, 4, 6], [7, 8], [])
    scores = Evaluation(look_up, train, test, audience(test, NORMAL, STRAGGLER, STRAGGLER))(torch.zeros(2))
    assert scores.train_loss == pytest.approx((0 + 1 + 2 + 5 + 9) / 5)
    assert scores.test_loss == pytest.approx((2 + 3 + 4 + 6 + 7 + 8) / 6)
    assert scores.test_accuracy == pytest.approx(4 / 6)
    assert scores.normal_accuracy == pytest.approx(3 / 4)
    assert scores.straggler_accuracy == pytest.approx(1 / 2)
    assert scores.device_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2), "each of the two that have test samples"
    assert scores.by_device[:2].tolist() == [3 / 4, 1 / 2]
    assert math.isnan(scores.by_device[2])
    assert scores.held_by_device.tolist() == [4, 2, 0]


def test_scores_by_device_by_hand() -> None:
    """12 devices: the worst tenth are ⌈1.2⌉ = 2 of them. Chance is 1/4, and a device at chance is not below it."""
    accuracies = np.array([1.0, 0.5, 0.25, 0.0, 0.75, 1.0, 0.2, 0.5, 0.5, 0.5, 0.5, 0.3])
    mean, worst, below = device_scores(accuracies, chance=0.25)
    assert mean == pytest.approx(6.0 / 12)
    assert worst == pytest.approx((0.0 + 0.2) / 2)
    assert below == pytest.approx(2 / 12)


def test_one_device_with_most_samples_decides_the_accuracy_by_sample_and_not_by_device() -> None:
    """Device 0 has 8 samples and is right on all of them, devices 1 and 2 one each and are wrong."""
    test = Samples(ROWS, ROWS, np.arange(10), np.array([0, 8, 9, 10]))
    right = np.array([True] * 8 + [False] * 2)
    scores = audience(test, NORMAL, STRAGGLER, STRAGGLER).scores(right, train_loss=1.0, test_loss=1.0)
    assert scores.test_accuracy == pytest.approx(0.8)
    assert scores.device_accuracy == pytest.approx(1 / 3)
    assert scores.worst_accuracy == 0.0
    assert scores.below_chance == pytest.approx(2 / 3)


@pytest.mark.parametrize("losses", [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)])
def test_losses_that_are_not_finite_have_no_accuracy_beside_them(losses: tuple[float, float]) -> None:
    scores = audience(devices([2], [3]), NORMAL, STRAGGLER).scores(np.array([True, True]), *losses)
    assert scores.has_diverged
    assert math.isnan(scores.test_accuracy)
    assert math.isnan(scores.device_accuracy)


@pytest.mark.parametrize(
    ("outputs", "targets", "axis"),
    [
        ((4, 3), (4,), 1),
        ((4, 3, 5), (4, 5), 1),  # as torch.nn.functional.cross_entropy has it
        ((4, 5, 3), (4, 5), 2),  # as language models have it
        ((4, 3, 3), (4, 3), None),  # either would do
        ((4, 1), (4,), None),  # a single output is no class
        ((4,), (4,), None),
        ((4, 2, 3), (4,), None),
    ],
)
def test_along_which_axis_classes_lie(outputs: tuple[int, ...], targets: tuple[int, ...], axis: int | None) -> None:
    assert class_axis(torch.zeros(outputs), torch.zeros(targets, dtype=torch.int64)) == axis
    assert class_axis(torch.zeros(outputs), torch.zeros(targets)) is None


def test_several_targets_per_sample_count_by_their_share() -> None:
    outputs = torch.tensor([[[1.0, 0.0, 5.0], [0.0, 2.0, 1.0]]])  # [1, 2 classes, 3 places]: classes 0, 1, 0
    assert right_answers(outputs, torch.tensor([[0, 1, 1]])).tolist() == pytest.approx([2 / 3])


def test_the_l2_term_is_part_of_the_training_loss_only() -> None:
    test = devices([6])
    evaluate = Evaluation(look_up, devices([4]), test, audience(test, NORMAL), l2=0.1)
    scores = evaluate(torch.tensor([1.0, -2.0]))
    assert scores.train_loss == pytest.approx(4 + 0.1 * 5)
    assert scores.test_loss == 6


@pytest.mark.parametrize("kind", [NORMAL, STRAGGLER])
def test_the_accuracy_of_nobody_is_nan(kind: bool) -> None:
    test = devices([2], [3])
    scores = Evaluation(look_up, devices([0], [1]), test, audience(test, kind, kind))(torch.zeros(2))
    found = {NORMAL: scores.normal_accuracy, STRAGGLER: scores.straggler_accuracy}
    assert found[kind] == 0.5
    assert math.isnan(found[not kind])


def test_without_test_samples_the_test_scores_are_nan() -> None:
    test = devices([])
    scores = Evaluation(look_up, devices([1]), test, audience(test, NORMAL))(torch.zeros(2))
    assert not scores.has_diverged
    assert scores.train_loss == 1
    assert math.isnan(scores.device_accuracy)
    assert math.isnan(scores.test_loss)
    assert math.isnan(scores.test_accuracy)


def test_forward_by_hand() -> None:
    """Logits of x are (−x, x): p(class 1) = 1 / (1 + exp(−2x))."""
    samples = Samples.from_devices([(torch.tensor([[1.0], [-1.0], [0.5]]), torch.tensor([1, 1, 0]))])
    forward = ModuleForward(LogisticRegression(1, 2), cross_entropy)
    losses, right = forward(torch.tensor([-1.0, 1.0, 0.0, 0.0]), samples, np.array([2, 0, 1]))
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(margin)) for margin in (1, -2, 2)], abs=1e-6)
    assert right.tolist() == [False, True, False]


def test_many_rows_are_scored_like_few() -> None:
    draw = torch.Generator().manual_seed(0)
    samples = Samples.from_devices([(torch.randn(20_000, 1, generator=draw), torch.zeros(20_000, dtype=torch.int64))])
    forward, weights = ModuleForward(LogisticRegression(1, 2), cross_entropy), torch.tensor([-1.0, 1.0, 0.0, 0.0])
    losses, right = forward(weights, samples, samples.index)
    for rows in (samples.index[:10], samples.index[8187:8197], samples.index[-10:]):
        few_losses, few_right = forward(weights, samples, rows)
        torch.testing.assert_close(losses[rows], few_losses, rtol=1e-6, atol=1e-6)
        assert torch.equal(right[rows], few_right)


def test_forward_refuses_a_loss_that_is_one_number_for_all() -> None:
    samples = Samples.from_devices([(torch.zeros(3, 1), torch.tensor([0, 1, 1]))])
    forward = ModuleForward(LogisticRegression(1, 2), torch.nn.functional.cross_entropy)
    with pytest.raises(InputError, match="reduction='none'"):
        forward(torch.zeros(4), samples, samples.index)


def test_forward_leaves_no_gradient_behind() -> None:
    samples = Samples.from_devices([(torch.zeros(3, 1), torch.tensor([0, 1, 1]))])
    weights = torch.zeros(4, requires_grad=True)
    losses, _ = ModuleForward(LogisticRegression(1, 2), cross_entropy)(weights, samples, samples.index)
    assert not losses.requires_grad


class RemembersItsFeatures(nn.Module):
    """Keeps an activation between two lines, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 64), nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        self.features = torch.relu(self.first(inputs))
        logits: Tensor = self.head(self.features)
        return logits


def test_threads_do_not_share_a_model() -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(20_000, 4, generator=draw)
    samples = Samples.from_devices([(inputs, torch.randint(3, (20_000,), generator=draw))])
    model = RemembersItsFeatures()
    forward = ModuleForward(model, cross_entropy)
    with torch.no_grad():
        expected = cross_entropy(model(inputs), samples.targets)
    for _ in range(5):
        losses, _ = forward(flatten(model), samples, samples.index)
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
