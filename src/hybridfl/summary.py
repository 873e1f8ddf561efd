"""What a comparison comes down to: one row per algorithm, over all its seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hybridfl.records import Record, SavedRun
from hybridfl.wording import listed

Floats = NDArray[np.float64]
Measure = Literal["device_accuracy", "test_accuracy", "test_loss"]

TAIL = 0.15
"""A final figure is the mean over the records of this last part of a run's virtual time, as single evaluations oscillate."""

CENTRALISED = "SSGD("
"""S-SGD holds all the data in one place: it is the upper bound, not a contestant, and sets no target."""

FEDAVG = "FedAvg("
"""What the algorithm of the baseline begins with; FedProx is spelled so too, and told apart by its local work."""


@dataclass(frozen=True)
class Row:
    """One algorithm. Means over seeds; a spread is the standard deviation over seeds. NaN where there is nothing to say.

    An algorithm of which a seed diverged has no final figures: a mean over the other seeds would flatter it.
    """

    algorithm: str
    seeds: int
    diverged: int
    """How many of the seeds' runs did."""
    device_accuracy: float
    """Every device counts alike."""
    device_accuracy_std: float
    worst_accuracy: float
    """Of the tenth of the devices with the lowest accuracy."""
    below_chance: float
    """The share of the devices that a guess would serve better."""
    test_accuracy: float
    """Every test sample counts alike."""
    test_accuracy_std: float
    straggler_accuracy: float
    test_loss: float
    test_loss_std: float
    seconds_to_target: float
    """Virtual seconds until the mean over seeds of the test accuracy first reaches the target.

    NaN if it never does, and where no seed made a version: what is there then is nobody's work.
    """
    speedup: float
    """Seconds to target of FedAvg (see `baseline`) over this algorithm's."""
    speedup_bound: float
    """Where FedAvg did not reach the target: its whole run over this algorithm's seconds. Else NaN."""
    discarded: float
    """Updates that arrived and were thrown away."""


def by_label(runs: Sequence[SavedRun]) -> dict[str, list[SavedRun]]:
    """The runs of each algorithm, in the order of their first appearance, each in the order of the seeds."""
    groups: dict[str, list[SavedRun]] = {}
    for saved in runs:
        groups.setdefault(saved.label, []).append(saved)
    return {label: sorted(group, key=lambda saved: saved.seed) for label, group in groups.items()}


def has_versions(group: Iterable[SavedRun]) -> bool:
    """Whether any of these runs made a version: else they show the first model, which nobody trained."""
    return any(run.records[-1].version > 0 for run in group)


def is_bound(group: Sequence[SavedRun]) -> bool:
    """Whether these runs hold all the data in one place: the upper bound, not a contestant."""
    return str(group[0].config["algorithm"]).startswith(CENTRALISED)


def fedavgs(runs: Sequence[SavedRun]) -> list[str]:
    """The labels of what is FedAvg by its algorithm, whatever it is called: `fedavg` first, then in their order as words."""
    found = [label for label, group in by_label(runs).items() if _is_fedavg(str(group[0].config["algorithm"]))]
    return sorted(found, key=lambda label: (label != "fedavg", label))


def baseline(runs: Sequence[SavedRun]) -> str | None:
    """Whose seconds the speed-up is over: the label of FedAvg, or of the first if there are several; None without one."""
    return next(iter(fedavgs(runs)), None)


def baseline_name(runs: Sequence[SavedRun]) -> str | None:
    """What the baseline is called: FedAvg or, where that would not say which, its label; None without one."""
    found = fedavgs(runs)
    return "FedAvg" if found == ["fedavg"] else baseline(runs)


def _is_fedavg(algorithm: str) -> bool:
    """Without FedProx's marks, a pull towards the joint model or partial work."""
    is_fedprox = "PartialWork(" in algorithm or re.search(r"\bproximal=(?!0(\.0)?[,)])", algorithm) is not None
    return algorithm.startswith(FEDAVG) and not is_fedprox


def unpaired(runs: Sequence[SavedRun]) -> list[str]:
    """A line where algorithms have different seeds: each seed has other data, and makes other devices slow."""
    owners: dict[tuple[int, ...], list[str]] = {}
    for label, group in by_label(runs).items():
        owners.setdefault(tuple(run.seed for run in group), []).append(label)
    if len(owners) < 2:
        return []
    said = "; ".join(
        f"{listed(labels)} {'has' if len(labels) == 1 else 'have'} {seeds_in_words(seeds)}"
        for seeds, labels in owners.items()
    )
    return [
        f"The algorithms have different seeds ({said}): every seed has other data, so their figures are not paired. Run all "
        "on the same seeds."
    ]


def namesakes(runs: Sequence[SavedRun]) -> list[str]:
    """A line where algorithms have losses or models that are written alike and are other code: they learn different things."""
    lines = []
    for role in ("loss", "model"):
        labels: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
        for label, group in by_label(runs).items():
            written = str(group[0].config["task"].get(role))
            code = _code_of(group[0], role, written)
            if code:
                labels.setdefault((written, code), []).append(label)
        for written in dict.fromkeys(written for written, _ in labels):
            sides = [listed(each) for (other, _), each in labels.items() if other == written]
            if len(sides) > 1:
                name = written if len(written) <= 40 else f"{written[:40]}…"
                lines.append(
                    f"The {role} of {' and that of '.join(sides)} are both written '{name}' and are not the same code: their "
                    "figures are not of one task. Run all with the same."
                )
    return lines


