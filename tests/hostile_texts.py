"""Texts that somebody would put into a folder of results to do harm with, and folders full of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RAN = "document.documentElement.dataset.ran=1"
"""What a script of theirs does, so that one sees that it ran."""

HARMLESS_AS_SHOWN = {
    "script": f"<script>{RAN}</script>",
    "image": f"\"><img src=x onerror=\"{RAN}\">'><svg/onload='{RAN}'>",
    "end of a script": f"</script></title></style><script>{RAN}</script>--><script>{RAN}</script>",
    "written twice": f"&lt;img src=x onerror={RAN}&gt; &#60;script&#62;{RAN}&#60;/script&#62;",
    "link": f'<a href="javascript:{RAN}">here</a>',
    "template": "%{customdata} ${x} $figures {x!r} %s %(x)s {0.__class__}",
    "markup": "[/nope][bold red]x[link=file:///etc/passwd]y",
    "path": "../../x",
    "dots": "..",
    "absolute path": "/tmp/../../../x",
    "formula": "=cmd|' /C calc'!A0",
    "matplotlib": "$\\frac{$ \\undefined{ _x",
    "underline": "_x",
    "backslash": "x\\",
    "empty": "",
}
"""Names that may be loaded."""

REFUSED = {
    "escape": "\x1b]0;owned\x07\x1b[31mred\x1b[2J",
    "one byte escape": "\x9b31m",
    "NUL": "a\0b",
    "line": "a\nError: b",
    "carriage return": "a\rb",
    "surrogate": "a\ud800b",
    "other direction": "abc\u202egnp.exe",
    "isolate": "a\u2066b",
    "no letter": "a\uffffb",
    "long": "x" * 100_000,
}
"""Names that are not loaded."""

RECORD: dict[str, Any] = {
    "version": 0,
    "seconds": 0.0,
    "merged": 0,
    "mean_staleness": None,
    "max_staleness": 0,
    "train_loss": 2.3,
    "test_loss": 2.3,
    "test_accuracy": 0.1,
    "normal_accuracy": 0.1,
    "straggler_accuracy": 0.1,
    "bytes_sent": 0,
    "bytes_received": 0,
    "discarded": 0,
    "refused": 0,
    "lost": 0,
    "forgotten": 0,
    "barred": 0,
    "device_accuracy": 0.1,
    "worst_accuracy": 0.0,
    "below_chance": 0.5,
    "diverged_at": None,
}


def files(evil: str) -> dict[str, list[Any]]:
    """What is in each file of a folder, line by line, with `evil` for every text."""
    config = {
        "label": evil,
        "algorithm": evil,
        "task": {
            "name": evil,
            "devices": 3,
            "train_samples": 10,
            "test_samples": 10,
            "model": evil,
            "loss": evil,
            "notes": [evil],
            "checksum": evil,
        },
        "timing": evil,
        "traces": {evil: evil},
        "guard": evil,
        "seconds": 10.0,
        "rounds": None,
        "evaluate_every": None,
        "seed": 0,
        "code": {evil: evil, "algorithm": evil},
        "versions": {"python": evil, "platform": evil, evil: evil},
        "of a later version": [evil, {evil: evil}],
        evil + " key": evil,
    }
    last = {"version": 3, "seconds": 9.5, "test_accuracy": 0.5, "lost": 1, "refused": 1, "merged": 1}
    arrival = {"device": 0, "version": 0, "sent_at": 0.0, "arrived_at": 1.0, "staleness": 0}
    fates = [{"discarded": evil}, {"refused": evil}, {"lost": evil}, {}]
    return {
        "run.json": [config],
        "records.jsonl": [RECORD, RECORD | last],
        "arrivals.jsonl": [arrival | {"device": place} | fate for place, fate in enumerate(fates)],
        "devices.jsonl": [
            {"device": place, "accuracy": 0.5, "num_samples": 3, "is_straggler": place > 0} for place in range(3)
        ],
    }


def write(folder: Path, contents: dict[str, list[Any]]) -> Path:
    """The files of a run, whatever is in them; JSON writes what no file can hold in ASCII."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in contents.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
