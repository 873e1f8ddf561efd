"""Whether a task can be trained: its model and its loss are looked at, and tried on a few samples."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.evaluation import class_axis
from hybridfl.losses import Loss, cross_entropy, loss_by_sample
from hybridfl.provenance import code_and_variables_of


def check_trial(model: nn.Module, loss: Loss, samples: Samples) -> None:
    """Raise `InputError` unless a sample's loss depends on nothing but the model's weights and that sample.

    Model and loss are tried on a few samples, together and one by one, in training and in evaluation, and the gradient is
    followed to what it trains. All of it happens to a copy: the user's model is left as it was.
    """
    check_trainable(model)
    inputs, targets = samples.take(_tried(samples))
    many, their_targets = samples.take(_spread(samples, _MANY))
    if _are_labels(loss, targets):  # `check_labels` looks at all labels together
        targets, their_targets = torch.zeros_like(targets), torch.zeros_like(their_targets)
    ours, own_loss = copy.deepcopy(model), _copied(loss)
    if ours is model:
        raise InputError(
            f"A copy of {type(model).__name__} is the model itself: every run computes with a copy of its own."
        )
    names = [name for name, _ in ours.named_parameters()]
    with _fitting(inputs, targets), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come when it is trained
        _check_repeats(ours, own_loss, inputs, targets)
        if [name for name, _ in ours.named_parameters()] != names:
            raise InputError(
                "The model makes parameters in its first forward: call it once on a sample before you give it away."
            )
        for training in (True, False):
            _check_alone(ours.train(training), own_loss, inputs, targets)
            _check_parts(ours, own_loss, many, their_targets)
        _check_gradient(ours.train(), own_loss, inputs, targets)
        _check_first_batch(model, loss, many, their_targets)


def _copied(loss: Loss) -> Loss:
    """Threads compute with copies of a loss that is an object; a function is what it is."""
    if isinstance(loss, torch.jit.ScriptFunction):
        return loss
    try:
        return copy.deepcopy(loss)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"The loss cannot be copied, which every thread does: keep no results in it ({reason})"
        ) from error


_TRIED = 4
"""Samples of a trial, and of the parts into which a larger batch is cut."""

_MANY = 64
"""Samples of that batch: as large as many are, since some code looks at large ones only."""


def _tried(samples: Samples) -> Tensor:
    """Rows from all over the fleet, with different targets where there are some."""
    rows = _spread(samples, 4 * _TRIED)
    targets = samples.targets[rows].reshape(len(rows), -1)
    is_new = [all(not torch.equal(targets[i], targets[j]) for j in range(i)) for i in range(len(rows))]
    return rows[sorted(range(len(rows)), key=lambda i: not is_new[i])[:_TRIED]]


def _spread(samples: Samples, count: int) -> Tensor:
    """At most `count` rows from all over the fleet, those of a device beside one another."""
    return torch.from_numpy(samples.index[np.unique(np.linspace(0, len(samples.index) - 1, count).astype(np.int64))])


def _check_repeats(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """The same answer twice, no draw from a global generator, and nothing kept from one call to the next."""
    tries, kept, buffers = [], [], []
    for _ in range(2):
        _check_streams(lambda: tries.append(_once(model, loss, inputs, targets)))
        kept.append(code_and_variables_of(model=model, loss=loss))
        buffers.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    for name, after in buffers[1].items():
        if name not in buffers[0] or not torch.equal(buffers[0][name], after):
            raise InputError(
                f"The model's forward changes its buffer '{name}', which belongs to no device: keep such statistics out "
                "of the model."
            )
    for first, second in zip(*tries[-2:], strict=True):
        if not torch.equal(torch.nan_to_num(first), torch.nan_to_num(second)):
            raise InputError(
                "The model or the loss gave two answers for the same weights and samples, so the same run would give other "
                "numbers each time: take out whatever is random, or counts how often it was called."
            )
    changed = [name for name in kept[1] if kept[0].get(name) != kept[1][name]]
    if changed:
        raise InputError(
            f"Every call of the model or the loss changes a value that it holds or reaches ({_listed(changed)}): take out "
            "generators of its own, counters and running statistics: they belong to no device and make other numbers each time."
        )


def _check_first_batch(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """What a copy of the model and the loss has seen before changes nothing, and nothing outside of them keeps it."""
    half = len(targets) // 2
    if half < 2:  # a batch of one is not what every model stands
        return
    first, second = slice(0, half), slice(half, 2 * half)
    answers, kept = [], []
    for seen_before in (first, second):
        ours, own_loss = copy.deepcopy(model), _copied(loss)
        for part in (seen_before, second):
            scored = [
                _answer(ours.train(training), own_loss, inputs[part], targets[part]) for training in (True, False)
            ]
            kept.append(code_and_variables_of(model=ours, loss=own_loss))
        answers.append(torch.cat(scored))
    if not torch.equal(*(torch.nan_to_num(answer) for answer in answers)):
        raise InputError(
            "The model or the loss answers by what it has seen before, the first batch for example: compute such values before "
            "the run and give them to the model as buffers."
        )
    outside = [name for name in kept[0] if name not in ("model", "loss") and kept[0][name] != kept[1].get(name)]
    if outside:
        raise InputError(
            f"The model or the loss keeps something of a batch outside of itself ({_listed(outside)}), which all threads "
            "share: pass it as an argument, or keep it on the model."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", …" if len(names) > 3 else "")


def _once(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """What comes of scoring and of training."""
    scored = _answer(model.eval(), loss, inputs, targets)
    trained = _losses(model.train(), loss, inputs, targets)
    return [scored, trained.detach(), _trained_by(trained, model)]


def _check_streams(attempt: Callable[[], None]) -> None:
    """Raise `InputError` if every one of three attempts draws from a global stream: once, another thread may have drawn."""
    for _ in range(3):
        with _global_streams() as moved:
            attempt()
        if not moved():
            return
    raise InputError(
        f"The model or the loss draws from {moved()[0]} (functional dropout, noise, sampling), which no seed of a run decides, "
        "so the same run would give other numbers each time: set the dropout to 0 and take the noise out."
    )


_ROUNDING = 1e-3
"""Batches of other sizes round differently; samples that see one another differ by far more."""


def _check_alone(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """A sample's loss is the same beside others as beside itself."""
    together = _answer(model, loss, inputs, targets)
    alone = torch.stack([_answer(model, loss, *_twice(sample, inputs, targets))[0] for sample in range(len(targets))])
    _compare(together, alone)


