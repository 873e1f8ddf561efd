import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hybridfl.models import CharacterLSTM, SentimentLSTM
from hybridfl.stacked_lstm import StackableLSTM, stackable


def models() -> list[nn.Module]:
    torch.manual_seed(0)
    return [CharacterLSTM(20, 4, 6, 2), SentimentLSTM(20, 5, 7, 1), UsesItsStates()]


class UsesItsStates(nn.Module):
    """The last h and c count too; time is first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 3)
        self.inner = nn.Sequential(nn.Identity())
        self.lstm = nn.LSTM(3, 5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, (h, c) = self.lstm(self.embedding(inputs.T))
        logits: Tensor = outputs[0] + h.sum(0) + 2 * c.sum(0)
        return logits


@pytest.mark.parametrize("which", range(3))
def test_it_computes_what_pytorchs_computes(which: int) -> None:
    model = models()[which]
    ours = stackable(model)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert any(isinstance(layer, StackableLSTM) for layer in ours.modules())
    inputs = torch.randint(0, 20, (4, 9))
    torch.testing.assert_close(ours(inputs), model(inputs), rtol=1e-6, atol=1e-6)
    for one, other in zip(gradients(ours, inputs), gradients(model, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def gradients(model: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))


@pytest.mark.parametrize("which", range(3))
def test_stacked_it_computes_what_each_computes_alone(which: int) -> None:
    model = models()[which]
    ours = stackable(model)
    weights = [{name: value.detach() + 0.1 * slot for name, value in model.named_parameters()} for slot in range(3)]
    stacked = {name: torch.stack([own[name] for own in weights]) for name in weights[0]}
    inputs = torch.randint(0, 20, (3, 4, 9))

    def loss(parameters: dict[str, Tensor], own: Tensor) -> Tensor:
        outputs: Tensor = functional_call(ours, parameters, (own,))
        return outputs.square().sum()

    found, losses = vmap(grad_and_value(loss))(stacked, inputs)
    for slot, own in enumerate(weights):
        model.load_state_dict(own, strict=False)
        assert losses[slot].item() == pytest.approx(model(inputs[slot]).square().sum().item(), rel=1e-5)
        for (name, _), expected in zip(model.named_parameters(), gradients(model, inputs[slot]), strict=True):
            torch.testing.assert_close(found[name][slot], expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_stacked_stays_as_it_is() -> None:
    model = nn.Sequential(nn.LSTM(3, 4, bidirectional=True), nn.GRU(3, 4), nn.LSTM(3, 4, proj_size=2))
    assert not any(isinstance(layer, StackableLSTM) for layer in stackable(model).modules())


def test_the_model_given_is_left_alone() -> None:
    model = models()[0]
    stackable(model)
    assert isinstance(model.lstm, nn.LSTM)
