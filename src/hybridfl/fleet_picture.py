"""A small picture of a fleet for the terminal: who is at work when, and how long jobs take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hybridfl.conditions import Conditions, FleetTiming, conditions_of
from hybridfl.free_memory import check_room
from hybridfl.protocol import Job, Loss, Work
from hybridfl.timing import Pace, Roster

BYTES_PER_DEVICE = 64
"""Of what is known of a device: a handful of numbers."""
BARS = "▁▂▃▄▅▆▇█"
AT_WORK = "█▒"
"""One job after the other, so that one sees where they end."""
MANY, LOST, AWAY = "▓", "×", "·"


@dataclass(frozen=True)
class Stretch:
    """A job of a device that is given the next one as soon as it is free and there."""

    begin: float
    end: float
    lost: str | None


def drawn_up(
    fleet: Pace | Conditions, devices: int, seed: int, samples: int = 100, model_bytes: int = 0
) -> FleetTiming:
    """A fleet whose devices all hold the same number of samples."""
    check_room("devices", devices, BYTES_PER_DEVICE)
    return conditions_of(fleet).of(Roster(np.full(devices, samples), model_bytes, seed))


MOST_IN_A_COLUMN = 20
"""Of so many jobs in one place of the picture, none can be told from the others, and the rest of them is passed over."""


def stretches(
    timing: FleetTiming, device: int, seconds: float, most: int = MOST_IN_A_COLUMN, each: float = math.inf
) -> list[Stretch]:
    """What one device does from 0 on: at `most` so many jobs in `each` so many seconds, by default in all."""
    found: list[Stretch] = []
    at, end, count = timing.returns(device, 0.0), each, 0
    while at < seconds:
        if at >= end:
            end, count = max(end, math.floor(at / each) * each) + each, 0
        if count == most:
            at = timing.returns(device, end)
            continue
        trip = timing(Job(device, len(found), _NOTHING, _WORK, at))
        took = trip.seconds if isinstance(trip, Loss) else trip
        found.append(Stretch(at, at + took, trip.reason if isinstance(trip, Loss) else None))
        at, count = timing.returns(device, at + took), count + 1
    return found


_NOTHING, _WORK = torch.zeros(0), Work(epochs=5, batch_size=64, learning_rate=0.1)


def timeline(timing: FleetTiming, devices: Sequence[int], seconds: float, columns: int) -> list[str]:
    """One line a device: at work (jobs in turn dark and light, grey where they are too short to tell), lost, away."""
    return [_line(timing, device, seconds, columns) for device in devices]


def _line(timing: FleetTiming, device: int, seconds: float, columns: int) -> str:
    letters = [AWAY] * columns
    width = seconds / columns
    for number, job in enumerate(stretches(timing, device, seconds, each=width)):
        first = math.floor(job.begin / width)
        last = min(columns, max(first + 1, math.ceil(job.end / width)))
        letter = LOST if job.lost else MANY if job.end - job.begin < width else AT_WORK[number % 2]
        letters[first:last] = [letter] * (last - first)
    at_middle = [(column + 0.5) * width for column in range(columns)]
    is_on = [bool(timing.online(np.array([device]), at)[0]) for at in at_middle]
    return "".join(letter if on or letter == LOST else AWAY for letter, on in zip(letters, is_on, strict=True))


def job_seconds(timing: FleetTiming, devices: int, seconds: float) -> NDArray[np.float64]:
    """How long the jobs of the first `devices` took that were answered."""
    jobs = [job for device in range(devices) for job in stretches(timing, device, seconds, most=50)]
    return np.array([job.end - job.begin for job in jobs if job.lost is None])


def histogram(values: NDArray[np.float64], columns: int = 24) -> str:
    """How many lie where between the smallest and the largest, on a logarithmic scale."""
    if not len(values):
        return ""
    low, high = float(values.min()), float(values.max())
    if high <= low * 1.001:
        return BARS[-1]
    counts, _ = np.histogram(np.log(values), bins=columns, range=(math.log(low), math.log(high)))
    heights = np.ceil(counts / counts.max() * len(BARS)).astype(int)
    return "".join(" " if height == 0 else BARS[height - 1] for height in heights)
