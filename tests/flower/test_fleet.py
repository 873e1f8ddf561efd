"""Real SuperLinks and SuperNodes on loopback, killed by their own pids. What is shown is shown from `arrivals.jsonl`."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_trial import Trial, check_counted_once, of

pytestmark = pytest.mark.flower


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    made.fleet.stop()


def test_rounds_close_at_the_normal_devices_pace_and_late_work_is_merged(trial: Trial) -> None:
    trial.begin(0, 0, 0, 60, 70, 80)
    trial.run(algorithm="hfl", rounds=9, devices=6)
    run = trial.wait()
    check_counted_once(run)
    assert all(arrival.is_merged for arrival in run.arrivals)
    made = [record.seconds for record in run.records]
    for arrival in run.arrivals:
        version_then = sum(at <= arrival.arrived_at for at in made[1:])
        assert arrival.staleness in (version_then - arrival.version, version_then - arrival.version - 1)
        assert (arrival.arrived_at - arrival.sent_at > 60) == (arrival.device >= 3)
        assert arrival.staleness == 0 or arrival.device >= 3
    assert {arrival.device for arrival in run.arrivals if arrival.staleness >= 2} >= {3}
    rounds = [after - before for before, after in itertools.pairwise(made[1:])]
    assert max(rounds) < 55, "nobody waits for a straggler"


def test_a_straggler_killed_in_mid_training_comes_back(trial: Trial) -> None:
    """Flower takes a minute to notice; then it has its old place."""
    trial.begin(0, 0, 25)
    trial.run(rounds=0, seconds=150.0, devices=3)
    trial.wait(trial.has_version(1))
    trial.fleet.kill("node-2")
    trial.node(2, 3, {"at-least-seconds": 12})
    run = trial.wait()
    check_counted_once(run)
    straggler = of(run, 2)
    assert [arrival.lost for arrival in straggler if arrival.lost] == ["its device came back as another node"]
    assert any(arrival.is_merged for arrival in straggler), "under its old number"
    assert all(arrival.is_merged for device in (0, 1) for arrival in of(run, device))
    assert {arrival.device for arrival in run.arrivals} == {0, 1, 2}


def test_the_server_app_is_killed_and_goes_on(trial: Trial, tmp_path: Path) -> None:
    """The straggler, at work for a run that is gone, keeps its answer and gives it when it is asked again."""
    trial.begin(0, 0)
    trial.node(2, 3, {"at-least-seconds": 35, "answers": str(tmp_path / "answers")})
    trial.run(rounds=9, devices=3)
    before = trial.wait(trial.has_version(2))
    os.kill(trial.server_pid(), signal.SIGKILL)
    trial.run(rounds=9, devices=3)
    run = trial.wait()
    check_counted_once(run)
    merged = [(arrival.device, arrival.version) for arrival in before.arrivals]
    again = [(arrival.device, arrival.version) for arrival in run.arrivals]
    assert again[: len(merged)] == merged, "what had arrived is not asked for again"
    assert any(arrival.version == 0 and arrival.is_merged for arrival in of(run, 2)), "the straggler's job goes on"
    assert not [arrival for arrival in run.arrivals if arrival.lost]


def test_the_superlink_is_killed_and_started_again(trial: Trial, tmp_path: Path) -> None:
    """With its state on the disk and the ServerApp in a process of its own, nothing is lost."""
    options = ("--insecure", "--isolation", "process", "--database", str(tmp_path / "state.db"))
    trial.begin(0, 0, 40, superlink=options)
    trial.fleet.start("superexec", "flower-superexec", "--insecure", "--runtime-api-address", trial.fleet.address)
    trial.run(rounds=7, devices=3)
    trial.wait(trial.has_version(2))
    trial.fleet.kill("superlink")
    time.sleep(5)
    trial.fleet.superlink(*options)
    run = trial.wait()
    check_counted_once(run)
    assert all(arrival.is_merged for arrival in run.arrivals), [a for a in run.arrivals if not a.is_merged]
    assert any(arrival.version == 0 for arrival in of(run, 2)), "the answer in flight included"


class Forwarder:
    """A link that can be cut: what connects to `port` reaches `target`, until it does not. `rate`: bytes a second, upwards."""

    def __init__(self, target: int, port: int, rate: float = math.inf) -> None:
        self.port, self._target, self._rate = port, target, rate
        self._is_cut = False
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for one, other, rate in ((near, far, self._rate), (far, near, math.inf)):
                    threading.Thread(target=_pour, args=(one, other, rate), daemon=True).start()


def _pour(one: socket.socket, other: socket.socket, rate: float) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(16384):
            other.sendall(data)
            time.sleep(len(data) / rate)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.close()


def test_a_link_that_is_cut_for_90_seconds_loses_nothing(trial: Trial) -> None:
    """The device finishes its job behind the cut, and hands it over afterwards."""
    trial.begin(0, 0)
    link = Forwarder(trial.fleet.port, trial.fleet.port + 60)
    trial.node(2, 3, {"at-least-seconds": 30}, "--insecure", "--superlink", f"127.0.0.1:{link.port}")
    trial.run(rounds=0, seconds=170.0, devices=3)
    trial.wait(trial.has_version(1))
    link.cut()
    time.sleep(90)
    link.mend()
    run = trial.wait()
    link.close()
    check_counted_once(run)
    assert not [arrival for arrival in run.arrivals if not arrival.is_merged]
    assert any(a.arrived_at - a.sent_at > 85 and a.is_merged for a in of(run, 2)), "the job it had behind the cut"
    assert max(b.seconds - a.seconds for a, b in itertools.pairwise(run.records[1:])) < 30, "nobody has waited for it"


LARGE = """

