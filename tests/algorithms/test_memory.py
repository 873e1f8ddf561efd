from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from fakes import answer, fleet_of, job, vector
from hybridfl.algorithms.ad_sgd import Correction, Diagonal, MeanRankOne, NoCorrection, RankOne, Secant
from hybridfl.algorithms.averages import ClippedMean, Median
from hybridfl.algorithms.memory import Memory, Remembered
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet, Update

FLEET = fleet_of(1, 3)
UNTIMED = settings(deadline=None)


def test_two_devices_by_hand() -> None:
    """Device 0: fresh, g = 2. Device 1: two versions old, η = 0.2, Δ = 0.3, so g = −1.5; d = 0.2, g·d = −0.3 → −0.2."""
    fresh = answer(job(0, version=5, base=[1.0], rate=0.1), -0.2)
    late = answer(job(1, version=3, base=[0.8], rate=0.2), 0.3)
    weights, _ = Memory(RankOne(0.2)).close(None, vector(1.0), 5, 0.1, [fresh, late], FLEET)
    # 1 − 0.1·(¼·2 + ¾·(1 − 0.2)·(−1.5)) = 1 − 0.1·(0.5 − 0.9)
    assert_close(weights, vector(1.04))


def test_normalised_what_one_loses_all_get() -> None:
    """As above: shares ¼·1 and ¾·0.8 become 0.25/0.85 and 0.6/0.85."""
    fresh = answer(job(0, version=5, base=[1.0], rate=0.1), -0.2)
    late = answer(job(1, version=3, base=[0.8], rate=0.2), 0.3)
    memory = Memory(RankOne(0.2), normalised=True)
    weights, _ = memory.close(None, vector(1.0), 5, 0.1, [fresh, late], FLEET)
    assert_close(weights, vector(1.0 - 0.1 * (0.25 * 2 + 0.6 * -1.5) / 0.85))


def test_normalised_where_all_is_damped_nothing_explodes() -> None:
    late = answer(job(0, version=0, base=[0.0], rate=0.1), 1.0)
    weights, _ = Memory(Secant(), normalised=True).close(None, vector(0.5), 3, 0.1, [late], fleet_of(1))
    assert_close(weights, vector(0.5))


def test_a_device_not_heard_from_is_remembered_and_corrected_anew() -> None:
    memory = Memory(RankOne(0.2))
    first = [answer(job(0, 0, [1.0], rate=0.1), -0.2), answer(job(1, 0, [1.0], rate=0.1), 0.1)]
    weights, remembered = memory.close(None, vector(1.0), 0, 0.1, first, FLEET)
    assert_close(weights, vector(1.0 + 0.25 * -0.2 + 0.75 * 0.1))  # 1.025

    weights, remembered = memory.close(
        remembered, vector(1.025), 1, 0.05, [answer(job(0, 1, [1.025], rate=0.05), -0.1)], FLEET
    )
    # Device 1: g = −1, d = 0.025, s = −0.025, η_t = 0.05: ¾·0.05·0.975·1; device 0: fresh, ¼·(−0.1)
    assert_close(weights, vector(1.025 - 0.025 + 0.75 * 0.05 * 0.975))
    assert remembered.devices.tolist() == [0, 1]
    assert remembered.versions.tolist() == [1, 0]


def test_shares_are_over_the_devices_heard_from() -> None:
    weights, _ = Memory(NoCorrection()).close(None, vector(0.0), 0, 0.1, [answer(job(1, 0, [0.0]), 0.4)], FLEET)
    assert_close(weights, vector(0.4))


def test_a_new_answer_replaces_the_old_one() -> None:
    memory = Memory(NoCorrection())
    _, remembered = memory.close(None, vector(0.0), 0, 0.1, [answer(job(1, 0, [0.0]), 0.4)], FLEET)
    weights, remembered = memory.close(
        remembered, vector(0.0), 1, 0.1, [answer(job(0, 1, [0.0]), 1.0), answer(job(1, 1, [0.0]), -0.4)], FLEET
    )
    assert_close(weights, vector(0.25 * 1.0 + 0.75 * -0.4))
    assert remembered.devices.tolist() == [1, 0]
    assert len(remembered.deltas) == 2


def test_what_was_remembered_is_not_changed_in_place() -> None:
    memory = Memory(RankOne(0.3))
    _, before = memory.close(None, vector(0.0), 0, 0.1, [answer(job(0, 0, [0.0]), 0.4)], FLEET)
    memory.close(before, vector(0.4), 1, 0.1, [answer(job(0, 1, [0.4]), 0.7)], FLEET)
    assert_close(before.deltas, torch.tensor([[0.4]]))
    assert before.versions.tolist() == [0]


