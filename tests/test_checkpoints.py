from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import fleet_of
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.checkpoints import CheckpointNotWritten, Loaded, newest, write, write_aside
from hybridfl.codec import Encoded, classes_of, decode, encode
from hybridfl.errors import InputError


def save(folder: Path, content: int, good: int | None = None, size: int = 20) -> int:
    """A checkpoint from whose parts one can tell that they belong together."""
    tensors = {"weights": torch.full((size,), float(content)), "steps": torch.tensor(content)}
    return write(folder, {"run": "mine", "content": content}, tensors, good)


def content_of(loaded: Loaded | None) -> int:
    assert loaded is not None
    content = loaded.body["content"]
    assert isinstance(content, int)
    assert loaded.body == {"run": "mine", "content": content}
    assert sorted(loaded.tensors) == ["steps", "weights"]
    assert loaded.tensors["steps"].item() == content
    assert set(loaded.tensors["weights"].tolist()) == {content}
    return content


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pair(number: int) -> list[str]:
    return [f"{number:08d}.json", f"{number:08d}.safetensors"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints: the first holds 10, the second 20."""
    folder = tmp_path / "run" / "checkpoints"
    assert (save(folder, 10), save(folder, 20)) == (1, 2)
    return folder


def damaged(path: Path, content: bytes, reason: str = "") -> None:
    """The newest checkpoint with this content in one of its files: the one before must be read, and the reason given."""
    before = path.read_bytes()
    put(path, content)
    loaded = newest(path.parent, "mine")
    assert content_of(loaded) == 10
    assert loaded is not None
    assert loaded.number == 1
    [skipped] = loaded.skipped
    assert skipped.startswith("00000002.json ")
    assert reason in skipped
    put(path, before)


def put(path: Path, content: bytes) -> None:
    """A new file: some file systems wait for the disk when one is overwritten."""
    path.unlink()
    path.write_bytes(content)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def with_header(path: Path, **changes: object) -> bytes:
    """A checkpoint of another format, whole."""
    header, rest = path.read_bytes().split(b"\n", 1)
    said = json.loads(header) | changes
    checksum = hashlib.blake2b(f"{said['format']}\n".encode() + rest, digest_size=32).hexdigest()
    return json.dumps(said | {"checksum": checksum}).encode() + b"\n" + rest


def test_where_nothing_was_written_there_is_nothing(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") is None
    (tmp_path / "00000001.safetensors").touch()
    (tmp_path / "00000001.json.new").touch()
    assert newest(tmp_path) is None


def test_the_last_one_is_read(folder: Path) -> None:
    loaded = newest(folder, "mine")
    assert content_of(loaded) == 20
    assert loaded is not None
    assert (loaded.number, loaded.skipped) == (2, ())


def test_the_last_two_are_kept_and_strangers_too(folder: Path) -> None:
    for stranger in ("notes.json", "1.json", "backup.safetensors", "00000009.txt"):
        (folder / stranger).touch()
    assert save(folder, 30) == 3
    assert save(folder, 40, good=3) == 4
    assert names(folder) == sorted([*pair(3), *pair(4), "notes.json", "1.json", "backup.safetensors", "00000009.txt"])
    assert content_of(newest(folder)) == 40


def test_leftovers_of_crashes_are_removed(folder: Path) -> None:
    for leftover in ("00000003.safetensors", "00000003.json.new", "00000007.safetensors.new", "00000001.json.new"):
        (folder / leftover).write_bytes(b"half of it")
    assert save(folder, 30) == 3
    assert names(folder) == [*pair(2), *pair(3)]


def test_a_checkpoint_is_json_and_safetensors(folder: Path) -> None:
    header, body = (json.loads(line) for line in (folder / "00000002.json").read_text().splitlines())
    tensors = (folder / "00000002.safetensors").read_bytes()
    assert header["format"] == 1
    assert body["body"] == {"run": "mine", "content": 20}
    checksum = hashlib.blake2b(tensors, digest_size=32).hexdigest()
    assert body["tensors"] == {"file": "00000002.safetensors", "size": len(tensors), "checksum": checksum}


def test_a_state_goes_to_disk_and_back(tmp_path: Path) -> None:
    algorithm, fleet = FedAsync(), fleet_of(1, 2)
    state, outbox = algorithm.init(torch.tensor([0.1, math.nan, -0.0]), fleet)
    encoded = encode([state, outbox], fleet, classes_of(algorithm))
    write(tmp_path, {"run": "mine", "tree": encoded.tree}, encoded.tensors)
    loaded = newest(tmp_path, "mine")
    assert loaded is not None
    found = decode(Encoded(loaded.body["tree"], loaded.tensors), fleet, classes_of(algorithm), torch.device("cpu"))
    assert torch.equal(found[0].weights.view(torch.int32), state.weights.view(torch.int32))
    assert all(job.weights is found[0].weights for job in found[1].jobs)
    assert found[0].fleet is fleet


def test_a_truncated_one_is_passed_over(folder: Path) -> None:
    for name in pair(2):
        content = (folder / name).read_bytes()
        for length in range(len(content)):
            damaged(folder / name, content[:length])


def test_one_with_a_flipped_bit_is_passed_over(folder: Path) -> None:
    content = (folder / "00000002.json").read_bytes()
    for bit in range(8 * len(content)):
        damaged(folder / "00000002.json", flipped(content, bit))
    content = (folder / "00000002.safetensors").read_bytes()
    for byte in range(len(content)):
        damaged(folder / "00000002.safetensors", flipped(content, 8 * byte + byte % 8), "of other content")


@pytest.mark.parametrize("name", pair(2))
def test_garbage_is_passed_over(folder: Path, name: str) -> None:
    content, of_the_other = (folder / name).read_bytes(), (folder / name.replace("2", "1")).read_bytes()
    for garbage in (content + b"\n", bytes(len(content)), b"[" * 100_000 + b"\n", b'{"format": 1}\n'):
        damaged(folder / name, garbage)
    damaged(folder / name, of_the_other, "content" if name.endswith("tensors") else "belongs to 00000001.safetensors")


@pytest.mark.parametrize("name", pair(2))
def test_one_that_cannot_be_read_is_passed_over(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    loaded = newest(folder)
    assert content_of(loaded) == 10
    assert loaded is not None
    assert loaded.skipped == (f"00000002.json cannot be read ({name}: Is a directory)",)


def test_one_without_its_tensors_is_passed_over(folder: Path) -> None:
    (folder / "00000002.safetensors").unlink()
    assert content_of(newest(folder)) == 10


def test_if_none_is_good_that_is_an_error(folder: Path) -> None:
    for name in ("00000001.json", "00000002.safetensors"):
        (folder / name).write_bytes(b"")
    with pytest.raises(
        InputError, match=r"No checkpoint in '.*checkpoints' is good \(00000002.*; 00000001.*\): .*remove"
    ):
        newest(folder)


def test_a_newer_format_is_no_damage(folder: Path) -> None:
    path = folder / "00000002.json"
    path.write_bytes(with_header(path, format=2, compressed=True))
    with pytest.raises(InputError, match=r"00000002.json' was written by a newer hybridfl \(format 2.*: upgrade it"):
        newest(folder)
    before = names(folder)
    with pytest.raises(InputError, match="newer hybridfl"):
        save(folder, 30)
    assert names(folder) == before


def test_a_damaged_header_does_not_even_say_its_format(folder: Path) -> None:
    path = folder / "00000002.json"
    whole = path.read_bytes()
    damaged(path, whole.replace(b'"format": 1', b'"format": 3'), "checksum")
    newer = with_header(path, format=2)
    damaged(path, newer[:-5] + newer[-4:], "checksum")


def test_a_checkpoint_of_another_run_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"checkpoints in '.*' are of another run: choose another folder"):
        newest(folder, "another")
    assert content_of(newest(folder)) == 20


@pytest.mark.parametrize("good", [None, 1])
def test_the_last_good_one_is_kept_not_the_damaged_one_after_it(folder: Path, good: int | None) -> None:
    (folder / "00000002.safetensors").write_bytes(b"damaged")
    assert save(folder, 30, good) == 3
    assert names(folder) == [*pair(1), *pair(3)]


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints"
    file.touch()
    with pytest.raises(InputError, match=r"'.*checkpoints' \(Not a directory\)"):
        newest(file)
    with pytest.raises(CheckpointNotWritten):
        save(file, 1)


def failing(calls: int, number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose call after so many fails."""
    left = [calls]

    def fails(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return original(*arguments)

    return fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize(
    ("function", "calls"), [("fsync", 0), ("fsync", 1), ("fsync", 2), ("fsync", 3), ("replace", 0), ("replace", 1)]
)
def test_a_disk_that_fails_costs_only_the_checkpoint_being_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, function: str, calls: int
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(os, function, failing(calls, number, getattr(os, function)))
        with pytest.raises(
            CheckpointNotWritten, match=r"No checkpoint was written .*, the last one is as it was"
        ) as caught:
            save(folder, 30)
    assert caught.value.errno == number
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert save(folder, 30) == 3
    assert content_of(newest(folder)) == 30


def test_all_is_on_the_disk_before_it_counts_and_before_anything_is_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            what = Path(f"/proc/self/fd/{arguments[0]}").readlink() if name == "fsync" else arguments[0]
            calls.append(f"{name} {Path(what).name}")
            return original(*arguments)

        return call

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    save(folder, 30)
    assert calls == [
        *("fsync 00000003.safetensors.new", "replace 00000003.safetensors.new", "fsync checkpoints"),
        *("fsync 00000003.json.new", "replace 00000003.json.new", "fsync checkpoints"),
        *("unlink 00000001.json", "unlink 00000001.safetensors"),
    ]


def test_what_cannot_be_deleted_is_no_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", failing(0, errno.EIO, os.unlink))
        assert save(folder, 30) == 3
    assert names(folder) == [*pair(1), *pair(2), *pair(3)]
    save(folder, 40)
    assert names(folder) == [*pair(3), *pair(4)]


def test_a_folder_that_cannot_be_synced_is_no_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have no such thing."""
    original = os.fsync

    def fsync(opened: int) -> None:
        if Path(f"/proc/self/fd/{opened}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        original(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    assert save(folder, 30) == 3


def test_what_is_no_json_leaves_nothing_behind(folder: Path) -> None:
    before = names(folder)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(folder, {"run": math.nan}, {"weights": torch.ones(1)})
    assert names(folder) == before


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_aside(path, b"one")
    write_aside(path, b"other")
    assert path.read_bytes() == b"other"
    assert names(tmp_path) == ["run.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full disk")
def test_a_file_survives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_aside(path, b"one")
    (tmp_path / "run.json.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_aside(path, b"other")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["run.json"]


def killed_at_random(folder: Path) -> None:
    """Whatever a killed process said it had written is there, whole; or the next one, which it did not get to say."""
    draw = random.Random(0)
    save(folder, 0)
    last = 0
    for _ in range(40):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            writes_for_ever(folder, last + 1, writing)
        os.close(writing)
        time.sleep(draw.uniform(0.001, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        last = int.from_bytes(said[-8:], "big") if said else last
        found = newest(folder, "mine")
        assert content_of(found) in (last, last + 1)
        assert found is not None
        assert found.skipped == ()
        last = content_of(found)
    assert last > 20


def writes_for_ever(folder: Path, content: int, pipe: int) -> None:
    number: int | None = None
    while True:
        number = save(folder, content, number, size=5000)
        os.write(pipe, content.to_bytes(8, "big"))
        content += 1


def killed_at_every_step(folder: Path) -> None:
    """Before and after each call that changes the disk, for the first checkpoint and for one that replaces another."""
    for content, before in [(1, None), (2, 1)]:
        for step in range(100):
            child = os.fork()
            if not child:
                dies_at(step)
                save(folder, content)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status == 0 or os.WIFSIGNALED(status)
            found = newest(folder, "mine")
            assert (content_of(found) if found else None) in (before, content)
            assert found is None or found.skipped == ()
            if status == 0:
                break
        assert step > 12
        assert content_of(found) == content
        assert not [name for name in names(folder) if name.endswith(".new")]


def dies_at(step: int) -> None:
    left = [step]

    def may_die() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def mortal(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            may_die()
            answer = original(*arguments)
            may_die()
            return answer

        return call

    os.fsync, os.replace, os.unlink = mortal(os.fsync), mortal(os.replace), mortal(os.unlink)


def full_disk(folder: Path) -> None:
    """No file may grow beyond a limit, whatever the limit: the tensors' file or the .json file stops halfway."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    good = save(folder, 1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    needed = max(len(content) for content in before.values())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(0, needed, 7):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(CheckpointNotWritten) as caught:
            save(folder, 2, good)
        assert caught.value.errno == errno.EFBIG
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (needed, hard))
    save(folder, 2, good)
    assert content_of(newest(folder)) == 2


def test_processes_that_are_killed_and_disks_that_are_full(tmp_path: Path) -> None:
    """In a process of its own, which may fork and limit itself."""
    answer = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


if __name__ == "__main__":
    for scene in (killed_at_random, killed_at_every_step, full_disk):
        scene(Path(sys.argv[1]) / scene.__name__)
