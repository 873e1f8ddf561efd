# mypy: allow-untyped-calls
"""Training and scoring `LogisticRegression` on a GPU: all jobs of all runs in one kernel, no step returns to Python."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from hybridfl import softmax_triton as kernels
from hybridfl.closed_form import check_size, checked_classes
from hybridfl.cuda_evaluation import OnItsWay, Totals
from hybridfl.data.federated import Samples
from hybridfl.dense import Dense
from hybridfl.evaluation import Audience, Scores
from hybridfl.free_memory import free_bytes
from hybridfl.protocol import Job, Update, Vector
from hybridfl.randomness import keys
from hybridfl.resident import CUDA, resident, uploaded
from hybridfl.vectors import drifts

_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class _Data:
    """Samples on the GPU, and what the kernels must know of them."""

    inputs: Tensor
    targets: Tensor
    index: Tensor
    offsets: NDArray[np.int64]
    sizes: list[int]
    scale: float
    dense: Dense

    @classmethod
    def of(cls, samples: Samples, dense: Dense) -> _Data:
        checked_classes(samples, dense.num_classes)
        inputs = resident(samples.inputs).flatten(1)
        return cls(
            inputs=inputs if inputs.dtype == torch.uint8 else inputs.float(),
            targets=resident(samples.targets, torch.int32),
            index=resident(samples.index, torch.int32),
            offsets=samples.offsets,
            sizes=samples.num_samples.tolist(),
            scale=1.0 if samples.scale is None else samples.scale,
            dense=dense,
        )

    @functools.cached_property
    def widest(self) -> int:
        """The samples of the device that has most."""
        return max(self.sizes)

    @functools.cached_property
    def kind(self) -> tuple[torch.dtype, Dense]:
        """What is compiled into a kernel: data of one kind can share a launch."""
        return self.inputs.dtype, self.dense

    @functools.cached_property
    def constants(self) -> dict[str, int | bool]:
        features = self.inputs.shape[1]
        width = min(128, max(16, triton.next_power_of_2(features)))
        return {
            "FEATURES": features,
            "CLASSES": self.dense.num_classes,
            "CHUNKS": -(-features // width),
            "WIDTH": width,
            "COLUMNS": max(16, triton.next_power_of_2(self.dense.num_classes)),
            "UNIT": 16 // self.inputs.element_size(),
            "BYTES": self.inputs.dtype == torch.uint8,
        }


@dataclass(frozen=True)
class _Compiled:
    """What is compiled into the training kernel for a job: only jobs alike share a launch, or rounding would differ."""

    kind: tuple[torch.dtype, Dense]
    rows: int
    tiles: int
    pulls: bool
    clips: bool
    drifts: bool

    @classmethod
    def of(cls, data: _Data, job: Job) -> _Compiled:
        work = job.work
        batch = min(work.batch_size, data.widest)
        rows = min(64, max(16, triton.next_power_of_2(batch)))
        return cls(
            data.kind, rows, -(-batch // rows), work.proximal > 0, math.isfinite(work.clip), job.drift is not None
        )


class CudaSoftmaxSGD:
    """What `DenseSGD` computes for softmax regression, to float32 rounding, on a GPU.

    A job's bits do not depend on which others it is trained with. Nothing waits for the GPU: updates are handed out
    before they are computed.
    """

    def __init__(self, samples: Samples, dense: Dense, l2: float = 0.0, seed: int = 0) -> None:
        self._data = _Data.of(samples, dense)
        self._l2 = l2
        self._seed = seed

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return self.together([(self, jobs)])[0]

    @staticmethod
    def together(wanted: Sequence[tuple[CudaSoftmaxSGD, Sequence[Job]]]) -> list[list[Update]]:
        pairs = [(trainer, job) for trainer, jobs in wanted for job in jobs]
        updates: list[Update | None] = [None] * len(pairs)
        groups: dict[_Compiled, list[int]] = {}
        known: dict[tuple[int, int, bool], list[int]] = {}  # the jobs of a version share their work
        for place, (trainer, job) in enumerate(pairs):
            key = id(trainer), id(job.work), job.drift is not None
            if key not in known:
                known[key] = groups.setdefault(_Compiled.of(trainer._data, job), [])
            known[key].append(place)
        for compiled, places in groups.items():
            for few in _launches(places, pairs):
                for place, update in zip(few, _train([pairs[place] for place in few], compiled), strict=True):
                    updates[place] = update
        answers = iter(updates)
        return [[next(answers) for _ in jobs] for _, jobs in wanted]  # type: ignore[misc]

    def bundles(self, jobs: Sequence[Job]) -> list[list[int]]:
        return [[place] for place in range(len(jobs))]


def _launches(places: list[int], pairs: Sequence[tuple[CudaSoftmaxSGD, Job]]) -> Iterator[list[int]]:
    """Places whose jobs fit into memory together, those with most samples to visit first."""
    sizes = np.array([_visits(*pairs[place]) for place in places])
    longest_first = np.argsort(-sizes, kind="stable")
    constants = pairs[places[0]][0]._data.constants
    bytes_a_job = 16 * constants["CHUNKS"] * constants["WIDTH"] * constants["COLUMNS"]
    room = np.cumsum(bytes_a_job + 40 * sizes[longest_first]) // _room()
    for launch in range(int(room[-1]) + 1):
        few = [places[i] for i in longest_first[room == launch]]
        if few:
            yield few


def _visits(trainer: CudaSoftmaxSGD, job: Job) -> int:
    return trainer._data.sizes[job.device] * job.work.epochs


@functools.cache
def _room() -> int:
    """How much memory one launch may take."""
    return free_bytes(CUDA) // 4


def _train(pairs: Sequence[tuple[CudaSoftmaxSGD, Job]], compiled: _Compiled) -> list[Update]:
    """One launch. What lies at an address of its own is passed as the distance from the first of its kind."""
    first = pairs[0][0]._data
    trainers = {id(trainer): trainer for trainer, _ in pairs}
    numbers_of = {key: number for number, key in enumerate(trainers)}
    seeds = np.array([trainer._seed for trainer in trainers.values()])
    places = np.array(
        [
            (
                _distance(trainer._data.inputs, first.inputs, 16),
                _distance(trainer._data.targets, first.targets, 4),
                _distance(trainer._data.index, first.index, 4),
            )
            for trainer in trainers.values()
        ]
    )
    received = pairs[0][1].weights
    size = received.numel()
    check_size(received, first.inputs.shape[1], first.dense)

    jobs = [job for _, job in pairs]
    added = drifts(jobs)
    devices = np.array([job.device for job in jobs])
    owner = np.array([numbers_of[id(trainer)] for trainer, _ in pairs])
    offsets = np.empty(len(pairs), dtype=np.int64)
    ends = np.empty(len(pairs), dtype=np.int64)
    for number, trainer in enumerate(trainers.values()):
        mine = owner == number
        offsets[mine] = trainer._data.offsets[devices[mine]]
        ends[mine] = trainer._data.offsets[devices[mine] + 1]
    table = np.zeros((len(pairs), 12), dtype=np.int64)
    table[:, 0] = [job.weights.data_ptr() for job in jobs]
    table[:, 0] = (table[:, 0] - received.data_ptr()) // 4
    table[:, [1, 2, 7]] = places[owner]
    table[:, 4] = ends - offsets
    table[:, 5] = [job.work.epochs for job in jobs]
    table[:, 6] = np.minimum([job.work.batch_size for job in jobs], table[:, 4])
    table[:, 7] += offsets
    table[:, 8] = seeds[owner]
    table[:, 9] = devices
    table[:, 10] = [job.version for job in jobs]
    table[:, 11] = [job.repeat for job in jobs]
    counts, epochs, batches = table[:, 4], table[:, 5], table[:, 6]
    table[:, 3] = np.cumsum(counts * epochs) - counts * epochs
    order = _shuffled_rows(table, first.index)
    columns = uploaded(np.ascontiguousarray(table[:, :8]))
    numbers = uploaded(_numbers(pairs))

    constants = first.constants
    rows_a_tile, tiles = compiled.rows, compiled.tiles
    cells = constants["CHUNKS"] * constants["WIDTH"] * constants["COLUMNS"]
    trained = torch.empty(len(pairs), size, device=CUDA)
    losses = torch.empty(len(pairs), device=CUDA)
    kernels.train[(len(pairs),)](
        columns,
        numbers,
        received,
        received if added is None else added,
        first.inputs,
        first.targets,
        order,
        torch.empty(len(pairs), (2 if compiled.clips else 1) * cells, device=CUDA),
        torch.empty(len(pairs) * tiles * rows_a_tile * constants["COLUMNS"] if tiles > 1 else 1, device=CUDA),
        trained,
        losses,
        ROWS=rows_a_tile,
        TILES=tiles,
        PULLS=compiled.pulls,
        DRIFTS=compiled.drifts,
        CLIPS=compiled.clips,
        num_warps=4,
        **constants,
    )
    steps = (-(-counts // batches) * epochs).tolist()
    return [
        Update(job, weights, number, loss)
        for (_, job), weights, number, loss in zip(pairs, trained.unbind(0), steps, losses.unbind(0), strict=True)
    ]


def _shuffled_rows(table: NDArray[np.int64], index: Tensor) -> Tensor:
    """Which rows every job visits, epoch after epoch: as `Batches.order`, computed on the GPU."""
    counts, epochs = table[:, 4], table[:, 5]
    job = np.repeat(np.arange(len(table)), epochs)
    epoch = np.arange(len(job)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    segments = np.empty((len(job), 4), dtype=np.int64)
    segments[:, 0] = table[job, 3] + epoch * counts[job]
    segments[:, 1] = counts[job]
    seeds, devices, versions, repeats = (table[job, column] for column in (8, 9, 10, 11))
    segments[:, 2] = keys(seeds, "batches", devices, versions, repeats, epoch).view(np.int64)
    segments[:, 3] = table[job, 7]
    uploaded_segments = uploaded(segments)
    total = int((counts * epochs).sum())
    tagged = torch.empty(total, dtype=torch.int64, device=CUDA)
    order = torch.empty(total, dtype=torch.int32, device=CUDA)
    kernels.tag[(len(segments),)](uploaded_segments, tagged, BLOCK=_BLOCK)
    places = torch.sort(tagged, stable=True).indices
    kernels.look_up[(len(segments),)](uploaded_segments, places, index, order, BLOCK=_BLOCK)
    return order


def _numbers(pairs: Sequence[tuple[CudaSoftmaxSGD, Job]]) -> NDArray[np.float32]:
    """[jobs, 8]: η, 1 − η(2ε + μ), ημ, η·clip, scale, and three that are not used."""
    works = [job.work for _, job in pairs]
    rates = np.array([work.learning_rate for work in works])
    pulls = np.array([work.proximal for work in works])
    l2 = np.array([trainer._l2 for trainer, _ in pairs])
    numbers = np.zeros((len(pairs), 8), dtype=np.float32)
    numbers[:, 0] = rates
    numbers[:, 1] = 1.0 - rates * (2.0 * l2 + pulls)
    numbers[:, 2] = rates * pulls
    numbers[:, 3] = rates * np.array([work.clip for work in works])
    numbers[:, 4] = [trainer._data.scale for trainer, _ in pairs]
    return numbers


def _distance(tensor: Tensor, origin: Tensor, unit: int) -> int:
    return (tensor.data_ptr() - origin.data_ptr()) // unit


class CudaSoftmaxEvaluation:
    """What `Evaluation` computes for `LogisticRegression` with cross-entropy, on a GPU, for many runs at once."""

    def __init__(self, dense: Dense, train: Samples, test: Samples, audience: Audience, l2: float = 0.0) -> None:
        self._train = _Data.of(train, dense)
        self._test = _Data.of(test, dense)
        self._totals = Totals(len(train.index), len(test.index), audience, l2)
        parts = (self._train, self._test)
        self._rows = np.array(
            [
                (*(each.data_ptr() for each in (data.inputs, data.targets, data.index)), data.offsets[-1])
                for data in parts
            ]
        )
        self._scales = np.array([data.scale for data in parts], dtype=np.float32)

    def __call__(self, weights: Vector) -> Scores:
        return self.together([(self, weights)])[0].scores()

    @staticmethod
    def together(wanted: Sequence[tuple[CudaSoftmaxEvaluation, Vector]]) -> list[OnItsWay]:
        scorings: list[OnItsWay | None] = [None] * len(wanted)
        for kind in dict.fromkeys(evaluation._train.kind for evaluation, _ in wanted):
            places = [place for place, (evaluation, _) in enumerate(wanted) if evaluation._train.kind == kind]
            sums, right = _scored([wanted[place] for place in places])
            for place, scoring in zip(
                places, OnItsWay.of(sums, right, [wanted[place][0]._totals for place in places]), strict=True
            ):
                scorings[place] = scoring
        return scorings  # type: ignore[return-value]


def _scored(wanted: Sequence[tuple[CudaSoftmaxEvaluation, Vector]]) -> tuple[Tensor, Tensor]:
    """[wanted, 3], the sums `Totals.scores` takes, and [wanted, most test samples], whether each answer is right.

    Training and test samples are two entries of one launch.
    """
    evaluation, origin = wanted[0]
    first = evaluation._train
    check_size(origin, first.inputs.shape[1], first.dense)
    rows = np.concatenate([own._rows for own, _ in wanted])
    table = np.zeros((len(rows), 8), dtype=np.int64)
    table[:, 0] = np.repeat([weights.data_ptr() for _, weights in wanted], 2)
    table[:, 1:5] = rows
    table[:, :4] -= (origin.data_ptr(), first.inputs.data_ptr(), first.targets.data_ptr(), first.index.data_ptr())
    table[:, :4] //= (4, 16, 4, 4)
    columns = uploaded(table)
    rows_a_tile = 64
    tiles = max(1, -(-int(table[:, 4].max()) // rows_a_tile))
    losses = torch.empty(len(rows), tiles, dtype=torch.float64, device=CUDA)
    right = torch.empty(len(rows), tiles * rows_a_tile, dtype=torch.uint8, device=CUDA)
    totals = torch.empty(len(rows), 2, dtype=torch.float64, device=CUDA)
    kernels.score[(tiles, len(rows))](
        columns,
        uploaded(np.concatenate([own._scales for own, _ in wanted])),
        origin,
        first.inputs,
        first.targets,
        first.index,
        losses,
        right,
        tiles,
        ROWS=rows_a_tile,
        num_warps=4,
        **first.constants,
    )
    kernels.add_up[(len(rows),)](
        columns, origin, losses, totals, tiles, ROWS=rows_a_tile, SIZE=origin.numel(), BLOCK=_BLOCK
    )
    train, test = totals[0::2], totals[1::2]
    most = int(table[1::2, 4].max())
    return torch.cat([train[:, :1], test], dim=1), right[1::2, :most].contiguous()
