import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes import answer, fleet_of, job
from hybridfl.errors import InputError
from hybridfl.protocol import Inbox, Job, Loss, Outbox, Update
from hybridfl.simulation import Simulation

Call = list[tuple[int, int]]
"""The (device, version) of every job in one call of the trainer."""


def sent(device: int, sent_at: float = 0.0, version: int = 0) -> Job:
    return job(device, version, [0.0], sent_at=sent_at)


def simulation(*seconds: float, calls: list[Call] | None = None) -> Simulation:
    """Device i takes `seconds[i]` and answers its device id."""

    def train(jobs: Sequence[Job]) -> list[Update]:
        if calls is not None:
            calls.append([(one.device, one.version) for one in jobs])
        return [answer(one, one.device) for one in jobs]

    return Simulation(fleet_of(*[1] * len(seconds)), train, lambda one: seconds[one.device])


def arrived(inbox: Inbox) -> tuple[float, list[int]]:
    return inbox.now, [update.job.device for update in inbox.updates]


def test_jobs_arrive_in_the_order_of_time() -> None:
    transport = simulation(3.0, 1.0, 2.0)
    transport.send(Outbox((sent(0), sent(1), sent(2))))
    assert [arrived(transport.receive()) for _ in range(3)] == [(1.0, [1]), (2.0, [2]), (3.0, [0])]


def test_a_job_takes_its_time_from_when_it_was_sent() -> None:
    transport = simulation(3.0, 1.0)
    transport.send(Outbox((sent(0), sent(1))))
    transport.receive()
    transport.send(Outbox(wake_at=1.5))
    transport.receive()
    transport.send(Outbox((sent(1, sent_at=1.5),)))
    assert arrived(transport.receive()) == (2.5, [1])
    assert arrived(transport.receive()) == (3.0, [0])


def test_an_update_is_what_the_trainer_made_of_the_job() -> None:
    transport, original = simulation(1.0, 2.0), sent(1)
    transport.send(Outbox((original,)))
    [update] = transport.receive().updates
    assert update.job is original
    assert update.weights.tolist() == [1.0]


def test_what_arrives_at_one_instant_is_one_inbox_by_device() -> None:
    transport = simulation(2.0, 5.0, 2.0, 2.0)
    transport.send(Outbox((sent(3), sent(2), sent(1), sent(0))))
    assert arrived(transport.receive()) == (2.0, [0, 2, 3])


def test_instants_that_differ_by_rounding_only_are_one() -> None:
    transport = simulation(0.2, 0.3)
    transport.send(Outbox((sent(1, sent_at=0.0),), wake_at=0.1))
    transport.receive()
    transport.send(Outbox((sent(0, sent_at=0.1),)))
    assert 0.1 + 0.2 != 0.3
    assert arrived(transport.receive()) == (0.3, [0, 1])


def test_instants_a_microsecond_apart_are_two() -> None:
    transport = simulation(1.0, 1.000001)
    transport.send(Outbox((sent(0), sent(1))))
    assert [arrived(transport.receive()) for _ in range(2)] == [(1.0, [0]), (1.000001, [1])]


def test_a_wake_up_before_the_next_arrival_is_an_empty_inbox() -> None:
    transport = simulation(2.0)
    transport.send(Outbox((sent(0),), wake_at=1.5))
    assert arrived(transport.receive()) == (1.5, [])
    transport.send(Outbox())
    assert arrived(transport.receive()) == (2.0, [0])


def test_an_arrival_before_the_wake_up_comes_first() -> None:
    transport = simulation(2.0)
    transport.send(Outbox((sent(0),), wake_at=2.5))
    assert arrived(transport.receive()) == (2.0, [0])


def test_an_arrival_at_the_wake_up_is_in_its_inbox() -> None:
    transport = simulation(2.0)
    transport.send(Outbox((sent(0),), wake_at=2.0))
    assert arrived(transport.receive()) == (2.0, [0])


def test_an_arrival_at_the_wake_up_but_for_rounding_is_in_its_inbox() -> None:
    transport = simulation(0.8)
    transport.send(Outbox((sent(0),), wake_at=0.7 + 0.1))
    assert 0.7 + 0.1 < 0.8
    assert [update.job.device for update in transport.receive().updates] == [0]


@pytest.mark.parametrize("seconds", [0.3, 9.0])
def test_a_wake_up_is_never_early_not_even_by_rounding(seconds: float) -> None:
    transport = simulation(seconds)
    transport.send(Outbox((sent(0),), wake_at=0.1 + 0.2))
    assert 0.1 + 0.2 > 0.3
    assert transport.receive().now >= 0.1 + 0.2