from dataclasses import replace

from torch import nn as _nn


def load(context, load=load):
    return replace(load(context), model=_model())


def model_and_test(context):
    return _model(), None


def _model():
    return _nn.Sequential(_nn.Linear(60, 4000), _nn.ReLU(), _nn.Linear(4000, 10))
"""
WITHHOLDING = """
import sys
import flwr.supernode.start_client_internal as supernode
from flwr.supernode.cli.flower_supernode import flower_supernode

upload = supernode.push_object_contents_from_iterable
uploads = []


def withhold(contents, push_object_fn):
    uploads.append(1)
    if len(uploads) == 1:  # who it is
        upload(contents, push_object_fn=push_object_fn)


supernode.push_object_contents_from_iterable = withhold
flower_supernode()
"""


def test_who_uploads_slowly_or_never_keeps_nobody_waiting(trial: Trial, tmp_path: Path) -> None:
    """A model of a megabyte; one device sends it in half a minute, one says it has an answer and sends nothing of it."""
    trial.app = shutil.copytree(trial.app, tmp_path / "app")
    with (trial.app / "hybridfl_app" / "task.py").open("a") as file:
        file.write(LARGE)
    trial.begin()
    link = Forwarder(trial.fleet.port, trial.fleet.port + 60, rate=35_000.0)
    for number in (0, 1):
        trial.node(number, 4)
    trial.node(2, 4, {}, "--insecure", "--superlink", f"127.0.0.1:{link.port}")
    (tmp_path / "withholding.py").write_text(WITHHOLDING)
    options = ("--insecure", "--superlink", trial.fleet.address, "--port", str(trial.fleet.port + 150))
    config = ("--node-config", "partition-id=3 num-partitions=4")
    trial.fleet.start("node-3", Path(sys.executable).name, str(tmp_path / "withholding.py"), *options, *config)
    trial.run(rounds=0, seconds=130.0, devices=4)
    run = trial.wait()
    link.close()
    check_counted_once(run)
    first = {number: min(arrival.arrived_at for arrival in of(run, number)) for number in (0, 1, 2)}
    assert max(first[0], first[1]) + 15 < first[2], "normal answers do not wait for the slow one's upload"
    assert all(arrival.is_merged for number in (0, 1, 2) for arrival in of(run, number))
    assert not [arrival for arrival in of(run, 3) if arrival.is_merged]
    assert run.records[-1].version >= 2
    assert run.records[-1].seconds < 135, "it ends in time"


BAD = '''
"""Devices of every bad kind, by their node-config."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body
from hybridfl_app.task import load

from hybridfl.flower import client_app

good = client_app(load)
app = ClientApp()


class Garbage(ConfigRecord):
    """What Flower itself cannot read."""

    def deflate(self) -> bytes:
        return add_header_to_object_body(object_body=bytes(4 * [255]), obj=ConfigRecord())


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    return good(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    kind = context.node_config["kind"]
    if kind == "good":
        return good(message, context)
    if kind == "exception":
        raise RuntimeError("out of memory")
    if kind == "none":
        return None
    if kind == "garbage":
        reply = good(message, context)
        reply.content["more"] = Garbage({"a": 1})
        return reply
    arrays = {
        "nan": np.full(610, np.nan, np.float32),
        "shape": np.zeros((2, 3), np.float32),
        "large": np.zeros(50_000_000, np.float32),
    }
    content = {
        "arrays": ArrayRecord({"weights": Array(arrays[kind])}),
        "metrics": MetricRecord({"num_steps": 5, "train_loss": 0.1}),
    }
    return Message(RecordDict(content), reply_to=message)
'''


def test_whatever_a_device_answers_the_run_completes_without_it(trial: Trial, tmp_path: Path) -> None:
    """NaN, a wrong shape, nothing at all, an exception, 200 MB, what Flower itself cannot read."""
    trial.app = shutil.copytree(trial.app, tmp_path / "app")
    (trial.app / "hybridfl_app" / "client_app.py").write_text(BAD)
    trial.begin()
    kinds = ("good", "good", "good", "nan", "shape", "none", "exception", "large", "garbage")
    for number, kind in enumerate(kinds):
        trial.node(number, len(kinds), {"kind": kind})
    trial.run(rounds=6, devices=len(kinds), guard="on")
    run = trial.wait(seconds=400)
    check_counted_once(run)
    reasons = {number: {a.refused or a.lost for a in of(run, number)} - {None} for number in range(len(kinds))}
    assert reasons[3] == {"not finite"}
    assert reasons[4] == {"shape [2, 3] instead of [610]"}
    assert all("out of memory" in str(reason) for reason in reasons[6])
    assert all("200,000,128 bytes" in str(reason) for reason in reasons[7])
    assert all("an answer that cannot be read (DecodeError" in str(reason) for reason in reasons[8])
    for number in (3, 4, 6, 7, 8):
        assert reasons[number], kinds[number]
    for number in range(3, len(kinds)):  # who answers nothing at all may never be heard of again: Flower's node hangs
        assert len(of(run, number)) <= 3, "three faults, and it gets no more jobs"
        assert not any(arrival.is_merged for arrival in of(run, number))
    assert {arrival.device for arrival in run.arrivals if arrival.is_merged} <= {0, 1, 2}
    assert run.records[-1].version == 6
