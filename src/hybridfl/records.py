"""What a run leaves: `run.json`, `records.jsonl` and `arrivals.jsonl` in a folder of its own."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybridfl import stored
from hybridfl.errors import InputError
from hybridfl.seals import opened
from hybridfl.stored import PUT_BACK, Check, checked, or_none
from hybridfl.wording import brief, harmless

log = logging.getLogger("hybridfl")


@dataclass(frozen=True)
class Record:
    """One evaluation. A Record is for reading; nothing is ever resumed from it."""

    version: int
    seconds: float
    """Virtual."""
    merged: int
    """Updates merged since the start; in the last record, a few of them may still wait for their round to close."""
    mean_staleness: float
    """Of the updates merged since the previous record; NaN if there were none."""
    max_staleness: int
    train_loss: float
    test_loss: float
    test_accuracy: float
    normal_accuracy: float
    """On the normal devices' test samples."""
    straggler_accuracy: float
    bytes_sent: int
    """Weights sent to devices since the start, and received from them."""
    bytes_received: int
    discarded: int
    """Good updates that arrived and were thrown away, since the start."""
    refused: int = 0
    """Bad updates, since the start."""
    lost: int = 0
    """Jobs that were never answered, since the start."""
    forgotten: int = 0
    """Devices' last updates that a bounded memory gave up, since the start."""
    barred: int = 0
    """Devices that get no more jobs, having been refused too often."""
    device_accuracy: float = math.nan
    """The mean over devices of each one's accuracy on its own test samples: every device counts alike."""
    worst_accuracy: float = math.nan
    """The mean over the tenth of the devices with the lowest accuracy."""
    below_chance: float = math.nan
    """The share of the devices whose accuracy is below 1/C, C being the number of classes."""
    diverged_at: float = math.nan
    """The first version known to have weights or losses that are not finite, in the last record of such a run; else NaN.

    On a CPU, weights are looked at whenever a version is made; losses, and weights on a GPU, where a record is made.
    """

    @property
    def has_diverged(self) -> bool:
        return not math.isnan(self.diverged_at)

    def __eq__(self, other: object) -> bool:
        """NaN equals NaN: a record is what it was written and read back as."""
        return isinstance(other, Record) and repr(self) == repr(other)


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """How a run's last model does on the test samples of one device."""

    device: int
    accuracy: float
    num_samples: int
    """Of the test samples that were scored and have a class."""
    is_straggler: bool


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job's end: when it was sent, when its update arrived or it was known to be lost, and what became of it."""

    device: int
    version: int
    """The version its job was sent with."""
    sent_at: float
    arrived_at: float
    staleness: int
    """Versions made between sending the job and merging the update."""
    discarded: str | None = None
    """Why a good update was not merged."""
    refused: str | None = None
    """What is wrong with a bad one."""
    lost: str | None = None
    """Why no update came."""

    @property
    def is_merged(self) -> bool:
        return self.discarded is None and self.refused is None and self.lost is None


Config = Mapping[str, Any]


def _label(value: Any) -> str | int:
    """Earlier versions took numbers, too."""
    return value if type(value) is int else stored.name(value)


_CONFIG: dict[str, Check] = {
    "label": _label,
    "algorithm": stored.text,
    "timing": stored.text,
    "seed": stored.whole,
    "seconds": or_none(stored.seconds),
    "rounds": or_none(stored.count),
    "evaluate_every": or_none(stored.seconds),
    "guard": or_none(stored.text),
    "traces": stored.texts_by_name,
    "code": stored.texts_by_name,
    "versions": stored.texts_by_name,
}
_CONFIG_NEEDED = ("label", "algorithm", "task", "timing", "seed", "seconds", "rounds", "evaluate_every")
_TASK: dict[str, Check] = {
    "name": stored.name,
    "devices": stored.count,
    "train_samples": stored.count,
    "test_samples": stored.count,
    "model": stored.text,
    "parameters": stored.count,
    "loss": stored.text,
    "l2": or_none(stored.measure),
    "scored": or_none(stored.count),
    "notes": stored.list_of(stored.text),
    "checksum": stored.name,
}
_RECORD: dict[str, Check] = {
    "version": stored.count,
    "seconds": stored.seconds,
    "merged": stored.count,
    "mean_staleness": stored.measure,
    "max_staleness": stored.count,
    "train_loss": stored.measure,
    "test_loss": stored.measure,
    "test_accuracy": stored.share,
    "normal_accuracy": stored.share,
    "straggler_accuracy": stored.share,
    "bytes_sent": stored.size,
    "bytes_received": stored.size,
    "discarded": stored.count,
    "refused": stored.count,
    "lost": stored.count,
    "forgotten": stored.count,
    "barred": stored.count,
    "device_accuracy": stored.share,
    "worst_accuracy": stored.share,
    "below_chance": stored.share,
    "diverged_at": stored.measure,
}
_RECORD_NEEDED = tuple(_RECORD)[: tuple(_RECORD).index("refused")]
_ARRIVAL: dict[str, Check] = {
    "device": stored.count,
    "version": stored.count,
    "sent_at": stored.seconds,
    "arrived_at": stored.seconds,
    "staleness": stored.count,
    "discarded": or_none(stored.text),
    "refused": or_none(stored.text),
    "lost": or_none(stored.text),
}
_ARRIVAL_NEEDED = ("device", "version", "sent_at", "arrived_at", "staleness")
_SCORE: dict[str, Check] = {
    "device": stored.count,
    "accuracy": stored.share,
    "num_samples": stored.count,
    "is_straggler": stored.flag,
}

