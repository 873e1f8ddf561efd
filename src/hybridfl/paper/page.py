"""The page: every figure, a verdict on every claim, and how all of it was made. Needs results only, no training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridfl import stored
from hybridfl.errors import InputError
from hybridfl.interval import Interval
from hybridfl.paper import results
from hybridfl.paper.claims import verdicts
from hybridfl.paper.figures import save
from hybridfl.paper.results import Result, labels, of
from hybridfl.paper.study import Study
from hybridfl.paper.verdict import Book, Ruling, Verdict
from hybridfl.stored import Check
from hybridfl.wording import counted, in_one_line

NAME = "README.md"
MOST_ROWS = 12


def write_page(folder: Path, studies: Sequence[Study]) -> Path:
    """Draw the figures of all studies whose results are in `folder`/results, and write the page beside them."""
    book, about = read_book(folder, studies)
    if not book.results:
        raise InputError(f"'{folder}' holds no results: run `hybridfl reproduce all --out {folder}` first.")
    done = [study for study in studies if study.name in book]
    (folder / "figures").mkdir(exist_ok=True)
    for study in done:
        save(study, book[study.name], book.asides.get(study.name), folder / "figures" / f"{study.name}.svg")
    parts = [
        _head(about),
        _table(verdicts(book)) if not _is_quick(about) else "",
        _sizes(about),
        *(_section(study, book[study.name], about[study.name]) for study in done),
    ]
    page = folder / NAME
    page.write_text("\n".join(parts))
    return page


def read_book(folder: Path, studies: Sequence[Study]) -> tuple[Book, dict[str, dict[str, Any]]]:
    """The results that are there, and how they were made."""
    paths = {study.name: folder / "results" / f"{study.name}.jsonl" for study in studies}
    about = {study.name: read_about(folder, study) for study in studies}
    found = {
        study.name: results.read(paths[study.name])
        for study in studies
        if paths[study.name].exists() and (study.aside is None or "aside" in about[study.name])
    }
    return Book(found, {name: each["aside"] for name, each in about.items() if "aside" in each}), about


def read_about(folder: Path, study: Study) -> dict[str, Any]:
    """How a study was run."""
    try:
        path = folder / "results" / f"{study.name}.about.json"
        about = stored.read_json(path)
    except (OSError, ValueError):
        return {}
    found = stored.checked(f"'{path}'", about, _ABOUT, (), "put the file back as it was")
    for name, wanted in _WANTED.items():
        if name in found:
            stored.checked(f"'{path}'", about, {}, wanted, "put the file back as it was")
    return {**about, **found}


def _data_set(value: Any) -> dict[str, Any]:
    """What a study's first seed learned from."""
    checks = {**dict.fromkeys(("train_samples", "test_samples", "parameters"), stored.count), "model": stored.text}
    if type(value) is not dict or not value.keys() >= checks.keys():
        raise ValueError("does not say what the data were")
    return {**value, **{name: check(value[name]) for name, check in checks.items()}}


_ABOUT: dict[str, Check] = {
    "task": stored.name,
    "data": _data_set,
    "devices": stored.count,
    "rounds": stored.count,
    "device": stored.name,
    "versions": stored.texts_by_name,
    "wall_seconds": stored.measure,
}
_WANTED = {"data": ("devices", "rounds"), "versions": ("device", "wall_seconds")}
"""What has to be there beside something else."""


def _is_quick(about: dict[str, dict[str, Any]]) -> bool:
    return any(each.get("devices", 100) < 100 for each in about.values())


