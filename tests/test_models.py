import torch

from hybridfl.models import LogisticRegression
from hybridfl.vectors import flatten


def test_logistic_regression_starts_at_zero() -> None:
    assert flatten(LogisticRegression(5, 3)).tolist() == [0.0] * 18


def test_logits_by_hand() -> None:
    model = LogisticRegression(2, 2)
    torch.nn.utils.vector_to_parameters(torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0, 20.0]), model.parameters())
    assert model(torch.tensor([[1.0, 1.0], [0.0, -1.0]])).tolist() == [[13.0, 27.0], [8.0, 16.0]]


def test_images_are_flattened() -> None:
    model = LogisticRegression(12, 3)
    torch.nn.utils.vector_to_parameters(torch.arange(39.0), model.parameters())
    images = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(model(images), model(images.view(2, 12)))
