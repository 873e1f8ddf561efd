"""Messages to Flower's nodes and what comes back, by Flower's rules."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from hybridfl.flower.patience import Patience
from hybridfl.flower.wire import Unreadable

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
class Node:
    """What Flower says of a node that is online."""

    online_until: float
    activated_at: str


class Post:
    """Sends and fetches messages. `nodes` are those that were online at the last look.

    Flower deletes what an offline node has sent, if one asks for it: so only nodes that are online, and stay so for a moment,
    are asked.
    """

    def __init__(self, grid: Grid, patience: Patience) -> None:
        self.nodes: Mapping[int, Node] = {}
        self._grid, self._patience = grid, patience

    def look(self) -> None:
        """Who is online."""
        found = self._grid.get_nodes()
        self.nodes = {node.node_id: Node(float(node.online_until), str(node.last_activated_at)) for node in found}

    def push(self, content: RecordDict, node: int, kind: str) -> str | None:
        """The message's id; None if Flower does not know the node. One by one: Flower leaves out ids of what it refuses."""
        ids = list(self._grid.push_messages([Message(content, node, kind, ttl=self._patience.job)]))
        return ids[0] or None if ids else None

    def pull(self, wanted: Mapping[str, int]) -> dict[str, Message]:
        """What has come of these messages, by their ids; `wanted` says which node's each is."""
        soon = time.time() + self._patience.margin
        ids = [each for each, node in wanted.items() if node in self.nodes and self.nodes[node].online_until > soon]
        if not ids:
            return {}
        replies = {reply.metadata.reply_to_message_id: reply for reply in self._grid.pull_messages(ids)}
        return {message_id: reply for message_id, reply in replies.items() if message_id in wanted}


class Failed(Unreadable):
    """An error came back instead of an answer."""

    def __init__(self, code: int, reason: str) -> None:
        self.is_fault = code in FAULTS
        super().__init__(f"{REASONS.get(code, f'error {code}')}{f': {reason}' if self.is_fault and reason else ''}")


def content_of(reply: Message) -> RecordDict:
    """What a reply says; `Failed` if that is an error."""
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines()
        raise Failed(reply.error.code, lines[0][:200] if lines else "")
    return reply.content
