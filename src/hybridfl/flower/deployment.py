"""A deployment is a value: a model, an algorithm, a budget, and where its results are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hybridfl.algorithms.growing import Growing
from hybridfl.algorithms.guard import Guard, Guarded
from hybridfl.data.federated import Samples
from hybridfl.errors import InputError, require_positive, require_seed, require_whole
from hybridfl.flower.patience import Patience
from hybridfl.losses import Loss, cross_entropy
from hybridfl.plan import versions
from hybridfl.protocol import Algorithm
from hybridfl.provenance import code_of, repr_of
from hybridfl.records import DEPLOYED, Config
from hybridfl.trial import check_first_weights, check_labels, check_trainable, check_trial
from hybridfl.vectors import flatten


@dataclass(frozen=True, eq=False)
class Deployment:
    """What a real fleet learns, how, and where its results are kept.

    It begins when `devices` have enrolled; others may join at any time. It ends after `rounds` versions or `seconds`,
    whichever is first. With a `test` set, (inputs, targets), the server scores every record itself; without one, devices score
    what they receive on samples of their own, and a record has the mean of what each said last. A record is made of the first
    version in every stretch of `evaluate_every` seconds; 0: of every version. In `out`, a run that was killed goes on.
    """

    model: nn.Module
    algorithm: Algorithm[Any]
    out: Path
    rounds: int | None = None
    seconds: float | None = None
    devices: int = 2
    seed: int = 0
    guard: Guard | None = Guard()
    test: tuple[Tensor, Tensor] | None = None
    loss: Loss = cross_entropy
    name: str = "deployment"
    label: str = ""
    evaluate_every: float = 0.0
    checkpoint_every: float = 60.0
    """Seconds."""
    enrol_seconds: float = 600.0
    """How long to wait for `devices` before giving up."""
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        if self.seconds is None and self.rounds is None:
            raise InputError("The deployment has no end: give seconds, rounds or both.")
        object.__setattr__(self, "out", Path(self.out))
        require_seed(self.seed)
        object.__setattr__(self, "seed", int(self.seed))
        require_whole("devices", self.devices)
        if self.rounds is not None:
            require_whole("rounds", self.rounds)
        for name in ("seconds", "checkpoint_every", "enrol_seconds"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        check_first_weights(self.model)
        if self.test is None:
            check_trainable(self.model)
        else:
            test = Samples.from_devices([self.test])
            check_trial(self.model, self.loss, test)
            check_labels(self.model, self.loss, test)

    @property
    def guarded(self) -> Algorithm[Any]:
        """What really runs: the algorithm, open to new devices, behind its guard."""
        growing = Growing(self.algorithm)
        return growing if self.guard is None else Guarded(growing, self.guard)

    @cached_property
    def config(self) -> Config:
        """All that decides the results, but for the devices and their data, which only they know."""
        return {
            "label": self.label or type(self.algorithm).__name__,
            "algorithm": repr_of(self.algorithm),
            "task": {
                "name": self.name,
                "model": " ".join(repr_of(self.model).split()),
                "parameters": flatten(self.model).numel(),
                "test_samples": 0 if self.test is None else len(self.test[1]),
            },
            "timing": DEPLOYED,
            "guard": repr_of(self.guard),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "evaluate_every": self.evaluate_every,
            "seed": self.seed,
            "code": code_of(algorithm=self.algorithm, model=self.model, loss=self.loss, guard=self.guard),
            "versions": versions(),
        }
