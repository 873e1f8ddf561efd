"""What goes over the wire: jobs, updates and enrolments as Flower's records. Weights are arrays of numbers, never pickles."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from hybridfl.protocol import Job, LocalScores, Update, Vector, Work

ENROL, TRAIN = "query.enrol", "train"
"""Types of messages."""

_WEIGHTS, _DRIFT = "weights", "drift"
_HEADER = 1024
"""Bytes that an array may take on the wire besides its numbers."""


MOST_SAMPLES = 10**12
"""Nobody holds more."""
MOST_LOSS = 1e6
"""A loss beyond this is nobody's."""
NAMELESS = "node-"
"""What the names of those begin with that have given none."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Unreadable(ValueError):  # noqa: N818 - whoever catches it reads what happened
    """An answer is not what was asked for; the message says what it is instead."""


def plain(words: object, most: int = 200) -> str:
    """What a stranger says, fit for a log: short, in one line, and nothing that a terminal would act on."""
    line = " ".join(str(words)[: 2 * most].split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:most]


@dataclass(frozen=True)
class Enrolment:
    """What a device says of itself. `name`: what it is known by when it comes back under another node id; empty: by that."""

    num_samples: int
    name: str = ""

    def name_of(self, node: int) -> str:
        """What its node is known by."""
        return self.name or f"{NAMELESS}{node}"


@dataclass(frozen=True)
class Terms:
    """What all jobs of a run have in common."""

    seed: int = 0
    """With a job's numbers it decides which batches its device sees."""
    with_scores: bool = False
    """Whether devices are to score the weights they receive."""
    run: str = ""
    """What tells the run from others with the same seed."""


def job_content(job: Job, terms: Terms) -> RecordDict:
    """A job for its device."""
    arrays = {_WEIGHTS: job.weights} | ({} if job.drift is None else {_DRIFT: job.drift})
    config = {"device": job.device, "version": job.version, "repeat": job.repeat, "sent_at": job.sent_at}
    return RecordDict(
        {
            "arrays": ArrayRecord({name: _array(vector) for name, vector in arrays.items()}),
            "job": ConfigRecord({**config}),
            "terms": ConfigRecord(asdict(terms)),
            "work": ConfigRecord(asdict(job.work)),
        }
    )


def read_job(content: RecordDict) -> tuple[Job, Terms]:
    """On the device."""
    arrays = content.array_records["arrays"]
    config, work, terms = (content.config_records[name] for name in ("job", "work", "terms"))
    job = Job(
        device=int(_number(config, "device")),
        version=int(_number(config, "version")),
        weights=_vector(arrays[_WEIGHTS]),
        work=Work(**{field.name: work[field.name] for field in fields(Work)}),  # type: ignore[arg-type]
        sent_at=_number(config, "sent_at"),
        repeat=int(_number(config, "repeat")),
        drift=_vector(arrays[_DRIFT]) if _DRIFT in arrays else None,
    )
    return job, Terms(int(_number(terms, "seed")), bool(terms["with_scores"]), str(terms["run"]))


def update_content(update: Update) -> RecordDict:
    """A device's answer."""
    metrics: dict[str, int | float] = {"num_steps": update.num_steps, "train_loss": float(update.train_loss)}
    if update.scores is not None:
        metrics |= {f"test_{name}": value for name, value in asdict(update.scores).items()}
    return RecordDict(
        {"arrays": ArrayRecord({_WEIGHTS: _array(update.weights)}), "metrics": MetricRecord(metrics)}  # type: ignore[arg-type]
    )


