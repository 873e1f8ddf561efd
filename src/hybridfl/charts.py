"""What the figures show, before anything is drawn: curves over seeds, staleness, a timeline, and who has which colour."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hybridfl.records import Arrival, SavedRun
from hybridfl.summary import Floats, by_label, finals, held, is_bound, is_known, measure_of

Axis = Literal["seconds", "version"]
Quantity = Literal["device_accuracy", "test_accuracy", "worst_accuracy", "test_loss", "train_loss"]

QUANTITIES: dict[Quantity, str] = {
    "device_accuracy": "test accuracy by device",
    "test_accuracy": "test accuracy by sample",
    "worst_accuracy": "worst tenth of devices",
    "test_loss": "test loss",
    "train_loss": "train loss",
}


def quantities(runs: Sequence[SavedRun]) -> dict[Quantity, str]:
    """Those that some record knows, and what they are called."""
    return {name: text for name, text in QUANTITIES.items() if is_known(runs, name)}


def is_share(quantity: Quantity) -> bool:
    """Whether it is an accuracy, which is shown in percent; a loss has no limits."""
    return quantity.endswith("_accuracy")


def is_wide(runs: Sequence[SavedRun], quantity: Quantity) -> bool:
    """Whether a logarithmic axis suits it: all is above 0, and the greatest at least three times the least."""
    values = np.concatenate([_column(run, quantity) for run in runs])
    values = values[np.isfinite(values)]
    return bool(len(values) and values.min() > 0 and values.max() >= 3 * values.min())


def seconds_of(runs: Sequence[SavedRun]) -> str:
    """What a run's seconds are called."""
    return "seconds" if all(run.is_deployed for run in runs) else "virtual seconds"


def axes_of(runs: Sequence[SavedRun]) -> dict[Axis, str]:
    """What a curve is drawn against, and what that is called."""
    return {"seconds": seconds_of(runs), "version": "version"}


VERMILLION = "#D55E00"
RIVALS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, less yellow, which is faint on white."""
FRESH_TO_STALE = ("#D3ECE4", "#63B3BF", "#2F6C9E", "#33245C")
NONE_TO_ALL = ("#FFFFFF", "#A9CCE3", "#3C85B8", "#0B4F7D")
GREY = "#6B7280"

MOST_POINTS = 400
MOST_DEVICES = 25
MOST_INSTANTS = 100


@dataclass(frozen=True)
class Look:
    """How an algorithm's line is drawn."""

    colour: str
    dash: Literal["solid", "dash", "dot"] = "solid"
    width: float = 1.5
    band: float = 0.06
    """How opaque the band over seeds is."""


def shade(stops: Sequence[str], share: float) -> str:
    """The colour that lies `share` of the way from the first of `stops` to the last."""
    channels = [[int(stop[place : place + 2], 16) for stop in stops] for place in (1, 3, 5)]
    mixed = [round(float(np.interp(share * (len(stops) - 1), range(len(stops)), channel))) for channel in channels]
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def main_label(runs: Sequence[SavedRun]) -> str | None:
    """The algorithm a report is about: the one labelled `hfl`, else the most accurate HFL, if there is one."""
    groups = {label: group for label, group in by_label(runs).items() if _algorithm(group).startswith("HFL(")}
    if "hfl" in groups:
        return "hfl"
    measure = measure_of(runs)
    better = -1 if measure == "test_loss" else 1
    ends = {label: better * final(group, measure) for label, group in groups.items()}
    return max(groups, key=lambda label: -math.inf if math.isnan(ends[label]) else ends[label], default=None)


