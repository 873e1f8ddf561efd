"""What a run gives back: records, arrivals, scores by device, and the model; and where the next run begins."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hybridfl import HFL, FullWork, InputError, Run, Task, execute, load, save_all, simulate
from hybridfl.vectors import flatten

LOCAL = FullWork(epochs=1, batch_size=8)
ALGORITHM = HFL(local=LOCAL)


class Shifting(nn.Module):
    """With a buffer, one that is not saved, and one parameter in two layers."""

    shift: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.full((4,), 0.5))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.two(torch.relu(self.one(inputs + self.shift)))))
        return outputs


def made(model: nn.Module) -> Task:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(20, 4, generator=draw) for _ in range(6)]
    return Task.from_devices([(x, x[:, :3].argmax(1)) for x in inputs], model)


@pytest.fixture
def task() -> Task:
    torch.manual_seed(0)
    return made(Shifting())


def accuracy(model: nn.Module, task: Task) -> float:
    inputs, targets = task.test.take(torch.from_numpy(task.test.index))
    return float((model(inputs).argmax(1) == targets).float().mean())


def test_the_model_is_the_last_records(task: Task) -> None:
    result = simulate(task, ALGORITHM, "paper", rounds=4)
    assert accuracy(result.model, task) == pytest.approx(result.records[-1].test_accuracy)
    assert not result.model.training
    assert result.model is not task.model
    assert [score.device for score in result.devices] == list(range(6))
    assert len(result.arrivals) == result.records[-1].merged


def test_in_memory_and_in_a_folder_the_result_is_the_same_and_so_is_what_is_read_back(
    task: Task, tmp_path: Path
) -> None:
    results = [simulate(task, ALGORITHM, "paper", rounds=4, out=out) for out in (None, tmp_path / "a", tmp_path / "a")]
    first = results[0]
    for other in results[1:]:
        assert repr(other.records) == repr(first.records)
        assert other.arrivals == first.arrivals
        assert other.devices == first.devices
        assert not other.model.training
        for name, tensor in first.model.state_dict().items():
            assert torch.equal(other.model.state_dict()[name], tensor)


def test_the_saved_model_has_buffers_and_shared_parameters(task: Task, tmp_path: Path) -> None:
    result = simulate(task, ALGORITHM, "paper", rounds=2, out=tmp_path)
    fresh = Shifting()
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert torch.equal(flatten(fresh), flatten(result.model))
    assert isinstance(result.model, Shifting)
    assert result.model.two.weight is result.model.one.weight


def test_a_saved_model_that_cannot_be_read_is_said(task: Task, tmp_path: Path) -> None:
    simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"what?")
    with pytest.raises(InputError, match=r"model.safetensors' is not what it was when the run ended: .*fresh=True"):
        simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)
    forget_checksum_of_model(tmp_path)
    with pytest.raises(InputError, match=r"model.safetensors' cannot be read .*fresh=True"):
        simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)


def forget_checksum_of_model(folder: Path) -> None:
    """As earlier versions left a run."""
    said = json.loads((folder / "finished.json").read_text())
    del said["model.safetensors"], said["checksum"]
    (folder / "finished.json").write_text(json.dumps(said))


def test_what_becomes_of_the_model_changes_no_run(task: Task, tmp_path: Path) -> None:
    first = simulate(task, ALGORITHM, "paper", rounds=3, out=tmp_path)
    before = task.describe()
    task.model.load_state_dict(first.model.state_dict())
    again = simulate(task, ALGORITHM, "paper", rounds=3)
    assert repr(again.records) == repr(first.records)
    assert made(task.model).describe()["checksum"] != before["checksum"]
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.fill_(float("nan"))
    for algorithm in ("hfl", "s-sgd"):
        assert simulate(task, algorithm, "paper", rounds=1).records[-1].train_loss < 2
    assert torch.equal(task.pooled().first_weights, task.first_weights)
    assert json.loads((tmp_path / "run.json").read_text())["task"]["checksum"] == before["checksum"]


@pytest.mark.parametrize("whose", ["the user's", "the task's"])
def test_a_buffer_that_is_changed_in_place_changes_no_run(whose: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = Shifting()
    task = made(own)
    first = simulate(task, ALGORITHM, "paper", rounds=3)
    (own if whose == "the user's" else task.model).shift.mul_(9)  # type: ignore[operator]
    for out in (None, tmp_path, tmp_path):
        again = simulate(task, ALGORITHM, "paper", rounds=3, out=out)
        assert repr(again.records) == repr(first.records)
        assert torch.equal(again.model.shift, torch.full((4,), 0.5))  # type: ignore[arg-type]
    changed = made(own if whose == "the user's" else task.model)
    assert changed.checksum != task.checksum
    assert repr(simulate(changed, ALGORITHM, "paper", rounds=3).records) != repr(first.records)


def test_a_task_with_one_thing_replaced_keeps_its_first_model() -> None:
    torch.manual_seed(0)
    own = Shifting()
    task = made(own)
    wanted = simulate(replace(task, scored=5), ALGORITHM, "paper", rounds=1)
    for model in (own, task.model):
        model.shift.mul_(9)  # type: ignore[operator]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
    few = replace(task, scored=5)
    assert repr(simulate(few, ALGORITHM, "paper", rounds=1).records) == repr(wanted.records)
    for other in (few, task.pooled(), pickle.loads(pickle.dumps(few))):
        assert torch.equal(other.first_weights, task.first_weights)
        assert torch.equal(replace(other, l2=0.1).first_model.shift, torch.full((4,), 0.5))  # type: ignore[arg-type]


def test_another_model_in_a_task_brings_its_own_first_weights(task: Task) -> None:
    own = Shifting()
    first = replace(task, model=own)
    assert torch.equal(first.first_weights, flatten(own))
    with torch.no_grad():
        own.last.bias.add_(1)
    assert not torch.equal(first.first_weights, flatten(own))
    assert torch.equal(replace(first, model=own).first_weights, flatten(own)), "as it is now"


def test_a_model_that_cannot_be_copied_is_refused_in_one_line() -> None:
    model = nn.Linear(4, 3)
    model.extra = model.weight * 2
    with pytest.raises(
        InputError, match=r"^Linear cannot be copied, which every run does with its model: Only Tensors"
    ):
        made(model)


def test_a_saved_model_that_lacks_a_parameter_is_refused(task: Task, tmp_path: Path) -> None:
    simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)
    forget_checksum_of_model(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    older = {name: each for name, each in whole.items() if name not in ("two.weight", "shift")}
    save_file(older, path)  # as earlier versions wrote it: no buffers, one name per shared parameter
    simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)
    save_file({name: each for name, each in whole.items() if name != "last.bias"}, path)
    with pytest.raises(InputError, match=r"model.safetensors' has no parameter 'last.bias': run again with fresh=True"):
        simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)
    save_file(whole | {"last.bias": torch.zeros(7)}, path)
    with pytest.raises(InputError, match=r"is of another model \(size mismatch for last.bias.*fresh=True"):
        simulate(task, ALGORITHM, "paper", rounds=1, out=tmp_path)


def test_a_break_leaves_a_model(task: Task) -> None:
    plan = Run(task, ALGORITHM, HFL_FLEET, rounds=50)
    for snapshot in execute(plan):
        if snapshot.record.version == 3:
            break
    model = task.model_with(snapshot.weights)
    assert accuracy(model, task) == pytest.approx(snapshot.record.test_accuracy)
    assert torch.equal(flatten(task.model), task.first_weights)


HFL_FLEET: Any = "paper"


LOCKED_ELSEWHERE = """
import sys
from pathlib import Path
from hybridfl.folder_lock import locked
with locked([Path(sys.argv[1])]):
    print("free")
