"""One pool of threads for all training: a thread a core, each of which leaves the other cores to the others."""

from __future__ import annotations

import copy
import functools
import os
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridfl.errors import InputError
from hybridfl.losses import Loss


def _cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("HYBRIDFL_THREADS", "")
    if not wanted:
        return available
    if not wanted.isdigit() or int(wanted) == 0:
        raise InputError(f"HYBRIDFL_THREADS={wanted} is not a number of threads: give one above 0, or unset it.")
    return min(available, int(wanted))


CORES = _cores()
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


class ModelOfEachThread:
    """A copy of a model for every thread that asks, in the mode it is used in: computing with a model changes it."""

    def __init__(self, model: nn.Module, *, training: bool, device: torch.device = torch.device("cpu")) -> None:
        self._model, self._training, self._device = model, training, device
        self._copies = threading.local()

    def own(self) -> nn.Module:
        """This thread's."""
        if not hasattr(self._copies, "model"):
            self._copies.model = copy.deepcopy(self._model).to(self._device).train(self._training)
        model: nn.Module = self._copies.model
        return model


def loss_of_each_thread(loss: Loss) -> Loss:
    """The same loss, an object with a copy for every thread: one that keeps something on itself would change another's."""
    if isinstance(loss, types.FunctionType | types.BuiltinFunctionType | torch.jit.ScriptFunction):
        return loss
    copies = threading.local()

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        if not hasattr(copies, "loss"):
            copies.loss = copy.deepcopy(loss)
        losses: Tensor = copies.loss(outputs, targets)
        return losses

    return own
