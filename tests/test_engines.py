"""What is said where the fast engine is missing."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from hybridfl import engines
from hybridfl.algorithms.hfl import HFL
from hybridfl.engines import CPU, warn_if_slow
from hybridfl.experiment import simulate
from hybridfl.task import Task
from hybridfl.tasks import Synthetic
from hybridfl.timing import ConstantSeconds

REMEDY = "pip install 'hybridfl[fast]'"


def task(model: nn.Module) -> Task:
    samples = (torch.randn(8, 3), torch.arange(8) % 2)
    return Task.from_devices([samples, samples], model)


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "numba" else find_spec(name))
    engines._warn_without_numba.cache_clear()
    yield
    engines._warn_without_numba.cache_clear()


@pytest.mark.usefixtures("no_numba")
def test_without_numba_a_process_says_once_what_would_be_faster(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for seed in (0, 1):
            simulate(Synthetic().build(2, seed), HFL(), ConstantSeconds(1), rounds=1, seed=seed, device="cpu")
    assert [REMEDY in message for message in caplog.messages] == [True]


@pytest.mark.usefixtures("no_numba")
@pytest.mark.parametrize(
    ("model", "place"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), CPU),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.device("cuda")),
    ],
)
def test_where_numba_would_not_help_nothing_is_said(
    model: nn.Module, place: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_slow(task(model), place)
    assert caplog.messages == []


def test_with_numba_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_slow(task(nn.Linear(3, 2)), CPU)
        warn_if_slow(task(nn.Sequential(nn.Linear(3, 2))), CPU)
    assert caplog.messages == []


def test_on_the_command_line_it_is_one_line_on_standard_error(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['numba'] = None; sys.argv = ['hybridfl', 'compare', '--devices', '3', '--rounds', '1', "
        "'--epochs', '1', '--seeds', '2', '--algorithms', 'hfl,fedasync', '--out', sys.argv[1], '--quiet']; "
        "from hybridfl.cli import main; main()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count(REMEDY) == 1
    assert done.stderr.count("\n") == 1
