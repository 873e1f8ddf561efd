"""Ctrl-C in Python is a clean stop: one line says where the results are, and the same call goes on."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridfl import HFL, PaperDelays, Result, Run, Synthetic, simulate
from hybridfl.lockstep import Event
from hybridfl.saving import FolderSaves
from hybridfl.tally import Snapshot

pytestmark = pytest.mark.processes

TASK = Synthetic().build(20, 0)
# A shell that runs these tests in the background ignores SIGINT, and children inherit that.
HEED = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)

SCRIPT = """
import signal
import sys
from hybridfl import Synthetic, simulate

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the tests in the background ignores it
simulate(Synthetic().build(20, 0), "hfl", "paper", rounds=int(sys.argv[2]), out=sys.argv[1], checkpoint_every=int(sys.argv[3]))
"""


def interrupted(out: Path, every: int) -> tuple[int, str, float]:
    """(exit status, what it said, seconds it took to end) of a run that is interrupted when it has records."""
    command = [sys.executable, "-c", SCRIPT, str(out), "1000000", str(every)]
    with subprocess.Popen(command, stdout=-3, stderr=subprocess.PIPE, text=True, preexec_fn=HEED) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            records = out / "records.jsonl"
            if records.exists() and len(records.read_bytes().splitlines()) > 20:
                break
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, said, time.monotonic() - began


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupt_is_said_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    status, said, seconds = interrupted(out, every=5)
    assert status == -signal.SIGINT, said
    assert said.splitlines()[0] == (
        f"Interrupted. What was recorded is in '{out}'; the same call goes on from its last checkpoint."
    )
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in said
    assert seconds < 20
    assert list((out / "checkpoints").iterdir())


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupt_before_the_first_checkpoint_says_that_it_begins_again(tmp_path: Path) -> None:
    _, said, _ = interrupted(tmp_path / "run", every=10**9)
    assert said.splitlines()[0].endswith("the same call begins again: no checkpoint was due yet.")


def test_what_was_interrupted_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def call(out: Path) -> Result:
        return simulate(TASK, HFL(), PaperDelays(), rounds=10, out=out, checkpoint_every=2)

    def write(saves: FolderSaves, plan: Run, event: Event) -> None:
        if isinstance(event, Snapshot) and event.record.version == 7:
            raise KeyboardInterrupt  # stands for a user who presses Ctrl-C
        return WRITE(saves, plan, event)

    whole = call(tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(FolderSaves, "write", write)
        with pytest.raises(KeyboardInterrupt):
            call(tmp_path / "broken")
    assert caplog.messages == [
        f"Interrupted. What was recorded is in '{tmp_path / 'broken'}'; the same call goes on from its last checkpoint."
    ]
    assert repr(call(tmp_path / "broken").records) == repr(whole.records)
    for name in ("records.jsonl", "arrivals.jsonl", "model.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


WRITE = FolderSaves.write
