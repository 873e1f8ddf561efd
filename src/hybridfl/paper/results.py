"""What is kept of the runs: a line a run, small enough to publish, from which all figures and verdicts are made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hybridfl import stored
from hybridfl.checkpoints import write_aside
from hybridfl.errors import InputError
from hybridfl.records import Record, SavedRun
from hybridfl.stored import Check
from hybridfl.summary import tail_mean

POINTS = 60
"""So many points are kept of a curve, besides its first ten."""


@dataclass(frozen=True)
class Result:
    """One run: its curves, thinned out, and what is said of it, from all its records."""

    label: str
    seed: int
    at: float | None
    """Where it stands on a sweep's axis."""
    final_accuracy: float
    """The mean over the records of the last 15 % of its virtual time."""
    final_loss: float
    early_swing: float
    """The mean change of accuracy from one record to the next, in the second tenth of the run, and in its last tenth."""
    late_swing: float
    versions: tuple[int, ...]
    seconds: tuple[float, ...]
    accuracy: tuple[float, ...]
    """On test samples."""
    loss: tuple[float, ...]
    """On training samples."""
    wall_seconds: float = math.nan
    device_accuracy: float = math.nan
    """Final accuracy with every device counting alike, of the tenth of the devices with the lowest, and the share of the
    devices below chance; NaN in results from before these were measured."""
    worst_accuracy: float = math.nan
    below_chance: float = math.nan
    diverged_at: float = math.nan
    """The version at which it diverged; NaN: never."""

    @property
    def has_diverged(self) -> bool:
        return math.isfinite(self.diverged_at)


def distilled(run: SavedRun, at: float | None, wall_seconds: float) -> Result:
    """What is kept of a run."""
    records = run.records
    kept = [records[place] for place in _places(len(records))]
    return Result(
        label=run.label,
        seed=run.seed,
        at=at,
        final_accuracy=_rounded(tail_mean(records, "test_accuracy")),
        final_loss=_rounded(tail_mean(records, "train_loss")),
        early_swing=_rounded(_swing(records, 0.1, 0.2)),
        late_swing=_rounded(_swing(records, 0.9, 1.0)),
        versions=tuple(record.version for record in kept),
        seconds=tuple(round(record.seconds, 2) for record in kept),
        accuracy=tuple(_rounded(record.test_accuracy) for record in kept),
        loss=tuple(_rounded(record.train_loss) for record in kept),
        wall_seconds=round(wall_seconds, 1),
        device_accuracy=_rounded(tail_mean(records, "device_accuracy")),
        worst_accuracy=_rounded(tail_mean(records, "worst_accuracy")),
        below_chance=_rounded(tail_mean(records, "below_chance")),
        diverged_at=records[-1].diverged_at,
    )


def write(path: Path, results: Iterable[Result]) -> None:
    """One line a run, in the order of labels' first appearance and of seeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_row(result), separators=(",", ":")) + "\n" for result in results]
    write_aside(path, "".join(lines).encode())


def read(path: Path) -> list[Result]:
    """The results of a study."""
    try:
        found = [_result(where, row) for where, row in stored.rows(path)]
        if not found:
            raise ValueError("it is empty")
        return found
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read as results of `hybridfl reproduce` ({error}).") from None


def labels(results: Sequence[Result]) -> list[str]:
    """In the order of their first appearance."""
    return list(dict.fromkeys(result.label for result in results))


def of(results: Sequence[Result], label: str) -> list[Result]:
    """The runs with this label, one a seed."""
    return [result for result in results if result.label == label]


def _row(result: Result) -> dict[str, Any]:
    """JSON knows no NaN: null."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    return {name: plain(value) for name, value in asdict(result).items()}


_CHECKS: dict[str, Check] = {
    "label": stored.name,
    "seed": stored.whole,
    "at": stored.or_none(stored.measure),
    "versions": stored.list_of(stored.count),
    "seconds": stored.list_of(stored.seconds),
    "accuracy": stored.list_of(stored.share),
    "loss": stored.list_of(stored.measure),
}
"""What is not among them is a number."""


def _result(where: str, row: Any) -> Result:
    checks = {field.name: _CHECKS.get(field.name, stored.measure) for field in fields(Result)}
    needed = [field.name for field in fields(Result) if field.default is MISSING]
    found = stored.checked(where, row, checks, needed, "put the file back as it was")
    columns = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    if len({len(column) for column in columns.values()}) != 1 or not columns["seconds"]:
        raise InputError(f"{where}: its curves are not of one length, 1 or more: put the file back as it was.")
    return Result(**{**found, **columns})


def _places(count: int) -> list[int]:
    spread = np.linspace(0, count - 1, POINTS).round().astype(int)
    return sorted({*range(min(10, count)), *spread.tolist()})


def _swing(records: Sequence[Record], start: float, end: float) -> float:
    """The mean |change| of test accuracy between successive records of a part of the run's virtual time."""
    last = records[-1].seconds
    part = [record.test_accuracy for record in records if start * last <= record.seconds <= end * last]
    return float(np.mean(np.abs(np.diff(part)))) if len(part) > 1 else math.nan


def _rounded(value: float) -> float:
    """Five digits are more than anything here is certain to; NaN where a run diverged."""
    return float(f"{value:.5g}") if math.isfinite(value) else math.nan
