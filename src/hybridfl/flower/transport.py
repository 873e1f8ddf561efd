"""A transport over Flower's Grid: jobs are pushed, answers are pulled, time is the wall's."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from hybridfl.errors import InputError
from hybridfl.flower.patience import Patience
from hybridfl.flower.post import Failed, Post, content_of
from hybridfl.flower.reception import OWN_NAMES, Reception
from hybridfl.flower.roster import Roster
from hybridfl.flower.wire import ENROL, TRAIN, Terms, Unreadable, job_content, read_update
from hybridfl.protocol import Fleet, Inbox, Job, Lost, Outbox, Update
from hybridfl.wording import counted

log = logging.getLogger("flwr.hybridfl")


@dataclass(eq=False)
class _Sent:
    """A job on its way."""

    job: Job
    node: int
    activated_at: str
    offline_since: float | None = None
    probe: str | None = None
    """A question asked after the node had been away: a node does one thing at a time, so an answer says the job is not done."""
    idle_since: float | None = None
    """When that was answered."""


class FlowerTransport:
    """Jobs to nodes and their updates back, one job a device at a time; devices may join, leave and come back.

    Flower's errors name no job: that table is kept here. An answer that is no update, or an error of the device's own making,
    is a lost job that counts as a fault; what a node's absence costs is not. Its `Reception` sees to who belongs to the fleet.

    `roster` is who was there before, `now` the clock's reading to go on from. `online_devices` and `fleet` change inside
    `receive` only: a step of the algorithm sees one of each.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms = Terms(),
        roster: Roster = Roster(),
        now: float = 0.0,
        patience: Patience = Patience(),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.roster = roster
        self.online_devices: frozenset[int] = frozenset()
        self.is_online = self._is_online  # one object for all fleets: a saved state is told apart from it by identity
        self._terms, self._patience = terms, patience
        self._clock, self._sleep = clock, sleep
        self._started_at = clock() - now
        self._post = Post(grid, patience)
        self._reception = Reception(self._post)
        self._sent: dict[str, _Sent] = {}
        self._undelivered: list[Lost] = []
        self._wake_at: float | None = None
        self._fleet = self._fleet_of(roster)

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    @property
    def now(self) -> float:
        return self._clock() - self._started_at

    def recall(self, roster: Roster, online: frozenset[int]) -> None:
        """Who belonged to the fleet, and who was online, at an earlier time."""
        if roster != self.roster:
            self.roster, self._fleet = roster, self._fleet_of(roster)
        self.online_devices = online

    def wait_for(self, devices: Iterable[int], seconds: float) -> None:
        """Wait until these devices are online, but not for longer."""
        until, wanted = self.now + seconds, frozenset(devices)
        self._look()
        while not wanted <= self.online_devices and self.now < until:
            self._sleep(self._patience.poll)
            self._look()

    def enrol(self, at_least: int, seconds: float = math.inf) -> None:
        """Wait until so many devices belong to the fleet, and a little longer for others that were seen."""
        until, settled_at = self.now + seconds, math.inf
        while True:
            self._look()
            asking, found = self._reception.asking, len(self._reception.admitted(self.roster))
            if found >= at_least and settled_at == math.inf:
                settled_at = min(self.now + self._patience.settle, until)
                if asking:
                    log.info("%d devices have enrolled; %d nodes have not said yet who they are.", found, len(asking))
            if found >= at_least and (not asking or self.now >= settled_at):
                self._join()
                return
            if self.now >= until:
                raise InputError(self._too_few(found, at_least, seconds))
            self._sleep(self._patience.poll)

    def _too_few(self, found: int, at_least: int, seconds: float) -> str:
        have = f"{found} of {counted(at_least, 'device')} wanted {'has' if found == 1 else 'have'} enrolled"
        silent = f" ({len(self._reception.asking)} have not answered)" if self._reception.asking else ""
        if self._reception.namesakes:
            several = ", ".join(
                f"{len(nodes)} nodes say they are '{n}'" for n, nodes in self._reception.namesakes.items()
            )
            return f"{have}: {several}; {OWN_NAMES}"
        return f"{have} within {seconds:g} s{silent}: start more SuperNodes, ask for fewer, or wait longer."

    def send(self, outbox: Outbox) -> None:
        self._wake_at = outbox.wake_at
        if not outbox.jobs:
            return
        busy = {sent.job.device for sent in self._sent.values()}
        for job in outbox.jobs:
            if job.device in busy:
                raise InputError(
                    f"Device {job.device} is busy: an algorithm may send a job only to devices that are free."
                )
        for job in outbox.jobs:
            self._push(job)

    def _push(self, job: Job) -> None:
        node = self.roster.node_of(job.device)
        if node is None or node not in self._post.nodes:
            self._undelivered.append(Lost(job, "its node is offline"))
            return
        message_id = self._post.push(job_content(job, self._terms), node, TRAIN)
        if message_id is None:
            self._undelivered.append(Lost(job, "Flower does not take it: its node is unknown, or the model too large"))
        else:
            self._sent[message_id] = _Sent(job, node, self._post.nodes[node].activated_at)

    def receive(self) -> Inbox:
        before = self.online_devices
        if self._undelivered:
            self._sleep(self._patience.poll)  # who cannot be reached now is not asked again in the same instant
        while True:
            self._look()
            updates, lost = self._arrived()
            joined = self._join()
            has_come = self.online_devices - before and not self._sent
            if updates or lost or joined or has_come or self._is_time():
                return Inbox(
                    self.now,
                    tuple(sorted(updates, key=lambda update: update.job.device)),
                    tuple(sorted(lost, key=lambda each: each.job.device)),
                    self.fleet if joined else None,
                    joined,
                )
            self._sleep(self._until_next_look())

    def _is_time(self) -> bool:
        return self._wake_at is not None and self.now >= self._wake_at

    def _until_next_look(self) -> float:
        left = math.inf if self._wake_at is None else max(0.0, self._wake_at - self.now)
        return min(self._patience.poll, left)

    def _look(self) -> None:
        """Who is online; whoever is new is asked who they are."""
        self._post.look()
        self._reception.ask(self.roster)
        before, self.online_devices = self.online_devices, self._online_of(self.roster)
        self._say_who_moved(before)

    def _say_who_moved(self, before: frozenset[int]) -> None:
        for device in sorted(before ^ self.online_devices):
            is_back = device in self.online_devices
            log.info("Device %d (%s) is %s.", device, self.roster.names[device], "online" if is_back else "offline")
        if before and not self.online_devices:
            log.warning("None of the fleet's %d devices is online: the run waits for them.", len(self.roster))

    def _online_of(self, roster: Roster) -> frozenset[int]:
        return frozenset(device for node, device in roster.nodes if node in self._post.nodes)

    def _join(self) -> frozenset[int]:
        """Whoever has said who they are belongs to the fleet from now on; these are the new devices."""
        before = len(self.roster)
        roster = self._reception.admit(self.roster)
        if roster != self.roster:
            self.recall(roster, self._online_of(roster))
        return frozenset(range(before, len(roster)))

    def _arrived(self) -> tuple[list[Update], list[Lost]]:
        lost, self._undelivered = self._undelivered, []
        updates: list[Update] = []
        replies = self._post.pull({message_id: sent.node for message_id, sent in self._sent.items()})
        for message_id, reply in replies.items():
            job = self._sent.pop(message_id).job
            try:
                updates.append(read_update(job, content_of(reply)))
            except Failed as failure:
                lost.append(Lost(job, str(failure), failure.is_fault))
            except Unreadable as error:
                lost.append(Lost(job, str(error), is_fault=True))
        self._probe()
        for message_id, sent in list(self._sent.items()):
            if not self._post.is_fetching(message_id) and (reason := self._given_up(sent)) is not None:
                del self._sent[message_id]
                self._post.forget(message_id)
                lost.append(Lost(sent.job, reason))
        return updates, lost

    def _given_up(self, sent: _Sent) -> str | None:
        """Why a job's answer is not waited for any more; None if it is."""
        node = self._post.nodes.get(sent.node)
        if self.roster.node_of(sent.job.device) != sent.node:
            return "its device came back as another node"
        sent.offline_since = None if node is not None else sent.offline_since or self.now
        if sent.offline_since is not None and self.now >= sent.offline_since + self._patience.node:
            return f"its node has been offline for {self._patience.node:g} s"
        if sent.idle_since is not None and self.now >= sent.idle_since + self._patience.restart:
            return "its node was started anew"
        return None

    def _probe(self) -> None:
        """Who was away may have been restarted, and would never answer; or its link was cut, and it is still at work."""
        for sent in self._sent.values():
            node = self._post.nodes.get(sent.node)
            if node is not None and node.activated_at != sent.activated_at:
                sent.activated_at, sent.idle_since = node.activated_at, None
                sent.probe = self._post.push(RecordDict(), sent.node, ENROL)
        asked = {sent.probe: sent for sent in self._sent.values() if sent.probe is not None}
        for message_id in self._post.pull({probe: sent.node for probe, sent in asked.items()}):
            asked[message_id].probe, asked[message_id].idle_since = None, self.now

    def _fleet_of(self, roster: Roster) -> Fleet:
        return Fleet(
            np.array(roster.num_samples, dtype=np.int64), np.full(len(roster), np.nan), self._terms.seed, self.is_online
        )

    def _is_online(self, devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        return np.array([device in self.online_devices for device in devices.tolist()], dtype=bool)
