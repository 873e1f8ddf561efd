"""One changed byte in any file of a run's folder: an error of one line, or the very same numbers."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.local_work import FullWork
from hybridfl.errors import InputError
from hybridfl.experiment import Result, save_all, simulate
from hybridfl.plan import Run
from hybridfl.records import load
from hybridfl.resuming import planned
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays
from hybridfl.vectors import flatten

TASK = Synthetic(1, 1).build(3, seed=0)
ALGORITHM, TIMING = FedAsync(local=FullWork(epochs=1)), PaperDelays()
ROUNDS = 4
FLIPS = 20

Outcome = tuple[str, str, bytes]


def outcome(result: Result) -> Outcome:
    return repr(result.records), repr((result.arrivals, result.devices)), flatten(result.model).numpy().tobytes()


def called_again(folder: Path) -> Outcome:
    """As from Python, which knows what the run is meant to be."""
    return outcome(simulate(TASK, ALGORITHM, TIMING, rounds=ROUNDS, out=folder, checkpoint_every=1))


def resumed(folder: Path) -> Outcome:
    """As on the command line, which goes by the folder alone."""
    ((path, plan),) = planned(folder).items()
    for _ in save_all([plan], [path]):
        pass
    saved = load(folder)
    return repr(saved.records), repr((saved.arrivals, saved.devices)), (folder / "model.safetensors").read_bytes()


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


def finished(folder: Path) -> None:
    called_again(folder)


def interrupted(folder: Path, checkpoint_every: int | None) -> None:
    plan = Run(TASK, ALGORITHM, TIMING, rounds=ROUNDS)
    records = save_all([plan], [folder], checkpoint_every=checkpoint_every)
    list(itertools.islice(records, 3))
    records.close()


@pytest.mark.parametrize(
    "left",
    [finished, lambda folder: interrupted(folder, None), lambda folder: interrupted(folder, 1)],
    ids=["finished", "no checkpoint", "checkpoint"],
)
@pytest.mark.parametrize("again", [called_again, resumed])
def test_no_changed_byte_is_another_number_in_silence(
    tmp_path: Path, left: Callable[[Path], None], again: Callable[[Path], Outcome]
) -> None:
    left(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "first")
    expected = again(tmp_path / "first")
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file())
    files = [path for path in files if (tmp_path / "whole" / path).stat().st_size]
    assert len(files) >= 3
    draw = random.Random(0)
    refused = dict.fromkeys(map(str, files), 0)
    for path, attempt in itertools.product(files, range(FLIPS)):
        folder = tmp_path / "again"
        shutil.copytree(tmp_path / "whole", folder)
        content = bytearray((folder / path).read_bytes())
        content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
        (folder / path).write_bytes(content)
        try:
            assert again(folder) == expected, (path, attempt)
        except InputError as error:
            one_line(error)
            refused[str(path)] += 1
        shutil.rmtree(folder)
    if left is finished:
        assert refused["model.safetensors"] == FLIPS, "46 of 46 went unnoticed once"
        assert refused["records.jsonl"] == refused["arrivals.jsonl"] == FLIPS
    assert refused["run.json"] > FLIPS / 2 or again is called_again


def test_an_edited_configuration_of_a_run_without_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    interrupted(tmp_path, None)
    said = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(said | {"rounds": ROUNDS + 1}))
    with pytest.raises(InputError, match=r"run\.json' is not what it was when the run began: put it back, or remove"):
        planned(tmp_path)


def test_a_configuration_without_a_checksum_is_read_as_before(tmp_path: Path) -> None:
    interrupted(tmp_path, None)
    said = json.loads((tmp_path / "run.json").read_text())
    del said["checksum"]
    (tmp_path / "run.json").write_text(json.dumps(said))
    resumed(tmp_path)


def test_a_finished_run_of_an_earlier_version_says_nothing_of_its_model(tmp_path: Path) -> None:
    first = called_again(tmp_path)
    said = json.loads((tmp_path / "finished.json").read_text())
    del said["checksum"], said["model.safetensors"]
    (tmp_path / "finished.json").write_text(json.dumps(said))
    assert called_again(tmp_path) == first
