"""What only a real fleet does: devices join, leave, come back, lie, and answer with anything at all."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fakes import Towards
from flower_link import Answer, Link, Node
from hybridfl.errors import InputError
from hybridfl.flower.client import answering
from hybridfl.flower.patience import Patience
from hybridfl.flower.roster import Roster
from hybridfl.flower.transport import FlowerTransport
from hybridfl.flower.wire import ENROL, Enrolment, enrolment_content, read_job, update_content
from hybridfl.protocol import Inbox, Job, Outbox, Work

PATIENCE = Patience(poll=0.1, node=100.0, restart=5.0, settle=30.0, fetch=20.0)


def job(device: int, version: int = 0, sent_at: float = 0.0) -> Job:
    return Job(device, version, torch.tensor([1.0, -2.0]), Work(1, 1, 0.1), sent_at)


def device(name: str = "", num_samples: int = 5, answer: RecordDict | Error | None = None) -> Answer:
    """A device that answers a job as it should, or so."""

    @answering
    def handle(message: Message, context: Context) -> RecordDict:
        if message.metadata.message_type == ENROL:
            return enrolment_content(Enrolment(num_samples, name))
        assert not isinstance(answer, Error)
        if answer is not None:
            return answer
        (update,) = Towards()([read_job(message.content)[0]])
        return update_content(update)

    def app(message: Message, context: Context) -> Message:
        if isinstance(answer, Error) and message.metadata.message_type != ENROL:
            return Message(answer, reply_to=message)
        return handle(message, context)

    return app


class Odd:
    """A Grid that does something of its own, in the thread that asks, when a node's update is fetched."""

    def __init__(self, grid: Grid) -> None:
        self.of: Mapping[int, Callable[[], object]] = {}
        self.asked: list[list[str]] = []
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.asked.append(list(message_ids))
        replies = list(self._grid.pull_messages(self.asked[-1]))
        for reply in replies:
            if not reply.has_content() or "enrolment" not in reply.content:
                self.of.get(reply.metadata.src_node_id, lambda: None)()
        return replies


class Setting:
    def __init__(self, *apps: Answer, roster: Roster = Roster(), patience: Patience = PATIENCE) -> None:
        self.link = Link()
        self.nodes: list[Node] = [self.link.add(app) for app in apps]
        self.grid = Odd(self.link.grid)
        self.transport = FlowerTransport(
            cast(Grid, self.grid), roster=roster, patience=patience, clock=self.link.clock, sleep=self.link.sleep
        )

    def enrolled(self) -> Setting:
        self.transport.enrol(len(self.nodes))
        return self

    def send(self, *jobs: Job, wake_in: float | None = None) -> None:
        self.transport.send(Outbox(jobs, None if wake_in is None else self.transport.now + wake_in))

    def ask(self, *devices: int) -> Inbox:
        self.send(*map(job, devices))
        return self.transport.receive()


def answer_with(array: NDArray[Any], num_steps: float = 1) -> RecordDict:
    numbers: dict[str, int | float | list[int] | list[float]] = {"num_steps": num_steps, "train_loss": 0.5}
    return RecordDict({"arrays": ArrayRecord({"weights": Array(array)}), "metrics": MetricRecord(numbers)})


def answer_of(data: bytes) -> RecordDict:
    """Whatever the bytes are."""
    return RecordDict(
        {
            "arrays": ArrayRecord({"weights": Array("float32", (2,), "numpy.ndarray", data)}),
            "metrics": MetricRecord({"num_steps": 1, "train_loss": 0.0}),
        }
    )


