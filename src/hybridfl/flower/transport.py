"""A transport over Flower's Grid: jobs are pushed, answers are pulled, time is the wall's."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from hybridfl.errors import InputError
from hybridfl.flower.roster import Roster
from hybridfl.flower.wire import ENROL, TRAIN, Enrolment, Unreadable, job_content, read_enrolment, read_update
from hybridfl.protocol import Fleet, Inbox, Job, Lost, Outbox, Update

log = logging.getLogger("flwr.hybridfl")

REASONS = {
    1: "its app cannot be loaded",
    2: "its app failed",
    3: "no such message any more",
    4: "no answer in time",
    5: "its node is gone",
    6: "its app refused",
    7: "its app is not the server's",
    8: "its app crashed",
}
"""What Flower's error codes say of a job."""
FAULTS = frozenset({2, 6, 8})
"""Those that are the device's own doing."""


@dataclass(frozen=True)
class Patience:
    """How a transport waits. All in seconds.

    A message lives for `job`, answer included. A node that has been offline for `node` has lost its job, and so has one that
    was away, is back, and was found idle `restart` ago. `enrol`: how long a node may take to say who it is before it is asked
    again. `poll`: between two looks; often, since what a node has sent can only be fetched while it is online. `margin`: a node
    that Flower would give up sooner than this is left alone.
    """

    job: float = 43_200.0
    node: float = 600.0
    restart: float = 5.0
    enrol: float = 300.0
    poll: float = 0.5
    margin: float = 2.0


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


@dataclass(frozen=True)
class _Node:
    """What Flower says of a node that is online."""

    online_until: float
    activated_at: str