def test_old_models_are_kept_only_for_a_correction_that_needs_them() -> None:
    update = answer(job(0, 0, [2.0]), 0.4)
    assert Memory(RankOne(0.3)).close(None, vector(2.0), 0, 0.1, [update], FLEET)[1].bases is None
    assert Memory(Diagonal(0.3)).close(None, vector(2.0), 0, 0.1, [update], FLEET)[1].bases is not None


def test_diagonal_memory_uses_the_old_model() -> None:
    """g = (−4, 0), η = 0.1, d = (0.05, 1): g⊙d = (−0.2, 0), so Δ̃ = 0.8·(0.4, 0)."""
    update = answer(job(0, 0, [1.0, 1.0]), 0.4, 0.0)
    weights, _ = Memory(Diagonal(0.3)).close(None, vector(1.05, 2.0), 1, 0.1, [update], FLEET)
    assert_close(weights, vector(1.05 + 0.32, 2.0))


@pytest.mark.parametrize("trust", [0.0, 0.3, 1.0])
def test_the_correction_changes_the_step_by_at_most_trust(trust: float) -> None:
    generator = torch.Generator().manual_seed(1)
    now = torch.randn(6, generator=generator)
    update = answer(
        job(0, 0, torch.randn(6, generator=generator).tolist()), *torch.randn(6, generator=generator).tolist()
    )
    plain, _ = Memory(NoCorrection()).close(None, now, 3, 0.1, [update], FLEET)
    for correction in (RankOne(trust), Secant(trust=trust)):
        corrected, _ = Memory(correction).close(None, now, 3, 0.1, [update], FLEET)
        assert (corrected - plain).norm() <= trust * (plain - now).norm() * (1 + 1e-5)


def steps(version: int, **deltas: float) -> list[Update]:
    """`d3=0.5`: device 3 answers version `version`, whose weights are 0, with a step of 0.5."""
    return [answer(job(int(name[1:]), version, [0.0]), delta) for name, delta in deltas.items()]


def closed(memory: Memory, remembered: Remembered | None, updates: Sequence[Update]) -> tuple[float, Remembered]:
    """The step from weights of 0, of six devices with as much data each."""
    weights, remembered = memory.close(remembered, vector(0.0), 9, 0.1, updates, fleet_of(1, 1, 1, 1, 1, 1))
    return float(weights), remembered


def test_another_average_sees_the_corrected_steps() -> None:
    """Devices 0 to 2 are fresh; 3 stands for g̃ = (1 + clip(g·d, ±0.5))·g, with g = −4, d = 0.1 so Δ̃ = 0.6·0.4 = 0.24."""
    updates = [answer(job(device, 9, [0.1]), delta) for device, delta in ((0, 0.1), (1, 0.3), (2, 7.0))]
    late = answer(job(3, 8, [0.0]), 0.4)
    memory, fleet = Memory(RankOne(0.5), Median()), fleet_of(1, 1, 1, 1)
    weights, _ = memory.close(None, vector(0.1), 9, 0.1, [*updates, late], fleet)
    assert_close(weights, vector(0.1 + (0.24 + 0.3) / 2))


def test_a_rate_that_has_fallen_shortens_old_steps_before_they_are_compared() -> None:
    """η_t/η_i = ½ for device 1: steps of 0.2 and 0.4, so the median is 0.3, and 0.4 becomes 0.3."""
    updates = [answer(job(0, 9, [0.0], rate=0.1), 0.2), answer(job(1, 3, [0.0], rate=0.2), 0.8)]
    memory = Memory(NoCorrection(), ClippedMean(1.0))
    weights, _ = memory.close(None, vector(0.0), 9, 0.1, updates, fleet_of(1, 1))
    assert_close(weights, vector(0.25))


def test_whose_update_began_from_the_oldest_model_makes_room() -> None:
    memory = Memory(NoCorrection(), most=2)
    step, first = closed(memory, None, steps(2, d0=1.0) + steps(1, d1=2.0))
    assert step == 1.5
    step, second = closed(memory, first, steps(3, d2=3.0))
    assert step == 2.0  # of devices 0 and 2
    assert second.devices.tolist() == [0, 2]
    assert first.devices.tolist() == [0, 1]
    assert (memory.forgotten(memory.start()), memory.forgotten(first), memory.forgotten(second)) == (0, 0, 1)


