import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.progress import Progress
from typer.testing import CliRunner

from hybridfl.cli import app
from hybridfl.cli_data import FileProgress
from hybridfl.data.federated import Samples
from hybridfl.data.store import RemoteFile, data_dir
from hybridfl.errors import InputError
from hybridfl.label_counts import LabelCounts, legend, table
from hybridfl.label_plot import reference_sizes, write_label_plot


def hybridfl(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_list_says_what_is_here(tmp_path: Path) -> None:
    output = hybridfl("data", "list", "--data-dir", tmp_path)
    assert "fashion-mnist" in output
    assert "30.9 MB" in output
    assert output.count("not here") == 4


def test_where(tmp_path: Path) -> None:
    assert hybridfl("data", "where", "--data-dir", tmp_path).replace("\n", "") == str(tmp_path)


def test_a_task_without_its_data_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `hybridfl data fetch mnist --data-dir "):
        hybridfl("run", "--task", "mnist", "--data-dir", tmp_path, "--out", tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_check_finds_damage(tmp_path: Path) -> None:
    assert "mnist: not here" in hybridfl("data", "check", "--data-dir", tmp_path)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(InputError, match=r"Not all is what was published: run `hybridfl data fetch mnist`"):
        hybridfl("data", "check", "--data-dir", tmp_path)


def samples_with(targets: torch.Tensor) -> Samples:
    return Samples.from_devices([(torch.zeros(len(half), 1), half) for half in targets.tensor_split(2)])


def test_labels_are_counted_by_device() -> None:
    samples = Samples.from_devices(
        [(torch.zeros(3, 1), torch.tensor([0, 2, 2])), (torch.zeros(2, 1), torch.tensor([1, 1]))]
    )
    labels = LabelCounts.of(samples)
    assert labels.counts.tolist() == [[1, 0], [0, 2], [2, 0]]
    assert labels.names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("targets", "names", "counts"),
    [
        (torch.arange(11.0), "0 to 1", [1, 0]),
        (torch.tensor([[0, 1], [1, 1]]), "0", [1, 0]),
        (torch.tensor([-1, 1]), "-1", [1, 0]),
        (torch.full((4,), 2.5), "2.5 to 2.5", [0, 0]),
        (torch.arange(80), "0", [1, 0]),
    ],
    ids=["regression", "sequences", "negative", "all alike", "many"],
)
@pytest.mark.parametrize("width", [10, 40, 60, 80, 200])
def test_targets_of_every_kind_are_shown(
    targets: torch.Tensor, names: str, counts: list[int], width: int, tmp_path: Path
) -> None:
    labels = LabelCounts.of(samples_with(targets))
    assert labels.counts.sum() == targets.numel()
    assert labels.names[0] == names
    assert labels.counts[0].tolist() == counts
    lines = table(labels, [0, 1], width)
    assert len(lines) == 3
    assert max(map(len, lines)) <= max(width, 26)
    assert legend(labels, width)
    write_label_plot(labels, "a title", tmp_path / "labels.svg")


def test_the_table_shows_shares_and_the_largest_numbers() -> None:
    samples = Samples.from_devices(
        [
            (torch.zeros(8, 1), torch.tensor([0, 0, 0, 0, 0, 0, 0, 2])),
            (torch.zeros(1200, 1), torch.full((1200,), 1)),
        ]
    )
    assert table(LabelCounts.of(samples), [0, 1], 80) == [
        "                 012",
        "device 0      8  ▇·▁  0: 7, 2: 1",
        "device 1  1,200  ·█·  1: 1,200",
    ]


def test_the_legend_of_the_picture_has_round_numbers() -> None:
    assert reference_sizes(5251) == [5000, 1000, 200]
    assert reference_sizes(9) == [5, 2]
    assert reference_sizes(1) == [1]


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_show_draws_a_picture(kind: str, tmp_path: Path) -> None:
    output = hybridfl("data", "show", "--task", "synthetic", "--devices", 5, "--out", tmp_path / f"labels.{kind}")
    assert "Training samples per device: " in output
    assert (tmp_path / f"labels.{kind}").stat().st_size > 1000


def test_show_writes_no_picture_unasked_and_needs_no_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; sys.argv = ['hybridfl', 'data', 'show', '--devices', '3']; "
        "from hybridfl.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "device 2" in done.stdout
    assert "█ more than seven eighths" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("command", ["data list", "fleet list", "fleet show flaky", "algorithms"])
def test_lists_and_pictures_keep_to_the_terminals_width(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = hybridfl(*command.split()).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_show_needs_a_folder_to_draw_into(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no folder"):
        hybridfl("data", "show", "--out", tmp_path / "none" / "labels.svg")


def test_a_new_attempt_starts_its_progress_again() -> None:
    with Progress(disable=True) as progress:
        line = FileProgress(progress, RemoteFile("a", "", 100, "md5:"))
        line.update(70)
        line.total = 100  # as pooch does when it starts over
        line.update(30)
        assert progress.tasks[0].completed == 30
        line.reset()
        line.update(100)
        assert progress.tasks[0].percentage == 100


def test_show_draws_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"end its name in \.svg, \.pdf or \.png"):
        hybridfl("data", "show", "--out", tmp_path / "labels.doc")


@pytest.mark.data("fashion-mnist")
def test_a_run_on_real_images_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "r"
    hybridfl("run", "--task", "fashion-mnist", "--rounds", 2, "--epochs", 1, "--out", out, "--quiet")
    assert len((out / "records.jsonl").read_text().splitlines()) == 3
    assert "fashion-mnist: intact" in hybridfl("data", "check")


@pytest.mark.data("mnist")
def test_a_damaged_image_file_is_named(tmp_path: Path) -> None:
    shutil.copytree(data_dir() / "mnist", tmp_path / "mnist")
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    images.chmod(0o644)
    images.write_bytes(images.read_bytes()[:100000])
    with pytest.raises(InputError, match="is not a gzipped IDX file"):
        hybridfl("run", "--task", "mnist", "--rounds", 1, "--data-dir", tmp_path, "--out", tmp_path / "r")
