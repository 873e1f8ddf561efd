"""Enrolment: every node is asked who it is when it is first seen."""

from __future__ import annotations

import logging

from flwr.app import RecordDict

from hybridfl.flower.post import Post, content_of
from hybridfl.flower.roster import Roster
from hybridfl.flower.wire import ENROL, Enrolment, Unreadable, read_enrolment

log = logging.getLogger("flwr.hybridfl")
OWN_NAMES = "give each a name, or a partition-id, of its own in its node-config."


class Reception:
    """Asks nodes who they are, and knows who may enter the roster.

    Whoever has the name of one who is online waits until that one is gone: Flower takes a minute to notice that a node has
    died, and this may be the same device again.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._asked: dict[str, tuple[int, str]] = {}
        """(node, since when it was online) by message id."""
        self._answered: dict[int, str] = {}
        """Nodes that have said who they are, or something else, and since when they were online then."""
        self._waiting: dict[int, Enrolment] = {}
        """What nodes said that have not entered, by node."""

    @property
    def asking(self) -> list[int]:
        """Nodes that have been asked and have not answered."""
        return sorted(node for node, _ in self._asked.values())

    @property
    def namesakes(self) -> dict[str, list[int]]:
        """Nodes that wait to enter and have said one name, by that name."""
        by_name: dict[str, list[int]] = {}
        for node, said in self._waiting.items():
            by_name.setdefault(said.name_of(node), []).append(node)
        return {name: nodes for name, nodes in by_name.items() if len(nodes) > 1}

    def ask(self, roster: Roster) -> None:
        """Whoever is new, or was away and is nobody in the roster; and hear who has answered."""
        self._answered = {node: since for node, since in self._answered.items() if self._is_online(node, since)}
        self._waiting = {node: said for node, said in self._waiting.items() if node in self._answered}
        for message_id, (node, since) in list(self._asked.items()):
            if not self._is_online(node, since):
                del self._asked[message_id]  # asked again when it is seen again
                self._post.forget(message_id)
        known = {node for node, _ in roster.nodes} | {node for node, _ in self._asked.values()} | self._answered.keys()
        for node in sorted(self._post.nodes.keys() - known):
            if (pushed := self._post.push(RecordDict(), node, ENROL)) is not None:
                self._asked[pushed] = node, self._post.nodes[node].activated_at
        self._hear(roster)

    def _is_online(self, node: int, since: str) -> bool:
        return node in self._post.nodes and self._post.nodes[node].activated_at == since

    def _hear(self, roster: Roster) -> None:
        for message_id, reply in self._post.pull({each: node for each, (node, _) in self._asked.items()}).items():
            node, since = self._asked.pop(message_id)
            self._answered[node] = since
            try:
                said = read_enrolment(content_of(reply))
            except Unreadable as error:
                log.warning("Node %s does not enrol: %s", node, error)
                continue
            self._waiting[node] = said
            name = said.name_of(node)
            if self._is_taken(name, node, roster):
                log.warning("Node %s says it is '%s', who is online: it has to wait.", node, name)
            elif name in self.namesakes:
                log.warning("Nodes %s all say they are '%s': %s", self.namesakes[name], name, OWN_NAMES)

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
            name = enrolment.name_of(node)
            if node in self._post.nodes and name not in enrolments and not self._is_taken(name, node, roster):
                enrolments[name] = node, enrolment
        return list(enrolments.values())

    def _is_taken(self, name: str, node: int, roster: Roster) -> bool:
        holder = roster.node_of(roster.names.index(name)) if name in roster.names else None
        return holder is not None and holder != node and holder in self._post.nodes
