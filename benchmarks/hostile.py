"""What hostile devices do to the accuracy, and what the guard and robust averages save.

    python benchmarks/hostile.py
    python benchmarks/hostile.py --task fashion-mnist --seconds 200

A tenth of the devices answers every job with −10 × its step, with NaN, or with a random vector. Final accuracy by sample in %,
mean over seeds ± standard deviation. Nothing was tuned on these numbers: guard and averages are as by default.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from hybridfl import (
    HFL,
    ClippedMean,
    Conditions,
    FedAvg,
    FedBuff,
    Guard,
    Hostile,
    Mean,
    Median,
    Memory,
    Noise,
    NotANumber,
    PaperDelays,
    Run,
    Scaled,
    TrimmedMean,
    execute_all,
)
from hybridfl.engines import CPU
from hybridfl.spelling import read_task
from hybridfl.tally import Snapshot

ATTACKS = {"nobody": None, "−10 ×": Scaled(-10.0), "NaN": NotANumber(), "random": Noise(1.0)}
AVERAGES = {"mean": Mean(), "clipped": ClippedMean(), "trimmed": TrimmedMean(), "median": Median()}


def algorithms(average: Any) -> dict[str, Any]:
    """What is attacked."""
    return {
        "HFL": HFL(Memory(average=average)),
        "FedBuff": FedBuff(average=average),
        "FedAvg": FedAvg(average=average),
    }


def main() -> None:
    """A table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="synthetic")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    runs: dict[int, tuple[str, str, str]] = {}
    plans: list[Run] = []
    for seed in range(arguments.seeds):
        task = read_task(arguments.task).build(100, seed)
        for attack_name, attack in ATTACKS.items():
            hostile = None if attack is None else Hostile(0.1, attack)
            for guard in (None, Guard()):
                for average_name, average in AVERAGES.items():
                    for name, algorithm in algorithms(average).items():
                        plan = Run(
                            task,
                            algorithm,
                            Conditions(PaperDelays(), hostile=hostile),
                            arguments.seconds,
                            evaluate_every=arguments.seconds / 20,
                            seed=seed,
                            guard=guard,
                        )
                        plans.append(plan)
                        runs[id(plan)] = name, f"{'guard, ' if guard else ''}{average_name}", attack_name
    accuracy: dict[int, list[float]] = {id(plan): [] for plan in plans}
    refused: dict[int, int] = {}
    merged: dict[int, int] = {}
    for plan, event in execute_all(plans, CPU):
        if isinstance(event, Snapshot):
            accuracy[id(plan)].append(event.record.test_accuracy)
            refused[id(plan)] = event.record.refused
            merged[id(plan)] = event.record.merged
    print(f"{arguments.task}, 100 devices, {arguments.seconds:g} s, {arguments.seeds} seeds\n")
    print(f"{'':10}{'':18}" + "".join(f"{attack:>16}" for attack in ATTACKS))
    for name in algorithms(Mean()):
        for defence in dict.fromkeys(each[1] for each in runs.values()):
            cells = []
            for attack_name in ATTACKS:
                finals = [np.mean(accuracy[key][-3:]) for key in runs if runs[key] == (name, defence, attack_name)]
                cells.append(f"{100 * np.mean(finals):9.1f} ± {100 * np.std(finals, ddof=1):4.1f}")
            print(f"{name:10}{defence:18}" + "".join(cells), flush=True)
    honest = [key for key in runs if runs[key][2] == "nobody" and runs[key][1].startswith("guard")]
    good, bad = sum(merged[key] for key in honest), sum(refused[key] for key in honest)
    print(f"\nWith nobody hostile, the guard refused {bad} of {good + bad:,} updates.")


if __name__ == "__main__":
    main()
