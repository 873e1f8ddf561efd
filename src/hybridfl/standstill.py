"""Why a run has ended without a single version of the joint model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridfl.records import Arrival, Record
from hybridfl.wording import counted

FATES = ("lost", "refused", "discarded")


def why_no_version(last: Record, arrivals: Sequence[Arrival], expected_seconds: NDArray[np.float64]) -> str | None:
    """The reason in one line, from a run's last record, all its arrivals and how long its devices' jobs usually take.

    None if the run has made a version, or its very first model has diverged.
    """
    if last.version > 0 or last.has_diverged:
        return None
    known = expected_seconds[np.isfinite(expected_seconds)]
    fastest, slowest = (float(known.min()), float(known.max())) if len(known) else (math.nan, math.nan)
    end = f"the run ended after {last.seconds:g} s"
    if last.bytes_sent == 0:
        return (
            f"no device was there to get a job before {end}. Give the run more seconds, or its fleet more time online."
        )
    if not arrivals:
        needs = f": the fastest device needs about {fastest:.3g} s" if fastest > last.seconds else ""
        return f"no job was done when {end}{needs}. Give the run more seconds."
    counts = {fate: sum(getattr(arrival, fate) is not None for arrival in arrivals) for fate in FATES}
    came = len(arrivals) - sum(counts.values())
    if came:
        needs = f" (the slowest device needs about {slowest:.3g} s)" if slowest > last.seconds else ""
        others = "".join(f", {count:,} {fate}" for fate, count in counts.items() if count)
        return (
            f"the first version still waited for more when {end}, with {counted(came, 'update')} merged{others}{needs}. "
            "Give the run more seconds."
        )
    reason = next(getattr(arrivals[-1], fate) for fate in FATES if getattr(arrivals[-1], fate) is not None)
    happened = [(fate, count) for fate, count in counts.items() if count]
    if len(happened) == 1:
        ((fate, _),) = happened
        which = "the only job that ended was" if len(arrivals) == 1 else f"all {len(arrivals):,} jobs that ended were"
        return f"{which} {fate} (last reason: {reason})."
    shares = " and ".join(f"{count:,} {fate}" for fate, count in happened)
    return f"of {counted(len(arrivals), 'job')} that ended none was merged: {shares} (last reason: {reason})."
