"""Real SuperLinks and SuperNodes on loopback, killed by their own pids. What is shown is shown from `arrivals.jsonl`."""

from __future__ import annotations

import itertools
import os
import signal
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
    trial.begin(0, 0, 0, 30, 45, 60)
    trial.run(algorithm="hfl", rounds=7, devices=6)
    run = trial.wait()
    check_counted_once(run)
    assert all(arrival.is_merged for arrival in run.arrivals)
    made = [record.seconds for record in run.records]
    for arrival in run.arrivals:
        version_then = sum(at <= arrival.arrived_at for at in made[1:])
        assert arrival.staleness in (version_then - arrival.version, version_then - arrival.version - 1)
        assert (arrival.arrived_at - arrival.sent_at > 30) == (arrival.device >= 3)
        assert arrival.staleness == 0 or arrival.device >= 3
    assert {arrival.device for arrival in run.arrivals if arrival.staleness >= 2} >= {3, 4}
    rounds = [after - before for before, after in itertools.pairwise(made[1:])]
    assert max(rounds) < 30, "nobody waits for a straggler"


def test_a_straggler_killed_in_mid_training_comes_back(trial: Trial) -> None:
    """Flower takes a minute to notice; then it has its old place."""
    trial.begin(0, 0, 25)
    trial.run(rounds=0, seconds=120.0, devices=3)
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
