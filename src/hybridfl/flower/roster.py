"""Who belongs to the fleet: Flower's nodes come and go, a device keeps its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hybridfl.flower.wire import Enrolment


@dataclass(frozen=True)
class Roster:
    """Device i is `names[i]` and holds `num_samples[i]` samples; `nodes` says which node is which device now."""

    names: tuple[str, ...] = ()
    num_samples: tuple[int, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()
    """(node id, device)."""

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Roster:
        """Of what `asdict` made of one, and JSON of that."""
        nodes = tuple((int(node), int(device)) for node, device in said["nodes"])
        return cls(tuple(said["names"]), tuple(said["num_samples"]), nodes)

    def __len__(self) -> int:
        return len(self.names)

    def node_of(self, device: int) -> int | None:
        return self._node_by_device.get(device)

    @cached_property
    def _node_by_device(self) -> Mapping[int, int]:
        return {device: node for node, device in self.nodes}

    def with_enrolments(self, enrolments: Iterable[tuple[int, Enrolment]]) -> Roster:
        """With these nodes: each as the device its name has been, or else as a new one. Those at once go by their names.

        A device that comes back keeps the number of samples it enrolled with: a run's shares do not change behind its back.
        """
        roster = self
        for node, enrolment in sorted(enrolments, key=lambda pair: (_in_order(pair[1].name), pair[0])):
            name = enrolment.name_of(node)
            if name in roster.names:
                device = roster.names.index(name)
                others = tuple((each, place) for each, place in roster.nodes if place != device and each != node)
                roster = replace(roster, nodes=(*others, (node, device)))
            else:
                roster = Roster(
                    (*roster.names, name),
                    (*roster.num_samples, enrolment.num_samples),
                    (*roster.nodes, (node, len(roster.names))),
                )
        return roster


def _in_order(name: str) -> tuple[str, int]:
    """`partition-10` comes after `partition-9`."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)
