"""One run's files, written as it happens: whatever stops it, what was recorded stays readable and it can go on.

run.json            its configuration
records.jsonl       one line an evaluation
arrivals.jsonl      one line a job's end
checkpoints/        what it goes on from, while it is under way
model.safetensors   the model it ended with: what `load_state_dict` takes
devices.jsonl       one line per device that has test samples: how those weights do on them
finished.json       that it has ended, with checksums of the others
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from hybridfl.checkpoints import write_aside
from hybridfl.errors import InputError
from hybridfl.records import (
    ARRIVALS,
    DEVICES,
    FINISHED,
    RECORDS,
    RUN,
    Arrival,
    Config,
    DeviceScore,
    Record,
    checksum_of,
    finished,
    line_of,
)
from hybridfl.seals import sealed

CHECKPOINTS = "checkpoints"
MODEL = "model.safetensors"

Position = Mapping[str, Any]
"""How long a file was, in bytes, and the checksum of all that was in it."""


class RunFolder:
    """Nothing is left open between two writes: a comparison may have hundreds of runs under way."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config
        self._arrivals, self._records = Lines(folder / ARRIVALS), Lines(folder / RECORDS)

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    @property
    def has_checkpoints(self) -> bool:
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    @property
    def is_begun(self) -> bool:
        return (self.folder / RUN).exists()

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended, and what it left is there."""
        return (self.folder / FINISHED).exists() and (self.folder / MODEL).exists()

    def announce(self) -> None:
        """Say which run this folder is for, before it begins."""
        with self._said_in_one_line():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.is_begun:
                write_aside(self.folder / RUN, sealed(self.config))

    def clear(self) -> None:
        """Back to the beginning of the run."""
        with self._said_in_one_line():
            for path in (self.folder / FINISHED, self.folder / MODEL, self.folder / DEVICES):
                path.unlink(missing_ok=True)
            write_aside(self.folder / RUN, sealed(self.config))
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for lines in self._lines:
                lines.cut(None)

    def go_on_from(self, positions: Mapping[str, Position]) -> None:
        """Forget what was written after a checkpoint: it will be written again."""
        with self._said_in_one_line():
            (self.folder / FINISHED).unlink(missing_ok=True)
            for lines in self._lines:
                lines.cut(positions[lines.path.name])

    def write(self, record: Record, arrivals: tuple[Arrival, ...]) -> None:
        with self._said_in_one_line():
            self._arrivals.add("".join(map(line_of, arrivals)))
            self._records.add(line_of(record))

    def positions(self) -> dict[str, Position]:
        """How far the files are, and that for certain: what a checkpoint builds on must be on the disk before it."""
        return {lines.path.name: lines.synced() for lines in self._lines}

    def finish(self, model: Mapping[str, Tensor], wall_seconds: float, devices: Sequence[DeviceScore] = ()) -> None:
        """The run has ended: keep its model and what it does for each device, and no checkpoints."""
        with self._said_in_one_line():
            if devices:
                write_aside(self.folder / DEVICES, "".join(map(line_of, devices)).encode())
            write_aside(self.folder / MODEL, save(dict(model)))
            fixed = {name: {"checksum": checksum_of(self.folder / name)} for name in (DEVICES, MODEL, RUN)}
            said = {**self.positions(), **fixed, "wall_seconds": round(wall_seconds, 3)}
            write_aside(self.folder / FINISHED, sealed(said))
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def read_model(self, model: nn.Module) -> nn.Module:
        """A copy of the task's `model` as it was when the run ended, in eval mode."""
        try:
            saved = load(self._model())
        except SafetensorError as error:
            raise InputError(f"'{self.folder / MODEL}' cannot be read ({error}): run again with fresh=True.") from None
        copied = copy.deepcopy(model)
        lacking = _lacking(copied, saved)
        if lacking:
            raise InputError(f"'{self.folder / MODEL}' has no parameter '{lacking[0]}': run again with fresh=True.")
        try:
            copied.load_state_dict(saved, strict=False)  # earlier versions left out buffers
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise InputError(
                f"'{self.folder / MODEL}' is of another model ({reason}): run again with fresh=True."
            ) from None
        return copied.eval()

    def check_model(self) -> None:
        """Refuse a model that is not what it was when the run ended; earlier versions kept no checksum of it."""
        self._model()

    def _model(self) -> bytes:
        path = self.folder / MODEL
        try:
            content = path.read_bytes()
            checksum = finished(self.folder)[MODEL]["checksum"] if (self.folder / FINISHED).exists() else None
        except KeyError:
            return content
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"'{path}' cannot be read ({error}): run again with fresh=True.") from None
        if checksum not in (None, _hash(content).hexdigest()):
            raise InputError(
                f"'{path}' is not what it was when the run ended: put it back, or run again with fresh=True (--fresh)."
            )
        return content

    @contextmanager
    def _said_in_one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"Cannot write to '{self.folder}' ({error.strerror}): the run has stopped. Make room, then run the same again: "
                "it goes on from its last checkpoint."
            ) from None

    @property
    def _lines(self) -> tuple[Lines, Lines]:
        return self._arrivals, self._records


class Lines:
    """A file that grows line by line, and knows the checksum of all that is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = 0
        self._checksum = _hash()

    def add(self, text: str) -> None:
        data = text.encode()
        with self.path.open("ab") as file:
            file.write(data)
        self._bytes += len(data)
        self._checksum.update(data)

    def cut(self, position: Position | None) -> None:
        """Back to an earlier position, or to nothing."""
        kept = b""
        if position is not None:
            kept = self.path.read_bytes()[: position["bytes"]] if self.path.exists() else b""
            if len(kept) != position["bytes"] or _hash(kept).hexdigest() != position["checksum"]:
                raise InputError(
                    f"'{self.path}' is not what it was when the checkpoint was written, so the run cannot go on from it: "
                    "put the file back, or remove the folder and begin again."
                )
        with self.path.open("ab") as file:
            file.truncate(len(kept))
        self._bytes, self._checksum = len(kept), _hash(kept)

    def synced(self) -> Position:
        """Where it ends, once that is on the disk."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())
        return {"bytes": self._bytes, "checksum": self._checksum.hexdigest()}


def _lacking(model: nn.Module, saved: Mapping[str, Tensor]) -> list[str]:
    """Parameters that are saved under none of their names: one that is shared has several."""
    there = {id(each) for name, each in model.named_parameters(remove_duplicate=False) if name in saved}
    return [name for name, each in model.named_parameters() if id(each) not in there]


def _hash(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=16)
