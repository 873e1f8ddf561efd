from pathlib import Path

import torch

from hybridfl import free_memory
from hybridfl.free_memory import _of_container, free_bytes


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
