"""Arbitrary sequences of arrivals, losses, duplicates and garbage, thrown at every algorithm behind its guard."""

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridfl.algorithms.averages import ClippedMean, Median, TrimmedMean
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.guard import Guard, Guarded
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import Deadline, Everyone, FirstOf, Uniform
from hybridfl.algorithms.stragglers import KnownShare
from hybridfl.protocol import Algorithm, Fleet, Inbox, Job, Lost, Outbox, Update

DEVICES = 6
LOCAL = FullWork(epochs=1, batch_size=4, learning_rate=ConstantRate(0.1))
SAMPLES = 8  # two steps

ALGORITHMS: dict[str, Algorithm[Any]] = {
    "hfl": HFL(local=LOCAL),
    "hfl known share": HFL(stragglers=KnownShare(0.5), round_seconds=2.0, local=LOCAL),
    "hfl drawn": HFL(participants=Uniform(3), local=LOCAL),
    "hfl bounded": HFL(Memory(most=3, storage="float16"), local=LOCAL),
    "hfl median": HFL(Memory(average=Median()), local=LOCAL),
    "hfl as printed": HFL.as_printed(local=LOCAL),
    "fedavg": FedAvg(Uniform(3), LOCAL),
    "fedavg everyone": FedAvg(Everyone(), LOCAL, TrimmedMean()),
    "fedavg first of": FedAvg(FirstOf(2, 4), LOCAL, ClippedMean()),
    "fedavg deadline": FedAvg(Deadline(3, 1.5), LOCAL),
    "fedprox": FedProx(1.0, participants=Uniform(3), local=LOCAL),
    "fedasync": FedAsync(local=LOCAL),
    "fedasync drawn": FedAsync(local=LOCAL, concurrency=2),
    "fedbuff": FedBuff(buffer=3, local=LOCAL),
    "fedbuff drawn": FedBuff(buffer=3, local=LOCAL, concurrency=3),
}

GARBAGE: dict[str, Callable[[Update], Update]] = {
    "NaN": lambda u: replace(u, weights=torch.full_like(u.weights, math.nan)),
    "infinite": lambda u: replace(u, weights=torch.full_like(u.weights, math.inf)),
    "long": lambda u: replace(u, weights=u.weights + 1e30),
    "shape": lambda u: replace(u, weights=torch.zeros(5)),
    "dtype": lambda u: replace(u, weights=u.weights.double()),
    "steps": lambda u: replace(u, num_steps=10**9),
    "version": lambda u: replace(u, job=replace(u.job, version=u.job.version + 100)),
    "negative version": lambda u: replace(u, job=replace(u.job, version=-3)),
    "device": lambda u: replace(u, job=replace(u.job, device=10**6)),
    "sent at": lambda u: replace(u, job=replace(u.job, sent_at=math.nan)),
}
NO_SUCH_JOB = ("version", "negative version", "device", "sent at")

# What says another model, rate or amount of work than it was given, and is an honest step in all else: it is taken, and
# what it says is not believed.
LIES: dict[str, Callable[[Update], Update]] = {
    "model": lambda u: replace(u, job=replace(u.job, weights=torch.full_like(u.weights, 1e30))),
    "no model": lambda u: replace(u, job=replace(u.job, weights=torch.zeros(0))),
    "rate": lambda u: replace(u, job=replace(u.job, work=replace(u.job.work, learning_rate=1e-30))),
    "work": lambda u: replace(u, job=replace(u.job, work=replace(u.job.work, epochs=10**9))),
}


