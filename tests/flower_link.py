"""Flower's own link state and Grid in this process, with nodes that run ClientApps and take their time: virtual time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_INTERVAL_INF, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

Answer = Callable[[Message, Context], Message]


@dataclass(eq=False)
class Node:
    """A node with an app: it fetches a message when it is idle, and answers after `seconds` of work."""

    node_id: int
    app: ClientApp | Answer
    seconds: float
    context: Context
    enrol_seconds: float = 0.0
    is_on: bool = True
    at_work: tuple[float, Message] | None = None
    queue: list[Message] = field(default_factory=list)
    answered: int = 0


@dataclass(eq=False)
class Link:
    """A run on a SuperLink's state. `sleep` lets time pass, for the nodes too."""

    now: float = 0.0
    nodes: list[Node] = field(default_factory=list)
    most_out: int = 0
    """The most messages that were ever out to one node."""

    def __post_init__(self) -> None:
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state = factory.state()
        self._factory = factory
        self.new_run()

    def new_run(self) -> None:
        """As `flwr run` does: messages of the run before are out of reach."""
        run_id = self.state.create_run(
            "a/b", "1.0.0", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, "flwr-serverapp"
        )
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SUPERLINK_NODE_ID, 0
        self.grid = InMemoryGrid(self._factory)
        self.grid.set_run(self.state.get_run_info(run_ids=[run_id])[0])

    def add(self, app: ClientApp | Answer, seconds: float = 1.0, config: Mapping[str, str | int] | None = None) -> Node:
        node_id = self.state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), heartbeat_interval=HEARTBEAT_INTERVAL_INF
        )
        context = Context(1, node_id, dict(config or {}), RecordDict(), {})
        node = Node(node_id, app, seconds, context)
        self.nodes.append(node)
        self.turn_on(node)
        return node

    def turn_on(self, node: Node) -> None:
        node.is_on = True
        self.state.activate_node(node.node_id, HEARTBEAT_INTERVAL_INF)

    def cut(self, node: Node) -> None:
        """The link is cut; the node goes on working."""
        node.is_on = False
        self.state.deactivate_node(node.node_id)

    def kill(self, node: Node) -> None:
        """The node dies, and its work with it."""
        self.cut(node)
        node.at_work = None
        node.queue.clear()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + max(seconds, 1e-6)
        self._work()
        while (due := min((n.at_work[0] for n in self.nodes if n.at_work and n.is_on), default=until)) < until:
            self.now = max(self.now, due)
            self._work()
        self.now = until
        self._work()

    def _work(self) -> None:
        for node in self.nodes:
            if node.is_on and node.at_work is not None and node.at_work[0] <= self.now:
                self.state.store_message_res(node.at_work[1])
                node.at_work = None
                node.answered += 1
            if node.is_on:
                node.queue += self.state.get_message_ins(node.node_id, limit=None)
                self.most_out = max(self.most_out, len(node.queue) + (node.at_work is not None))
            if node.is_on and node.at_work is None and node.queue:
                message = node.queue.pop(0)
                seconds = node.enrol_seconds if message.metadata.message_type.startswith("query") else node.seconds
                reply = node.app(message, node.context)
                reply.metadata.__dict__["_message_id"] = secrets.token_hex(16)
                node.at_work = self.now + seconds, reply
