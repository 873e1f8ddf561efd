from dataclasses import dataclass, field
from itertools import islice

from fakes import answer, fleet_of, job, vector
from hybridfl.protocol import Fleet, Inbox, Outbox, Receipt, Vector
from hybridfl.run import Moment, run


@dataclass(frozen=True, eq=False)
class Count:
    version: int
    weights: Vector
    fleet: Fleet


class Adding:
    """One job at a time, to device 0; every answer is added to the weights."""

    def init(self, weights: Vector, fleet: Fleet) -> tuple[Count, Outbox]:
        return Count(0, weights, fleet), Outbox((job(0, 0, weights.tolist()),))

    def step(self, state: Count, inbox: Inbox) -> tuple[Count, Outbox]:
        [update] = inbox.updates
        state = Count(state.version + 1, state.weights + update.delta, state.fleet)
        again = job(0, state.version, state.weights.tolist(), sent_at=inbox.now)
        return state, Outbox((again,), receipts=(Receipt(0),))


@dataclass
class Echo:
    """A transport that answers every job after one second, with 1 more than it got, and keeps a diary."""

    fleet: Fleet = field(default_factory=lambda: fleet_of(1))
    diary: list[str] = field(default_factory=list)
    sent: list[Outbox] = field(default_factory=list)

    def send(self, outbox: Outbox) -> None:
        self.diary.append(f"send {outbox.jobs[0].version}")
        self.sent.append(outbox)

    def receive(self) -> Inbox:
        [one] = self.sent[-1].jobs
        self.diary.append(f"receive {one.version}")
        return Inbox(one.sent_at + 1.0, (answer(one, 1.0),))


def moments(transport: Echo, count: int) -> list[Moment[Count]]:
    algorithm = Adding()
    return list(islice(run(algorithm, transport, *algorithm.init(vector(0.0), transport.fleet)), count))


def test_each_turn_sends_what_was_wanted_then_receives_then_steps() -> None:
    transport = Echo()
    turns = moments(transport, 3)
    assert transport.diary == ["send 0", "receive 0", "send 1", "receive 1", "send 2", "receive 2"]
    assert [turn.state.version for turn in turns] == [1, 2, 3]
    assert [turn.state.weights.tolist() for turn in turns] == [[1.0], [2.0], [3.0]]
    assert [turn.inbox.now for turn in turns] == [1.0, 2.0, 3.0]


def test_a_moment_holds_the_outbox_that_is_sent_next() -> None:
    transport = Echo()
    turns = moments(transport, 3)
    assert transport.sent[1] is turns[0].outbox
    assert transport.sent[2] is turns[1].outbox


def test_nothing_happens_before_the_first_moment_is_asked_for() -> None:
    transport, algorithm = Echo(), Adding()
    run(algorithm, transport, *algorithm.init(vector(0.0), transport.fleet))
    assert transport.diary == []


def test_a_run_goes_on_from_a_saved_moment() -> None:
    straight = moments(Echo(), 5)
    saved = straight[2]
    resumed = list(islice(run(Adding(), Echo(), saved.state, saved.outbox), 2))
    for turn, expected in zip(resumed, straight[3:], strict=True):
        assert turn.state.version == expected.state.version
        assert turn.state.weights.tolist() == expected.state.weights.tolist()
        assert turn.inbox.now == expected.inbox.now
