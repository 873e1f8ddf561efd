"""What a reader of a comparison should know before its figures: one line each, for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridfl.charts import seconds_of
from hybridfl.records import COMPUTING, SavedRun
from hybridfl.summary import by_label, has_versions, seeds_in_words
from hybridfl.wording import counted, listed

MOST_NAMED = 3
"""So many runs are named in one line; of the others, how many there are."""


def remarks(runs: Sequence[SavedRun], target: float) -> list[str]:
    """What algorithms or seeds did not have in common, and a target that nobody had to learn for."""
    return [*other_guards(runs), *other_versions(runs), *trivial_target(runs, target)]


def other_guards(runs: Sequence[SavedRun]) -> list[str]:
    """A line where algorithms ran behind different guards: on a fleet with bad updates, that decides more than they do."""
    labels: dict[str, list[str]] = {}
    for label, group in by_label(runs).items():
        labels.setdefault(str(group[0].config.get("guard", "None")), []).append(label)
    if len(labels) < 2:
        return []
    said = "; ".join(
        f"{listed(each)} {'without a guard' if guard == 'None' else f'with {guard}'}" for guard, each in labels.items()
    )
    return [f"The algorithms did not run behind the same guard: {said}."]


def other_versions(runs: Sequence[SavedRun]) -> list[str]:
    """A line for every algorithm whose seeds were computed by other versions of what computes."""
    lines = []
    for label, group in by_label(runs).items():
        seeds: dict[str, list[int]] = {}
        known = [run for run in group if run.config.get("versions")]  # earliest results name none
        differing = [name for name in COMPUTING if len({_version(run, name) for run in known}) > 1]
        for run in known:
            seeds.setdefault(", ".join(f"{name} {_version(run, name)}" for name in differing), []).append(run.seed)
        if differing:
            said = "; ".join(f"{versions} for {seeds_in_words(each)}" for versions, each in seeds.items())
            lines.append(f"{label}: its seeds were not computed by the same versions ({said}).")
    return lines


def _version(run: SavedRun, name: str) -> str:
    return str(run.config["versions"].get(name, "none"))


def trivial_target(runs: Sequence[SavedRun], target: float) -> list[str]:
    """A line where the first models, which nobody trained, are at the target already."""
    for group in by_label(runs).values():
        if not has_versions(group) or any(run.records[0].version > 0 for run in group):
            continue
        first = sum(run.records[0].test_accuracy for run in group) / len(group)
        if first >= target:
            return [
                f"The target of {100 * target:.1f} % is not above the {100 * first:.1f} % by sample that the first model "
                "reaches, which nobody trained: 0 seconds to it are no merit. Give a higher --target."
            ]
    return []


def unfinished(runs: Sequence[SavedRun]) -> list[str]:
    """A line where runs were interrupted or are under way: they end at different times, and none is ahead yet."""
    places = [place for run in runs if (place := _place(run)) is not None]
    if not places:
        return []
    others = [f"{len(places) - MOST_NAMED:,} more"] if len(places) > MOST_NAMED else []
    have = "has" if len(places) == 1 else "have"
    return [
        f"Not finished: {len(places):,} of {counted(len(runs), 'run')} {have} not ended "
        f"({'; '.join([*places[:MOST_NAMED], *others])}). Figures are of what was recorded until then, and say neither who is "
        "ahead nor how long anything takes."
    ]


def _place(run: SavedRun) -> str | None:
    """How far a run is that has not ended, in words; None if it has, also where only its records say so."""
    last, seconds, rounds = run.records[-1], run.config["seconds"], run.config["rounds"]
    if run.is_finished or run.has_diverged:
        return None
    if last.seconds >= (math.inf if seconds is None else seconds):
        return None
    if last.version >= (math.inf if rounds is None else rounds):
        return None
    if seconds is not None:
        where = f"{last.seconds:g} of {seconds:g} {seconds_of([run])}"
    else:
        where = f"version {last.version:,}" + ("" if rounds is None else f" of {rounds:,}")
    return f"{run.label}, seed {run.seed}, at {where}"