def npy(header: str) -> bytes:
    """As numpy writes a file, up to its numbers."""
    text = header.encode().ljust(-(-(len(header) + 11) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class TestEnrolment:
    def test_devices_that_come_at_once_go_by_their_names(self) -> None:
        setting = Setting(*(device(f"partition-{number}", number + 1) for number in (10, 9, 2))).enrolled()
        assert setting.transport.roster.names == ("partition-2", "partition-9", "partition-10")
        assert setting.transport.fleet.num_samples.tolist() == [3, 10, 11]

    def test_nameless_devices_go_by_their_nodes(self) -> None:
        setting = Setting(device(), device()).enrolled()
        assert set(setting.transport.roster.names) == {f"node-{node.node_id}" for node in setting.nodes}

    def test_too_few_devices_in_time_are_an_error(self) -> None:
        setting = Setting(device())
        with pytest.raises(
            InputError, match="1 devices of the 3 wanted have enrolled within 20 s: start more SuperNodes"
        ):
            setting.transport.enrol(3, seconds=20)

    def test_two_with_one_name_are_told_apart_from_too_few(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("partition-0"), device("partition-0"))
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(
                InputError, match=r"1 devices of the 2 wanted .* 2 nodes say they are 'partition-0'; give each a name"
            ),
        ):
            setting.transport.enrol(2, seconds=20)
        assert caplog.text.count("all say they are 'partition-0': give each a name, or a partition-id, of its own") == 1

    def test_who_takes_long_to_say_who_it_is_is_asked_once_and_joins(self) -> None:
        setting = Setting(device("a"), device("b"))
        setting.nodes[1].enrol_seconds = 400.0
        setting.transport.enrol(1)
        assert setting.transport.now == pytest.approx(PATIENCE.settle, abs=1), "the run begins without it"
        setting.send(wake_in=1000)
        assert setting.transport.receive().joined == {1}
        assert setting.transport.now == pytest.approx(400, abs=1)
        assert setting.nodes[1].answered == 1

    @pytest.mark.parametrize("name", ["node-123", "a\x1b[31m", "a\nb"])
    def test_a_name_that_is_none_does_not_enrol(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a"), device(name))
        with caplog.at_level(logging.WARNING):
            setting.transport.enrol(1)
        assert setting.transport.roster.names == ("a",)
        assert "give it one that can be printed and does not begin with 'node-'" in caplog.text
        assert "\x1b" not in caplog.text

    def test_who_keeps_silent_is_not_waited_for_for_ever(self) -> None:
        setting = Setting(device("a"), device("b"))
        setting.link.add(device("c")).is_on = False
        setting.transport.enrol(2, seconds=20)
        assert setting.transport.roster.names == ("a", "b")

    def test_a_device_that_was_repaired_and_started_again_is_asked_again(self) -> None:
        is_broken, good = [True], device("b")

        def repaired(message: Message, context: Context) -> Message:
            return Message(Error(2, "no data"), reply_to=message) if is_broken else good(message, context)

        setting = Setting(device("a"), repaired)
        setting.transport.enrol(1)
        is_broken.clear()
        setting.link.kill(setting.nodes[1])
        setting.send(wake_in=5)
        setting.transport.receive()
        setting.link.turn_on(setting.nodes[1])
        setting.send(wake_in=60)
        assert setting.transport.receive().joined == {1}
        assert setting.transport.roster.names == ("a", "b")

    def test_whose_name_another_took_gets_its_place_back_when_that_one_is_gone(self) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        setting.link.cut(setting.nodes[0])
        other = setting.link.add(device("a"))
        setting.send(wake_in=20)
        setting.transport.receive()
        assert setting.transport.roster.node_of(0) == other.node_id
        setting.link.kill(other)
        setting.link.turn_on(setting.nodes[0])
        setting.send(wake_in=20)
        setting.transport.receive()
        assert setting.transport.roster.node_of(0) == setting.nodes[0].node_id

    @pytest.mark.parametrize("samples", [0, -3, 2**63])
    def test_a_device_without_samples_does_not_enrol(self, samples: int, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a"), device("b", samples))
        with caplog.at_level(logging.WARNING):
            setting.transport.enrol(1)
        assert setting.transport.roster.names == ("a",)
        assert "does not enrol" in caplog.text

    def test_a_device_that_fails_at_it_does_not_enrol(self) -> None:
        def broken(message: Message, context: Context) -> Message:
            return Message(Error(2, "no data"), reply_to=message)

        setting = Setting(device("a"), broken)
        setting.transport.enrol(1)
        assert setting.transport.roster.names == ("a",)

    def test_who_joins_later_is_new_in_the_inbox_and_free(self) -> None:
        setting = Setting(device("a", 3)).enrolled()
        setting.link.add(device("b", 4))
        setting.send(job(0))
        inbox = setting.transport.receive()
        assert inbox.joined == inbox.devices == frozenset({1})
        assert inbox.fleet is not None
        assert inbox.fleet.num_samples.tolist() == [3, 4]
        assert setting.transport.fleet is inbox.fleet
        assert setting.transport.receive().devices == {0}
        assert setting.ask(1).devices == {1}

    def test_a_device_that_comes_back_as_another_node_has_its_old_place(self) -> None:
        setting = Setting(device("a", 3), device("b", 4)).enrolled()
        setting.link.kill(setting.nodes[0])
        setting.link.add(device("a", 3))
        setting.send(wake_in=3)
        inbox = setting.transport.receive()
        assert inbox.joined == frozenset()
        assert setting.transport.roster.names == ("a", "b")
        assert len(setting.ask(0).updates) == 1

    def test_nobody_takes_the_place_of_one_who_is_there(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a", 3), device("b")).enrolled()
        thief = setting.link.add(device("a", 10**9))
        setting.send(wake_in=3)
        setting.transport.receive()
        assert thief.node_id not in dict(setting.transport.roster.nodes)
        assert setting.transport.fleet.num_samples.tolist() == [3, 5]
        assert "who is online: it has to wait" in caplog.text

    def test_whoever_has_the_name_of_a_dead_node_has_its_place_once_that_is_known(self) -> None:
        """Flower takes a minute to notice that a node has died; it may have been started again within a second."""
        setting = Setting(device("a", 3), device("b")).enrolled()
        setting.send(job(0), wake_in=0.5)
        setting.transport.receive()
        setting.nodes[0].at_work = None
        again = setting.link.add(device("a", 3))
        setting.send(wake_in=3)
        setting.transport.receive()
        setting.link.kill(setting.nodes[0])
        setting.send(wake_in=3)
        inbox = setting.transport.receive()
        assert [lost.reason for lost in inbox.lost] == ["its device came back as another node"]
        assert setting.transport.roster.node_of(0) == again.node_id
        assert len(setting.ask(0).updates) == 1


class TestAbsence:
    def test_who_is_offline_cannot_be_reached_and_a_job_for_it_is_lost_at_once(self) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        setting.link.kill(setting.nodes[1])
        setting.send(wake_in=0.5)
        setting.transport.receive()
        assert setting.transport.fleet.reachable([0, 1], now=0.0) == [0]
        (lost,) = setting.ask(1).lost
        assert (lost.reason, lost.is_fault) == ("its node is offline", False)

    def test_who_goes_and_comes_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        with caplog.at_level(logging.INFO):
            for change, said in (
                ((setting.link.cut, 0), "Device 0 (a) is offline."),
                ((setting.link.cut, 1), "None of the fleet's 2 devices is online: the run waits for them."),
                ((setting.link.turn_on, 0), "Device 0 (a) is online."),
            ):
                caplog.clear()
                act, number = change
                act(setting.nodes[number])
                setting.send(wake_in=1)
                setting.transport.receive()
                assert caplog.text.count(said) == 1

    def test_with_nothing_to_wait_for_whoever_comes_online_ends_the_wait(self) -> None:
        setting = Setting(device("a")).enrolled()
        setting.link.cut(setting.nodes[0])
        setting.send(wake_in=1)
        setting.transport.receive()
        setting.send()
        original = setting.link.sleep

        def sleep(seconds: float) -> None:
            original(seconds)
            if setting.link.now > 20 and not setting.nodes[0].is_on:
                setting.link.turn_on(setting.nodes[0])

        setting.transport._sleep = sleep
        inbox = setting.transport.receive()
        assert inbox.devices == frozenset()
        assert inbox.now == pytest.approx(20, abs=0.5)

    def test_what_a_node_finished_behind_a_cut_link_is_not_lost(self) -> None:
        """Flower would delete it, if it was asked for in the meantime."""
        setting = Setting(device("a")).enrolled()
        setting.send(job(0), wake_in=50)
        setting.link.sleep(0.5)
        setting.link.cut(setting.nodes[0])
        assert setting.transport.receive().devices == frozenset()
        setting.link.turn_on(setting.nodes[0])
        setting.send(wake_in=50)
        assert len(setting.transport.receive().updates) == 1

    def test_a_node_that_was_killed_and_came_back_has_lost_its_job(self) -> None:
        setting = Setting(device("a")).enrolled()
        setting.nodes[0].seconds = 10
        setting.send(job(0), wake_in=3)
        setting.transport.receive()
        setting.link.kill(setting.nodes[0])
        setting.link.turn_on(setting.nodes[0])
        setting.send()
        inbox = setting.transport.receive()
        assert [lost.reason for lost in inbox.lost] == ["its node was started anew"]
        assert inbox.now == pytest.approx(3 + PATIENCE.restart, abs=1)
        assert setting.nodes[0].answered == 2, "both times it was asked who it is"
        assert len(setting.ask(0).updates) == 1

    def test_a_node_whose_link_was_cut_and_that_is_still_at_work_is_waited_for(self) -> None:
        setting = Setting(device("a")).enrolled()
        setting.nodes[0].seconds = 200
        setting.send(job(0), wake_in=3)
        setting.transport.receive()
        setting.link.cut(setting.nodes[0])
        setting.send(wake_in=20)
        setting.transport.receive()
        setting.link.turn_on(setting.nodes[0])
        setting.send()
        inbox = setting.transport.receive()
        assert len(inbox.updates) == 1
        assert inbox.now == pytest.approx(200, abs=1)

    def test_a_node_that_stays_away_has_lost_its_job(self) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        setting.send(job(0), wake_in=0.5)
        setting.transport.receive()
        setting.link.kill(setting.nodes[0])
        setting.send()
        inbox = setting.transport.receive()
        assert [lost.reason for lost in inbox.lost] == ["its node has been offline for 100 s"]
        assert inbox.now == pytest.approx(PATIENCE.node, abs=3)

    def test_an_answer_that_comes_after_its_job_was_given_up_counts_for_nothing(self) -> None:
        """Behind a link that was cut for too long it has finished, and gets a new job: one answer counts, the new one's."""
        setting = Setting(device("a"), device("b")).enrolled()
        setting.nodes[0].seconds = 50.0
        setting.send(job(0, version=0), wake_in=0.5)
        setting.transport.receive()
        setting.link.cut(setting.nodes[0])
        setting.send()
        assert len(setting.transport.receive().lost) == 1
        setting.link.turn_on(setting.nodes[0])
        setting.send(wake_in=0.5)
        setting.transport.receive()
        setting.send(job(0, version=7))
        inbox = setting.transport.receive()
        assert [update.job.version for update in inbox.updates] == [7]
        assert setting.nodes[0].answered == 2 + 1, "both jobs, and who it is"
        setting.send(wake_in=200.0)
        assert not setting.transport.receive().devices

    def test_nobody_ever_has_two_messages(self) -> None:
        setting = Setting(*(device(f"partition-{n}") for n in range(3))).enrolled()
        for round_number in range(5):
            setting.send(*(job(n, round_number) for n in range(3)))
            assert len(setting.transport.receive().updates) == 3
        assert setting.link.most_out == 1


class TestAnswers:
    def test_numbers_are_the_guards_to_judge(self) -> None:
        """They arrive as they are."""
        bad = np.array([math.nan, 1.0], dtype=np.float32)
        (update,) = Setting(device("a", answer=answer_with(bad))).enrolled().ask(0).updates
        assert torch.isnan(update.weights).tolist() == [True, False]

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (RecordDict(), "an answer without weights, steps and loss: it has nothing"),
            (
                answer_with(np.zeros(100_000_000, np.uint8)),
                "an answer of 100,000,128 bytes where 2 weights were asked for",
            ),
            (answer_of(b""), "an array that cannot be read"),
            (answer_of(b"rubbish"), "an array that cannot be read"),
            (answer_of(b"PK\x03\x04" + bytes(200)), "an array that cannot be read"),
            (
                answer_of(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }")),
                "an array that",
            ),
            (answer_of(npy("(" * 400 + ")" * 400)), "an array that cannot be read"),
            (answer_of(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + bytes(8)), "an array that"),
            (answer_with(np.zeros((1, 2), np.float32)), "shape [1, 2] instead of [2]"),
            (answer_with(np.zeros(2)), "torch.float64 instead of torch.float32"),
            (answer_with(np.zeros(2, np.complex64)), "torch.complex64 instead of torch.float32"),
            (
                answer_with(np.zeros(2, np.float32), num_steps=1.5),
                "an answer whose number of steps or loss is no number",
            ),
            (Error(2, "ValueError: no data\nmore"), "its app failed: ValueError: no data"),
            (Error(8, "exit code 1"), "its app crashed: exit code 1"),
        ],
        ids=[
            *(
                "empty",
                "large",
                "no-bytes",
                "rubbish",
                "archive",
                "claims-to-be-large",
                "nested",
                "objects",
                "shape",
                "double",
            ),
            *("complex", "steps", "exception", "crash"),
        ],
    )
    def test_what_is_no_update_is_a_lost_job_and_a_fault(self, answer: RecordDict | Error, reason: str) -> None:
        inbox = Setting(device("a", answer=answer)).enrolled().ask(0)
        (lost,) = inbox.lost
        assert lost.reason.startswith(reason)
        assert lost.is_fault
        assert inbox.updates == ()

    def test_what_flower_itself_says_is_no_fault_of_the_device(self) -> None:
        (lost,) = Setting(device("a", answer=Error(5, "node"))).enrolled().ask(0).lost
        assert (lost.reason, lost.is_fault) == ("its node is gone", False)

    def test_an_answer_on_which_flower_itself_chokes_is_a_fault_and_costs_nobody_else(self) -> None:
        def choke() -> None:
            raise ValueError("Error parsing message\x1b[31m" + 1000 * "!")

        setting = Setting(*(device(f"partition-{n}") for n in range(3))).enrolled()
        setting.grid.of = {setting.nodes[1].node_id: choke}
        inbox = setting.ask(0, 1, 2)
        assert [update.job.device for update in inbox.updates] == [0, 2]
        (lost,) = inbox.lost
        assert (lost.job.device, lost.is_fault) == (1, True)
        assert lost.reason.startswith("an answer that cannot be read (ValueError: Error parsing message?[31m!!!")
        assert len(lost.reason) < 250

    def test_a_superlink_that_fails_for_a_moment_costs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        failures = [1, 2, 3]

        def fail(ids: Iterable[str], pull: Callable[[Iterable[str]], Any]) -> Any:
            if failures:
                failures.pop()
                request = httpx.Request("POST", "http://superlink")
                raise httpx.HTTPStatusError("database is locked", request=request, response=httpx.Response(500))
            return pull(ids)

        setting = Setting(device("a"), device("b")).enrolled()
        pull = setting.grid.pull_messages
        monkeypatch.setattr(setting.grid, "pull_messages", lambda ids: fail(ids, pull))
        assert len(setting.ask(0).updates) == 1
        assert not failures

    def test_who_uploads_slowly_keeps_nobody_waiting(self) -> None:
        patience = replace(PATIENCE, fetch=0.2)
        setting = Setting(*(device(f"partition-{n}") for n in range(3)), patience=patience).enrolled()
        is_whole = threading.Event()
        setting.grid.of = {setting.nodes[1].node_id: is_whole.wait}
        inbox = setting.ask(0, 1, 2)
        assert [update.job.device for update in inbox.updates] == [0, 2]
        setting.link.cut(setting.nodes[1])
        setting.send(job(0, 1), wake_in=2 * PATIENCE.node)
        assert [update.job.device for update in setting.transport.receive().updates] == [0]
        setting.send(wake_in=2 * PATIENCE.node)
        assert not setting.transport.receive().devices, "an answer that is on its way is not given up"
        is_whole.set()
        setting.send()
        inbox = setting.transport.receive()
        assert [update.job.device for update in inbox.updates] == [1]

    def test_an_answer_that_was_announced_and_never_came_is_a_fault(self) -> None:
        said = "Reply message objects are unavailable. The sender may not have completed the upload"
        (lost,) = Setting(device("a", answer=Error(3, said)), device("b")).enrolled().ask(0).lost
        assert (lost.reason, lost.is_fault) == ("its answer was never uploaded whole", True)

    def test_a_superlink_is_not_asked_more_often_for_a_larger_fleet(self) -> None:
        patience = replace(PATIENCE, requests=50.0)
        setting = Setting(*(device(f"partition-{n}") for n in range(12)), patience=patience).enrolled()
        setting.grid.asked.clear()
        setting.send(*map(job, range(12)))
        answered: list[int] = []
        while len(answered) < 12:
            answered += [update.job.device for update in setting.transport.receive().updates]
            setting.send()
        assert sorted(answered) == list(range(12))
        looks = setting.link.now / PATIENCE.poll
        assert 12 <= len(setting.grid.asked) <= 5 * looks
        assert all(len(ids) == 1 for ids in setting.grid.asked)

    def test_a_pickle_is_not_loaded(self) -> None:
        array = np.array([print], dtype=object)
        import io

        file = io.BytesIO()
        np.save(file, array, allow_pickle=True)
        content = RecordDict(
            {
                "arrays": ArrayRecord({"weights": Array("object", (1,), "numpy.ndarray", file.getvalue())}),
                "metrics": MetricRecord({"num_steps": 1, "train_loss": 0.0}),
            }
        )
        (lost,) = Setting(device("a", answer=content)).enrolled().ask(0).lost
        assert "cannot be read" in lost.reason
