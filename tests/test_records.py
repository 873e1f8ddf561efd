import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import saved_runs
from hybridfl.errors import InputError
from hybridfl.records import (
    Arrival,
    Config,
    DeviceScore,
    Record,
    check_folder,
    difference,
    difference_of_seeds,
    load,
    load_all,
)
from hybridfl.run_folder import RunFolder

CONFIG: Config = {
    "label": "HFL",
    "algorithm": "HFL()",
    "task": {"name": "synthetic", "l2": 1e-4, "checksum": "a"},
    "timing": "PaperDelays(stragglers=0.9, max_delay=10)",
    "seconds": 9.0,
    "rounds": None,
    "evaluate_every": None,
    "seed": 3,
    "versions": {"torch": "2.4"},
}
FIRST = Record(
    version=1,
    seconds=1.5,
    merged=10,
    mean_staleness=0.1,
    max_staleness=3,
    train_loss=2.302585092994046,
    test_loss=1 / 3,
    test_accuracy=0.25,
    normal_accuracy=0.5,
    straggler_accuracy=0.125,
    bytes_sent=24400,
    bytes_received=2440,
    discarded=2,
)
SECOND = replace(FIRST, version=2, seconds=2.5)
MERGED = Arrival(device=4, version=0, sent_at=0.0, arrived_at=1.5, staleness=1, discarded=None)
DISCARDED = Arrival(device=7, version=0, sent_at=0.5, arrived_at=2.5, staleness=2, discarded="late")


def write(folder: Path, *records: Record, config: Config = CONFIG) -> None:
    check_folder(folder, config)
    files = RunFolder(folder, config)
    files.announce()
    files.clear()
    for record in records:
        files.write(record, (MERGED, DISCARDED))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "run", FIRST, SECOND)
    saved = load(tmp_path / "run")
    assert saved.config == CONFIG
    assert saved.records == (FIRST, SECOND)
    assert saved.arrivals == (MERGED, DISCARDED, MERGED, DISCARDED)
    assert (saved.label, saved.seed) == ("HFL", 3)


def test_nan_is_written_as_null_and_read_as_nan(tmp_path: Path) -> None:
    write(tmp_path, replace(FIRST, mean_staleness=math.nan, straggler_accuracy=math.nan))
    row = json.loads((tmp_path / "records.jsonl").read_text())
    assert (row["mean_staleness"], row["straggler_accuracy"]) == (None, None)
    [record] = load(tmp_path).records
    assert math.isnan(record.mean_staleness)
    assert math.isnan(record.straggler_accuracy)
    assert record.test_loss == FIRST.test_loss


def test_a_record_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    files = RunFolder(tmp_path, CONFIG)
    files.announce()
    files.write(FIRST, (MERGED,))
    assert load(tmp_path).records == (FIRST,)
    assert load(tmp_path).arrivals == (MERGED,)


@pytest.mark.parametrize("name", ["records.jsonl", "arrivals.jsonl"])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, name: str) -> None:
    write(tmp_path, FIRST, SECOND)
    whole = (tmp_path / name).read_text()
    (tmp_path / name).write_text(whole[:-20])
    saved = load(tmp_path)
    assert saved.records == ((FIRST,) if name == "records.jsonl" else (FIRST, SECOND))
    assert len(saved.arrivals) == (4 if name == "records.jsonl" else 3)


def test_a_run_that_stopped_before_its_first_record_has_none(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "arrivals.jsonl").unlink()
    saved = load(tmp_path)
    assert (saved.records, saved.arrivals) == ((), ())


def test_the_same_configuration_may_be_run_again_and_starts_afresh(tmp_path: Path) -> None:
    write(tmp_path, FIRST, SECOND)
    write(tmp_path, FIRST)
    assert load(tmp_path).records == (FIRST,)


