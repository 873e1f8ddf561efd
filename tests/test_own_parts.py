"""Mistakes with averages, rules, fleets and samples of one's own: each is one line, or is taken as it is meant."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hybridfl import (
    HFL,
    ConstantRate,
    DriftControl,
    Everyone,
    FedAvg,
    FedBuff,
    FullWork,
    InputError,
    LogisticRegression,
    Mean,
    Memory,
    Run,
    Samples,
    Synthetic,
    Task,
    Uniform,
    execute,
    simulate,
)
from hybridfl.kept import Watch
from hybridfl.plan import Stage
from hybridfl.protocol import Fleet, Job
from hybridfl.summary import namesakes
from hybridfl.timing import OwnSeconds, PaperDelays, Roster
from saved_runs import record, saved

TASK = Synthetic().build(4, 0)
LOCAL = FullWork(epochs=1)


def go(algorithm: Any, fleet: Any = "ConstantSeconds(1)", task: Task = TASK, **options: Any) -> Any:
    return simulate(task, algorithm, fleet, rounds=options.pop("rounds", 3), **options)


# Averages


@dataclass(frozen=True)
class Answering:
    """An average of one's own."""

    make: Callable[[Tensor], Any]

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Any:
        return self.make(coefficients @ rows)


WITH_AVERAGE: dict[str, Callable[[Any], Any]] = {
    "FedAvg": lambda average: FedAvg(Everyone(), LOCAL, average),
    "FedBuff": lambda average: FedBuff(2, local=LOCAL, average=average),
    "Memory": lambda average: HFL(Memory(average=average), local=LOCAL),
    "DriftControl": lambda average: HFL(local=LOCAL, drift=DriftControl(average=average)),
}


@pytest.mark.parametrize("name", WITH_AVERAGE)
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda step: step.mean(), r"a tensor of shape \[\]"),
        (lambda step: step[:1], r"a tensor of shape \[1\]"),
        (lambda step: float(step.mean()), "float"),
        (lambda step: step.numpy(), "ndarray"),
    ],
)
def test_an_average_has_to_make_a_step_of_every_weight(name: str, make: Callable[[Tensor], Any], what: str) -> None:
    with pytest.raises(InputError, match=f"The average Answering made {what} of . steps: give one step"):
        go(WITH_AVERAGE[name](Answering(make)))


@pytest.mark.parametrize("name", WITH_AVERAGE)
def test_an_average_of_ones_own_that_is_the_mean_makes_the_same_run(name: str) -> None:
    own = go(WITH_AVERAGE[name](Answering(lambda step: step)))
    assert own.records == go(WITH_AVERAGE[name](Mean())).records


# What keeps something between calls


@dataclass(frozen=True)
class Momentum:
    """Of the server, in the object itself."""

    kept: list[Tensor] = field(default_factory=list)

    def __call__(self, shares: Tensor, coefficients: Tensor, rows: Tensor) -> Tensor:
        self.kept.append(coefficients @ rows)
        return sum(self.kept, torch.zeros(()))