def _head(about: dict[str, dict[str, Any]]) -> str:
    warning = "\n**A quick look: tiny runs that show that everything works. Their numbers mean nothing.**\n"
    return f"""# The paper, figure by figure
{warning if _is_quick(about) else ""}
"Stragglers Are Not Disaster: A Hybrid Federated Learning Algorithm with Delayed Gradients", rebuilt. This page is written by
`hybridfl reproduce all --out FOLDER` or, from the results in FOLDER, without training, by `hybridfl reproduce page --out
FOLDER`; `hybridfl reproduce list` names every study. Figure 1 of the paper is a drawing of the algorithm.

Unless a figure says otherwise: 100 devices, 90 % of them stragglers that take up to 10 s longer than the others' 1 s, T = 200
rounds, E = 5 local epochs, batches of 64, η_t = 0.1/(1 + t), w_0 = 0, multinomial logistic regression with an L2 term of
10⁻⁴‖w‖². *HFL as printed* is the paper's Eq. (New) and Eq. (Lambda) letter by letter; *HFL* is our reading, which remembers
every straggler's last gradient ([why](../reading-of-the-paper.md)); *drift control* goes past the paper. FedAvg chooses devices
in proportion to their delay, as the paper sets it; *uniform* is the fair choice. *Final* is the mean over the records of the
last 15 % of a run's virtual time, ± the 95 % confidence interval over seeds (Student's t). A seed decides the data or how they
are shared out, who is slow, and every draw.

**Accuracy by sample and by device.** The paper counts every test sample alike, and so do its claims. Where a few devices hold
most of the samples, that says little of the others: *by device* every device counts alike, on its own samples; *worst tenth* is
the mean of the tenth of the devices with the lowest accuracy, *below chance* the share of the devices whose accuracy is below
1/C with C classes. *HFL, by device* gives every device the same weight in the joint model (`hfl-by-device`).

**What was chosen, and on what.** HFL's correction (`Secant(3)`) and drift control's bound (2) were chosen by test accuracy on
seeds 0 to 2 of Synthetic and Fashion-MNIST, which are seeds of this page too ([the tables](../reading-of-the-paper.md)). The
cosine schedule of *drift control, cosine* came from there as well; `search-fashion-mnist`, on images held out of the training
set, finds nothing better by more than chance. Rivals have the paper's settings or their authors' defaults; FedAvg went through
the same search.

## Verdicts

HFL is judged as printed, then in our reading, then with drift control: the first of which a claim holds gives the verdict. It
holds if the 95 % interval, taken of differences seed by seed, lies on the claim's side; if the interval lies on both, we cannot
tell. A number of the paper's, which has no spread, is met within a point of our interval.
"""