MOST_OF_A_REASON = 10_000
"""Letters that are kept of why an update came to nothing: devices have a say in it."""

RUN = "run.json"
RECORDS = "records.jsonl"
ARRIVALS = "arrivals.jsonl"
DEVICES = "devices.jsonl"
FINISHED = "finished.json"
_OURS = frozenset({RUN, RECORDS, ARRIVALS, DEVICES, FINISHED, "model.safetensors", "checkpoints", "journal", ".lock"})

DEPLOYED = "Flower"
"""What a deployment's `run.json` says in the place of a simulated fleet."""


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run read back from its folder."""

    config: Config
    records: tuple[Record, ...]
    arrivals: tuple[Arrival, ...]
    devices: tuple[DeviceScore, ...] = ()
    """Of the devices that hold test samples, once the run has ended; empty where there are no classes or it diverged."""
    is_finished: bool = True
    """Whether its folder says that it has ended."""

    @property
    def label(self) -> str:
        return str(self.config["label"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def is_deployed(self) -> bool:
        """On real machines: its seconds are the wall's."""
        return bool(self.config["timing"] == DEPLOYED)

    @property
    def has_diverged(self) -> bool:
        """Whether it says so or, where it is of a version that did not yet, its last losses are no numbers."""
        last = self.records[-1] if self.records else None
        return last is not None and (last.has_diverged or not (self.is_deployed or math.isfinite(last.train_loss)))


