"""What is learned: samples by device, a model and a loss."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.data.pairs import Pair
from hybridfl.errors import InputError, require_whole
from hybridfl.losses import Loss, cross_entropy
from hybridfl.protocol import Vector
from hybridfl.provenance import repr_of
from hybridfl.vectors import fill, flatten, times_written


@dataclass(frozen=True, eq=False)
class _First:
    """A model as it was when its task was made, and the copy of it that the task shows."""

    shown: nn.Module
    model: nn.Module
    weights: Vector

    @classmethod
    def of(cls, model: nn.Module) -> _First:
        return cls(_copied(model), _copied(model), flatten(model))


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned: samples by device, a model whose parameters are w_0, a loss a sample, and ε of the L2 term ε‖w‖².

    The same data and first weights make the same run: call `torch.manual_seed(0)` before a model is made at random.

    The model is copied when the task is made, parameters and buffers: what becomes of the given one later, or of `task.model`,
    changes no run. `replace(task, scored=5)` keeps the first model; `replace(task, model=other)` takes the other.

    Accuracy: the largest output is the prediction. A model whose smallest output is meant (distances) returns their negative.
    Whole-number targets beside several outputs (quantiles, say) are read as classes: make such targets floating point.
    """

    name: str
    train: Samples
    test: Samples
    model: nn.Module
    """A copy of the model that was given, to look at: runs compute with another, `first_model`."""
    loss: Loss = cross_entropy
    l2: float = 0.0
    scored: int | None = None
    """Scores are taken on at most so many training samples and so many test samples, drawn by the run's seed; None: on all."""
    notes: tuple[str, ...] = ()
    """What a reader of results should know of the data."""
    _first: _First | None = field(default=None, repr=False)
    _checksums: dict[tuple[int, ...], str] = field(default_factory=dict, init=False, repr=False)
    """By how often each tensor of the data had been written to."""

    def __post_init__(self) -> None:
        _check_model(self.model)
        if not isinstance(self.l2, Real) or not 0 <= self.l2 < math.inf:
            raise InputError(f"l2={self.l2!r} is no weight of the L2 term: give 0 or more.")
        if not isinstance(self.l2, int | float):
            object.__setattr__(self, "l2", float(self.l2))
        if self.scored is not None:
            require_whole("scored", self.scored)
            object.__setattr__(self, "scored", int(self.scored))
        if self._first is None or self._first.shown is not self.model:
            first = _First.of(self.model)
            object.__setattr__(self, "_first", first)
            object.__setattr__(self, "model", first.shown)

    @property
    def first_model(self) -> nn.Module:
        """The model as it was when the task was made. What computes with it takes a copy."""
        assert self._first is not None
        return self._first.model

    @property
    def first_weights(self) -> Vector:
        """w_0: the parameters of `first_model`."""
        assert self._first is not None
        return self._first.weights

    @property
    def is_shown_changed(self) -> bool:
        """Whether `model` has other parameters than runs start from."""
        return not torch.equal(flatten(self.model), self.first_weights)

    @classmethod
    def from_devices(
        cls,
        devices: Samples | Sequence[Pair],
        model: nn.Module,
        name: str = "custom",
        loss: Loss = cross_entropy,
        l2: float = 0.0,
        test_share: float = 0.1,
        seed: int = 0,
    ) -> Task:
        """One (inputs, targets) pair per device, or samples by device; `test_share` of each device's is held out for testing.

        A pair is two tensors, two NumPy arrays, or a PyTorch `Dataset` of (input, target), which is read once. Floating-point
        numbers become what the model's parameters are: float32 as a rule, although NumPy makes float64.
        """
        _check_model(model)
        samples = devices if isinstance(devices, Samples) else Samples.from_devices(devices)
        for parameter in itertools.islice(filter(Tensor.is_floating_point, model.parameters()), 1):
            samples = samples.of_dtype(parameter.dtype)
        train, test = samples.split(test_share, seed)
        return cls(name, train, test, model, loss, l2)

    def model_with(self, weights: Vector) -> nn.Module:
        """A copy of the model with these weights, ready to predict: a snapshot's or a moment's, for example."""
        return fill(copy.deepcopy(self.first_model), weights).eval()

    def pooled(self) -> Task:
        """The same task with all training samples on one device."""
        return replace(self, train=self.train.pooled())

    def describe(self) -> dict[str, Any]:
        """What `run.json` says of a task; the checksum tells apart tasks that only differ in their numbers."""
        return {
            "name": self.name,
            "devices": len(self.test),
            "train_samples": len(self.train.index),
            "test_samples": len(self.test.index),
            "model": " ".join(repr_of(self.first_model).split()),
            "parameters": self.first_weights.numel(),
            "loss": _name_of(self.loss),
            "l2": self.l2,
            "scored": self.scored,
            "notes": list(self.notes),
            "checksum": self.checksum,
        }

    @property
    def checksum(self) -> str:
        """Tells apart tasks whose data, first weights or split differ in anything; computed again if data were written to.

        PyTorch counts what it writes itself; NumPy may write to the same memory: see `forget_checksum`.
        """
        tensors = self.train.inputs, self.train.targets, self.test.inputs, self.test.targets
        written = tuple(times_written(each) for each in tensors)
        if written not in self._checksums:
            self._checksums[written] = self._digest()
        return self._checksums[written]

    def forget_checksum(self) -> None:
        """The next one is computed from the data as they are then."""
        self._checksums.clear()

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        held = [(samples.inputs, samples.targets) for samples in (self.train, self.test)]
        shared = held[0][0] is held[1][0] and held[0][1] is held[1][1]
        for tensor in (*held[0], *(() if shared else held[1]), self.first_weights, *self.first_model.buffers()):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
            digest.update(_bytes_of(_held_once(tensor)))
        for array in (self.train.index, self.train.offsets, self.test.index, self.test.offsets):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(f"{self.train.scale} {self.test.scale}".encode())
        return digest.hexdigest()


