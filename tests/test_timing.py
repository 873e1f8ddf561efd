from typing import Any

import numpy as np
import pytest
import torch

from hybridfl.errors import InputError
from hybridfl.protocol import Job, Work
from hybridfl.timing import ConstantSeconds, Pace, PaperDelays, PerDevice, Roster


def job(device: int, part: float = 1.0) -> Job:
    return Job(device, 0, torch.zeros(1), Work(5, 64, 0.1, part=part), 0.0)


def of(pace: Pace, devices: int, seed: int = 0) -> Any:
    return pace.of(Roster(np.full(devices, 10), seed=seed))


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 5), (0.9, 18), (1.0, 20)])
def test_exactly_the_share_of_the_devices_are_stragglers(share: float, count: int) -> None:
    for seed in range(10):
        assert of(PaperDelays(share), 20, seed).is_straggler.sum() == count


def test_normal_devices_take_one_second_and_stragglers_one_to_max_delay_more() -> None:
    timing = of(PaperDelays(stragglers=0.5, max_delay=10), 2000)
    assert set(timing.expected_seconds[~timing.is_straggler]) == {1.0}
    delays, counts = np.unique(timing.expected_seconds[timing.is_straggler] - 1, return_counts=True)
    assert delays.tolist() == list(range(1, 11))
    assert ((counts - 100) ** 2 / 100).sum() < 27.9  # uniform: χ² with 9 degrees of freedom, 99.9 % are below


def test_a_delay_of_at_most_one_is_one() -> None:
    assert set(of(PaperDelays(stragglers=1.0, max_delay=1), 50).expected_seconds) == {2.0}


def test_a_device_takes_its_expected_seconds_every_time() -> None:
    timing = of(PaperDelays(stragglers=0.5), 20)
    assert [timing(job(device)) for device in range(20)] == timing.expected_seconds.tolist()


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [
        (PaperDelays(stragglers=1.0, max_delay=1), 2.0),
        (ConstantSeconds(seconds=3.0), 3.0),
        (PerDevice((1.0, 1.0, 1.0, 1.0, 4.0)), 4.0),
    ],
)
def test_part_of_the_work_takes_that_part_of_the_time(pace: Pace, seconds: float) -> None:
    timing = of(pace, 5)
    assert timing(job(4)) == seconds
    assert timing(job(4, part=0.4)) == pytest.approx(0.4 * seconds)
    assert timing.expected_seconds[4] == seconds


def test_the_same_seed_gives_the_same_delays_and_another_seed_others() -> None:
    one, same, other = (of(PaperDelays(0.5), 50, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.expected_seconds, same.expected_seconds)
    assert not np.array_equal(one.expected_seconds, other.expected_seconds)
    assert not np.array_equal(one.is_straggler, other.is_straggler)


def test_who_is_a_straggler_at_a_small_share_is_one_at_a_larger_share() -> None:
    few, many = of(PaperDelays(0.2), 50), of(PaperDelays(0.6), 50)
    assert not (few.is_straggler & ~many.is_straggler).any()
    assert np.array_equal(few.expected_seconds[few.is_straggler], many.expected_seconds[few.is_straggler])


def test_devices_of_one_speed_have_no_stragglers() -> None:
    timing = of(ConstantSeconds(seconds=2.0), 3)
    assert timing.expected_seconds.tolist() == [2.0, 2.0, 2.0]
    assert timing.is_straggler.tolist() == [False, False, False]


def test_a_device_far_slower_than_the_median_is_called_a_straggler() -> None:
    timing = of(PerDevice((2.0, 1.0, 2.0, 3.0, 3.1), slow=1.5), 5)
    assert timing.is_straggler.tolist() == [False, False, False, False, True]
    assert timing.expected_seconds.tolist() == [2.0, 1.0, 2.0, 3.0, 3.1]
    assert [timing(job(device)) for device in (0, 4)] == [2.0, 3.1]


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (PaperDelays, {"stragglers": 1.1}, "stragglers=1.1"),
        (PaperDelays, {"stragglers": -0.1}, "stragglers=-0.1"),
        (PaperDelays, {"stragglers": float("nan")}, "stragglers=nan"),
        (PaperDelays, {"max_delay": 0}, "max_delay=0"),
        (ConstantSeconds, {"seconds": 0.0}, "seconds=0.0"),
        (PerDevice, {"seconds": (1.0, 0.0)}, "Device 1 takes 0.0"),
        (PerDevice, {"seconds": (1.0, 1.0, float("nan"))}, "Device 2 takes nan"),
    ],
)
def test_refuses_what_no_device_could_take(make: type, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make(**arguments)
