import dataclasses
import functools
import math
import re
import sysconfig
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hybridfl
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.sampling import Deadline, Everyone, FirstOf, Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.data.federated import Samples
from hybridfl.engines import trainer_for
from hybridfl.errors import InputError
from hybridfl.experiment import execute, save_all, simulate
from hybridfl.losses import Loss, cross_entropy
from hybridfl.models import LogisticRegression
from hybridfl.plan import SHOWING, Run, own_version, versions
from hybridfl.records import load, load_config
from hybridfl.seals import sealed
from hybridfl.task import Task
from hybridfl.tasks import Synthetic, SyntheticIID
from hybridfl.timing import ConstantSeconds, Drawn, PaperDelays, PerDevice, Roster
from hybridfl.training import LocalSGD

TASK = Synthetic(1, 1).build(devices=10, seed=0)
TIMING = PaperDelays(0.5, 4)
LOCAL = FullWork(epochs=1)


def last(algorithm: Any, **budget: Any) -> Any:
    return simulate(TASK, algorithm, TIMING, **budget).records[-1]


def test_a_run_ends_after_its_rounds() -> None:
    assert last(HFL(local=LOCAL), rounds=7).version == 7


def test_a_run_ends_after_its_seconds() -> None:
    record = last(HFL(local=LOCAL), seconds=9)
    assert record.seconds <= 9
    assert record.version == 8  # the first round takes 1.5 s to find the pace, the others 1 s


def test_whichever_limit_comes_first() -> None:
    assert last(HFL(local=LOCAL), seconds=100, rounds=3).version == 3
    assert last(HFL(local=LOCAL), seconds=4, rounds=300).version == 3


def test_records_are_made_of_the_first_version_in_every_stretch() -> None:
    records = simulate(TASK, HFL(local=LOCAL), TIMING, seconds=20, evaluate_every=5).records
    assert [record.seconds for record in records] == [0.0, 1.5, 5.5, 10.5, 15.5, 20.0]
    assert [record.version for record in records] == [0, 1, 5, 10, 15, 19]


def test_the_first_record_is_the_untrained_model() -> None:
    first = simulate(TASK, HFL(local=LOCAL), TIMING, rounds=1).records[0]
    assert first.train_loss == pytest.approx(math.log(10))
    assert (first.version, first.merged, first.bytes_received) == (0, 0, 0)
    assert first.bytes_sent == 10 * 610 * 4
    assert math.isnan(first.mean_staleness)


def test_counts_by_hand() -> None:
    """Everyone, 10 devices, two rounds: 10 sent at the start and after each round; 20 received and merged."""
    record = simulate(TASK, FedAvg(Everyone(), LOCAL), TIMING, rounds=2).records[-1]
    assert (record.merged, record.discarded) == (20, 0)
    assert (record.bytes_sent, record.bytes_received) == (30 * 2440, 20 * 2440)
    assert (record.mean_staleness, record.max_staleness) == (0.0, 0)


def test_staleness_of_hfl_is_what_the_delays_say() -> None:
    """A straggler that takes 1 + τ s of 1 s rounds is τ versions behind."""
    snapshots = list(execute(Run(TASK, HFL(local=LOCAL), TIMING, seconds=40)))
    late = [a for s in snapshots for a in s.arrivals if a.version > 0]
    assert late
    seconds = TIMING.of(Roster(TASK.train.num_samples)).expected_seconds
    for arrival in late:
        assert arrival.staleness == seconds[arrival.device] - 1
    assert sum(len(s.arrivals) for s in snapshots) == snapshots[-1].record.merged


def test_the_end_of_a_run_is_recorded_with_all_that_arrived() -> None:
    snapshots = list(execute(Run(TASK, FedAvg(Deadline(5, 2.0), LOCAL), TIMING, seconds=21, evaluate_every=100)))
    assert [s.record.seconds for s in snapshots] == [0.0, 2.0, 21.0]
    arrivals = [arrival for s in snapshots for arrival in s.arrivals]
    assert snapshots[-1].record.merged + snapshots[-1].record.discarded == len(arrivals)
    assert snapshots[-1].record.bytes_received == len(arrivals) * 2440
    assert snapshots[-1].record.version > snapshots[1].record.version


