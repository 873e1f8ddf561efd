"""Recorded fleets: how long devices took, what they are capable of, when they were on.

A trace is a CSV file with a header, or a JSON file (its name ends in .json) with a list of objects with the same keys:

    device,seconds                                                            a job of that device took so long
    device,seconds_per_sample,bytes_per_second_up,bytes_per_second_down       what it is capable of, one line a device
    device,start,end                                                          it was on, in seconds since the recording began

The columns may come in any order. A device's name is any text; devices are numbered in order of first appearance.

Traces of FedScale (Lai et al. 2022, https://github.com/SymbioticLab/FedScale, benchmark/dataset/data/device_info) are
brought into these forms by `import_fedscale_capacity` and `import_fedscale_availability`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hybridfl.availability import Calendar, Intervals
from hybridfl.errors import InputError, require_positive
from hybridfl.wording import brief, harmless, is_harmless

Kind = Literal["seconds", "capacities", "intervals"]

_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "seconds": ("device", "seconds"),
    "capacities": ("device", "seconds_per_sample", "bytes_per_second_up", "bytes_per_second_down"),
    "intervals": ("device", "start", "end"),
}


@dataclass(frozen=True, eq=False)
class Capacities:
    """What each device is capable of: one number a device in every column."""

    seconds_per_sample: NDArray[np.float64]
    """To train on one sample once."""
    bytes_per_second_up: NDArray[np.float64]
    bytes_per_second_down: NDArray[np.float64]


@dataclass(frozen=True)
class RecordedAvailability:
    """Device i is on when device i mod n of a trace of n devices was, and with `repeat_every` again after so many seconds."""

    path: str
    repeat_every: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.fspath(self.path))  # a Path and its text are the same fleet
        if self.repeat_every is not None:
            require_positive("repeat_every", self.repeat_every)

    def calendar(self, devices: int, seed: int) -> Calendar:
        return self._calendar

    @cached_property
    def _calendar(self) -> Intervals:
        return Intervals(*read_intervals(self.path), self.repeat_every)


def kind_of(path: str | Path) -> Kind:
    """Which of the three layouts a trace has."""
    return _table(Path(path)).kind


def checksum(path: str | Path) -> str:
    """Tells apart traces that differ in anything."""
    return hashlib.blake2b(_content(Path(path)), digest_size=8).hexdigest()


def read_seconds(path: str | Path) -> tuple[NDArray[np.float64], ...]:
    """The seconds that jobs of each device took, in the order of the file."""
    trace = _read(Path(path), "seconds")
    (seconds,) = trace.numbers
    trace.require(_is_positive(seconds), "seconds", seconds, "must be above 0 and finite")
    return trace.by_device(seconds)


def read_capacities(path: str | Path) -> Capacities:
    """What each device is capable of."""
    trace = _read(Path(path), "capacities")
    for name, column in zip(_COLUMNS["capacities"][1:], trace.numbers, strict=True):
        trace.require(_is_positive(column), name, column, "must be above 0 and finite")
    is_first = np.zeros(len(trace.devices), dtype=bool)
    is_first[np.unique(trace.devices, return_index=True)[1]] = True
    trace.require(is_first, "device", trace.names, "is there for the second time: give one record a device")
    return Capacities(*trace.numbers)


def read_intervals(path: str | Path) -> tuple[tuple[NDArray[np.float64], ...], tuple[NDArray[np.float64], ...]]:
    """(starts, ends): for each device when it went on and when off, in the order of the file; overlaps stay as they are."""
    trace = _read(Path(path), "intervals")
    starts, ends = trace.numbers
    trace.require((starts >= 0) & (starts < math.inf), "start", starts, "must be 0 or more and finite")
    trace.require((ends > starts) & (ends < math.inf), "end", ends, "must be above the start and finite")
    return trace.by_device(starts), trace.by_device(ends)


@dataclass(frozen=True, eq=False)
class _Table:
    """Any trace as it stands in its file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[list[Any]]
    lines: list[int]
    """Where each row stands: the line of a CSV file, or its number in a list."""

    def error(self, row: int, complaint: str) -> InputError:
        return InputError(
            f"'{self.path}', {'entry' if _is_json(self.path) else 'line'} {self.lines[row]}: {complaint}."
        )

    @property
    def kind(self) -> Kind:
        for kind, columns in _COLUMNS.items():
            if sorted(self.columns) == sorted(columns):
                return kind
        known = " or ".join(",".join(columns) for columns in _COLUMNS.values())
        raise InputError(f"'{self.path}' has the columns {','.join(self.columns)}: a trace has {known}.")


