"""What went wrong in some runs, by algorithm and by device, for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hybridfl.records import SavedRun
from hybridfl.summary import by_label
from hybridfl.wording import counted, in_html

MOST_DEVICES = MOST_REASONS = 20
MOST_LETTERS = 300
"""Of a reason."""


def fault_section(runs: Sequence[SavedRun]) -> str:
    """Lost jobs, refused updates, barred devices, forgotten updates: a section of the page, or nothing if all went well."""
    last = [run.records[-1] for run in runs]
    if not any(each.lost or each.refused or each.forgotten or each.barred for each in last):
        return ""
    return (
        '<section>\n<h2>What went wrong</h2>\n<p class="note">Jobs that were never answered, updates that were refused and '
        "what is wrong with them, summed over seeds. None of it ever touched the weights.</p>\n"
        f'<div class="scroll">{_by_algorithm(runs)}</div>\n<div class="scroll">{_by_device(runs)}</div>\n</section>'
    )


def _by_algorithm(runs: Sequence[SavedRun]) -> str:
    rows = []
    for label, group in by_label(runs).items():
        arrivals = [arrival for run in group for arrival in run.arrivals]
        last = [run.records[-1] for run in group]
        rows.append(
            (
                in_html(label),
                _reasons(Counter(arrival.lost for arrival in arrivals if arrival.lost is not None)),
                _reasons(Counter(arrival.refused for arrival in arrivals if arrival.refused is not None)),
                f"{sum(each.barred for each in last):,}",
                f"{sum(each.forgotten for each in last):,}",
            )
        )
    return _table(("algorithm", "jobs lost", "updates refused", "devices in quarantine", "devices forgotten"), rows)


def _by_device(runs: Sequence[SavedRun]) -> str:
    """Those that were refused most; a device of one seed is not that of another."""
    refused: Counter[tuple[str, int, int]] = Counter()
    reasons: dict[tuple[str, int, int], Counter[str]] = {}
    for run in runs:
        for arrival in run.arrivals:
            if arrival.refused is not None:
                device = run.label, run.seed, arrival.device
                refused[device] += 1
                reasons.setdefault(device, Counter())[arrival.refused] += 1
    if not refused:
        return ""
    rows = [
        (in_html(label), str(seed), in_html(device), _reasons(reasons[label, seed, device]))
        for (label, seed, device), _ in refused.most_common(MOST_DEVICES)
    ]
    more = len(refused) - len(rows)
    others = counted(more, "more device")
    note = f'<p class="note">and {others}.</p>' if more else ""
    return _table(("algorithm", "seed", "device", "its updates refused"), rows) + note


def _reasons(counts: Counter[str]) -> str:
    lines = [f"{count:,} {in_html(reason, MOST_LETTERS)}" for reason, count in counts.most_common(MOST_REASONS)]
    more = len(counts) - len(lines)
    return "<br>".join([*lines, *([f"and {counted(more, 'other reason')}"] if more else [])]) or "0"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="faults"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'
