"""Which samples a job's every step sees: the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridfl.data.federated import Samples
from hybridfl.protocol import Job
from hybridfl.randomness import keys, shuffled


@dataclass(frozen=True, eq=False)
class Batches:
    """The minibatches of several jobs. Job j walks `order[starts[j]:starts[j + 1]]`, epoch after epoch.

    Every epoch is a fresh shuffle of the device's samples, keyed by (seed, device, version, repeat, epoch), cut into
    batches of `batch_sizes[j]`; an epoch's last batch may be smaller.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    epochs: NDArray[np.int64]
    batch_sizes: NDArray[np.int64]

    @classmethod
    def of(cls, jobs: Sequence[Job], samples: Samples, seed: int) -> Batches:
        devices, versions, repeats, epochs = np.array(
            [(job.device, job.version, job.repeat, job.work.epochs) for job in jobs], dtype=np.int64
        ).T
        num_samples = samples.offsets[devices + 1] - samples.offsets[devices]
        each_epoch = np.repeat(np.arange(len(jobs)), epochs)
        epoch = np.arange(len(each_epoch)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        sizes = num_samples[each_epoch]
        shuffles = keys(seed, "batches", devices[each_epoch], versions[each_epoch], repeats[each_epoch], epoch)
        positions = shuffled(shuffles, sizes) + np.repeat(samples.offsets[devices][each_epoch], sizes)
        return cls(
            order=samples.index[positions],
            starts=np.concatenate([[0], np.cumsum(num_samples * epochs)]),
            num_samples=num_samples,
            epochs=epochs,
            batch_sizes=np.minimum([job.work.batch_size for job in jobs], num_samples),
        )

    def part(self, job: int) -> Batches:
        """Those of one job."""
        one = slice(job, job + 1)
        first, last = self.starts[job], self.starts[job + 1]
        return Batches(
            order=self.order[first:last],
            starts=np.array([0, last - first]),
            num_samples=self.num_samples[one],
            epochs=self.epochs[one],
            batch_sizes=self.batch_sizes[one],
        )

    @property
    def steps_per_epoch(self) -> NDArray[np.int64]:
        return -(-self.num_samples // self.batch_sizes)

    @property
    def num_steps(self) -> NDArray[np.int64]:
        return self.steps_per_epoch * self.epochs

    def at(self, step: int, jobs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows [jobs, width], sizes [jobs]) of one step; a batch shorter than the widest repeats its first row."""
        epoch, batch = np.divmod(step, self.steps_per_epoch[jobs])
        first = self.starts[jobs] + epoch * self.num_samples[jobs] + batch * self.batch_sizes[jobs]
        sizes = np.minimum(self.batch_sizes[jobs], self.num_samples[jobs] - batch * self.batch_sizes[jobs])
        columns = np.arange(sizes.max())
        return self.order[first[:, None] + np.where(columns < sizes[:, None], columns, 0)], sizes