@dataclass(frozen=True, eq=False)
class _Trace:
    """A trace whose numbers are numbers: for every row the name and number of its device, and the other columns."""

    table: _Table
    names: list[str]
    devices: NDArray[np.int64]
    numbers: tuple[NDArray[np.float64], ...]

    def require(self, is_good: NDArray[np.bool_], name: str, column: Sequence[str] | NDArray[Any], rule: str) -> None:
        if not is_good.all():
            row = int(np.argmin(is_good))
            raise self.table.error(row, f"{name}={column[row]} {rule}")

    def by_device(self, column: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        order = np.argsort(self.devices, kind="stable")
        return tuple(np.split(column[order], np.cumsum(np.bincount(self.devices))[:-1]))


def _is_positive(column: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (column > 0) & (column < math.inf)


def _read(path: Path, kind: Kind) -> _Trace:
    table = _table(path)
    if table.kind != kind:
        raise InputError(f"'{path}' holds {table.kind}, not {kind}: give a file with {','.join(_COLUMNS[kind])}.")
    device, *others = (table.columns.index(name) for name in _COLUMNS[kind])
    names = [_device(table, index, row[device]) for index, row in enumerate(table.rows)]
    known: dict[str, int] = {}
    devices = np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)
    return _Trace(table, names, devices, tuple(_numbers(table, column) for column in others))


def _device(table: _Table, index: int, name: Any) -> str:
    if name is None or not str(name).strip():
        raise table.error(
            index, "device is empty, and its records would be one device's with those of all others without a name"
        )
    return str(name)


def _numbers(table: _Table, column: int) -> NDArray[np.float64]:
    numbers = np.empty(len(table.rows))
    for index, row in enumerate(table.rows):
        try:
            if isinstance(row[column], bool):  # JSON's true would pass for 1
                raise TypeError
            numbers[index] = float(row[column])
        except (TypeError, ValueError):
            raise table.error(index, f"{table.columns[column]}={row[column]!r} is not a number") from None
    return numbers


def _table(path: Path) -> _Table:
    content = _content(path)
    table = _from_json(path, content) if _is_json(path) else _from_csv(path, content)
    if not table.rows:
        raise InputError(f"'{path}' holds no records: give a trace of at least one device.")
    return table


def _is_json(path: Path) -> bool:
    return path.suffix == ".json"


def _from_csv(path: Path, content: bytes) -> _Table:
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        rows, lines = [], []
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"'{path}' is not a CSV file ({error}): give one in UTF-8.") from None
    columns = tuple(name.strip() for name in rows[0]) if rows else ()
    table = _Table(path, columns, rows[1:], lines[1:])
    for index, row in enumerate(table.rows):
        if len(row) != len(columns):
            raise table.error(index, f"{len(row)} values instead of {len(columns)}")
    return table


def _from_json(path: Path, content: bytes) -> _Table:
    entries = _parsed(path, content)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f'\'{path}\' is not a list of objects: give a list such as [{{"device": 1, "seconds": 2.5}}].')
    columns = tuple(entries[0]) if entries else ()
    rows = [[entry.get(name) for name in columns] for entry in entries]
    table = _Table(path, columns, rows, list(range(1, len(rows) + 1)))
    for index, entry in enumerate(entries):
        if entry.keys() != set(columns):
            raise table.error(index, f"the keys {','.join(entry)} instead of {','.join(columns)}")
    return table


def _parsed(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"'{path}' is not a JSON file ({error}): write it again.") from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}): give the path of a trace.") from None


def import_fedscale_capacity(source: str | Path, target: str | Path) -> int:
    """seconds_per_sample = 3·computation/1000, bytes_per_second = 128·communication. The number of devices.

    `source` is FedScale's `client_device_capacity`, a pickle, or JSON of the same layout:

        {id: {"computation": milliseconds to infer from one sample, "communication": kbit/s both ways}}

    Training takes three times as long as inference (forward, and backward twice as long), and a kbit is 1024 bits: both as
    in FedScale's own simulator, so that a job takes the time it takes there.
    """
    rows = []
    for device, entry in _fedscale(Path(source), ("computation", "communication")):
        computation, communication = (
            _number(source, device, name, entry[name], above_zero=True) for name in ("computation", "communication")
        )
        rows.append((device, 3 * computation / 1000, 128 * communication, 128 * communication))
    _write(Path(target), "capacities", rows)
    return len(rows)