def check_apart(names: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise `InputError` if two runs would be written to one folder: one's results would pass for the other's."""
    owners: dict[str, str] = {}
    for name, folder in zip(names, folders, strict=True):
        place = str(folder).casefold()  # some disks do not tell hfl from HFL
        if place in owners:
            raise InputError(f"'{owners[place]}' and '{name}' would share the folder '{folder}': run them apart.")
        owners[place] = name


def named_folder(what: str, given: str | Path) -> Path:
    """A path as it is; an empty text, which would stand for the current folder, is refused."""
    if given == "":
        raise InputError(f"{what}='' names no folder: give one, or '.' for the current one.")
    return Path(given)


def check_folder(folder: Path, config: Config) -> None:
    """Refuse a folder that cannot be written, is not all in one place, or holds the results of another configuration."""
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"'{nearest}' is a file, not a folder: choose another folder.")
    try:
        with tempfile.TemporaryFile(dir=nearest):  # a name of its own: other processes may be looking too
            pass
    except OSError as error:
        raise InputError(f"Cannot write to '{nearest}' ({error.strerror}): choose another folder.") from None
    _check_no_links(folder)
    if (folder / RUN).exists():
        found, wanted = _flat(identity(load_config(folder))), _flat(identity(config))
        for name in wanted:
            if wanted[name] != found.get(name) and name == "task checksum":
                raise InputError(
                    f"'{folder}' holds results of other data or other first weights (its checksum was "
                    f"{_quoted(found.get(name))}, now {_quoted(wanted[name])}): make them the same, with "
                    "`torch.manual_seed(0)` before a model is made at random, or choose another folder."
                )
            if wanted[name] != found.get(name):
                raise InputError(
                    f"'{folder}' holds results of another configuration ({_named(name)} was {_quoted(found.get(name))}, now "
                    f"{_quoted(wanted[name])}): choose another folder or remove this one."
                )


def _check_no_links(folder: Path) -> None:
    """Refuse a link in the place of a file or folder of ours: what is written or removed would be so somewhere else."""
    inner = [place for place in (folder, folder / "checkpoints", folder / "journal") if place.is_dir()]
    for path in (path for place in inner for path in place.iterdir()):
        is_ours = path.parent != folder or path.name.removesuffix(".new") in _OURS
        if is_ours and path.is_symlink():
            raise InputError(
                f"'{path}' is a link to somewhere else: put what it stands for in its place, or remove it."
            )


def _quoted(value: object) -> str:
    return brief(repr(value), 1000)


def _named(name: str) -> str:
    return brief(harmless(name), 60)


def changed_code(folder: Path, config: Config) -> list[str]:
    """In which pieces of code the run in a folder differs from this one, by name; none where the folder does not say.

    Bytecode of another Python cannot be compared: then it is Python that has changed.
    """
    found = load_config(folder) if (folder / RUN).exists() else {}
    was, now = found.get("code"), config.get("code", {})
    if was is None:  # of a version that did not yet write it down; what is under way goes on from its checkpoint
        return ["code, which it does not name,"] if (folder / FINISHED).exists() else []
    if was == now:
        return []
    pythons = [str(each.get("versions", {}).get("python", "")).rsplit(".", 1)[0] for each in (found, config)]
    if pythons[0] != pythons[1]:
        return [f"Python {pythons[0]} → {pythons[1]}"]
    return [name for name in sorted(was | now) if was.get(name) != now.get(name)]


def changed_versions(folder: Path, config: Config) -> list[str]:
    """Which packages that compute a run had another version when the run in a folder was begun."""
    was, now = load_config(folder).get("versions", {}), config["versions"]
    pairs = [(name, was.get(name, "none"), now.get(name, "none")) for name in COMPUTING if was]
    return [f"{name} {before} → {after}" for name, before, after in pairs if before != after]


COMPUTING = ("hybridfl", "torch", "numba")
"""With Numba or without, other loops train: its numbers agree to rounding only."""


def identity(config: Config) -> dict[str, Any]:
    """What a run is meant to be: all of its configuration but the code and the packages that happen to compute it."""
    return {name: value for name, value in config.items() if name not in ("versions", "code")}


def fingerprint(config: Config) -> str:
    """What tells a run's checkpoints from those of any other."""
    return hashlib.blake2b(json.dumps(identity(config), sort_keys=True).encode(), digest_size=16).hexdigest()


def setting(config: Config, with_seed: bool) -> dict[str, Any]:
    """What two runs must have in common to be compared; all but what the seed decides, unless `with_seed`."""
    task, timing = config["task"], str(config["timing"])
    shared = {name: config[name] for name in ("seconds", "rounds", "evaluate_every")}
    fleet = {"timing": timing, "traces": config.get("traces", {})}  # a deployment replays none
    return {"task": task if with_seed else _whatever_the_seed(task), **fleet, **shared}


OF_SEED = ("train_samples", "test_samples", "checksum")
"""What the seed decides of a task."""


def _whatever_the_seed(task: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name not in OF_SEED}


def difference_of_seeds(one: Config, other: Config) -> str | None:
    """The first thing, beside the seed and what it decides, in which two runs of one label differ, in words; None: nothing."""
    left, right = (
        _flat({**_NOTHING_SAID, **identity(each), "task": _whatever_the_seed(each["task"])}) for each in (one, other)
    )
    return _first_difference(left, right, besides=("seed",))


_NOTHING_SAID: Config = {"guard": "None"}
"""What a `run.json` of earlier versions, which did not have it, means."""


def difference(one: Config, other: Config) -> str | None:
    """The first thing in which two runs differ that should be compared, in words; None if they can be."""
    with_seed = one["seed"] == other["seed"]
    return _first_difference(_flat(setting(one, with_seed)), _flat(setting(other, with_seed)))


def _first_difference(left: dict[str, Any], right: dict[str, Any], besides: Sequence[str] = ()) -> str | None:
    names = [name for name in left | right if left.get(name) != right.get(name) and name not in besides]
    if not names:
        return None
    return f"{_named(names[0])} {_quoted(left.get(names[0]))} and {_quoted(right.get(names[0]))}"


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is nested goes by `outer inner`."""
    return {
        key: each
        for name, value in values.items()
        for key, each in (
            {f"{name} {inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {name: value}
        ).items()
    }


def load_config(folder: Path) -> Config:
    """Read a run's configuration."""
    path = folder / RUN
    try:
        said = stored.read_json(path)
    except (OSError, ValueError):
        said = None
    if not isinstance(said, dict) or not set(said).issuperset(_CONFIG_NEEDED):
        raise InputError(f"'{path}' is not a run's configuration: remove the folder, or choose another.")
    config = opened(said)
    if config is None:
        raise InputError(
            f"'{path}' is not what it was when the run began: put it back, or remove the folder and run again."
        )
    return checked_config(config, f"'{path}'", PUT_BACK)


def checked_config(config: Config, where: str, remedy: str) -> Config:
    """A configuration whose fields are of the right kind, and harmless to show; what else it says is kept as it is."""
    task = checked(f"{where}, task", config["task"], _TASK, ("name",), remedy)
    found = checked(where, dict(config), _CONFIG, _CONFIG_NEEDED, remedy)
    if found["seconds"] is None and found["rounds"] is None:
        raise InputError(f"{where}: there are neither seconds nor rounds, so the run has no end: {remedy}.")
    return {**config, **found, "task": {**config["task"], **task}}


def check_finished(folder: Path) -> None:
    """Refuse records that are not what they were when the run ended; of a run under way, nothing is known."""
    if not (folder / FINISHED).exists():
        return
    try:
        said = finished(folder)
        names = [ARRIVALS, RECORDS, *(name for name in (DEVICES, RUN) if name in said)]  # earlier versions kept two
        checksums = {name: said[name]["checksum"] for name in names}
        changed = [name for name, checksum in checksums.items() if checksum_of(folder / name) != checksum]
    except (OSError, ValueError, KeyError, TypeError):
        changed = [FINISHED]
    if changed:
        raise InputError(
            f"'{folder / changed[0]}' is not what it was when the run ended: put it back, or remove the folder and run again."
        )


def finished(folder: Path) -> dict[str, Any]:
    """What a run said at its end. Raises `OSError`, and `ValueError` where that is damaged."""
    said = stored.read_json(folder / FINISHED)
    values = opened(said) if isinstance(said, dict) else None
    if values is None:
        raise ValueError("it does not have its checksum")
    return values


def checksum_of(path: Path) -> str:
    """Of what is in a file; one that is not there counts as empty."""
    if path.exists() and not path.is_file():
        raise InputError(f"'{path}' is no file: {PUT_BACK}.")
    return hashlib.blake2b(path.read_bytes() if path.exists() else b"", digest_size=16).hexdigest()


def load(folder: str | Path) -> SavedRun:
    """Read one run's folder; a last line that was cut off in the middle is left out, and what was changed is refused."""
    folder = Path(folder)
    check_finished(folder)
    config = load_config(folder)
    try:
        records = tuple(
            Record(**checked(where, row, _RECORD, _RECORD_NEEDED)) for where, row in stored.rows(folder / RECORDS)
        )
        arrivals = tuple(
            Arrival(**checked(where, row, _ARRIVAL, _ARRIVAL_NEEDED)) for where, row in stored.rows(folder / ARRIVALS)
        )
        devices = tuple(
            DeviceScore(**checked(where, row, _SCORE, tuple(_SCORE))) for where, row in stored.rows(folder / DEVICES)
        )
    except OSError as error:
        raise InputError(
            f"The records in '{folder}' cannot be read ({error.strerror}): give a folder of results."
        ) from None
    return SavedRun(config, records, arrivals, devices, (folder / FINISHED).exists())


def wall_seconds(folder: Path) -> float:
    """How long a finished run took; NaN where its folder does not say."""
    try:
        return stored.measure(finished(folder)["wall_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan


def load_all(folder: str | Path) -> list[SavedRun]:
    """All runs in or below a folder, in the order of their paths; runs without a record are left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"There is no folder '{folder}': run `hybridfl run --out {shlex.quote(str(folder))}` first.")
    runs = [load(path.parent) for path in files_below(folder, RUN)]
    _warn_of_orphans(folder)
    if not any(run.records for run in runs):
        raise InputError(
            f"'{folder}' holds no results: give the folder that `hybridfl run --out` or `compare --out` wrote."
        )
    return [run for run in runs if run.records]


def files_below(folder: Path, name: str) -> list[Path]:
    """All files of this name in or below a folder, in their order.

    Links to folders are followed, to each folder once, and not to what the folder itself lies in.
    """
    root = Path(os.path.realpath(folder))
    found: list[Path] = []
    seen = {str(each) for each in root.parents}
    tops = [folder]
    while tops:
        links = []
        for top in tops:
            for place, inner, names in os.walk(top):
                real = os.path.realpath(place)
                if real in seen:
                    inner.clear()
                    continue
                seen.add(real)
                links += [Path(place, each) for each in sorted(inner) if Path(place, each).is_symlink()]
                found += [Path(place, name)] if name in names else []
        tops = links  # after all that is really there: what a link repeats goes by its own place
    return sorted(found)


def _warn_of_orphans(folder: Path) -> None:
    """Records that nothing says the run of are left out, but not in silence."""
    orphans = [path.parent for path in files_below(folder, RECORDS) if not (path.parent / RUN).exists()]
    if orphans:
        others = f" (and {len(orphans) - 1:,} more)" if len(orphans) > 1 else ""
        log.warning("'%s'%s holds records but no run.json: left out. Put it back, or run again.", orphans[0], others)


def line_of(row: Record | Arrival | DeviceScore) -> str:
    """JSON has no NaN and no infinity: they are written as null."""
    return json.dumps({name: _plain(value) for name, value in asdict(row).items()}) + "\n"


def _plain(value: Any) -> Any:
    """A value as it can be written and read back: a reason may come from a device."""
    if isinstance(value, str):
        return harmless(brief(value, MOST_OF_A_REASON), lines=True)
    return None if isinstance(value, float) and not math.isfinite(value) else value
