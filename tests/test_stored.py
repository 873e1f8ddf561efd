"""What a folder says is input: each field has its kind, and nothing in it is an error of ours."""

import copy
import json
import math
import time
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hostile_texts
from hybridfl import plots, records
from hybridfl.algorithms.hfl import HFL
from hybridfl.comparison import slug
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.flower.wire import plain
from hybridfl.plan import Run
from hybridfl.records import Arrival, DeviceScore, Record, line_of, load, wall_seconds
from hybridfl.report import check_comparable, render, write_report
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays
from hybridfl.traces import import_fedscale_capacity
from hybridfl.wording import harmless, in_html, in_one_line, is_harmless

GOOD = hostile_texts.files("good")


def changed(name: str, field: str, value: Any) -> dict[str, list[Any]]:
    """The good files, but for one field of the first line of one of them."""
    contents = copy.deepcopy(GOOD)
    place = contents[name][0]
    for outer in field.split(".")[:-1]:
        place = place[outer]
    place[field.rpartition(".")[2]] = value
    return contents


def refusal(folder: Path, contents: dict[str, list[Any]]) -> str:
    with pytest.raises(InputError) as caught:
        load(hostile_texts.write(folder, contents))
    message = str(caught.value)
    assert is_harmless(message)
    assert len(message) < 1000
    return message


@pytest.mark.parametrize(
    ("kind", "checks"), [(Record, records._RECORD), (Arrival, records._ARRIVAL), (DeviceScore, records._SCORE)]
)
def test_every_field_has_a_check(kind: type, checks: dict[str, Any]) -> None:
    assert list(checks) == [field.name for field in fields(kind)]


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("run.json", "label", "\x1b[31m", r"run.json': label='\x1b[31m' has control characters"),
        ("run.json", "label", "x" * 100_000, "label='xxx"),
        ("run.json", "label", None, "label=None is no text"),
        ("run.json", "label", True, "label=True is no text"),
        ("run.json", "algorithm", ["HFL()"], "algorithm=a list is no text"),
        ("run.json", "algorithm", "a\0b", r"algorithm='a\x00b' has control"),
        ("run.json", "task", "synthetic", "task: 'synthetic' is no object"),
        ("run.json", "task", {}, "task: there is no name"),
        ("run.json", "task.name", 3, "task: name=3 is no text"),
        ("run.json", "task.devices", -1, "task: devices=-1 is no whole number"),
        ("run.json", "task.devices", 1.5, "task: devices=1.5 is no whole number"),
        ("run.json", "task.notes", "note", "task: notes='note' is no list"),
        ("run.json", "timing", {"a": 1}, "timing=an object is no text"),
        ("run.json", "seed", "0", "seed='0' is no whole number"),
        ("run.json", "seed", 2**64, "seed=18446744073709551616 is no whole number"),
        ("run.json", "seconds", "10", "seconds='10' is no time"),
        ("run.json", "seconds", math.inf, "seconds=inf is no time"),
        ("run.json", "seconds", None, "run.json': there are neither seconds nor rounds"),
        ("run.json", "rounds", True, "rounds=True is no whole number"),
        ("run.json", "versions", ["torch"], "versions=a list is no object"),
        ("run.json", "versions", {"torch": 2}, "versions=an object is no text"),
        ("run.json", "code", {"\x1b": "a"}, "code=an object has control"),
        ("records.jsonl", "version", 1.0, "records.jsonl', line 1: version=1.0 is no whole number"),
        ("records.jsonl", "version", None, "version=None is no whole number"),
        ("records.jsonl", "seconds", math.nan, "seconds=nan is no time"),
        ("records.jsonl", "test_accuracy", "<b>", "test_accuracy='<b>' is no number"),
        ("records.jsonl", "test_accuracy", 17, "test_accuracy=17 is no share"),
        ("records.jsonl", "lost", "<script>", "lost='<script>' is no whole number"),
        ("records.jsonl", "diverged_at", {}, "diverged_at=an object is no number"),
        ("arrivals.jsonl", "device", "<script>", "arrivals.jsonl', line 1: device='<script>' is no whole number"),
        ("arrivals.jsonl", "staleness", -1, "staleness=-1 is no whole number"),
        ("arrivals.jsonl", "arrived_at", None, "arrived_at=None is no time"),
        ("arrivals.jsonl", "lost", 3, "lost=3 is no text"),
        ("arrivals.jsonl", "refused", "\u202e", r"refused='\u202e' has control characters or others"),
        ("devices.jsonl", "is_straggler", 1, "devices.jsonl', line 1: is_straggler=1 is neither true nor false"),
        ("devices.jsonl", "device", [1], "device=a list is no whole number"),
        ("devices.jsonl", "accuracy", "1", "accuracy='1' is no number"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_file_and_field(
    tmp_path: Path, name: str, field: str, value: Any, words: str
) -> None:
    message = refusal(tmp_path, changed(name, field, value))
    assert words in message
    assert "put the file back as it was, or remove the folder" in message


@pytest.mark.parametrize("field", ["version", "seconds", "discarded"])
def test_a_field_that_is_not_there_is_named(tmp_path: Path, field: str) -> None:
    contents = copy.deepcopy(GOOD)
    del contents["records.jsonl"][1][field]
    assert f"records.jsonl', line 2: there is no {field}" in refusal(tmp_path, contents)


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\xff"])
@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "arrivals.jsonl", "devices.jsonl", "finished.json"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str, text: str) -> None:
    hostile_texts.write(tmp_path, GOOD)
    (tmp_path / name).write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(InputError, match=name) as caught:
        load(tmp_path)
    assert is_harmless(str(caught.value))