def test_a_run_that_can_make_no_version_is_given_up() -> None:
    with pytest.raises(InputError, match=r"1000 times in a row .* in vain, .* as 'late'.*give devices more time"):
        simulate(TASK, FedAvg(Deadline(5, 0.5), LOCAL), TIMING, rounds=3)


def test_a_run_that_can_make_no_version_lasts_until_its_time_is_up() -> None:
    last = simulate(TASK, FedAvg(Deadline(5, 0.5), LOCAL), TIMING, seconds=1500).records[-1]
    assert (last.version, last.seconds) == (0, 1500.0)
    assert last.discarded > 1000


def test_discarded_work_is_counted_and_named() -> None:
    snapshots = list(execute(Run(TASK, FedAvg(FirstOf(2, 6), LOCAL), TIMING, seconds=30)))
    reasons = [a.discarded for s in snapshots for a in s.arrivals if a.discarded]
    assert set(reasons) <= {"late", "round full"}
    assert snapshots[-1].record.discarded == len(reasons) > 0


def test_hfl_discards_nothing() -> None:
    record = last(HFL(local=LOCAL), seconds=30)
    assert record.discarded == 0
    assert record.merged * 2440 == record.bytes_received


def test_ssgd_trains_on_all_data_in_one_place_and_is_scored_by_device() -> None:
    record = last(SSGD(LOCAL), rounds=3)
    assert (record.seconds, record.merged) == (3.0, 3)
    assert not math.isnan(record.straggler_accuracy)
    assert record.test_accuracy > last(HFL(local=LOCAL), rounds=3).test_accuracy


def test_a_run_leaves_its_configuration_records_and_arrivals(tmp_path: Path) -> None:
    plan = Run(TASK, HFL(local=LOCAL), TIMING, rounds=5, seed=4, label="mine")
    kept = [record for _, record in save_all([plan], [tmp_path / "run"])]
    saved = load(tmp_path / "run")
    assert repr(list(saved.records)) == repr(kept)
    assert saved.records[-1].merged == len(saved.arrivals)
    assert saved.label == "mine"
    config = dict(load_config(tmp_path / "run"))
    assert config["algorithm"] == repr(plan.algorithm)
    assert config["seed"] == 4
    assert {"python", "torch", "numpy", "hybridfl"} <= set(config["versions"])
    assert config["task"]["parameters"] == 610


def test_the_checksum_tells_tasks_apart() -> None:
    assert TASK.describe() == Synthetic(1, 1).build(10, 0).describe()
    assert TASK.describe()["checksum"] != Synthetic(1, 1).build(10, 1).describe()["checksum"]
    assert TASK.describe()["checksum"] != SyntheticIID().build(10, 0).describe()["checksum"]
    others = [
        replace(TASK, test=replace(TASK.test, inputs=TASK.test.inputs + 1)),
        replace(TASK, test=replace(TASK.test, targets=1 - TASK.test.targets)),
        replace(TASK, train=replace(TASK.train, scale=0.5)),
        replace(TASK, train=replace(TASK.train, inputs=TASK.train.inputs.double())),
    ]
    assert len({task.describe()["checksum"] for task in [TASK, *others]}) == 5


def test_the_checksum_tells_windows_apart() -> None:
    codes, model = torch.arange(20, dtype=torch.uint8), torch.nn.Linear(1, 1)

    def checksum(window: int) -> object:
        rows = [np.arange(5), np.arange(5, 10)]
        samples = Samples.shared_out(codes.unfold(0, window, 1)[:10], torch.zeros(10, dtype=torch.long), rows)
        return Task("windows", samples, samples, model).describe()["checksum"]

    assert checksum(4) == checksum(4) != checksum(5)


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [(torch.zeros(4, 2, dtype=torch.long), [0, 1, 0, 1]), (torch.zeros(4, 3), [0, 1, 0, 1])],
)
def test_a_model_that_does_not_fit_the_samples_is_refused(inputs: Tensor, labels: list[int]) -> None:
    task = Task.from_devices([(inputs, torch.tensor(labels))] * 2, torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"does not fit the samples, inputs torch\..* \[4, [23]\] and targets"):
        simulate(task, FedAvg(), ConstantSeconds(), rounds=1)