class Counting:
    """A schedule that falls with every call, whatever the version."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, version: int) -> float:
        self.calls += 1
        return 0.1 / self.calls


class OfItsClass:
    calls = 0

    def __call__(self, version: int) -> float:
        type(self).calls += 1
        return 0.1 / type(self).calls


def counting_closure() -> Any:
    calls = 0

    def rate(version: int) -> float:
        nonlocal calls
        calls += 1
        return 0.1 / calls

    return rate


@dataclass(frozen=True)
class OwnDraw:
    """Participants with a generator of their own."""

    draw: Any = field(default_factory=lambda: np.random.default_rng(0))
    enough = float("inf")
    seconds = float("inf")

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        return sorted(self.draw.choice(len(fleet), 2, replace=False).tolist())


class PythonsDraw(OwnDraw):
    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> list[int]:
        return sorted(self.draw.sample(range(len(fleet)), 2))


@dataclass(frozen=True)
class CountingWeighting:
    calls: list[int] = field(default_factory=list)

    def __call__(self, num_samples: Any) -> Tensor:
        self.calls.append(1)
        shares = torch.ones(len(num_samples))
        shares[0] += len(self.calls)
        return shares / shares.sum()


class CountingPace:
    """Its own paces, slower with every job."""

    def __init__(self) -> None:
        self.jobs = 0

    def of(self, roster: Roster) -> "CountingPace":
        self.expected_seconds = np.ones(len(roster))
        self.is_straggler = np.zeros(len(roster), dtype=bool)
        return self

    def __call__(self, job: Job) -> float:
        self.jobs += 1
        return 1.0 + self.jobs


class DrawnUp:
    """A pace whose paces count, and not it itself."""

    def of(self, roster: Roster) -> CountingPace:
        return CountingPace().of(roster)


KEEPS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "average": (lambda: FedAvg(Everyone(), LOCAL, Momentum()), lambda: "paper", "'algorithm.average'"),
    "schedule": (lambda: FedAvg(4, FullWork(1, 64, Counting())), lambda: "paper", "'algorithm.local.learning_rate'"),
    "class": (lambda: FedAvg(4, FullWork(1, 64, OfItsClass())), lambda: "paper", "OfItsClass'"),
    "closure": (lambda: FedAvg(4, FullWork(1, 64, counting_closure())), lambda: "paper", "counting_closure"),
    "participants": (lambda: FedAvg(OwnDraw(), LOCAL), lambda: "paper", "'algorithm.participants'"),
    "random": (lambda: FedAvg(PythonsDraw(random.Random(0)), LOCAL), lambda: "paper", "'algorithm.participants"),
    "weighting": (lambda: FedAvg(4, LOCAL, weighting=CountingWeighting()), lambda: "paper", "'algorithm.weighting"),
    "pace": (lambda: FedAvg(4, LOCAL), CountingPace, "'fleet'"),
    "paces": (lambda: FedAvg(4, LOCAL), DrawnUp, "'paces'"),
}


@pytest.mark.parametrize("case", KEEPS)
@pytest.mark.parametrize("guard", [None, "on"])
def test_what_keeps_something_between_calls_is_refused_and_named(case: str, guard: str | None) -> None:
    algorithm, fleet, name = KEEPS[case]
    with pytest.raises(InputError, match="keeps something from one call to the next") as error:
        go(algorithm(), fleet(), guard=guard)
    assert name in str(error.value)


@pytest.mark.parametrize("case", ["schedule", "class", "closure", "participants"])
def test_what_is_called_by_init_is_refused_before_anything_is_written(case: str, tmp_path: Path) -> None:
    algorithm, fleet, _ = KEEPS[case]
    with pytest.raises(InputError, match="keeps something from one call to the next"):
        go(algorithm(), fleet(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_kept_late_is_found_at_the_end() -> None:
    class FromTheFifthVersionOn(Counting):
        def __call__(self, version: int) -> float:
            self.calls += version >= 5
            return 0.1

    assert go(FedAvg(4, FullWork(1, 64, FromTheFifthVersionOn())), rounds=4).records[-1].version == 4
    with pytest.raises(InputError, match="keeps something from one call to the next"):
        go(FedAvg(4, FullWork(1, 64, FromTheFifthVersionOn())), rounds=8)


def test_parts_that_keep_nothing_run_twice_alike() -> None:
    algorithm = FedAvg(Everyone(), FullWork(1, 64, lambda version: 0.1 / (1 + version)), Answering(lambda step: step))
    run = Run(TASK, algorithm, PaperDelays(), rounds=3)
    assert [s.record for s in execute(run)] == [s.record for s in execute(run)]


def test_nothing_is_watched_where_nothing_of_the_users_is_reached() -> None:
    assert [watch.parts for watch in Stage.of(Run(TASK, HFL(), PaperDelays(), rounds=1)).watched] == [{}, {}]
    assert Watch.over(algorithm=HFL(), fleet=PaperDelays(), guard=None).before == {}


# Yes or no


@dataclass(frozen=True)
class Normal:
    """Stragglers by their answers."""

    make: Callable[[int], Any]

    def observe(self, durations: Any, updates: Any, now: float) -> Any:
        return durations

    def round_seconds(self, durations: Any) -> float:
        return 2.0

    def normal(self, fleet: Fleet, durations: Any, round_seconds: float, devices: Any) -> Any:
        return self.make(len(devices))


SLOW = "PerDevice((1.0, 3.0, 1.0, 3.0))"


@pytest.mark.parametrize("make", [np.array, torch.tensor, list], ids=["array", "tensor", "list"])
@pytest.mark.parametrize("kind", [int, float, bool])
def test_0_and_1_say_who_is_normal_and_are_no_indices(make: Callable[[Any], Any], kind: type) -> None:
    def run(answer: Callable[[list[Any]], Any], of: type) -> Any:
        return go(HFL(stragglers=Normal(lambda count: answer([of(i == 0) for i in range(count)])), local=LOCAL), SLOW)

    right = run(np.array, bool)
    assert run(make, kind).arrivals == right.arrivals
    assert {arrival.device for arrival in right.arrivals if arrival.arrived_at <= 1.0} == {0, 2}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda count: np.arange(count), "2"),
        (lambda count: np.zeros(count - 1, dtype=bool), r"values of shape \[3\]"),
        (lambda count: np.array(["yes"] * count), "values of <U3"),
        (lambda count: [[1], [1, 2], [], []], "a list"),
        (lambda count: np.full(count, np.nan), "nan"),
    ],
)
def test_what_is_no_yes_or_no_is_refused(make: Callable[[int], Any], what: str) -> None:
    with pytest.raises(InputError, match=f"Normal.normal gave {what} where a yes or no for each device is wanted"):
        go(HFL(stragglers=Normal(make), local=LOCAL))


@dataclass(frozen=True)
class OwnPace:
    """Answers of one's own in place of what a pace owes."""

    seconds: Any = 1.0
    expected: Any = (1.0, 2.0, 1.0, 2.0)
    slow: Any = (False, True, False, True)

    def of(self, roster: Roster) -> Any:
        return Own(self)


