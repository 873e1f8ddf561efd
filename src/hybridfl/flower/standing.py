"""Where a deployment stands, on the disk: checkpoints, and the journal of what has arrived since."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hybridfl import checkpoints
from hybridfl.codec import Encoded, classes_of, decode, encode, named
from hybridfl.errors import InputError
from hybridfl.flower.deployment import Deployment
from hybridfl.flower.heard import Heard
from hybridfl.flower.journal import Entry, Journal
from hybridfl.flower.roster import Roster
from hybridfl.protocol import Fleet, Job, LocalScores, Outbox
from hybridfl.records import Arrival, fingerprint
from hybridfl.run_folder import RunFolder
from hybridfl.tally import Tally

log = logging.getLogger("flwr.hybridfl")


@dataclass(frozen=True, eq=False)
class Standing:
    """A deployment between two turns of the loop: it goes on from here."""

    state: Any
    outbox: Outbox
    jobs: tuple[Job, ...]
    """On their way."""
    tally: Tally
    heard: Heard
    due: float
    """From when on a record is made of the next version."""


class Keeper:
    """Saves a deployment, and finds where to go on.

    `past` is what arrived after the last checkpoint; `roster` and `now` are those of the checkpoint, and of its end.
    """

    def __init__(self, deployment: Deployment, files: RunFolder, clock: Callable[[], float]) -> None:
        self._files, self._clock = files, clock
        self._classes = classes_of(deployment.guarded) | named([Standing, Tally, Arrival, Heard, LocalScores])
        self._run = fingerprint(deployment.config)
        self._found = checkpoints.newest(files.checkpoints, self._run)
        body = {} if self._found is None else self._found.body
        with checkpoints.making_sense(files.checkpoints):
            self._needed = int(body.get("entries", 0))
            """Entries of the journal before the last checkpoint; those after the one before it are kept too."""
            self.roster = Roster.read(body["roster"]) if body else Roster()
            then = float(body.get("now", 0.0))
            self._earlier = float(body.get("wall_seconds", 0.0))
        self.journal = Journal(files.folder / "journal", self._needed)
        self.past: list[Entry] = [] if self._found is None else self.journal.read()
        self.now = self.past[-1].now if self.past else then
        self._good = None if self._found is None else self._found.number
        self._began_at = self._saved_at = clock()

    @property
    def wall_seconds(self) -> float:
        return self._earlier + self._clock() - self._began_at

    @property
    def age(self) -> float:
        """Seconds since it was last saved."""
        return self._clock() - self._saved_at

    def clear(self) -> None:
        """Begin anew: what an earlier try left before its first checkpoint counts for nothing."""
        self._files.clear()
        self.journal.forget_all()

    def standing(self, fleet: Fleet) -> Standing | None:
        """What to go on from; None: the beginning. The run's files are cut back to it."""
        if self._found is None:
            return None
        for reason in self._found.skipped:
            log.warning("%s", reason)
        with checkpoints.making_sense(self._files.checkpoints):
            self._files.go_on_from(self._found.body["positions"])
            encoded = Encoded(self._found.body["standing"], self._found.tensors)
            standing = decode(encoded, fleet, self._classes, torch.device("cpu"))
            if not isinstance(standing, Standing):
                raise TypeError("no standing")
        arrived = sum(len(entry.arrived) for entry in self.past)
        log.info("Going on from version %d; %d updates have arrived since.", standing.state.version, arrived)
        return standing

    def save(self, standing: Standing, fleet: Fleet, roster: Roster, now: float) -> None:
        """A full disk costs the checkpoint, not the run: the journal has what arrived since the last one."""
        self._saved_at = self._clock()
        try:
            encoded = encode(standing, fleet, self._classes)
            body = {
                "run": self._run,
                "wall_seconds": round(self.wall_seconds, 3),
                "positions": self._files.positions(),
                "entries": self.journal.count,
                "roster": asdict(roster),
                "now": now,
                "standing": encoded.tree,
            }
            self._good = checkpoints.write(self._files.checkpoints, body, encoded.tensors, self._good)
        except (OSError, InputError) as error:
            log.warning("No checkpoint was written (%s): the run goes on.", getattr(error, "strerror", None) or error)
            return
        self.journal.forget(self._needed)
        self._needed = self.journal.count