def _check_parts(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Nor does a large batch differ from its parts, which are mostly of one device each."""
    parts: tuple[Tensor, ...] = torch.split(torch.arange(len(targets)), _TRIED)
    if len(parts[-1]) < _TRIED:  # a batch of one is not what every model stands
        parts = parts[:-1]
    if parts:
        apart = torch.cat([_answer(model, loss, inputs[part], targets[part]) for part in parts])
        together: list[Tensor] = []
        _check_streams(lambda: together.append(_answer(model, loss, inputs, targets)))
        _compare(together[-1][: len(apart)], apart)


def _compare(together: Tensor, alone: Tensor) -> None:
    largest = float(torch.nan_to_num(alone).abs().max())
    if not torch.allclose(together, alone, rtol=_ROUNDING, atol=_ROUNDING * largest, equal_nan=True):
        raise InputError(
            f"A sample's loss depends on the others in its batch ({_first_apart(together, alone)}), but devices are trained "
            "together, and a short batch is filled up: keep statistics and normalised weights over the batch out of model and "
            "loss, give transformers batch_first=True, and give outputs the shape of the targets where these are numbers."
        )


def _check_gradient(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """It trains the model's own parameters and nothing else, and is the sum of the samples' own gradients."""
    parameters = list(model.parameters())
    losses = _losses(model, loss, inputs, targets)
    if losses.grad_fn is None:
        raise InputError("No parameter decides the loss (detached, or computed without gradients): nothing is trained.")
    own = {_place(parameter) for parameter in parameters}
    again = _losses(model, loss, inputs, targets)  # what a forward makes for itself is elsewhere this time
    lasting = {_place(leaf) for leaf in _leaves(again)}
    for leaf in _leaves(losses):
        if _place(leaf) not in own and _place(leaf) in lasting:
            raise InputError(_foreign(leaf, loss))
    together = _gradient(losses.sum(), parameters)
    alone = torch.zeros_like(together)
    for sample in range(len(targets)):
        alone += _gradient(_losses(model, loss, *_twice(sample, inputs, targets)).sum() / 2, parameters)
    apart, length = float((together - alone).norm()), float(together.norm())
    if math.isfinite(apart) and apart > _ROUNDING * length:
        raise InputError(
            "A sample's gradient depends on the others in its batch, but devices are trained together, and a short batch is "
            "filled up: take out what counts over the batch, an embedding's scale_grad_by_freq for example."
        )


def _twice(sample: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A batch of one sample beside itself: a model that squeezes its outputs need not stand a batch of one."""
    rows = torch.tensor([sample, sample])
    return inputs[rows], targets[rows]


def _first_apart(together: Tensor, alone: Tensor) -> str:
    sample = int(torch.argmax(torch.nan_to_num((together - alone).abs())))
    return f"{float(together[sample]):.4g} beside them, {float(alone[sample]):.4g} without"


def _trained_by(losses: Tensor, model: nn.Module) -> Tensor:
    return _gradient(losses.sum(), list(model.parameters())) if losses.grad_fn is not None else losses.detach()


def _gradient(value: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    """All that a backward pass would train."""
    waiting, seen = [tensor.grad_fn], {tensor.grad_fn}
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _place(tensor: Tensor) -> tuple[int, torch.Size]:
    """Where its numbers are."""
    return tensor.data_ptr(), tensor.shape


def _foreign(leaf: Tensor, loss: Loss) -> str:
    if isinstance(loss, nn.Module) and any(_place(leaf) == _place(parameter) for parameter in loss.parameters()):
        return (
            f"The loss has parameters of its own, one of shape {list(leaf.shape)}, which nothing would train: make them "
            "parameters of the model."
        )
    return (
        f"The gradient trains a tensor of shape {list(leaf.shape)} that is no parameter of the model that a run computes with, "
        "which is a copy of yours: a lambda or a loss that holds the model, or `self`, holds the first one. Reach it by a "
        "method or an argument of `forward`; a penalty on the weights is `Task(l2=…)`; a fixed teacher wants "
        "`requires_grad_(False)`."
    )


@contextmanager
def watched_for_randomness(who: str) -> Iterator[None]:
    """Raise `InputError` if PyTorch's global generator was drawn from: a trial does not show every branch of a forward."""
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
            samples.check_classes(outputs.shape[1], getattr(loss, "ignore_index", None))


def _are_labels(loss: Loss, targets: Tensor) -> bool:
    """Whether targets must be classes. A loss of the user's own may allow others."""
    return (loss is cross_entropy or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)) and not (
        targets.is_floating_point()
    )


def check_ids(model: nn.Module, *held: Samples) -> None:
    """Raise `InputError` unless the model takes the largest and the smallest whole number in every place of the inputs.

    An embedding that is stacked for many devices would read another device's row where an id is too large.
    """
    for samples in held:
        if samples.scale is None and not samples.inputs.is_floating_point() and len(samples.index):
            inputs, targets = samples.take(samples.extremes())
            with torch.no_grad(), _global_streams(), _fitting(inputs, targets):
                try:
                    copy.deepcopy(model).eval()(inputs)
                except IndexError as error:
                    raise InputError(
                        f"The model does not take all whole numbers of the inputs, {int(inputs.min())} to "
                        f"{int(inputs.max())} ({error}): give its embedding more rows, or number the inputs from 0."
                    ) from error


def chance_of(model: nn.Module, *held: Samples) -> float:
    """1/C where a model tells C classes apart, NaN where targets are no classes: how often a guess is right."""
    inputs, targets = held[0].take(torch.from_numpy(held[0].index[:2]))
    with torch.no_grad(), _global_streams():
        outputs = copy.deepcopy(model).eval()(inputs)
    axis = class_axis(outputs, targets)
    if axis is None or any(samples.largest_target() >= outputs.shape[axis] for samples in held):
        return math.nan
    return 1 / int(outputs.shape[axis])


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
        if isinstance(layer, torch.jit.ScriptModule):
            raise InputError(
                f"Layer '{name}' is TorchScript, whose copies compute with the first one's weights: give the module that it "
                "was made of."
            )
        if getattr(layer, "sparse", False) and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise InputError(f"Layer '{name}' is an embedding with sparse gradients: give it sparse=False.")
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise InputError(
                f"Layer '{name}' is {type(layer).__name__}: its statistics over batches belong to no device. "
                "Use GroupNorm or LayerNorm."
            )
        is_torchs = type(layer).__module__.startswith("torch.")  # a layer of the user's is tried
        drops = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
        if is_torchs and isinstance(drops, float) and drops > 0:
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


def _losses(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    """Of copies, which a forward or a loss may overwrite: every batch of a run is one."""
    targets = targets.clone()
    return loss_by_sample(loss, model(inputs.clone()), targets)


def _answer(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    with torch.no_grad():
        return _losses(model, loss, inputs, targets)


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


def _is_equal_state(one: Any, other: Any) -> bool:
    """Of NumPy's generator: its kind, 624 numbers, and what else it keeps."""
    return one[0] == other[0] and np.array_equal(one[1], other[1]) and one[2:] == other[2:]
