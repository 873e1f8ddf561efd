"""One pool of threads for all training: a thread a core, each of which leaves the other cores to the others."""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

_AVAILABLE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
CORES = min(_AVAILABLE, max(1, int(os.environ.get("HYBRIDFL_THREADS", _AVAILABLE))))
"""The cores this process may use: all that it has, or as many as the environment's HYBRIDFL_THREADS says."""


def pool() -> ThreadPoolExecutor:
    """The pool of this process: threads do not survive a fork."""
    return _pool(os.getpid())


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    ours = torch.get_num_threads()
    threads = ThreadPoolExecutor(CORES)
    everybody = threading.Barrier(CORES)

    def single_threaded() -> None:
        # A thread that has not asked yet takes over the process's number with its first operation, whatever was set before.
        torch.get_num_threads()
        torch.set_num_threads(1)
        everybody.wait()

    for done in [threads.submit(single_threaded) for _ in range(CORES)]:
        done.result()
    # The last call counts for threads that are started later, and those are not ours.
    torch.set_num_threads(ours)
    return threads


def shared_out(loads: NDArray[np.int64], threads: int) -> list[NDArray[np.int64]]:
    """The numbers of some loads, dealt out largest first to whoever has least; empty hands are left out."""
    hands: list[list[int]] = [[] for _ in range(threads)]
    totals = [0] * threads
    for job in np.argsort(-loads, kind="stable"):
        least = totals.index(min(totals))
        hands[least].append(int(job))
        totals[least] += int(loads[job])
    return [np.array(hand) for hand in hands if hand]
