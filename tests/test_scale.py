"""A fleet of 100,000 devices; `benchmarks/scale.py` measures 1,000,000."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import FullWork
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import Uniform
from hybridfl.experiment import execute
from hybridfl.fleets import flaky
from hybridfl.plan import Run
from hybridfl.protocol import Algorithm
from hybridfl.task import Task
from hybridfl.tasks import SyntheticCrowd

LOCAL = FullWork(epochs=1)


@pytest.fixture(scope="module")
def crowd() -> Task:
    return SyntheticCrowd(kinds=100, scored=500).build(100_000, 0)


def test_devices_of_a_crowd_share_the_data_of_their_kind(crowd: Task) -> None:
    assert len(crowd.train) == len(crowd.test) == 100_000
    assert set(crowd.train.num_samples.tolist()) == {20}
    assert len(crowd.train.inputs) == len(crowd.test.inputs)
    one, same, other = (set(crowd.train.rows(device).tolist()) for device in (7, 107, 8))
    assert max(one | same) - min(one | same) < len(crowd.train.inputs) / 2
    assert not one & other
    assert not np.intersect1d(crowd.train.index, crowd.test.index).size
    assert crowd.test.num_samples[:100].min() > 0
    assert crowd.test.num_samples[100:].sum() == 0


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(Uniform(50), LOCAL),
        FedAsync(local=LOCAL, concurrency=50),
        FedBuff(local=LOCAL, concurrency=50),
        HFL(Memory(most=120, storage="float16"), local=LOCAL, participants=Uniform(50)),
    ],
    ids=["fedavg", "fedasync", "fedbuff", "hfl"],
)
def test_a_hundred_thousand_devices(crowd: Task, algorithm: Algorithm[Any]) -> None:
    snapshots = list(execute(Run(crowd, algorithm, flaky(), rounds=12, evaluate_every=1e9), "cpu"))
    arrivals = [arrival for snapshot in snapshots for arrival in snapshot.arrivals]
    assert snapshots[-1].record.version == 12
    assert max(arrival.device for arrival in arrivals) > 1000
    if isinstance(algorithm, HFL):
        merged = {arrival.device for arrival in arrivals if arrival.is_merged}
        assert snapshots[-1].record.forgotten >= len(merged) - 120 > 100


def test_memory_and_cost_do_not_grow_with_the_fleet() -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "scale.py"

    def measured(devices: int) -> dict[str, float]:
        command = [sys.executable, str(script), "--one", "HFL, at most 2,000", str(devices), "--rounds", "30"]
        found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return found

    small, large = measured(2_000), measured(100_000)
    assert large["memory"] < small["memory"] + 0.3
    assert large["memory"] < 2.0
    # 50 × the devices; this machine's own noise is a factor of two or three.
    assert large["middle"] < 5 * small["middle"]