@dataclass(frozen=True)
class Own:
    rule: OwnPace

    @property
    def expected_seconds(self) -> Any:
        return self.rule.expected

    @property
    def is_straggler(self) -> Any:
        return self.rule.slow

    def __call__(self, job: Job) -> Any:
        return self.rule.seconds


def known(**changes: Any) -> Any:
    return go(HFL(local=LOCAL), OwnPace(**changes))


@pytest.mark.parametrize(
    "slow", [[0, 1, 0, 1], np.array([0, 1, 0, 1]), torch.tensor([0, 1, 0, 1]), (0.0, 1.0, 0.0, 1.0)]
)
def test_stragglers_of_a_pace_may_be_0_and_1(slow: Any) -> None:
    right = known(slow=np.array([False, True, False, True]))
    assert known(slow=slow).records == right.records
    assert [device.is_straggler for device in known(slow=slow).devices] == [False, True, False, True]


@pytest.mark.parametrize("slow", [[1, 3], [0, 2, 0, 1], None])
def test_stragglers_of_a_pace_that_are_no_yes_or_no_are_refused(slow: Any) -> None:
    with pytest.raises(InputError, match=r"is_straggler of OwnPace.* where a yes or no for each device is wanted"):
        known(slow=slow)


@pytest.mark.parametrize("expected", [[1.0, 2.0, 1.0, 2.0], torch.tensor([1.0, 2.0, 1.0, 2.0]), (1, 2, 1, 2)])
def test_expected_seconds_may_be_any_numbers(expected: Any) -> None:
    assert known(expected=expected).records == known(expected=np.array([1.0, 2.0, 1.0, 2.0])).records


@pytest.mark.parametrize("expected", [[[1.0], [1.0, 2.0]], ["soon"] * 4, "soon"])
def test_expected_seconds_that_are_no_numbers_are_refused(expected: Any) -> None:
    with pytest.raises(InputError, match="seconds, which are no numbers: give an array"):
        known(expected=expected)


@pytest.mark.parametrize("seconds", [torch.tensor(1.5), torch.tensor([1.5]), np.array(1.5), np.float64(1.5)])
def test_seconds_of_a_job_may_be_the_only_one_of_a_tensor(seconds: Any) -> None:
    assert known(seconds=seconds).records == known(seconds=1.5).records
    assert known(seconds=seconds).arrivals == known(seconds=1.5).arrivals


def test_a_pace_of_hybridfl_is_given_as_it_is() -> None:
    expected, slow = np.ones(4), np.zeros(4, dtype=bool)

    class Kept:
        def of(self, roster: Roster) -> OwnSeconds:
            return OwnSeconds(expected, slow)

    timing = Stage.of(Run(TASK, FedAvg(2), Kept(), rounds=1)).timing
    assert timing.expected_seconds is expected
    assert timing.is_straggler is slow


