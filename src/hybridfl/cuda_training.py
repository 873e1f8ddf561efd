# mypy: allow-untyped-calls
"""Local SGD on a GPU for any model: a step of many jobs is one CUDA graph."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.losses import Loss, loss_by_sample
from hybridfl.protocol import Job, Update, Vector
from hybridfl.provenance import code_of
from hybridfl.resident import CUDA, resident, uploaded
from hybridfl.stacked_lstm import stackable
from hybridfl.training import is_recurrent
from hybridfl.trial import check_trainable
from hybridfl.vectors import unflatten

SLOTS = (32, 16, 8, 4, 2, 1)
"""Jobs that take their steps at once: the first number for which the GPU's memory suffices. It does not depend on how many
jobs there are, because cuBLAS rounds a stack of another height differently. A device for itself has one slot: there is nobody
else to fill others."""
_TABLE = 256
"""Steps whose samples are named to the GPU at a time."""


class GraphSGD:
    """What `LocalSGD` computes, to float32 rounding, on a GPU.

    Jobs take their steps in 32 slots, and a job that ends leaves its slot to the next, so a job's bits do not depend on
    which others it is trained with. One step of all slots is a CUDA graph: recorded once, and started by one call. The slots'
    models are stacked by `vmap`, LSTMs too (`stacked_lstm.py`). A model with other recurrent layers has a branch of the graph
    for every slot instead, in which cuDNN's fused layers run side by side. Nothing waits for the GPU.
    """

    def __init__(self, samples: Samples, model: nn.Module, loss: Loss, l2: float = 0.0, seed: int = 0) -> None:
        check_trainable(model)
        self._samples, self._model, self._loss, self._l2, self._seed = samples, model, loss, l2, seed
        self._model_kind = repr(model), tuple(code_of(model=model).items())
        self._widest = int(samples.num_samples.max())
        self._slot_numbers = SLOTS if np.count_nonzero(samples.num_samples) > 1 else SLOTS[-1:]

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return self.together([(self, jobs)])[0]

    @staticmethod
    def together(wanted: Sequence[tuple[GraphSGD, Sequence[Job]]]) -> list[list[Update]]:
        updates: dict[tuple[int, int], Update] = {}
        groups: dict[_Kind, list[tuple[int, int]]] = {}
        for number, (trainer, jobs) in enumerate(wanted):
            for place, job in enumerate(jobs):
                groups.setdefault(trainer._kind(job), []).append((number, place))
        for kind, places in groups.items():
            trainer = wanted[places[0][0]][0]
            if kind not in _GROUPS:
                for other in [other for other in _GROUPS if other[:-1] != kind[:-1]]:
                    del _GROUPS[other]  # graphs hold much memory: those of the task before are not kept
                _GROUPS[kind] = trainer, trainer._slots(wanted[places[0][0]][1][places[0][1]])
            ready = [wanted[number][0]._prepared(wanted[number][1][place]) for number, place in places]
            updates.update(zip(places, _GROUPS[kind][1].train(ready), strict=True))
        return [[updates[number, place] for place in range(len(jobs))] for number, (_, jobs) in enumerate(wanted)]

    def bundles(self, jobs: Sequence[Job]) -> list[list[int]]:
        return [[place] for place in range(len(jobs))]

    def _kind(self, job: Job) -> _Kind:
        """What is recorded in a graph: jobs of one kind share it. A model's buffers are its own, and so is its code."""
        model = id(self._model) if any(True for _ in self._model.buffers()) else self._model_kind
        data = id(self._samples.inputs), id(self._samples.targets), self._samples.scale
        return model, data, self._slot_numbers, self._loss, self._l2, self._batch_size(job), _Terms.of(job)

    def _batch_size(self, job: Job) -> int:
        return min(job.work.batch_size, self._widest)

    def _slots(self, job: Job) -> _Slots:
        data = _Inputs(resident(self._samples.inputs), resident(self._samples.targets), self._samples.scale)
        terms = _Terms.of(job)
        *many, fewest = self._slot_numbers
        for number in many:
            try:
                return _Slots(self._model, self._loss, self._l2, data, self._batch_size(job), terms, number)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        return _Slots(self._model, self._loss, self._l2, data, self._batch_size(job), terms, fewest)

    def _prepared(self, job: Job) -> _Prepared:
        batches = Batches.of([job], self._samples, self._seed)
        steps_an_epoch, size = int(batches.steps_per_epoch[0]), int(batches.batch_sizes[0])
        epochs, count = int(batches.epochs[0]), int(batches.num_samples[0])
        width = self._batch_size(job)
        rows = np.zeros((epochs, steps_an_epoch * size), dtype=np.int64)
        rows[:, :count] = batches.order.reshape(epochs, count)
        is_sample = np.arange(steps_an_epoch * size) < count
        table = np.zeros((epochs * steps_an_epoch, width), dtype=np.int64)
        table[:, :size] = rows.reshape(-1, size)
        filled = np.zeros((steps_an_epoch, width), dtype=np.float32)
        filled[:, :size] = is_sample.reshape(-1, size)
        shares = np.tile(filled / filled.sum(1, keepdims=True), (epochs, 1))
        return _Prepared(job, table, shares, steps_an_epoch)