def looks(runs: Sequence[SavedRun]) -> dict[str, Look]:
    """One look an algorithm, the same on all figures: HFL first and widest, the upper bound last and dotted."""
    groups, main = by_label(runs), main_label(runs)
    bounds = [label for label, group in groups.items() if is_bound(group)]
    rivals = [label for label in groups if label != main and label not in bounds]
    return {
        **({main: Look(VERMILLION, width=3.0, band=0.16)} if main is not None else {}),
        **{
            label: Look(RIVALS[place % len(RIVALS)], "dash" if place // len(RIVALS) % 2 else "solid")
            for place, label in enumerate(rivals)
        },
        **{label: Look(GREY, "dot") for label in bounds},
    }


@dataclass(frozen=True, eq=False)
class Curve:
    """One quantity of one algorithm: the mean, least and greatest over seeds from `x[k]` on until `x[k + 1]`.

    Where a seed diverges, there is no mean any more: all are NaN from there on.
    """

    x: Floats
    mean: Floats
    low: Floats
    high: Floats

    @property
    def end(self) -> tuple[float, float] | None:
        """The last point before a seed diverged; None if none did."""
        places = np.flatnonzero(np.isfinite(self.mean))
        is_cut = len(places) > 0 and places[-1] < len(self.x) - 1
        return (float(self.x[places[-1]]), float(self.mean[places[-1]])) if is_cut else None

    def corners(self) -> Curve:
        """The same steps without the points at which nothing changes."""
        values = np.array([self.mean, self.low, self.high])
        keep = np.ones(len(self.x), dtype=bool)
        keep[1:-1] = (np.nan_to_num(values[:, 1:-1]) != np.nan_to_num(values[:, :-2])).any(axis=0)
        return Curve(self.x[keep], self.mean[keep], self.low[keep], self.high[keep])


def curves(runs: Sequence[SavedRun], axis: Axis, quantity: Quantity) -> dict[str, Curve]:
    """One curve an algorithm, all on one grid, each up to its own end."""
    points = _grid(runs, axis)
    return {label: _curve(group, axis, quantity, points) for label, group in by_label(runs).items()}


def _grid(runs: Sequence[SavedRun], axis: Axis) -> Floats:
    """The instants of all records, or so many of them, evenly spread. Versions start at 1: their axis is logarithmic."""
    instants: Floats = np.unique(np.concatenate([_column(run, axis) for run in runs]))
    if axis == "version":
        instants = instants[instants >= 1]
    if len(instants) <= MOST_POINTS:
        return instants
    spread = np.geomspace if axis == "version" else np.linspace
    places = np.searchsorted(instants, spread(instants[0], instants[-1], MOST_POINTS))
    thinned: Floats = instants[np.unique(np.minimum(places, len(instants) - 1))]
    return thinned


def _curve(group: Sequence[SavedRun], axis: Axis, quantity: Quantity, points: Floats) -> Curve:
    """A seed whose run ended before the others keeps its last value: so does its joint model."""
    x = points[points <= max(_column(run, axis)[-1] for run in group)]
    seeds = np.array([held(x, _column(run, axis), _column(run, quantity)) for run in group])
    return Curve(x, seeds.mean(axis=0), seeds.min(axis=0), seeds.max(axis=0))


def _column(run: SavedRun, name: str) -> Floats:
    """One column of a run's records; what diverged is NaN."""
    is_lost = name not in ("seconds", "version")
    column = np.array(
        [math.nan if is_lost and each.has_diverged else getattr(each, name) for each in run.records], dtype=np.float64
    )
    return np.where(np.isfinite(column), column, math.nan)


def final(group: Sequence[SavedRun], name: str) -> float:
    """One column's final figure, over seeds; NaN if a seed diverged."""
    return float(finals(group, name).mean())


Kind = Literal["all", "normal", "slow"]

KINDS: dict[Kind, str] = {"all": "all devices", "normal": "normal devices", "slow": "stragglers"}


@dataclass(frozen=True, eq=False)
class Spread:
    """The devices of all seeds in the order of their accuracy: `accuracy[k]` is that of the device `share[k]` of the way up."""

    share: Floats
    accuracy: Floats


def device_spread(group: Sequence[SavedRun], kind: Kind) -> Spread | None:
    """How an algorithm's last models do on one device after the other; None where no device of the kind has test samples.

    A diverged seed has no scores by device, and without it the others would flatter: None, too.
    """
    if any(run.has_diverged for run in group):
        return None
    wanted = {"all": (False, True), "normal": (False,), "slow": (True,)}[kind]
    accuracy = np.sort([each.accuracy for run in group for each in run.devices if each.is_straggler in wanted])
    if not len(accuracy):
        return None
    share = np.linspace(0, 1, len(accuracy)) if len(accuracy) > 1 else np.array([0.5])
    places = np.unique(np.linspace(0, len(accuracy) - 1, MOST_POINTS).round().astype(int))
    return Spread(share[places], accuracy[places])


def staleness_bins(runs: Sequence[SavedRun]) -> tuple[range, ...]:
    """Every staleness by itself or, where they reach beyond 16 versions, in bins of doubling width; empty if none merged."""
    greatest = max((int(_staleness([run]).max(initial=-1)) for run in runs), default=-1)
    if greatest <= 16:
        return tuple(range(staleness, staleness + 1) for staleness in range(greatest + 1))
    doubling = [range(2**k + 1, 2 ** (k + 1) + 1) for k in range(1, (greatest - 1).bit_length())]
    return (range(1), range(1, 2), range(2, 3), *doubling)


def bin_name(staleness: range) -> str:
    """`4`, or `5–8`."""
    return str(staleness[0]) if len(staleness) == 1 else f"{staleness[0]}–{staleness[-1]}"


def staleness_shares(group: Sequence[SavedRun], bins: Sequence[range]) -> Floats:
    """Which share of the merged updates of all seeds falls into each bin; NaN if none was merged."""
    staleness = _staleness(group)
    counts = [np.count_nonzero((staleness >= each.start) & (staleness < each.stop)) for each in bins]
    return np.array(counts) / (len(staleness) or math.nan)


def _staleness(group: Sequence[SavedRun]) -> NDArray[np.int64]:
    return np.array([a.staleness for run in group for a in run.arrivals if a.is_merged], dtype=np.int64)


@dataclass(frozen=True)
class Bar:
    """One job: the row of its device, and when its update was merged; NaN if it was discarded or the run ended before."""

    row: int
    arrival: Arrival
    merged_at: float


@dataclass(frozen=True)
class Timeline:
    """What the devices of one run did up to `end`: row r belongs to `devices[r]`, the fastest first."""

    devices: tuple[int, ...]
    seconds: tuple[float, ...]
    """What a job takes each of them, on average."""
    bars: tuple[Bar, ...]
    made: tuple[float, ...]
    """The instants at which versions were made; empty if there are so many that their lines would hide the rest."""
    end: float


def timeline_end(runs: Sequence[SavedRun]) -> float:
    """Twice what the slowest job takes, but no more than 40 jobs of the median length; 0 if nothing arrived."""
    durations = [arrival.arrived_at - arrival.sent_at for run in runs for arrival in run.arrivals]
    return float(min(2 * np.max(durations), 40 * np.median(durations))) if durations else 0.0


def timeline(run: SavedRun, end: float) -> Timeline:
    """The first `end` seconds of a run. Of many devices, some are shown: evenly spread from the fastest to the slowest."""
    arrivals = [arrival for arrival in run.arrivals if arrival.sent_at < end]
    durations: dict[int, list[float]] = {}
    for arrival in arrivals:
        durations.setdefault(arrival.device, []).append(arrival.arrived_at - arrival.sent_at)
    ordered = sorted((float(np.mean(seconds)), device) for device, seconds in durations.items())
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_DEVICES)).round().astype(int)
    shown = [ordered[place] for place in places]
    rows = {device: row for row, (_, device) in enumerate(shown)}
    instants, versions = _versions_made(run)
    made = instants[(np.diff(versions, prepend=0) > 0) & (instants <= end)].tolist()
    return Timeline(
        devices=tuple(rows),
        seconds=tuple(seconds for seconds, _ in shown),
        bars=tuple(
            Bar(rows[arrival.device], arrival, _merged_at(arrival, instants, versions))
            for arrival in arrivals
            if arrival.device in rows
        ),
        made=tuple(made) if len(made) <= MOST_INSTANTS else (),
        end=end,
    )


