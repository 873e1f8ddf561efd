"""Small stand-ins the algorithm tests share: a fleet, a device's answer, a trainer whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hybridfl.protocol import Fleet, Inbox, Job, Lost, Update, Work


def fleet_of(*num_samples: int, seconds: Sequence[float] | None = None, seed: int = 0) -> Fleet:
    expected = np.full(len(num_samples), np.nan) if seconds is None else np.array(seconds, dtype=float)
    return Fleet(np.array(num_samples), expected, seed)


def vector(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)


def job(device: int, version: int, base: Sequence[float], rate: float = 0.1, sent_at: float = 0.0) -> Job:
    return Job(device, version, vector(*base), Work(1, 1, rate), sent_at)


def answer(to: Job, *delta: float, num_steps: int = 1) -> Update:
    """The update w_base + delta."""
    return Update(to, to.weights + vector(*delta), num_steps, train_loss=0.0)


def arrivals(now: float, *updates: Update) -> Inbox:
    return Inbox(now, tuple(sorted(updates, key=lambda update: update.job.device)))


def lost(*jobs: Job) -> tuple[Lost, ...]:
    return tuple(Lost(one, "lost on the way") for one in jobs)


class Towards:
    """A trainer that moves every weight of device i a fixed part of the way towards the number i."""

    def __init__(self, part: float = 0.5) -> None:
        self._part = part

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return [
            Update(j, j.weights + self._part * (j.device - j.weights), num_steps=2, train_loss=float(j.version))
            for j in jobs
        ]
