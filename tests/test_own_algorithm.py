"""What is wrong in an algorithm of one's own is one line that names its class, never a traceback, a hang or a wrong number."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hybridfl import tally
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.local_work import FullWork
from hybridfl.algorithms.sampling import Everyone
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.plan import Run
from hybridfl.protocol import Fleet, Inbox, Job, Outbox, Receipt, Vector
from hybridfl.tasks import Synthetic
from hybridfl.timing import ConstantSeconds, PaperDelays, Roster

TASK = Synthetic().build(4, 0)
LOCAL = FullWork(epochs=1)
FEDAVG = FedAvg(Everyone(), LOCAL)
Answer = tuple[Any, Outbox]


def unchanged(state: Any, outbox: Outbox) -> Answer:
    return state, outbox


@dataclass(frozen=True)
class Own:
    """Another algorithm, whose answers are made wrong."""

    step_as: Callable[[Any, Outbox], Any] = unchanged
    init_as: Callable[[Any, Outbox], Any] = unchanged
    inner: Any = FEDAVG

    def init(self, weights: Vector, fleet: Fleet) -> Any:
        return self.init_as(*self.inner.init(weights, fleet))

    def step(self, state: Any, inbox: Inbox) -> Any:
        return self.step_as(*self.inner.step(state, inbox))


def weighing(make: Callable[[torch.Tensor], object]) -> Callable[[Any, Outbox], Answer]:
    """The state with other weights."""
    return lambda state, outbox: (replace(state, weights=make(state.weights)), outbox)


def sending(**changes: Any) -> Callable[[Any, Outbox], Answer]:
    """The jobs with these changes."""
    return lambda state, outbox: (state, replace(outbox, jobs=tuple(replace(job, **changes) for job in outbox.jobs)))


def working(**changes: Any) -> Callable[[Any, Outbox], Answer]:
    """The jobs with these changes of their work."""
    return lambda state, outbox: (
        state,
        replace(outbox, jobs=tuple(replace(job, work=replace(job.work, **changes)) for job in outbox.jobs)),
    )


WRONG: dict[str, tuple[Callable[[Any, Outbox], Any], str]] = {
    "nothing": (lambda state, outbox: None, r"answered None: return a pair, \(state, Outbox"),
    "state": (lambda state, outbox: state, "answered a FedAvgState: return a pair"),
    "three": (lambda state, outbox: (state, outbox, 1), "answered a tuple: return a pair"),
    "swapped": (lambda state, outbox: (outbox, state), "answered a tuple: return a pair"),
    "a dict": (lambda state, outbox: (vars(state), outbox), "answered a state without 'version': give a dict version"),
    "version": (
        lambda state, outbox: (replace(state, version=1.5), outbox),
        r"answered version 1\.5, a float: make it",
    ),
    "falls": (
        lambda state, outbox: (replace(state, version=-1), outbox),
        "answered version -1 after 0: a version only",
    ),
    "NumPy": (
        weighing(lambda weights: weights.numpy()),
        "gave weights that are a ndarray, not a tensor: give what `init`",
    ),
    "column": (weighing(lambda weights: weights[:, None]), r"gave weights that are a tensor of shape \[610, 1\]"),
    "shorter": (
        weighing(lambda weights: weights[:-1]),
        r"shape \[609\]: .* one flat vector of shape \[610\], torch.float32",
    ),
    "float64": (weighing(lambda weights: weights.double()), "gave weights that are a tensor of torch.float64"),
    "elsewhere": (weighing(lambda weights: weights.to("meta")), "gave weights that are a tensor on meta"),
    "gradient": (weighing(lambda weights: weights.clone().requires_grad_()), "requires a gradient .detach it"),
    "receipts": (lambda state, outbox: (state, replace(outbox, receipts=(Receipt(0),) * 3)), "answered 3 receipts to"),
    "no receipts": (
        lambda state, outbox: (state, replace(outbox, receipts=cast(Any, (1,)))),
        r"answered receipts=\(1,\): give a tuple",
    ),
    "no jobs": (
        lambda state, outbox: (state, replace(outbox, jobs=cast(Any, [1]))),
        "answered jobs that are no tuple of Job",
    ),
    "jobs NumPy": (sending(weights=np.zeros(610)), "gave device 0 weights that are a ndarray, not a tensor"),
    "jobs short": (sending(weights=torch.zeros(3)), r"gave device 0 weights that are a tensor of shape \[3\]"),
    "drift": (sending(drift=torch.zeros(3)), r"gave device 0 a drift that are a tensor of shape \[3\]"),
    "epochs": (working(epochs=0), "gave device 0 work that cannot be done: epochs=0 must be a whole number, 1 or more"),
    "half epochs": (working(epochs=1.5), r"epochs=1\.5 must be a whole number"),
    "batch": (working(batch_size=0), "batch_size=0 must be a whole number"),
    "rate": (working(learning_rate=0.0), r"learning_rate=0\.0 must be above 0"),
    "rate inf": (working(learning_rate=math.inf), "learning_rate=inf must be above 0 and finite"),
    "proximal": (working(proximal=-1.0), r"proximal=-1\.0 must be above 0"),
    "clip": (working(clip=0.0), r"clip=0\.0 must be above 0"),
    "part": (working(part=1.5), r"part=1\.5 is no part of the work"),
    "no part": (working(part=0.0), r"part=0\.0 is no part of the work"),
    "gone": (sending(device=-1), "An algorithm sent device -1 a job"),
    "past": (sending(sent_at=-1.0), r"An algorithm sent device 0 a job at -1\.0 s, but it is \d\.0 s now"),
    "woken": (lambda state, outbox: (state, replace(outbox, wake_at=0.0)), r"asked to be woken at 0\.0 s, but it is"),
}


@pytest.mark.parametrize("guard", [None, Guard()], ids=["alone", "guarded"])
@pytest.mark.parametrize("when", ["init", "step"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_answer_is_one_line(wrong: str, when: str, guard: Guard | None) -> None:
    make, message = WRONG[wrong]
    algorithm = Own(init_as=make) if when == "init" else Own(step_as=make)
    with pytest.raises(InputError, match=message) as said:
        simulate(TASK, algorithm, ConstantSeconds(), rounds=3, guard=guard)
    assert str(said.value).startswith("Own, seed 0: ")
    assert f"Own.{when} " in str(said.value) or "n algorithm" in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("guard", [None, Guard()], ids=["alone", "guarded"])
def test_a_right_answer_is_taken(guard: Guard | None) -> None:
    ours, theirs = (simulate(TASK, each, "paper", rounds=3, guard=guard).records for each in (Own(), FEDAVG))
    assert repr(ours) == repr(theirs)


def test_work_may_be_in_numpys_numbers() -> None:
    numpys = working(epochs=np.int64(1), batch_size=np.int32(64), learning_rate=np.float64(0.1), clip=np.float32(3))
    plain = working(learning_rate=0.1, clip=3.0)
    one, other = (simulate(TASK, Own(each, each), "paper", rounds=3).records for each in (numpys, plain))
    assert repr(one) == repr(other)


@dataclass(frozen=True)
class Writing:
    """FedAsync in place."""

    def init(self, weights: Vector, fleet: Fleet) -> Any:
        return FedAsync(local=LOCAL).init(weights, fleet)

    def step(self, state: Any, inbox: Inbox) -> Any:
        after, outbox = FedAsync(local=LOCAL).step(state, inbox)
        state.weights.copy_(after.weights)
        jobs = tuple(replace(job, weights=state.weights) for job in outbox.jobs)
        return replace(after, weights=state.weights), replace(outbox, jobs=jobs)


def test_writing_into_weights_that_were_sent_is_refused() -> None:
    with pytest.raises(InputError, match="Writing, seed 0: An algorithm wrote into the weights it had sent device"):
        simulate(TASK, Writing(), PaperDelays(), seconds=20)


def test_an_init_that_writes_into_its_weights_leaves_the_task_as_it_was() -> None:
    def zeroed(state: Any, outbox: Outbox) -> Answer:
        state.weights.add_(1.0)
        return state, outbox

    before = TASK.first_weights.clone()
    _ = Run(TASK, Own(init_as=zeroed), PaperDelays(), rounds=1).stage
    assert torch.equal(TASK.first_weights, before)


def same_version(state: Any, outbox: Outbox) -> Answer:
    """Merged, and never said so."""
    return replace(state, version=0), replace(outbox, jobs=tuple(replace(job, version=0) for job in outbox.jobs))


def test_merging_for_ever_without_a_new_version_is_given_up() -> None:
    with pytest.raises(InputError, match=r"Own, seed 0: 1000\d updates were merged and no version was made of them"):
        simulate(TASK, Own(same_version, inner=FedAsync(local=LOCAL)), PaperDelays(), rounds=3)


def test_a_run_with_an_end_in_time_may_merge_without_a_new_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_IN_ONE_VERSION", 5)
    monkeypatch.setattr(tally, "A_DEVICE", 1)
    own = Own(same_version, inner=FedAsync(local=LOCAL))
    assert simulate(TASK, own, PaperDelays(), seconds=30).records[-1].merged > 5
    with pytest.raises(InputError, match="8 updates were merged"):
        simulate(TASK, own, ConstantSeconds(), rounds=3)


def test_merging_into_nothing_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_WITHOUT_WEIGHTS", 500)
    with pytest.raises(InputError, match=r"50\d updates were merged"):
        simulate(TASK, FedBuff(buffer=10**6, local=LOCAL), PaperDelays(), rounds=3)


def test_a_buffer_may_wait_for_any_number_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_IN_ONE_VERSION", 5)
    monkeypatch.setattr(tally, "A_DEVICE", 1)
    assert simulate(TASK, FedBuff(buffer=50, local=LOCAL), PaperDelays(), rounds=3).records[-1].merged >= 150


@pytest.mark.parametrize("inner", [FedAsync(local=LOCAL), FEDAVG])
def test_versions_that_are_made_count_anew(inner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_IN_ONE_VERSION", 5)
    monkeypatch.setattr(tally, "A_DEVICE", 1)
    assert simulate(TASK, Own(inner=inner), PaperDelays(), rounds=20).records[-1].version >= 20


@dataclass(frozen=True)
class OwnPace:
    """Says nothing of device 2."""

    answer: Any = None

    def of(self, roster: Roster) -> Any:
        return OwnPaces(np.ones(len(roster)), np.zeros(len(roster), dtype=bool), self.answer)


@dataclass(frozen=True, eq=False)
class OwnPaces:
    expected_seconds: NDArray[np.float64]
    is_straggler: NDArray[np.bool_]
    answer: Any

    def __call__(self, job: Job) -> Any:
        return self.answer if job.device == 2 else 1.0


@pytest.mark.parametrize("answer", [None, "1", (1.0, 2.0)])
def test_a_pace_that_gives_no_number_is_said_with_device_and_value(answer: Any) -> None:
    with pytest.raises(
        InputError, match=r"OwnPace\(.*\) gives device 2 .* seconds for a job, which is no number"
    ) as said:
        simulate(TASK, FEDAVG, OwnPace(answer), rounds=2)
    assert f"gives device 2 {answer!r} seconds" in str(said.value)
