"""Messages to Flower's nodes and what comes back, by Flower's rules."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from hybridfl.flower.patience import Patience
from hybridfl.flower.wire import Unreadable, plain

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
NEVER_WHOLE = "Reply message objects are unavailable"
"""What Flower's reason begins with where a node said it had an answer, and did not send all of it."""
MOST_FETCHES = 500
"""Answers that may be on their way to the server at a time."""


@dataclass(frozen=True)
class Node:
    """What Flower says of a node that is online."""

    online_until: float
    activated_at: str


class Post:
    """Sends and fetches messages. `nodes` are those that were online at the last look.

    Flower deletes what an offline node has sent, if one asks for it: so only nodes that are online, and stay so for a moment,
    are asked. And it gives out an answer as soon as its node has announced it, then waits until all of it is there, for minutes
    if need be: so every answer is fetched by itself, in a thread, and who uploads slowly, or never, keeps nobody waiting.
    """

    def __init__(self, grid: Grid, patience: Patience) -> None:
        self.nodes: Mapping[int, Node] = {}
        self._grid, self._patience = grid, patience
        self._threads = ThreadPoolExecutor(MOST_FETCHES, thread_name_prefix="fetch")
        self._fetches: dict[str, Future[Message | Unreadable | None]] = {}
        """Under way, by message."""
        self._asked: dict[str, int] = {}
        """At which turn each message was last asked for."""
        self._turn = 0

    def look(self) -> None:
        """Who is online."""
        found = self._grid.get_nodes()
        self.nodes = {node.node_id: Node(float(node.online_until), str(node.last_activated_at)) for node in found}

    def push(self, content: RecordDict, node: int, kind: str) -> str | None:
        """The message's id; None if Flower does not take it. One by one: Flower leaves out ids of what it refuses."""
        ids = list(self._grid.push_messages([Message(content, node, kind, ttl=self._patience.job)]))
        return ids[0] or None if ids else None

    def is_fetching(self, message_id: str) -> bool:
        """Whether an answer has been announced and is not there yet."""
        return message_id in self._fetches

    def pull(self, wanted: Mapping[str, int]) -> dict[str, Message | Unreadable]:
        """What has come of these messages, by their ids; `wanted` says which node's each is."""
        started = {message_id: self._threads.submit(self._fetch, message_id) for message_id in self._next(wanted)}
        self._fetches |= started
        wait(started.values(), self._patience.fetch)
        done = [message_id for message_id in wanted if message_id in self._fetches and self._fetches[message_id].done()]
        found = {message_id: self._fetches.pop(message_id).result() for message_id in done}
        replies = {message_id: reply for message_id, reply in found.items() if reply is not None}
        for message_id in replies:
            self.forget(message_id)
        return replies

    def forget(self, message_id: str) -> None:
        """Its answer is not wanted any more."""
        self._fetches.pop(message_id, None)
        self._asked.pop(message_id, None)

    def _next(self, wanted: Mapping[str, int]) -> list[str]:
        """Those to ask for now: a SuperLink is asked so often a second and not more, however large the fleet is."""
        soon = time.time() + self._patience.margin
        ready = [
            message_id
            for message_id, node in wanted.items()
            if message_id not in self._fetches and node in self.nodes and self.nodes[node].online_until > soon
        ]
        most = math.ceil(self._patience.requests * self._patience.poll)
        chosen = sorted(ready, key=lambda message_id: self._asked.get(message_id, -1))[:most]
        self._turn += 1
        self._asked |= dict.fromkeys(chosen, self._turn)
        return chosen

    def _fetch(self, message_id: str) -> Message | Unreadable | None:
        try:
            replies = list(self._grid.pull_messages([message_id]))
        except (
            httpx.HTTPStatusError
        ) as error:  # the SuperLink's fault, not the device's; a broken link Flower itself mends
            log.warning("The SuperLink cannot give out an answer now (%s): it is asked again.", plain(error))
            return None
        except Exception as error:  # whatever a stranger's bytes bring about
            return Unreadable(plain(f"an answer that cannot be read ({type(error).__name__}: {error})"))
        return next((reply for reply in replies if reply.metadata.reply_to_message_id == message_id), None)


class Failed(Unreadable):
    """An error came back instead of an answer."""

    def __init__(self, code: int, reason: str) -> None:
        never_whole = code == 3 and reason.startswith(NEVER_WHOLE)
        self.is_fault = code in FAULTS or never_whole
        said = "its answer was never uploaded whole" if never_whole else REASONS.get(code, f"error {code}")
        detail = f": {plain(reason)}" if code in FAULTS and reason else ""
        super().__init__(f"{said}{detail}")


def content_of(reply: Message | Unreadable) -> RecordDict:
    """What a reply says; raises `Failed` if that is an error, `Unreadable` if it could not even be fetched."""
    if isinstance(reply, Unreadable):
        raise reply
    if reply.has_error():
        raise Failed(reply.error.code, reply.error.reason or "")
    return reply.content