# Participants


@dataclass(frozen=True)
class Choosing:
    answer: Any
    enough = float("inf")
    seconds = float("inf")

    def choose(self, fleet: Fleet, number: int, busy: frozenset[int], now: float) -> Any:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        [False, True, False, True],
        np.array([False, True, False, True]),
        torch.tensor([False, True, False, True]),
        np.array([1, 3], dtype=np.uint8),
        torch.tensor([1, 3]),
        (1, 3),
        [np.int64(1), np.int64(3)],
    ],
)
@pytest.mark.parametrize("kind", [FedAvg, HFL])
def test_participants_may_be_an_array_or_a_mask(answer: Any, kind: Any) -> None:
    found = go(kind(participants=Choosing(answer), local=LOCAL))
    assert found.arrivals == go(kind(participants=Choosing([1, 3]), local=LOCAL)).arrivals
    assert {arrival.device for arrival in found.arrivals} == {1, 3}


@pytest.mark.parametrize("answer", [[True, False], [1.5], None, "all", [[1], [2]], 3])
def test_participants_that_are_no_devices_are_refused(answer: Any) -> None:
    with pytest.raises(InputError, match=r"Choosing chose .*: give a list of devices' numbers, 0 to 3"):
        go(FedAvg(Choosing(answer), LOCAL))


# Samples


def samples_of(inputs: Tensor, targets: Tensor | None = None, devices: int = 4) -> Samples:
    rows = np.array_split(np.arange(len(inputs)), devices)
    return Samples.shared_out(inputs, torch.arange(len(inputs)) % 2 if targets is None else targets, rows)


def regression(inputs: Tensor, targets: Tensor) -> Task:
    def squares(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(1) - targets).square()

    torch.manual_seed(0)
    return Task.from_devices(samples_of(inputs, targets), nn.Linear(inputs.shape[1], 1), loss=squares)


@pytest.mark.parametrize("which", ["train", "test"])
@pytest.mark.parametrize(
    "change",
    [
        lambda offsets, rows: offsets[:3],
        lambda offsets, rows: offsets + (offsets == 0),
        lambda offsets, rows: np.append(offsets, offsets[-1] + 1),
        lambda offsets, rows: offsets[[0, 2, 1, 3, 4]],
    ],
    ids=["short", "begins later", "beyond", "falls"],
)
def test_offsets_have_to_cover_the_index(which: str, change: Callable[..., Any]) -> None:
    samples = getattr(TASK, which)
    wrong = replace(samples, offsets=change(samples.offsets, len(samples.index)))
    who = "training" if which == "train" else "test"
    with pytest.raises(InputError, match=f"The offsets of the {who} samples have to go from 0"):
        go("fedavg", task=replace(TASK, **{which: wrong}))


def test_timestamps_that_float32_makes_one_are_refused() -> None:
    stamps = 1_700_000_000.0 + torch.arange(40, dtype=torch.float64)
    assert len(set(stamps.float().tolist())) == 1
    inputs = torch.stack([torch.linspace(0, 1, 40, dtype=torch.float64), stamps], 1)
    remedy = "Column 1 of the inputs loses what it says as float32: .* Subtract its mean and divide by its standard deviation"
    with pytest.raises(InputError, match=remedy):
        regression(inputs, torch.rand(40))
    with pytest.raises(InputError, match="Column 0 of the targets loses what it says"):
        regression(torch.rand(40, 2), stamps)


