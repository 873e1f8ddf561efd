"""A run that made no version says why."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.sampling import Everyone
from hybridfl.conditions import Conditions
from hybridfl.experiment import simulate
from hybridfl.records import Arrival, Record
from hybridfl.standstill import why_no_version
from hybridfl.tasks import Synthetic
from hybridfl.timing import ConstantSeconds, PerDevice

LAST = Record(0, 5.0, 0, math.nan, 0, 2.3, 2.3, 0.1, 0.1, 0.1, bytes_sent=2440, bytes_received=0, discarded=0)
MERGED = Arrival(0, 0, 0.0, 1.0, 0)
LOST = replace(MERGED, lost="cut off")
REFUSED = replace(MERGED, refused="not finite")
SECONDS = np.array([11.0, 20.0, math.nan])


def test_a_run_with_a_version_has_nothing_to_explain() -> None:
    assert why_no_version(replace(LAST, version=1), [MERGED], SECONDS) is None
    assert why_no_version(replace(LAST, diverged_at=0.0), [], SECONDS) is None


@pytest.mark.parametrize(
    ("last", "arrivals", "reason"),
    [
        (replace(LAST, bytes_sent=0), [], "no device was there to get a job before the run ended after 5 s"),
        (LAST, [], "no job was done when the run ended after 5 s: the fastest device needs about 11 s"),
        (LAST, [MERGED, LOST], "with 1 update merged, 1 lost (the slowest device needs about 20 s)"),
        (LAST, [LOST] * 120, "all 120 jobs that ended were lost (last reason: cut off)."),
        (LAST, [LOST], "the only job that ended was lost (last reason: cut off)."),
        (
            LAST,
            [LOST, LOST, REFUSED],
            "of 3 jobs that ended none was merged: 2 lost and 1 refused (last reason: not finite).",
        ),
    ],
)
def test_the_reason_is_told_from_the_last_record_and_the_arrivals(
    last: Record, arrivals: list[Arrival], reason: str
) -> None:
    told = why_no_version(last, arrivals, SECONDS)
    assert told is not None
    assert reason in told
    assert "\n" not in told


def test_devices_that_are_fast_enough_are_not_blamed() -> None:
    assert "needs about" not in str(why_no_version(LAST, [], np.array([1.0])))


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        (ConstantSeconds(11), "the fastest device needs about 11 s"),
        (PerDevice((1, 1, 1, 11)), "with 3 updates merged (the slowest device needs about 11 s)"),
        (Conditions(ConstantSeconds(1), lost=0.999999, notice=1.0), "jobs that ended were lost (last reason: "),
    ],
)
def test_from_python_it_is_a_warning(
    fleet: ConstantSeconds | PerDevice | Conditions, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        result = simulate(
            Synthetic().build(4, 0), FedAvg(participants=Everyone()), fleet, seconds=5, label="f", device="cpu"
        )
    assert [record.version for record in result.records] == [0, 0]
    (message,) = caplog.messages
    assert message.startswith("f, seed 0: no version was made: ")
    assert reason in message


def test_a_run_that_makes_versions_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        simulate(Synthetic().build(4, 0), HFL(), ConstantSeconds(1), seconds=3, device="cpu")
    assert caplog.messages == []
