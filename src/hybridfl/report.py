"""One page that shows a folder of runs: a headline, a table and figures to play with. It loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from hybridfl import charts
from hybridfl.errors import InputError, require_share
from hybridfl.fault_table import fault_section
from hybridfl.headline import NOTHING, Groups, headline, percent, shown, times
from hybridfl.panels import Control, Panel, panels
from hybridfl.records import SavedRun, difference, difference_of_seeds, load_all
from hybridfl.summary import (
    TAIL,
    Measure,
    Row,
    baseline_name,
    by_label,
    default_target,
    is_bound,
    is_known,
    namesakes,
    summarise,
    unpaired,
)
from hybridfl.summary_remarks import remarks, unfinished
from hybridfl.wording import counted, in_html, listed

log = logging.getLogger("hybridfl")


def write_report(folder: str | Path, target: float | None = None) -> Path:
    """Read all runs in or below a folder; write its `report.html` and, in `figures`, the figures for print."""
    folder = Path(folder)
    if any(find_spec(name) is None for name in ("plotly", "matplotlib", "scipy")):
        raise InputError("The report needs plotly, matplotlib and scipy: pip install 'hybridfl[report]'.")
    from hybridfl.plots import write_figures

    if target is not None and not math.isnan(target):
        require_share("target", target)
    runs = load_all(folder)
    check_comparable(runs, folder)
    goal = default_target(runs) if target is None else target
    for line in [*unfinished(runs), *unpaired(runs), *other_code(runs), *namesakes(runs), *remarks(runs, goal)]:
        log.warning("%s", line)
    path = folder / "report.html"
    try:
        page = render(runs, target)
        path.unlink(missing_ok=True)  # a link is not followed
        path.write_text(page, encoding="utf-8")
        if (folder / "figures").is_symlink():
            raise InputError(
                f"'{folder / 'figures'}' is a link to somewhere else: remove it, and the figures come in its place."
            )
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
    for label, group in by_label(runs).items():
        for run in group[1:]:
            differing = difference_of_seeds(group[0].config, run.config)
            if differing:
                raise InputError(
                    f"'{folder}' holds runs of '{label}' that are not of one algorithm and setting ({differing}, of seeds "
                    f"{group[0].seed} and {run.seed}): give each setting a label and a folder of its own."
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
    text = headline(runs, rows, goal)
    shown = [panel for panel in panels(runs, goal) if panel.figures]
    figures = json.dumps({panel.name: panel.figures for panel in shown}, separators=(",", ":"), allow_nan=False)
    template, plotly = files("hybridfl").joinpath("report.html").read_text(encoding="utf-8"), get_plotlyjs()
    return Template(template).substitute(
        policy=_policy(template, plotly),
        title=in_html(f"hybridfl report: {runs[0].config['task']['name']}"),
        headline=text,
        warnings="\n".join(f'<p class="warning">{in_html(line)}</p>' for line in _warnings(runs, goal)),
        table=_table(runs, rows),
        legend=_legend(runs, goal, goal == default_target(runs), text),
        sections="\n".join(_section(panel) for panel in shown),
        faults=fault_section(runs),
        configuration=_configuration(runs),
        plotly=plotly,
        unused=_unused_sheets(plotly),
        figures=figures.replace("<", "\\u003c"),
    )


def _policy(template: str, plotly: str) -> str:
    """A Content-Security-Policy: the page's own scripts and style sheet, known by their digests, and nothing from anywhere.

    plotly.js sets the `style` of single elements, makes an empty style sheet, and draws a heatmap as a picture in the page.
    """
    scripts = [text.replace("$plotly", plotly) for text in re.findall(r"<script>(.*?)</script>", template, re.DOTALL)]
    sheets = [*re.findall(r"<style>(.*?)</style>", template, re.DOTALL), ""]
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_digest, scripts))}",
            f"style-src-elem {' '.join(map(_digest, sheets))}",
            "style-src-attr 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _unused_sheets(plotly: str) -> str:
    """Empty style sheets with the names of those that plotly.js would make for maps: it makes none that is there."""
    names = re.findall(r'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)', plotly)
    return "".join(f'<style id="{name}"></style>' for name in dict.fromkeys(names))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _warnings(runs: Sequence[SavedRun], target: float) -> list[str]:
    lines = [*diverged(runs), *cut_off(runs), *unpaired(runs), *other_code(runs), *namesakes(runs)]
    return [*lines, *remarks(runs, target)]


def other_code(runs: Sequence[SavedRun]) -> list[str]:
    """A line for every algorithm whose seeds were computed by other code of the user's, or by another Python."""
    lines = []
    for label, group in by_label(runs).items():
        codes = [run.config.get("code", {}) for run in group]
        names = sorted({name for code in codes for name in code})
        changed = [name for name in names if len({code.get(name) for code in codes}) > 1]
        if changed:
            lines.append(f"{label}: its seeds were not computed by the same code ({listed(changed[:3])} differ).")
    return lines


def diverged(runs: Sequence[SavedRun]) -> list[str]:
    """A line for every algorithm whose weights or losses were no numbers in the end: it has no final figures."""
    lines = []
    for label, group in by_label(runs).items():
        where = [f"seed {run.seed} at version {run.records[-1].version}" for run in group if run.has_diverged]
        if where:
            on = f"{len(where)} of {counted(len(group), 'seed')}"
            lines.append(
                f"{label} diverged on {on} ({', '.join(where)}): its weights or losses are not finite. Its row has no means, "
                "and its curve ends with a mark."
            )
    return lines