def import_fedscale_availability(source: str | Path, target: str | Path) -> int:
    """On from active[k] until inactive[k], for every k. The number of devices.

    `source` is FedScale's `client_behave_trace`, a pickle, or JSON of the same layout:

        {id: {"active": [seconds], "inactive": [seconds], "finish_time": seconds, …}}

    As in FedScale's own simulator, what is recorded of a device starts again at its finish_time: here until the longest is
    over, which is the `repeat_every` to go on with (six days, 518 400 s, for many devices of FedScale's file). Stretches of
    no length, of which that file has some, are left out, and so are devices with no others.
    """
    entries = [
        (device, entry, _number(source, device, "finish_time", entry["finish_time"], above_zero=True))
        for device, entry in _fedscale(Path(source), ("active", "inactive", "finish_time"))
    ]
    longest = max(finish_time for _, _, finish_time in entries)
    rows: list[tuple[str, float, float]] = []
    for device, entry, finish_time in entries:
        stretches = _fedscale_stretches(source, device, entry, finish_time)
        for lap in range(math.ceil(longest / finish_time)):
            moved = ((lap * finish_time + start, min(lap * finish_time + end, longest)) for start, end in stretches)
            rows.extend((device, start, end) for start, end in moved if start < end)
    if not rows:
        raise InputError(f"'{source}' has no device that is ever on: give a file in which some are.")
    _write(Path(target), "intervals", rows)
    return len({device for device, _, _ in rows})


def _fedscale_stretches(
    source: str | Path, device: str, entry: Mapping[str, Any], finish_time: float
) -> list[tuple[float, float]]:
    active, inactive = entry["active"], entry["inactive"]
    if not isinstance(active, list) or not isinstance(inactive, list) or len(active) != len(inactive):
        raise InputError(f"'{source}', device {device}: 'active' and 'inactive' are not two lists of the same length.")
    starts = [_number(source, device, "active", time) for time in active]
    ends = [min(_number(source, device, "inactive", time), finish_time) for time in inactive]
    return list(zip(starts, ends, strict=True))


def _number(source: str | Path, device: str, name: str, value: Any, above_zero: bool = False) -> float:
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < math.inf
        and (value > 0 or not above_zero)
    ):
        return float(value)
    least = "above 0" if above_zero else "0 or more"
    raise InputError(f"'{source}', device {device}: {name}={value!r} must be a number, {least} and finite.")


def _fedscale(source: Path, keys: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    content = _content(source)
    # No pickle that holds anything begins with a brace.
    entries = _parsed(source, content) if content.lstrip().startswith(b"{") else _unpickled(source, content)
    if not isinstance(entries, dict) or not entries:
        raise InputError(f"'{source}' does not map devices to what is known of them: give one of FedScale's files.")
    for device, entry in entries.items():
        if not isinstance(entry, dict) or not entry.keys() >= set(keys):
            raise InputError(
                f"'{source}', device {harmless(brief(str(device), 60))}: no {' and '.join(keys)}: give one of FedScale's files."
            )
        yield _imported(source, str(device)), entry


MOST_LETTERS = 200
"""Of a device's name."""


def _imported(source: Path, device: str) -> str:
    """A device's name, which a spreadsheet that opens the trace must not take for a formula."""
    is_formula = device.startswith(("=", "+", "-", "@")) and not device[1:].isdecimal()
    if is_formula or len(device) > MOST_LETTERS or not is_harmless(device):
        what = "would be a formula in a spreadsheet" if is_formula else "is too long or has control characters"
        raise InputError(f"'{source}', device {harmless(brief(device, 60))}: the name {what}: give it another.")
    return device


def _write(path: Path, kind: Kind, rows: Iterable[tuple[str | float, ...]]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS[kind])
            writer.writerows(rows)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written ({error.strerror}): give another path.") from None


def _unpickled(path: Path, content: bytes) -> Any:
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except InputError as error:
        raise InputError(f"'{path}' {error}") from None
    except Exception as error:  # a broken pickle can raise anything
        raise InputError(f"'{path}' is neither a pickle nor JSON ({error}): fetch it again.") from None


class _PlainUnpickler(pickle.Unpickler):
    """Dicts, lists, text and numbers, and nothing else: a pickle that may name what it likes runs any code it likes.

    FedScale's numbers are NumPy's. Stand-ins of our own read them, so not even NumPy gets to see what is in the file.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "dtype"):
            return _NumberType
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "scalar":
            # A new function each time: a pickle can write to what it gets hold of.
            return lambda kind, content: _scalar(kind, content)
        raise InputError(f"asks for '{module}.{name}', and only plain data is read: save it as JSON if you trust it.")


class _NumberType:
    """Stands for a `numpy.dtype`: a name such as f8, and which end comes first."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


def _scalar(kind: _NumberType, content: bytes) -> float:
    number: float = struct.unpack(kind.order + {"f4": "f", "f8": "d", "i4": "i", "i8": "q"}[kind.name], content)[0]
    return number
