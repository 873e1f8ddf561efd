"""Runs that survive: checkpoints while they are under way, and where to go on after a crash."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hybridfl import checkpoints
from hybridfl.codec import Encoded, classes_of, decode, encode, named
from hybridfl.errors import InputError
from hybridfl.lockstep import Event
from hybridfl.plan import Run, Stage
from hybridfl.playing import Ended, Often, Savepoint
from hybridfl.records import Arrival, Config, fingerprint
from hybridfl.run_folder import RunFolder
from hybridfl.simulation import Traffic
from hybridfl.tally import Snapshot, Tally
from hybridfl.vectors import state_of

log = logging.getLogger("hybridfl")


@dataclass(eq=False)
class _Saved:
    """One run's folder, and when it was saved."""

    files: RunFolder
    began_at: float = field(default_factory=time.monotonic)
    earlier_seconds: float = 0.0
    """That the run took before it was interrupted."""
    stage: Stage | None = None
    good: int | None = None
    """The checkpoint that was written or read last."""
    warned: bool = False

    @property
    def wall_seconds(self) -> float:
        return self.earlier_seconds + time.monotonic() - self.began_at


class FolderSaves:
    """Runs kept in folders: `Saves` for those that play them, and the writer of what they say."""

    def __init__(self, plans: Sequence[Run], folders: Sequence[Path], device: torch.device, often: Often) -> None:
        self.often = often
        self._device = device
        self._saved = {
            id(plan): _Saved(RunFolder(folder, plan.config)) for plan, folder in zip(plans, folders, strict=True)
        }

    def files(self, plan: Run) -> RunFolder:
        return self._saved[id(plan)].files

    def savepoint(self, plan: Run, stage: Stage) -> Savepoint | None:
        """Of the newest checkpoint that is good; the run's files are cut back to it."""
        saved = self._saved[id(plan)]
        saved.stage = stage
        saved.began_at = time.monotonic()
        found = checkpoints.newest(saved.files.checkpoints, run=fingerprint(plan.config))
        if found is None:
            saved.files.clear()
            return None
        for reason in found.skipped:
            log.warning("%s", reason)
        with checkpoints.making_sense(saved.files.checkpoints):
            body = found.body
            _check_versions(plan.config, body["versions"], str(self._device), body["device"])
            encoded = Encoded(body["savepoint"], found.tensors)
            savepoint = _checked(decode(encoded, stage.fleet, _classes(stage), self._device))
            saved.files.go_on_from(body["positions"])
            saved.good = found.number
            saved.earlier_seconds = float(body["wall_seconds"])
        return savepoint

    def write(self, plan: Run, event: Event) -> None:
        """Keep what a run has said."""
        saved = self._saved[id(plan)]
        if isinstance(event, Snapshot):
            saved.files.write(event.record, event.arrivals)
        elif isinstance(event, Ended):
            saved.files.finish(state_of(plan.task.first_model, event.weights), saved.wall_seconds, event.devices)
        else:
            self._write_checkpoint(plan, saved, event)

    def _write_checkpoint(self, plan: Run, saved: _Saved, savepoint: Savepoint) -> None:
        assert saved.stage is not None
        try:
            encoded = encode(savepoint, saved.stage.fleet, _classes(saved.stage))
            body = {
                "run": fingerprint(plan.config),
                "versions": plan.config["versions"],
                "device": str(self._device),
                "wall_seconds": round(saved.wall_seconds, 3),
                "positions": saved.files.positions(),
                "savepoint": encoded.tree,
            }
            saved.good = checkpoints.write(saved.files.checkpoints, body, encoded.tensors, saved.good)
        except (OSError, InputError) as error:
            if not saved.warned:
                log.warning(
                    "Cannot write a checkpoint to '%s' (%s): the run goes on, and the last checkpoint is kept.",
                    saved.files.folder,
                    getattr(error, "strerror", None) or error,
                )
            saved.warned = True


def _classes(stage: Stage) -> dict[str, type]:
    return classes_of(stage.algorithm) | named([Savepoint, Traffic, Tally, Arrival])


def _checked(savepoint: Any) -> Savepoint:
    """It is a savepoint, before a run relies on it."""
    if not (
        isinstance(savepoint, Savepoint)
        and isinstance(getattr(savepoint.state, "version", None), int)
        and isinstance(savepoint.traffic, Traffic)
        and isinstance(savepoint.tally, Tally)
        and isinstance(savepoint.due, int | float)
    ):
        raise TypeError("it is no savepoint")
    return savepoint


def _check_versions(config: Config, then: dict[str, Any], device: str, device_then: str) -> None:
    """Another machine or other packages may round differently: allowed, but said. Another kind of processor does."""
    if device != device_then:
        raise InputError(
            f"The run was begun on {device_then} and would go on on {device}, with other rounding: use --device {device_then}, "
            "or begin again with --fresh."
        )
    changed = [f"{name} {then.get(name)} → {now}" for name, now in config["versions"].items() if then.get(name) != now]
    if changed:
        log.warning(
            "Going on with other versions than the run began with (%s): last digits may differ.", ", ".join(changed)
        )
