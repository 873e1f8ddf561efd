from pathlib import Path

import pytest

from hybridfl.algorithms.hfl import HFL
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.records import load
from hybridfl.tasks import Synthetic
from hybridfl.tensorboard import Events
from hybridfl.timing import PaperDelays

TASK = Synthetic(0, 0).build(10, seed=0)


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, time, value) by tag, as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.wall_time, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_the_records_say(tmp_path: Path) -> None:
    for seed in range(2):
        simulate(TASK, HFL(), PaperDelays(), rounds=4, seed=seed, out=tmp_path / f"seed-{seed}")
    events = Events(tmp_path)
    assert events.write() == 10
    assert events.write() == 0
    for seed in range(2):
        records = load(tmp_path / f"seed-{seed}").records
        found = read(tmp_path / "tensorboard" / f"seed-{seed}")
        assert [(step, at) for step, at, _ in found["accuracy/test"]] == [(r.version, r.seconds) for r in records]
        assert [value for *_, value in found["accuracy/test"]] == pytest.approx([r.test_accuracy for r in records])
        assert [value for _, _, value in found["updates/merged"]] == [r.merged for r in records]
        assert [value for *_, value in found["accuracy/device"]] == pytest.approx([r.device_accuracy for r in records])
        assert {"accuracy/worst", "accuracy/below_chance"} <= found.keys()
        assert not any("diverged" in tag for tag in found)
        assert {"loss/train", "loss/test", "accuracy/straggler", "bytes/sent", "staleness/max"} <= found.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_under_way_is_followed_and_written_once(tmp_path: Path) -> None:
    simulate(TASK, HFL(), PaperDelays(), rounds=3, out=tmp_path)
    (tmp_path / "finished.json").unlink()
    path = tmp_path / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    events = Events(tmp_path)
    assert events.write() == 2
    path.write_text("".join(lines))
    assert events.write() == 2
    again = Events(tmp_path)
    assert again.write() == 4
    assert [step for step, _, _ in read(tmp_path / "tensorboard" / "HFL")["accuracy/test"]] == [0, 1, 2, 3]


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results"):
        Events(tmp_path)