def test_versions_of_packages_do_not_make_another_configuration(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    check_folder(tmp_path, {**CONFIG, "versions": {"torch": "9.9"}})


@pytest.mark.parametrize(
    ("change", "words"),
    [({"seed": 4}, r"seed was 3, now 4"), ({"task": {"name": "mnist"}}, r"task name was 'synthetic', now 'mnist'")],
)
def test_another_configuration_is_refused_and_nothing_is_lost(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    write(tmp_path, FIRST)
    with pytest.raises(InputError, match=words):
        write(tmp_path, SECOND, config={**CONFIG, **change})
    assert load(tmp_path).records == (FIRST,)


def test_a_setting_that_the_folder_does_not_know_makes_another_configuration(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    with pytest.raises(InputError, match="colour was None, now 10"):
        check_folder(tmp_path, {**CONFIG, "colour": 10})


@pytest.mark.parametrize("below", [".", "run", "deep/run"])
def test_a_file_in_the_way_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match=r"taken' is a file, not a folder: choose another folder"):
        write(tmp_path / "taken" / below, FIRST)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_run_json_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run.json' is not a run's configuration"):
        check_folder(tmp_path, CONFIG)


def test_checking_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "run", CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_load_all_finds_runs_at_any_depth_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/seed-1", "a", "b/seed-0"):
        write(tmp_path / name, FIRST, config={**CONFIG, "label": name})
    assert [saved.label for saved in load_all(tmp_path)] == ["a", "b/seed-0", "b/seed-1"]


def test_load_all_leaves_out_runs_without_a_record(tmp_path: Path) -> None:
    write(tmp_path / "a", FIRST, config={**CONFIG, "label": "a"})
    write(tmp_path / "b", config={**CONFIG, "label": "b"})
    assert [saved.label for saved in load_all(tmp_path)] == ["a"]


def test_load_all_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no folder .*nowhere"):
        load_all(tmp_path / "nowhere")


def test_load_all_refuses_a_folder_without_results(tmp_path: Path) -> None:
    write(tmp_path / "empty")
    for folder in (tmp_path, tmp_path / "empty"):
        with pytest.raises(InputError, match="holds no results"):
            load_all(folder)


@pytest.mark.parametrize("name", ["records.jsonl", "arrivals.jsonl"])
def test_what_was_changed_after_a_run_had_ended_is_not_read(name: str, tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    files = RunFolder(tmp_path, CONFIG)
    files.clear()
    files.write(SECOND, (MERGED,))
    files.finish({}, 1.0)
    assert load(tmp_path).records == (SECOND,)
    path = tmp_path / name
    text = path.read_text()
    path.write_text(text.replace("0.25", "0.99").replace('"staleness": 1', '"staleness": 0'))
    with pytest.raises(InputError, match=f"{name}' is not what it was when the run ended"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=f"{name}' is not what it was"):
        load_all(tmp_path)
    path.write_text(text)
    assert load(tmp_path).records == (SECOND,)


def test_every_line_is_json_by_the_letter(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    write(tmp_path, replace(FIRST, mean_staleness=math.nan))
    rows = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert list(rows[0]) == list(asdict(FIRST))


def test_what_the_seed_decides_may_differ_between_seeds_and_nothing_else() -> None:
    other = {
        **CONFIG,
        "seed": 4,
        "task": {**CONFIG["task"], "checksum": "b"},
        "timing": "PaperDelays(stragglers=0.9, max_delay=10)",
    }
    assert difference(CONFIG, other) is None
    assert difference(CONFIG, {**other, "seed": 3}) == "task checksum 'a' and 'b'"
    assert difference(CONFIG, {**other, "rounds": 5}) == "rounds None and 5"
    assert difference(CONFIG, {**CONFIG, "label": "FedAvg", "algorithm": "FedAvg()"}) is None


def test_what_other_versions_wrote_beside_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    row = json.loads((tmp_path / "records.jsonl").read_text())
    (tmp_path / "records.jsonl").write_text(json.dumps(row | {"wall_seconds": 3.5}) + "\n")
    assert load(tmp_path).records == (FIRST,)


def test_many_may_look_at_once_whether_a_folder_can_be_written(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(check_folder, tmp_path / str(number), {}) for number in range(400)]:
            done.result()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["devices.jsonl", "run.json"])
@pytest.mark.parametrize("change", ["edited", "truncated", "removed"])
def test_what_a_finished_run_says_beside_its_records_is_kept_too(name: str, change: str, tmp_path: Path) -> None:
    write(tmp_path / "a", FIRST)
    files = RunFolder(tmp_path / "a", CONFIG)
    files.clear()
    files.write(SECOND, (MERGED,))
    files.finish({}, 1.0, (DeviceScore(0, 0.5, 4, False), DeviceScore(1, 0.25, 4, True)))
    (tmp_path / "a").rename(tmp_path / "b")
    saved = load(tmp_path / "b")
    path = tmp_path / "b" / name
    text = path.read_text()
    if change == "removed":
        path.unlink()
    else:
        path.write_text(
            text[: len(text) // 2] if change == "truncated" else text.replace("5", "7").replace("9.0", "8.0")
        )
    with pytest.raises(InputError, match=f"{name}' is not what it was when the run ended"):
        load(tmp_path / "b")
    path.write_text(text)
    assert load(tmp_path / "b").devices == saved.devices
    said = json.loads((tmp_path / "b" / "finished.json").read_text())
    (tmp_path / "b" / "finished.json").write_text(
        json.dumps({each: said[each] for each in ("arrivals.jsonl", "records.jsonl", "wall_seconds")})
    )
    assert load(tmp_path / "b").records == (SECOND,), "earlier versions said nothing of them"


def test_records_without_a_run_json_are_left_out_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, FIRST, config={**CONFIG, "label": name})
    for name in ("a", "c"):
        (tmp_path / name / "run.json").unlink()
    assert [saved.label for saved in load_all(tmp_path)] == ["b"]
    [line] = caplog.messages
    assert line.startswith(f"'{tmp_path / 'a'}' (and 1 more) holds records but no run.json")


def test_a_label_is_of_one_setting_whatever_the_seed() -> None:
    other = {**CONFIG, "seed": 4, "task": {**CONFIG["task"], "checksum": "b"}, "versions": {"torch": "9"}}
    assert difference_of_seeds(CONFIG, {**other, "guard": "None", "traces": {}}) is None
    assert difference_of_seeds(CONFIG, {**other, "guard": "Guard()"}) == "guard 'None' and 'Guard()'"
    assert difference_of_seeds(CONFIG, {**other, "algorithm": "HFL(1)"}) == "algorithm 'HFL()' and 'HFL(1)'"


LINES = st.lists(
    st.binary(max_size=30) | st.sampled_from([b"[]", b"5", b"null", b'{"version": 1}', b"[" * 9999, b"1" * 5000]),
    max_size=4,
)


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["records.jsonl", "arrivals.jsonl", "devices.jsonl", "run.json", "finished.json"]),
    LINES.map(b"\n".join),
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    saved_runs.write(tmp_path, *saved_runs.comparison()[:1])
    (tmp_path / "0" / name).write_bytes(content + b"\n")
    try:
        load(tmp_path / "0")
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either is well
    shutil.rmtree(tmp_path / "0")


def test_a_trace_that_has_changed_is_another_fleet() -> None:
    one, other = ({**CONFIG, "traces": {"t.csv": checksum}} for checksum in ("a", "b"))
    assert difference(one, other) == "traces t.csv 'a' and 'b'"
    assert difference(one, {**other, "seed": 4}) == "traces t.csv 'a' and 'b'"
    assert difference(CONFIG, {**CONFIG, "traces": {}}) is None


def test_links_to_folders_are_followed_to_each_once(tmp_path: Path) -> None:
    for name in ("elsewhere/x/seed-0", "all/b", "outside"):
        write(tmp_path / name, FIRST, config={**CONFIG, "label": name})
    everything = tmp_path / "all"
    (everything / "a").symlink_to(tmp_path / "elsewhere" / "x")
    (everything / "again").symlink_to(everything / "b")
    (everything / "c").symlink_to(everything)
    (everything / "up").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "x" / "back").symlink_to(everything)
    (everything / "gone").symlink_to(tmp_path / "nowhere")
    assert [run.label for run in load_all(everything)] == ["elsewhere/x/seed-0", "all/b"]
    (tmp_path / "link").symlink_to(everything)
    assert [run.label for run in load_all(tmp_path / "link")] == ["elsewhere/x/seed-0", "all/b"]


def test_a_run_has_ended_if_its_folder_says_so(tmp_path: Path) -> None:
    files = RunFolder(tmp_path, CONFIG)
    files.clear()
    files.write(FIRST, ())
    assert not load(tmp_path).is_finished
    files.finish({}, 1.0)
    assert load(tmp_path).is_finished
