"""Fleets that have a name: how their devices behave, in virtual seconds. A job of a usual device takes about one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridfl.availability import DayNight, OnOff
from hybridfl.conditions import Conditions, Deaths, LateJoins, SpeedChange
from hybridfl.laws import HalfNormal, Lognormal
from hybridfl.timing import ConstantSeconds, Drawn, Pace, PaperDelays


def paper(stragglers: float = 0.9, max_delay: int = 10) -> PaperDelays:
    """The HFL paper's: 90 % of the devices are 1 to 10 rounds behind, each always by as many."""
    return PaperDelays(stragglers, max_delay)


def phones(sigma: float = 1.37, jitter: float = 0.2) -> Conditions:
    """Phones: lognormal speeds, the slowest of a hundred 25 × slower than the median; each job a little off."""
    return Conditions(Drawn(Lognormal(sigma)), jitter=Lognormal(jitter))


def fedbuff(sd: float = 1.0) -> Conditions:
    """FedBuff's: the time of every job is half-normal, and no device is slower than another."""
    return Conditions(ConstantSeconds(), jitter=HalfNormal(sd))


def day_night(period: float = 50.0, on: float = 0.5) -> Conditions:
    """All over the globe, devices are there for half of a day (of 50 s); of jobs cut off in the evening a third is lost."""
    return Conditions(
        Drawn(Lognormal(0.6)), jitter=Lognormal(0.2), availability=DayNight(period, on), interrupted=1 / 3, notice=5.0
    )


def flaky(lost: float = 0.1) -> Conditions:
    """All that goes wrong at once: jobs are lost, devices come and go, join late, die, and slow down in the middle."""
    return Conditions(
        Drawn(Lognormal(0.6)),
        jitter=Lognormal(0.2),
        availability=OnOff(mean_on=40.0, mean_off=10.0),
        lost=lost,
        interrupted=0.3,
        joins=LateJoins(0.2, by=50.0),
        deaths=Deaths(0.1, by=200.0),
        change=SpeedChange(0.1, factor=5.0, at=100.0),
        notice=5.0,
    )


FLEETS: Mapping[str, Callable[..., Pace | Conditions]] = {
    "paper": paper,
    "phones": phones,
    "fedbuff": fedbuff,
    "day-night": day_night,
    "flaky": flaky,
}
