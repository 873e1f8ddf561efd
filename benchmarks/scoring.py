"""What the scores by device cost beside those by sample: one pass over the test samples makes both.

    python benchmarks/scoring.py

Milliseconds per evaluation, median of 20 (range), and of that the sums by device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import torch

from hybridfl.engines import evaluator_for
from hybridfl.evaluation import Audience
from hybridfl.spelling import read_task

TURNS = 20


def milliseconds(work: Callable[[], object]) -> list[float]:
    """Of every turn, after one to warm up."""
    work()
    taken = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - start))
    return sorted(taken)


def main() -> None:
    """A line per task."""
    for name in ("synthetic", "synthetic-crowd", "fashion-mnist"):
        task = read_task(name).build(100, 0)
        slow = np.zeros(len(task.test), dtype=bool)
        evaluate = evaluator_for(task, slow, 0)
        audience = Audience.of(task.test, slow, 0.1)
        right = torch.ones(len(task.test.index)).numpy()
        whole = milliseconds(functools.partial(evaluate, task.first_weights))
        own = milliseconds(functools.partial(audience.scores, right, 1.0, 1.0))
        median, part = whole[TURNS // 2], own[TURNS // 2]
        print(
            f"{name:16} {len(task.test.index):7,} test samples: {median:8.2f} ms ({whole[0]:.2f} to {whole[-1]:.2f}), of which "
            f"by device {part:.3f} ms = {part / median:.1%}"
        )


if __name__ == "__main__":
    main()
