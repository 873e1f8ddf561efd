"""Records as TensorBoard's events: of runs that have ended, or are under way. Reads result folders only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from hybridfl.comparison import slug
from hybridfl.errors import InputError
from hybridfl.records import RUN, Record, SavedRun, files_below, load, load_all

FOLDER = "tensorboard"
MOST_LETTERS = 100
"""Of a label that names a folder."""


class Events:
    """The events of all runs in a folder, one log a run in FOLDER/tensorboard; what is there already is not written again.

    A record's step is its version. The relative time TensorBoard shows is the run's own: virtual seconds, or a deployment's.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("This needs TensorBoard: pip install 'hybridfl[tensorboard]'.") from None
        load_all(folder)  # an error, if there are no runs
        self.folder = folder / FOLDER
        self._root, self._make = folder, SummaryWriter
        self._written: dict[Path, int] = {}

    def write(self) -> int:
        """What is new since the last time; how many records that was."""
        count = 0
        for place in self._runs():
            run = load(place)
            done = self._written.get(place, 0)
            new = run.records[done:]
            if new:
                self._add(place, run, new, done)
                count += len(new)
                self._written[place] = done + len(new)
        return count

    def _runs(self) -> Iterator[Path]:
        return (path.parent for path in files_below(self._root, RUN))

    def _add(self, place: Path, run: SavedRun, records: tuple[Record, ...], done: int) -> None:
        name = place.relative_to(self._root)
        log = self.folder / (name if name != Path() else slug(run.label[:MOST_LETTERS]))
        self._check_inside(log)
        if done == 0:
            for old in log.glob("events.out.tfevents.*"):
                old.unlink()
        with self._make(str(log)) as writer:
            for record in records:
                for tag, value in _scalars(record):
                    writer.add_scalar(tag, value, record.version, walltime=record.seconds)

    def _check_inside(self, log: Path) -> None:
        """Refuse to write, and to remove what was written before, anywhere but below the folder that was given."""
        places = [each for each in (log, *log.parents) if each != self._root and each.is_relative_to(self._root)]
        for place in places:
            if place.is_symlink():
                raise InputError(
                    f"'{place}' is a link to somewhere else: remove it, and the events are written in its place."
                )


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    """`accuracy/device`, `accuracy/test`, `loss/train`, `updates/merged`, ...; what is not known is left out."""
    for field in fields(Record):
        value = getattr(record, field.name)
        if field.name not in ("version", "seconds") and math.isfinite(value):
            yield _tag(field.name), value


_NOT_OF_UPDATES = {"below_chance": "accuracy/below_chance", "diverged_at": "loss/diverged_at"}


def _tag(name: str) -> str:
    if name in _NOT_OF_UPDATES:
        return _NOT_OF_UPDATES[name]
    for end, group in (("_accuracy", "accuracy"), ("_loss", "loss"), ("_staleness", "staleness")):
        if name.endswith(end):
            return f"{group}/{name.removesuffix(end)}"
    return f"bytes/{name.removeprefix('bytes_')}" if name.startswith("bytes_") else f"updates/{name}"
