"""When a device can be reached: switched on, charging, on a network that costs nothing. All in seconds of virtual time.

An availability is a value, a part of a run's configuration. Its calendar is what it makes of a fleet and a seed: a pure
function of device and time, whoever asks, how often and in which order. Time begins at 0.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridfl.errors import InputError, require_positive, require_share
from hybridfl.randomness import generator, key

_LEAST_SECONDS = 1e-3
"""Much shorter stretches would get lost in the rounding of large times, and a calendar would never end."""


class Calendar(Protocol):
    """When each device can be reached; a pure function of time."""

    def is_on(self, devices: NDArray[np.int64], at: float) -> NDArray[np.bool_]: ...

    def stretches(self, device: int, after: float) -> Iterator[tuple[float, float]]:
        """The stretches [from, until) in which a device is on, in order; the first begins at `after` if it is on then.

        There may be infinitely many, a last one may be infinitely long, and one may begin where the one before ends.
        """
        ...


class Availability(Protocol):
    """What makes the calendar of a fleet."""

    def calendar(self, devices: int, seed: int) -> Calendar: ...


def next_on(calendar: Calendar, device: int, at: float) -> float:
    """min {t ≥ at : the device is on at t}: when it can be reached next; ∞ if never again."""
    if at == math.inf:
        return math.inf
    return next((begin for begin, _ in calendar.stretches(device, at)), math.inf)


def finish(calendar: Calendar, device: int, start: float, seconds: float) -> tuple[float, float]:
    """(t, s): from `start` to t the device is on for `seconds` in all, and s is when it first goes away before t.

    It stops while it is away and goes on where it was. t = ∞ if it is never on for so long, s = ∞ if it does not go away.
    A device that is away at `start` goes away then. Without an interruption t = start + seconds, to the last bit.
    """
    if not 0 <= seconds < math.inf:
        raise InputError(f"seconds={seconds} is no time a device can take: give 0 or more, and not infinitely many.")
    if start == math.inf:
        return math.inf, math.inf
    left, on_until, away = seconds, start, math.inf
    for begin, until in calendar.stretches(device, start):
        if begin > on_until:
            away = min(away, on_until)
        if left <= until - begin:
            return start + seconds if away == math.inf else begin + left, away
        left -= until - begin
        on_until = until
    return math.inf, min(away, on_until)


@dataclass(frozen=True)
class AlwaysOn:
    """Every device can be reached at any time. Its own calendar."""

    def calendar(self, devices: int, seed: int) -> Calendar:
        return self

    def is_on(self, devices: NDArray[np.int64], at: float) -> NDArray[np.bool_]:
        return np.ones(len(devices), dtype=bool)

    def stretches(self, device: int, after: float) -> Iterator[tuple[float, float]]:
        yield after, math.inf


@dataclass(frozen=True)
class DayNight:
    """Device i is on in [(p_i + k)·period, (p_i + k + on)·period) for every whole k, p_i uniform in [0, spread).

    Phones charge at night. With a spread of 0 all of them do so at once, with 1 they are all over the globe.
    """

    period: float = 86400.0
    on: float = 0.5
    spread: float = 1.0

    def __post_init__(self) -> None:
        require_positive("period", self.period)
        require_share("on", self.on)
        require_share("spread", self.spread)
        if self.on * self.period < _LEAST_SECONDS:
            raise InputError(
                f"on={self.on} of period={self.period} seconds is no time at all: give more than {_LEAST_SECONDS} seconds."
            )

    def calendar(self, devices: int, seed: int) -> Calendar:
        phases = self.spread * generator(seed, "day night").random(devices)
        return _Days(phases, self.period, self.on)


@dataclass(frozen=True, eq=False)
class _Days:
    phases: NDArray[np.float64]
    period: float
    on: float

    def is_on(self, devices: NDArray[np.int64], at: float) -> NDArray[np.bool_]:
        phases = self.phases[devices]
        day = np.floor(at / self.period - phases)
        # Rounding can put a moment into the day before or after its own, so these are asked too.
        yesterday = at < (phases + (day - 1 + self.on)) * self.period
        today = ((phases + day) * self.period <= at) & (at < (phases + (day + self.on)) * self.period)
        tomorrow = (phases + (day + 1)) * self.period <= at
        return np.asarray(yesterday | today | tomorrow)

    def stretches(self, device: int, after: float) -> Iterator[tuple[float, float]]:
        phase = float(self.phases[device])
        for day in itertools.count(math.floor(after / self.period - phase) - 1):
            begin = max((phase + day) * self.period, after)
            until = (phase + (day + self.on)) * self.period
            if begin < until:
                yield begin, until


@dataclass(frozen=True)
class OnOff:
    """On for Exp(mean_on) seconds, off for Exp(mean_off), and so on, each device for itself: a Markov chain of two states.

    It starts in its stationary state: on with probability mean_on / (mean_on + mean_off), as at any later time.
    """

    mean_on: float = 3600.0
    mean_off: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in (("mean_on", self.mean_on), ("mean_off", self.mean_off)):
            require_positive(name, value)
            if value < _LEAST_SECONDS:
                raise InputError(f"{name}={value} seconds is no time at all: give {_LEAST_SECONDS} or more.")

    def calendar(self, devices: int, seed: int) -> Calendar:
        return _Chains(self.mean_on, self.mean_off, seed)


@dataclass(frozen=True, eq=False)
class _Chains:
    """Of each device the times at which it goes on, off, on, off …, drawn as far as somebody has asked.

    A device is on after an odd number of them. They are drawn a few at a time, by a generator of their own (seed, device,
    which few), so that what comes out does not depend on the questions, and nothing but the times is kept.
    """

    mean_on: float
    mean_off: float
    seed: int
    switches: dict[int, array[float]] = field(default_factory=dict)

    def is_on(self, devices: NDArray[np.int64], at: float) -> NDArray[np.bool_]:
        switched = (bisect_right(self._switches(device, at), at) for device in devices.tolist())
        return np.fromiter((number % 2 == 1 for number in switched), dtype=bool, count=len(devices))

    def stretches(self, device: int, after: float) -> Iterator[tuple[float, float]]:
        first = bisect_right(self._switches(device, after), after)
        index = first - first % 2
        while True:
            switches = self._switches(device, after, index + 2)
            begin, until = max(switches[index], after), switches[index + 1]
            if begin < until:
                yield begin, until
            index += 2

    def _switches(self, device: int, at: float, count: int = 0) -> array[float]:
        """The switches of a device, at least up to the first one after `at`, and at least `count` of them."""
        switches = self.switches.get(device)
        if switches is None:
            # A key is as good as a random number in [0, 2^64), and far cheaper than a generator.
            starts_on = key(self.seed, "on off", device) / 2**64 < self.mean_on / (self.mean_on + self.mean_off)
            switches = self.switches[device] = array("d", [0.0] if starts_on else [])
        while not switches or switches[-1] <= at or len(switches) < count:
            self._draw_some(device, switches)
        return switches

    def _draw_some(self, device: int, switches: array[float]) -> None:
        """Ten more. An even number, so that these, too, begin with going off if the device was on at 0."""
        few, is_on = divmod(len(switches), 10)  # that it is on at 0 counts as a switch
        means = (self.mean_on, self.mean_off) if is_on else (self.mean_off, self.mean_on)
        lengths = generator(self.seed, "on off", device, few).standard_exponential((5, 2)) * means
        last = switches[-1] if switches else 0.0
        switches.extend((last + lengths.cumsum()).tolist())


@dataclass(frozen=True, eq=False)
class Intervals:
    """Device i is on in [starts[j][k], ends[j][k]) for every k, j = i mod the number of recorded devices.

    The stretches of a device may come in any order and may overlap. With `repeat_every` all of them come again after so many
    seconds, and again; without it, nobody is on after the last one.
    """

    starts: tuple[NDArray[np.float64], ...]
    ends: tuple[NDArray[np.float64], ...]
    repeat_every: float | None = None

    def __post_init__(self) -> None:
        require_positive("recorded devices", len(self.starts))
        starts, ends = np.concatenate(self.starts), np.concatenate(self.ends)
        for index in np.flatnonzero(~((starts >= 0) & (ends - starts >= _LEAST_SECONDS)))[:1]:
            raise InputError(
                f"No device is on from {starts[index]} until {ends[index]}: give {_LEAST_SECONDS} seconds or more, from 0 on."
            )
        if self.repeat_every is not None:
            require_positive("repeat_every", self.repeat_every)
            last = float(ends.max(initial=0.0))
            if last > self.repeat_every:
                raise InputError(
                    f"repeat_every={self.repeat_every} seconds is shorter than the recording: give {last} or more."
                )

    def is_on(self, devices: NDArray[np.int64], at: float) -> NDArray[np.bool_]:
        records = np.asarray(devices, dtype=np.int64) % len(self.starts)
        on = np.zeros(len(records), dtype=bool)
        # Rounding can put a moment into the lap before or after its own, so these are asked too.
        for offset in self._offsets(at, 3):
            on |= self._switched(records, at, offset) % 2 == 1
        return on

    def stretches(self, device: int, after: float) -> Iterator[tuple[float, float]]:
        switches, first = self._switches
        record = device % len(self.starts)
        pairs = switches[first[record] : first[record + 1]].reshape(-1, 2)
        if not len(pairs):
            return
        for offset in self._offsets(after, None):
            begins, untils = np.maximum(pairs[:, 0] + offset, after), pairs[:, 1] + offset
            some = begins < untils
            yield from zip(begins[some].tolist(), untils[some].tolist(), strict=True)

    def _offsets(self, at: float, count: int | None) -> Iterator[float]:
        """When the recording starts, from the lap before the one that `at` lies in."""
        if self.repeat_every is None:
            return iter([0.0])
        lap = math.floor(at / self.repeat_every) - 1
        return (number * self.repeat_every for number in itertools.islice(itertools.count(lap), count))

    def _switched(self, records: NDArray[np.int64], at: float, offset: float) -> NDArray[np.int64]:
        """How often each has switched by `at` in the lap that starts at `offset`: one bisection for all of them."""
        switches, first = self._switches
        low, high = first[records], first[records + 1]
        while (open_ends := low < high).any():
            middle = (low + high) // 2
            passed = switches[middle] + offset <= at
            low = np.where(open_ends & passed, middle + 1, low)
            high = np.where(open_ends & ~passed, middle, high)
        return low - first[records]

    @cached_property
    def _switches(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The times at which a device goes on, off, on, off …, one device after the other, and where each one's begin."""
        joined = [_joined(starts, ends) for starts, ends in zip(self.starts, self.ends, strict=True)]
        first = np.cumsum([0, *(len(each) for each in joined)], dtype=np.int64)
        # The ∞ is what the bisection looks at where the last device has no more switches.
        return np.concatenate([*joined, [np.inf]]), first


def _joined(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """The borders of a union of intervals: from, until, from, until … What overlaps or touches is one."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
    is_first = np.append(True, starts[1:] > ends[:-1])[: len(starts)]
    is_last = np.append(is_first[1:], True)[: len(starts)]
    return np.stack([starts[is_first], ends[is_last]], axis=1).ravel()
