"""Devices on a link that answer as they are told, and a transport to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from fakes import Towards
from flower_link import Answer, Link, Node
from hybridfl.flower.client import answering
from hybridfl.flower.patience import Patience
from hybridfl.flower.roster import Roster
from hybridfl.flower.transport import FlowerTransport
from hybridfl.flower.wire import ENROL, Enrolment, enrolment_content, read_job, update_content
from hybridfl.protocol import Inbox, Job, Outbox, Work

PATIENCE = Patience(poll=0.1, node=100.0, restart=5.0, settle=30.0, fetch=20.0)


def job(device: int, version: int = 0, sent_at: float = 0.0) -> Job:
    return Job(device, version, torch.tensor([1.0, -2.0]), Work(1, 1, 0.1), sent_at)


def device(name: str = "", num_samples: int = 5, answer: RecordDict | Error | None = None) -> Answer:
    """A device that answers a job as it should, or so."""

    @answering
    def handle(message: Message, context: Context) -> RecordDict:
        if message.metadata.message_type == ENROL:
            return enrolment_content(Enrolment(num_samples, name))
        assert not isinstance(answer, Error)
        if answer is not None:
            return answer
        (update,) = Towards()([read_job(message.content)[0]])
        return update_content(update)

    def app(message: Message, context: Context) -> Message:
        if isinstance(answer, Error) and message.metadata.message_type != ENROL:
            return Message(answer, reply_to=message)
        return handle(message, context)

    return app


class Odd:
    """A Grid that does something of its own, in the thread that asks, when a node's update is fetched."""

    def __init__(self, grid: Grid) -> None:
        self.of: Mapping[int, Callable[[], object]] = {}
        self.asked: list[list[str]] = []
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.asked.append(list(message_ids))
        replies = list(self._grid.pull_messages(self.asked[-1]))
        for reply in replies:
            if not reply.has_content() or "enrolment" not in reply.content:
                self.of.get(reply.metadata.src_node_id, lambda: None)()
        return replies


class Setting:
    def __init__(self, *apps: Answer, roster: Roster = Roster(), patience: Patience = PATIENCE) -> None:
        self.link = Link()
        self.nodes: list[Node] = [self.link.add(app) for app in apps]
        self.grid = Odd(self.link.grid)
        self.transport = FlowerTransport(
            cast(Grid, self.grid), roster=roster, patience=patience, clock=self.link.clock, sleep=self.link.sleep
        )

    def enrolled(self) -> Setting:
        self.transport.enrol(len(self.nodes))
        return self

    def send(self, *jobs: Job, wake_in: float | None = None) -> None:
        self.transport.send(Outbox(jobs, None if wake_in is None else self.transport.now + wake_in))

    def ask(self, *devices: int) -> Inbox:
        self.send(*map(job, devices))
        return self.transport.receive()
