"""A device's last answer, on its disk: whoever asks for the same again gets it without training."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hybridfl.checkpoints import write_aside
from hybridfl.flower.wire import Terms
from hybridfl.protocol import Job, LocalScores, Update, Vector


@dataclass(frozen=True)
class Answers:
    """An update depends on its job, the run's terms and the device's data alone; the first two name the file it is kept in."""

    folder: Path

    def find(self, job: Job, terms: Terms) -> Update | None:
        """The answer to this very job, if it was the last one given."""
        try:
            with safe_open(self._path(job, terms), "pt") as file:
                text, checksum = (file.metadata()[name] for name in ("update", "checksum"))
                weights = file.get_tensor("weights")
            if checksum != _checksum(text, weights):
                return None  # it is computed again, to the same
            said = json.loads(text)
            scores = None if said["scores"] is None else LocalScores(**said["scores"])
            return Update(job, weights, said["num_steps"], said["train_loss"], scores)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError):
            return None

    def keep(self, update: Update, terms: Terms) -> None:
        """In place of the device's answer before. A disk that is full or read-only costs the answer's keeping only."""
        path = self._path(update.job, terms)
        said = {
            "num_steps": update.num_steps,
            "train_loss": float(update.train_loss),
            "scores": None if update.scores is None else asdict(update.scores),
        }
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            before = [old for old in self.folder.glob(f"{update.job.device}-*.safetensors") if old != path]
            weights, text = update.weights.contiguous(), json.dumps(said)
            write_aside(path, save({"weights": weights}, {"update": text, "checksum": _checksum(text, weights)}))
            for old in before:
                old.unlink(missing_ok=True)

    def _path(self, job: Job, terms: Terms) -> Path:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((job.device, job.version, job.repeat, job.work, terms)).encode())
        for vector in (job.weights, job.drift):
            if vector is not None:
                digest.update(vector.contiguous().numpy().data)
        return self.folder / f"{job.device}-{digest.hexdigest()}.safetensors"


def _checksum(said: str, weights: Vector) -> str:
    about = json.dumps([said, str(weights.dtype), list(weights.shape)]).encode()
    return hashlib.blake2b(about + weights.cpu().numpy().tobytes(), digest_size=16).hexdigest()
