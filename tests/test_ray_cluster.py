"""A real Ray of two workers on this machine, and one of them killed in mid-run."""

import dataclasses
import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.sampling import Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.data.synthetic import synthetic
from hybridfl.engines import CPU
from hybridfl.errors import InputError
from hybridfl.experiment import save_all
from hybridfl.lockstep import Event, execute_all
from hybridfl.plan import Run
from hybridfl.ray_cluster import Cluster, RayTrainer, connected, execute_on_cluster
from hybridfl.records import load
from hybridfl.tally import Snapshot
from hybridfl.task import Task
from hybridfl.tasks import Synthetic
from hybridfl.timing import PaperDelays

ray = pytest.importorskip("ray")
LOCAL = FullWork(epochs=2, batch_size=16)
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.xdist_group("ray"),
]


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def kept(two_cpus: None) -> Iterator[list[Cluster]]:
    """The cluster the tests share: workers take seconds to start."""
    clusters: list[Cluster] = []
    yield clusters
    for each in clusters:
        each.__exit__(None, None, None)


@pytest.fixture
def free_cpus(kept: list[Cluster]) -> None:
    """The test before has only just given its workers back."""
    while kept:
        kept.pop().__exit__(None, None, None)
    wait_for_cpus()


def wait_for_cpus() -> None:
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def cluster(kept: list[Cluster]) -> Cluster:
    if not kept:
        wait_for_cpus()
        kept.append(Cluster("auto"))
    assert len(kept[0].workers) == 2
    return kept[0]


def plans(seconds: float = 8.0) -> list[Run]:
    return [
        Run(task, algorithm, PaperDelays(0.5, 4), seconds, seed=seed)
        for seed in range(2)
        for task in [Synthetic(1, 1).build(8, seed)]
        for algorithm in (HFL(local=LOCAL), FedBuff(local=LOCAL), SSGD(LOCAL))
    ]


def network(hidden: int) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, hidden), nn.GELU(), nn.Linear(hidden, 10))
    return Task.from_devices(synthetic(1, 1, 8, 0), model)


def said(event: Event) -> str:
    return repr((event.record, event.arrivals)) if isinstance(event, Snapshot) else type(event).__name__


def alone(plan: Run) -> list[str]:
    return [said(event) for _, event in execute_all([plan], CPU)]


def kill(worker: Any) -> None:
    os.kill(ray.get(worker.pid.remote()), signal.SIGKILL)


@pytest.mark.parametrize(
    "task", [Synthetic(1, 1).build(8, 0), network(5), network(200)], ids=["softmax", "vmap", "threads"]
)
def test_jobs_on_workers_give_the_records_of_one_process(cluster: Cluster, task: Task) -> None:
    plan = Run(task, HFL(local=LOCAL), PaperDelays(0.5, 4), 8.0)
    trainer = RayTrainer(cluster, task, plan.seed)
    found = [said(each) for _, each in execute_all([plan], CPU, lambda task, seed: trainer)]
    assert found == alone(plan)


def test_a_worker_killed_while_it_trains_is_replaced(cluster: Cluster) -> None:
    task = Synthetic(1, 1).build(8, 0)
    plan = Run(task, FedAvg(Uniform(4), LOCAL), PaperDelays(0.5, 4), rounds=12)
    before = [ray.get(worker.pid.remote()) for worker in cluster.workers]
    found = []
    for number, (_, snapshot) in enumerate(execute_all([plan], CPU, lambda t, s: RayTrainer(cluster, t, s))):
        found.append(said(snapshot))
        if number == 5:
            kill(cluster.workers[0])
    assert found == alone(plan)
    after = [ray.get(worker.pid.remote()) for worker in cluster.workers]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_runs_on_workers_give_the_records_of_one_process_although_one_dies(cluster: Cluster) -> None:
    runs = plans(seconds=30.0)
    found: dict[int, list[str]] = {id(run): [] for run in runs}
    killed = False
    for run, snapshot in execute_on_cluster(runs, cluster):
        found[id(run)].append(said(snapshot))
        if not killed and len(found[id(run)]) == 11:
            kill(cluster.workers[1])
            killed = True
    assert killed
    for run in runs:
        assert found[id(run)] == alone(run)


def test_a_task_travels_to_a_worker_once(cluster: Cluster) -> None:
    task = Synthetic(1, 1).build(8, 0)
    assert cluster.placed(task).name == cluster.placed(task).name


