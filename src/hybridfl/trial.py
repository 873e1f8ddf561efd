"""Whether a task can be trained: its model and its loss are looked at, and tried on two samples."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.evaluation import class_axis
from hybridfl.losses import Loss, cross_entropy, loss_by_sample


def check_trial(model: nn.Module, loss: Loss, samples: Samples) -> None:
    """Raise `InputError` unless model and loss fit the samples and their answer depends on nothing but weights and samples.

    They are tried on two samples, in training and in evaluation, twice each, and the user's model is left as it was.
    """
    check_trainable(model)
    inputs, targets = samples.take(torch.from_numpy(samples.index[:2]))
    if _are_labels(loss, targets):
        targets = torch.zeros_like(targets)  # `check_labels` looks at all labels together
    ours = copy.deepcopy(model)
    for training in (True, False):
        ours.train(training)
        before = [buffer.clone() for buffer in ours.buffers()]
        with _fitting(inputs, targets), _global_streams() as moved:
            answers = [_answer(ours, loss, inputs, targets) for _ in range(2)]
        for stream in moved():
            raise InputError(
                f"The model or the loss draws from {stream} (functional dropout, noise, sampling), which no seed of a run "
                "decides, so the same run would give other numbers each time: set the dropout to 0 and take the noise out."
            )
        if not torch.equal(*(torch.nan_to_num(answer) for answer in answers)):
            raise InputError(
                "The model or the loss gave two answers for the same weights and samples, so the same run would give other "
                "numbers each time: take out whatever is random, or counts how often it was called."
            )
        for buffer, (name, after) in zip(before, ours.named_buffers(), strict=True):
            if not torch.equal(buffer, after):
                raise InputError(
                    f"The model's forward changes its buffer '{name}', which belongs to no device: keep such statistics out "
                    "of the model."
                )


@contextmanager
def watched_for_randomness(who: str) -> Iterator[None]:
    """Raise `InputError` if PyTorch's global generator was drawn from: two samples do not show every branch of a forward."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        raise _unkeyed(who, "PyTorch's global generator")


@contextmanager
def watched_closely(who: str) -> Iterator[None]:
    """Likewise for NumPy's and Python's global generators, which takes longer."""
    with _global_streams() as moved:
        yield
    for stream in moved():
        raise _unkeyed(who, stream)


def _unkeyed(who: str, stream: str) -> InputError:
    return InputError(
        f"{who} drew from {stream}, which no seed of a run decides, so the same run would give other numbers each time: draw "
        "from a generator that is seeded by the job or the fleet, or take the noise out."
    )


def check_labels(model: nn.Module, loss: Loss, *held: Samples) -> None:
    """Raise `InputError` unless every target is a class that the model has an output for."""
    inputs, targets = held[0].take(torch.from_numpy(held[0].index[:2]))
    if _are_labels(loss, targets):
        with torch.no_grad(), _global_streams():
            outputs = copy.deepcopy(model).eval()(inputs)
        for samples in held:
            samples.check_classes(outputs.shape[1])


def _are_labels(loss: Loss, targets: Tensor) -> bool:
    """Whether targets must be classes. A loss of the user's own may allow others, to ignore them for example."""
    return loss is cross_entropy and not targets.is_floating_point()


def chance_of(model: nn.Module, samples: Samples) -> float:
    """1/C where a model tells C classes apart, NaN where targets are no classes: how often a guess is right."""
    inputs, targets = samples.take(torch.from_numpy(samples.index[:2]))
    with torch.no_grad(), _global_streams():
        outputs = copy.deepcopy(model).eval()(inputs)
    axis = class_axis(outputs, targets)
    return math.nan if axis is None else 1 / outputs.shape[axis]


TRAINABLE = (torch.float32, torch.float64)


def check_trainable(model: nn.Module) -> None:
    """Refuse layers that would make a job's answer depend on anything but the job."""
    if not any(True for _ in model.parameters()):
        raise InputError(f"{type(model).__name__} has no parameters to train.")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise InputError(f"Parameter '{name}' is frozen, but all parameters are trained: make it a buffer instead.")
        if parameter.dtype not in TRAINABLE:
            remedy = "keep its parts as two real ones" if parameter.is_complex() else "call `model.float()`"
            raise InputError(
                f"Parameter '{name}' is {parameter.dtype}, and training needs float32 or float64: {remedy}."
            )
    kinds = {parameter.dtype: f"'{name}' is {parameter.dtype}" for name, parameter in model.named_parameters()}
    if len(kinds) > 1:
        raise InputError(
            f"The model mixes parameters, {' and '.join(sorted(kinds.values()))}: call `model.float()` or `model.double()`."
        )
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise InputError(
                f"Layer '{name}' is {type(layer).__name__}: its running statistics belong to no device. "
                "Use GroupNorm or LayerNorm."
            )
        drops = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(drops, float) and drops > 0:
            raise InputError(
                f"Layer '{name}' is {type(layer).__name__}: its dropout is not keyed, so runs would not repeat. Set it to 0."
            )


def check_first_weights(model: nn.Module) -> None:
    """Refuse first weights that are not finite."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(
                f"Parameter '{name}' starts with NaN or infinite numbers: give the model finite first weights."
            )


def _answer(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    with torch.no_grad():
        return loss_by_sample(loss, model(inputs), targets)


@contextmanager
def _fitting(inputs: Tensor, targets: Tensor) -> Iterator[None]:
    """What does not fit is said in one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"The model or the loss does not fit the samples, inputs {inputs.dtype} {list(inputs.shape)} and targets "
            f"{targets.dtype} {list(targets.shape)}: {reason}"
        ) from error


@contextmanager
def _global_streams() -> Iterator[Callable[[], list[str]]]:
    """Yields what tells afterwards which global streams of randomness were drawn from; all are put back."""
    ours, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    moved: list[str] = []
    try:
        yield lambda: moved
    finally:
        if not torch.equal(ours, torch.get_rng_state()):
            moved.append("PyTorch's global generator")
        if not _is_equal_state(numpys, np.random.get_state()):
            moved.append("NumPy's global generator")
        if pythons != random.getstate():
            moved.append("Python's global generator")
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)


def _is_equal_state(one: object, other: object) -> bool:
    return repr(one) == repr(other) and all(
        np.array_equal(a, b)
        for a, b in zip(one, other, strict=True)  # type: ignore[call-overload]
    )
