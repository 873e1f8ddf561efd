"""A folder in which every text is hostile goes through every command: shown harmlessly or refused in one line."""

import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hostile_texts
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.cli import main
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.records import load
from hybridfl.report import write_report
from hybridfl.tasks import Synthetic
from hybridfl.tensorboard import Events
from hybridfl.timing import PaperDelays
from hybridfl.wording import is_harmless
from saved_runs import comparison, write

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's own

TINY = ["--devices", "4", "--stragglers", "0", "--epochs", "1", "--rounds", "2"]
Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Said:
    """The exit code of a command, and all that a terminal is given."""
    monkeypatch.setattr("hybridfl.plots.FIGURES", {})
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly.js */")
    logger = logging.getLogger("hybridfl")

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["hybridfl", *map(str, arguments)])
        capfd.readouterr()
        to_terminal = logging.StreamHandler()  # as Python does it by itself, where no test looks at the log
        logger.addHandler(to_terminal)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            logger.removeHandler(to_terminal)
        shown = "".join(capfd.readouterr())
        assert is_harmless(shown, lines=True)
        assert "Traceback" not in shown
        assert len(shown) < 20_000
        return int(ended.value.code or 0), shown

    return run


@pytest.fixture
def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what must not be touched, and the current one below it; results belong into outer/at/results."""
    for place in (tmp_path, tmp_path / "x", tmp_path / "at", tmp_path / "at" / "x", tmp_path / "at" / "here"):
        place.mkdir(exist_ok=True)
        for name in ("events.out.tfevents.1.mine", "report.html", "records.jsonl", "00000001.json"):
            (place / name).write_text("mine")
    monkeypatch.chdir(tmp_path / "at" / "here")
    return tmp_path


def around(outer: Path) -> dict[str, str]:
    """All that is in `outer`, but for the results."""
    results = outer / "at" / "results"
    return {
        str(path): path.read_text() if path.is_file() else ""
        for path in outer.rglob("*")
        if results not in (path, *path.parents) and path != outer / "at" / "here" / "link"
    }


ALL = {**hostile_texts.HARMLESS_AS_SHOWN, **hostile_texts.REFUSED}


@pytest.mark.parametrize("evil", list(ALL.values()), ids=list(ALL))
def test_every_command_shows_it_harmlessly_or_refuses_it_in_one_line(evil: str, outer: Path, said: Said) -> None:
    results = outer / "at" / "results"
    hostile_texts.write(results / "run", hostile_texts.files(evil))
    before = around(outer)
    for command in ("report", "tensorboard"):
        code, shown = said(command, results)
        assert code == (2 if evil in hostile_texts.REFUSED.values() else 0), shown
        if code:
            (line,) = shown.splitlines()
            assert line.startswith(f"Error: '{results / 'run' / 'run.json'}'")
    for arguments in (["resume"], ["resume", "--quiet"]):
        code, shown = said(*arguments, results)
        assert code == 2
        assert [line.startswith("Error: ") for line in shown.splitlines()][-1:] == [True]
        assert sum(line.startswith("Error: ") for line in shown.splitlines()) == 1
    code, shown = said("compare", "--algorithms", "hfl", "--seeds", "1", "--out", results, *TINY, "--quiet")
    assert (code, len(shown.splitlines())) == (2, 1)
    assert around(outer) == before


@pytest.mark.parametrize(
    "evil", list(hostile_texts.HARMLESS_AS_SHOWN.values()), ids=list(hostile_texts.HARMLESS_AS_SHOWN)
)
def test_a_run_of_such_a_name_goes_on_and_is_compared(evil: str, outer: Path, said: Said) -> None:
    """All but its label is as it should be: so it is really played, and every display has it."""
    results = outer / "at" / "results"
    before = around(outer)
    task = Synthetic().build(4, 0)
    simulate(task, FedAvg(4), PaperDelays(0.0), rounds=2, label=evil, out=results / "run")
    for name in ("finished.json", "model.safetensors"):
        (results / "run" / name).unlink()
    code, shown = said("resume", results / "run")
    assert code == 0, shown
    code, shown = said("resume", results)
    assert "ended already" in shown
    code, shown = said("compare", "--algorithms", "hfl", "--seeds", "1", "--out", results, *TINY)
    assert code == 0, shown
    assert (evil or "FedAvg") in shown.replace("\n", ""), "what else the report covers"
    for folder in (results, results / "run"):
        code, shown = said("tensorboard", folder)
        assert code == 0, shown
        assert list((folder / "tensorboard").rglob("events.*"))
    code, shown = said("report", results)
    assert code == 0, shown
    assert load(results / "run").records
    assert around(outer) == before


@pytest.mark.parametrize(
    "evil", [text for text in hostile_texts.HARMLESS_AS_SHOWN.values() if "=" not in text and text]
)
def test_such_a_label_on_the_command_line_is_only_a_label(evil: str, outer: Path, said: Said) -> None:
    results = outer / "at" / "results"
    before = around(outer)
    label = evil.replace(",", " ").replace("(", " ").replace(")", " ")
    code, shown = said("compare", "--algorithms", f"{label}=hfl", "--seeds", "1", "--out", results, *TINY)
    assert code == 0, shown
    assert around(outer) == before


@pytest.mark.parametrize(
    "evil", [text for text in hostile_texts.REFUSED.values() if text.strip() == text and "\0" not in text]
)
def test_a_label_that_a_terminal_would_act_on_is_refused(evil: str, outer: Path, said: Said) -> None:
    code, shown = said("compare", "--algorithms", f"{evil}=hfl", "--seeds", "1", "--out", "results", *TINY, "--quiet")
    assert (code, len(shown.splitlines())) == (2, 1)


@pytest.mark.parametrize("name", ["device", "version", "seed", "rounds"])
def test_numbers_that_are_texts_are_refused_before_they_are_in_a_page(name: str, tmp_path: Path) -> None:
    contents = hostile_texts.files("good")
    for row in contents["arrivals.jsonl"] if name in ("device", "version") else contents["run.json"]:
        row[name] = hostile_texts.HARMLESS_AS_SHOWN["script"]
    with pytest.raises(InputError, match=f"{name}='<script>"):
        write_report(hostile_texts.write(tmp_path, contents))


@pytest.mark.parametrize("field", ["algorithm", "timing", "guard"])
@pytest.mark.parametrize(
    "evil",
    [
        "HFL(" * 100_000,
        "HFL(round_seconds=" + "-" * 200_000 + "1)",
        "HFL(round_seconds=" + "+1" * 50_000 + ")",
        "Recorded('../../x')",
        "Recorded('/dev/null')",
        "HFL(round_seconds=().__class__)",
        "__import__('os').system('touch ../x/owned')",
        "a" * 900_000,
    ],
    ids=range(8),
)
def test_a_run_is_made_again_from_what_is_spelled_as_it_should_be_only(
    field: str, evil: str, outer: Path, said: Said
) -> None:
    results, before = outer / "at" / "results", around(outer)
    simulate(Synthetic().build(4, 0), FedAvg(4), PaperDelays(0.0), rounds=1, out=results)
    (results / "finished.json").unlink()
    config = json.loads((results / "run.json").read_text())
    (results / "run.json").write_text(json.dumps({**config, field: evil}))
    code, shown = said("resume", "--quiet", results)
    assert (code, len(shown.splitlines())) == (2, 1)
    assert around(outer) == before


class TestLinks:
    def test_events_are_neither_written_nor_removed_behind_a_link(self, outer: Path) -> None:
        results, before = outer / "at" / "results", around(outer)
        write(results, *comparison())
        (results / "tensorboard").symlink_to(outer / "x")
        with pytest.raises(InputError, match="tensorboard' is a link to somewhere else: remove it"):
            Events(results).write()
        (results / "tensorboard").unlink()
        (results / "tensorboard").mkdir()
        (results / "tensorboard" / "0").symlink_to(outer / "x")
        with pytest.raises(InputError, match="0' is a link to somewhere else"):
            Events(results).write()
        assert around(outer) == before

    def test_events_of_a_folder_that_is_itself_given_by_a_link_are_written(self, outer: Path) -> None:
        results = outer / "at" / "results"
        write(results, *comparison())
        link = outer / "at" / "here" / "link"
        link.symlink_to(results)
        assert Events(link).write() > 0
        assert (results / "tensorboard" / "0").is_dir()

    def test_a_report_takes_a_link_s_place(self, outer: Path) -> None:
        results, before = outer / "at" / "results", around(outer)
        write(results, *comparison())
        (results / "report.html").symlink_to(outer / "report.html")
        (results / "figures").mkdir()
        (results / "figures" / "staleness.svg").symlink_to(outer / "records.jsonl")
        write_report(results)
        assert not (results / "report.html").is_symlink()
        assert not (results / "figures" / "staleness.svg").is_symlink()
        (results / "figures").rename(results / "old")
        (results / "figures").symlink_to(outer / "x")
        with pytest.raises(InputError, match="figures' is a link to somewhere else"):
            write_report(results)
        assert around(outer) == before

    @pytest.mark.parametrize(
        "name", ["records.jsonl", "arrivals.jsonl", "run.json.new", "model.safetensors", "checkpoints", "checkpoints/a"]
    )
    def test_a_run_does_not_go_on_where_a_link_leads(self, name: str, outer: Path) -> None:
        results, before = outer / "at" / "results", around(outer)
        task = Synthetic().build(4, 0)
        simulate(task, FedAvg(4), PaperDelays(0.0), rounds=1, out=results)
        (results / "finished.json").unlink()
        (results / name).unlink(missing_ok=True)
        (results / name).parent.mkdir(exist_ok=True)
        (results / name).symlink_to(outer / "x")
        for fresh in (False, True):
            with pytest.raises(InputError, match="is a link to somewhere else: put what it stands for in its place"):
                simulate(task, FedAvg(4), PaperDelays(0.0), rounds=1, out=results, fresh=fresh)
        assert around(outer) == before

    def test_a_comparison_does_not_go_where_a_link_leads(self, outer: Path, said: Said) -> None:
        results, before = outer / "at" / "results", around(outer)
        results.mkdir()
        (results / "hfl").symlink_to(outer / "x")
        code, shown = said("compare", "--algorithms", "hfl", "--seeds", "1", "--out", results, *TINY, "--quiet")
        assert code == 2
        assert "is behind a link that leads out of" in shown
        assert around(outer) == before

    def test_a_lock_that_is_a_link_makes_no_file(self, outer: Path) -> None:
        results, before = outer / "at" / "results", around(outer)
        results.mkdir()
        (results / ".lock").symlink_to(outer / "made")
        with pytest.raises(InputError, match=r"\.lock' is a link"):
            simulate(Synthetic().build(4, 0), FedAvg(4), PaperDelays(0.0), rounds=1, out=results)
        simulate(Synthetic().build(4, 0), FedAvg(4), PaperDelays(0.0), rounds=1, out=results / "run")
        assert around(outer) == before


def test_a_log_has_one_line_a_message_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("hybridfl", "flwr.hybridfl"):
        caplog.clear()
        error = InputError("a\x1b[2Jb")
        logging.getLogger(name).warning("%s, %d, %.1f: %s", "x\ny\x1b[31m\ud800", 3, math.pi, error)
        assert caplog.messages == [r"x y\x1b[31m\ud800, 3, 3.1: a\x1b[2Jb"]
