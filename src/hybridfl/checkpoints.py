"""Checkpoints on disk: a crash at any instant, a full disk or a flipped bit costs one checkpoint at most, never a wrong run.

A checkpoint is two files, `00000042.safetensors` and `00000042.json`. The second makes it count: it is written last and
has the size and checksum of the first. Its first line is `{"format": 1, "checksum": ...}`, a checksum of the format's number
and of all that follows the line. That line is the same in all formats to come, so it is known whether a checkpoint is
damaged or newer than this code: a header whose checksum does not hold says nothing, not even which format it has.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from hybridfl.errors import InputError

FORMAT = 1
_ASIDE = ".new"
_OURS = re.compile(rf"(\d{{8,}})(\.json|\.safetensors)({re.escape(_ASIDE)})?")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint that was read."""

    number: int
    body: dict[str, Any]
    tensors: dict[str, Tensor]
    skipped: tuple[str, ...]
    """Newer ones that are damaged, and how."""


class CheckpointNotWritten(OSError):  # noqa: N818 - whoever catches it reads what happened
    """The disk is full, or fails. All earlier checkpoints are as they were."""


class _Damaged(Exception):  # noqa: N818 - likewise
    """A checkpoint is not what was written."""


def write(folder: Path, body: Mapping[str, Any], tensors: dict[str, Tensor], good: int | None = None) -> int:
    """Write a checkpoint, delete all but this and the last good one before it, and return its number.

    `body` is JSON; what it has under "run" is what `newest` compares. `good`: the checkpoint this process wrote or read
    last; without it, the last good one is found by reading.
    """
    begun: list[Path] = []
    try:
        _make_folder(folder)
        numbers = _numbers(folder)
        before = good if good in numbers else _last_good(folder, numbers)
        _remove_leftovers(folder, numbers)
        number = max(numbers, default=0) + 1
        begun = [_json(folder, number), _safetensors(folder, number)]
        content = safetensors.torch.save(tensors)
        write_aside(_safetensors(folder, number), content)
        of_tensors = {"file": _safetensors(folder, number).name, "size": len(content), "checksum": _checksum(content)}
        rest = json.dumps({"body": dict(body), "tensors": of_tensors}, allow_nan=False).encode() + b"\n"
        header = json.dumps({"format": FORMAT, "checksum": _checksum_of(FORMAT, rest)}).encode() + b"\n"
        write_aside(_json(folder, number), header + rest)
    except BaseException as error:
        _remove(begun)
        if not isinstance(error, OSError):
            raise
        what = f"No checkpoint was written ({error.strerror or error}), the last one is as it was"
        raise CheckpointNotWritten(error.errno, what, str(folder)) from error
    # The checkpoint counts now. What cannot be deleted today is deleted with the next one.
    _remove([path for old in numbers if old != before for path in (_json(folder, old), _safetensors(folder, old))])
    return number


def newest(folder: Path, run: str | None = None) -> Loaded | None:
    """The last checkpoint that is good; None if there never was one.

    Damaged ones are passed over, and `skipped` says so. One that is whole but of a newer format, or of another `run`, is an
    error: an older one would not be what the user means.
    """
    try:
        numbers = _numbers(folder)
    except OSError as error:
        raise InputError(f"Cannot read the checkpoints in '{folder}' ({error.strerror}): make it readable.") from None
    skipped: list[str] = []
    for number in reversed(numbers):
        try:
            body, content = _read(folder, number, run)
            return Loaded(number, body, _tensors(content), tuple(skipped))
        except _Damaged as damage:
            skipped.append(f"{_json(folder, number).name} {damage}")
    if skipped:
        raise InputError(
            f"No checkpoint in '{folder}' is good ({'; '.join(skipped)}): restore it from a copy, or remove it to start anew."
        )
    return None


@contextmanager
def making_sense(folder: Path) -> Iterator[None]:
    """Raise one line instead of a traceback if a checkpoint's checksum holds but its content makes no sense."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"The last checkpoint in '{folder}' makes no sense ({type(error).__name__}: {str(error)[:80]}): restore it from a "
            "copy, or remove it to start anew."
        ) from None


def write_aside(path: Path, content: bytes) -> None:
    """Write a whole file so that, whatever happens, it is either the old one or the new one, on the disk and not in a cache."""
    aside = path.with_name(path.name + _ASIDE)
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        _remove([aside])
        raise
    _sync_folder(path.parent)


def _read(folder: Path, number: int, run: str | None) -> tuple[dict[str, Any], bytes]:
    """The body, and the content of the tensors' file, once both are known to be what was written."""
    try:
        saved = json.loads(_checked(_json(folder, number)))
        body, of_tensors = dict(saved["body"]), dict(saved["tensors"])
        name, size, checksum = (of_tensors[each] for each in ("file", "size", "checksum"))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _Damaged("makes no sense") from None
    if run is not None and body.get("run") != run:
        raise InputError(
            f"The checkpoints in '{folder}' are of another run: choose another folder, or remove this one."
        )
    path = _safetensors(folder, number)
    if name != path.name:
        raise _Damaged(f"belongs to {name}")
    content = _bytes(path)
    if len(content) != size or _checksum(content) != checksum:
        raise _Damaged(f"has a {path.name} of other content")
    return body, content


def _checked(path: Path) -> bytes:
    """All but the header, once it is known to be whole and of this format."""
    header, _, rest = _bytes(path).partition(b"\n")
    try:
        said = json.loads(header)
        number, checksum = said["format"], said["checksum"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _Damaged("has no header") from None
    if checksum != _checksum_of(number, rest):
        raise _Damaged("does not have its checksum")
    if number != FORMAT:
        raise InputError(
            f"'{path}' was written by a newer hybridfl (format {number}; this one reads {FORMAT}): upgrade it, or choose "
            "another folder."
        )
    return rest


def _tensors(content: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise _Damaged(f"has tensors that cannot be read ({error})") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _Damaged(f"cannot be read ({path.name}: {error.strerror})") from None


def _last_good(folder: Path, numbers: list[int]) -> int | None:
    for number in reversed(numbers):
        with suppress(_Damaged):
            _read(folder, number, run=None)
            return number
    return None


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def _checksum_of(format_number: object, rest: bytes) -> str:
    return _checksum(f"{format_number!r}\n".encode() + rest)


def _numbers(folder: Path) -> list[int]:
    """Of the checkpoints there are, good or not, in their order."""
    return sorted(int(match[1]) for _, match in _ours(folder) if match[2] == ".json" and not match[3])


def _ours(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """The files that are named as ours are."""
    try:
        found = [(path, _OURS.fullmatch(path.name)) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return [(path, match) for path, match in found if match]


def _json(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _safetensors(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.safetensors"


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        _sync_folder(folder.parent)


def _remove_leftovers(folder: Path, numbers: list[int]) -> None:
    """What crashes left, before anything is written: on a full disk it may be what fills it."""
    for path, match in _ours(folder):
        if match[3] or int(match[1]) not in numbers:
            path.unlink(missing_ok=True)


def _remove(paths: list[Path]) -> None:
    """In this order: a checkpoint's .json first, so that it never lacks its tensors."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A file's new name is on the disk only when its folder is. Some file systems cannot do it, Windows need not."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)
