"""How long a server waits for what."""

from __future__ import annotations

from dataclasses import dataclass


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
