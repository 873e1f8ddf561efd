"""All that arrived since the last checkpoint, on the disk before anything is made of it.

Flower hands an answer over once. A server that dies with it would have to ask its device again; one that wrote it down first
only has to read it. Algorithms are pure: the same arrivals lead to the same state, so nothing else needs to be kept.

Every entry has a checksum, without which a flipped bit would be another model; those of earlier versions have none, and are
read as they are. An entry that was being written when the server died does not have its name yet, and counts for nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from hybridfl.checkpoints import write_aside
from hybridfl.codec import Encoded, decode, encode, named
from hybridfl.errors import InputError
from hybridfl.flower.roster import Roster
from hybridfl.flower.wire import plain
from hybridfl.protocol import Fleet, Inbox, Job, LocalScores, Lost, Outbox, Update, Vector


@dataclass(frozen=True, eq=False)
class Arrived:
    """An update without its job, which is known by its device."""

    device: int
    weights: Vector
    num_steps: int
    train_loss: float
    scores: LocalScores | None


@dataclass(frozen=True)
class Gone:
    """A lost job, known by its device."""

    device: int
    reason: str
    is_fault: bool


@dataclass(frozen=True, eq=False)
class Entry:
    """One inbox, who belongs to the fleet, and who was online then."""

    now: float
    arrived: tuple[Arrived, ...]
    gone: tuple[Gone, ...]
    joined: frozenset[int]
    roster: Roster
    online: frozenset[int]


_CLASSES = named([Entry, Arrived, Gone, Roster, LocalScores])
_NO_FLEET = Fleet(torch.zeros(0).numpy(), torch.zeros(0).numpy())


class Journal:
    """One file an entry, numbered from the start of the run."""

    def __init__(self, folder: Path, count: int = 0) -> None:
        """`count`: how many entries there have been before the first one to be written or read."""
        self._folder = folder
        self.count = count

    def write(self, entry: Entry) -> None:
        """It is on the disk when this returns."""
        encoded = encode(entry, _NO_FLEET, _CLASSES)
        # safetensors wants one tensor at least
        tensors = encoded.tensors or {"none": torch.zeros(0)}
        number, tree = str(self.count + 1), json.dumps(encoded.tree)
        checksum = _checksum(number, tree, tensors)
        content = safetensors.torch.save(tensors, {"number": number, "entry": tree, "checksum": checksum})
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_aside(self._path(self.count + 1), content)
        except OSError as error:
            raise InputError(
                f"Cannot write down what has arrived in '{self._folder}' ({error.strerror}): the run has stopped. Make room, "
                "then run the same again: it goes on from here, and asks again for what was not written."
            ) from None
        self.count += 1

    def read(self) -> list[Entry]:
        """The entries that follow, up to the first that is not there; from now on those count too."""
        entries = []
        while (path := self._path(self.count + 1)).exists():
            entries.append(_read(path, self.count + 1))
            self.count += 1
        for number, path in self._files():
            if number > self.count:  # after a gap: they would pass for what is written next
                path.unlink(missing_ok=True)
        return entries

    def forget_all(self) -> None:
        """None of them is needed any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self, count: int) -> None:
        """The first so many are not needed any more."""
        for number, path in self._files():
            if number <= count:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, Path]]:
        return [(int(path.stem), path) for path in self._folder.glob("*.safetensors") if path.stem.isdecimal()]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"


def _read(path: Path, number: int) -> Entry:
    try:
        with safe_open(path, "pt") as file:
            said = file.metadata()
            if said["number"] != str(number):
                raise ValueError(f"it is number {said['number']}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            if "checksum" in said and said["checksum"] != _checksum(said["number"], said["entry"], tensors):
                raise ValueError("it does not have its checksum")
            tree = json.loads(said["entry"])
        entry = decode(Encoded(tree, tensors), _NO_FLEET, _CLASSES, torch.device("cpu"))
        if not isinstance(entry, Entry):
            raise ValueError("it is no entry")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"'{path}' is not what was written ({plain(error, 300)}): put it back, or remove it and all after it, whose "
            "answers are then asked for again."
        ) from None
    return entry


def _checksum(number: str, tree: str, tensors: Mapping[str, torch.Tensor]) -> str:
    checksum = hashlib.blake2b(json.dumps([number, tree]).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        checksum.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()


class Recallable(Protocol):
    """A transport whose fleet can be told what it was."""

    roster: Roster
    online_devices: frozenset[int]

    @property
    def fleet(self) -> Fleet: ...
    def send(self, outbox: Outbox) -> None: ...
    def receive(self) -> Inbox: ...
    def recall(self, roster: Roster, online: frozenset[int]) -> None: ...


class Journaled:
    """A transport that first says again what it has said before, and writes down all that is new.

    `jobs` are those that were on their way when the run was saved. Whatever is on its way when the past ends is sent again.
    `until`: when to wake up at the latest, to end the run.
    """

    def __init__(
        self,
        transport: Recallable,
        journal: Journal,
        past: Iterable[Entry] = (),
        jobs: Iterable[Job] = (),
        until: float | None = None,
    ) -> None:
        self._transport, self._journal = transport, journal
        self._past = deque(past)
        self.in_flight = {job.device: job for job in jobs}
        self._unsent = dict(self.in_flight)
        self._wake_at: float | None = None
        self._until = until

    @property
    def fleet(self) -> Fleet:
        return self._transport.fleet

    @property
    def is_live(self) -> bool:
        """Whether the past is over."""
        return not self._past

    def send(self, outbox: Outbox) -> None:
        """Nothing is sent before the next `receive`: it may be known already what became of it."""
        for job in outbox.jobs:
            if job.device in self.in_flight:
                busy_with = self.in_flight[job.device].version
                raise InputError(
                    f"Device {job.device} is busy with version {busy_with}: an algorithm may send a job only to devices that "
                    "are free."
                )
            self.in_flight[job.device] = self._unsent[job.device] = job
        instants = [at for at in (outbox.wake_at, self._until) if at is not None]
        self._wake_at = min(instants, default=None)

    def receive(self) -> Inbox:
        inbox = self._recalled(self._past.popleft()) if self._past else self._new()
        for device in inbox.devices - inbox.joined:
            del self.in_flight[device]
            self._unsent.pop(device, None)
        return inbox

    def _new(self) -> Inbox:
        self._transport.send(Outbox(tuple(self._unsent.values()), self._wake_at))
        self._unsent.clear()
        inbox = self._transport.receive()
        self._journal.write(
            Entry(
                inbox.now,
                tuple(
                    Arrived(u.job.device, u.weights, u.num_steps, float(u.train_loss), u.scores) for u in inbox.updates
                ),
                tuple(Gone(lost.job.device, lost.reason, lost.is_fault) for lost in inbox.lost),
                inbox.joined,
                self._transport.roster,
                self._transport.online_devices,
            )
        )
        return inbox

    def _recalled(self, entry: Entry) -> Inbox:
        self._transport.recall(entry.roster, entry.online)
        jobs = self.in_flight
        return Inbox(
            entry.now,
            tuple(Update(jobs[a.device], a.weights, a.num_steps, a.train_loss, a.scores) for a in entry.arrived),
            tuple(Lost(jobs[gone.device], gone.reason, gone.is_fault) for gone in entry.gone),
            self.fleet if entry.joined else None,
            entry.joined,
        )
