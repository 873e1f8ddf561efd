"""A device's samples may be tensors, NumPy arrays or a PyTorch dataset; what cannot be put together names its device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from hybridfl import InputError, LogisticRegression, Samples, Task, simulate

DRAW = torch.Generator().manual_seed(0)
PAIRS = [(torch.randn(6, 4, generator=DRAW), torch.randint(0, 3, (6,), generator=DRAW)) for _ in range(3)]


class Rows(Dataset[Any]):
    """Items one by one: an array and a plain number."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs.numpy(), targets.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return self.inputs[place], self.targets[place]


@pytest.mark.parametrize(
    "made",
    [
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: (np.asfortranarray(x.numpy()), y.numpy().astype(np.int16)),
        lambda x, y: (x.numpy().astype(">f4"), y.numpy()[::-1][::-1]),
        lambda x, y: [x, y],
        lambda x, y: TensorDataset(x, y),
        lambda x, y: Rows(x, y),
        lambda x, y: Subset(Rows(x, y), range(6)),
    ],
    ids=["numpy", "other layouts", "other bytes", "list", "TensorDataset", "dataset", "subset"],
)
def test_arrays_and_datasets_are_the_same_samples_as_tensors(made: Any) -> None:
    plain, other = Samples.from_devices(PAIRS), Samples.from_devices([made(x, y) for x, y in PAIRS])
    assert torch.equal(plain.inputs, other.inputs)
    assert torch.equal(plain.targets, other.targets)
    assert (plain.inputs.dtype, plain.targets.dtype) == (other.inputs.dtype, other.targets.dtype)


def test_an_array_can_be_changed_afterwards() -> None:
    x, y = PAIRS[0][0].numpy().copy(), PAIRS[0][1].numpy()
    x.setflags(write=False)
    samples = Samples.from_devices([(x, y)])
    x.setflags(write=True)
    x[:] = 0
    assert torch.equal(samples.inputs, PAIRS[0][0])


@pytest.mark.parametrize("model", [LogisticRegression(4, 3), nn.Sequential(nn.Linear(4, 3), nn.GELU())])
def test_numpys_float64_becomes_what_the_model_computes_with(model: nn.Module) -> None:
    wide = [(x.double().numpy(), y.numpy()) for x, y in PAIRS]
    task, plain = Task.from_devices(wide, model), Task.from_devices(PAIRS, model)
    assert task.train.inputs.dtype == torch.float32
    assert task.checksum == plain.checksum
    assert repr(simulate(task, "fedavg(3)", "paper", rounds=2).records) == repr(
        simulate(plain, "fedavg(3)", "paper", rounds=2).records
    )
    assert Task.from_devices(PAIRS, nn.Linear(4, 3).double()).train.inputs.dtype == torch.float64


def test_what_float32_cannot_hold_is_refused() -> None:
    x = np.zeros((6, 4))
    x[2, 1] = 1e300
    with pytest.raises(InputError, match="Device 1 has NaN or infinite inputs"):
        Task.from_devices([PAIRS[0], (x, PAIRS[0][1])], nn.Linear(4, 3))


class Table:
    """As a DataFrame is."""

    def to_numpy(self) -> Any:
        return np.zeros((6, 4))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


class Ragged(Rows):
    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return self.inputs[place][: 4 - place % 2], 0


class Singles(Rows):
    def __getitem__(self, place: int) -> Any:
        return self.inputs[place]


X, Y = PAIRS[0]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ((Table(), Y), r"Device 1's inputs: a Table is no tensor and no NumPy array \(its `to_numpy\(\)` makes one\)"),
        (([[0.0] * 4] * 6, Y), r"Device 1's inputs: a list is no tensor .*numpy.array"),
        ((X, [0] * 6), "Device 1's targets: a list is no tensor"),
        ((X, Y, Y), "Device 1's samples are 3 things, not 2: give a pair"),
        (X, "Device 1's samples are a Tensor: give a pair"),
        ({"x": X}, "Device 1's samples are a dict: give a pair"),
        ((X, np.array(["a"] * 6)), "Device 1's targets are a NumPy array of <U1: make it one of numbers"),
        ((X, np.array([None] * 6)), "Device 1's targets are a NumPy array of object"),
        ((X, torch.tensor(3)), "Device 1's targets are a single number"),
        ((X, Y[:5]), "Device 1 has 6 inputs but 5 targets"),
        (TensorDataset(X, Y, Y), "Device 1's samples are 3 things"),
        (Stream(), "Device 1's dataset has no length"),
        (Ragged(X, Y), r"The input of item 1 of device 1's dataset has shape \(3,\), that of item 0 \(4,\)"),
        (Singles(X, Y), r"Item 0 of device 1's dataset is no pair"),
        ((torch.zeros(6, 5), Y), r"Device 1 has inputs of the shape \(5,\), other devices \(4,\)"),
        ((X, torch.zeros(6, 2).long()), r"Device 1 has targets of the shape \(2,\), other devices \(\)"),
        ((X, Y.float()), r"Device 1 has targets of the kind floating-point, other devices whole"),
        ((X.long(), Y), r"Device 1 has inputs of the kind whole, other devices floating-point"),
    ],
)
def test_what_cannot_be_put_together_is_refused_in_one_line(device: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Task.from_devices([PAIRS[0], device, PAIRS[2]], nn.Linear(4, 3))
    assert "\n" not in str(caught.value)
