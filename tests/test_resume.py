import json
import logging
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import crashes
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError
from hybridfl.experiment import save_all, simulate
from hybridfl.fleets import flaky
from hybridfl.plan import Run
from hybridfl.records import load
from hybridfl.task import Task
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays

TASK = Synthetic().build(8, 0)
PLAN = Run(TASK, HFL(local=crashes.LOCAL), flaky(), rounds=8, evaluate_every=0.5)


@pytest.mark.processes
@pytest.mark.parametrize("name", crashes.ALGORITHMS)
def test_killed_at_random_moments_a_run_leaves_what_it_would_have_left(name: str) -> None:
    """51 kills in all; `python tests/crashes.py hfl 50` does more of them."""
    kills = 2 if name == "network" else 7
    command = [sys.executable, crashes.__file__, name, str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{kills} kills" in done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {file: (folder / file).read_bytes() for file in crashes.FILES}


def played(folder: Path, plan: Run = PLAN, until: int | None = None) -> None:
    """Play a run, and break it off after so many records."""
    events = save_all([plan], [folder], "cpu", checkpoint_every=2)
    for number, _ in enumerate(events):
        if number == until:
            events.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    played(folder)
    return contents(folder)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A run broken off with two checkpoints."""
    played(tmp_path / "run", until=6)
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.json"))) == 2
    return tmp_path / "run"


def test_a_broken_run_goes_on_and_a_finished_one_is_not_run_again(broken: Path, whole: dict[str, bytes]) -> None:
    before = (broken / "records.jsonl").read_bytes()
    assert whole["records.jsonl"].startswith(before)
    played(broken)
    assert contents(broken) == whole
    assert not (broken / "checkpoints").exists()
    stamp = (broken / "records.jsonl").stat().st_mtime_ns
    (last,) = [record for _, record in save_all([PLAN], [broken], "cpu")]
    assert last == load(broken).records[-1]
    assert (broken / "records.jsonl").stat().st_mtime_ns == stamp


def test_fresh_begins_anew(broken: Path, whole: dict[str, bytes]) -> None:
    played(broken)
    (broken / "records.jsonl").write_text("mine\n")
    for _ in save_all([PLAN], [broken], "cpu", fresh=True):
        pass
    assert contents(broken) == whole


def test_simulate_goes_on_from_python(broken: Path, whole: dict[str, bytes]) -> None:
    records = simulate(
        TASK, PLAN.algorithm, PLAN.timing, rounds=8, evaluate_every=0.5, out=broken, device="cpu"
    ).records
    assert contents(broken) == whole
    assert records == load(broken).records
    again = simulate(TASK, PLAN.algorithm, PLAN.timing, rounds=8, evaluate_every=0.5, out=broken, device="cpu").records
    assert repr(again) == repr(records)


def test_without_a_checkpoint_a_run_begins_at_its_beginning(broken: Path, whole: dict[str, bytes]) -> None:
    shutil.rmtree(broken / "checkpoints")
    played(broken)
    assert contents(broken) == whole


def test_a_damaged_checkpoint_costs_one_checkpoint(
    broken: Path, whole: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    newest = max((broken / "checkpoints").glob("*.safetensors"))
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        played(broken)
    assert contents(broken) == whole
    assert newest.stem in caplog.text


def test_with_all_checkpoints_damaged_it_says_so_and_touches_nothing(broken: Path) -> None:
    for path in (broken / "checkpoints").glob("*.json"):
        path.write_bytes(path.read_bytes()[:-40])
    before = (broken / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match="checkpoints"):
        played(broken)
    assert (broken / "records.jsonl").read_bytes() == before
    for _ in save_all([PLAN], [broken], "cpu", fresh=True):
        pass


def test_a_checkpoint_of_another_run_is_refused(broken: Path, tmp_path: Path) -> None:
    other = Run(TASK, FedBuff(local=crashes.LOCAL, buffer=2), flaky(), rounds=8, evaluate_every=0.5)
    played(tmp_path / "other", other, until=5)
    shutil.rmtree(broken / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", broken / "checkpoints")
    with pytest.raises(InputError, match="another run"):
        played(broken)


def test_a_checkpoint_of_a_newer_format_is_refused(broken: Path) -> None:
    from hybridfl import checkpoints

    for path in (broken / "checkpoints").glob("*.json"):
        first, rest = path.read_bytes().split(b"\n", 1)
        header = json.loads(first) | {"format": 2, "checksum": checkpoints._checksum_of(2, rest)}
        path.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    with pytest.raises(InputError, match="newer"):
        played(broken)


@pytest.mark.parametrize("file", ["records.jsonl", "arrivals.jsonl"])
@pytest.mark.parametrize("how", ["shortened", "changed", "gone"])
def test_records_that_are_not_those_of_the_checkpoint_are_refused(broken: Path, file: str, how: str) -> None:
    path = broken / file
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:20] if how == "shortened" else content.replace(b"0", b"1", 1))
    with pytest.raises(InputError, match=f"{file}' is not what it was.*or remove the folder"):
        played(broken)


def test_what_was_written_after_the_checkpoint_is_written_again(broken: Path, whole: dict[str, bytes]) -> None:
    with (broken / "records.jsonl").open("ab") as file:
        file.write(b'{"version": 99, "half a li')
    played(broken)
    assert contents(broken) == whole


def test_another_processor_is_refused(broken: Path) -> None:
    from hybridfl.saving import _check_versions

    with pytest.raises(InputError, match="--device cuda"):
        _check_versions(PLAN.config, {}, "cpu", "cuda")


def test_other_packages_are_named(broken: Path, whole: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    from hybridfl import checkpoints

    found = checkpoints.newest(broken / "checkpoints")
    assert found is not None
    checkpoints.write(broken / "checkpoints", found.body | {"versions": {"torch": "1.0"}}, found.tensors)
    with caplog.at_level(logging.WARNING):
        played(broken)
    assert "torch 1.0 →" in caplog.text


@pytest.mark.parametrize(
    "nonsense",
    [
        {"savepoint": 5},
        {"savepoint": {"same": 3}},
        {"savepoint": {"tuple": []}},
        {"positions": None},
        {"positions": {}},
        {"positions": {"records.jsonl": {}, "arrivals.jsonl": {}}},
        {"versions": 5},
        {"wall_seconds": "long"},
    ],
)
def test_a_whole_checkpoint_that_makes_no_sense_is_one_line(broken: Path, nonsense: dict[str, Any]) -> None:
    from hybridfl import checkpoints

    found = checkpoints.newest(broken / "checkpoints")
    assert found is not None
    checkpoints.write(broken / "checkpoints", found.body | nonsense, found.tensors)
    with pytest.raises(InputError, match="makes no sense") as said:
        played(broken)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "rest", [b"{}", b"[]", b"nothing", b"[" * 100_000, b'{"body": 1, "tensors": 2}', b'{"body": {}, "tensors": {}}']
)
def test_checksummed_nonsense_is_passed_over(broken: Path, whole: dict[str, bytes], rest: bytes) -> None:
    from hybridfl import checkpoints

    path = broken / "checkpoints" / "99999999.json"
    header = {"format": 1, "checksum": checkpoints._checksum_of(1, rest + b"\n")}
    path.write_bytes(json.dumps(header).encode() + b"\n" + rest + b"\n")
    played(broken)
    assert contents(broken) == whole


def test_a_second_process_is_kept_out_of_a_folder(tmp_path: Path) -> None:
    first = save_all([PLAN], [tmp_path / "a" / "run"], "cpu")
    next(first)
    code = (
        "import sys; from pathlib import Path; from hybridfl.errors import InputError\n"
        "from hybridfl.folder_lock import locked\n"
        "try:\n    with locked([Path(p) for p in sys.argv[1:]]): print('free')\n"
        "except InputError as error: print(error)"
    )

    def tried(*folders: Path) -> str:
        command = [sys.executable, "-c", code, *map(str, folders)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    run = tmp_path / "a" / "run"
    assert "Another process is writing to" in tried(run)
    assert "Another process is writing to" in tried(run, tmp_path / "a" / "another")
    assert "Another process is writing to" in tried(run / "deeper")
    assert "Another process is writing to" in tried(run / "deeper", tmp_path / "c")
    assert tried(tmp_path / "b") == "free\n"
    first.close()
    assert tried(run) == "free\n"


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 100 kB: what the system says then is what it says when a disk is full."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_with_a_full_disk_the_run_goes_on_without_checkpoints(
    tmp_path: Path, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint with 100 devices' steps is larger than the records."""
    plan = Run(Synthetic().build(100, 0), HFL(local=crashes.LOCAL), PaperDelays(), rounds=6, evaluate_every=2.0)
    with caplog.at_level(logging.WARNING):
        for _ in save_all([plan], [tmp_path], "cpu", checkpoint_every=1):
            assert not list(tmp_path.glob("checkpoints/*.json"))
    assert caplog.text.count("Cannot write a checkpoint") == 1
    assert load(tmp_path).records[-1].version == 6
    assert (tmp_path / "finished.json").exists()


def test_with_no_room_for_records_it_stops_and_can_go_on(
    broken: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    room = (broken / "records.jsonl").stat().st_size + 100
    events = save_all([PLAN], [broken], "cpu")
    try:
        next(events)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        with pytest.raises(InputError, match=r"the run has stopped. Make room, then run the same again"):
            for _ in events:
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    played(broken)
    assert contents(broken) == whole


@pytest.mark.parametrize("file", ["records.jsonl", "arrivals.jsonl", "finished.json"])
def test_a_finished_run_whose_files_have_changed_is_refused(broken: Path, whole: dict[str, bytes], file: str) -> None:
    played(broken)
    (broken / file).write_bytes((broken / file).read_bytes() + b"{}\n")
    with pytest.raises(InputError, match=r"is not what it was when the run ended.*or remove the folder"):
        played(broken)
    for _ in save_all([PLAN], [broken], "cpu", fresh=True):
        pass
    assert contents(broken) == whole


def test_without_its_model_a_run_has_not_ended(broken: Path, whole: dict[str, bytes]) -> None:
    played(broken)
    (broken / "model.safetensors").unlink()
    played(broken)
    assert contents(broken) == whole


def test_a_full_disk_at_the_start_is_one_line(tmp_path: Path) -> None:
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(InputError, match="Make room"):
            played(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_run_that_diverges_leaves_the_same_after_an_interruption(tmp_path: Path) -> None:
    inputs = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    samples = Samples.from_devices([(own, torch.arange(3)) for own in inputs])
    torch.manual_seed(0)
    task = Task("exploding", samples, samples, nn.Linear(2, 3), l2=1.0)
    local = FullWork(epochs=1, batch_size=16, learning_rate=ConstantRate(100))
    plan = Run(task, HFL(local=local), PaperDelays(0.5, 4), seconds=5000, evaluate_every=5)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    played(whole, plan)
    played(broken, plan, until=2)
    assert list((broken / "checkpoints").glob("*.json"))
    played(broken, plan)
    assert contents(broken) == contents(whole)
    *_, before, last = load(whole).records
    assert last.diverged_at == last.version
    assert last.seconds // 5 == before.seconds // 5, "before a record was due"