def test_a_wake_up_needs_nothing_in_flight() -> None:
    transport = simulation(1.0)
    transport.send(Outbox(wake_at=4.0))
    assert arrived(transport.receive()) == (4.0, [])


@pytest.mark.parametrize(("later", "expected"), [(3.0, 3.0), (1.5, 1.5), (None, 9.0)])
def test_only_the_latest_wake_up_counts(later: float | None, expected: float) -> None:
    transport = simulation(9.0)
    transport.send(Outbox((sent(0),), wake_at=2.0))
    transport.send(Outbox(wake_at=later))
    assert transport.receive().now == expected


@pytest.mark.parametrize("at", [1.0, 2.0, math.nan, "3"])
def test_a_wake_up_that_is_not_to_come_is_refused(at: Any) -> None:
    """It would be followed by the next in the same instant, for ever."""
    transport = simulation(2.0, 5.0)
    transport.send(Outbox((sent(0), sent(1))))
    transport.receive()
    with pytest.raises(
        InputError, match=rf"woken at {at} s, but it is 2\.0 s now: give a wake_at that is later, or None"
    ):
        transport.send(Outbox(wake_at=at))


@pytest.mark.parametrize("device", [-1, 2, 0.0, None, "0"])
def test_a_job_for_a_device_that_is_not_there_is_refused(device: Any) -> None:
    with pytest.raises(InputError, match=rf"sent device {device!r} a job, but the fleet has 0 to 1: .* are free"):
        simulation(1.0, 1.0).send(Outbox((sent(device),)))


def test_a_devices_number_may_be_numpys() -> None:
    transport = simulation(1.0, 1.0)
    transport.send(Outbox((sent(np.int64(1)),)))  # type: ignore[arg-type]
    assert arrived(transport.receive()) == (1.0, [1])


@pytest.mark.parametrize("sent_at", [0.0, 3.0, 2.0 + 1e-6, math.nan, None])
def test_a_job_that_is_not_sent_now_is_refused(sent_at: Any) -> None:
    """One sent in the past may arrive before now, again and again."""
    transport = simulation(2.0, 9.0)
    transport.send(Outbox((sent(0), sent(1))))
    transport.receive()
    with pytest.raises(InputError, match=rf"sent device 0 a job at {sent_at} s, but it is 2\.0 s now: give it sent_at"):
        transport.send(Outbox((sent(0, sent_at),)))


def test_now_is_to_the_nanosecond() -> None:
    transport = simulation(0.3)
    transport.send(Outbox((sent(0),)))
    assert transport.receive().now != 0.1 + 0.2
    transport.send(Outbox((sent(0, 0.1 + 0.2),)))
    assert arrived(transport.receive()) == (0.6, [0])


def test_a_second_job_to_a_busy_device_is_refused() -> None:
    transport = simulation(1.0)
    transport.send(Outbox((sent(0, version=7),)))
    with pytest.raises(InputError, match=r"Device 0 is busy with version 7: an algorithm may send .* that are free"):
        transport.send(Outbox((sent(0, version=8),)))


def test_two_jobs_to_one_device_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="Device 0 is busy with version 7"):
        simulation(1.0).send(Outbox((sent(0, version=7), sent(0, version=8))))


def test_a_device_that_answered_is_no_longer_busy() -> None:
    transport = simulation(1.0)
    transport.send(Outbox((sent(0),)))
    transport.receive()
    transport.send(Outbox((sent(0, sent_at=1.0),)))
    assert arrived(transport.receive()) == (2.0, [0])


def test_waiting_for_nothing_is_refused() -> None:
    transport = simulation(1.0)
    transport.send(Outbox())
    with pytest.raises(RuntimeError, match="nobody will come online"):
        transport.receive()


def test_a_job_that_takes_for_ever_never_arrives_and_is_never_trained() -> None:
    calls: list[Call] = []
    transport = simulation(math.inf, 1.0, calls=calls)
    transport.send(Outbox((sent(0), sent(1))))
    assert arrived(transport.receive()) == (1.0, [1])
    assert calls == [[(1, 0)]]
    assert [one.device for one in transport.in_flight] == [0]
    with pytest.raises(RuntimeError, match="nobody will come online"):
        transport.receive()


