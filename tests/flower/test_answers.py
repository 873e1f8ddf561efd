"""Whatever a device answers: what becomes of it, and that nobody else waits for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower_setting import PATIENCE, Setting, device, job


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