def test_what_float32_holds_is_converted() -> None:
    stamps = 1_700_000_000.0 + torch.arange(40, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    fine = [
        (stamps - stamps.mean()) / stamps.std(),
        torch.full((40,), 1_700_000_001.0, dtype=torch.float64),  # no spread: nothing to lose
        torch.tensor([0.3, 0.1 + 0.2] * 20, dtype=torch.float64),  # no spread but what float64 has rounded
        1e30 * torch.rand(40, dtype=torch.float64, generator=draw),
        10_000.0 + torch.rand(40, dtype=torch.float64, generator=draw),
    ]
    inputs = torch.stack(fine, 1)
    assert torch.equal(samples_of(inputs).of_dtype(torch.float32).inputs, inputs.float())
    assert samples_of(inputs).of_dtype(torch.float64).inputs is not None
    model = nn.Linear(1, 1).double()
    samples = samples_of(stamps.unsqueeze(1), torch.rand(40))
    assert (
        Task.from_devices(samples, model, loss=lambda o, t: (o[:, 0] - t).square()).train.inputs.dtype == torch.float64
    )


def test_devices_are_scored_on_as_many_samples_as_have_a_class() -> None:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(40) % 2
    targets[::5] = -100

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none", ignore_index=-100)

    torch.manual_seed(0)
    task = Task.from_devices(samples_of(inputs, targets), nn.Linear(3, 2), loss=loss, test_share=0.5)
    labelled = [int((task.test.targets[torch.from_numpy(task.test.rows(device))] >= 0).sum()) for device in range(4)]
    devices = go(FedAvg(Everyone(), LOCAL), task=task).devices
    assert [device.num_samples for device in devices] == labelled
    assert sum(labelled) < len(task.test.index)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.int16])
def test_whole_numbers_without_a_scale_are_not_trained_on(dtype: torch.dtype) -> None:
    inputs = torch.arange(120).reshape(40, 3).to(dtype)
    task = Task.from_devices(samples_of(inputs), LogisticRegression(3, 2))
    with pytest.raises(InputError, match=r"without a scale: give floating-point numbers|does not fit the samples"):
        go("fedavg", task=replace(task), fleet="ConstantSeconds(1)")
    scaled = Task.from_devices(replace(samples_of(inputs), scale=1 / 255), LogisticRegression(3, 2))
    assert go(FedAvg(4, LOCAL), task=scaled).records[-1].version == 3


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int16, np.int32])
def test_rows_may_be_whole_numbers_of_any_width(dtype: Any) -> None:
    rows = [TASK.train.rows(device)[:20] for device in range(4)]
    small = [row % 120 for row in rows]
    torch.manual_seed(0)
    task = replace(TASK, model=nn.Sequential(nn.Linear(60, 10), nn.Sigmoid()))
    own, usual = (
        replace(task, train=task.train.with_rows([row.astype(kind) for row in small])) for kind in (dtype, np.int64)
    )
    assert go(FedAvg(4, LOCAL), task=own).records == go(FedAvg(4, LOCAL), task=usual).records


def test_a_loss_is_not_asked_about_no_samples() -> None:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))

    def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return losses + 0 * losses.topk(1).values.detach()

    torch.manual_seed(0)
    task = Task.from_devices(samples_of(inputs), nn.Linear(3, 2), loss=hardest, test_share=0.0)
    last = go(FedAvg(Uniform(4), FullWork(1, 64, ConstantRate(0.1))), task=task).records[-1]
    assert last.version == 3
    assert np.isfinite(last.train_loss)
    assert np.isnan(last.test_loss)


# Reports


def in_task(label: str, loss: str, model: str = "Net()", written: str = "loss", **code: str) -> Any:
    task = {"name": "toy", "devices": 3, "loss": written, "model": model}
    return saved(label, [record(1, 9)], task=task, code={"loss": loss, "model": "m", **code})


def test_losses_of_one_name_and_other_code_are_said() -> None:
    [line] = namesakes([in_task("a", "1"), in_task("b", "2"), in_task("c", "1")])
    assert line.startswith("The loss of a and c and that of b are both written 'loss' and are not the same code")
    assert namesakes([in_task("a", "1"), in_task("b", "1")]) == []
    assert namesakes([in_task("a", "1"), in_task("b", "2", written="other")]) == []
    assert namesakes([saved("a", [record(1, 9)]), in_task("b", "2")]) == [], "earlier versions say nothing of code"


def test_models_and_losses_that_are_objects_are_told_apart_by_their_class() -> None:
    [line] = namesakes([in_task("a", "1", **{"net.Net": "1"}), in_task("b", "1", **{"net.Net": "2"})])
    assert line.startswith("The model of a and that of b are both written 'Net()'")
    lambdas = [in_task(label, "1", written="<lambda>", **{"own.<lambda>": label}) for label in ("a", "b")]
    assert namesakes(lambdas) == [], "a schedule may be another lambda of the same file"
