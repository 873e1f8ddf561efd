from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fakes import fleet_of
from hybridfl.algorithms.sampling import Deadline, Everyone, FirstOf, Participants, ProportionalToDelay, Uniform
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet

FLEET = fleet_of(*[1] * 10, seconds=[1.0] * 5 + [4.0] * 5)
NOBODY: frozenset[int] = frozenset()


def test_everyone_but_the_busy() -> None:
    assert Everyone().choose(FLEET, 0, frozenset({2, 3}), 0.0) == [0, 1, 4, 5, 6, 7, 8, 9]


def test_uniform_takes_everyone_equally_often() -> None:
    counts = Counter(device for number in range(2000) for device in Uniform(3).choose(FLEET, number, NOBODY, 0.0))
    assert set(counts) == set(range(10))
    assert max(abs(count - 600) for count in counts.values()) < 80  # sd = √(2000·0.3·0.7) ≈ 20


def test_proportional_takes_slow_devices_more_often() -> None:
    """One device: probability ∝ seconds, so 1/25 for the fast and 4/25 for the slow."""
    chosen = [ProportionalToDelay(1).choose(FLEET, number, NOBODY, 0.0)[0] for number in range(2000)]
    slow = sum(device >= 5 for device in chosen) / 2000
    assert slow == pytest.approx(0.8, abs=0.03)


def test_another_round_or_seed_is_another_draw() -> None:
    draws = {tuple(Uniform(4).choose(FLEET, number, NOBODY, 0.0)) for number in range(20)}
    assert len(draws) > 10
    other = fleet_of(*[1] * 10, seed=1)
    assert [Uniform(4).choose(FLEET, n, NOBODY, 0.0) for n in range(5)] != [
        Uniform(4).choose(other, n, NOBODY, 0.0) for n in range(5)
    ]


@given(
    participants=st.sampled_from([Everyone(), Uniform(4), ProportionalToDelay(4), FirstOf(2, 4), Deadline(4, 1.0)]),
    busy=st.frozensets(st.integers(0, 9)),
    number=st.integers(0, 1000),
)
def test_a_choice_is_ascending_without_repeats_and_without_the_busy(
    participants: Participants, busy: frozenset[int], number: int
) -> None:
    chosen = participants.choose(FLEET, number, busy, 0.0)
    assert chosen == sorted(set(chosen) - busy)
    wanted = 10 if isinstance(participants, Everyone) else 4
    assert len(chosen) == min(wanted, 10 - len(busy))
    assert np.all(np.array(chosen) < 10)


@pytest.mark.parametrize("participants", [Uniform(11), ProportionalToDelay(11), FirstOf(2, 11), Deadline(11)])
def test_more_participants_than_devices_is_refused(participants: Participants) -> None:
    with pytest.raises(InputError, match="11 participants a round, but the fleet has 10 devices"):
        participants.choose(FLEET, 0, NOBODY, 0.0)


@given(
    participants=st.sampled_from([Everyone(), Uniform(4), ProportionalToDelay(4), FirstOf(2, 4), Deadline(4, 1.0)]),
    busy=st.frozensets(st.integers(0, 9)),
    away=st.frozensets(st.integers(0, 9)),
    barred=st.frozensets(st.integers(0, 9)),
)
def test_only_who_is_there_and_not_barred_is_chosen(
    participants: Participants, busy: frozenset[int], away: frozenset[int], barred: frozenset[int]
) -> None:
    fleet = replace(FLEET, online=lambda devices, now: ~np.isin(devices, list(away)), barred=barred)
    chosen = participants.choose(fleet, 0, busy, 5.0)
    there = set(range(10)) - busy - away - barred
    assert set(chosen) <= there
    assert len(chosen) == min(10 if isinstance(participants, Everyone) else 4, len(there))


def test_the_fleet_is_asked_about_few_devices_however_large_it_is() -> None:
    asked = []

    def online(devices: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        asked.append(len(devices))
        return np.asarray(devices % 2 == 0)

    fleet = Fleet(np.ones(1_000_000, dtype=np.int64), np.ones(1_000_000), online=online)
    assert len(Uniform(10).choose(fleet, 0, frozenset({1, 2, 3}), 0.0)) == 10
    assert sum(asked) < 200


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="count=0"):
        Uniform(0)
    with pytest.raises(InputError, match="seconds=0"):
        Deadline(3, 0)
    with pytest.raises(InputError, match="selected=3 is below count=4"):
        FirstOf(4, 3)
