"""The command line as a user meets it: real processes for exit codes and interruption, in-process calls for the rest."""

import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hybridfl.cli import app
from hybridfl.errors import InputError
from hybridfl.records import load, load_all

SMALL = ["--devices", "10", "--stragglers", "0.5", "--max-delay", "3", "--epochs", "1", "--quiet"]
COLUMNS = [
    "algorithm",
    "test_accuracy",
    "test_accuracy_std",
    "seconds_to_target",
    "speedup",
    "straggler_accuracy",
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
    assert list(table) == ["rows"]
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


@pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["report"], ["algorithms"]])
def test_help_has_examples(command: list[str]) -> None:
    output = hybridfl(*command, "--help").output
    assert "Usage" in output
    if command in (["run"], ["compare"], ["report"]):
        assert f"hybridfl {command[0]} " in output
        assert "Examples" in output


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
        (["--learning-rate", "0"], "learning rate=0"),
        (["--schedule", "invers"], "Did you mean 'inverse'"),
        (["--rounds", "0"], "rounds=0"),
        (["--seconds", "-1"], "seconds=-1"),
        (["--algorithm", "HFL(stragglers=KnownShare(1.0))"], "give round_seconds"),
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


def test_the_table_holds_the_algorithms_asked_for(tmp_path: Path) -> None:
    """Others in the folder stay for the report."""
    common = ["--seeds", "1", "--seconds", "3", "--out", tmp_path, "--json", *SMALL]
    hybridfl("compare", "--algorithms", "hfl", *common)
    rows = json.loads(hybridfl("compare", "--algorithms", "fedasync", *common).stdout)["rows"]
    assert [row["algorithm"] for row in rows] == ["fedasync"]
    assert len(load_all(tmp_path)) == 2


def test_algorithms_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would share the folder"):
        hybridfl("compare", "--algorithms", "FedBuff(2),FedBuff( 2)", "--out", tmp_path, *SMALL)