def cut_off(runs: Sequence[SavedRun]) -> list[str]:
    """A line for every run whose last record lies well before the end of its budget: its final figures are early ones."""
    lines = []
    for run in runs:
        if run.has_diverged:
            continue
        if run.records[-1].version == 0:
            lines.append(f"{run.label}, seed {run.seed}: made no version, so its figures are those of the first model.")
            continue
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


def _table(runs: Sequence[SavedRun], rows: Sequence[Row]) -> str:
    groups, looks, main = by_label(runs), charts.looks(runs), charts.main_label(runs)
    columns = _columns(runs, groups)
    head = "".join(f"<th>{head}</th>" for head in ("algorithm", *columns))
    lines = []
    for row in sorted(rows, key=lambda row: is_bound(groups[row.algorithm])):
        look = looks[row.algorithm]
        bound = ' <span class="spread">upper bound</span>' if is_bound(groups[row.algorithm]) else ""
        swatch = f'<span class="swatch {look.dash}" style="color:{look.colour}"></span>'
        name = f"{swatch}{in_html(row.algorithm)}{bound}"
        kind = ' class="main"' if row.algorithm == main else ""
        cells = "".join(f"<td>{cell}</td>" for cell in (name, *(show(row) for show in columns.values())))
        lines.append(f"<tr{kind}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table>"


def _columns(runs: Sequence[SavedRun], groups: Groups) -> dict[str, Callable[[Row], str]]:
    """What the table has of each row, by heading; figures that no run knows are left out."""
    columns: dict[str, Callable[[Row], str]] = {}
    if is_known(runs, "device_accuracy"):
        columns["test accuracy by device"] = lambda row: _final(row, "device_accuracy")
        columns["worst tenth of devices"] = lambda row: percent(row.worst_accuracy)
        columns["devices below chance"] = lambda row: percent(row.below_chance)
    if is_known(runs, "test_accuracy"):
        columns["test accuracy by sample"] = lambda row: _final(row, "test_accuracy")
        if is_known(runs, "straggler_accuracy"):
            columns["by sample, on stragglers' data"] = lambda row: percent(row.straggler_accuracy)
        columns[f"{charts.seconds_of(runs)} to target"] = lambda row: _seconds(row.seconds_to_target)
        if (name := baseline_name(runs)) is not None:
            columns[f"speed-up over {in_html(charts.short(name))}"] = lambda row: (
                NOTHING if is_bound(groups[row.algorithm]) else _speedup(row)
            )
    else:
        columns["final test loss"] = lambda row: _final(row, "test_loss")
    columns["updates discarded"] = lambda row: _discarded(row, groups[row.algorithm])
    return columns


def _final(row: Row, measure: Measure) -> str:
    return f'<span class="diverged">{shown(row, measure)}</span>' if row.diverged else shown(row, measure)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if math.isfinite(seconds) else NOTHING


def _speedup(row: Row) -> str:
    if math.isfinite(row.speedup):
        return times(row.speedup)
    return f"&gt; {times(row.speedup_bound)}" if math.isfinite(row.speedup_bound) else NOTHING


def _discarded(row: Row, group: Sequence[SavedRun]) -> str:
    arrived = sum(run.records[-1].merged + run.records[-1].discarded for run in group) / len(group)
    share = f' <span class="spread">({100 * row.discarded / arrived:.0f} %)</span>' if row.discarded else ""
    return f"{row.discarded:,.0f}{share}"


def _legend(runs: Sequence[SavedRun], target: float, is_default: bool, text: str) -> str:
    """What the table means, and the words of the text above it."""
    origin = "95 % of the best that a federated algorithm ends at" if is_default else "as given"
    lines = [
        f"All figures are means over the records of the last {100 * TAIL:.0f} % of a run's {charts.seconds_of(runs)}, then "
        "over seeds; ± is the standard deviation over seeds.",
    ]
    if is_known(runs, "device_accuracy"):
        lines.append(
            "By device: every device counts alike, on its own test samples; the worst tenth is the mean of the tenth of the "
            "devices with the lowest accuracy; below chance are devices that a guess would serve better. By sample: a "
            "device with many samples counts for much."
        )
    if math.isfinite(target):
        lines.append(
            f"The target is a test accuracy by sample of {percent(target)}, {origin}; {NOTHING} where the mean over seeds "
            "never reaches it. Seconds to it are those of the first record that reaches it, and no finer than the records "
            "(--evaluate-every)."
        )
        if (name := baseline_name(runs)) is not None:
            name = in_html(name)
            lines.append(
                f"Speed-up: {name}'s seconds to the target over the algorithm's; &gt; where {name} never reaches it, and its "
                "whole run counts instead."
            )
    elif is_known(runs, "test_accuracy"):
        lines.append("No federated algorithm sets a target.")
    if any(word in text for word in ("ahead of", "behind", "level with")):
        lines.append(
            "In the text above, ahead and behind mean that the 95 % interval of the differences, paired by seed, does not "
            "hold 0; else it says level."
        )
    lines.append("Discarded: updates that arrived and were thrown away, per run.")
    if any(run.is_deployed and not run.config["task"].get("test_samples") for run in runs):
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
        f'{controls}\n<div class="frame"><div class="scroll"><div class="plot"></div></div></div>\n</section>'
    )


def _fieldset(name: str, control: Control) -> str:
    buttons = "".join(
        f'<input type="radio" name="{name}" id="{name}-{value}" value="{value}"{"" if number else " checked"}>'
        f'<label for="{name}-{value}">{in_html(text)}</label>'
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
        cell = between.join(f"<code>{in_html(value)}</code>" for value in distinct)
        lines.append(f"<tr><td>{in_html(name.replace('_', ' '))}</td><td>{cell}</td></tr>")
    table = f'<table class="config">{"".join(lines)}</table>'
    return f"<details{' open' if is_open else ''}><summary>{title}</summary>{table}</details>\n"
