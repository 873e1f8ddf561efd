"""Test accuracy and training loss of all algorithms: the paper's Figures 2, 5, 6, 7, 8 and 9.

The paper draws them against rounds. A round of FedAvg lasts as long as its slowest device, one of HFL as long as a normal one,
so each is drawn against virtual time too.
"""

from __future__ import annotations

from dataclasses import replace

from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, Cosine, FullWork
from hybridfl.algorithms.sampling import ProportionalToDelay, Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.paper.study import ROUNDS, Arm, Study

OURS, PRINTED, DRIFT, PRESET = "HFL", "HFL as printed", "HFL, drift control", "HFL, drift control, cosine"
SSGD_, FEDAVG, UNIFORM, FEDPROX = "S-SGD", "FedAvg", "FedAvg, uniform", "FedProx"
FEDASYNC, FEDBUFF = "FedAsync", "FedBuff"

PAPER = FullWork()
"""E = 5, batches of 64, η_t = 0.1/(1 + t)."""
RECURRENT = FullWork(epochs=1, batch_size=10, learning_rate=ConstantRate(1.0), clip=1.0)
"""The paper does not say how its LSTMs were trained; with η_t = 0.1/(1 + t) they would learn nothing. LEAF's rate, clipped."""


def arms(local: FullWork, rounds: int = ROUNDS) -> tuple[Arm, ...]:
    """All algorithms with the same local work; the last with the schedule found by `hybridfl reproduce search`."""
    late_rest = FullWork(local.epochs, local.batch_size, Cosine(local.learning_rate(0), rounds), clip=local.clip)
    return (
        Arm(SSGD_, SSGD(local)),
        Arm(FEDAVG, FedAvg(ProportionalToDelay(), local)),
        Arm(UNIFORM, FedAvg(Uniform(10), local)),
        Arm(FEDPROX, FedProx(participants=ProportionalToDelay(), local=local)),
        Arm(OURS, HFL(local=local)),
        Arm(PRINTED, HFL.as_printed(local=local)),
        Arm(DRIFT, HFL.drift_controlled(local=local)),
        Arm(PRESET, HFL.drift_controlled(local=late_rest)),
        Arm(FEDASYNC, FedAsync(local=local), by_time=True),
        Arm(FEDBUFF, FedBuff(local=local), by_time=True),
    )


def _study(name: str, shows: str, task: str) -> Study:
    return Study(name, shows, task, arms(PAPER))


def _recurrent(name: str, shows: str, task: str, small: str, full: str, rounds: int) -> Study:
    whole = Study(name, shows, full, arms(RECURRENT), seeds=3, small_task=small)
    return replace(whole, task=task, arms=arms(RECURRENT, rounds), rounds=rounds, full=whole)


STUDIES = (
    _study("fig2-fashion-mnist", "Figures 2a and 6a", "fashion-mnist"),
    _study("fig2-synthetic-0-0", "Figures 2b and 6b", "synthetic(0, 0)"),
    _study("fig2-synthetic-1-1", "Figures 2c and 6c", "synthetic(1, 1)"),
    _recurrent(
        "fig5-sent140",
        "Figures 5a and 5b",
        "sent140",
        "sent140(users=Merged(tweets=1000), vocabulary=50, embedding=4, hidden=4, scored=100)",
        "sent140(embedding=300, hidden=256, layers=2)",
        rounds=50,
    ),
    _recurrent(
        "fig5-shakespeare",
        "Figures 5c and 5d",
        "shakespeare(sequences=50000, hidden=128)",
        "shakespeare(sequences=2200, embedding=2, hidden=4, layers=1, scored=50)",
        "shakespeare-paper",
        rounds=50,
    ),
    _study("fig7-synthetic-iid", "Figure 7", "synthetic-iid"),
    _study("fig8-synthetic-0.5-0.5", "Figure 8", "synthetic(0.5, 0.5)"),
    _study("fig9-mnist", "Figure 9", "mnist"),
)
