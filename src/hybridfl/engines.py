"""Which code trains and scores a task: chosen by its model's type, and by where it runs."""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from hybridfl.closed_form import checked_classes
from hybridfl.data.federated import Samples
from hybridfl.dense import Dense
from hybridfl.errors import InputError
from hybridfl.evaluation import Audience, Evaluation, Evaluator, ModuleForward
from hybridfl.models import LogisticRegression
from hybridfl.provenance import code_of, repr_of
from hybridfl.task import Task
from hybridfl.training import JointTrainer, LocalSGD
from hybridfl.trial import chance_of, check_first_weights, check_ids, check_labels, check_trainable, check_trial

log = logging.getLogger("hybridfl")

CPU = torch.device("cpu")


def device_named(name: str | torch.device) -> torch.device:
    """`auto` is the GPU where there is one; PyTorch's own device is taken by its name."""
    if isinstance(name, torch.device):
        name = str(name)
    if name == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else CPU
    if name not in ("cpu", "cuda"):
        raise InputError(f"Unknown device '{name}': give auto, cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch sees no GPU here for 'cuda': choose cpu or auto, or install PyTorch with CUDA.")
    return torch.device(name)


def trainer_for(task: Task, seed: int, device: torch.device = CPU) -> JointTrainer:
    """The fastest trainer that is right for the task's model."""
    if device.type == "cuda" and task.first_weights.dtype != torch.float32:
        raise InputError(
            f"The model's parameters are {task.first_weights.dtype}, and a GPU trains float32: call `model.float()`, or use "
            "the CPU."
        )
    dense = closed_form(task, device)
    if device.type == "cuda":
        if dense is None:
            from hybridfl.cuda_training import GraphSGD

            return GraphSGD(task.train, task.first_model, task.loss, task.l2, seed)
        from hybridfl.softmax_cuda import CudaSoftmaxSGD

        return CudaSoftmaxSGD(task.train, dense, task.l2, seed)
    if dense is None:
        return LocalSGD(task.train, task.first_model, task.loss, task.l2, seed)
    from hybridfl.dense_training import DenseSGD

    return DenseSGD(task.train, dense, task.l2, seed)


def evaluator_for(task: Task, stragglers: NDArray[np.bool_], seed: int, device: torch.device = CPU) -> Evaluator:
    """The fastest way to score a task's weights. The seed draws the samples, where not all are scored."""
    train, test = (
        samples if task.scored is None else samples.drawn(task.scored, seed) for samples in (task.train, task.test)
    )
    dense = closed_form(task, device)
    audience = Audience.of(
        test, stragglers, 1 / dense.num_classes if dense else chance_of(task.first_model, task.train, task.test)
    )
    if device.type == "cuda":
        if dense is None:
            from hybridfl.cuda_evaluation import CudaEvaluation

            return CudaEvaluation(task.first_model, task.loss, train, test, audience, task.l2)
        from hybridfl.softmax_cuda import CudaSoftmaxEvaluation

        return CudaSoftmaxEvaluation(dense, train, test, audience, task.l2)
    if dense is None or not dense.is_softmax_regression:
        return Evaluation(ModuleForward(task.first_model, task.loss), train, test, audience, task.l2)
    from hybridfl.dense_training import SoftmaxForward

    return Evaluation(SoftmaxForward(dense), train, test, audience, task.l2)


def closed_form(task: Task, device: torch.device = CPU) -> Dense | None:
    """The chain of linear layers a task's model is, if it is one and there is a compiler for its closed form.

    Numba compiles it for the CPU; on a GPU, Triton does for softmax regression.
    """
    dense = _chain(task)
    if dense is None:
        return None
    if device.type == "cuda":
        return dense if dense.is_softmax_regression and find_spec("triton") is not None else None
    return dense if find_spec("numba") is not None else None


def _chain(task: Task) -> Dense | None:
    """The chain of linear layers a task's model is, if its closed form is right for the task's samples too."""
    dense = Dense.of(task.first_model, task.loss)
    if dense is None or task.train.targets.dim() != 1 or task.first_weights.dtype != torch.float32:
        return None
    if task.train.inputs.is_complex():
        return None
    as_seen = torch.float32 if task.train.scale is not None else task.train.inputs.dtype
    return dense if dense.is_softmax_regression or as_seen == torch.float32 else None


def warn_if_slow(task: Task, device: torch.device) -> None:
    """Say once per process that the task would be trained much faster with the compiler for its closed form."""
    if device.type == "cpu" and find_spec("numba") is None and _chain(task) is not None:
        _warn_without_numba()


@functools.cache
def _warn_without_numba() -> None:
    log.warning("Numba is not installed: training takes about 40 times as long. Remedy: pip install 'hybridfl[fast]'.")


_TRIED: WeakKeyDictionary[Task, dict[str, str]] = WeakKeyDictionary()
"""Tasks whose model and loss have passed their trial, which takes seconds of a recurrent one, and their code then."""


def check_task(task: Task) -> None:
    """Raise `InputError` if a task cannot be trained, whichever engine it gets: every way to run one comes by here."""
    model = task.model_with(task.first_weights)
    check_first_weights(model)
    if isinstance(task.loss, type) or not callable(task.loss):
        raise InputError(f"loss={repr_of(task.loss)} is no loss: give a function of outputs and targets, or an object.")
    for who, samples in (("training", task.train), ("test", task.test)):
        samples.check_rows(who)
        samples.check_finite()
    empty = np.flatnonzero(task.train.num_samples == 0)
    if len(empty):
        raise InputError(f"Device {empty[0]} has no training samples: leave it out or give it some.")
    if len(task.train) != len(task.test):
        raise InputError(
            f"The training samples are of {len(task.train)} devices, the test samples of {len(task.test)}: every device is "
            "scored on test samples of its own. Share a common test set out among the devices (Samples.shared_out)."
        )
    if type(model) is LogisticRegression and closed_form(task) is not None:
        check_trainable(model)  # no trial: it is known what it computes
        for samples in (task.train, task.test):
            _check_scale(samples)
            checked_classes(samples, model.linear.out_features)
    else:
        code = code_of(model=task.first_model, loss=task.loss)
        if _TRIED.get(task) != code:
            check_trial(model, task.loss, task.train)
            _TRIED[task] = code
        check_ids(model, task.train, task.test)
        check_labels(model, task.loss, task.train, task.test)


def _check_scale(samples: Samples) -> None:
    """The closed form would train on whole numbers as they are, 0 to 255 for example, which other models refuse."""
    if samples.scale is None and samples.inputs.dtype != torch.bool and not samples.inputs.is_floating_point():
        raise InputError(
            f"The inputs are {str(samples.inputs.dtype).removeprefix('torch.')} without a scale: give floating-point numbers "
            "(inputs.float()), or say what they are multiplied by, Samples.from_devices(devices, scale=1 / 255) for bytes."
        )
