import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from hybridfl.vectors import flatten, is_finite, shares, unflatten, weighted_sum


def two_layers() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    values = iter(range(1, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor([float(next(values)) for _ in range(parameter.numel())]).view_as(parameter))
    return model


def test_flatten_follows_named_parameters_row_by_row() -> None:
    model = two_layers()
    assert flatten(model).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert list(unflatten(model, flatten(model))) == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("model", [two_layers(), nn.Linear(1, 1, bias=False)])
def test_flatten_copies(model: nn.Module) -> None:
    before = flatten(model)
    flatten(model).zero_()
    assert torch.equal(flatten(model), before)
    assert not flatten(model).requires_grad


def test_unflatten_undoes_flatten() -> None:
    model = two_layers()
    for name, parameter in model.named_parameters():
        assert torch.equal(unflatten(model, flatten(model))[name], parameter)


def test_unflatten_gives_views() -> None:
    model, weights = two_layers(), torch.zeros(9)
    unflatten(model, weights)["1.weight"].fill_(5.0)
    assert weights.tolist() == [0, 0, 0, 0, 0, 0, 5, 5, 0]


def test_unflattened_weights_are_what_the_model_computes_with() -> None:
    model = two_layers()
    weights = torch.tensor([1.0, 0.0, 0.0, 1.0, 10.0, 20.0, 1.0, 1.0, 100.0])
    outputs = functional_call(model, unflatten(model, weights), (torch.tensor([[1.0, 2.0]]),))
    assert outputs.tolist() == [[133.0]]


def test_unflatten_refuses_weights_of_another_model() -> None:
    with pytest.raises(RuntimeError):
        unflatten(two_layers(), torch.zeros(10))


def test_shares_are_parts_of_the_data() -> None:
    assert shares(np.array([1, 3, 4])).tolist() == [0.125, 0.375, 0.5]
    assert shares(np.array([1, 3])).dtype == torch.float32


def test_a_weighted_sum_is_as_wide_as_its_rows() -> None:
    rows = torch.tensor([[1.0, 2.0], [10.0, 1e-12]], dtype=torch.float64)
    assert weighted_sum(torch.tensor([0.5, 2.0]), rows).tolist() == [20.5, 1.0 + 2e-12]


def test_what_is_finite() -> None:
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.tensor([1.0, -2.0]))
    assert is_finite(torch.full((3,), 3e38)), "though their sum is not"
    for bad in (math.nan, math.inf, -math.inf):
        assert not is_finite(torch.tensor([0.0, bad]))
    assert not is_finite(torch.tensor([math.inf, -math.inf]))


def test_weighted_sum_by_hand() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert weighted_sum(torch.tensor([0.5, 2.0]), rows).tolist() == [20.5, 41.0, 61.5]
