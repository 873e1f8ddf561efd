import pytest
import torch
from torch.testing import assert_close

from fakes import answer, fleet_of, job, vector
from hybridfl.algorithms.ad_sgd import Diagonal, NoCorrection, RankOne, Secant
from hybridfl.algorithms.memory import Memory

FLEET = fleet_of(1, 3)


def test_two_devices_by_hand() -> None:
    """Device 0: fresh, g = 2. Device 1: two versions old, η = 0.2, Δ = 0.3, so g = −1.5; d = 0.2, g·d = −0.3 → −0.2."""
    fresh = answer(job(0, version=5, base=[1.0], rate=0.1), -0.2)
    late = answer(job(1, version=3, base=[0.8], rate=0.2), 0.3)
    weights, _ = Memory(RankOne(0.2)).close(None, vector(1.0), 5, 0.1, [fresh, late], FLEET)
    # 1 − 0.1·(¼·2 + ¾·(1 − 0.2)·(−1.5)) = 1 − 0.1·(0.5 − 0.9)
    assert_close(weights, vector(1.04))


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