def test_a_lost_job_is_known_when_its_time_is_up_is_never_trained_and_frees_its_device() -> None:
    calls: list[Call] = []

    def train(jobs: Sequence[Job]) -> list[Update]:
        calls.append([(one.device, one.version) for one in jobs])
        return [answer(one, one.device) for one in jobs]

    transport = Simulation(fleet_of(1, 1), train, lambda one: Loss(3.0, "died") if one.device else 1.0)
    transport.send(Outbox((sent(0), sent(1))))
    transport.receive()
    inbox = transport.receive()
    assert (inbox.now, inbox.updates, [(lost.job.device, lost.reason) for lost in inbox.lost]) == (
        3.0,
        (),
        [(1, "died")],
    )
    assert inbox.devices == {1}
    assert calls == [[(0, 0)]]
    assert transport.in_flight == ()
    transport.send(Outbox((sent(1, sent_at=3.0),)))
    assert transport.receive().now == 6.0


def test_with_nothing_to_wait_for_the_clock_jumps_to_when_somebody_comes_online() -> None:
    transport = Simulation(fleet_of(1), lambda jobs: [], lambda job: 1.0, comes_online=lambda now, barred: now + 7.5)
    transport.send(Outbox())
    assert arrived(transport.receive()) == (7.5, [])
    transport.send(Outbox(wake_at=9.0))
    assert arrived(transport.receive()) == (9.0, [])


def test_a_device_may_answer_something_else_than_it_trained() -> None:
    def backwards(update: Update) -> Update:
        return dataclasses.replace(update, weights=-update.weights)

    transport = Simulation(
        fleet_of(1, 1), lambda jobs: [answer(one, 5.0) for one in jobs], lambda job: 1.0, answer=backwards
    )
    transport.send(Outbox((sent(0),)))
    assert transport.receive().updates[0].weights.tolist() == [-5.0]


def test_a_simulation_goes_on_from_its_traffic_exactly() -> None:
    def begun() -> Simulation:
        transport = simulation(1.0, 2.5, 4.0)
        transport.send(Outbox((sent(0), sent(1), sent(2))))
        transport.receive()
        transport.send(Outbox((sent(0, sent_at=1.0, version=1),), wake_at=1.5))
        return transport

    one, other = begun(), simulation(1.0, 2.5, 4.0)
    other = Simulation(
        other.fleet, lambda jobs: [answer(j, j.device) for j in jobs], lambda j: 9.0, traffic=one.traffic
    )
    for _ in range(3):
        left, right = one.receive(), other.receive()
        assert arrived(left) == arrived(right)
        one.send(Outbox())
        other.send(Outbox())
    assert one.in_flight != ()
    assert [job.device for job in one.in_flight] == [job.device for job in other.in_flight]


def test_in_flight_are_the_jobs_not_yet_received_by_device() -> None:
    transport = simulation(1.0, 3.0, 2.0)
    transport.send(Outbox((sent(2), sent(1), sent(0))))
    transport.receive()
    assert [one.device for one in transport.in_flight] == [1, 2]


def test_nothing_is_trained_before_it_is_needed_and_then_all_in_one_call() -> None:
    calls: list[Call] = []
    transport = simulation(1.0, 2.0, 10.0, calls=calls)
    transport.send(Outbox((sent(0), sent(1), sent(2)), wake_at=0.5))
    transport.receive()
    assert calls == []
    transport.send(Outbox())
    transport.receive()
    assert calls == [[(0, 0), (1, 0), (2, 0)]]


def test_a_job_sent_later_is_trained_with_all_that_are_untrained_by_then() -> None:
    calls: list[Call] = []
    transport = simulation(1.0, 2.0, 10.0, calls=calls)
    transport.send(Outbox((sent(0), sent(1), sent(2))))
    transport.receive()
    transport.send(Outbox((sent(0, sent_at=1.0, version=1),)))
    transport.receive()  # both at 2 s: device 1 was trained in the first call, device 0's new job was not
    transport.send(Outbox((sent(0, sent_at=2.0, version=2), sent(1, sent_at=2.0, version=2))))
    transport.receive()
    assert calls == [[(0, 0), (1, 0), (2, 0)], [(0, 1)], [(0, 2), (1, 2)]]


