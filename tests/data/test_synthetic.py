from collections.abc import Callable

import numpy as np
import pytest
import torch

from hybridfl.data.federated import Samples
from hybridfl.data.synthetic import synthetic, synthetic_iid
from hybridfl.errors import InputError
from hybridfl.models import LogisticRegression


def device(samples: Samples, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = samples.rows(number)
    return samples.inputs[rows], samples.targets[rows]


def linear_fit(inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """The accuracy, on these samples, of a linear classifier that was fitted to them as well as one can."""
    model = LogisticRegression(60, 10)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(model(inputs), targets)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return float((model(inputs).argmax(1) == targets).double().mean())


def some_of_each(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.concatenate([samples.rows(number)[:200] for number in range(len(samples))])
    return samples.inputs[rows], samples.targets[rows]


@pytest.mark.parametrize("samples", [synthetic(1.0, 1.0, devices=7), synthetic_iid(devices=7)])
def test_sixty_features_ten_classes_and_fifty_samples_at_least(samples: Samples) -> None:
    assert len(samples) == 7
    assert samples.inputs.shape == (samples.num_samples.sum(), 60)
    assert samples.inputs.dtype == torch.float32
    assert samples.targets.dtype == torch.int64
    assert set(samples.targets.tolist()) <= set(range(10))
    assert samples.num_samples.min() >= 50


def test_sizes_are_lognormal() -> None:
    logs = np.log(synthetic_iid(devices=300).num_samples - 50 + 0.5)
    assert logs.mean() == pytest.approx(4.0, abs=0.4)
    assert logs.std() == pytest.approx(2.0, abs=0.3)


def test_the_variance_of_feature_j_is_j_to_the_minus_1_2() -> None:
    samples = synthetic(0.5, 0.5, devices=50)
    inputs, _ = device(samples, int(samples.num_samples.argmax()))
    assert len(inputs) > 2000
    assert inputs.var(0).tolist() == pytest.approx([j**-1.2 for j in range(1, 61)], rel=0.15)


@pytest.mark.parametrize("xi", [0.0, 3.0])
def test_xi_is_the_spread_of_the_devices_centres(xi: float) -> None:
    """A device's mean over features and samples is about N(0, ξ² + 1/60)."""
    samples = synthetic(0.0, xi, devices=200)
    centres = [float(device(samples, number)[0].mean()) for number in range(200)]
    assert np.std(centres) == pytest.approx(np.sqrt(xi**2 + 1 / 60), rel=0.2)


def test_gamma_changes_no_label_as_it_shifts_all_classes_alike() -> None:
    """W and b move by the same u for every class, so every logit moves by the same u·(Σx + 1)."""
    alike, apart = synthetic(0.0, 0.5, devices=20), synthetic(5.0, 0.5, devices=20)
    assert torch.equal(alike.inputs, apart.inputs)
    assert (alike.targets == apart.targets).double().mean() > 0.9999


def test_every_device_has_a_linear_rule_of_its_own() -> None:
    samples = synthetic(0.0, 0.0, devices=30)
    assert all(linear_fit(*device(samples, number)) > 0.98 for number in range(3))
    assert linear_fit(*some_of_each(samples)) < 0.9


def test_iid_devices_share_one_linear_rule_and_one_distribution() -> None:
    samples = synthetic_iid(devices=30)
    assert linear_fit(*some_of_each(samples)) > 0.99
    means = torch.stack([device(samples, number)[0].mean(0) for number in range(30)])
    errors = means * torch.from_numpy(np.sqrt(samples.num_samples)[:, None] * np.arange(1, 61) ** 0.6)
    assert float(errors.std()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("make", [lambda devices, seed: synthetic(1.0, 1.0, devices, seed), synthetic_iid])
def test_a_devices_samples_depend_on_the_seed_and_its_number_alone(make: Callable[[int, int], Samples]) -> None:
    few, many, other = make(3, 5), make(6, 5), make(3, 6)
    for number in range(3):
        for mine, same in zip(device(few, number), device(many, number), strict=True):
            assert torch.equal(mine, same)
    assert few.num_samples.tolist() != other.num_samples.tolist()


def test_devices_differ() -> None:
    for samples in (synthetic(0.0, 0.0, devices=2), synthetic_iid(devices=2)):
        assert not torch.equal(device(samples, 0)[0][:50], device(samples, 1)[0][:50])


@pytest.mark.parametrize(
    ("gamma", "xi", "devices", "words"),
    [
        (-1.0, 0.0, 5, "gamma=-1.0"),
        (0.0, -0.5, 5, "xi=-0.5"),
        (0.0, float("nan"), 5, "xi=nan"),
        (0.0, 0.0, 0, "devices=0"),
    ],
)
def test_refuses_what_no_fleet_could_have(gamma: float, xi: float, devices: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        synthetic(gamma, xi, devices)