def test_of_equals_the_higher_id_makes_room() -> None:
    memory = Memory(NoCorrection(), most=3)
    _, remembered = closed(memory, None, steps(1, d1=0.0, d4=0.0, d2=0.0))
    _, remembered = closed(memory, remembered, steps(2, d0=0.0, d5=0.0))
    assert sorted(remembered.devices.tolist()) == [0, 1, 5]


def test_who_answered_in_this_round_does_not_make_room() -> None:
    memory = Memory(NoCorrection(), most=2)
    _, remembered = closed(memory, None, steps(5, d0=1.0, d1=1.0))
    step, remembered = closed(memory, remembered, steps(3, d2=4.0))
    assert step == 2.5
    assert sorted(remembered.devices.tolist()) == [0, 2]
    _, remembered = closed(memory, remembered, steps(4, d3=0.0))
    assert sorted(remembered.devices.tolist()) == [0, 3]


def test_if_too_many_answer_all_of_them_count_and_the_newest_are_kept() -> None:
    memory = Memory(NoCorrection(), most=2)
    _, remembered = closed(memory, None, steps(1, d0=100.0, d1=100.0))
    step, remembered = closed(memory, remembered, steps(4, d2=1.0, d5=2.0) + steps(6, d0=3.0) + steps(4, d3=6.0))
    assert step == 3.0
    assert remembered.devices.tolist() == [0, 2]
    assert memory.forgotten(remembered) == 3  # 1, 3 and 5
    step, _ = closed(memory, remembered, steps(7, d4=5.0))
    assert step == 4.0


@st.composite
def rounds(draw: st.DrawFn) -> list[dict[int, tuple[int, float]]]:
    """What arrives in each round: device → (version it was sent, step), in any order."""
    arrivals = st.dictionaries(st.integers(0, 9), st.floats(-1, 1, width=16), min_size=1, max_size=10)
    return [
        {device: (draw(st.integers(0, version)), step) for device, step in draw(arrivals).items()}
        for version in range(draw(st.integers(1, 8)))
    ]


@UNTIMED
@given(rounds(), st.integers(1, 12) | st.none())
def test_a_memory_is_a_dictionary_with_the_stalest_thrown_out(
    history: list[dict[int, tuple[int, float]]], most: int | None
) -> None:
    memory, fleet = Memory(NoCorrection(), most=most), fleet_of(*range(1, 11))
    remembered, known, forgotten = None, dict[int, tuple[int, float]](), 0
    for version, arrived in enumerate(history):
        updates = [answer(job(device, base, [0.0]), step) for device, (base, step) in arrived.items()]
        weights, remembered = memory.close(remembered, vector(0.0), version, 0.1, updates, fleet)

        forgetting = [device for device in known if device not in arrived]
        forgetting.sort(key=lambda device: (known[device][0], -device))
        known |= arrived
        while most is not None and len(known) > most and forgetting:
            del known[forgetting.pop(0)]
            forgotten += 1
        samples = sum(device + 1 for device in known)
        assert_close(weights, vector(sum((device + 1) * step for device, (_, step) in known.items()) / samples))
        while most is not None and len(known) > most:
            del known[min(known, key=lambda device: (known[device][0], -device))]
            forgotten += 1

        kept = zip(remembered.versions.tolist(), remembered.deltas[:, 0].tolist(), strict=True)
        assert dict(zip(remembered.devices.tolist(), kept, strict=True)) == known
        assert memory.forgotten(remembered) == forgotten


def random_rounds(count: int, devices: int, size: int, arrivals: int) -> list[list[Update]]:
    """Round t's answers to any of the versions 0..t; the model is somewhere else at each."""
    draw = np.random.default_rng(3)
    models = draw.normal(size=(count, size)).tolist()

    def one(device: int, base: int) -> Update:
        work = job(device, base, models[base], rate=0.1 / (1 + base))
        return answer(work, *draw.normal(0.0, 1e-3, size).tolist(), num_steps=3)

    return [
        [one(int(device), int(draw.integers(0, version + 1))) for device in draw.permutation(devices)[:arrivals]]
        for version in range(count)
    ]


def played(memory: Memory, history: list[list[Update]], fleet: Fleet) -> tuple[list[torch.Tensor], Remembered]:
    """The weights after each round."""
    weights, remembered, seen = history[0][0].job.weights, None, []
    for version, updates in enumerate(history):
        weights, remembered = memory.close(remembered, weights, version, 0.1 / (1 + version), updates, fleet)
        seen.append(weights)
    assert remembered is not None
    return seen, remembered


