from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Array2D, Dataset, Features, Value
from datasets.utils.logging import disable_progress_bar
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import IidPartitioner, NaturalIdPartitioner
from PIL import Image

from hybridfl import HFL, PaperDelays, Task, from_flower, from_hugging_face, simulate
from hybridfl.errors import InputError

disable_progress_bar()

ROWS = {
    "who": ["b", "a", "b", "c", "a"],
    "point": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]],
    "label": [0, 1, 0, 1, 1],
    "words": ["a", "b", "c", "d", "e"],
    "ragged": [[1], [1, 2], [1], [1], [1]],
}


def test_a_device_is_one_value_of_the_partition_column() -> None:
    samples = from_hugging_face(Dataset.from_dict(ROWS), "who", "point", "label")
    assert [samples.inputs[samples.rows(device)].tolist() for device in range(3)] == [
        [[1.0, 2.0], [5.0, 6.0]],
        [[3.0, 4.0], [9.0, 10.0]],
        [[7.0, 8.0]],
    ]
    assert samples.targets[samples.rows(1)].tolist() == [1, 1]


def test_a_row_that_is_nobodys_is_named() -> None:
    with pytest.raises(InputError, match="Row 1 of column 'who' is empty"):
        from_hugging_face(Dataset.from_dict({"who": ["a", None], "x": [1.0, 2.0], "y": [0, 1]}), "who", "x", "y")


def test_arrays_of_bytes_stay_bytes() -> None:
    features = Features({"who": Value("int64"), "x": Array2D((2, 2), "uint8"), "y": Value("int8")})
    rows = {"who": [0, 1], "x": [[[0, 255], [1, 2]]] * 2, "y": [0, 1]}
    samples = from_hugging_face(Dataset.from_dict(rows, features=features), "who", "x", "y")
    assert samples.inputs.dtype == torch.uint8
    assert samples.inputs[0].tolist() == [[0, 255], [1, 2]]
    assert samples.targets.dtype == torch.int64


def test_images_stay_bytes() -> None:
    images = [Image.fromarray(np.full((4, 6), 51 * shade, np.uint8)) for shade in range(3)]
    dataset = Dataset.from_dict({"who": [0, 1, 0], "image": images, "label": [0, 1, 2]})
    samples = from_hugging_face(dataset, "who", "image", "label", scale=1 / 255)
    assert samples.inputs.dtype == torch.uint8
    inputs, targets = samples.take(torch.from_numpy(samples.rows(0)))
    assert inputs.shape == (2, 4, 6)
    assert inputs[:, 0, 0].tolist() == pytest.approx([0.0, 0.4])
    assert targets.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("partition", "inputs", "targets", "message"),
    [
        ("whom", "point", "label", "no column 'whom'. Did you mean 'who'"),
        ("who", "poin", "label", "no column 'poin'. Did you mean 'point'"),
        ("who", "words", "label", "column 'words' differ in shape or are no numbers"),
        ("who", "ragged", "label", "column 'ragged' differ in shape or are no numbers"),
    ],
)
def test_what_cannot_be_read_is_said(partition: str, inputs: str, targets: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_hugging_face(Dataset.from_dict(ROWS), partition, inputs, targets)


def federated(path: Path, partitioner: object) -> FederatedDataset:
    rows = [f"{who},{number},{number % 2}" for number, who in enumerate("abcab" * 8)]
    (path / "rows.csv").write_text("\n".join(["who,number,label", *rows]) + "\n")
    return FederatedDataset(
        dataset="csv",
        partitioners={"train": partitioner},
        data_files={"train": str(path / "rows.csv")},
        cache_dir=str(path / "cache"),
    )


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_device_is_one_partition_of_a_federated_dataset(tmp_path: Path) -> None:
    samples = from_flower(federated(tmp_path, IidPartitioner(num_partitions=6)), "number", "label")
    assert len(samples) == 6
    assert sorted(samples.inputs.tolist()) == list(range(40))
    assert samples.targets.tolist() == [number % 2 for number in samples.inputs.tolist()]
    with pytest.raises(InputError, match=r"no partitioner for 'test'\. It has: train"):
        from_flower(federated(tmp_path, IidPartitioner(num_partitions=6)), "number", "label", split="test")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_both_ways_give_the_same_samples(tmp_path: Path) -> None:
    by_user = federated(tmp_path, NaturalIdPartitioner(partition_by="who"))
    ours = from_hugging_face(by_user.load_split("train"), "who", "number", "label")
    theirs = from_flower(by_user, "number", "label")
    held = [
        sorted(sorted(samples.inputs[samples.rows(device)].tolist()) for device in range(3))
        for samples in (ours, theirs)
    ]
    assert held[0] == held[1]


def test_such_samples_make_a_task() -> None:
    points = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    dataset = Dataset.from_dict(
        {"who": [i % 6 for i in range(60)], "point": points.tolist(), "label": (points.sum(1) > 0).long().tolist()}
    )
    task = Task.from_devices(from_hugging_face(dataset, "who", "point", "label"), torch.nn.Linear(2, 2))
    records = simulate(task, HFL(), PaperDelays(stragglers=0.5), rounds=5).records
    assert records[-1].train_loss < records[0].train_loss
