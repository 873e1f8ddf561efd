"""Averages and memories where the weights are on a GPU. Skipped where there is none."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hybridfl.algorithms.ad_sgd import Correction, Diagonal, NoCorrection, Secant
from hybridfl.algorithms.averages import Average, ClippedMean, Mean, Median, TrimmedMean
from hybridfl.algorithms.memory import Memory
from hybridfl.protocol import Fleet, Job, Update, Work

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
AVERAGES = [Mean(), ClippedMean(), Median(), TrimmedMean()]
T = TypeVar("T")


def without_waiting(call: Callable[[], T]) -> T:
    """Twice: what is allocated for the first time may wait. The second time PyTorch raises an error at it."""
    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("average", AVERAGES)
def test_an_average_does_not_wait_and_is_the_cpus(average: Average, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(2)
    for count, length in ((100, 100_003), (5000, 61), (3, 2)):
        shares, factors = torch.rand(count, generator=draw), torch.rand(count, generator=draw)
        rows = torch.randn(count, length, generator=draw).to(dtype)
        shares = shares / shares.sum()
        coefficients, on_gpu = (shares * factors).cuda(), rows.cuda()
        found = without_waiting(partial(average, shares, coefficients, on_gpu))
        assert_close(found.cpu(), average(shares, shares * factors, rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("correction", [NoCorrection(), Secant(), Diagonal()])
def test_a_closing_does_not_wait_and_is_the_cpus(correction: Correction, storage: str, most: int | None) -> None:
    memory = Memory(correction, ClippedMean(), most, storage)
    fleet = Fleet(np.arange(1, 13), np.full(12, np.nan))

    def played(device: str) -> torch.Tensor:
        draw = torch.Generator().manual_seed(3)
        weights, remembered = torch.zeros(1000, device=device), None
        for version in range(4):
            base, work = torch.randn(1000, generator=draw).to(device), Work(1, 1, 0.1)
            deltas = torch.randn(6, 1000, generator=draw).to(device)
            devices = range(2 * version, 2 * version + 6)
            updates = [
                Update(Job(number, version // 2, base, work, 0.0), base + delta, 3, 0.0)
                for number, delta in zip(devices, deltas, strict=True)
            ]
            close = partial(memory.close, remembered, weights, version, 0.1, updates, fleet)
            weights, remembered = close() if device == "cpu" else without_waiting(close)
        return weights.cpu()

    assert_close(played("cuda"), played("cpu"), rtol=1e-3, atol=1e-3)