def read_update(job: Job, content: RecordDict) -> Update:
    """The update in an answer, whatever its numbers are: those are for the guard. Raises `Unreadable` if there is none.

    Weights are of the model's shape and dtype or are none. An array that brings much more than that is not even looked at.
    """
    try:
        array = content.array_records["arrays"][_WEIGHTS]
        metrics = content.metric_records["metrics"]
        num_steps, train_loss = metrics["num_steps"], metrics["train_loss"]
        said = [metrics[f"test_{field.name}"] for field in fields(LocalScores)] if "test_loss" in metrics else None
    except (KeyError, TypeError, AttributeError):
        raise Unreadable(f"an answer without weights, steps and loss: {_outline(content)}") from None
    if len(array.data) > job.weights.numel() * 8 + _HEADER:
        raise Unreadable(f"an answer of {len(array.data):,} bytes where {job.weights.numel()} weights were asked for")
    if not isinstance(num_steps, int) or not isinstance(train_loss, int | float):
        raise Unreadable("an answer whose number of steps or loss is no number")
    weights = _vector(array)
    if weights.shape != job.weights.shape:
        raise Unreadable(f"shape {list(weights.shape)} instead of {list(job.weights.shape)}")
    if weights.dtype != job.weights.dtype:
        raise Unreadable(f"{weights.dtype} instead of {job.weights.dtype}")
    # A loss is for the records alone, and one beyond all bounds is not listened to: see `Heard`.
    loss = float(train_loss) if abs(train_loss) <= MOST_LOSS else math.nan
    return Update(job, weights, num_steps, loss, None if said is None else _scores(*said))


def enrolment_content(enrolment: Enrolment) -> RecordDict:
    """What a device answers when it is asked who it is."""
    return RecordDict({"enrolment": ConfigRecord(asdict(enrolment))})


def read_enrolment(content: RecordDict) -> Enrolment:
    """Raises `Unreadable` if a device said nothing of the kind."""
    try:
        said = content.config_records["enrolment"]
        num_samples, name = said["num_samples"], said["name"]
    except (KeyError, TypeError, AttributeError):
        raise Unreadable(f"no enrolment: {_outline(content)}") from None
    is_count = isinstance(num_samples, int) and 1 <= num_samples <= MOST_SAMPLES
    if not is_count or not isinstance(name, str) or len(name) > 200:
        raise Unreadable(f"an enrolment with {plain(num_samples, 20)} samples and the name {plain(name, 20)!r}")
    if not name.isprintable() or name.startswith(NAMELESS):
        raise Unreadable(
            f"the name {plain(name, 40)!r}: give it one that can be printed and does not begin with '{NAMELESS}'"
        )
    return Enrolment(int(num_samples), name)  # type: ignore[arg-type]  # it is one, as was just checked


def _array(vector: Vector) -> Array:
    return Array(vector.detach().cpu().numpy())


def _vector(array: Array) -> Vector:
    """A tensor with memory of its own.

    Of numpy's format only the plain case is read, an array's header and as many bytes as it says: a file may also be an
    archive, hold objects, or claim to be larger than any memory.
    """
    try:
        file = io.BytesIO(array.data)
        read_header = _HEADERS[np.lib.format.read_magic(file)]
        shape, _, dtype = read_header(file)
        numbers = np.frombuffer(array.data, dtype, offset=file.tell())
        return torch.from_numpy(numbers.reshape(shape).copy())
    except Exception as error:  # whatever a stranger's bytes bring about: numpy alone raises a dozen kinds
        raise Unreadable(f"an array that cannot be read ({type(error).__name__}: {plain(error, 80)})") from None


def _scores(loss: Any, accuracy: Any, num_samples: Any) -> LocalScores | None:
    """Scores that cannot be true are none: they have no part in training, so nothing else is refused for them."""
    if not all(isinstance(n, int | float) for n in (loss, accuracy)) or not isinstance(num_samples, int):
        return None
    can_be_true = abs(loss) <= MOST_LOSS and 0 <= accuracy <= 1 and 1 <= num_samples <= MOST_SAMPLES
    return LocalScores(float(loss), float(accuracy), num_samples) if can_be_true else None


def _number(config: ConfigRecord, name: str) -> float:
    value = config[name]
    if not isinstance(value, int | float):
        raise Unreadable(f"{name} is {plain(value, 20)!r}")
    return value


def _outline(content: object) -> str:
    return (
        f"it has {', '.join(plain(name, 20) for name in list(content)[:5]) or 'nothing'}"
        if isinstance(content, RecordDict)
        else "nothing"
    )
