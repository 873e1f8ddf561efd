import gzip
import shutil
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
from hybridfl.label_plot import label_counts


def hybridfl(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_list_says_what_is_here(tmp_path: Path) -> None:
    output = hybridfl("data", "list", "--data-dir", tmp_path)
    assert "fashion-mnist" in output
    assert "30.9 MB" in output
    assert "yes" not in output


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


def test_labels_are_counted_by_device() -> None:
    samples = Samples.from_devices(
        [(torch.zeros(3, 1), torch.tensor([0, 2, 2])), (torch.zeros(2, 1), torch.tensor([1, 1]))]
    )
    assert label_counts(samples).tolist() == [[1, 0], [0, 2], [2, 0]]


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_show_draws_a_picture(kind: str, tmp_path: Path) -> None:
    output = hybridfl("data", "show", "--task", "synthetic", "--devices", 5, "--out", tmp_path / f"labels.{kind}")
    assert "Training samples a device: " in output
    assert (tmp_path / f"labels.{kind}").stat().st_size > 1000


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
