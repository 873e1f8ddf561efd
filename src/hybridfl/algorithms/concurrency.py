"""Who is at work in an asynchronous algorithm: everybody who is there, or so many at a time."""

from __future__ import annotations

from dataclasses import dataclass

from hybridfl.algorithms.sampling import drawn
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet
from hybridfl.wording import counted


@dataclass(frozen=True)
class Crew:
    """Who has no job although it is their turn, since they cannot be reached; or, where devices are drawn, who has one."""

    away: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    draws: int = 0


LOOK_AGAIN = 1.0
"""Seconds after which the server looks again for somebody who was not there when it was their turn."""


def wake_at(crew: Crew, fleet: Fleet, concurrency: int | None, now: float) -> float | None:
    """When to look again, if somebody is missing. With nobody at all at work, the transport waits for whoever comes."""
    at_work = len(fleet) - len(crew.away) if concurrency is None else len(crew.busy)
    wanted = len(fleet) if concurrency is None else concurrency
    return now + LOOK_AGAIN if 0 < at_work < wanted else None


def first_crew(fleet: Fleet, concurrency: int | None) -> tuple[Crew, list[int]]:
    """Who begins."""
    if concurrency is not None and concurrency > len(fleet):
        raise InputError(
            f"concurrency={concurrency:,}, but the fleet has {counted(len(fleet), 'device')}: ask for {len(fleet):,} at "
            "most, or leave it out, and everybody is at work."
        )
    everyone = Crew(away=frozenset(range(len(fleet)))) if concurrency is None else Crew()
    return next_crew(everyone, fleet, concurrency, frozenset(), 0.0)


def next_crew(
    crew: Crew, fleet: Fleet, concurrency: int | None, back: frozenset[int], now: float
) -> tuple[Crew, list[int]]:
    """Who gets a job when `back` are free again. With no `concurrency`, they themselves and whoever has come back."""
    if concurrency is None:
        waiting = back | crew.away
        chosen = fleet.reachable(sorted(waiting), now)
        return (Crew() if len(chosen) == len(waiting) else Crew(away=waiting.difference(chosen))), chosen
    busy = crew.busy - back
    chosen = drawn(fleet, crew.draws, busy, concurrency - len(busy), now) if len(busy) < concurrency else []
    return Crew(busy=busy.union(chosen), draws=crew.draws + 1), chosen
