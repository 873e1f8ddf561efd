"""A label that is no class is refused before a run begins, in the same words whichever engine would train."""

import time

import pytest
import torch
from torch import Tensor, nn

from hybridfl import InputError, LogisticRegression, Samples, Task, cross_entropy, simulate
from hybridfl.engines import check_task
from hybridfl.losses import Loss

MODELS = {
    "closed form": LogisticRegression(4, 3),
    "compiled": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
    "vmap": nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)),
}


def task_with(label: int, model: nn.Module, loss: Loss = cross_entropy, test_share: float = 0.1) -> Task:
    draw = torch.Generator().manual_seed(0)
    devices = [(torch.randn(20, 4, generator=draw), torch.arange(20) % 3) for _ in range(4)]
    devices[2][1][:10] = label
    return Task.from_devices(devices, model, loss=loss, test_share=test_share)


@pytest.mark.parametrize("label", [3, 10, -1, -100])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_label_that_is_no_class_names_device_label_and_outputs(model: nn.Module, label: int) -> None:
    with pytest.raises(InputError) as caught:
        simulate(task_with(label, model), "fedavg(4)", "paper", rounds=1)
    assert str(caught.value) == (
        f"Device 2 has the label {label}, but the model has 3 outputs, for labels 0 to 2: give the model more outputs, or "
        "number the labels from 0."
    )


def test_test_labels_are_looked_at_too() -> None:
    good, bad = task_with(0, MODELS["vmap"]), task_with(7, MODELS["vmap"])
    task = Task("mixed", good.train, bad.test, MODELS["vmap"])
    with pytest.raises(InputError, match="Device 2 has the label 7"):
        check_task(task)


def test_a_label_that_no_device_holds_does_no_harm() -> None:
    task = task_with(9, MODELS["vmap"])
    rows = [task.train.rows(device) for device in (0, 1, 3)]
    check_task(Task("without device 2", task.train.with_rows(rows), task.train.with_rows(rows), MODELS["vmap"]))


def test_a_loss_of_ones_own_may_ignore_labels() -> None:
    def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none", ignore_index=-100)

    check_task(task_with(-100, MODELS["vmap"], ignoring))


def test_a_bad_label_among_the_first_samples_is_said_in_the_same_words() -> None:
    draw = torch.Generator().manual_seed(0)
    for model in MODELS.values():
        task = Task.from_devices([(torch.randn(6, 4, generator=draw), torch.full((6,), 5))], model)
        with pytest.raises(InputError, match="Device 0 has the label 5, but the model has 3 outputs"):
            check_task(task)


def test_a_million_labels_cost_next_to_nothing() -> None:
    samples = Samples.from_devices([(torch.zeros(1_000_000, 1), torch.ones(1_000_000).long())])
    started = time.perf_counter()
    samples.check_classes(2)
    assert time.perf_counter() - started < 0.5
