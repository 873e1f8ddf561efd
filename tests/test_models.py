import torch

from hybridfl.models import CharacterLSTM, LogisticRegression, SentimentLSTM
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


def test_the_character_lstm_has_the_sizes_of_its_paper() -> None:
    """80·8 + 4·256·(8 + 256 + 2) + 4·256·(256 + 256 + 2) + (256 + 1)·80."""
    assert flatten(CharacterLSTM()).numel() == 640 + 272_384 + 526_336 + 20_560


def test_one_character_by_hand() -> None:
    """All weights 0 but the last biases: the gates are ½, the cell 0, so only the linear layer's bias is left."""
    model = CharacterLSTM(characters=2, embedding=1, hidden=1, layers=1)
    weights = torch.zeros_like(flatten(model))
    weights[-2:] = torch.tensor([3.0, 4.0])
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    assert model(torch.tensor([[0, 1, 1]], dtype=torch.uint8)).tolist() == [[3.0, 4.0]]


def test_the_next_character_depends_on_all_before_it() -> None:
    torch.manual_seed(0)
    model = CharacterLSTM(characters=5, embedding=3, hidden=4, layers=2)
    one, other = model(torch.tensor([[0, 1, 2], [4, 1, 2]]))
    assert not torch.equal(one, other)


def test_given_word_vectors_are_not_trained() -> None:
    vectors = torch.arange(12.0).view(4, 3)
    model = SentimentLSTM(words=4, hidden=2, vectors=vectors)
    assert {name for name, _ in model.named_parameters() if "embedding" in name} == set()
    assert torch.equal(model.embedding(torch.tensor([[1, 3]])), vectors[[1, 3]].unsqueeze(0))
    assert model(torch.tensor([[1, 3]])).shape == (1, 2)
    assert next(name for name, _ in SentimentLSTM(words=4).named_parameters()) == "embedding.weight"
