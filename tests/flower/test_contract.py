"""What every transport does: the same tests for virtual time and for Flower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fakes import Towards, fleet_of
from flower_link import Link
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.sampling import Everyone
from hybridfl.errors import InputError
from hybridfl.flower.client import answering
from hybridfl.flower.patience import Patience
from hybridfl.flower.transport import FlowerTransport
from hybridfl.flower.wire import Enrolment, enrolment_content, read_job, update_content
from hybridfl.protocol import Algorithm, Job, Loss, Outbox, Transport, Work
from hybridfl.run import run
from hybridfl.simulation import Simulation

NEVER = 1e9


def towards_app(num_samples: int, name: str) -> ClientApp:
    """A device that trains as `Towards` does."""
    app = ClientApp()

    @app.query("enrol")
    @answering
    def enrol(message: Message, context: Context) -> RecordDict:
        return enrolment_content(Enrolment(num_samples, name))

    @app.train()
    @answering
    def train(message: Message, context: Context) -> RecordDict:
        job, _ = read_job(message.content)
        (update,) = Towards()([job])
        return update_content(update)

    return app


Make = Callable[[Sequence[float]], Transport]
"""A transport to a fleet whose device i has i + 1 samples and takes so many seconds."""


def in_virtual_time(seconds: Sequence[float]) -> Transport:
    fleet = fleet_of(*(device + 1 for device in range(len(seconds))))
    lost = Loss(20.0, "gone")
    return Simulation(fleet, Towards(), lambda job: lost if seconds[job.device] == NEVER else seconds[job.device])


def on_flower(seconds: Sequence[float]) -> Transport:
    link = Link()
    for device, each in enumerate(seconds):
        link.add(towards_app(device + 1, f"partition-{device}"), each)
    patience = Patience(poll=0.005, node=20.0, fetch=20.0, requests=1e5)
    transport = FlowerTransport(link.grid, patience=patience, clock=link.clock, sleep=link.sleep)
    transport.enrol(len(seconds))
    transport._started_at = link.now  # a run begins when all are there
    for node, each in zip(link.nodes, seconds, strict=True):
        if each == NEVER:
            node.app = _forgetful(link, device=link.nodes.index(node))
    return transport


def _forgetful(link: Link, device: int) -> Callable[[Message, Context], Message]:
    """Whoever gets a job from it goes offline and never comes back."""

    def app(message: Message, context: Context) -> Message:
        link.kill(link.nodes[device])
        return Message(RecordDict(), reply_to=message)

    return app


@pytest.fixture(params=[in_virtual_time, on_flower], ids=["simulation", "flower"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def job(device: int, version: int = 0, sent_at: float = 0.0) -> Job:
    return Job(device, version, torch.tensor([1.0, -2.0]), Work(1, 1, 0.1), sent_at)


def test_the_fleet_is_known_by_its_samples(make: Make) -> None:
    fleet = make([1, 1, 1]).fleet
    assert fleet.num_samples.tolist() == [1, 2, 3]
    assert np.isnan(fleet.expected_seconds).all()
    assert fleet.reachable([0, 2], now=0.0) == [0, 2]


def test_jobs_arrive_in_the_order_of_time(make: Make) -> None:
    transport = make([3, 1, 2])
    transport.send(Outbox((job(0), job(1), job(2))))
    inboxes = [transport.receive() for _ in range(3)]
    assert [[update.job.device for update in inbox.updates] for inbox in inboxes] == [[1], [2], [0]]
    assert [inbox.now for inbox in inboxes] == pytest.approx([1, 2, 3], abs=0.01)


def test_what_arrives_at_one_instant_is_one_inbox_by_device(make: Make) -> None:
    transport = make([2, 2, 1, 2])
    transport.send(Outbox((job(3), job(0), job(1))))
    assert [update.job.device for update in transport.receive().updates] == [0, 1, 3]


def test_an_update_is_what_the_trainer_made_of_the_very_job(make: Make) -> None:
    transport = make([1, 1, 1])
    sent = job(2, version=7)
    transport.send(Outbox((sent,)))
    (update,) = transport.receive().updates
    assert update.job is sent
    assert update.weights.tolist() == [1.5, 0.0]
    assert (update.num_steps, float(update.train_loss)) == (2, 7.0)


def test_a_wake_up_before_the_next_arrival_is_an_empty_inbox_and_never_early(make: Make) -> None:
    transport = make([3])
    transport.send(Outbox((job(0),), wake_at=1.5))
    inbox = transport.receive()
    assert inbox.devices == frozenset()
    assert 1.5 <= inbox.now < 1.51
    transport.send(Outbox())
    assert transport.receive().now == pytest.approx(3, abs=0.01)


def test_a_second_job_to_a_busy_device_is_refused(make: Make) -> None:
    transport = make([1, 1])
    transport.send(Outbox((job(1),)))
    with pytest.raises(InputError, match=r"Device 1 is busy.* only to devices that are free"):
        transport.send(Outbox((job(1, version=1),)))


def test_a_device_that_answered_can_get_another(make: Make) -> None:
    transport = make([1])
    transport.send(Outbox((job(0),)))
    now = transport.receive().now
    transport.send(Outbox((job(0, version=1, sent_at=now),)))
    assert transport.receive().now == pytest.approx(2, abs=0.01)


def test_a_job_that_will_not_be_answered_is_known_to_be_lost_and_frees_its_device(make: Make) -> None:
    transport = make([1, NEVER])
    transport.send(Outbox((job(0), job(1))))
    assert transport.receive().devices == {0}
    transport.send(Outbox())
    inbox = transport.receive()
    assert inbox.devices == {1}
    assert inbox.updates == ()
    assert inbox.now == pytest.approx(20, abs=0.1)
    assert not inbox.lost[0].is_fault


@pytest.mark.parametrize("algorithm", [HFL(), FedAvg(Everyone()), FedBuff(buffer=2), HFL.drift_controlled()], ids=repr)
def test_the_same_arrivals_make_the_same_weights_everywhere(algorithm: Algorithm[Any]) -> None:
    """Ten versions, to the last bit."""

    def weights(transport: Transport) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for moment in run(algorithm, transport, *algorithm.init(torch.tensor([1.0, -2.0]), transport.fleet)):
            if moment.state.version > len(made):
                made.append(moment.state.weights)
            if len(made) == 10:
                return made
        raise AssertionError

    seconds = [1.0, 1.1, 1.2, 4.35, 6.75]
    for one, other in zip(weights(in_virtual_time(seconds)), weights(on_flower(seconds)), strict=True):
        assert torch.equal(one, other)