def _versions_made(run: SavedRun) -> tuple[Floats, NDArray[np.int64]]:
    """Instants, and the newest version known to exist by then: because it was recorded, or because a job was sent with it."""
    known = [(record.seconds, record.version) for record in run.records]
    known += [(arrival.sent_at, arrival.version) for arrival in run.arrivals]
    instants, versions = zip(*sorted(set(known)), strict=True)
    return np.array(instants), np.maximum.accumulate(np.array(versions))


def _merged_at(arrival: Arrival, instants: Floats, versions: NDArray[np.int64]) -> float:
    """An update that is merged `staleness` versions after the one it was sent with makes the version after that."""
    if not arrival.is_merged:
        return math.nan
    place = max(
        int(np.searchsorted(instants, arrival.arrived_at)),
        int(np.searchsorted(versions, arrival.version + arrival.staleness, side="right")),
    )
    return float(instants[place]) if place < len(instants) else math.nan


MOST_LETTERS = 32


def names(labels: Iterable[str], most: int = MOST_LETTERS) -> dict[str, str]:
    """Each label as it fits into a legend: long ones that begin alike are told apart by the part in which they differ.

    >>> names(["hfl", "HFL(Memory(RankOne(trust=0.3)))", "HFL(Memory(RankOne(trust=0.6)))"], most=20)
    {'hfl': 'hfl', 'HFL(Memory(RankOne(trust=0.3)))': 'HFL(…trust=0.3…', 'HFL(Memory(RankOne(trust=0.6)))': 'HFL(…trust=0.6…'}
    """
    every = list(dict.fromkeys(labels))
    shown = {label: short(label, most) for label in every}
    for text in [text for text, count in Counter(shown.values()).items() if count > 1]:
        alike = [label for label in every if shown[label] == text]
        shown |= {label: _differing(label, alike, most) for label in alike}
    counts = Counter(shown.values())
    return {
        label: text if counts[text] == 1 else f"{text} {every.index(label) + 1}"  # still alike: numbered in their order
        for label, text in shown.items()
    }


def short(label: str, most: int = MOST_LETTERS) -> str:
    """A label that fits into a legend."""
    return label if len(label) <= most else label[: most - 1] + "…"


def _differing(label: str, alike: Sequence[str], most: int) -> str:
    """`HFL(…trust=0.3…`: the name, and the words in which it differs from the labels that begin alike."""
    same = _letters_alike(alike)
    behind = _letters_alike([each[same:][::-1] for each in alike])
    begin = max((label.rfind(mark, 0, same) + 1 for mark in "(, "), default=0)
    name = label.partition("(")[0]
    middle = label[begin : len(label) - behind]
    room = most - len(name) - 3
    return f"{name}(…{middle[: room - 1]}…" if room > 1 and begin > len(name) else short(label, most)


def _letters_alike(texts: Sequence[str]) -> int:
    """How many letters all of them begin with."""
    differing = (place for place, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1)
    return next(differing, min(map(len, texts)))


def _algorithm(group: Sequence[SavedRun]) -> str:
    return str(group[0].config["algorithm"])