def test_a_run_that_cannot_start_writes_nothing(tmp_path: Path) -> None:
    plan = Run(TASK, FedAvg(Uniform(11)), TIMING, rounds=1)
    with pytest.raises(InputError, match="11 participants"):
        list(save_all([plan], [tmp_path / "run"]))
    with pytest.raises(InputError, match="11 participants"):
        _ = plan.stage
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_by_sample_writes_nothing(tmp_path: Path) -> None:
    task = dataclasses.replace(TASK, loss=nn.functional.cross_entropy)
    with pytest.raises(InputError, match="reduction='none'"):
        list(save_all([Run(task, HFL(), TIMING, rounds=1)], [tmp_path / "run"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "no end"),
        ({"seconds": 0}, "seconds=0"),
        ({"rounds": -1}, "rounds=-1"),
        ({"rounds": 1, "evaluate_every": 0}, "0"),
    ],
)
def test_bad_budgets(budget: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Run(TASK, HFL(), TIMING, **budget)


def test_a_model_of_another_width_is_refused() -> None:
    task = dataclasses.replace(TASK, model=LogisticRegression(64, 10))
    with pytest.raises(InputError, match="takes 64 features, but the samples have 60"):
        simulate(task, HFL(), TIMING, rounds=1)


def test_targets_that_are_no_classes_have_no_accuracy() -> None:
    devices = [(torch.randn(20, 3), torch.randn(20)) for _ in range(3)]
    task = Task.from_devices(devices, nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), loss=_squared)
    record = simulate(task, HFL(), ConstantSeconds(), rounds=2).records[-1]
    assert math.isnan(record.test_accuracy)
    assert record.train_loss > 0
    assert task.describe()["loss"] == "_squared"


def _squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets) ** 2


def test_a_loss_has_a_name_without_an_address() -> None:
    partial = functools.partial(nn.functional.cross_entropy, reduction="none")
    assert dataclasses.replace(TASK, loss=partial).describe()["loss"] == "cross_entropy(reduction='none')"


def test_a_timing_for_another_fleet_is_refused() -> None:
    with pytest.raises(InputError, match="7 devices, but the task has 10"):
        _ = Run(TASK, HFL(), PerDevice((1.0,) * 7), rounds=1).stage


def test_a_users_own_model_and_tensors() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(30 + device, 4, generator=generator) for device in range(6)]
    devices = [(x, (x.sum(1) > 0).long()) for x in inputs]
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    task = Task.from_devices(devices, model)
    assert isinstance(trainer_for(task, 0), LocalSGD)
    algorithm = HFL(local=FullWork(batch_size=8, learning_rate=ConstantRate(0.05)))
    records = simulate(task, algorithm, PaperDelays(0.5, 3), seconds=15).records
    assert records[-1].test_accuracy > 0.8
    assert records[-1].train_loss < records[0].train_loss


def test_the_closed_form_is_taken_for_logistic_regression_only() -> None:
    pytest.importorskip("numba")
    assert type(trainer_for(TASK, 0)).__name__ == "DenseSGD"

    class Mine(LogisticRegression):
        """A subclass may compute anything."""

    assert isinstance(trainer_for(dataclasses.replace(TASK, model=Mine(60, 10)), 0), LocalSGD)
    squared = dataclasses.replace(TASK, loss=lambda outputs, targets: cross_entropy(outputs, targets) ** 2)
    assert isinstance(trainer_for(squared, 0), LocalSGD)


