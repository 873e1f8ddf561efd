"""A comparison in a few sentences: how accurate HFL is, by device and by sample, and who reached the target first.

"Ahead" and "behind" are said only where the 95 % interval of the differences over seeds, paired by seed, does not hold 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hybridfl import charts
from hybridfl.interval import Interval
from hybridfl.records import SavedRun
from hybridfl.summary import Measure, Row, badness, baseline_name, by_label, finals, is_bound, measure_of
from hybridfl.summary_remarks import unfinished
from hybridfl.wording import in_html, listed

Groups = dict[str, list[SavedRun]]

NOTHING = "–"
GAP = "\N{NO-BREAK SPACE}"


def headline(runs: Sequence[SavedRun], rows: Sequence[Row], target: float) -> str:
    """What came out, in HTML: of HFL or, without it, of the best algorithm; nothing while runs have not ended."""
    if lines := unfinished(runs):
        return in_html(" ".join(lines))
    groups, main, measure = by_label(runs), charts.main_label(runs), measure_of(runs)
    contestants = [row for row in rows if not is_bound(groups[row.algorithm])]
    hero = next((row for row in contestants if row.algorithm == main), (contestants or rows)[0])
    rivals = [row for row in contestants if row is not hero]
    return " ".join(
        [
            *_end_sentences(hero, rivals, measure, groups),
            *_target_sentences(hero, rivals, target, charts.seconds_of(runs), in_html(baseline_name(runs) or "")),
            *(
                f"With all the data in one place, {_name(row)} reaches {shown(row, measure)}"
                f"{' by device' if measure == 'device_accuracy' else ''}: the upper bound."
                for row in rows
                if row is not hero and row not in contestants and not row.diverged
            ),
        ]
    )


def _end_sentence(subject: str, hero: Row, rivals: Sequence[Row], measure: Measure, groups: Groups) -> str:
    ends = f"{subject} <strong>{shown(hero, measure)}</strong>"
    best = min(
        (row for row in rivals if math.isfinite(getattr(row, measure))),
        key=lambda row: badness(row, measure),
        default=None,
    )
    if best is None:
        return f"{ends}."
    place = standing(groups[hero.algorithm], groups[best.algorithm], measure)
    return f"{ends}, {place} {_name(best)} at {shown(best, measure)}."


def _end_sentences(hero: Row, rivals: Sequence[Row], measure: Measure, groups: Groups) -> Iterator[str]:
    who = f"<strong>{_name(hero)}</strong>"
    over = f"Over {hero.seeds} seeds, " if hero.seeds > 1 else ""
    if hero.diverged:
        yield f"{who} has no final figures: it diverged."
    elif measure == "device_accuracy":
        subject = f"{over}{who} ends, by device, at a test accuracy of"
        yield _end_sentence(subject, hero, rivals, measure, groups)
        yield _end_sentence("By sample it ends at", hero, rivals, "test_accuracy", groups)
    else:
        noun = "loss" if measure == "test_loss" else "accuracy"
        yield _end_sentence(f"{over}{who} ends at a test {noun} of", hero, rivals, measure, groups)


def standing(group: Sequence[SavedRun], other: Sequence[SavedRun], measure: Measure) -> str:
    """`ahead of`, `behind` or `level with`: by the paired interval. Where there is none, as of one seed, only `against`."""
    difference = paired(group, other, measure)
    is_paired = {run.seed for run in group} == {run.seed for run in other}
    if not is_paired or not math.isfinite(difference.half):
        return "against"
    if difference.low <= 0 <= difference.high:
        return "level with"
    is_better = difference.mean < 0 if measure == "test_loss" else difference.mean > 0
    return "ahead of" if is_better else "behind"


def paired(group: Sequence[SavedRun], other: Sequence[SavedRun], measure: Measure) -> Interval:
    """The final figure less the other's, seed by seed, over the seeds that both have."""
    ours, theirs = (
        dict(zip([run.seed for run in each], finals(each, measure), strict=True)) for each in (group, other)
    )
    return Interval.of([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def _target_sentences(hero: Row, rivals: Sequence[Row], target: float, seconds: str, fedavg: str) -> Iterator[str]:
    """Who reached the target first, and when the algorithm that the page is about did."""
    if math.isnan(target):
        return
    reached = [row for row in [hero, *rivals] if math.isfinite(row.seconds_to_target)]
    if not reached:
        yield f"The target of {percent(target)} by sample is not reached by any."
        return
    least = min(row.seconds_to_target for row in reached)
    first = [row for row in reached if row.seconds_to_target == least]
    first_at = f"the target of {percent(target)} by sample after {least:.1f} {seconds}"
    if len(first) > 1:
        reaches = f"{listed([_name(row) for row in first])} are the first at {first_at}, at the same time"
    else:
        reaches = f"{_name(first[0])} is the first at {first_at}" if rivals else f"It reaches {first_at}"
    if hero not in first:
        own = f"reaches it after {hero.seconds_to_target:.1f}" if hero in reached else "does not reach it"
        yield f"{reaches}; {_name(hero)} {own}."
    elif math.isfinite(hero.speedup_bound):
        yield f"{reaches}; {fedavg} does not reach it, in a run {times(hero.speedup_bound)} as long."
    elif math.isfinite(hero.speedup) and hero.speedup != 1:
        yield f"{reaches}; {fedavg} needs {times(hero.speedup)} as long."
    else:
        yield f"{reaches}."


def shown(row: Row, measure: Measure) -> str:
    """A row's figure with its spread over seeds: `71.3 % ± 4.6`, or `0.412 ± 0.011` for a loss; or how many diverged."""
    if row.diverged:
        return f"{row.diverged} of {row.seeds} diverged"
    value, spread = getattr(row, measure), getattr(row, f"{measure}_std")
    if measure == "test_loss":
        return f"{value:.3g}" + ("" if math.isnan(spread) else f"{GAP}±{GAP}{spread:.2g}")
    return percent(value) + ("" if math.isnan(spread) else f"{GAP}±{GAP}{100 * spread:.1f}")


def percent(share: float) -> str:
    """`71.3 %`, which is never broken, or an en dash for NaN."""
    return f"{100 * share:.1f}{GAP}%" if math.isfinite(share) else NOTHING


def times(factor: float) -> str:
    """`3.0 ×`, or `1,200 ×`."""
    return (f"{factor:.1f}" if factor < 100 else f"{factor:,.0f}") + f"{GAP}×"


def _name(row: Row) -> str:
    return in_html(row.algorithm)
