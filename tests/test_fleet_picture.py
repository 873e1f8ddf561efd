import time

import pytest

from hybridfl.conditions import Conditions
from hybridfl.fleet_picture import MANY, drawn_up, timeline
from hybridfl.timing import ConstantSeconds


@pytest.mark.parametrize("seconds", [60_000.0, 1e9, 1e300])
def test_a_fleet_that_is_always_there_is_drawn_so_however_long_one_looks(seconds: float) -> None:
    began = time.perf_counter()
    lines = timeline(drawn_up(ConstantSeconds(1), 3, 0), range(3), seconds, 60)
    assert lines == [MANY * 60] * 3
    assert time.perf_counter() - began < 5


def test_jobs_as_long_as_a_column_are_told_apart() -> None:
    assert timeline(drawn_up(ConstantSeconds(2), 1, 0), [0], 10.0, 10) == ["██▒▒██▒▒██"]


def test_a_lost_job_is_drawn_in_any_column() -> None:
    [line] = timeline(drawn_up(Conditions(ConstantSeconds(1), lost=0.9, notice=0.1), 1, 0), [0], 1e6, 50)
    assert set(line) <= {"×", MANY}
    assert line.count("×") > 25
