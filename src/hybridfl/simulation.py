"""A transport in virtual time: an event heap and a clock that jumps. No sleeping, no threads."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybridfl.errors import InputError, is_single_number
from hybridfl.protocol import Fleet, Inbox, Job, Loss, Lost, Outbox, Timing, Trainer, Update
from hybridfl.vectors import times_written


class NobodyLeft(RuntimeError):  # noqa: N818 - whoever catches it reads what happened
    """Nothing is in flight, no wake-up is set and nobody will ever come online: the run would wait for ever."""


def never(now: float, barred: frozenset[int]) -> float:
    """Nobody comes online later: all are there already."""
    return math.inf


def as_trained(update: Update) -> Update:
    """An honest device answers what it trained."""
    return update


@dataclass(eq=False)
class Traffic:
    """All that is on its way, by device; a simulation goes on from it exactly."""

    now: float = 0.0
    wake_at: float | None = None
    events: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (instant, device): that is when the device's job is answered or known to be lost."""
    in_flight: dict[int, Job] = field(default_factory=dict)
    untrained: set[int] = field(default_factory=set)
    trained: dict[int, Update] = field(default_factory=dict)
    losses: dict[int, str] = field(default_factory=dict)
    """Why a job will not be answered."""

    def copied(self) -> Traffic:
        """As it is now, whatever happens to this one later."""
        return replace(
            self,
            events=list(self.events),
            in_flight=dict(self.in_flight),
            untrained=set(self.untrained),
            trained=dict(self.trained),
            losses=dict(self.losses),
        )


