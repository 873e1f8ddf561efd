"""Enrolment: every node is asked who it is when it is first seen."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import RecordDict

from hybridfl.flower.patience import Patience
from hybridfl.flower.post import Post, content_of
from hybridfl.flower.roster import Roster
from hybridfl.flower.wire import ENROL, Enrolment, Unreadable, read_enrolment

log = logging.getLogger("flwr.hybridfl")


class Reception:
    """Asks nodes who they are, and knows who may enter the roster.

    Whoever has the name of one who is online waits until that one is gone: Flower takes a minute to notice that a node has
    died, and this may be the same device again.
    """

    def __init__(self, post: Post, patience: Patience, clock: Callable[[], float]) -> None:
        self._post, self._patience, self._clock = post, patience, clock
        self._asked: dict[str, tuple[int, float]] = {}
        """(node, when) by message id."""
        self._answered: dict[int, str] = {}
        """Nodes that have said who they are, or something else, and since when they were online then."""
        self._waiting: dict[int, Enrolment] = {}
        """What nodes said that have not entered, by node."""

    @property
    def is_asking(self) -> bool:
        return bool(self._asked)

    def ask(self, roster: Roster) -> None:
        """Whoever is new, or was away and is nobody in the roster; and hear who has answered."""
        nodes = self._post.nodes
        self._answered = {
            node: since for node, since in self._answered.items() if node in nodes and nodes[node].activated_at == since
        }
        self._waiting = {node: said for node, said in self._waiting.items() if node in self._answered}
        known = {node for node, _ in roster.nodes} | {node for node, _ in self._asked.values()} | self._answered.keys()
        for node in sorted(self._post.nodes.keys() - known):
            if (message_id := self._post.push(RecordDict(), node, ENROL)) is not None:
                self._asked[message_id] = node, self._clock()
        self._hear(roster)

    def _hear(self, roster: Roster) -> None:
        for message_id, reply in self._post.pull({each: node for each, (node, _) in self._asked.items()}).items():
            node, _ = self._asked.pop(message_id)
            self._answered[node] = self._post.nodes[node].activated_at
            try:
                self._waiting[node] = read_enrolment(content_of(reply))
            except Unreadable as error:
                log.warning("Node %s does not enrol: %s", node, error)
                continue
            if self._is_taken(self._waiting[node].name, node, roster):
                log.warning("Node %s says it is '%s', who is online: it has to wait.", node, self._waiting[node].name)
        for message_id, (node, asked_at) in list(self._asked.items()):
            if node not in self._post.nodes or self._clock() > asked_at + self._patience.enrol:
                del self._asked[message_id]  # asked again when it is seen again

    def admitted(self, roster: Roster) -> Roster:
        """The roster with all who may enter now: at once, so that places go by names, not by who was quickest."""
        return roster.with_enrolments(self._ready(roster))

    def admit(self, roster: Roster) -> Roster:
        """That roster, from now on."""
        admitted = self.admitted(roster)
        for node, _ in self._ready(roster):
            del self._waiting[node]
        return admitted

    def _ready(self, roster: Roster) -> list[tuple[int, Enrolment]]:
        enrolments: dict[str, tuple[int, Enrolment]] = {}
        for node, enrolment in self._waiting.items():
            name = enrolment.name or f"node-{node}"
            if node in self._post.nodes and name not in enrolments and not self._is_taken(name, node, roster):
                enrolments[name] = node, enrolment
        return list(enrolments.values())

    def _is_taken(self, name: str, node: int, roster: Roster) -> bool:
        holder = roster.node_of(roster.names.index(name)) if name in roster.names else None
        return holder is not None and holder != node and holder in self._post.nodes