CORRECTIONS = [NoCorrection(), Secant(), RankOne(0.3), MeanRankOne(), Diagonal(0.3)]


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_room_for_all_is_as_good_as_no_bound_to_the_last_bit(correction: Correction) -> None:
    history, fleet = random_rounds(6, 20, 30, 7), fleet_of(*range(1, 21))
    plain, _ = played(Memory(correction), history, fleet)
    bounded, remembered = played(Memory(correction, most=20), history, fleet)
    assert torch.equal(torch.stack(plain), torch.stack(bounded))
    assert remembered.forgotten == 0


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("most", [None, 3, 12])
def test_an_old_memory_can_be_gone_on_from_again(most: int | None, storage: str) -> None:
    history, fleet = random_rounds(6, 20, 30, 7), fleet_of(*range(1, 21))
    memory = Memory(Diagonal(), most=most, storage=storage)
    weights, early = played(memory, history[:3], fleet)
    once, _ = memory.close(early, weights[-1], 3, 0.1, history[3], fleet)
    twice, _ = memory.close(early, weights[-1], 3, 0.1, history[3], fleet)
    assert torch.equal(once, twice)
    assert len(early.devices) == len(set(early.devices.tolist())) <= (most or 20)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_float16_is_close_to_float32(correction: Correction) -> None:
    """A step of 2⁻¹¹ relative error in each number, and with it the correction."""
    history, fleet = random_rounds(6, 20, 300, 7), fleet_of(*range(1, 21))
    exact, _ = played(Memory(correction), history, fleet)
    rounded, remembered = played(Memory(correction, storage="float16"), history, fleet)
    assert remembered.deltas.dtype == torch.float16
    start = history[0][0].job.weights
    for one, other in zip(exact, rounded, strict=True):
        assert (one - other).norm() <= 3e-3 * (one - start).norm()


def test_float16_by_hand() -> None:
    """The largest number becomes 2¹⁵; 1.0002·2⁻³ lies between two numbers of float16, the nearer of which is 2⁻³."""
    update = answer(job(0, 8, [0.0, 0.0, 2.0]), 8.0, 1.0002, -4.0)
    memory = Memory(NoCorrection(), storage="float16")
    weights, remembered = memory.close(None, vector(0.0, 0.0, 0.0), 9, 0.1, [update], FLEET)
    assert remembered.units is not None
    assert remembered.units.tolist() == [8.0 / 2**15]
    assert remembered.deltas.tolist() == [[2.0**15, 2.0**12, -(2.0**14)]]
    assert remembered.squares.tolist() == [64.0 + 1.0 + 16.0]
    assert remembered.offsets.tolist() == [-8.0]
    assert weights.tolist() == [8.0, 1.0, -4.0]


@UNTIMED
@given(st.integers(-120, 120), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=5))
def test_float16_holds_steps_of_any_length(exponent: int, step: list[float]) -> None:
    """Float16 by itself ends at 6e−8 and at 65504."""
    delta = 2.0**exponent * vector(*step)
    update = Update(job(0, 0, [0.0] * len(step)), delta, 1, 0.0)
    memory = Memory(NoCorrection(), storage="float16")
    weights, _ = memory.close(None, torch.zeros(len(step)), 0, 0.1, [update], FLEET)
    assert_close(weights, delta, rtol=2**-10.9, atol=float(2.0**-37 * delta.abs().max()) + 1e-38)


def test_a_model_that_has_not_moved_corrects_nothing_of_a_rounded_step() -> None:
    """Δ·d is of the step as it is kept: with Δ·w_base of the exact one, this step would be damped for no reason."""
    base = [1000.0, -1000.0]
    update = answer(job(0, 0, base), 0.33331, 0.33329)
    memory = Memory(Secant(), storage="float16")
    weights, _ = memory.close(None, vector(*base), 1, 0.1, [update], FLEET)
    assert_close(weights - vector(*base), update.delta, rtol=2e-3, atol=0)


def test_a_row_that_is_no_number_stays_one() -> None:
    update = Update(job(0, 0, [0.0, 0.0]), vector(1.0, float("nan")), 1, 0.0)
    weights, _ = Memory(NoCorrection(), storage="float16").close(None, torch.zeros(2), 0, 0.1, [update], FLEET)
    assert weights.isnan().any()


def test_what_cannot_be_set() -> None:
    with pytest.raises(
        InputError, match=r"Unknown storage 'float61'\. Did you mean 'float16'\? Known: float32, float16\."
    ):
        Memory(storage="float61")
    with pytest.raises(InputError, match="most=0"):
        Memory(most=0)