class Simulation:
    """Jobs arrive when `timing` says; what they bring, `trainer` computes, as late as possible and as many as possible at once.

    An update depends on its job alone, so nothing has to be trained in order. When the first untrained job arrives, all
    untrained jobs in flight are trained in one call; those that will be lost, never.

    All that arrives at the same instant (to a nanosecond) is one inbox, ordered by device. With nothing in flight and no
    wake-up, the clock jumps to when somebody `comes_online`.

    What an algorithm asks for that would hang or falsify a run is an `InputError`: a job for a device that is not there or
    not free, or not sent now; a wake-up that is not to come; writing into weights that devices still go by.

    `answer` is what a device makes of what it trained, for devices that are not honest. Whoever trains the jobs of several
    simulations together calls `jump` and `trained` before `receive`, which otherwise does both by itself.
    """

    def __init__(
        self,
        fleet: Fleet,
        trainer: Trainer,
        timing: Timing,
        comes_online: Callable[[float, frozenset[int]], float] = never,
        answer: Callable[[Update], Update] = as_trained,
        traffic: Traffic | None = None,
    ) -> None:
        self.fleet = fleet
        self._trainer = trainer
        self._timing = timing
        self._comes_online = comes_online
        self._answer = answer
        self._traffic = Traffic() if traffic is None else traffic.copied()
        self._arriving: list[int] | None = None
        self._written = {device: _times_written(job) for device, job in self._traffic.in_flight.items()}
        """How often each job's tensors had been written to when it was sent."""

    @property
    def now(self) -> float:
        return self._traffic.now

    @property
    def traffic(self) -> Traffic:
        """A copy of all that is on its way; to be taken after `send`."""
        self._check_unwritten(self._traffic.in_flight)
        return self._traffic.copied()

    @property
    def in_flight(self) -> tuple[Job, ...]:
        """The jobs on their way, by device."""
        jobs = self._traffic.in_flight
        return tuple(jobs[device] for device in sorted(jobs))

    def send(self, outbox: Outbox) -> None:
        traffic = self._traffic
        for job in outbox.jobs:
            self._check_job(job)
            traffic.in_flight[job.device] = job
            self._written[job.device] = _times_written(job)
            trip = self._timing(job)
            _check_seconds(job, trip)
            if isinstance(trip, Loss):
                traffic.losses[job.device] = trip.reason
                trip = trip.seconds
            elif math.isfinite(trip):
                traffic.untrained.add(job.device)
            if math.isfinite(trip):
                heapq.heappush(traffic.events, (_instant(job.sent_at + trip), job.device))
        if outbox.wake_at is not None:
            _check_wake_up(outbox.wake_at, traffic.now)
        traffic.wake_at = outbox.wake_at

    def jump(self, barred: frozenset[int] = frozenset()) -> tuple[Job, ...]:
        """Let the clock jump to the next arrival or wake-up, and say what has to be `trained` before it can be received.

        That is all untrained jobs in flight, if one of them arrives now, and otherwise none. For who is `barred` nobody waits.
        """
        traffic = self._traffic
        first_event = traffic.events[0][0] if traffic.events else None
        instants = [at for at in (traffic.wake_at, first_event) if at is not None]
        instants = instants or [self._comes_online(traffic.now, barred)]
        if not math.isfinite(instants[0]):
            raise NobodyLeft("Nothing is in flight, no wake-up is set and nobody will come online any more.")
        # A wake-up is never early, not even by rounding: an algorithm woken before its deadline would ask again for ever.
        first = _instant(min(instants))
        traffic.now = max(traffic.now, *(at for at in instants if _instant(at) == first))
        now = _instant(traffic.now)
        self._arriving = []
        while traffic.events and traffic.events[0][0] <= now:
            self._arriving.append(heapq.heappop(traffic.events)[1])
        self._arriving.sort()
        if traffic.untrained.isdisjoint(self._arriving):
            return ()
        self._check_unwritten(traffic.untrained)
        return tuple(traffic.in_flight[device] for device in sorted(traffic.untrained))

    def trained(self, updates: Sequence[Update]) -> None:
        """What became of all untrained jobs."""
        self._traffic.untrained.clear()
        for update in updates:
            self._traffic.trained[update.job.device] = self._answer(update)

    def receive(self) -> Inbox:
        if self._arriving is None:
            jobs = self.jump()
            if jobs:
                self.trained(self._trainer(jobs))
        devices, self._arriving = self._arriving or [], None
        traffic = self._traffic
        self._check_unwritten(devices)
        jobs_back = [traffic.in_flight.pop(device) for device in devices]
        return Inbox(
            traffic.now,
            updates=tuple(traffic.trained.pop(job.device) for job in jobs_back if job.device in traffic.trained),
            lost=tuple(Lost(job, traffic.losses.pop(job.device)) for job in jobs_back if job.device in traffic.losses),
        )

    def _check_job(self, job: Job) -> None:
        device, now = job.device, self.now
        if not isinstance(device, int | np.integer) or not 0 <= device < len(self.fleet):
            raise InputError(
                f"An algorithm sent device {device!r} a job, but the fleet has 0 to {len(self.fleet) - 1}: {ONLY_FREE}."
            )
        if device in self._traffic.in_flight:
            busy_with = self._traffic.in_flight[device].version
            raise InputError(f"Device {device} is busy with version {busy_with}: {ONLY_FREE}, each one at a time.")
        if job.sent_at != now and not (is_single_number(job.sent_at) and _instant(job.sent_at) == _instant(now)):
            raise InputError(
                f"An algorithm sent device {device} a job at {job.sent_at} s, but it is {now} s now: give it "
                "sent_at=inbox.now, or 0.0 in `init`."
            )

    def _check_unwritten(self, devices: Iterable[int]) -> None:
        """A tensor counts how often it is written to, so no number of it has to be read, nor a GPU waited for."""
        for device in devices:
            job = self._traffic.in_flight[device]
            if _times_written(job) != self._written[device]:
                raise InputError(
                    f"An algorithm wrote into the weights it had sent device {device} as version {job.version}, before that "
                    "job had ended: make a new tensor, `weights = weights + step` in place of `weights += step`."
                )


ONLY_FREE = "an algorithm may send a job only to devices that are free"


def _times_written(job: Job) -> int:
    return times_written(job.weights) + (0 if job.drift is None else times_written(job.drift))


def _check_wake_up(at: float, now: float) -> None:
    """Woken in the past, an algorithm would ask again for ever; a rounding error ahead of now, it would not."""
    if not is_single_number(at) or not at > now:
        raise InputError(
            f"An algorithm asked to be woken at {at} s, but it is {now} s now: give a wake_at that is later, or None."
        )


def _check_seconds(job: Job, trip: float | Loss) -> None:
    """A job that took no time would be followed by the next one in the same instant, and the clock would stand still."""
    seconds = trip.seconds if isinstance(trip, Loss) else trip
    if not is_single_number(seconds) or not _instant(job.sent_at + seconds) > _instant(job.sent_at):
        raise InputError(
            f"Device {job.device} would answer the job it is sent at {job.sent_at:g} s after {seconds} s: the fleet's timing "
            "must give every job a time above 0, at least a nanosecond."
        )


def _instant(seconds: float) -> float:
    """To a nanosecond: 0.1 + 0.2 and 0.3 are one instant, so ties do not depend on how a sum was reached."""
    return round(seconds, 9)
