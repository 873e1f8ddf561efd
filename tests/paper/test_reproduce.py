import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hybridfl.algorithms.hfl import HFL
from hybridfl.comparison import slug
from hybridfl.errors import InputError
from hybridfl.paper import results
from hybridfl.paper.learning_curves import STUDIES as CURVES
from hybridfl.paper.page import write_page
from hybridfl.paper.reproduce import Plan, reproduce
from hybridfl.paper.results import Result, distilled
from hybridfl.paper.studies import STUDIES
from hybridfl.paper.study import Arm, Study, folder_of
from hybridfl.records import load

pytestmark = pytest.mark.processes

PUBLISHED = Path(__file__).parents[2] / "docs" / "paper"
NAMED = {study.name: study for study in STUDIES}
SYNTHETIC = [study for study in STUDIES if study.task.startswith("synthetic")]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("label", "\x1b[31m", "label='.x1b.31m' has control characters"),
        ("label", 3, "label=3 is no text"),
        ("seed", "0", "seed='0' is no whole number"),
        ("final_accuracy", "<b>", "final_accuracy='<b>' is no number"),
        ("accuracy", [0.5, "x"], "accuracy=a list is no number"),
        ("accuracy", [0.5], "not of one length"),
        ("seconds", 1, "seconds=1 is no list"),
    ],
)
def test_stored_results_of_another_kind_are_refused(tmp_path: Path, field: str, value: object, words: str) -> None:
    row = json.loads((PUBLISHED / "results" / "fig2-synthetic-1-1.jsonl").read_text().splitlines()[0])
    (tmp_path / "a.jsonl").write_text(json.dumps({**row, field: value}) + "\n")
    with pytest.raises(InputError, match=words):
        results.read(tmp_path / "a.jsonl")