@dataclass(frozen=True)
class _Terms:
    """Which terms a step has besides the gradient: what is not wanted is not computed."""

    pulls: bool
    clips: bool
    drifts: bool

    @classmethod
    def of(cls, job: Job) -> _Terms:
        return cls(job.work.proximal > 0, math.isfinite(job.work.clip), job.drift is not None)


_Kind = tuple[Hashable, ...]

_GROUPS: dict[_Kind, tuple[GraphSGD, _Slots]] = {}
"""The slots of each kind of job, and the trainer whose data and model the kind names: it must stay alive meanwhile."""


@dataclass(frozen=True, eq=False)
class _Inputs:
    """All samples, on the GPU."""

    inputs: Tensor
    targets: Tensor
    scale: float | None

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return Samples(self.inputs, self.targets, _NO_ROWS, _NO_ROWS, self.scale).take(rows)


_NO_ROWS = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A job, the rows of every step [steps, batch], and how much each counts in its step."""

    job: Job
    rows: NDArray[np.int64]
    shares: NDArray[np.float32]
    steps_an_epoch: int


class _Weights(Protocol):
    """The weights of all slots, and one step of all of them."""

    def load(self, slot: int, job: Job) -> None: ...
    def unload(self, slot: int, to: Vector) -> None: ...
    def step(self, inputs: Tensor, targets: Tensor, shares: Tensor, numbers: Tensor) -> Tensor:
        """Take a step with (η, μ, clip) = numbers[:, slot]; the slots' losses before it."""


