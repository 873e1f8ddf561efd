"""The command line as a user meets it: real processes for exit codes and interruption, in-process calls for the rest."""

import errno
import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.cli import app, main
from hybridfl.errors import InputError
from hybridfl.experiment import save_all, simulate
from hybridfl.fleets import FLEETS
from hybridfl.plan import Run
from hybridfl.records import load, load_all, load_config
from hybridfl.resuming import planned
from hybridfl.seals import sealed
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays

SMALL = ["--devices", "10", "--stragglers", "0.5", "--max-delay", "3", "--epochs", "1", "--quiet"]
COLUMNS = [
    "algorithm",
    "seeds",
    "diverged",
    "device_accuracy",
    "device_accuracy_std",
    "worst_accuracy",
    "below_chance",
    "test_accuracy",
    "test_accuracy_std",
    "straggler_accuracy",
    "test_loss",
    "test_loss_std",
    "seconds_to_target",
    "speedup",
    "speedup_bound",
    "discarded",
]


def hybridfl(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridfl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison's report takes longer than its runs."""
    monkeypatch.setattr("hybridfl.cli._report", lambda *arguments, **options: None)


def test_run_leaves_its_folder_and_says_where(tmp_path: Path) -> None:
    options = [option for option in SMALL if option != "--quiet"]
    result = hybridfl("run", "--rounds", 5, "--seed", 3, "--out", tmp_path / "r", *options)
    assert result.exit_code == 0
    assert "after 5 versions" in result.output
    assert f"hybridfl report {tmp_path / 'r'}" in result.output
    saved = load(tmp_path / "r")
    assert saved.records[-1].version == 5
    assert saved.seed == 3
    assert "epochs=1" in str(saved.config["algorithm"])
    assert saved.config["timing"] == "PaperDelays(stragglers=0.5, max_delay=3)"


def test_run_takes_an_algorithm_as_it_prints(tmp_path: Path) -> None:
    hybridfl("run", "--rounds", 2, "--algorithm", "FedBuff(buffer=3)", "--out", tmp_path / "r", *SMALL)
    assert "FedBuff(buffer=3" in str(load(tmp_path / "r").config["algorithm"])


def test_the_same_command_twice_gives_the_same_records(tmp_path: Path) -> None:
    for name in ("a", "b"):
        hybridfl("run", "--rounds", 4, "--out", tmp_path / name, *SMALL)
    for name in ("records.jsonl", "arrivals.jsonl", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_compare_runs_all_algorithms_on_the_same_data_and_delays(tmp_path: Path) -> None:
    names = "hfl,hfl-as-printed,FedAvg(participants=Uniform(3)),s-sgd"
    result = hybridfl(
        "compare", "--algorithms", names, "--seeds", 2, "--seconds", 8, "--out", tmp_path, "--json", *SMALL
    )
    table = json.loads(result.stdout)
    assert list(table) == ["rows", "target", "baseline", "other_labels"]
    assert (table["baseline"], table["other_labels"]) == ("FedAvg(participants=Uniform(3))", [])
    assert 0 < table["target"] < 1
    assert [list(row) for row in table["rows"]] == [COLUMNS] * 4
    assert {row["algorithm"] for row in table["rows"]} == {
        "hfl",
        "hfl-as-printed",
        "FedAvg(participants=Uniform(3))",
        "s-sgd",
    }
    runs = load_all(tmp_path)
    assert len(runs) == 8
    for seed in (0, 1):
        of_seed = [run.config for run in runs if run.seed == seed]
        assert len({str(config["task"]["checksum"]) for config in of_seed}) == 1
        assert len({str(config["timing"]) for config in of_seed}) == 1
    assert (tmp_path / "report.html").exists()


def test_compare_prints_a_table_and_the_path_of_the_report(tmp_path: Path) -> None:
    options = [option for option in SMALL if option != "--quiet"]
    result = hybridfl(
        "compare", "--algorithms", "hfl,fedasync", "--seeds", 1, "--rounds", 4, "--out", tmp_path, *options
    )
    assert "10 devices, 50% stragglers" in result.stdout
    assert "fedasync" in result.stdout
    assert "report.html" in result.stdout.replace("\n", "")


DIVERGING = ("--learning-rate", "1e30", "--schedule", "constant", *SMALL)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_that_diverges_says_so_at_once_and_in_its_exit_code(command: str, tmp_path: Path) -> None:
    result = process(command, "--rounds", "4", *DIVERGING, "--out", tmp_path / "r", *OF[command])
    assert result.returncode == 1
    assert "has diverged at version 1" in result.stderr
    assert "smaller learning rate" in result.stderr
    records = load_all(tmp_path / "r")[0].records
    assert (records[-1].diverged_at, records[-1].version) == (1, 1), "and it ends there"
    again = process(command, "--rounds", "4", *DIVERGING, "--out", tmp_path / "r", *OF[command])
    assert again.returncode == 1, "also where it is only read back"


OF = {"run": ("--seed", "0"), "compare": ("--algorithms", "hfl,fedavg", "--seeds", "1")}


def test_a_table_says_how_many_seeds_diverged(tmp_path: Path) -> None:
    options = [option for option in DIVERGING if option != "--quiet"]
    calm = "calm=FedBuff(local=FullWork(learning_rate=ConstantRate(0.1)))"
    result = hybridfl(
        "compare", "--algorithms", f"hfl,{calm}", "--seeds", 2, "--rounds", 3, "--out", tmp_path, *options
    )
    assert result.exit_code == 1
    assert "2 of 2" in result.stdout
    assert "diverged" in result.stdout
    assert "NaN" not in result.stdout
    rows = json.loads(
        hybridfl(
            "compare", "--algorithms", f"hfl,{calm}", "--seeds", 2, "--rounds", 3, "--out", tmp_path, "--json", *options
        ).stdout
    )["rows"]
    assert [(row["algorithm"], row["diverged"], row["test_accuracy"] is None) for row in rows] == [
        ("calm", 0, False),
        ("hfl", 2, True),
    ]


def test_compare_takes_seeds_from_another_on(tmp_path: Path) -> None:
    few = ("--seeds", 2, "--first-seed", 7, "--rounds", 1, "--out", tmp_path, *SMALL)
    hybridfl("compare", "--algorithms", "fedavg", *few)
    assert [run.seed for run in load_all(tmp_path)] == [7, 8]


def test_compare_takes_labels(tmp_path: Path) -> None:
    names = "small=FedBuff(buffer=2),large=FedBuff(buffer=5)"
    hybridfl("compare", "--algorithms", names, "--seeds", 1, "--rounds", 2, "--out", tmp_path, *SMALL)
    assert {run.label for run in load_all(tmp_path)} == {"small", "large"}


LOCAL = "HFL(local=FullWork(epochs=2))"


@pytest.mark.parametrize(
    "option",
    [("--epochs", "1"), ("--batch-size", "7"), ("--learning-rate", "0.5"), ("--schedule", "sqrt"), ("--clip", "1")],
)
def test_an_option_of_the_local_work_that_no_algorithm_takes_is_refused(
    option: tuple[str, str], tmp_path: Path
) -> None:
    few = ("--devices", 10, "--rounds", 1, "--quiet", "--out")
    with pytest.raises(InputError, match=f"{option[0]} has no effect, because 'HFL"):
        hybridfl("run", "--algorithm", LOCAL, *option, *few, tmp_path / "r")
    with pytest.raises(InputError, match=f"{option[0]} has no effect"):
        hybridfl("compare", "--algorithms", f"own={LOCAL}", *option, "--seeds", 1, *few, tmp_path / "c")


def test_an_option_of_the_local_work_is_for_those_that_take_it(tmp_path: Path) -> None:
    names = f"own={LOCAL},fedavg"
    hybridfl("compare", "--algorithms", names, "--seeds", 1, "--rounds", 1, "--out", tmp_path, *SMALL)
    epochs = {run.label: "epochs=1" in str(run.config["algorithm"]) for run in load_all(tmp_path)}
    assert epochs == {"own": False, "fedavg": True}


def test_a_comparison_of_a_part_leaves_the_page_its_own_target(tmp_path: Path) -> None:
    few = ("--rounds", 3, "--out", tmp_path, *SMALL)
    hybridfl("compare", "--algorithms", "hfl,fedavg", "--seeds", 2, *few)
    page = (tmp_path / "report.html").read_text()
    hybridfl("compare", "--algorithms", "hfl", "--seeds", 1, *few)
    assert (tmp_path / "report.html").read_text() == page


def test_quiet_says_nothing(tmp_path: Path) -> None:
    result = process("compare", "--algorithms", "hfl", "--seeds", "1", "--rounds", "2", "--out", tmp_path, *SMALL)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_report_reads_a_folder(tmp_path: Path) -> None:
    hybridfl("run", "--rounds", 3, "--out", tmp_path / "r", *SMALL)
    result = hybridfl("report", tmp_path / "r")
    assert (tmp_path / "r" / "report.html").exists()
    assert "report.html" in result.output.replace("\n", "")


def test_the_version_is_printed() -> None:
    from hybridfl import __version__

    assert hybridfl("--version").output == f"hybridfl {__version__}\n"
    assert process("--version").stdout == f"hybridfl {__version__}\n"


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    hybridfl("run", "--rounds", 2, "--out", tmp_path / "r", *SMALL)
    with pytest.raises(InputError, match="target=2"):
        hybridfl("report", tmp_path / "r", "--target", 2)
    (tmp_path / "r" / "report.html").mkdir()
    with pytest.raises(InputError, match="Cannot write the report"):
        hybridfl("report", tmp_path / "r")


def test_algorithms_are_listed() -> None:
    output = hybridfl("algorithms").output
    for name in (
        "hfl",
        "hfl-as-printed",
        "fedavg",
        "fedprox",
        "fedasync",
        "fedbuff",
        "s-sgd",
        "synthetic-iid",
        "RankOne",
    ):
        assert name in output


def commands(group: click.Command, name: str = "") -> Iterator[str]:
    yield name
    for each, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {each}".strip())


@pytest.mark.parametrize("command", list(commands(get_command(app))))
def test_help_has_examples(command: str) -> None:
    output = hybridfl(*command.split(), "--help").output
    assert "Usage" in output
    assert "Example" in output or command in ("data", "fleet", "deploy"), "groups list their commands"
    assert f"hybridfl {command}".strip() in output.split("Example")[-1] or "Example" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "fedbufff"], "Did you mean 'fedbuff'"),
        (["--algorithm", "FedBuff(bufer=1)"], "Did you mean 'buffer'"),
        (["--algorithm", "FedAvg(participants=Uniform(11))"], "11 participants a round, but the fleet has 10 devices"),
        (["--task", "sinthetic"], "Did you mean 'synthetic'"),
        (["--task", "synthetic(-1)"], "gamma=-1"),
        (["--stragglers", "1.5"], "stragglers=1.5"),
        (["--stragglers", "-0.1"], "stragglers=-0.1"),
        (["--devices", "0"], "devices=0"),
        (["--max-delay", "0"], "max_delay=0"),
        (["--epochs", "0"], "epochs=0"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--batch-size", str(10**20)], "is too large"),
        (["--max-delay", str(10**21)], "is too large"),
        (["--task", "synthetic(1e308, 1)"], "gamma=1e+308"),
        (["--devices", str(10**9)], "devices=1,000,000,000 would need about 417 TB"),
        (["--task", "synthetic-crowd", "--devices", str(10**9)], "devices=1,000,000,000 would need about 664 GB"),
        (["--schedule", "linear"], "Unknown schedule 'linear'. Known: "),
        (["--learning-rate", "0"], "learning rate=0"),
        (["--schedule", "invers"], "Did you mean 'inverse'"),
        (["--rounds", "0"], "rounds=0"),
        (["--seconds", "-1"], "seconds=-1"),
    ],
)
def test_a_mistake_is_an_input_error_and_writes_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        hybridfl("run", *SMALL, "--out", tmp_path / "r", *arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "hfl,FedAvg(participants=Uniform(11))"], "11 participants"),
        (["--algorithms", ""], "nothing to compare"),
        (["--seeds", "0"], "nothing to run"),
        (["--target", "1.2"], "target=1.2"),
    ],
)
def test_a_comparison_is_checked_before_it_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        hybridfl("compare", *SMALL, "--out", tmp_path / "c", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_is_one_line_on_standard_error_and_exit_code_2(tmp_path: Path) -> None:
    result = process("run", "--algorithm", "fedavgg", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: Unknown algorithm 'fedavgg'.")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_another_configuration_is_left_alone(tmp_path: Path) -> None:
    hybridfl("run", "--rounds", 3, "--out", tmp_path / "r", *SMALL)
    before = (tmp_path / "r" / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match="rounds was 3, now 4"):
        hybridfl("run", "--rounds", 4, "--out", tmp_path / "r", *SMALL)
    assert (tmp_path / "r" / "records.jsonl").read_bytes() == before


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (["--seconds", "4"], "seconds 3.0 and 4.0"),
        (["--stragglers", "0.1"], "timing"),
        (["--devices", "11"], "task devices 10 and 11"),
        (["--task", "synthetic(0, 0)"], "task name"),
        (["--evaluate-every", "1"], "evaluate_every None and 1.0"),
    ],
)
def test_runs_that_cannot_be_compared_do_not_share_a_folder(other: list[str], message: str, tmp_path: Path) -> None:
    common = ["--seeds", "1", "--out", tmp_path / "c", "--seconds", 3, *SMALL]
    hybridfl("compare", "--algorithms", "hfl", *common)
    with pytest.raises(InputError, match=rf"cannot be compared with this \({message}"):
        hybridfl("compare", "--algorithms", "fedasync", *common, *other)


