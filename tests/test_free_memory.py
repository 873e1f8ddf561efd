from pathlib import Path

import pytest
import torch

from hybridfl import free_memory
from hybridfl.algorithms.hfl import HFL
from hybridfl.comparison import Comparison
from hybridfl.errors import InputError
from hybridfl.fleet_picture import drawn_up
from hybridfl.free_memory import _of_container, check_room, free_bytes
from hybridfl.tasks import Synthetic, SyntheticCrowd, SyntheticIID, TaskRecipe
from hybridfl.timing import PaperDelays


def test_some_memory_is_free_here() -> None:
    assert 100 << 20 < free_bytes(torch.device("cpu")) < 1 << 50


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 250\n")
    assert _of_container(tmp_path) == 1000 - (700 - 250)


def test_without_a_limit_the_machines_counts(tmp_path: Path) -> None:
    assert _of_container(tmp_path / "nowhere") > 1 << 50
    (tmp_path / "memory.max").write_text("max\n")
    assert _of_container(tmp_path) > 1 << 50
    assert free_bytes(torch.device("cpu")) <= free_memory._of_machine() * 1.2


def test_more_devices_than_memory_holds_are_refused_with_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: 21_500_000_000)
    check_room("devices", 51_000, 420_000)
    with pytest.raises(InputError) as error:
        check_room("devices", 1_000_000_000, 420_000, ", or buy some")
    assert str(error.value) == (
        "devices=1,000,000,000 would need about 420 TB of memory, and 21.5 GB are free: ask for 51,000 at most, "
        "or buy some."
    )


def test_where_not_even_one_fits_no_smaller_number_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: 1e9)
    with pytest.raises(InputError, match="1 GB are free: use less data"):
        check_room("devices", 4, 32e12)


@pytest.mark.parametrize("recipe", [Synthetic(1, 1), SyntheticIID(), SyntheticCrowd()])
@pytest.mark.parametrize("devices", [10**9, 10**18])
def test_a_task_that_memory_cannot_hold_is_refused_before_it_is_made(recipe: TaskRecipe, devices: int) -> None:
    with pytest.raises(InputError, match=f"devices={devices:,} would need about "):
        recipe.build(devices=devices, seed=0)


def test_a_fleet_that_memory_cannot_hold_is_refused_before_it_is_drawn_up() -> None:
    with pytest.raises(InputError, match="devices=1,000,000,000,000 would need about 64 TB"):
        drawn_up(PaperDelays(), 10**12, 0)


def test_more_seeds_than_memory_holds_are_refused_once_it_is_known_what_one_needs() -> None:
    """Each seed's data stay until all runs have ended."""
    comparison = Comparison(Synthetic(), {"hfl": HFL()}, devices=3, seeds=range(10**9), rounds=1)
    with pytest.raises(InputError, match=r"seeds=1,000,000,000 would need about .* ask for .* at most"):
        list(comparison.runs())