def _code_of(run: SavedRun, role: str, written: str) -> tuple[tuple[str, str], ...]:
    """The digests of a loss or a model, and of the class or function that it is written as; of earlier versions, none."""
    name = written.partition("(")[0]
    own = "" if "<" in name else f".{name}"  # of a lambda, its role alone says which
    found = run.config.get("code", {}).items()
    return tuple(sorted((each, said) for each, said in found if each == role or (own and each.endswith(own))))


def seeds_in_words(seeds: Sequence[int]) -> str:
    """`0`, `0 and 1`, `0 to 4 and 7`."""
    stretches: list[list[int]] = []
    for seed in seeds:
        if stretches and seed == stretches[-1][-1] + 1:
            stretches[-1].append(seed)
        else:
            stretches.append([seed])
    words = [
        word
        for each in stretches
        for word in ([f"{each[0]} to {each[-1]}"] if len(each) > 2 else [str(seed) for seed in each])
    ]
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(words)}"


def is_known(runs: Sequence[SavedRun], name: str) -> bool:
    """Whether a column of the records says anything."""
    return any(math.isfinite(getattr(record, name)) for run in runs for record in run.records)


def measure_of(runs: Sequence[SavedRun]) -> Measure:
    """What algorithms are ranked by: accuracy by device, by sample in older results, test loss where there are no classes."""
    if all(is_known([run], "device_accuracy") for run in runs):
        return "device_accuracy"
    return "test_accuracy" if is_known(runs, "test_accuracy") else "test_loss"


def tail_mean(records: Sequence[Record], name: str) -> float:
    """The mean of one column over the records of the last part of the run's virtual time; each counts alike."""
    start = records[-1].seconds * (1 - TAIL)
    return float(np.mean([getattr(record, name) for record in records if record.seconds >= start]))


def finals(group: Sequence[SavedRun], name: str) -> Floats:
    """One column's final figure of every seed; NaN of one that diverged."""
    return np.array([math.nan if run.has_diverged else tail_mean(run.records, name) for run in group])


def default_target(runs: Sequence[SavedRun]) -> float:
    """95 % of the best final accuracy by sample that any federated algorithm's versions reach; NaN if none has one."""
    reached = [
        accuracy
        for group in by_label(runs).values()
        if not is_bound(group)
        and has_versions(group)
        and math.isfinite(accuracy := float(finals(group, "test_accuracy").mean()))
    ]
    return 0.95 * max(reached) if reached else math.nan


def summarise(runs: Sequence[SavedRun], target: float | None = None) -> list[Row]:
    """One row per algorithm, the best first; `target` is an accuracy by sample, by default `default_target`."""
    goal = default_target(runs) if target is None else target
    groups, measure = by_label(runs), measure_of(runs)
    reached = {label: _seconds_to(group, goal) for label, group in groups.items()}
    fedavg = baseline(runs)
    needed = math.nan if fedavg is None else reached[fedavg]
    endured = math.nan if fedavg is None else _whole_run(groups[fedavg])
    rows = [
        _row(
            label,
            group,
            seconds_to_target=reached[label],
            speedup=math.nan if is_bound(group) else _ratio(needed, reached[label]),
            speedup_bound=_ratio(endured, reached[label]) if math.isnan(needed) and not is_bound(group) else math.nan,
        )
        for label, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (math.isnan(badness(row, measure)), badness(row, measure)))


def _row(label: str, group: Sequence[SavedRun], **timed: float) -> Row:
    columns = {name: finals(group, name) for name in _FINALS}
    means = {name: float(column.mean()) for name, column in columns.items()}
    spreads = {
        f"{name}_std": float(columns[name].std(ddof=1)) if len(group) > 1 else math.nan
        for name in ("device_accuracy", "test_accuracy", "test_loss")
    }
    return Row(
        algorithm=label,
        seeds=len(group),
        diverged=sum(run.has_diverged for run in group),
        discarded=float(np.mean([run.records[-1].discarded for run in group])),
        **means,
        **spreads,
        **timed,
    )


_FINALS = ("device_accuracy", "worst_accuracy", "below_chance", "test_accuracy", "straggler_accuracy", "test_loss")


def badness(row: Row, measure: Measure) -> float:
    """For sorting, the best row first; NaN where a row has no such figure."""
    value: float = getattr(row, measure)
    return value if measure == "test_loss" else -value


def held(at: Floats, instants: Floats, values: Floats) -> Floats:
    """A step function: the last of `values` that is not later than `at`; NaN before the first."""
    index = np.searchsorted(instants, at, side="right") - 1
    return np.where(index < 0, math.nan, values[index])


def _seconds_to(group: Sequence[SavedRun], target: float) -> float:
    """Seeds have other data and other records; a joint model counts until the next one is recorded."""
    if any(run.has_diverged for run in group) or not has_versions(group):
        return math.nan
    seconds = [np.array([record.seconds for record in saved.records]) for saved in group]
    accuracy = [np.array([record.test_accuracy for record in saved.records]) for saved in group]
    instants = np.unique(np.concatenate(seconds))
    mean = np.mean([held(instants, *columns) for columns in zip(seconds, accuracy, strict=True)], axis=0)
    reached = instants[mean >= target]
    return float(reached[0]) if len(reached) else math.nan


def _whole_run(group: Sequence[SavedRun]) -> float:
    """How long the runs of the baseline lasted; NaN if one diverged, as it says nothing then of how long FedAvg needs."""
    if any(run.has_diverged for run in group):
        return math.nan
    return float(np.mean([run.records[-1].seconds for run in group]))


def _ratio(seconds: float, to: float) -> float:
    return seconds / to if to else math.nan