def test_a_page_shows_every_stored_text_as_text(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for end in ("jsonl", "about.json"):
        name = f"fig2-synthetic-1-1.{end}"
        text = (PUBLISHED / "results" / name).read_text()
        if end == "about.json":
            about = json.loads(text)
            evil = "<script>alert(1)</script>|[a](javascript:1)"
            text = json.dumps({**about, "device": evil, "task": evil, "versions": {evil: evil}})
        (tmp_path / "results" / name).write_text(text)
    page = write_page(tmp_path, [NAMED["fig2-synthetic-1-1"]]).read_text()
    assert "<script" not in page
    assert "](javascript" not in page
    assert "&#60;script&#62;alert(1)" in page
    about["data"] = {"model": "<b>"}
    (tmp_path / "results" / "fig2-synthetic-1-1.about.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="data=an object does not say what the data were"):
        write_page(tmp_path, [NAMED["fig2-synthetic-1-1"]])


def test_names_are_unique_and_labels_within_a_fleet_too() -> None:
    assert len({study.name for study in STUDIES}) == len(STUDIES)
    for study in STUDIES:
        arms = [(slug(arm.label), arm.stragglers, arm.max_delay) for arm in study.arms]
        assert len(set(arms)) == len(arms), study.name


def test_runs_that_share_a_folder_are_the_same_run() -> None:
    """Otherwise a second study would be refused, after hours perhaps."""
    seen: dict[str, str] = {}
    for study in SYNTHETIC:
        for _, run in replace(study, devices=12, seeds=1).runs():
            said = json.dumps(run.config, default=str)
            assert seen.setdefault(str(folder_of(Path("out"), run)), said) == said, (study.name, run.name)


def test_every_figure_of_the_paper_has_its_study() -> None:
    """Figure 1 is a drawing of the algorithm."""
    shown = re.findall(r"\d+", " ".join(study.shows for study in STUDIES if study.shows.startswith("Figure")))
    assert set(map(int, shown)) == set(range(2, 15))


def test_a_quick_look_has_ends_and_middle_of_a_sweep_and_all_of_a_short_list() -> None:
    assert {arm.at for arm in NAMED["fig4-max-delay-fashion-mnist"].quick().arms} == {10, 60, 100}
    assert CURVES[0].quick().arms == CURVES[0].arms
    assert len(NAMED["ablation-synthetic-1-1"].quick().arms) == 10


def test_the_papers_size_is_one_flag_away() -> None:
    shakespeare = NAMED["fig5-shakespeare"]
    full = shakespeare.at_full_size()
    assert (full.name, full.task, full.rounds) == ("fig5-shakespeare", "shakespeare-paper", 200)
    assert "Cosine(initial=1.0, versions=200)" in repr(full.arms)
    assert "Cosine(initial=1.0, versions=50)" in repr(shakespeare.arms)
    assert CURVES[0].at_full_size() is CURVES[0]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    plan = Plan([study.quick() for study in SYNTHETIC if study.name in NAMES], tmp_path_factory.mktemp("paper"))
    reproduce(plan, "cpu", quiet=True)
    return plan


NAMES = (
    "fig2-synthetic-0-0",
    "fig10-max-delay-synthetic-1-1",
    "straggler-share-synthetic-1-1",
    "ablation-synthetic-1-1",
    "convergence-synthetic-0-0",
)


def test_results_are_a_line_a_run_with_what_the_records_say(played: Plan) -> None:
    study = played.studies[0]
    rows = results.read(played.results_of(study))
    assert [(row.label, row.seed) for row in rows] == [(arm.label, seed) for seed in (0, 1) for arm in study.arms]
    for row, (arm, run) in zip(rows, study.runs(), strict=True):
        saved = load(folder_of(played.out, run))
        assert row.accuracy[-1] == pytest.approx(saved.records[-1].test_accuracy, rel=1e-4)
        assert row.seconds[-1] == pytest.approx(saved.records[-1].seconds, abs=0.01)
        assert repr(distilled(saved, arm.at, row.wall_seconds)) == repr(row), "NaN is not NaN"


def test_the_page_is_made_of_results_alone(played: Plan, tmp_path: Path) -> None:
    whole = write_page(played.out, STUDIES).read_text()
    for name in NAMES:
        assert f"![{name}](figures/{name}.svg)" in whole
        assert (played.out / "figures" / f"{name}.svg").stat().st_size > 10_000
    assert "A quick look" in whole
    assert "Not run" not in whole, "of such runs no claim is judged"
    (tmp_path / "results").mkdir()
    for path in (played.out / "results").iterdir():
        (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    assert write_page(tmp_path, STUDIES).read_text() == whole
    for name in NAMES:
        figure = f"figures/{name}.svg"
        assert (tmp_path / figure).read_bytes() == (played.out / figure).read_bytes()


def test_a_run_that_diverged_is_kept_as_json_and_read_back(tmp_path: Path) -> None:
    row = Result("HFL", 0, None, 0.1, math.nan, 0.0, 0.0, (0, 1), (0.0, 1.0), (0.1, 0.1), (2.3, math.nan))
    results.write(tmp_path / "one.jsonl", [row])
    assert json.loads((tmp_path / "one.jsonl").read_text(), parse_constant=pytest.fail)["loss"] == [2.3, None]
    assert repr(results.read(tmp_path / "one.jsonl")) == repr([row])


def test_what_is_done_is_not_run_again(played: Plan) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in played.out.rglob("*.json*")}

    before = written()
    reproduce(played, "cpu", quiet=True)
    assert written() == before, "nor measured again, nor said to have been run elsewhere"


def test_fewer_seeds_are_other_results(played: Plan, tmp_path: Path) -> None:
    shutil.copytree(played.out, tmp_path, dirs_exist_ok=True)
    fewer = Plan([replace(played.studies[0], seeds=1)], tmp_path)
    reproduce(fewer, "cpu", quiet=True)
    assert {row.seed for row in results.read(fewer.results_of(fewer.studies[0]))} == {0}


def test_a_study_killed_while_it_measures_is_not_on_the_page_and_goes_on(played: Plan, tmp_path: Path) -> None:
    shutil.copytree(played.out, tmp_path, dirs_exist_ok=True)
    plan = Plan([study for study in played.studies if study.name.startswith("convergence")], tmp_path)
    (study,) = plan.studies
    plan.about(study).unlink()
    assert study.name not in write_page(tmp_path, STUDIES).read_text()
    plan.results_of(study).unlink()
    reproduce(plan, "cpu", quiet=True)
    assert f"figures/{study.name}.svg" in write_page(tmp_path, STUDIES).read_text()


def test_what_was_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    row = Result("HFL", 0, 0.5, 0.1, 2.3, 0.0, 0.0, (0, 1), (0.0, 1.0), (0.1, 0.1), (2.3, 2.3))
    results.write(tmp_path / "results" / "straggler-share-synthetic-1-1.jsonl", [row])
    assert "Not run: fig2-fashion-mnist" in write_page(tmp_path, STUDIES).read_text()


def test_missing_data_or_devices_are_named_before_anything_is_run(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="cuda"):
            Plan(SYNTHETIC, tmp_path).check("cuda")
    with pytest.raises(InputError, match="hybridfl data fetch fashion-mnist"):
        Plan(STUDIES, tmp_path / "out", data_dir=tmp_path).check()
    assert not (tmp_path / "out").exists()


def test_no_results_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results: run `hybridfl reproduce all"):
        write_page(tmp_path, STUDIES)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "fig3-lambda.jsonl").write_text("{]\n")
    with pytest.raises(InputError, match=r"fig3-lambda.jsonl' cannot be read"):
        write_page(tmp_path, STUDIES)
    (tmp_path / "results" / "fig3-lambda.jsonl").write_text("")
    with pytest.raises(InputError, match=r"cannot be read .* \(it is empty\)"):
        write_page(tmp_path, STUDIES)


def test_a_study_of_ones_own_is_a_value(tmp_path: Path) -> None:
    mine = Study("mine", "nowhere", "synthetic(0, 0)", (Arm("HFL", HFL()),), devices=10, seeds=1, rounds=2)
    reproduce(Plan([mine], tmp_path), "cpu", quiet=True)
    (row,) = results.read(tmp_path / "results" / "mine.jsonl")
    assert row.versions[-1] == 2


def test_the_published_page_is_what_its_results_make(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for path in (PUBLISHED / "results").iterdir():
        (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    assert write_page(tmp_path, STUDIES).read_text() == (PUBLISHED / "README.md").read_text()
