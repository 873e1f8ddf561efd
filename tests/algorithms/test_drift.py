import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fakes import answer, arrivals, fleet_of, job, vector
from hybridfl.algorithms.ad_sgd import NoCorrection
from hybridfl.algorithms.averages import Median
from hybridfl.algorithms.drift import DriftControl
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.memory import Memory
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.tasks import Synthetic
from hybridfl.timing import ConstantSeconds, PaperDelays

FLEET = fleet_of(1, 3, 4)
FREE = DriftControl(trust=math.inf)


def test_two_devices_by_hand() -> None:
    """η = 0.1, k = 2: Δ = −0.4 is c_0 = 2, Δ = 0.2 is c_1 = −1; c = ¼·2 − ¾·1 = −¼. Device 2 was not heard from."""
    updates = [answer(job(0, 0, [1.0]), -0.4, num_steps=2), answer(job(1, 0, [1.0]), 0.2, num_steps=2)]
    known = FREE.observed(None, updates)
    assert_close(known.rows, torch.tensor([[2.0], [-1.0]]))
    controls = FREE.controls(known, [1, 2, 0], vector(1.0), FLEET)
    assert_close(torch.cat(controls), vector(0.75, 0.0, -2.25))


def test_what_was_added_is_not_taken_for_the_devices_own() -> None:
    """Δ = −0.1·2·(c + d) with d = 0.5: of 1.5 the device's own are 1."""
    update = answer(replace(job(0, 0, [0.0]), drift=vector(0.5)), -0.3, num_steps=2)
    assert_close(FREE.observed(None, [update]).rows, torch.tensor([[1.0]]))


def test_a_new_answer_replaces_the_old_one_and_nothing_is_changed_in_place() -> None:
    first = FREE.observed(None, [answer(job(1, 0, [0.0]), -0.1), answer(job(0, 0, [0.0]), -0.2)])
    second = FREE.observed(first, [answer(job(0, 1, [0.0]), -0.5), answer(job(2, 1, [0.0]), -0.7)])
    assert first.rows.flatten().tolist() == pytest.approx([1.0, 2.0])
    assert second.devices.tolist() == [1, 0, 2]
    assert second.rows.flatten().tolist() == pytest.approx([1.0, 5.0, 7.0])


@pytest.mark.parametrize(("trust", "expected"), [(math.inf, [-2.25, 0.75]), (1.0, [-2.0, 0.75]), (0.5, [-1.0, 0.5])])
def test_it_is_bounded_by_the_devices_own_gradient(trust: float, expected: list[float]) -> None:
    updates = [answer(job(0, 0, [1.0]), -0.2), answer(job(1, 0, [1.0]), 0.1)]
    known = FREE.observed(None, updates)
    assert torch.cat(DriftControl(trust).controls(known, [0, 1], vector(1.0), FLEET)).tolist() == pytest.approx(
        expected
    )


def test_a_device_that_has_nothing_to_learn_is_not_pulled_anywhere() -> None:
    known = FREE.observed(None, [answer(job(0, 0, [1.0]), 0.0), answer(job(1, 0, [1.0]), 0.1)])
    assert DriftControl().controls(known, [0], vector(1.0), FLEET)[0].tolist() == [0.0]


def test_another_average_withstands_a_hostile_device() -> None:
    fleet = fleet_of(1, 1, 1)
    updates = [answer(job(device, 0, [1.0]), -0.1 * size) for device, size in enumerate((1.0, 2.0, 1e9))]
    control = DriftControl(math.inf, Median())
    known = control.observed(None, updates)
    assert torch.cat(control.controls(known, [0, 1], vector(1.0), fleet)).tolist() == pytest.approx([1.0, 0.0])


def test_hfl_sends_it_with_the_next_job() -> None:
    """Both begin at 0 with η = 0.1: Δ = −0.1 and −0.3 are c = 1 and 3; the joint one is 2, and 1 is added to each."""
    local = FullWork(learning_rate=ConstantRate(0.1))
    algorithm = HFL(Memory(NoCorrection()), local=local, drift=DriftControl())
    state, outbox = algorithm.init(vector(0.0), fleet_of(1, 1))
    assert [job.drift for job in outbox.jobs] == [vector(0.0), vector(0.0)]
    first, second = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(1.0, answer(first, -0.1), answer(second, -0.3)))
    assert_close(state.weights, vector(-0.2))
    assert_close(
        torch.stack([job.drift for job in outbox.jobs if job.drift is not None]), torch.tensor([[1.0], [-1.0]])
    )
    # Both devices' own gradients stay what they were: the control is taken out again.
    first, second = outbox.jobs
    state, outbox = algorithm.step(state, arrivals(2.0, answer(first, -0.2), answer(second, -0.2)))
    assert state.gradients is not None
    assert state.gradients.rows.flatten().tolist() == pytest.approx([1.0, 3.0])


def test_it_helps_where_devices_differ_and_most_are_slow() -> None:
    task = Synthetic(1, 1).build(30, 0)
    plain = simulate(task, HFL(), PaperDelays(), seconds=60).records[-1]
    controlled = simulate(task, HFL.drift_controlled(), PaperDelays(), seconds=60).records[-1]
    assert controlled.train_loss < 0.9 * plain.train_loss


def test_where_all_hold_the_same_it_changes_next_to_nothing() -> None:
    """One device is the fleet: c = c_i, and nothing is added."""
    task = Synthetic(1, 1).build(1, 0)
    alone = simulate(task, HFL(), ConstantSeconds(1), rounds=5).records
    controlled = simulate(task, HFL.drift_controlled(), ConstantSeconds(1), rounds=5).records
    assert [record.train_loss for record in controlled] == [record.train_loss for record in alone]
    # What a device receives is twice as long.
    assert [record.bytes_sent for record in controlled] == [2 * record.bytes_sent for record in alone]


@pytest.mark.parametrize("trust", [0.0, -1.0, math.nan])
def test_bad_numbers_are_refused(trust: float) -> None:
    with pytest.raises(InputError, match="trust="):
        DriftControl(trust)
