"""A model of float64 parameters is trained in float64, whatever the algorithm."""

import pytest
import torch
from torch import nn

from hybridfl import InputError, LogisticRegression, Task, simulate
from hybridfl.algorithms.averages import Average, ClippedMean, Mean, TrimmedMean
from hybridfl.engines import closed_form, trainer_for

ALGORITHMS = [
    "fedavg(5)",
    "fedprox",
    "fedasync",
    "fedbuff",
    "s-sgd",
    "hfl",
    "hfl-by-device",
    "hfl-drift",
    "hfl-as-printed",
    "FedAvg(5, average=ClippedMean())",
    "FedAvg(5, average=TrimmedMean(0.2))",
    "FedAvg(5, average=Median())",
    "FedBuff(buffer=4, average=ClippedMean())",
    "HFL(Memory(Diagonal()))",
    "HFL(Memory(RankOne(), average=TrimmedMean(0.2)))",
    "HFL(Memory(most=3, storage='float16'))",
    "HFL(Memory(average=ClippedMean(), storage='float16', normalised=True))",
]


def task(dtype: torch.dtype, model: type[nn.Module] = nn.Linear) -> Task:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(10 + 3 * device, 4, generator=draw) for device in range(10)]
    torch.manual_seed(0)
    own = model(4, 3).to(dtype)
    return Task.from_devices([(x, x[:, :3].argmax(1)) for x in inputs], own)


@pytest.mark.parametrize("guard", [None, "on"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_float64_gives_what_float32_gives_but_for_rounding(algorithm: str, guard: str | None) -> None:
    wide, narrow = (
        simulate(task(dtype), algorithm, "paper", rounds=6, guard=guard) for dtype in (torch.float64, torch.float32)
    )
    assert [(each.version, each.merged) for each in wide.records] == [
        (each.version, each.merged) for each in narrow.records
    ]
    tolerance = 2e-3 if "float16" in algorithm else 1e-5
    for found, wanted in zip(wide.records, narrow.records, strict=True):
        assert found.train_loss == pytest.approx(wanted.train_loss, rel=tolerance)
    assert all(parameter.dtype == torch.float64 for parameter in wide.model.parameters())
    assert wide.records[-1].bytes_sent == 2 * narrow.records[-1].bytes_sent


@pytest.mark.parametrize("average", [Mean(), ClippedMean(factor=100.0), TrimmedMean(0.0)])
def test_an_average_of_float64_steps_keeps_their_digits(average: Average) -> None:
    shares, rows = torch.full((2,), 0.5), torch.tensor([[1.0, 1.0], [1.0 + 1e-12, 1.0]], dtype=torch.float64)
    assert average(shares, shares, rows).tolist() == [1.0 + 5e-13, 1.0]


@pytest.mark.parametrize("model", [LogisticRegression, lambda *sizes: nn.Sequential(nn.Linear(*sizes))])
def test_the_compiled_closed_form_is_left_to_float32(model: type[nn.Module]) -> None:
    wide = task(torch.float64, model)
    assert closed_form(wide) is None
    last = simulate(wide, "hfl", "paper", rounds=3).model
    weights = torch.cat([parameter.detach().flatten() for parameter in last.parameters()])
    assert not torch.equal(weights, weights.float().double()), "more digits than float32 has"


def test_a_gpu_refuses_float64_in_one_line() -> None:
    with pytest.raises(
        InputError, match=r"parameters are torch.float64, and a GPU trains float32: call `model.float\(\)`"
    ):
        trainer_for(task(torch.float64), 0, torch.device("cuda"))
