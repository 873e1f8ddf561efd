"""How long a server waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """How a transport waits. All in seconds.

    A message lives for `job`, answer included. A node that has been offline for `node` has lost its job, and so has one that
    was away, is back, and was found idle `restart` ago. `settle`: how long, once enough devices have enrolled, the beginning of
    a run waits for others that have been asked who they are. `poll`: between two looks; often, since what a node has sent can
    only be fetched while it is online. `margin`: a node that Flower would give up sooner than this is left alone. `fetch`: how
    long a look waits for answers. `requests`: how many answers are asked for in a second, at most.
    """

    job: float = 43_200.0
    node: float = 600.0
    restart: float = 5.0
    settle: float = 30.0
    poll: float = 0.5
    margin: float = 2.0
    fetch: float = 0.25
    requests: float = 30.0
