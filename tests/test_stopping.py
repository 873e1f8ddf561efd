"""Ctrl-C in real processes: one line that says how to go on, exit code 130, never a traceback."""

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridfl.cli import _how_to_go_on
from hybridfl.cli_stopping import stoppable

pytestmark = pytest.mark.processes

Moment = Callable[[Path], bool]
# A shell that runs these tests in the background ignores SIGINT, and children inherit that.
HEED = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)


def stopped(folder: Path, when: Moment, presses: int, *arguments: str) -> tuple[int, str]:
    """(exit code, standard error) of a command that is stopped at a moment."""
    command = [sys.executable, "-m", "hybridfl", *arguments, "--out", str(folder)]
    with subprocess.Popen(command, stdout=-3, stderr=subprocess.PIPE, text=True, preexec_fn=HEED) as running:
        assert running.stderr is not None
        deadline = time.monotonic() + 60
        while not when(folder):
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.02)
        for _ in range(presses):
            running.send_signal(signal.SIGINT)
            time.sleep(0.1)
        try:
            _, errors = running.communicate(timeout=60)
        finally:
            running.kill()
    return running.returncode, errors


def after(seconds: float) -> Moment:
    deadline = time.monotonic() + seconds
    return lambda folder: time.monotonic() > deadline


def begun(folder: Path) -> bool:
    return any(folder.rglob("run.json"))


def recorded(folder: Path) -> bool:
    return any(len(path.read_text().splitlines()) > 2 for path in folder.rglob("records.jsonl"))


def ended(folder: Path) -> bool:
    return len(list(folder.rglob("finished.json"))) == 2


CROWD = ("--task", "synthetic-crowd", "--devices", "50000", "--seconds", "1000")
PAIR = ("compare", "--algorithms", "hfl,fedavg", "--seeds", "1", "--epochs", "1")


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize(
    ("arguments", "when", "words"),
    [
        (("run", "--devices", "5000"), lambda: after(4), "The same command again finishes it"),
        (("run", *CROWD), lambda: begun, ""),
        ((*PAIR, *CROWD), lambda: begun, ""),
        ((*PAIR, "--seconds", "1000000", "--evaluate-every", "1"), lambda: recorded, "go on with `hybridfl resume "),
        ((*PAIR, "--rounds", "2", "--devices", "10"), lambda: ended, ""),
    ],
    ids=["data", "first round of a run", "first round of a comparison", "middle", "report"],
)
def test_a_stopped_command_says_how_to_go_on(
    arguments: tuple[str, ...], when: Callable[[], Moment], words: str, presses: int, tmp_path: Path
) -> None:
    code, errors = stopped(tmp_path / "out", when(), presses, *arguments)
    # A second press may come when Python itself is about to end; to a shell, death by SIGINT is 130 as well.
    assert code in ((130,) if presses == 1 else (130, -signal.SIGINT))
    if code == 130:
        assert "Stopped. " in errors
        assert words in errors
    assert "Traceback" not in errors
    assert "ignored" not in errors
    assert "Aborted" not in errors


def test_a_folders_name_is_quoted_for_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    assert _how_to_go_on(folder) == "Stopped. The same command again finishes it."
    (folder / "run.json").write_text("{}")
    (folder / "records.jsonl").write_text("{}\n")
    assert _how_to_go_on(folder).endswith(f"go on with `hybridfl resume '{folder}'`.")
    (folder / "finished.json").write_text("{}")
    assert _how_to_go_on(folder).endswith(f"`hybridfl report '{folder}'` writes their report.")


def test_what_is_not_stopped_keeps_its_errors_and_its_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError), stoppable():
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is before
