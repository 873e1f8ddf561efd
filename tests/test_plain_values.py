"""What people write is taken where it is plain what they mean, and refused in one line where it is not."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridfl import (
    HFL,
    MNIST,
    Conditions,
    ConstantRate,
    Cosine,
    Deadline,
    Everyone,
    FedAsync,
    FedAvg,
    FedBuff,
    FedProx,
    FirstOf,
    FullWork,
    Guard,
    InputError,
    Memory,
    PaperDelays,
    PowerLaw,
    ProportionalToDelay,
    Recorded,
    RecordedAvailability,
    Run,
    Samples,
    Sent140,
    Shards,
    Synthetic,
    SyntheticCrowd,
    Task,
    Uniform,
    Zipf,
    execute,
    load,
    load_all,
    phones,
    planned,
    save_all,
    simulate,
    synthetic,
)
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.comparison import Comparison
from hybridfl.provenance import repr_of
from hybridfl.spelling import read_algorithm
from hybridfl.timing import ComputeAndLink

TASK = Synthetic().build(10, 0)


@pytest.mark.parametrize("rate", [0.1, np.float64(0.1)])
def test_a_number_is_a_learning_rate_that_stays(rate: Any) -> None:
    local = FullWork(learning_rate=rate)
    assert local == FullWork(learning_rate=ConstantRate(0.1))
    assert repr(local) == repr(FullWork(learning_rate=ConstantRate(0.1)))
    assert FullWork(learning_rate=1).learning_rate(7) == 1.0


@pytest.mark.parametrize("count", [5, np.int64(5)])
def test_a_number_of_participants_is_so_many_drawn_uniformly(count: Any) -> None:
    for one, other in (
        (FedAvg(count), FedAvg(Uniform(5))),
        (HFL(participants=count), HFL(participants=Uniform(5))),
        (HFL.drift_controlled(participants=count), HFL.drift_controlled(participants=Uniform(5))),
        (FedProx(participants=count), FedProx(participants=Uniform(5))),
    ):
        assert one == other
        assert repr(one) == repr(other)


def test_numbers_for_parts_can_be_written_on_the_command_line_too() -> None:
    assert read_algorithm("FedAvg(5, FullWork(learning_rate=0.1))") == FedAvg(
        Uniform(5), FullWork(learning_rate=ConstantRate(0.1))
    )


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [("hfl", HFL()), ("FedBuff(buffer=20)", FedBuff(buffer=20)), ("fedavg(5)", FedAvg(Uniform(5))), ("s-sgd", SSGD())],
)
def test_an_algorithm_a_fleet_and_a_guard_may_be_texts(text: str, algorithm: Any) -> None:
    written: Any = Run(TASK, text, "phones", rounds=3, guard="on")  # type: ignore[arg-type]
    made = Run(TASK, algorithm, phones(), rounds=3, guard=Guard())
    assert written.algorithm == algorithm
    assert written.config == made.config
    off: Any = Run(TASK, text, "Conditions(PaperDelays(0.5), lost=0.1)", rounds=3, guard="off")  # type: ignore[arg-type]
    assert off.timing == Conditions(PaperDelays(0.5), lost=0.1)
    assert off.guard is None


def test_simulate_takes_texts() -> None:
    written = simulate(TASK, "FedAvg(Everyone())", "paper", rounds=2, guard="on")
    made = simulate(TASK, FedAvg(Everyone()), PaperDelays(), rounds=2, guard=Guard())
    assert repr(written.records) == repr(made.records)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("fedavgg", "paper"), "Unknown algorithm 'fedavgg'. Did you mean 'fedavg'?"),
        (("hfl", "phone"), "Unknown fleet 'phone'. Did you mean 'phones'?"),
        ((HFL, "paper"), "HFL is no algorithm: give an object or its text, HFL() or 'hfl' for example."),
        ((HFL(), phones), "phones is no fleet: give an object or its text, PaperDelays() or 'phones' for example."),
        ((HFL(), 5), "5 is no fleet"),
        ((HFL(), "paper", "o"), "Unknown guard 'o'"),
        ((HFL(), "paper", True), "True is no guard: give an object or its text, Guard() or 'on' for example."),
    ],
)
def test_what_is_no_algorithm_no_fleet_and_no_guard_is_refused(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(TASK, values[0], values[1], rounds=1, guard=values[2] if len(values) == 3 else None)
    assert str(caught.value).startswith(message)


WHOLE: list[tuple[str, Callable[[Any], object], str]] = [
    ("epochs", lambda n: FullWork(epochs=n), "epochs"),
    ("batch size", lambda n: FullWork(batch_size=n), "batch_size"),
    ("cosine", lambda n: Cosine(versions=n), "versions"),
    ("uniform", lambda n: Uniform(n), "count"),
    ("proportional", lambda n: ProportionalToDelay(n), "count"),
    ("first of", lambda n: FirstOf(n), "count"),
    ("selected", lambda n: FirstOf(1, n), "selected"),
    ("deadline", lambda n: Deadline(n), "count"),
    ("participants", lambda n: FedAvg(n), "participants"),
    ("participants of HFL", lambda n: HFL(participants=n), "participants"),
    ("buffer", lambda n: FedBuff(buffer=n), "buffer"),
    ("concurrency", lambda n: FedBuff(concurrency=n), "concurrency"),
    ("concurrency of FedAsync", lambda n: FedAsync(concurrency=n), "concurrency"),
    ("memory", lambda n: Memory(most=n), "most"),
    ("history", lambda n: Guard(history=n), "history"),
    ("quarantine", lambda n: Guard(quarantine=n), "quarantine"),
    ("max delay", lambda n: PaperDelays(max_delay=n), "max_delay"),
    ("expected epochs", lambda n: ComputeAndLink(expected_epochs=n), "expected_epochs"),
    ("recorded", lambda n: Recorded("x.csv", expected_epochs=n), "expected_epochs"),
    ("zipf", lambda n: Zipf(cap=n), "cap"),
    ("labels", lambda n: PowerLaw(labels_a_device=n), "labels_a_device"),
    ("at least", lambda n: PowerLaw(at_least=n), "at_least"),
    ("shards", lambda n: Shards(n), "shards_a_device"),
    ("held out", lambda n: MNIST(held_out=n), "held_out"),
    ("kinds", lambda n: SyntheticCrowd(kinds=n), "kinds"),
    ("scored", lambda n: SyntheticCrowd(scored=n), "scored"),
    ("tokens", lambda n: Sent140(tokens=n), "tokens"),
    ("devices of a recipe", lambda n: Synthetic().build(n, 0), "devices"),
    ("devices", lambda n: synthetic(1, 1, n), "devices"),
    ("devices of a comparison", lambda n: Comparison(Synthetic(), {"hfl": HFL()}, devices=n), "devices"),
    ("rounds", lambda n: Run(TASK, HFL(), PaperDelays(), rounds=n), "rounds"),
    ("seed", lambda n: Run(TASK, HFL(), PaperDelays(), rounds=1, seed=n), "seed"),
    ("seed of conditions", lambda n: Conditions(seed=n), "seed"),
    ("seed of a split", lambda n: TASK.train.split(0.1, n), "seed"),
    (
        "checkpoint_every",
        lambda n: simulate(TASK, HFL(), PaperDelays(), rounds=1, out="x", checkpoint_every=n),
        "checkpoint_every",
    ),
]


@pytest.mark.parametrize("value", [2.5, math.nan, math.inf, True, "3", -1], ids=repr)
@pytest.mark.parametrize(("make", "name"), [each[1:] for each in WHOLE], ids=[each[0] for each in WHOLE])
def test_a_count_is_a_whole_number(make: Callable[[Any], object], name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"{name}={value!r} .*") as caught:
        make(value)
    assert "whole number" in str(caught.value) or "is no rule" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, True, "0.1", 0], ids=repr)
def test_a_rate_is_a_number_above_0(value: Any) -> None:
    with pytest.raises(InputError, match=r"learning.rate="):
        FullWork(learning_rate=value)
    with pytest.raises(InputError, match=r"seconds="):
        Run(TASK, HFL(), PaperDelays(), seconds=value)


@pytest.mark.parametrize("value", [math.nan, True, "0.1", 1.5], ids=repr)
def test_a_share_is_a_number_from_0_to_1(value: Any) -> None:
    with pytest.raises(InputError, match=r"stragglers=.* is not a share"):
        PaperDelays(stragglers=value)


def test_whole_numbers_of_numpy_are_whole_numbers_and_are_written_as_any_other() -> None:
    local = FullWork(epochs=np.int64(2), batch_size=np.int32(8))  # type: ignore[arg-type]
    made = Run(TASK, FedAvg(5, local), PaperDelays(np.float64(0.5)), rounds=np.int64(2))  # type: ignore[arg-type]
    plain = Run(TASK, FedAvg(Uniform(5), FullWork(epochs=2, batch_size=8)), PaperDelays(0.5), rounds=2)
    assert made.config == plain.config
    assert "np." not in repr_of(made.algorithm)


def test_a_path_may_be_a_text_and_a_text_a_path(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    task = TASK
    for _ in save_all([Run(task, HFL(), PaperDelays(), rounds=1, label="hfl")], [out]):
        pass
    assert load(out).records == load(Path(out)).records
    assert len(load_all(str(tmp_path))) == 1
    with pytest.raises(InputError, match="holds no run"):
        planned(str(tmp_path / "nothing"))
    for kind in (Recorded, RecordedAvailability):
        assert kind(Path("x.csv")) == kind("x.csv")  # type: ignore[arg-type]
        assert repr(kind(Path("x.csv"))) == repr(kind("x.csv"))  # type: ignore[arg-type]
    assert Sent140(glove=Path("g.txt")) == Sent140(glove="g.txt")  # type: ignore[arg-type]


def test_an_everyone_is_still_everyone() -> None:
    assert FedAvg(Everyone()).participants == Everyone()
    assert isinstance(Samples.from_devices([(torch.zeros(2, 1), torch.zeros(2))]), Samples)


def test_a_seed_of_numpys_is_the_same_run(tmp_path: Path) -> None:
    """As in `for seed in np.arange(3)`."""
    kept = []
    for kind in (int, np.int64, np.int32, np.uint64):
        seed: Any = kind(1)
        torch.manual_seed(0)
        task = Task.from_devices(Synthetic().build(4, seed).train, torch.nn.Linear(60, 10), seed=seed)
        records = simulate(task, HFL(), "phones", rounds=2, seed=seed, out=tmp_path / kind.__name__).records
        files = {path.name: path.read_bytes() for path in (tmp_path / kind.__name__).glob("*.json*")}
        del files["finished.json"]  # has how long it took
        kept.append((repr(records), files, repr(Conditions(seed=seed))))
    assert kept[0] == kept[1] == kept[2] == kept[3]
    seeds: Any = np.arange(2)
    runs = Comparison(Synthetic(), {"HFL": HFL()}, devices=4, seeds=seeds, rounds=2).runs()
    assert [(type(one.seed), one.seed) for one in runs] == [(int, 0), (int, 1)]


@pytest.mark.parametrize("seed", [np.int64(-1), np.float64(1), np.array([1])])
def test_what_is_no_seed_is_refused_of_numpys_too(seed: Any) -> None:
    with pytest.raises(InputError, match="is no seed"):
        simulate(TASK, HFL(), PaperDelays(), rounds=1, seed=seed)


def test_a_device_may_be_pytorchs(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    text, own = (simulate(TASK, HFL(), PaperDelays(), rounds=2, device=device).records for device in ("cpu", cpu))
    assert list(own) == list(text)
    assert list(execute(Run(TASK, HFL(), PaperDelays(), rounds=2), cpu))[-1].record == text[-1]
    assert simulate(TASK, HFL(), PaperDelays(), rounds=2, device=cpu, out=tmp_path).records[-1] == text[-1]
    with pytest.raises(InputError, match="Unknown device 'meta': give auto, cpu or cuda"):
        simulate(TASK, HFL(), PaperDelays(), rounds=2, device=torch.device("meta"))


@pytest.mark.parametrize("share", [1, 1.0, np.float64(1)])
def test_a_task_keeps_something_to_train_on(share: Any) -> None:
    with pytest.raises(InputError, match=r"test_share=1.* leaves nothing to train on: give a number below 1"):
        Task.from_devices(TASK.train, torch.nn.Linear(60, 10), test_share=share)