@pytest.mark.parametrize("count", [1, 6], ids=["jobs", "runs"])
def test_folders_are_written_as_always(free_cpus: None, tmp_path: Path, count: int) -> None:
    runs = plans()[:count]
    list(save_all(runs, [tmp_path / str(number) for number in range(len(runs))], ray="auto"))
    for number, run in enumerate(runs):
        saved = load(tmp_path / str(number))
        assert [record.version for record in saved.records] == [
            event.record.version for _, event in execute_all([run], CPU) if isinstance(event, Snapshot)
        ]


@pytest.mark.parametrize("count", [1, 4], ids=["jobs", "runs"])
def test_runs_go_on_from_their_checkpoints(free_cpus: None, tmp_path: Path, count: int) -> None:
    runs = plans(seconds=12.0)[:count]
    folders = [tmp_path / str(number) for number in range(count)]
    events = save_all(runs, folders, ray="auto", checkpoint_every=2)
    for _ in events:
        if any(list(folder.glob("checkpoints/*.json")) for folder in folders):
            break
    events.close()
    assert any(list(folder.glob("checkpoints/*.json")) for folder in folders)
    wait_for_cpus()
    for _ in save_all(runs, folders, ray="auto"):
        pass
    for number, run in enumerate(runs):
        for _ in save_all([run], [tmp_path / f"whole-{number}"], "cpu"):
            pass
        for file in ("records.jsonl", "arrivals.jsonl", "model.safetensors"):
            assert (folders[number] / file).read_bytes() == (tmp_path / f"whole-{number}" / file).read_bytes()


def test_a_users_mistake_on_a_worker_is_one_line_here(cluster: Cluster) -> None:
    task = dataclasses.replace(network(5), loss=torch.nn.functional.cross_entropy)
    with pytest.raises(InputError, match="reduction='none'"):
        list(execute_on_cluster([Run(task, HFL(local=LOCAL), PaperDelays(0.5, 4), rounds=1)], cluster))


def test_a_run_that_diverges_on_a_worker_ends_as_in_one_process(cluster: Cluster) -> None:
    local = FullWork(epochs=1, batch_size=64, learning_rate=ConstantRate(3))
    task = dataclasses.replace(network(5), l2=1.0)
    plan = Run(task, HFL(local=local), PaperDelays(0.5, 4), seconds=5000, evaluate_every=1000)
    alone = [event.record for _, event in execute_all([plan], CPU) if isinstance(event, Snapshot)]
    for events in (
        execute_on_cluster([plan], cluster),
        execute_all([plan], CPU, functools.partial(RayTrainer, cluster)),
    ):
        assert repr([event.record for _, event in events if isinstance(event, Snapshot)]) == repr(alone)
    assert alone[-1].diverged_at == alone[-1].version > 1


class Deadly:
    """Whoever unpacks it dies."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_work_that_kills_every_worker_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridfl.ray_cluster.MOST_DEATHS", 2)
    with pytest.raises(InputError, match="2 Ray workers died over the same piece of work"):
        cluster.answers([lambda worker: worker.train.remote([Deadly()])])


def test_a_cluster_without_a_free_cpu_is_an_error_that_says_so(cluster: Cluster) -> None:
    while ray.available_resources().get("CPU", 0) > 0:
        time.sleep(0.1)
    with pytest.raises(InputError, match="The Ray cluster has no free CPU"):
        Cluster("auto")


def test_ray_trains_on_cpus(tmp_path: Path) -> None:
    for device, message in (
        ("cuda", "Ray's workers train on their CPUs|no GPU"),
        ("banana", "Unknown device 'banana'"),
    ):
        with pytest.raises(InputError, match=message):
            list(save_all(plans()[:1], [tmp_path], device=device, ray="auto"))


@pytest.mark.parametrize(
    "address", ["foo", "", "localhost:port", "localhost:1", "ray://localhost:1", "localhost:99999999"]
)
def test_without_a_cluster_at_an_address_the_error_says_so(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"No Ray cluster answers at|is no address of a Ray cluster"):
        connected(address)


def test_a_cluster_can_play_twice(cluster: Cluster) -> None:
    [run, *_] = plans()
    first = [said(snapshot) for _, snapshot in execute_on_cluster([run], cluster)]
    assert first == [said(snapshot) for _, snapshot in execute_on_cluster([run], cluster)] == alone(run)