def test_a_file_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    for name in GOOD:
        folder = hostile_texts.write(tmp_path / name, GOOD)
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        with pytest.raises(InputError, match=name):
            load(folder)


def test_a_line_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    hostile_texts.write(tmp_path, GOOD)
    (tmp_path / "arrivals.jsonl").write_text('{"a": "' + "x" * 5_000_000 + '"}\n')
    with pytest.raises(InputError, match="line 1 has more than 4,000,000 bytes"):
        load(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        {"mean_staleness": 1, "seconds": 5, "wall_seconds": "of another version"},
        {"test_loss": math.inf, "train_loss": math.nan},
        {"test_accuracy": 1.0000001},
        {"bytes_sent": 2**60},
    ],
)
def test_what_earlier_versions_wrote_is_read(tmp_path: Path, row: dict[str, Any]) -> None:
    contents = copy.deepcopy(GOOD)
    contents["records.jsonl"][0] |= row
    for name in ("refused", "lost", "device_accuracy", "diverged_at"):
        contents["records.jsonl"][0].pop(name, None)
    for name in ("code", "guard", "traces"):
        contents["run.json"][0].pop(name)
    contents["run.json"][0] |= {"task": {"name": "synthetic"}, "algorithm": "Mine(\n\tx=1\n)", "label": 3}
    saved = load(hostile_texts.write(tmp_path, contents))
    assert saved.label == "3"
    assert saved.records[0].seconds == row.get("seconds", 0.0)
    assert not math.isinf(saved.records[0].test_loss)


def test_a_device_s_words_are_written_so_that_they_can_be_read(tmp_path: Path) -> None:
    arrival = Arrival(0, 0, 0.0, 1.0, 0, lost="a\x1b[31m\ud800b" + "x" * 100_000)
    hostile_texts.write(tmp_path, GOOD)
    (tmp_path / "arrivals.jsonl").write_text(line_of(arrival))
    (read,) = load(tmp_path).arrivals
    assert read.lost is not None
    assert read.lost.startswith(r"a\x1b[31m\ud800bxx")
    assert len(read.lost) < 10_100
    assert line_of(Arrival(0, 0, 0.0, 1.0, 0, lost="two\nlines")) == line_of(
        Arrival(0, 0, 0.0, 1.0, 0, lost="two\nlines")
    )


def test_a_finished_run_that_does_not_say_how_long_it_took_took_nan_seconds(tmp_path: Path) -> None:
    assert math.isnan(wall_seconds(tmp_path))
    for text in ("[]", '{"wall_seconds": "<b>"}', "{"):
        (tmp_path / "finished.json").write_text(text)
        assert math.isnan(wall_seconds(tmp_path))


@pytest.mark.parametrize("label", list(hostile_texts.REFUSED.values()), ids=list(hostile_texts.REFUSED))
def test_a_label_that_could_not_be_read_back_is_refused_before_the_run(label: str) -> None:
    with pytest.raises(InputError, match="give a short text in one line") as caught:
        Run(Synthetic(0, 0).build(4, 0), HFL(), PaperDelays(), rounds=1, label=label)
    assert is_harmless(str(caught.value))


class Odd(HFL):
    """An algorithm whose text has what a terminal acts on."""

    def __repr__(self) -> str:
        return "\x1b[31m"


