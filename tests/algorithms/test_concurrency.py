import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes import Towards, fleet_of, vector
from hybridfl.algorithms.concurrency import first_crew, next_crew
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.errors import InputError
from hybridfl.protocol import Algorithm
from hybridfl.run import run
from hybridfl.simulation import Simulation

FLEET = fleet_of(*[1] * 10)


def test_everybody_who_is_there_is_at_work_and_who_comes_back_gets_a_job_at_the_next_arrival() -> None:
    away = {3, 7}
    fleet = replace(FLEET, online=lambda devices, now: ~np.isin(devices, list(away)))
    crew, devices = first_crew(fleet, None)
    assert devices == [0, 1, 2, 4, 5, 6, 8, 9]
    crew, devices = next_crew(crew, fleet, None, frozenset({4}), 1.0)
    assert devices == [4]
    away = {4}
    crew, devices = next_crew(crew, fleet, None, frozenset({4}), 2.0)
    assert devices == [3, 7]
    assert crew.away == {4}


def test_so_many_at_a_time_are_drawn_anew() -> None:
    crew, devices = first_crew(FLEET, 4)
    assert len(devices) == 4
    seen = set(devices)
    for now in range(1, 40):
        crew, devices = next_crew(crew, FLEET, 4, frozenset([min(crew.busy)]), float(now))
        assert len(crew.busy) == 4
        seen |= set(devices)
    assert seen == set(range(10))


def test_who_could_not_be_replaced_is_replaced_later() -> None:
    there = [True]
    fleet = replace(FLEET, online=lambda devices, now: np.full(len(devices), there[0]))
    crew, devices = first_crew(fleet, 3)
    there[0] = False
    crew, none = next_crew(crew, fleet, 3, frozenset(devices[:2]), 1.0)
    assert none == []
    there[0] = True
    crew, more = next_crew(crew, fleet, 3, frozenset(), 2.0)
    assert len(more) == 2
    assert len(crew.busy) == 3


@pytest.mark.parametrize("algorithm", [FedAsync(concurrency=3), FedBuff(buffer=2, concurrency=3)])
def test_never_more_than_the_concurrency_are_at_work(algorithm: Algorithm[Any]) -> None:
    simulation = Simulation(FLEET, Towards(), lambda job: 1.0 + job.device)
    asked = set()
    for moment in run(algorithm, simulation, *algorithm.init(vector(1.0), FLEET)):
        assert len(simulation.in_flight) + len(moment.outbox.jobs) == 3
        asked |= {job.device for job in moment.outbox.jobs}
        if moment.inbox.now > 200:
            break
    assert asked == set(range(10))


@pytest.mark.parametrize("algorithm", [FedAsync(), FedBuff(buffer=2), FedAsync(concurrency=2)])
def test_with_nobody_there_they_wait_until_somebody_comes(algorithm: Algorithm[Any]) -> None:
    fleet = replace(FLEET, online=lambda devices, now: np.full(len(devices), now >= 5.0))
    simulation = Simulation(fleet, Towards(), lambda job: 1.0, lambda now, barred: 5.0 if now < 5.0 else math.inf)
    state, outbox = algorithm.init(vector(1.0), fleet)
    assert outbox.jobs == ()
    moments = run(algorithm, simulation, state, outbox)
    assert next(moments).inbox.now == 5.0
    assert next(moments).inbox.now == 6.0


@pytest.mark.parametrize("make", [FedAsync, FedBuff])
def test_bad_numbers_are_refused(make: Any) -> None:
    with pytest.raises(InputError, match="concurrency=0"):
        make(concurrency=0)
    with pytest.raises(InputError, match="concurrency=11, but the fleet has 10 devices: ask for 10 at most"):
        make(concurrency=11).init(vector(1.0), FLEET)


@pytest.mark.parametrize("algorithm", [FedAsync(), FedBuff(buffer=1), FedAsync(concurrency=2)])
def test_who_comes_back_is_not_kept_waiting_by_a_slow_device(algorithm: Algorithm[Any]) -> None:
    fleet = replace(fleet_of(1, 1), online=lambda devices, now: (devices == 1) | (now >= 50.0))
    simulation = Simulation(fleet, Towards(), lambda job: 1000.0 if job.device else 1.0, lambda now, barred: 50.0)
    for moment in run(algorithm, simulation, *algorithm.init(vector(1.0), fleet)):
        if moment.outbox.jobs:
            break
    assert moment.inbox.now == pytest.approx(50.0, abs=1.01)
