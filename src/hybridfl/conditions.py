"""The conditions a fleet works under: how long devices take, when they are there, what gets lost, who is hostile."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.attacks import Hostile
from hybridfl.availability import AlwaysOn, Availability, Calendar, finish, next_on
from hybridfl.errors import InputError, is_single_number, require_positive, require_seed, require_share
from hybridfl.flags import flags_of
from hybridfl.laws import Law, drawn
from hybridfl.protocol import Job, Loss, Update
from hybridfl.randomness import generator, key
from hybridfl.timing import Pace, Paces, PaperDelays, Roster, chosen
from hybridfl.wording import counted

LEAST_NOTICE = 0.001


@dataclass(frozen=True)
class Deaths:
    """This share of the devices dies for good, each at an instant drawn uniformly from 0..`by`."""

    share: float = 0.1
    by: float = 100.0

    def __post_init__(self) -> None:
        require_share("share of deaths", self.share)
        require_positive("by", self.by)

    def instants(self, roster: Roster) -> NDArray[np.float64]:
        """When each device dies; ∞ for the others."""
        at = generator(roster.seed, "death").uniform(0.0, self.by, len(roster))
        return np.where(chosen(roster, self.share, "who dies"), at, math.inf)


@dataclass(frozen=True)
class LateJoins:
    """This share of the devices joins late, each at an instant drawn uniformly from 0..`by`; the others are there at 0."""

    share: float = 0.2
    by: float = 100.0

    def __post_init__(self) -> None:
        require_share("share of late joins", self.share)
        require_positive("by", self.by)

    def instants(self, roster: Roster) -> NDArray[np.float64]:
        """When each device joins."""
        at = generator(roster.seed, "join").uniform(0.0, self.by, len(roster))
        return np.where(chosen(roster, self.share, "who joins late"), at, 0.0)


@dataclass(frozen=True)
class SpeedChange:
    """From `at` seconds on, this share of the devices takes `factor` × as long: above 1 slower, below 1 faster."""

    share: float = 0.1
    factor: float = 5.0
    at: float = 100.0

    def __post_init__(self) -> None:
        require_share("share of changes", self.share)
        require_positive("factor", self.factor)
        if not self.at >= 0:
            raise InputError(f"at={self.at} must be 0 or more seconds.")

    def factors(self, roster: Roster) -> NDArray[np.float64]:
        return np.where(chosen(roster, self.share, "who changes speed"), self.factor, 1.0)


@dataclass(frozen=True, repr=False)
class Conditions:
    """What becomes of the job of device i sent at t:

        s = pace_i·jitter·change_i(t),   it is at work from when it is there, pauses while it is away, and arrives after s

    `jitter`: a factor drawn for every job. `lost`: the share of jobs that vanish on their way back; `interrupted`: of the jobs
    whose device goes away in the middle, the share that never comes back; the others come late. The server knows of
    a loss `notice` seconds after it happened. `hostile`: who answers with something else than it trained.
    `seed`: whoever wants one fleet for runs of all seeds; by default a run's seed decides its fleet too.
    """

    pace: Pace = PaperDelays()
    jitter: Law | None = None
    availability: Availability = AlwaysOn()
    lost: float = 0.0
    interrupted: float = 0.0
    joins: LateJoins | None = None
    deaths: Deaths | None = None
    change: SpeedChange | None = None
    hostile: Hostile | None = None
    notice: float = 10.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require_share("lost", self.lost)
        require_share("interrupted", self.interrupted)
        if self.seed is not None:
            require_seed(self.seed)
            object.__setattr__(self, "seed", int(self.seed))  # NumPy's is the same fleet
        if self.lost == 1.0:
            raise InputError("lost=1.0: with every job lost, nothing is ever learned. Give a smaller share.")
        if not LEAST_NOTICE <= self.notice < math.inf:
            raise InputError(
                f"notice={self.notice} must be {LEAST_NOTICE} seconds or more, and finite: a loss nobody notices blocks its "
                "device, and one noticed at once would be followed by the next in the same instant."
            )

    def __repr__(self) -> str:
        """As it can be written: what is as by default is left out."""
        said = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Conditions({', '.join(said)})"

    def of(self, roster: Roster) -> FleetTiming:
        """Drawn up for one fleet."""
        if self.seed is not None:
            roster = Roster(roster.num_samples, roster.model_bytes, self.seed)
        return FleetTiming(self, roster)


def conditions_of(timing: Pace | Conditions) -> Conditions:
    """A pace alone: everybody is always there, and nothing gets lost."""
    return timing if isinstance(timing, Conditions) else Conditions(timing)


class FleetTiming:
    """The conditions of one fleet. All of it is a function of (seed, device, job, time): nothing is remembered."""

    def __init__(self, conditions: Conditions, roster: Roster) -> None:
        self._conditions = conditions
        self._roster = roster
        self.paces: Paces = conditions.pace.of(roster)
        self._calendar: Calendar = conditions.availability.calendar(len(roster), roster.seed)
        self._joins = None if conditions.joins is None else conditions.joins.instants(roster)
        self._deaths = None if conditions.deaths is None else conditions.deaths.instants(roster)
        self._change = None if conditions.change is None else conditions.change.factors(roster)
        self._always_on = (
            isinstance(conditions.availability, AlwaysOn) and conditions.joins is None and conditions.deaths is None
        )

    @cached_property
    def expected_seconds(self) -> NDArray[np.float64]:
        """NaN where nothing is known of a device."""
        expected = _numbers_of(self.paces.expected_seconds, f"{self._conditions.pace!r} expects")
        if np.shape(expected) != (len(self._roster),):
            raise InputError(
                f"{self._conditions.pace!r} expects seconds of shape {np.shape(expected)}, but the fleet has "
                f"{counted(len(self._roster), 'device')}: give one number per device."
            )
        bad = np.flatnonzero(expected <= 0)
        if len(bad):
            raise InputError(
                f"{self._conditions.pace!r} expects device {bad[0]} to take {expected[bad[0]]} s: give numbers above 0, or NaN "
                "where nothing is known."
            )
        return expected

    @cached_property
    def is_straggler(self) -> NDArray[np.bool_]:
        return flags_of(self.paces.is_straggler, len(self._roster), f"is_straggler of {self._conditions.pace!r}")

    @cached_property
    def is_hostile(self) -> NDArray[np.bool_]:
        hostile = self._conditions.hostile
        return chosen(self._roster, 0.0 if hostile is None else hostile.share, "who is hostile")

    @property
    def is_always_on(self) -> bool:
        """Whether everybody is there from the beginning to the end."""
        return self._always_on

    def __call__(self, job: Job) -> float | Loss:
        seconds = self._seconds_of_work(job)
        if self._always_on:
            return self._or_lost(job, seconds)
        device, sent_at, notice = job.device, job.sent_at, self._conditions.notice
        starts_at = sent_at if self._joins is None else max(sent_at, float(self._joins[device]))
        done_at, away_at = finish(self._calendar, device, starts_at, seconds)
        died_at = math.inf if self._deaths is None else float(self._deaths[device])
        goes_away = away_at < min(done_at, died_at)
        if goes_away and (done_at == math.inf or self._drawn("interrupted", job) < self._conditions.interrupted):
            return Loss(max(away_at - sent_at, 0.0) + notice, "went away")
        if done_at >= died_at:
            return Loss(max(died_at - sent_at, 0.0) + notice, "died")
        return self._or_lost(job, done_at - sent_at)

    def online(self, devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Who of these is there."""
        there = self._calendar.is_on(devices, now)
        if self._joins is not None:
            there = there & (self._joins[devices] <= now)
        if self._deaths is not None:
            there = there & (now < self._deaths[devices])
        return there

    def comes_online(self, now: float, barred: frozenset[int] = frozenset()) -> float:
        """The next instant at which somebody comes who is away now and not barred; ∞ if nobody will."""
        if self._always_on:
            return math.inf
        devices = np.setdiff1d(np.arange(len(self._roster)), list(barred), assume_unique=True)
        away = devices[~self.online(devices, now)]
        return min((self.returns(int(device), now) for device in away), default=math.inf)

    def answer(self, update: Update) -> Update:
        """What a device sends: what it trained or, if it is hostile, something else."""
        hostile = self._conditions.hostile
        if hostile is None or not self.is_hostile[update.job.device]:
            return update
        return hostile.attack(update, generator(self._roster.seed, "attack", *_ids(update.job)))

    def _seconds_of_work(self, job: Job) -> float:
        seconds = self.paces(job)
        if not is_single_number(seconds):
            raise InputError(
                f"{self._conditions.pace!r} gives device {job.device} {seconds!r} seconds for a job, which is no number: give "
                "one above 0."
            )
        if isinstance(seconds, np.ndarray | np.float64 | Tensor):
            seconds = seconds.item()
        if self._conditions.jitter is not None:
            draw = generator(self._roster.seed, "jitter", *_ids(job))
            seconds *= float(drawn(self._conditions.jitter, draw, [job.device])[0])
        if self._change is not None and self._conditions.change is not None:
            seconds *= float(self._change[job.device]) if job.sent_at >= self._conditions.change.at else 1.0
        return seconds

    def _or_lost(self, job: Job, seconds: float) -> float | Loss:
        if self._conditions.lost and self._drawn("lost", job) < self._conditions.lost:
            return Loss(seconds + self._conditions.notice, "lost on the way")
        return seconds

    def _drawn(self, purpose: str, job: Job) -> float:
        """Uniform in [0, 1)."""
        return (key(self._roster.seed, purpose, *_ids(job)) >> 11) * 2.0**-53

    def returns(self, device: int, now: float) -> float:
        """When a device is there, from now on; ∞ if never."""
        joined = now if self._joins is None else max(now, float(self._joins[device]))
        at = next_on(self._calendar, device, joined)
        died_at = math.inf if self._deaths is None else float(self._deaths[device])
        return at if at < died_at else math.inf


def _numbers_of(given: Any, who: str) -> NDArray[np.float64]:
    """An array as it is; what else holds numbers as one."""
    try:
        numbers: NDArray[np.float64] = given if isinstance(given, np.ndarray) else np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "iuf":
        raise InputError(f"{who} {given!r} seconds, which are no numbers: give an array, one number per device.")
    return numbers


def _ids(job: Job) -> tuple[int, ...]:
    """What tells a job from all others of its run. A lost one is sent again with the same version: its time differs."""
    (sent_at,) = struct.unpack("<q", struct.pack("<d", job.sent_at))
    return job.device, job.version, job.repeat, sent_at