class FlowerTransport:
    """Jobs to nodes and their updates back, one job a device at a time; devices may join, leave and come back.

    Flower deletes what an offline node has sent, if one asks for it: so only nodes that are online, and stay so for a moment,
    are asked. Its errors name no job: that table is kept here. An answer that is no update, or an error of the device's own
    making, is a lost job that counts as a fault; what a node's absence costs is not.

    Every node is asked who it is when it is first seen. `roster` is who was there before, `now` the clock's reading to go on
    from. `online` and `fleet` change between two calls of `receive` only: a step sees one of each.
    """

    def __init__(
        self,
        grid: Grid,
        seed: int = 0,
        roster: Roster = Roster(),
        now: float = 0.0,
        with_scores: bool = False,
        patience: Patience = Patience(),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.roster = roster
        self.online_devices: frozenset[int] = frozenset()
        self.is_online = self._is_online  # one object for all fleets: a saved state is told apart from it by identity
        self._grid, self._seed, self._with_scores, self._patience = grid, seed, with_scores, patience
        self._clock, self._sleep = clock, sleep
        self._started_at = clock() - now
        self._nodes: dict[int, _Node] = {}
        self._asked: dict[str, tuple[int, float]] = {}
        """Enrolments asked for: (node, when) by message id."""
        self._answered_already: set[int] = set()
        """Nodes that have said who they are, or have been asked and gave no sensible answer."""
        self._waiting: dict[int, Enrolment] = {}
        """What nodes said that are not in the roster, by node."""
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
            self._join()

    def enrol(self, at_least: int, seconds: float = math.inf) -> None:
        """Wait until so many devices belong to the fleet."""
        until, enrolments = self.now + seconds, list[tuple[int, Enrolment]]()
        while True:
            self._look()
            enrolments += self._answered({each.name for _, each in enrolments})
            if len(self.roster) + len(enrolments) >= at_least and not self._asked:
                self._enter(enrolments)  # all at once: their places go by their names, not by who was quickest
                return
            if self.now >= until:
                found = len(self.roster) + len(enrolments)
                raise InputError(
                    f"{found} devices of the {at_least} wanted have enrolled within {seconds:g} s: start more SuperNodes, ask "
                    "for fewer, or wait longer."
                )
            self._sleep(self._patience.poll)

    def send(self, outbox: Outbox) -> None:
        self._wake_at = outbox.wake_at
        if not outbox.jobs:
            return
        busy = {sent.job.device for sent in self._sent.values()}
        for job in outbox.jobs:
            if job.device in busy:
                raise RuntimeError(f"Device {job.device} is busy.")
        for job in outbox.jobs:  # one by one: Flower leaves out ids of what it cannot deliver
            self._push(job)

    def _push(self, job: Job) -> None:
        node = self.roster.node_of(job.device)
        if node is None or node not in self._nodes:
            self._undelivered.append(Lost(job, "its node is offline"))
            return
        content = job_content(job, self._seed, self._with_scores)
        ids = self._push_message(content, node, TRAIN)
        if ids is None:
            self._undelivered.append(Lost(job, "Flower does not know its node"))
        else:
            self._sent[ids] = _Sent(job, node, self._nodes[node].activated_at)

    def _push_message(self, content: RecordDict, node: int, kind: str) -> str | None:
        message = Message(content, node, kind, ttl=self._patience.job)
        ids = list(self._grid.push_messages([message]))
        return ids[0] or None if ids else None

    def receive(self) -> Inbox:
        before = self.online_devices
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
        self._nodes = {
            node.node_id: _Node(float(node.online_until), str(node.last_activated_at))
            for node in self._grid.get_nodes()
        }
        known = {node for node, _ in self.roster.nodes} | {node for node, _ in self._asked.values()}
        for node in sorted(self._nodes.keys() - known - self._answered_already):
            if (message_id := self._push_message(RecordDict(), node, ENROL)) is not None:
                self._asked[message_id] = node, self.now
        self._set_online()

    def _set_online(self) -> None:
        self.online_devices = frozenset(device for node, device in self.roster.nodes if node in self._nodes)

    def _join(self) -> frozenset[int]:
        """Whoever has said who they are belongs to the fleet from now on; these are the new devices."""
        before = len(self.roster)
        self._enter(self._answered(set()))
        return frozenset(range(before, len(self.roster)))

    def _enter(self, enrolments: Iterable[tuple[int, Enrolment]]) -> None:
        if enrolments:
            self.roster = self.roster.with_enrolments(enrolments)
            self._fleet = self._fleet_of(self.roster)
            self._set_online()

    def _answered(self, others: AbstractSet[str]) -> list[tuple[int, Enrolment]]:
        """Who has said who they are, and may be it; `others` are names that are about to be taken.

        Whoever has the name of one who is online waits until that one is gone: Flower takes a minute to notice that a node has
        died, and this may be the same device again.
        """
        for message_id, reply in self._pull({each: node for each, (node, _) in self._asked.items()}).items():
            node, _ = self._asked.pop(message_id)
            self._answered_already.add(node)
            try:
                self._waiting[node] = read_enrolment(_content(reply))
            except Unreadable as error:
                log.warning("Node %s does not enrol: %s", node, error)
                continue
            if self._is_taken(self._waiting[node].name, node):
                log.warning("Node %s says it is '%s', who is online: it has to wait.", node, self._waiting[node].name)
        for message_id, (node, asked_at) in list(self._asked.items()):
            if node not in self._nodes or self.now > asked_at + self._patience.enrol:
                del self._asked[message_id]  # asked again when it is seen again
        enrolments: dict[str, tuple[int, Enrolment]] = {}
        for node, enrolment in list(self._waiting.items()):
            name = enrolment.name or f"node-{node}"
            if node in self._nodes and name not in enrolments.keys() | others and not self._is_taken(name, node):
                enrolments[name] = node, self._waiting.pop(node)
        return list(enrolments.values())

    def _is_taken(self, name: str, node: int) -> bool:
        holder = self.roster.node_of(self.roster.names.index(name)) if name in self.roster.names else None
        return holder is not None and holder != node and holder in self._nodes

    def _arrived(self) -> tuple[list[Update], list[Lost]]:
        lost, self._undelivered = self._undelivered, []
        updates: list[Update] = []
        replies = self._pull({message_id: sent.node for message_id, sent in self._sent.items()})
        for message_id, reply in replies.items():
            job = self._sent.pop(message_id).job
            try:
                updates.append(read_update(job, _content(reply)))
            except _Failed as failure:
                lost.append(Lost(job, str(failure), failure.code in FAULTS))
            except Unreadable as error:
                lost.append(Lost(job, str(error), is_fault=True))
        self._probe()
        for message_id, sent in list(self._sent.items()):
            if (reason := self._given_up(sent)) is not None:
                del self._sent[message_id]
                lost.append(Lost(sent.job, reason))
        return updates, lost

    def _given_up(self, sent: _Sent) -> str | None:
        """Why a job's answer is not waited for any more; None if it is."""
        node = self._nodes.get(sent.node)
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
            node = self._nodes.get(sent.node)
            if node is not None and node.activated_at != sent.activated_at:
                sent.activated_at, sent.idle_since = node.activated_at, None
                sent.probe = self._push_message(RecordDict(), sent.node, ENROL)
        asked = {sent.probe: sent for sent in self._sent.values() if sent.probe is not None}
        for message_id in self._pull({probe: sent.node for probe, sent in asked.items()}):
            asked[message_id].probe, asked[message_id].idle_since = None, self.now

    def _pull(self, wanted: dict[str, int]) -> dict[str, Message]:
        """What has come of these messages, by their ids. Nodes that are, or are about to be, offline are not asked."""
        soon = time.time() + self._patience.margin
        ids = [each for each, node in wanted.items() if node in self._nodes and self._nodes[node].online_until > soon]
        if not ids:
            return {}
        replies = {reply.metadata.reply_to_message_id: reply for reply in self._grid.pull_messages(ids)}
        return {message_id: reply for message_id, reply in replies.items() if message_id in wanted}

    def _fleet_of(self, roster: Roster) -> Fleet:
        return Fleet(
            np.array(roster.num_samples, dtype=np.int64), np.full(len(roster), np.nan), self._seed, self.is_online
        )

    def _is_online(self, devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        return np.array([device in self.online_devices for device in devices.tolist()], dtype=bool)


class _Failed(Unreadable):
    """An error came back instead of an answer."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{REASONS.get(code, f'error {code}')}{f': {reason}' if code in FAULTS and reason else ''}")
        self.code = code


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise _Failed(
            reply.error.code, (reply.error.reason or "").strip().splitlines()[0][:200] if reply.error.reason else ""
        )
    return reply.content
