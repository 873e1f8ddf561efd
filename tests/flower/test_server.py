"""A whole deployment, on Flower's own link state: what it leaves, and that it survives being killed at any moment."""

from __future__ import annotations

import itertools
import logging
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from flwr.app import Array, ConfigRecord, Context, Error, Message, RecordDict

from flower_link import Answer, Link
from hybridfl.algorithms.drift import DriftControl
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.sampling import Everyone
from hybridfl.engines import trainer_for
from hybridfl.errors import InputError
from hybridfl.flower import Deployment, Patience, client_app, part_of, serve
from hybridfl.flower.wire import TRAIN, read_job
from hybridfl.protocol import Algorithm, Job
from hybridfl.protocol import Fleet as KnownFleet
from hybridfl.records import load
from hybridfl.report import render
from hybridfl.resuming import planned
from hybridfl.run import run
from hybridfl.simulation import Simulation
from hybridfl.task import Task
from hybridfl.tasks import Synthetic
from hybridfl.vectors import flatten, unflatten

DEVICES = 4
TASK: Task = Synthetic(1, 1).build(DEVICES, seed=0)
PATIENCE = Patience(poll=0.05, node=100.0, fetch=20.0)


def load_part(context: Context) -> Task:
    return part_of(TASK, int(context.node_config["partition-id"]))


class Fleet:
    """Devices on a link, and every job they were asked to train."""

    def __init__(self, seconds: tuple[float, ...] = (1.0, 1.1, 1.25, 3.7), **changed: Answer) -> None:
        self.link = Link()
        self.trained: Counter[tuple[int, int]] = Counter()
        for partition, each in enumerate(seconds):
            app = self._watched(changed.get(f"device_{partition}", client_app(load_part)))
            self.link.add(app, each, {"partition-id": partition})

    def _watched(self, app: Any) -> Answer:
        def answer(message: Message, context: Context) -> Message:
            if message.metadata.message_type == TRAIN:
                job, _ = read_job(message.content)
                self.trained[job.device, job.version] += 1
            reply: Message = app(message, context)
            return reply

        return answer

    def serve(self, deployment: Deployment, sleep: Callable[[float], None] | None = None) -> None:
        serve(deployment, self.link.grid, self.link.clock, sleep or self.link.sleep)


def deployment(out: Path, algorithm: Algorithm[Any] = HFL(), **changes: Any) -> Deployment:
    settings = {"rounds": 6, "devices": DEVICES, "guard": None, "patience": PATIENCE} | changes
    return Deployment(TASK.model, algorithm, out, **settings)