class Devices:
    """A transport the test moves by hand. It never gives a device two jobs, and remembers all it was told."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.in_flight: dict[int, Job] = {}
        self.past: list[Update] = []
        self.sent: list[weakref.ref[torch.Tensor]] = []
        self.wake_at: float | None = None
        self.now = 0.0

    def online(self, devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        return ~np.isin(devices, list(self.away))

    def send(self, outbox: Outbox) -> None:
        for job in outbox.jobs:
            assert job.device not in self.in_flight, "no device ever holds two jobs"
            assert job.device not in self.away
            assert job.sent_at == self.now
            self.in_flight[job.device] = job
            self.sent.append(weakref.ref(job.weights))
        self.wake_at = outbox.wake_at

    def honest(self, job: Job) -> Update:
        return Update(job, job.weights + 0.2 * (job.device / DEVICES - job.weights), num_steps=2, train_loss=0.0)

    def act(self, action: str, device: int, kind: int) -> Inbox:
        """One thing that happens."""
        self.now += 0.3
        job = self.in_flight.get(device)
        if action == "wake up" and self.wake_at is not None:
            self.now = max(self.now, self.wake_at)
        elif action == "comes or goes":
            self.away ^= {device}
        elif action == "late or second answer" and self.past:
            return Inbox(self.now, (self.past[device % len(self.past)],))
        elif action == "garbage out of the blue" and self.past:
            return Inbox(self.now, (GARBAGE[list(GARBAGE)[kind % len(GARBAGE)]](self.past[-1]),))
        elif job is not None and action in ("answer", "garbage", "lie", "loss", "everybody answers", "answers twice"):
            if action == "everybody answers":
                return self._back(*sorted(self.in_flight))
            update = self.honest(job)
            self.past = [*self.past[-3:], update]
            del self.in_flight[device]
            if action == "loss":
                return Inbox(self.now, lost=(Lost(job, "lost on the way"),))
            if action == "garbage":
                name = list(GARBAGE)[kind % len(GARBAGE)]
                spoiled = GARBAGE[name](update)
                if name in NO_SUCH_JOB:  # it says nothing of the job the device has
                    return Inbox(self.now, (spoiled,), (Lost(job, "lost on the way"),))
                return Inbox(self.now, (spoiled,))
            if action == "lie":
                return Inbox(self.now, (LIES[list(LIES)[kind % len(LIES)]](update),))
            return Inbox(self.now, (update, update) if action == "answers twice" else (update,))
        return Inbox(self.now)

    def _back(self, *devices: int) -> Inbox:
        return Inbox(self.now, tuple(self.honest(self.in_flight.pop(device)) for device in devices))


ACTIONS = (
    *("answer", "answer", "everybody answers", "answers twice", "garbage", "lie", "loss", "wake up"),
    *("comes or goes", "late or second answer", "garbage out of the blue"),
)
EVENTS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, DEVICES - 1), st.integers(0, len(GARBAGE) - 1)), max_size=40
)


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS, quarantine=st.sampled_from([None, 2]))
def test_whatever_arrives_the_weights_stay_finite_and_nothing_leaks_or_hangs(
    name: str, events: list[tuple[str, int, int]], quarantine: int | None
) -> None:
    devices = Devices()
    fleet = Fleet(np.full(DEVICES, SAMPLES), np.arange(1.0, DEVICES + 1), online=devices.online)
    algorithm = Guarded(ALGORITHMS[name], Guard(quarantine=quarantine))
    state, outbox = algorithm.init(torch.zeros(3), fleet)
    devices.send(outbox)
    for event in events:
        inbox = devices.act(*event)
        version = state.version
        state, outbox = algorithm.step(state, inbox)
        devices.send(outbox)
        assert len(outbox.receipts) == len(inbox.updates)
        assert state.version >= version
        assert bool(torch.isfinite(state.weights).all())
        assert not {job.device for job in outbox.jobs} & state.fleet.barred
        assert set(state.jobs.values()) == set(devices.in_flight.values()), "the guard knows exactly the jobs in flight"

    # Nothing hangs: with everybody there and honest, versions are made again, as long as anybody is left to work with.
    devices.away.clear()
    goal = state.version + 3
    for _ in range(60):
        inbox = devices.act(
            "everybody answers" if devices.in_flight else "wake up", next(iter(devices.in_flight), 0), 0
        )
        state, outbox = algorithm.step(state, inbox)
        devices.send(outbox)
    if len(state.fleet.barred) < DEVICES:
        assert state.version >= goal
    else:
        assert not devices.in_flight

    # Nothing leaks: only the current model, and those that jobs and waiting updates were made from, are alive.
    devices.past.clear()
    del inbox
    needed = {id(state.weights), *(id(job.weights) for job in devices.in_flight.values())}
    needed |= {id(update.job.weights) for update in waiting(state.inner)}
    del outbox
    alive = {id(weights()) for weights in devices.sent if weights() is not None}
    assert alive <= needed


def waiting(state: Any) -> tuple[Update, ...]:
    found: tuple[Update, ...] = getattr(state, "waiting", ()) or getattr(state, "arrived", ())
    return found