@pytest.mark.parametrize(
    ("inputs", "model"),
    [
        (torch.zeros(6, 4, dtype=torch.int64), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))),
        (torch.zeros(6, 5), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))),
        (torch.zeros(6, 4), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(4, 2))),
        (torch.zeros(6, 2, 3), nn.Sequential(nn.Linear(6, 2))),
        (torch.zeros(6), LogisticRegression(1, 2)),
    ],
)
def test_a_chain_that_does_not_fit_is_refused(inputs: Tensor, model: nn.Module) -> None:
    task = Task.from_devices([(inputs, torch.zeros(6, dtype=torch.int64))] * 2, model)
    with pytest.raises(InputError, match=r"does not fit the samples|one number a sample"):
        list(execute(Run(task, HFL(local=LOCAL), ConstantSeconds(), rounds=1)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux to count open files")
def test_many_runs_do_not_keep_many_files_open(tmp_path: Path) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    runs = [Run(TASK, HFL(local=LOCAL), TIMING, rounds=1, seed=seed) for seed in range(20)]
    for _ in save_all(runs, [tmp_path / str(run.seed) for run in runs]):
        assert sum(1 for _ in Path("/proc/self/fd").iterdir()) < before + 10


class Gained(nn.Module):
    """A user's model whose text does not show its gain."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.linear, self.gain = nn.Linear(60, 10), gain
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(inputs) * self.gain
        return outputs


def _times(factor: float) -> Loss:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return factor * nn.functional.cross_entropy(outputs, targets, reduction="none")

    return loss


@dataclasses.dataclass(frozen=True)
class Mine(FedAvg):
    """A user's algorithm, whose `step` is edited below."""


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ({"loss": _times(1.0)}, {"loss": _times(5.0)}, "_times.<locals>.loss"),
        ({"model": Gained(1.0)}, {"model": Gained(2.0)}, "model"),
    ],
)
def test_a_finished_run_of_other_code_is_not_read_back(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], name: str
) -> None:
    first, second = (dataclasses.replace(TASK, **changes) for changes in (before, after))
    out = str(tmp_path / "run")
    records = simulate(first, Mine(Uniform(5)), TIMING, rounds=2, out=out).records
    with pytest.raises(
        InputError,
        match=rf"results of other code \(.*{name}.* changed since; a value that your code itself changes, a cache for "
        r"example, counts too\): run it again with fresh",
    ):
        simulate(second, Mine(Uniform(5)), TIMING, rounds=2, out=out)
    anew = simulate(second, Mine(Uniform(5)), TIMING, rounds=2, out=out, fresh=True).records
    assert anew[-1].train_loss != records[-1].train_loss
    assert list(simulate(second, Mine(Uniform(5)), TIMING, rounds=2, out=out).records) == list(anew)


def test_an_edited_step_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(TASK, Mine(Uniform(5)), TIMING, rounds=2, out=tmp_path / "run")

    def step(self: Mine, state: Any, inbox: Any) -> Any:
        state, outbox = FedAvg.step(self, state, inbox)
        return dataclasses.replace(state, weights=state.weights * 0.5), outbox

    monkeypatch.setattr(Mine, "step", step)
    with pytest.raises(InputError, match=r"other code .*step"):
        simulate(TASK, Mine(Uniform(5)), TIMING, rounds=2, out=tmp_path / "run")