def model_in(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


class TestWhatItLeaves:
    def test_records_arrivals_and_a_model(self, tmp_path: Path) -> None:
        Fleet().serve(deployment(tmp_path))
        run = load(tmp_path)
        assert [record.version for record in run.records] == list(range(7))
        assert run.records[-1].merged == len([a for a in run.arrivals if a.is_merged])
        assert run.records[-1].train_loss < run.records[1].train_loss
        assert 0.3 < run.records[-1].test_accuracy <= 1
        assert math.isnan(run.records[0].test_accuracy), "nobody has scored anything yet"
        assert model_in(tmp_path).keys() == TASK.model.state_dict().keys()
        assert not (tmp_path / "checkpoints").exists()
        assert not (tmp_path / "journal").exists()

    def test_the_straggler_is_not_waited_for_and_its_work_is_merged(self, tmp_path: Path) -> None:
        Fleet().serve(deployment(tmp_path, rounds=10))
        arrivals = load(tmp_path).arrivals
        late = [arrival for arrival in arrivals if arrival.device == 3]
        assert all(arrival.is_merged for arrival in arrivals)
        assert max(arrival.staleness for arrival in late) >= 2
        assert {arrival.staleness for arrival in arrivals if arrival.device < 3} == {0}
        assert load(tmp_path).records[-1].seconds < 3.7 * 10 / 2

    def test_the_report_speaks_of_real_seconds_and_says_whose_scores_they_are(self, tmp_path: Path) -> None:
        test = TASK.test.take(torch.from_numpy(TASK.test.index))
        for name, held in {"devices": None, "server": test}.items():
            Fleet().serve(deployment(tmp_path / name, test=held))
            text = render([load(tmp_path / name)])
            assert "virtual seconds" not in text
            assert "seconds to target" in text
            assert ("what devices said of the models" in text) == (name == "devices")

    def test_the_server_scores_where_it_has_a_test_set(self, tmp_path: Path) -> None:
        test = TASK.test.take(torch.from_numpy(TASK.test.index))
        Fleet().serve(deployment(tmp_path, test=test))
        records = load(tmp_path).records
        weights = model_in(tmp_path)
        outputs = test[0] @ weights["linear.weight"].T + weights["linear.bias"]
        assert records[-1].test_accuracy == pytest.approx(float((outputs.argmax(1) == test[1]).double().mean()))
        assert records[0].test_loss == pytest.approx(math.log(10), rel=1e-5)

    def test_it_ends_in_time(self, tmp_path: Path) -> None:
        Fleet().serve(deployment(tmp_path, rounds=None, seconds=7.5))
        assert load(tmp_path).records[-1].seconds == pytest.approx(7.5, abs=0.1)

    def test_a_run_that_has_ended_is_not_run_again(self, tmp_path: Path) -> None:
        fleet = Fleet()
        fleet.serve(deployment(tmp_path))
        before = fleet.trained.total()
        fleet.serve(deployment(tmp_path))
        assert fleet.trained.total() == before

    def test_another_deployment_in_its_folder_is_refused(self, tmp_path: Path) -> None:
        Fleet().serve(deployment(tmp_path))
        with pytest.raises(InputError, match="another configuration"):
            Fleet().serve(deployment(tmp_path, FedAvg(Everyone())))


@pytest.mark.parametrize("algorithm", [HFL(), HFL.drift_controlled(), FedAvg(Everyone()), FedBuff(buffer=3)], ids=repr)
def test_the_simulator_with_the_same_arrivals_makes_the_same_model(algorithm: Algorithm[Any], tmp_path: Path) -> None:
    """To the last bit: what arrived when is all that Flower decides."""
    Fleet().serve(deployment(tmp_path, algorithm))
    arrived: dict[int, list[float]] = {device: [] for device in range(DEVICES)}
    for arrival in load(tmp_path).arrivals:
        arrived[arrival.device].append(arrival.arrived_at)

    def timing(job: Job) -> float:
        return arrived[job.device].pop(0) - job.sent_at if arrived[job.device] else math.inf

    known = KnownFleet(TASK.train.num_samples, np.full(DEVICES, np.nan))
    simulation = Simulation(known, trainer_for(TASK, seed=0), timing)
    for moment in run(algorithm, simulation, *algorithm.init(flatten(TASK.model), known)):
        if moment.state.version == 6:
            break
    assert same(unflatten(TASK.model, moment.state.weights), model_in(tmp_path))


class Shifting(torch.nn.Module):
    """With a buffer, and one parameter in two layers."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = (torch.nn.Linear(60, width) for width in (60, 60, 10))
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.full((60,), 0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(torch.tanh(self.two(torch.tanh(self.one(inputs + self.shift)))))
        return outputs


def test_the_saved_model_can_be_loaded_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TASK", replace(TASK, model=Shifting()))
    Fleet().serve(deployment(str(tmp_path), rounds=2))  # type: ignore[arg-type]
    Shifting().load_state_dict(model_in(tmp_path), strict=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("hidden", [None, 200], ids=["softmax", "mlp"])
def test_devices_may_train_on_a_gpu(hidden: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hidden is not None:
        model = torch.nn.Sequential(torch.nn.Linear(60, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, 10))
        monkeypatch.setitem(globals(), "TASK", replace(TASK, model=model))
    for place in ("cpu", "cuda"):
        fleet = Fleet()
        for node in fleet.link.nodes:
            node.context.node_config |= {"device": place, "answers": str(tmp_path / f"answers-{place}")}
        fleet.serve(deployment(tmp_path / place, HFL(drift=DriftControl()), rounds=4))
    found = model_in(tmp_path / "cuda")
    for name, weights in model_in(tmp_path / "cpu").items():
        torch.testing.assert_close(found[name], weights, rtol=0, atol=5e-6)


def test_a_run_that_diverges_ends_there_and_says_so(tmp_path: Path) -> None:
    wild = HFL(local=FullWork(learning_rate=ConstantRate(1e38)))
    with pytest.raises(InputError, match="The run has diverged at version 1: its weights are not finite"):
        Fleet().serve(deployment(tmp_path, wild))
    last = load(tmp_path).records[-1]
    assert (last.version, last.diverged_at) == (1, 1)
    Fleet().serve(deployment(tmp_path, wild))  # it has ended, and is not run again


def test_resume_says_how_a_deployment_goes_on(tmp_path: Path) -> None:
    Fleet().serve(deployment(tmp_path))
    with pytest.raises(InputError, match="is a deployment's: start its app again with `flwr run`"):
        planned(tmp_path)


class Killed(BaseException):
    """SIGKILL, as far as a test can tell."""


def kill_after(fleet: Fleet, count: int) -> Callable[[float], None]:
    left = count

    def sleep(seconds: float) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        fleet.link.sleep(seconds)

    return sleep


class TestResume:
    @pytest.mark.parametrize("every", [17, 43, 111])
    @pytest.mark.parametrize("checkpoint_every", [1e9, 2.0], ids=["journal-only", "checkpoints"])
    def test_killed_again_and_again_it_ends_where_it_would_have(
        self, every: int, checkpoint_every: float, tmp_path: Path
    ) -> None:
        """FedAvg with everyone: its weights do not depend on when anything arrived, so they must be the same bits."""
        whole = deployment(tmp_path / "whole", FedAvg(Everyone()))
        Fleet().serve(whole)
        fleet, kills = Fleet(), 0
        killed = deployment(tmp_path / "killed", FedAvg(Everyone()), checkpoint_every=checkpoint_every)
        while True:
            try:
                fleet.serve(killed, kill_after(fleet, every + 7 * kills))
                break
            except Killed:
                kills += 1
                fleet.link.new_run()
        assert kills > 1
        assert same(model_in(tmp_path / "whole"), model_in(tmp_path / "killed"))
        once = [(a.device, a.version) for a in load(tmp_path / "whole").arrivals]
        assert sorted(once) == sorted((a.device, a.version) for a in load(tmp_path / "killed").arrivals if a.is_merged)
        assert len(load(tmp_path / "killed").records) == 7

    def test_nobody_is_asked_again_for_what_had_arrived(self, tmp_path: Path) -> None:
        fleet = Fleet((1.0, 1.0, 1.0, 8.0))
        plan = deployment(tmp_path, FedAvg(Everyone()), rounds=2)
        with pytest.raises(Killed):
            fleet.serve(plan, kill_after(fleet, 60))
        assert fleet.trained == {(device, 0): 1 for device in range(4)}
        fleet.link.new_run()
        fleet.serve(plan)
        assert fleet.trained == {(0, 0): 1, (1, 0): 1, (2, 0): 1, (3, 0): 2} | {(device, 1): 1 for device in range(4)}

    def test_the_clock_goes_on_and_the_memory_is_kept(self, tmp_path: Path) -> None:
        fleet = Fleet()
        plan = deployment(tmp_path, HFL(), rounds=12, checkpoint_every=3.0)
        with pytest.raises(Killed):
            fleet.serve(plan, kill_after(fleet, 150))
        fleet.link.sleep(1000.0)
        fleet.link.new_run()
        fleet.serve(plan)
        records = load(tmp_path).records
        assert [record.version for record in records] == list(range(13))
        assert records[-1].seconds < 60
        assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(records))
        assert records[-1].merged == sum(a.is_merged for a in load(tmp_path).arrivals)

    def test_a_device_that_kept_its_answer_gives_it_again_without_training(self, tmp_path: Path) -> None:
        """The straggler finishes after the server has died: its work is not lost."""
        fleet = Fleet((1.0, 1.0, 1.0, 8.0))
        for number, node in enumerate(fleet.link.nodes):
            node.context.node_config["answers"] = str(tmp_path / f"answers-{number}")
        plan = deployment(tmp_path / "run", FedAvg(Everyone()), rounds=1)
        with pytest.raises(Killed):
            fleet.serve(plan, kill_after(fleet, 60))
        (kept,) = (tmp_path / "answers-3").iterdir()
        written_at = kept.stat().st_mtime_ns
        fleet.link.new_run()
        fleet.serve(plan)
        assert kept.stat().st_mtime_ns == written_at
        assert same(model_in(tmp_path / "run"), _model_of(plan, tmp_path))

    @pytest.mark.parametrize("checkpoint_every", [1e9, 0.01], ids=["journal", "checkpoint"])
    def test_a_fleet_that_was_started_anew_meanwhile_goes_on_too(self, checkpoint_every: float, tmp_path: Path) -> None:
        fleet = Fleet()
        plan = deployment(tmp_path, rounds=None, seconds=60.0, checkpoint_every=checkpoint_every)
        with pytest.raises(Killed):
            fleet.serve(plan, kill_after(fleet, 150))
        before = Counter(fleet.trained)
        fleet.link.new_run()
        for node in list(fleet.link.nodes):
            fleet.link.kill(node)
        for partition, seconds in enumerate((1.0, 1.1, 1.25, 3.7)):
            fleet.link.add(fleet._watched(client_app(load_part)), seconds, {"partition-id": partition})
        newcomer = client_app(lambda context: part_of(TASK, 0))
        fleet.link.add(fleet._watched(newcomer), 1.0, {"name": "newcomer"})
        fleet.serve(plan)
        jobs = Counter(device for device, _ in (fleet.trained - before).elements())
        assert jobs.keys() == {0, 1, 2, 3, 4}
        assert min(jobs.values()) > 5

    def test_first_weights_may_be_random(self, tmp_path: Path) -> None:
        def model() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(60, 10))

        def load_own(context: Context) -> Task:
            return replace(load_part(context), model=model())

        fleet = Fleet(device_0=client_app(load_own), device_1=client_app(load_own))
        first, again = (replace(deployment(tmp_path, rounds=4, devices=2), model=model()) for _ in range(2))
        with pytest.raises(Killed):
            fleet.serve(first, kill_after(fleet, 60))
        fleet.link.new_run()
        fleet.serve(again)
        assert load(tmp_path).records[-1].version == 4


def test_a_setting_that_is_refused_leaves_a_folder_for_a_better_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"10 participants a round, but the fleet has 4 devices.*Everyone"):
        Fleet().serve(deployment(tmp_path, FedAvg()))
    Fleet().serve(deployment(tmp_path, FedAvg(Everyone()), rounds=1))
    assert load(tmp_path).records[-1].version == 1


def _model_of(plan: Deployment, tmp_path: Path) -> dict[str, torch.Tensor]:
    Fleet().serve(deployment(tmp_path / "again", plan.algorithm, rounds=plan.rounds))
    return model_in(tmp_path / "again")


class TestBadDevices:
    def test_a_fleet_with_another_model_is_an_error_that_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = deployment(tmp_path, guard=Guard(), rounds=2)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(InputError, match=r"All 4 devices are in quarantine.*is the server's model the devices'"),
        ):
            Fleet().serve(replace(other, model=torch.nn.Linear(50, 10)))
        assert "Device 0's job is lost: its app failed" in caplog.text

    def test_a_device_that_is_to_train_where_it_cannot_does_not_enrol(
        self, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        fleet = Fleet()
        fleet.link.nodes[0].context.node_config["device"] = "tpu"
        with caplog.at_level(logging.WARNING):
            fleet.serve(deployment(tmp_path, devices=3, rounds=2))
        assert (
            "does not enrol: its app failed: InputError: Unknown device 'tpu': give auto, cpu or cuda." in caplog.text
        )

    def test_without_a_guard_devices_that_always_fail_end_the_run_with_what_they_say(self, tmp_path: Path) -> None:
        def failing(message: Message, context: Context) -> Message:
            if message.metadata.message_type == TRAIN:
                return Message(Error(2, "no\nmemory\x1b[31m"), reply_to=message)
            reply: Message = client_app(load_part)(message, context)
            return reply

        fleet = Fleet((1.0, 1.1), device_0=failing, device_1=failing)
        with pytest.raises(
            InputError, match=r"1000 times in a row all .* as 'its app failed: no memory.\[31m', so no version"
        ):
            fleet.serve(deployment(tmp_path, FedAvg(Everyone()), devices=2, rounds=3))

    def test_who_is_put_in_quarantine_is_said(self, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        def large_names(message: Message, context: Context) -> Message:
            if message.metadata.message_type == TRAIN:
                return Message(RecordDict({4_000_000 * "x": ConfigRecord()}), reply_to=message)
            reply: Message = client_app(load_part)(message, context)
            return reply

        with caplog.at_level(logging.INFO):
            Fleet(device_0=large_names).serve(deployment(tmp_path, guard=Guard(), rounds=8))
        assert caplog.text.count("Device 0 is in quarantine: it gets no more jobs.") == 1
        reasons = {arrival.lost for arrival in load(tmp_path).arrivals if arrival.device == 0}
        assert reasons == {f"an answer without weights, steps and loss: it has {20 * 'x'}"}
        early = [line.levelno for line in caplog.records if "too early" in line.getMessage()]
        assert set(early) == {logging.INFO}, "nobody has done anything wrong"

    @pytest.mark.parametrize("guard", [None, Guard()], ids=["guard-off", "guard-on"])
    def test_a_wrong_shape_is_a_lost_job_with_and_without_a_guard(self, guard: Guard | None, tmp_path: Path) -> None:
        def short(message: Message, context: Context) -> Message:
            reply: Message = client_app(load_part)(message, context)
            if message.metadata.message_type == TRAIN:
                reply.content.array_records["arrays"]["weights"] = Array(np.zeros(7, np.float32))
            return reply

        fleet = Fleet((1.0, 1.1, 1.2, 1.3), device_1=short)
        fleet.serve(deployment(tmp_path, guard=guard, rounds=5))
        arrivals = [arrival for arrival in load(tmp_path).arrivals if arrival.device == 1]
        assert {arrival.lost for arrival in arrivals} == {"shape [7] instead of [610]"}
        assert load(tmp_path).records[-1].version == 5

    @pytest.mark.parametrize(
        "forged",
        [
            {"test_accuracy": math.nan},
            {"test_accuracy": 1e6, "test_num_samples": 2**62},
            {"train_loss": math.nan},
            {"train_loss": 1e308, "test_loss": -1e308},
            {"train_loss": -9e5, "test_loss": -9e5},
        ],
        ids=["nan", "large", "loss", "large-losses", "negative-losses"],
    )
    def test_scores_that_cannot_be_true_are_not_recorded(self, forged: dict[str, float], tmp_path: Path) -> None:
        def lying(message: Message, context: Context) -> Message:
            reply: Message = client_app(load_part)(message, context)
            if message.metadata.message_type == TRAIN:
                reply.content.metric_records["metrics"].update(forged)
            return reply

        Fleet(device_0=lying).serve(deployment(tmp_path))
        last = load(tmp_path).records[-1]
        assert 0 <= last.test_accuracy <= 1
        assert 0 <= last.test_loss < 1e6
        assert 0 <= last.train_loss < 1e6

    def test_whatever_one_answers_the_run_completes_and_it_ends_in_quarantine(self, tmp_path: Path) -> None:
        def nan(message: Message, context: Context) -> Message:
            reply: Message = client_app(load_part)(message, context)
            if message.metadata.message_type == TRAIN:
                array = reply.content.array_records["arrays"]["weights"]
                array.data = array.data[:-4] + np.float32(np.nan).tobytes()
            return reply

        def failing(message: Message, context: Context) -> Message:
            if message.metadata.message_type == TRAIN:
                return Message(Error(2, "RuntimeError: out of memory"), reply_to=message)
            reply: Message = client_app(load_part)(message, context)
            return reply

        fleet = Fleet((1.0, 1.1, 1.2, 1.3), device_1=nan, device_2=failing)
        fleet.serve(deployment(tmp_path, guard=Guard(), rounds=8))
        arrivals = load(tmp_path).arrivals
        refused = {arrival.refused for arrival in arrivals if arrival.device == 1}
        assert refused == {"not finite"}
        assert {a.lost for a in arrivals if a.device == 2} == {"its app failed: RuntimeError: out of memory"}
        assert load(tmp_path).records[-1].barred == 2
        assert load(tmp_path).records[-1].version == 8
        assert all(torch.isfinite(tensor).all() for tensor in model_in(tmp_path).values())


class TestChangedBytes:
    """One changed byte in any file of a deployment's folder: an error of one line, or the same bits."""

    def test_of_one_that_was_killed(self, tmp_path: Path) -> None:
        fleet, plan = Fleet(), deployment(tmp_path / "left", rounds=4, checkpoint_every=2.0)
        with pytest.raises(Killed):
            fleet.serve(plan, kill_after(fleet, 75))
        shutil.copytree(tmp_path / "left", tmp_path / "whole")
        Fleet().serve(deployment(tmp_path / "whole", rounds=4))
        paths = [path.relative_to(tmp_path / "left") for path in files_in(tmp_path / "left")]
        assert {path.parts[0] for path in paths} >= {"journal", "checkpoints", "run.json", "records.jsonl"}
        draw, refused = random.Random(0), Counter[str]()
        for path, attempt in itertools.product(paths, range(4)):
            out = tmp_path / "again"
            shutil.copytree(tmp_path / "left", out)
            change_a_byte(out / path, draw)
            try:
                Fleet().serve(deployment(out, rounds=4))
                assert same(model_in(tmp_path / "whole"), model_in(out)), (path, attempt)
            except InputError as error:
                refused[path.parts[0]] += 1
                one_line(error)
            shutil.rmtree(out)
        assert refused["journal"] > 0

    def test_of_one_that_has_ended(self, tmp_path: Path) -> None:
        Fleet().serve(deployment(tmp_path / "left", rounds=2))
        draw = random.Random(0)
        for path in files_in(tmp_path / "left"):
            whole = path.read_bytes()
            change_a_byte(path, draw)
            with pytest.raises(InputError) as error:
                Fleet().serve(deployment(tmp_path / "left", rounds=2))
            one_line(error.value)
            path.write_bytes(whole)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def change_a_byte(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
    path.write_bytes(content)


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)