@pytest.mark.usefixtures("no_report")
def test_a_second_comparison_may_add_algorithms_and_seeds(tmp_path: Path) -> None:
    common = ["--out", tmp_path, "--seconds", "3", *SMALL]
    hybridfl("compare", "--algorithms", "hfl", "--seeds", 1, *common)
    hybridfl("compare", "--algorithms", "hfl,fedasync", "--seeds", 2, *common)
    assert len(load_all(tmp_path)) == 4


def test_a_folder_with_something_else_in_it(tmp_path: Path) -> None:
    (tmp_path / "c" / "x").mkdir(parents=True)
    for content in ("{}", "{", "[]"):
        (tmp_path / "c" / "x" / "run.json").write_text(content)
        with pytest.raises(InputError, match="is not a run's configuration"):
            hybridfl("compare", "--algorithms", "hfl", "--seconds", 3, "--out", tmp_path / "c", *SMALL)
        with pytest.raises(InputError, match="is not a run's configuration"):
            hybridfl("report", tmp_path / "c")


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        hybridfl("run", "--rounds", 1, "--out", tmp_path / "file" / "r", *SMALL)


def test_an_interrupted_run_leaves_what_was_recorded(tmp_path: Path) -> None:
    arguments = ["run", "--seconds", "100000", "--evaluate-every", "1", "--out", str(tmp_path / "r"), *SMALL]
    # A shell that runs this test in the background ignores SIGINT, and children inherit that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    records = tmp_path / "r" / "records.jsonl"
    with subprocess.Popen([sys.executable, "-m", "hybridfl", *arguments], stderr=-1, preexec_fn=heed) as running:
        deadline = time.monotonic() + 60
        while not records.exists() or len(records.read_text().splitlines()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        try:
            _, errors = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 130
    assert b"Stopped. What was recorded until then is in" in errors
    assert b"Traceback" not in errors
    assert len(load(tmp_path / "r").records) >= 3


@pytest.mark.usefixtures("no_report")
def test_the_table_holds_the_algorithms_asked_for(tmp_path: Path) -> None:
    """Others in the folder stay for the report."""
    common = ["--seeds", "1", "--seconds", "3", "--out", tmp_path, "--json", *SMALL]
    hybridfl("compare", "--algorithms", "hfl", *common)
    table = json.loads(hybridfl("compare", "--algorithms", "fedasync", *common, "--target", 0.5).stdout)
    assert [row["algorithm"] for row in table["rows"]] == ["fedasync"]
    assert (table["target"], table["baseline"], table["other_labels"]) == (0.5, None, ["hfl"])
    assert len(load_all(tmp_path)) == 2


def test_algorithms_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    plan = Run(Synthetic(0, 0).build(2, 0, None), HFL(), PaperDelays(), rounds=1)
    with pytest.raises(InputError, match="would share the folder"):
        save_all([plan, replace(plan, seed=1)], [tmp_path / "one", tmp_path / "ONE"], "cpu")
    with pytest.raises(InputError, match="would share the folder"):
        hybridfl("compare", "--algorithms", "FedBuff(2),FedBuff( 2)", "--out", tmp_path, *SMALL)


class TestFleet:
    def test_list_shows_every_fleet_with_a_picture(self) -> None:
        result = hybridfl("fleet", "list")
        assert result.exit_code == 0
        for name in FLEETS:
            assert name in result.output
        assert "█" in result.output

    @pytest.mark.parametrize("name", FLEETS)
    def test_show_draws_devices(self, name: str) -> None:
        result = hybridfl("fleet", "show", name, "--devices", 20)
        assert result.exit_code == 0
        assert result.output.count("device ") >= 12
        assert "stragglers" in result.output
        assert ("×" in result.output.split("not there")[0].rsplit("\n", 2)[0]) == (name in ("day-night", "flaky"))

    @pytest.mark.parametrize("width", [40, 60, 200])
    def test_show_fills_the_terminal(self, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        lines = hybridfl("fleet", "show", "flaky").output.splitlines()
        assert {len(line) for line in lines if line.startswith("device ")} == {width}
        assert any(line.startswith("           0 ") and line.endswith("60 s") and len(line) == width for line in lines)

    def test_show_takes_a_fleet_as_it_prints(self) -> None:
        result = hybridfl("fleet", "show", "PerDevice((1, 2, 60))", "--devices", 3)
        lines = [line for line in result.output.splitlines() if line.startswith("device")]
        assert lines[2].split()[-1] == "█" * (80 - len("device 2  "))

    def test_unknown_fleets_are_named(self) -> None:
        with pytest.raises(InputError) as error:
            hybridfl("fleet", "show", "phone")
        assert "Did you mean 'phones'" in str(error.value)

    def test_import_from_fedscale(self, tmp_path: Path) -> None:
        (tmp_path / "capacity.json").write_text(json.dumps({"1": {"computation": 100.0, "communication": 8000.0}}))
        result = hybridfl("fleet", "import", "fedscale-capacity", tmp_path / "capacity.json", tmp_path / "fleet.csv")
        assert "1 device in" in result.output
        result = hybridfl(
            *("run", "--fleet", f"Recorded('{tmp_path / 'fleet.csv'}')", "--rounds", 2, "--devices", 4),
            *("--out", tmp_path / "run", "--epochs", 1),
        )
        assert result.exit_code == 0
        with pytest.raises(InputError, match="Unknown layout 'flower'"):
            hybridfl("fleet", "import", "flower", "a", "b")


def test_run_on_a_flaky_fleet_with_a_guard(tmp_path: Path) -> None:
    result = hybridfl(
        *("run", "--fleet", "flaky", "--guard", "on", "--devices", 10, "--seconds", 30, "--epochs", 1),
        *("--out", tmp_path / "run"),
    )
    assert result.exit_code == 0
    assert "jobs lost" in result.output
    config = load(tmp_path / "run").config
    assert config["guard"] == repr(Guard())
    assert str(config["timing"]).startswith("Conditions(pace=Drawn")


@pytest.mark.parametrize("option", [("--stragglers", "0.5"), ("--max-delay", "5")])
def test_the_papers_numbers_are_for_the_papers_fleet(option: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{option[0]} is for the fleet 'paper', not for 'phones'"):
        hybridfl("run", "--fleet", "phones", *option, "--out", tmp_path)


def test_a_preset_stands_for_what_is_not_given(tmp_path: Path) -> None:
    options = ("--preset", "fashion-mnist", "--task", "synthetic", "--rounds", 2, "--devices", 8, "--quiet")
    assert hybridfl("run", *options, "--out", tmp_path / "r").exit_code == 0
    config = load(tmp_path / "r").config
    assert config["label"] == "hfl-drift"
    assert "DriftControl(" in config["algorithm"]
    assert "Cosine(initial=0.1, versions=2)" in config["algorithm"]
    assert (config["rounds"], config["task"]["name"]) == (2, "synthetic(1, 1)")
    with pytest.raises(InputError, match=r"Unknown preset 'fashion'.*Known: fashion-mnist"):
        hybridfl("run", "--preset", "fashion")


class TestResume:
    def test_goes_on_where_a_killed_process_stopped(self, tmp_path: Path) -> None:
        options = ("--rounds", "12", "--devices", "6", "--epochs", "1", "--checkpoint-every", "2")
        assert hybridfl("run", *options, "--out", tmp_path / "whole").exit_code == 0
        plans = planned(tmp_path / "whole")
        (plan,) = plans.values()
        events = save_all([plan], [tmp_path / "broken"], "cpu", checkpoint_every=2)
        for _ in range(8):
            next(events)
        events.close()
        assert (tmp_path / "broken" / "checkpoints").exists()
        result = hybridfl("resume", tmp_path / "broken")
        assert result.exit_code == 0
        assert "after 12 versions" in result.output
        for name in ("records.jsonl", "arrivals.jsonl", "model.safetensors"):
            assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        again = hybridfl("resume", tmp_path / "broken")
        assert again.exit_code == 0
        assert "after 12 versions" in again.output

    @pytest.mark.parametrize(
        ("name", "value"), [("guard", None), ("seed", "a"), ("task", "x"), ("algorithm", 3), ("seconds", [1])]
    )
    def test_a_configuration_that_makes_no_sense_is_one_line(self, tmp_path: Path, name: str, value: object) -> None:
        folder = tmp_path / "r"
        assert hybridfl("run", "--rounds", 1, *SMALL, "--out", folder).exit_code == 0
        (folder / "finished.json").unlink()
        (folder / "run.json").write_bytes(sealed({**load_config(folder), name: value}))
        with pytest.raises(InputError, match=r"cannot be made again from what it says of itself|run\.json'.* is no "):
            hybridfl("resume", folder)

    @pytest.mark.usefixtures("no_report")
    def test_a_comparison_goes_on_by_the_same_command_and_by_resume(self, tmp_path: Path) -> None:
        options = ("--algorithms", "hfl,fedavg,fedbuff", "--seeds", 2, "--rounds", 4, "--devices", 12, "--epochs", 1)
        assert hybridfl("compare", *options, "--out", tmp_path / "whole").exit_code == 0
        shutil.copytree(tmp_path / "whole", tmp_path / "broken")
        shutil.rmtree(tmp_path / "broken" / "hfl" / "seed-1")
        (tmp_path / "broken" / "fedavg" / "seed-0" / "finished.json").unlink()
        for command in (("compare", *options, "--out"), ("resume",)):
            shutil.copytree(tmp_path / "broken", tmp_path / command[0])
            untouched = tmp_path / command[0] / "fedbuff" / "seed-0" / "records.jsonl"
            before = untouched.stat().st_mtime_ns
            assert hybridfl(*command, tmp_path / command[0]).exit_code == 0
            assert untouched.stat().st_mtime_ns == before
            for label in ("hfl", "fedavg", "fedbuff"):
                for seed in (0, 1):
                    path = Path(label) / f"seed-{seed}" / "records.jsonl"
                    if command[0] == "compare" or label != "hfl":
                        assert (tmp_path / command[0] / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()

    def test_what_python_made_goes_on_in_python(self, tmp_path: Path) -> None:
        task = replace(Synthetic().build(4, 0), name="mine")
        simulate(task, HFL(), PaperDelays(), rounds=1, out=tmp_path, device="cpu")
        with pytest.raises(InputError) as error:
            hybridfl("resume", tmp_path)
        assert "Unknown task 'mine'" in str(error.value)
        assert "call `simulate` with the same values" in str(error.value)

    def test_an_empty_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as error:
            hybridfl("resume", tmp_path)
        assert "holds no run" in str(error.value)

    def test_fresh_begins_anew(self, tmp_path: Path) -> None:
        options = ("run", "--rounds", 3, "--devices", 6, "--epochs", 1, "--out", tmp_path)
        hybridfl(*options)
        before = (tmp_path / "records.jsonl").stat().st_mtime_ns
        hybridfl(*options)
        assert (tmp_path / "records.jsonl").stat().st_mtime_ns == before
        hybridfl(*options, "--fresh")
        assert (tmp_path / "records.jsonl").stat().st_mtime_ns > before


def test_what_memory_cannot_hold_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_much() -> None:
        np.zeros(2**55)

    monkeypatch.setattr("hybridfl.cli.app", too_much)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("Error: There is not enough memory: ask for fewer devices, epochs or samples")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--epochs", 10**9, "epochs=1000000000 are more than a device gets through: give 100000 at most"),
        ("--epochs", 2**63 - 1, "are more than a device gets through"),
        ("--epochs", 2**63, "is too large: give 9223372036854775807"),
        ("--batch-size", 2**63, "batch_size=9223372036854775808 is too large"),
        ("--algorithm", f"FedAvg({'-' * 9000}1)", "is nested too deeply"),
        ("--algorithm", "hfl\udc80", "is no valid text"),
    ],
)
def test_numbers_and_texts_beyond_all_bounds_are_one_line(
    tmp_path: Path, option: str, value: object, words: str
) -> None:
    result = process("run", *SMALL, "--rounds", 1, "--out", tmp_path / "r", option, value)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_batch_may_be_larger_than_any_device(tmp_path: Path) -> None:
    result = process("run", *SMALL, "--rounds", 1, "--out", tmp_path / "r", "--batch-size", 2**63 - 1)
    assert result.returncode == 0


def test_a_big_fleet_is_announced_at_once_and_quietly_if_asked(tmp_path: Path) -> None:
    options = ("run", "--task", "synthetic-crowd", "--devices", 20_000, "--seconds", 0.1, "--out", tmp_path / "r")
    assert process(*options).stderr.startswith("Making the data of 20,000 devices …\nScoring the first model")
    again = process(*options, "--fresh", "--quiet")
    assert "Making" not in again.stderr
    assert "Scoring" not in again.stderr


def test_a_big_fleet_is_announced_before_pytorch_is_loaded() -> None:
    """Which alone can take seconds."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['hybridfl', 'run', '--devices', '300000']; "
        "from hybridfl.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("Making the data of 300,000 devices …\n")
    assert "torch" in done.stderr


def test_a_report_refuses_to_pool_other_settings_under_one_label(tmp_path: Path) -> None:
    few = ("--seconds", 4, "--devices", 10, "--quiet")
    hybridfl("run", *few, "--out", tmp_path / "a", "--seed", 0)
    hybridfl("run", *few, "--out", tmp_path / "b", "--seed", 1, "--guard", "on")
    with pytest.raises(InputError, match=r"runs of 'hfl' .* \(guard 'None' and 'Guard\(.*, of seeds 0 and 1\)"):
        hybridfl("report", tmp_path)


@pytest.mark.usefixtures("no_report")
def test_a_comparison_refuses_other_settings_under_one_label_before_it_starts(tmp_path: Path) -> None:
    few = ("--algorithms", "hfl", "--seeds", 1, "--seconds", 4, "--out", tmp_path, *SMALL)
    hybridfl("compare", *few)
    with pytest.raises(InputError, match=r"cannot be compared with this \(algorithm"):
        hybridfl("compare", *few, "--epochs", 2, "--first-seed", 1)
    assert len(load_all(tmp_path)) == 1


def test_a_comparison_says_what_else_its_report_covers(tmp_path: Path) -> None:
    few = ("--rounds", 3, "--seeds", 1, "--out", tmp_path, *[each for each in SMALL if each != "--quiet"])
    hybridfl("compare", "--algorithms", "hfl,fedavg,fedbuff", *few)
    output = hybridfl("compare", "--algorithms", "hfl", *few).stdout
    assert f"The report also covers 2 other runs in {tmp_path} (fedavg, fedbuff), which the table" in output
    assert "also covers" not in hybridfl("compare", "--algorithms", "hfl,fedavg,fedbuff", *few).stdout


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("run", ("--algorithm", f"{'x' * 300}=fedavg"), "has 300 letters: give one of 100 at most"),
        ("compare", ("--algorithms", f"{'x' * 300}=fedavg"), "has 300 letters: give one of 100 at most"),
        ("run", ("--learning-rate", "1e-300"), "learning rate=1e-300 is 0 in float32: give 1e-30 or more."),
        ("run", ("--algorithm", "fedbuff(concurrency=1000)"), "concurrency=1,000, but the fleet has 10 devices"),
        ("run", ("--out", ""), "--out '' names no folder"),
        ("compare", ("--out", ""), "--out '' names no folder"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    command: str, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        hybridfl(command, "--rounds", 1, *SMALL, *arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_algorithm_as_long_as_it_prints_needs_a_folder_of_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = repr(HFL())
    with pytest.raises(InputError, match="is too long to name a folder"):
        hybridfl("run", "--rounds", 1, "--algorithm", long, "--devices", 10, "--quiet")
    hybridfl("run", "--rounds", 1, "--algorithm", long, "--devices", 10, "--quiet", "--out", "r")
    assert load("r").label == long


def test_divergence_of_a_hostile_fleet_names_the_guard(tmp_path: Path) -> None:
    fleet = ("--fleet", "Conditions(hostile=Hostile(0.5, NotANumber()))")
    few = ("--algorithm", "fedavg", "--rounds", "3", "--devices", "10", "--quiet", "--out")
    said = process("run", *fleet, *few, tmp_path / "a").stderr
    assert "hostile devices: refuse their updates by a guard, --guard on (in Python guard=Guard())." in said
    assert "learning rate" not in said
    assert process("run", *fleet, "--guard", "on", *few, tmp_path / "b").returncode == 0


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("command", ["run", "compare", "algorithms"])
def test_a_full_disk_behind_standard_output_is_one_line(command: str, tmp_path: Path) -> None:
    options = {
        "run": ["--rounds", "2", "--devices", "10", "--out", "r"],
        "compare": ["--rounds", "2", "--devices", "10", "--out", "r", "--seeds", "1", "--algorithms", "hfl", "--json"],
    }
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hybridfl", command, *options.get(command, [])],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith("Error: No space left on device: ")


def test_a_disk_that_can_only_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / "tensorboard"))

    hybridfl("run", "--rounds", 1, "--out", tmp_path, *SMALL)
    monkeypatch.setattr("hybridfl.tensorboard.Events._add", refuse)
    monkeypatch.setattr("sys.argv", ["hybridfl", "tensorboard", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"Error: Read-only file system: '{tmp_path / 'tensorboard'}'.")
    assert said.count("\n") == 1


def test_a_path_that_a_shell_would_split_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "my results" / "ü 1"
    output = hybridfl("run", "--rounds", 1, "--out", folder, *[each for each in SMALL if each != "--quiet"]).output
    assert f"hybridfl report '{folder}'" in output


def test_an_import_overwrites_nothing_unasked(tmp_path: Path) -> None:
    source, target = tmp_path / "capacity.json", tmp_path / "mine.csv"
    source.write_text(json.dumps({"1": {"computation": 100, "communication": 1000}}))
    target.write_text("mine")
    order = ("fleet", "import", "fedscale-capacity", source, target)
    with pytest.raises(InputError, match=r"mine.csv' is there already: give another path, or --overwrite"):
        hybridfl(*order)
    assert target.read_text() == "mine"
    hybridfl(*order, "--overwrite")
    assert target.read_text().startswith("device,seconds_per_sample")


@pytest.mark.usefixtures("no_report")
def test_a_trace_that_changed_between_two_algorithms_is_another_fleet(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    common = ("--fleet", f"Recorded('{trace}')", "--devices", 4, "--epochs", 1, "--seeds", 1, "--seconds", 9, "--quiet")
    trace.write_text("device,seconds\n0,1\n1,2\n2,3\n3,4\n")
    hybridfl("compare", "--algorithms", "hfl", *common, "--out", tmp_path / "a")
    trace.write_text("device,seconds\n0,4\n1,3\n2,2\n3,1\n")
    with pytest.raises(InputError, match=r"cannot be compared with this \(traces .*t\.csv"):
        hybridfl("compare", "--algorithms", "fedasync", *common, "--out", tmp_path / "a")


@pytest.mark.usefixtures("no_report")
def test_stragglers_that_differ_by_seed_are_a_range(tmp_path: Path) -> None:
    few = ("--algorithms", "fedavg", "--fleet", "flaky", "--devices", 10, "--rounds", 1, "--epochs", 1)
    output = hybridfl("compare", *few, "--seeds", 3, "--out", tmp_path).stdout
    assert re.search(r"10 devices, \d+ to \d+% stragglers", output)


@pytest.mark.usefixtures("no_report")
def test_whom_an_option_of_the_local_work_does_not_reach_is_said(tmp_path: Path) -> None:
    few = ("--seeds", 1, "--rounds", 1, "--devices", 10)
    own = "hfl(local=FullWork(epochs=1)),two=HFL(local=FullWork(epochs=1))"
    said = hybridfl(
        "compare", "--algorithms", f"{own},fedavg", *few, "--learning-rate", 0.01, "--clip", 1, "--out", tmp_path / "a"
    ).stderr
    assert (
        "hfl(local=FullWork(epochs=1)) and two do not take --learning-rate and --clip: they spell their own local work."
        in said.splitlines()
    )
    for name, algorithms, options in (("b", f"{own},fedavg", ()), ("c", "hfl,fedavg", ("--learning-rate", 0.01))):
        result = hybridfl("compare", "--algorithms", algorithms, *few, *options, "--out", tmp_path / name)
        assert "local work" not in result.stderr


@pytest.mark.parametrize("seconds", [-1, "nan", "inf"])
def test_a_straggler_of_a_local_fleet_takes_some_time(seconds: object) -> None:
    with pytest.raises(InputError, match=r"--slow-seconds \S+ is no time that a job takes: give 0 or more"):
        hybridfl(
            "deploy", "local", "--slow-seconds", seconds, "--devices", 1, "--slow", 2
        )  # refused, too: starts nothing
