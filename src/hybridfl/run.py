"""The loop: send what the algorithm wants, receive what arrives, step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from hybridfl.contract import stepped
from hybridfl.protocol import Algorithm, Inbox, Outbox, S, Transport


@dataclass(frozen=True, slots=True, eq=False)
class Moment(Generic[S]):
    """One turn of the loop: what arrived, the state it led to, and what is wanted next."""

    inbox: Inbox
    state: S
    outbox: Outbox


def run(algorithm: Algorithm[S], transport: Transport, state: S, outbox: Outbox) -> Iterator[Moment[S]]:
    """Turn after turn, for ever; stopping is `break`.

    Start with `run(algorithm, transport, *algorithm.init(weights, transport.fleet))`; go on from a saved moment with its
    state and outbox.
    """
    while True:
        transport.send(outbox)
        inbox = transport.receive()
        state, outbox = stepped(algorithm, state, inbox)
        yield Moment(inbox, state, outbox)
