from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridfl.errors import InputError
from hybridfl.laws import Fixed, Lognormal
from hybridfl.protocol import Job, Work
from hybridfl.timing import ComputeAndLink, ConstantSeconds, Drawn, Pace, PaperDelays, PerDevice, Recorded, Roster


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


def test_drawn_seconds_are_the_devices_own() -> None:
    timing = of(Drawn(Lognormal(1.37)), 4000, seed=5)
    assert np.median(timing.expected_seconds) == pytest.approx(1.0, rel=0.1)
    assert np.std(np.log(timing.expected_seconds)) == pytest.approx(1.37, rel=0.05)
    assert timing(job(7)) == timing(job(7)) == timing.expected_seconds[7]
    # P(s > 1.5·median) = P(N > ln(1.5)/1.37) = P(N > 0.296) = 0.384
    assert timing.is_straggler.mean() == pytest.approx(0.384, abs=0.03)


def test_compute_and_link_by_hand() -> None:
    """0.01 s a sample × 200 samples × 5 epochs + 1 MB / 2 MB/s + 1 MB / 0.5 MB/s + 0.1 s = 10 + 0.5 + 2 + 0.1."""
    pace = ComputeAndLink(Fixed(0.01), Fixed(2e6), Fixed(0.5e6), latency=0.1)
    timing = pace.of(Roster(np.array([200, 20]), model_bytes=1_000_000))
    assert timing(job(0)) == pytest.approx(12.6)
    assert timing(job(1)) == pytest.approx(1.0 + 2.6)
    assert timing.expected_seconds.tolist() == pytest.approx([12.6, 3.6])
    controlled = Job(0, 0, torch.zeros(1), Work(5, 64, 0.1), 0.0, drift=torch.zeros(1))
    assert timing(controlled) == pytest.approx(timing(job(0)) + 0.5)  # 10⁶ bytes more at 2·10⁶ a second
    one_epoch = Job(0, 0, torch.zeros(1), Work(1, 64, 0.1, part=0.2), 0.0)
    assert timing(one_epoch) == pytest.approx(2.0 + 2.6), "fewer epochs; the link takes its time all the same"
    assert timing.is_straggler.tolist() == [True, False]


def test_recorded_seconds_are_replayed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("device,seconds\na,1\nb,4\na,3\n")
    timing = of(Recorded(str(tmp_path / "t.csv")), 5)
    assert timing.expected_seconds.tolist() == [2.0, 4.0, 2.0, 4.0, 2.0]
    drawn = [timing(Job(2, version, torch.zeros(1), Work(5, 64, 0.1), 0.0)) for version in range(200)]
    assert set(drawn) == {1.0, 3.0}
    assert 70 < drawn.count(1.0) < 130
    assert timing(job(3)) == 4.0
    assert timing(job(3, part=0.5)) == 2.0


def test_recorded_capacities_are_computed_with(tmp_path: Path) -> None:
    columns = "device,seconds_per_sample,bytes_per_second_up,bytes_per_second_down"
    (tmp_path / "t.csv").write_text(f"{columns}\na,0.01,500000,2000000\nb,0.1,1000000,1000000\n")
    timing = Recorded(str(tmp_path / "t.csv"), latency=0.1).of(Roster(np.array([200, 10, 20]), 1_000_000))
    assert [timing(job(device)) for device in range(3)] == pytest.approx([12.6, 5.0 + 2.1, 1.0 + 2.6])


def test_bad_latencies_are_refused() -> None:
    for make in (ComputeAndLink, lambda latency: Recorded("t.csv", latency)):
        with pytest.raises(InputError, match="latency=-1"):
            make(latency=-1.0)