class _Slots:
    """Jobs side by side, each in a slot; what a step reads lies in tables at addresses that never change."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        l2: float,
        data: _Inputs,
        batch_size: int,
        terms: _Terms,
        slots: int,
    ) -> None:
        self._weights: _Weights
        self._slots = slots
        self._size = sum(parameter.numel() for parameter in model.parameters())
        self._data = data
        self._at = torch.zeros(1, dtype=torch.int64, device=CUDA)
        self._rows = torch.zeros(_TABLE, slots, batch_size, dtype=torch.int64, device=CUDA)
        self._shares = torch.zeros(_TABLE, slots, batch_size, device=CUDA)
        self._counted = torch.zeros(_TABLE, slots, device=CUDA)
        self._numbers = torch.zeros(3, slots, device=CUDA)
        self._losses = torch.zeros(slots, device=CUDA)
        stacked = stackable(model).to(CUDA)
        if not is_recurrent(stacked):
            self._weights = _Stack(stacked, loss, l2, terms, slots)
            try:
                self._start = _recorded(self._step, self._at)
                return
            except TypeError:  # an LSTM that is given a state
                pass
        self._weights = _Branches(copy.deepcopy(model).to(CUDA).train(), loss, l2, terms, slots)
        self._start = _recorded(self._step, self._at)

    def _step(self) -> None:
        rows, shares, counted = (
            table.index_select(0, self._at)[0] for table in (self._rows, self._shares, self._counted)
        )
        inputs, targets = self._data.take(rows)
        losses = self._weights.step(inputs, targets, shares, self._numbers)
        self._losses.add_(torch.where(counted > 0, losses * counted, 0.0))
        self._at.add_(1)

    def train(self, jobs: Sequence[_Prepared]) -> list[Update]:
        trained = torch.empty(len(jobs), self._size, device=CUDA)
        losses = torch.empty(len(jobs), device=CUDA)
        works = [ready.job.work for ready in jobs]
        numbers = uploaded(
            np.array([(work.learning_rate, work.proximal, work.clip) for work in works], dtype=np.float32)
        )
        begins, ends = _timetable([len(ready.rows) for ready in jobs], self._slots)
        steps = max(ends) + 1
        for step in range(steps):
            if step % _TABLE == 0:
                self._name_samples(jobs, begins, step, min(_TABLE, steps - step))
            for j, slot in begins.get(step, ()):
                self._weights.load(slot, jobs[j].job)
                self._numbers[:, slot].copy_(numbers[j])
                self._losses[slot].zero_()
            self._start()
            for j, slot in ends.get(step, ()):
                self._weights.unload(slot, trained[j])
                losses[j].copy_(self._losses[slot])
                self._numbers[0, slot].zero_()
        return [
            Update(ready.job, weights, len(ready.rows), loss)
            for ready, weights, loss in zip(jobs, trained.unbind(0), losses.unbind(0), strict=True)
        ]

    def _name_samples(self, jobs: Sequence[_Prepared], begins: _Table, step: int, count: int) -> None:
        """Tell the GPU what the next `count` steps of all slots see."""
        rows = np.zeros((count, *self._rows.shape[1:]), dtype=np.int64)
        shares = np.zeros(rows.shape, dtype=np.float32)
        counted = np.zeros((count, self._slots), dtype=np.float32)
        for first, starting in begins.items():
            for j, slot in starting:
                ready = jobs[j]
                here = slice(max(0, first - step), min(count, first - step + len(ready.rows)))
                if here.start < here.stop:
                    own = slice(here.start + step - first, here.stop + step - first)
                    rows[here, slot], shares[here, slot] = ready.rows[own], ready.shares[own]
                    last_epoch = np.arange(own.start, own.stop) >= len(ready.rows) - ready.steps_an_epoch
                    counted[here, slot] = last_epoch / ready.steps_an_epoch
        for table, values in ((self._rows, rows), (self._shares, shares), (self._counted, counted)):
            table[:count].copy_(uploaded(values))
        self._at.zero_()


_Table = dict[int, list[tuple[int, int]]]
"""At which step which (job, slot)."""


def _timetable(lengths: Sequence[int], slots: int) -> tuple[_Table, _Table]:
    """(which jobs begin in which slot at a step, which end after it): the longest first, each in the slot free first."""
    begins: _Table = {}
    ends: _Table = {}
    free_at = [0] * slots
    for j in sorted(range(len(lengths)), key=lambda j: -lengths[j]):
        slot = free_at.index(min(free_at))
        begins.setdefault(free_at[slot], []).append((j, slot))
        free_at[slot] += lengths[j]
        ends.setdefault(free_at[slot] - 1, []).append((j, slot))
    return begins, ends


def _recorded(step: Callable[[], None], at: Tensor) -> Callable[[], None]:
    """`step` as a CUDA graph, or itself where it cannot be recorded (a model that looks at its own numbers, for example)."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            at.zero_()
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return step
    return graph.replay