@given(st.lists(st.floats(0.001, 20.0) | st.just(math.inf), min_size=1, max_size=8), st.integers(0, 20))
def test_every_job_arrives_once_and_in_time(seconds: list[float], resent: int) -> None:
    """A device that answers gets another job, until `resent` were sent."""
    transport = simulation(*seconds)
    transport.send(Outbox(tuple(sent(device) for device in range(len(seconds)))))
    finite = {device for device, took in enumerate(seconds) if math.isfinite(took)}
    seen: list[tuple[int, int]] = []
    expected, last = len(finite), 0.0
    while len(seen) < expected:
        inbox = transport.receive()
        assert inbox.now >= last
        last = inbox.now
        answered = [update.job for update in inbox.updates]
        assert answered
        assert [one.device for one in answered] == sorted({one.device for one in answered})
        assert all(abs(one.sent_at + seconds[one.device] - inbox.now) < 1e-8 for one in answered)
        seen += [(one.device, one.version) for one in answered]
        again = answered[: max(0, resent - (expected - len(finite)))]
        transport.send(Outbox(tuple(sent(one.device, inbox.now, one.version + 1) for one in again)))
        expected += len(again)
    assert len(set(seen)) == len(seen)
    assert {one.device for one in transport.in_flight} == set(range(len(seconds))) - finite


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, 1e-12])
def test_a_job_that_takes_no_time_is_an_error_that_names_device_and_value(seconds: float) -> None:
    """A clock that stands still would let a run make versions for ever."""
    transport = simulation(1.0, seconds)
    transport.send(Outbox(wake_at=5.0))
    transport.receive()
    with pytest.raises(InputError, match=f"Device 1 would answer the job it is sent at 5 s after {seconds} s"):
        transport.send(Outbox((sent(0, 5.0), sent(1, 5.0))))


@pytest.mark.parametrize("seconds", [None, "1", [1.0, 2.0]])
def test_a_time_that_is_no_number_is_an_error_that_names_device_and_value(seconds: Any) -> None:
    message = f"Device 1 would answer the job it is sent at 0 s after {seconds} s"
    with pytest.raises(InputError, match=re.escape(message)):
        simulation(1.0, seconds).send(Outbox((sent(0), sent(1))))
    with pytest.raises(InputError, match=re.escape(message)):
        simulation(1.0, Loss(seconds, "gone")).send(Outbox((sent(0), sent(1))))  # type: ignore[arg-type]


def test_a_time_may_be_the_only_number_in_an_array() -> None:
    transport = simulation(np.float32(1.5), np.array(2.0))  # type: ignore[arg-type]
    transport.send(Outbox((sent(0), sent(1))))
    assert [arrived(transport.receive()) for _ in range(2)] == [(1.5, [0]), (2.0, [1])]


def shared(*devices: int) -> tuple[Outbox, torch.Tensor]:
    """Jobs that share their weights, and those."""
    weights = torch.zeros(1)
    return Outbox(tuple(dataclasses.replace(sent(device), weights=weights) for device in devices)), weights


WROTE = r"An algorithm wrote into the weights it had sent device 1 as version 0, .*: make a new tensor"


def test_weights_that_were_written_to_before_they_were_trained_are_refused() -> None:
    transport = simulation(1.0, 2.0)
    outbox, weights = shared(1)
    transport.send(Outbox((sent(0), *outbox.jobs)))
    weights += 1
    with pytest.raises(InputError, match=WROTE):
        transport.receive()


def test_weights_that_were_written_to_after_they_were_trained_are_refused() -> None:
    """What a device has learned is told by the difference to what it was sent."""
    transport = simulation(1.0, 2.0)
    outbox, weights = shared(0, 1)
    transport.send(outbox)
    transport.receive()
    weights += 1
    transport.send(Outbox())
    with pytest.raises(InputError, match=WROTE):
        transport.receive()


def test_weights_that_were_written_to_are_not_saved() -> None:
    transport = simulation(1.0, 2.0)
    outbox, weights = shared(1)
    transport.send(outbox)
    assert Simulation(transport.fleet, lambda jobs: [], lambda job: 1.0, traffic=transport.traffic).traffic.in_flight
    weights += 1
    with pytest.raises(InputError, match=WROTE):
        _ = transport.traffic


def test_a_control_that_was_written_to_is_refused() -> None:
    transport, drift = simulation(1.0, 2.0), torch.zeros(1)
    transport.send(Outbox((dataclasses.replace(sent(1), drift=drift),)))
    drift += 1
    with pytest.raises(InputError, match=WROTE):
        transport.receive()


def test_weights_that_nobody_works_on_may_be_written_to() -> None:
    transport = simulation(1.0, 1.0)
    outbox, weights = shared(0, 1)
    transport.send(outbox)
    transport.receive()
    weights += 1
    transport.send(Outbox(tuple(dataclasses.replace(job, sent_at=1.0) for job in outbox.jobs)))
    assert arrived(transport.receive()) == (2.0, [0, 1])


def test_a_loss_that_is_known_at_once_is_an_error() -> None:
    transport = Simulation(fleet_of(1), lambda jobs: [], lambda job: Loss(0.0, "gone"))
    with pytest.raises(InputError, match="after 0"):
        transport.send(Outbox((sent(0),)))