def _table(rows: Sequence[Verdict]) -> str:
    lines = [
        "| claim of the paper | paper | as printed, or the rival | our reading | drift control | verdict | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        said = row.judgement
        texts = (said.printed.text, said.ours.text, said.drift.text, f"**{said.ruling}**", said.why)
        lines.append(f"| {' | '.join((row.claim, row.paper, *texts))} |")
    counts = Counter(row.judgement.ruling for row in rows)
    total = ", ".join(f"{counts[ruling]} {words}" for ruling, words in RULINGS.items() if counts[ruling])
    return "\n".join([f"Of {counted(len(rows), 'claim')} {total}.", "", *lines, ""])


RULINGS: dict[Ruling, str] = {
    "holds": "hold as they stand",
    "holds for our reading": "hold for our reading",
    "holds with drift control": "hold with drift control",
    "does not hold": "do not hold",
    "cannot tell": "cannot be told",
}
SIZES = {
    "fig2-fashion-mnist": ("Fashion-MNIST", 70_000),
    "fig2-synthetic-0-0": ("Synthetic(0,0)", 42_522),
    "fig8-synthetic-0.5-0.5": ("Synthetic(0.5,0.5)", 42_522),
    "fig2-synthetic-1-1": ("Synthetic(1,1)", 27_348),
    "fig5-shakespeare": ("Shakespeare", 517_106),
    "fig5-sent140": ("Sent140", 40_783),
    "fig9-mnist": ("MNIST", 70_000),
}
"""The paper's table of data sets: samples, on 100 devices each."""


def _sizes(about: dict[str, dict[str, Any]]) -> str:
    """Its counterpart here, of the first seed."""
    rows = [
        f"| {name} | {size:,} | {data['train_samples'] + data['test_samples']:,} |"
        for study, (name, size) in SIZES.items()
        if isinstance(data := about.get(study, {}).get("data"), dict)
    ]
    head = ["## Data", "", "| | samples in the paper | here, training and test, seed 0 |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""]) if rows else ""


def _section(study: Study, found: Sequence[Result], about: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"## {study.name}",
            "",
            f"{study.shows[0].upper()}{study.shows[1:]}: {_plain(about.get('task', study.task))}"
            f"{_data(about)}.{_setting(study)}",
            "",
            f"![{study.name}](figures/{study.name}.svg)",
            "",
            *([study.says(found), ""] if study.says is not None else []),
            *(_finals(found) if found[0].at is None else []),
            _made(study, found, about),
            "",
        ]
    )


def _setting(study: Study) -> str:
    """What differs from what the page says of all."""
    setting = f" {study.setting}." if study.setting else ""
    whole = (
        f" `--full` runs the paper's size: {study.full.task}, {counted(study.full.rounds, 'round')}."
        if study.full
        else ""
    )
    return f"{setting}{whole}"


def _data(about: dict[str, Any]) -> str:
    """What was learned, of the first seed."""
    data = about.get("data")
    if not isinstance(data, dict):
        return ""
    kind = _plain(str(data["model"]).split("(")[0])
    devices = counted(about["devices"], "device")
    samples = f"{data['train_samples']:,} training samples on {devices}, {data['test_samples']:,} to test on"
    return f" ({samples}; {kind} with {data['parameters']:,} parameters; {counted(about['rounds'], 'round')})"


def _finals(found: Sequence[Result]) -> list[str]:
    """Of a long list, the best."""
    groups = {label: of(found, label) for label in labels(found)}
    is_known = any(math.isfinite(result.device_accuracy) for result in found)
    by_device = (
        ("by device, %", "device_accuracy"),
        ("worst tenth, %", "worst_accuracy"),
        ("below chance, %", "below_chance"),
    )
    columns = (("final accuracy by sample, %", "final_accuracy"), *(by_device if is_known else ()))
    ranked = sorted(groups, key=lambda label: -_or_least(_mean(groups[label], "final_accuracy")))[:MOST_ROWS]
    return [
        f"| | {' | '.join(name for name, _ in columns)} | final training loss | virtual seconds |",
        "|---" * (len(columns) + 3) + "|",
        *(
            f"| {_plain(label)} | {' | '.join(_percent(groups[label], name) for _, name in columns)} "
            f"| {_mean(groups[label], 'final_loss'):.3f} | {np.mean([r.seconds[-1] for r in groups[label]]):,.0f} |"
            for label in ranked
        ),
        "",
    ]


def _percent(group: Sequence[Result], name: str) -> str:
    """A mean over seeds that leaves out who diverged would flatter: it is said instead."""
    diverged = sum(result.has_diverged for result in group)
    return (
        f"{diverged} of {len(group)} diverged" if diverged else Interval.of([getattr(r, name) for r in group]).percent()
    )


def _mean(group: Sequence[Result], name: str) -> float:
    return Interval.of([getattr(result, name) for result in group]).mean


def _or_least(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


def _made(study: Study, found: Sequence[Result], about: dict[str, Any]) -> str:
    """The command, and what it took."""
    seeds = len({result.seed for result in found})
    command = f"`hybridfl reproduce {study.name}`: {counted(len(found), 'run')}, {counted(seeds, 'seed')}"
    versions = about.get("versions")
    if not isinstance(versions, dict):
        return f"{command}."
    known = ", ".join(f"{_plain(name)} {_plain(value)}" for name, value in versions.items())
    return f"{command}, {_plain(about['wall_seconds'])} s on {_plain(about['device'])} ({known})."


def _plain(text: object) -> str:
    """A text that Markdown shows as it is: it is no tag, no link and no cell's end."""
    words = in_one_line(text, 200)
    if not set(words) & set("<>[]|`&"):
        return words
    return "".join(f"&#{ord(letter)};" if letter in "<>[]|`&" else letter for letter in words)
