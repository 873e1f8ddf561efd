"""Settings with a name: what stands for the options of `run` and `compare` that are not given."""

from __future__ import annotations

from collections.abc import Mapping

PRESETS: Mapping[str, Mapping[str, str | int | float]] = {
    "fashion-mnist": {
        "task": "fashion-mnist",
        "algorithm": "hfl-drift",
        "algorithms": "hfl-drift,hfl,hfl-as-printed,fedavg,fedprox,fedasync,fedbuff",
        "schedule": "cosine",
        "learning_rate": 0.1,
        "epochs": 5,
        "batch_size": 64,
        "rounds": 200,
    },
}
"""`fashion-mnist`: HFL reaches the paper's accuracy there; `hybridfl reproduce search-fashion-mnist` finds nothing
that is better by more than chance."""