"""


def test_a_break_leaves_a_folder_that_is_unlocked_and_goes_on(task: Task, tmp_path: Path) -> None:
    plan = Run(task, ALGORITHM, HFL_FLEET, rounds=8, label="hfl")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for _ in save_all([plan], [whole]):
        pass
    for _, record in save_all([plan], [broken], checkpoint_every=2):
        if record.version == 5:
            break
    assert not (broken / "finished.json").exists()
    elsewhere = [sys.executable, "-c", LOCKED_ELSEWHERE, str(broken)]
    assert subprocess.run(elsewhere, capture_output=True, text=True, timeout=60, check=True).stdout == "free\n"
    assert list((broken / "checkpoints").iterdir())
    result = simulate(task, ALGORITHM, "paper", rounds=8, out=broken, label="hfl")
    for name in ("records.jsonl", "arrivals.jsonl", "model.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert repr(result.records) == repr(load(whole).records)


def test_other_data_or_first_weights_in_a_folder_are_said_with_what_to_do(tmp_path: Path) -> None:
    simulate(made(nn.Linear(4, 3)), ALGORITHM, "paper", rounds=1, out=tmp_path)
    with pytest.raises(
        InputError, match=r"results of other data or other first weights .*torch.manual_seed\(0\).*another folder"
    ):
        simulate(made(nn.Linear(4, 3)), ALGORITHM, "paper", rounds=1, out=tmp_path)