class _Stack:
    """All slots' weights are one matrix; a step is one `vmap` of the gradient over its rows."""

    def __init__(self, model: nn.Module, loss: Loss, l2: float, terms: _Terms, slots: int) -> None:
        self._model, self._loss, self._l2, self._terms = model, loss, l2, terms
        size = sum(parameter.numel() for parameter in model.parameters())
        self._weights = torch.zeros(slots, size, device=CUDA)
        self._received = torch.zeros(slots, size, device=CUDA)
        self._drifts = torch.zeros(slots, size, device=CUDA) if terms.drifts else None
        self._gradients = vmap(grad_and_value(self._batch_loss))

    def load(self, slot: int, job: Job) -> None:
        self._weights[slot].copy_(job.weights)
        if self._terms.pulls:
            self._received[slot].copy_(job.weights)
        if self._drifts is not None and job.drift is not None:
            self._drifts[slot].copy_(job.drift)

    def unload(self, slot: int, to: Vector) -> None:
        to.copy_(self._weights[slot])

    def step(self, inputs: Tensor, targets: Tensor, shares: Tensor, numbers: Tensor) -> Tensor:
        rates, pulls, longest = numbers.unsqueeze(2)
        losses: Tensor
        gradients, losses = self._gradients(self._weights, inputs, targets, shares)
        gradients = gradients + 2 * self._l2 * self._weights
        if self._terms.pulls:
            gradients += pulls * (self._weights - self._received)
        if self._terms.clips:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients = torch.where(norms > longest, gradients * (longest / norms), gradients)
        if self._drifts is not None:
            gradients = gradients + self._drifts
        self._weights.sub_(rates * gradients)
        return losses

    def _batch_loss(self, weights: Vector, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        outputs = functional_call(self._model, unflatten(self._model, weights), (inputs,))
        return (loss_by_sample(self._loss, outputs, targets) * shares).sum()


class _Branches:
    """Every slot has a model of its own, and a stream of its own to run on beside the others."""

    def __init__(self, model: nn.Module, loss: Loss, l2: float, terms: _Terms, slots: int) -> None:
        self._loss, self._l2, self._terms = loss, l2, terms
        self._models = [copy.deepcopy(model).train() for _ in range(slots)]
        for own in self._models:
            for layer in own.modules():
                if isinstance(layer, nn.RNNBase):
                    layer.flatten_parameters()
        self._parameters: list[list[Tensor]] = [list(own.parameters()) for own in self._models]
        self._received = [[each.detach().clone() for each in own] for own in self._parameters]
        self._drifts = [[torch.zeros_like(each) for each in own] if terms.drifts else [] for own in self._parameters]
        self._streams = [torch.cuda.Stream() for _ in range(slots)]

    @torch.no_grad()
    def load(self, slot: int, job: Job) -> None:
        pieces = list(unflatten(self._models[slot], job.weights).values())
        torch._foreach_copy_(self._parameters[slot], pieces)
        if self._terms.pulls:
            torch._foreach_copy_(self._received[slot], pieces)
        if job.drift is not None:
            torch._foreach_copy_(self._drifts[slot], list(unflatten(self._models[slot], job.drift).values()))

    @torch.no_grad()
    def unload(self, slot: int, to: Vector) -> None:
        torch._foreach_copy_(list(unflatten(self._models[slot], to).values()), self._parameters[slot])

    def step(self, inputs: Tensor, targets: Tensor, shares: Tensor, numbers: Tensor) -> Tensor:
        losses = []
        for slot, aside in self._beside_each_other():
            with torch.cuda.stream(aside):
                parameters = self._parameters[slot]
                outputs = self._models[slot](inputs[slot])
                value = (loss_by_sample(self._loss, outputs, targets[slot]) * shares[slot]).sum()
                gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
                self._descend(slot, list(gradients), *numbers[:, slot])
                losses.append(value.detach())
        return torch.stack(losses)

    def _beside_each_other(self) -> Iterator[tuple[int, torch.cuda.Stream]]:
        main = torch.cuda.current_stream()
        for slot, aside in enumerate(self._streams):
            aside.wait_stream(main)
            yield slot, aside
        for aside in self._streams:
            main.wait_stream(aside)

    @torch.no_grad()
    def _descend(self, slot: int, gradients: list[Tensor], rate: Tensor, pull: Tensor, longest: Tensor) -> None:
        parameters = self._parameters[slot]
        if self._l2:
            torch._foreach_add_(gradients, parameters, alpha=2 * self._l2)
        if self._terms.pulls:
            away = torch._foreach_sub(parameters, self._received[slot])
            torch._foreach_mul_(away, pull)
            torch._foreach_add_(gradients, away)
        if self._terms.clips:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, torch.where(norm > longest, longest / norm, 1.0))
        if self._terms.drifts:
            torch._foreach_add_(gradients, self._drifts[slot])
        torch._foreach_mul_(gradients, rate)
        torch._foreach_sub_(parameters, gradients)