def test_a_run_that_is_read_back_is_said_to_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run").records
    assert caplog.messages == []
    assert list(simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run").records) == list(first)
    assert caplog.messages == [
        f"'{tmp_path / 'run'}' holds this run already: it is read back, not run again (fresh=True runs it again)."
    ]


def test_a_finished_run_of_another_version_is_not_read_back(tmp_path: Path) -> None:
    out = tmp_path / "run"
    simulate(TASK, HFL(), TIMING, rounds=2, out=out)
    config = dict(load_config(out))
    config["versions"]["torch"] = "1.0"
    (out / "run.json").write_bytes(sealed(config))
    with pytest.raises(InputError, match=r"\('torch 1\.0 → 2.*' changed since\)"):
        simulate(TASK, HFL(), TIMING, rounds=2, out=out)
    simulate(TASK, HFL(), TIMING, rounds=2, out=out, fresh=True)


def test_a_clones_version_is_that_of_its_code(tmp_path: Path) -> None:
    """hybridfl's version stays while its code is edited or pulled."""
    package = tmp_path / "hybridfl"
    (package / "flower").mkdir(parents=True)
    for name in ("loop.py", "report.py", "flower/wire.py"):
        (package / name).write_text("ALPHA = 0.6\n")

    def version(edited: str) -> str:
        own_version.cache_clear()
        (package / edited).write_text((package / edited).read_text() + "#\n")
        return own_version(package)

    first, shown, wire, loop = (version(name) for name in ("loop.py", "report.py", "flower/wire.py", "loop.py"))
    assert first.startswith(metadata.version("hybridfl") + "+")
    assert first == shown != wire != loop
    assert own_version(Path(sysconfig.get_paths()["purelib"]) / "hybridfl") == metadata.version("hybridfl")
    own_version.cache_clear()
    assert re.fullmatch(r"[0-9.]+(\+[0-9a-f]{12})?", versions()["hybridfl"])


def test_what_only_shows_is_there() -> None:
    files = [path.name for path in Path(hybridfl.__file__).parent.iterdir()]
    for name in SHOWING:
        assert any(file.startswith(name) for file in files), name


def test_a_finished_run_that_does_not_name_its_code_is_not_read_back(tmp_path: Path) -> None:
    simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run")
    config = dict(load_config(tmp_path / "run"))
    del config["code"]
    (tmp_path / "run" / "run.json").write_bytes(sealed(config))
    with pytest.raises(InputError, match="code, which it does not name"):
        simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run")


@dataclasses.dataclass(frozen=True)
class MyLaw:
    def draw(self, draw: np.random.Generator, count: int) -> Any:
        return 1.0 + draw.random(count)


@dataclasses.dataclass(frozen=True)
class MyGuard(Guard):
    limit = 3


def test_fleet_and_guard_are_part_of_a_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again() -> None:
        simulate(TASK, FedAvg(Uniform(2)), Drawn(MyLaw()), rounds=1, out=tmp_path / "run", guard=MyGuard())

    again()
    again()
    with monkeypatch.context() as patch:
        patch.setattr(MyLaw, "draw", lambda self, draw, count: 2.0 + draw.random(count))
        with pytest.raises(InputError, match=r"other code .*MyLaw"):
            again()
    with monkeypatch.context() as patch:
        patch.setattr(MyGuard, "limit", 4)
        with pytest.raises(InputError, match=r"other code .*MyGuard"):
            again()


@pytest.mark.parametrize(("then", "said"), [(None, "numba none → 0.68"), ("0.60", "numba 0.60 → 0.68")])
def test_a_run_that_ended_without_numba_is_not_read_back_with_it(
    tmp_path: Path, then: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = versions() | {"numba": "0.68"}
    monkeypatch.setattr("hybridfl.plan.versions", lambda: {**now, "numba": then} if then else _without_numba(now))
    simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run")
    monkeypatch.setattr("hybridfl.plan.versions", lambda: now)
    with pytest.raises(InputError, match=rf"\('{said}' changed since\)"):
        simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run")
    simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run", fresh=True)
    monkeypatch.setattr("hybridfl.plan.versions", lambda: _without_numba(now))
    with pytest.raises(InputError, match=r"\('numba 0.68 → none' changed since\)"):
        simulate(TASK, HFL(), TIMING, rounds=2, out=tmp_path / "run")


def _without_numba(versions: dict[str, str]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if name != "numba"}


def test_a_cache_that_a_loss_fills_is_said_to_count(tmp_path: Path) -> None:
    held: dict[int, float] = {}

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none") * held.setdefault(len(outputs), 1.0)

    task = dataclasses.replace(TASK, loss=loss)
    simulate(task, HFL(), TIMING, rounds=2, out=tmp_path / "run")
    with pytest.raises(
        InputError, match="a value that your code itself changes, a cache for example, counts too"
    ) as said:
        simulate(task, HFL(), TIMING, rounds=2, out=tmp_path / "run")
    assert "\n" not in str(said.value)


def test_code_of_another_python_cannot_be_compared(tmp_path: Path) -> None:
    out = tmp_path / "run"
    simulate(TASK, Mine(Uniform(5)), TIMING, rounds=2, out=out)
    config = dict(load_config(out))
    config["versions"]["python"] = "3.10.1"
    config["code"]["algorithm"] = "something else"
    (out / "run.json").write_bytes(sealed(config))
    with pytest.raises(InputError, match=r"'Python 3\.10 → 3\.1\d' changed"):
        simulate(TASK, Mine(Uniform(5)), TIMING, rounds=2, out=out)


def test_a_lambda_in_a_configuration_has_a_name_and_no_address(tmp_path: Path) -> None:
    algorithm = FedAvg(Uniform(5), FullWork(learning_rate=lambda version: 0.1))
    out = tmp_path / "run"
    records = simulate(TASK, algorithm, TIMING, rounds=2, out=out).records
    assert "0x" not in (out / "run.json").read_text()
    again = FedAvg(Uniform(5), FullWork(learning_rate=lambda version: 0.1))
    assert list(simulate(TASK, again, TIMING, rounds=2, out=out).records) == list(records)
    other = FedAvg(Uniform(5), FullWork(learning_rate=lambda version: 0.2))
    with pytest.raises(InputError, match="other code"):
        simulate(TASK, other, TIMING, rounds=2, out=out)