def _check_model(model: object) -> None:
    """Refuse what has no first weights, and what a copy of the model would not have."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model={model!r} is no torch.nn.Module: make one, for example torch.nn.Linear(8, 2).")
    for name, parameter in model.named_parameters():
        if parameter.is_meta or isinstance(parameter, nn.UninitializedParameter):
            raise InputError(f"Parameter '{name}' holds no numbers yet: give the model first weights.")
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"Parameter '{name}' has a hook on its gradient, which the copy that a run computes with does not have: "
                "multiply the weight by a mask in the forward instead."
            )
    owners: dict[int, str] = {}
    for name, held in _held_by(model):
        if held.data_ptr() and owners.setdefault(held.data_ptr(), name) != name:
            raise InputError(
                f"'{name}' shares its numbers with '{owners[held.data_ptr()]}' but is another tensor, and copies of the model "
                "part them: give both the same Parameter (decoder.weight = encoder.weight, without .data)."
            )


def _held_by(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, each once, and tensors that are plain attributes of layers."""
    yield from model.named_parameters()
    for name, layer in model.named_modules():
        plain = [(key, each) for key, each in vars(layer).items() if type(each) is Tensor]
        yield from ((f"{name}.{key}".lstrip("."), each) for key, each in plain)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{type(model).__name__} cannot be copied, which every run does with its model: {reason}"
        ) from error


def _held_once(tensor: Tensor) -> Tensor:
    """The numbers behind a tensor. Overlapping windows are a view of far fewer numbers than they have entries."""
    stored = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor if tensor.numel() <= stored else tensor.as_strided((stored,), (1,))


def _bytes_of(tensor: Tensor) -> memoryview:
    """Of any type of numbers, those that NumPy does not have too."""
    flat = tensor.detach().to_dense().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _name_of(loss: Loss) -> str:
    """A name without a memory address, so that the same run has the same configuration tomorrow."""
    if isinstance(loss, functools.partial):
        given = [*map(repr_of, loss.args), *(f"{name}={repr_of(value)}" for name, value in loss.keywords.items())]
        return f"{_name_of(loss.func)}({', '.join(given)})"
    return str(getattr(loss, "__name__", type(loss).__name__))
