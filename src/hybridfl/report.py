"""One page that shows a folder of runs: a headline, a table and figures to play with. It loads nothing from anywhere."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from hybridfl import charts
from hybridfl.errors import InputError, require_share
from hybridfl.fault_table import fault_section
from hybridfl.panels import Control, Panel, panels
from hybridfl.records import SavedRun, difference, load_all
from hybridfl.summary import TAIL, Row, by_label, default_target, is_bound, summarise

NOTHING = "–"
GAP = "\N{NO-BREAK SPACE}"


def write_report(folder: str | Path, target: float | None = None) -> Path:
    """Read all runs in or below a folder; write its `report.html` and, in `figures`, the figures for print."""
    folder = Path(folder)
    if find_spec("plotly") is None or find_spec("matplotlib") is None:
        raise InputError("The report needs plotly and matplotlib: pip install 'hybridfl[report]'.")
    from hybridfl.plots import write_figures

    if target is not None and not math.isnan(target):
        require_share("target", target)
    runs = load_all(folder)
    check_comparable(runs, folder)
    path = folder / "report.html"
    try:
        path.write_text(render(runs, target), encoding="utf-8")
        write_figures(runs, folder / "figures")
    except OSError as error:
        raise InputError(
            f"Cannot write the report to '{folder}' ({error.strerror}): copy the results elsewhere."
        ) from None
    return path


def check_comparable(runs: Sequence[SavedRun], folder: Path) -> None:
    """Refuse to average over different experiments."""
    for run in runs[1:]:
        nearest = next((other for other in runs if other.seed == run.seed and other is not run), runs[0])
        differing = difference(nearest.config, run.config)
        if differing:
            raise InputError(
                f"'{folder}' holds runs that cannot be compared ({differing}): give the folder of one comparison."
            )
    (label, seed), count = Counter((run.label, run.seed) for run in runs).most_common(1)[0]
    if count > 1:
        raise InputError(
            f"'{folder}' holds {count} runs of '{label}' with seed {seed}: give the folder of one comparison, "
            "or tell them apart by their labels."
        )


def render(runs: Sequence[SavedRun], target: float | None = None) -> str:
    """The page, as text."""
    from plotly.offline import get_plotlyjs

    goal = default_target(runs) if target is None else target
    rows = summarise(runs, goal)
    shown = [panel for panel in panels(runs, goal) if panel.figures]
    figures = json.dumps({panel.name: panel.figures for panel in shown}, separators=(",", ":"), allow_nan=False)
    template = Template(files("hybridfl").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(f"hybridfl report: {runs[0].config['task']['name']}"),
        headline=headline(runs, rows, goal),
        warnings="\n".join(f'<p class="warning">{escape(line)}</p>' for line in cut_off(runs)),
        table=_table(runs, rows),
        legend=_legend(runs, goal, is_default=goal == default_target(runs)),
        sections="\n".join(_section(panel) for panel in shown),
        faults=fault_section(runs),
        configuration=_configuration(runs),
        plotly=get_plotlyjs(),
        figures=figures.replace("<", "\\u003c"),
    )


def headline(runs: Sequence[SavedRun], rows: Sequence[Row], target: float) -> str:
    """What came out, in a few sentences of HTML: of HFL or, without it, of the most accurate algorithm."""
    groups, main = by_label(runs), charts.main_label(runs)
    contestants = [row for row in rows if not is_bound(groups[row.algorithm])]
    hero = next((row for row in contestants if row.algorithm == main), (contestants or rows)[0])
    rivals = [row for row in contestants if row is not hero]
    return " ".join(
        [
            _accuracy_sentence(hero, rivals, len(groups[hero.algorithm])),
            *_target_sentence(hero, target, charts.seconds_of(runs)),
            *_straggler_sentence(hero, rivals),
            *(
                f"With all the data in one place, {_name(row)} reaches {percent(row.test_accuracy)}: the upper bound."
                for row in rows
                if row is not hero and row not in contestants
            ),
        ]
    )


def _accuracy_sentence(hero: Row, rivals: Sequence[Row], seeds: int) -> str:
    over = f" over {seeds} seeds" if seeds > 1 else ""
    ends = f"<strong>{_name(hero)}</strong> ends at a test accuracy of <strong>{_accuracy(hero)}</strong>{over}"
    if not rivals:
        return f"{ends}."
    place = "ahead of" if hero.test_accuracy >= rivals[0].test_accuracy else "behind"
    return f"{ends}, {place} {_name(rivals[0])} at {_accuracy(rivals[0])}."


def _target_sentence(hero: Row, target: float, seconds: str) -> Iterable[str]:
    if math.isnan(target):
        return
    if math.isnan(hero.seconds_to_target):
        yield f"It does not reach the target of {percent(target)}."
        return
    reaches = f"It reaches the target of {percent(target)} after {hero.seconds_to_target:.1f} {seconds}"
    if math.isfinite(hero.speedup_bound):
        yield f"{reaches}; FedAvg does not, in a run {_times(hero.speedup_bound)} as long."
    elif math.isfinite(hero.speedup) and hero.speedup != 1:
        yield f"{reaches}; FedAvg needs {_times(hero.speedup)} as long."
    else:
        yield f"{reaches}."


def _straggler_sentence(hero: Row, rivals: Sequence[Row]) -> Iterable[str]:
    if math.isnan(hero.straggler_accuracy):
        return
    others = [row for row in rivals if math.isfinite(row.straggler_accuracy)]
    best = max(others, key=lambda row: row.straggler_accuracy, default=None)
    beside = f"; the best of the others there, {_name(best)}, {percent(best.straggler_accuracy)}" if best else ""
    yield f"On the stragglers' data it reaches {percent(hero.straggler_accuracy)}{beside}."


def cut_off(runs: Sequence[SavedRun]) -> list[str]:
    """A line for every run whose last record lies well before the end of its budget: its final figures are early ones."""
    lines = []
    for run in runs:
        last, seconds, rounds = run.records[-1], run.config.get("seconds"), run.config.get("rounds")
        if rounds is not None and last.version >= rounds:
            continue
        if seconds is not None and last.seconds < (1 - TAIL) * seconds:
            lines.append(
                f"{run.label}, seed {run.seed}: no record after {last.seconds:g} of {seconds:g} {charts.seconds_of([run])}."
            )
        elif seconds is None and rounds is not None:
            lines.append(f"{run.label}, seed {run.seed}: no record after version {last.version} of {rounds}.")
    return lines


def percent(share: float) -> str:
    """`71.3 %`, which is never broken, or an en dash for NaN."""
    return f"{100 * share:.1f}{GAP}%" if math.isfinite(share) else NOTHING


def _accuracy(row: Row) -> str:
    spread = "" if math.isnan(row.test_accuracy_std) else f"{GAP}±{GAP}{100 * row.test_accuracy_std:.1f}"
    return percent(row.test_accuracy) + spread


def _times(factor: float) -> str:
    return (f"{factor:.1f}" if factor < 100 else f"{factor:,.0f}") + f"{GAP}×"


def _name(row: Row) -> str:
    return escape(row.algorithm)


def _table(runs: Sequence[SavedRun], rows: Sequence[Row]) -> str:
    heads = (
        "algorithm",
        "final test accuracy",
        f"{charts.seconds_of(runs)} to target",
        "speed-up over FedAvg",
        "accuracy on stragglers' data",
        "updates discarded",
    )
    groups, looks, main = by_label(runs), charts.looks(runs), charts.main_label(runs)
    lines = []
    for row in sorted(rows, key=lambda row: is_bound(groups[row.algorithm])):
        colour, group = looks[row.algorithm].colour, groups[row.algorithm]
        bound = ' <span class="spread">upper bound</span>' if is_bound(group) else ""
        cells = (
            f'<span class="swatch" style="color:{colour}"></span>{_name(row)}{bound}',
            _accuracy(row),
            f"{row.seconds_to_target:,.1f}" if math.isfinite(row.seconds_to_target) else NOTHING,
            NOTHING if bound else _speedup(row),
            percent(row.straggler_accuracy),
            _discarded(row, group),
        )
        kind = ' class="main"' if row.algorithm == main else ""
        lines.append(f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{head}</th>" for head in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table>"


def _speedup(row: Row) -> str:
    if math.isfinite(row.speedup):
        return _times(row.speedup)
    return f"&gt; {_times(row.speedup_bound)}" if math.isfinite(row.speedup_bound) else NOTHING


def _discarded(row: Row, group: Sequence[SavedRun]) -> str:
    arrived = sum(run.records[-1].merged + run.records[-1].discarded for run in group) / len(group)
    share = f' <span class="spread">({100 * row.discarded / arrived:.0f} %)</span>' if row.discarded else ""
    return f"{row.discarded:,.0f}{share}"


def _legend(runs: Sequence[SavedRun], target: float, is_default: bool) -> str:
    origin = "95 % of the best final accuracy of a federated algorithm" if is_default else "as given"
    lines = [
        f"Final: the mean over the last {100 * TAIL:.0f} % of a run's {charts.seconds_of(runs)}, then over seeds; "
        "± is the standard deviation over seeds.",
        f"The target is a test accuracy of {percent(target)}, {origin}; {NOTHING} where the mean over seeds never reaches it."
        if math.isfinite(target)
        else "There is no federated algorithm to set a target.",
        "Speed-up: FedAvg's seconds to the target over the algorithm's; &gt; where FedAvg never reaches it, and its whole "
        "run counts instead. Discarded: updates that arrived and were thrown away, a run.",
    ]
    if any(run.is_deployed and not run.config["task"]["test_samples"] for run in runs):
        lines.append(
            "The server had no test set: test scores are what devices said of the models they were sent, each device's last, "
            "on samples they hold out. Devices that have not answered yet have no part in them."
        )
    return " ".join(lines)


def _section(panel: Panel) -> str:
    controls = "".join(_fieldset(f"{panel.name}-{place}", control) for place, control in enumerate(panel.controls))
    controls += "".join(_switch(f"{panel.name}-{word}", word, text) for word, text in panel.options.items())
    return (
        f'<section data-panel="{panel.name}">\n<h2>{panel.title}</h2>\n<p class="note">{panel.caption}</p>\n'
        f'{controls}\n<div class="scroll"><div class="plot"></div></div>\n</section>'
    )


def _fieldset(name: str, control: Control) -> str:
    buttons = "".join(
        f'<input type="radio" name="{name}" id="{name}-{value}" value="{value}"{"" if number else " checked"}>'
        f'<label for="{name}-{value}">{escape(text)}</label>'
        for number, (value, text) in enumerate(control.choices.items())
    )
    return f"<fieldset><legend>{control.title}</legend>{buttons}</fieldset>"


def _switch(name: str, word: str, text: str) -> str:
    box = f'<input type="checkbox" id="{name}" value="{word}" checked>'
    return f'<fieldset>{box}<label for="{name}">{text}</label></fieldset>'


def _configuration(runs: Sequence[SavedRun]) -> str:
    """Every value of every run's configuration, each once."""
    shared = [
        {name: value for name, value in run.config.items() if name not in ("label", "algorithm", "code", "versions")}
        for run in runs
    ]
    algorithms = {label: [run.config["algorithm"] for run in group] for label, group in by_label(runs).items()}
    versions = [run.config.get("versions", {}) for run in runs]
    return (
        _details("Task, fleet and budget", _distinct(shared), is_open=True)
        + _details("Algorithms", algorithms, is_open=True)
        + _details("Software", _distinct(versions))
    )


def _distinct(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values each name has; what is nested goes by `outer name`."""
    values: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in config.items():
            inner = (
                {f"{name} {key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
            )
            for key, each in inner.items():
                values.setdefault(key, []).append(each)
    return values


def _details(title: str, values: Mapping[str, Sequence[Any]], is_open: bool = False) -> str:
    lines = []
    for name, all_values in values.items():
        distinct = dict.fromkeys(NOTHING if value is None else str(value) for value in all_values)
        between = "<br>" if any(len(value) > 20 for value in distinct) else ", "
        cell = between.join(f"<code>{escape(value)}</code>" for value in distinct)
        lines.append(f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{cell}</td></tr>")
    table = f'<table class="config">{"".join(lines)}</table>'
    return f"<details{' open' if is_open else ''}><summary>{title}</summary>{table}</details>\n"
