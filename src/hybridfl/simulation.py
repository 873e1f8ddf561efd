"""A transport in virtual time: an event heap and a clock that jumps. No sleeping, no threads."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from hybridfl.protocol import Fleet, Inbox, Job, Outbox, Timing, Trainer, Update


class Simulation:
    """Jobs arrive when `timing` says; what they bring, `trainer` computes, as late as possible and as many as possible at once.

    An update depends on its job alone, so nothing has to be trained in order. When the first untrained job arrives, all
    untrained jobs in flight are trained in one call.

    All that arrives at the same instant (to a nanosecond) is one inbox, ordered by device.

    Whoever trains the jobs of several simulations together calls `jump` and `trained` before `receive`, which otherwise does
    both by itself.
    """

    def __init__(self, fleet: Fleet, trainer: Trainer, timing: Timing) -> None:
        self.fleet = fleet
        self._trainer = trainer
        self._timing = timing
        self._arrivals: list[tuple[float, int]] = []
        self._in_flight: dict[int, Job] = {}
        self._untrained: set[int] = set()
        self._trained: dict[int, Update] = {}
        self._wake_at: float | None = None
        self._arriving: list[int] | None = None
        self.now = 0.0

    @property
    def in_flight(self) -> tuple[Job, ...]:
        """The jobs on their way, by device."""
        return tuple(self._in_flight[device] for device in sorted(self._in_flight))

    def send(self, outbox: Outbox) -> None:
        for job in outbox.jobs:
            if job.device in self._in_flight:
                raise RuntimeError(f"Device {job.device} is busy with version {self._in_flight[job.device].version}.")
            self._in_flight[job.device] = job
            arrives_at = _instant(job.sent_at + self._timing(job))
            if math.isfinite(arrives_at):
                heapq.heappush(self._arrivals, (arrives_at, job.device))
                self._untrained.add(job.device)
        self._wake_at = outbox.wake_at

    def jump(self) -> tuple[Job, ...]:
        """Let the clock jump to the next arrival or wake-up, and say what has to be `trained` before it can be received.

        That is all untrained jobs in flight, if one of them arrives now, and otherwise none.
        """
        instants = [at for at in (self._wake_at, self._arrivals[0][0] if self._arrivals else None) if at is not None]
        if not instants:
            raise RuntimeError("Nothing is in flight and no wake-up is set: the run would wait for ever.")
        # A wake-up is never early, not even by rounding: an algorithm woken before its deadline would ask again for ever.
        first = _instant(min(instants))
        self.now = max(self.now, *(at for at in instants if _instant(at) == first))
        now = _instant(self.now)
        self._arriving = []
        while self._arrivals and self._arrivals[0][0] <= now:
            self._arriving.append(heapq.heappop(self._arrivals)[1])
        self._arriving.sort()
        if self._untrained.isdisjoint(self._arriving):
            return ()
        return tuple(self._in_flight[device] for device in sorted(self._untrained))

    def trained(self, updates: Sequence[Update]) -> None:
        """What became of all untrained jobs."""
        self._untrained.clear()
        for update in updates:
            self._trained[update.job.device] = update

    def receive(self) -> Inbox:
        if self._arriving is None:
            jobs = self.jump()
            if jobs:
                self.trained(self._trainer(jobs))
        devices, self._arriving = self._arriving or [], None
        updates = tuple(self._trained.pop(device) for device in devices)
        for device in devices:
            del self._in_flight[device]
        return Inbox(self.now, updates)


def _instant(seconds: float) -> float:
    """To a nanosecond: 0.1 + 0.2 and 0.3 are one instant, so ties do not depend on how a sum was reached."""
    return round(seconds, 9)