def test_a_run_whose_own_text_could_not_be_read_back_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"algorithm='\\x1b\[31m' has control characters .* give another"):
        simulate(Synthetic(0, 0).build(4, 0), Odd(), PaperDelays(), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


SPECIAL = [*hostile_texts.HARMLESS_AS_SHOWN.values(), *hostile_texts.REFUSED.values()]
NUMBERS = [0, 1, -1, True, 2**31, 2**53, 2**63, 10**300, 1e-308, 1e308, -0.0, 0.5, 1e100, math.inf, -math.inf, math.nan]
JSONISH: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(NUMBERS)
    | st.text(max_size=20)
    | st.sampled_from(SPECIAL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    (name, field)
    for name, rows in GOOD.items()
    for field in [*rows[0], *(f"task.{inner}" for inner in rows[0].get("task", {}))]
]


def works_or_is_refused(folder: Path) -> None:
    refusal = ""
    try:
        saved = load(folder)
        check_comparable([saved], folder)
        if saved.records:
            render([saved]).encode()
    except InputError as error:
        refusal = str(error)
    assert is_harmless(refusal)


@pytest.fixture(autouse=True)
def _without_plotly_js(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly.js */")


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=st.lists(st.tuples(st.sampled_from(FIELDS), JSONISH), min_size=1, max_size=3))
def test_any_value_in_any_field_is_read_or_refused(tmp_path: Path, changes: list[tuple[tuple[str, str], Any]]) -> None:
    contents = copy.deepcopy(GOOD)
    for (name, field), value in changes:
        place = contents[name][0 if name != "records.jsonl" else -1]
        for outer in field.split(".")[:-1]:
            place = place[outer] if isinstance(place.get(outer), dict) else {}
        place[field.rpartition(".")[2]] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numbers at the end of what there is
        works_or_is_refused(hostile_texts.write(tmp_path, contents))


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(name=st.sampled_from([*GOOD, "finished.json"]), rows=st.lists(JSONISH, max_size=3))
def test_any_content_of_any_file_is_read_or_refused(tmp_path: Path, name: str, rows: list[Any]) -> None:
    (tmp_path / "finished.json").unlink(missing_ok=True)
    works_or_is_refused(hostile_texts.write(tmp_path, {**GOOD, name: rows}))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    records=st.lists(
        st.fixed_dictionaries(
            {"version": st.integers(0, 2**53), "seconds": st.floats(0, 1e100), "test_accuracy": st.floats(0, 1)}
            | {name: st.floats(allow_nan=False) for name in ("train_loss", "test_loss")}
        ),
        min_size=1,
        max_size=4,
    ),
    arrivals=st.lists(
        st.fixed_dictionaries(
            {name: st.integers(0, 2**53) for name in ("device", "version", "staleness")}
            | {name: st.floats(0, 1e100) for name in ("sent_at", "arrived_at")}
        ),
        max_size=4,
    ),
)
def test_any_numbers_have_a_report_with_figures(
    tmp_path: Path, records: list[dict[str, Any]], arrivals: list[dict[str, Any]]
) -> None:
    contents = {
        **GOOD,
        "records.jsonl": [hostile_texts.RECORD | row for row in records],
        "arrivals.jsonl": arrivals,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_report(hostile_texts.write(tmp_path, contents))


@given(st.text())
def test_what_is_made_harmless_is(text: str) -> None:
    assert is_harmless(harmless(text))
    assert is_harmless(harmless(text, lines=True), lines=True)
    assert is_harmless(in_one_line(text))
    assert not set(in_html(text)) & set("<>\"'")
    if is_harmless(text):
        assert harmless(text) == text
    assert is_harmless(plain(text))


def test_a_long_text_is_cut_in_the_middle() -> None:
    assert in_one_line("a" * 5000 + "\nz" * 5000, most=30) == "a" * 20 + " … " + " ".join("z" * 5)
    assert in_one_line("世界 🙂 [/nope]") == "世界 🙂 [/nope]"


@pytest.mark.parametrize("label", SPECIAL)
def test_a_label_names_one_folder_and_none_above(label: str) -> None:
    name = slug(label[:100])
    assert "/" not in name
    assert name.strip(".")
    assert "\0" not in name


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@sum(1)", "a\x1b", "x" * 300, "a\nb"])
def test_an_imported_device_s_name_is_no_formula(tmp_path: Path, name: str) -> None:
    entry = {"computation": 1.0, "communication": 1.0}
    (tmp_path / "trace").write_text(json.dumps({name: entry}))
    with pytest.raises(InputError, match=r"rename it|give it one of 1 to 200 letters") as caught:
        import_fedscale_capacity(tmp_path / "trace", tmp_path / "out.csv")
    assert is_harmless(str(caught.value))
    assert not (tmp_path / "out.csv").exists()
    (tmp_path / "trace").write_text(json.dumps({"12": entry, "a-b": entry, "c": entry}))
    assert import_fedscale_capacity(tmp_path / "trace", tmp_path / "out.csv") == 3


def test_a_hundred_thousand_arrivals_are_read_in_a_few_seconds(tmp_path: Path) -> None:
    arrival = json.dumps(GOOD["arrivals.jsonl"][0]) + "\n"
    hostile_texts.write(tmp_path, GOOD)
    (tmp_path / "arrivals.jsonl").write_text(arrival * 100_000)
    started = time.perf_counter()
    assert len(load(tmp_path).arrivals) == 100_000
    assert time.perf_counter() - started < 30


def test_figures_are_drawn_of_every_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("accuracy_time", "timeline")
    monkeypatch.setattr(plots, "FIGURES", {name: getattr(plots, name) for name in chosen})
    for place, evil in enumerate(hostile_texts.HARMLESS_AS_SHOWN.values()):
        write_report(hostile_texts.write(tmp_path / f"{place}", hostile_texts.files(evil)))
        for path in (tmp_path / f"{place}" / "figures").glob("*.svg"):
            assert "<script" not in path.read_text()
