"""What an algorithm owes whoever runs it: each of its answers is looked at, so that a slip in one's own is said in a line.

Nothing here reads a number in a tensor, which on a GPU would have to be waited for.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from hybridfl.errors import InputError, is_single_number, require_positive, require_whole
from hybridfl.protocol import Algorithm, Fleet, Inbox, Job, Outbox, Receipt, S, Vector, Work


def begun(algorithm: Algorithm[S], weights: Vector, fleet: Fleet) -> tuple[S, Outbox]:
    """What `algorithm.init` answers; an `InputError` that names its class if that is not what it owes."""
    answer = algorithm.init(weights, fleet)
    try:
        return _checked(answer, weights, version=0, updates=0)
    except InputError as error:
        raise InputError(f"{type(algorithm).__name__}.init {error}") from None


def stepped(algorithm: Algorithm[S], state: S, inbox: Inbox) -> tuple[S, Outbox]:
    """What `algorithm.step` answers, likewise. Its weights stay what they were: of one shape, one dtype, in one place."""
    weights, version = state.weights, state.version
    answer = algorithm.step(state, inbox)
    try:
        return _checked(answer, weights, version, len(inbox.updates))
    except InputError as error:
        raise InputError(f"{type(algorithm).__name__}.step {error}") from None


def _checked(answer: Any, like: Vector, version: int, updates: int) -> tuple[Any, Outbox]:
    """The answer after the version `version`, whose weights are `like`, to so many updates."""
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not isinstance(answer[1], Outbox):
        raise InputError(f"answered {_kind(answer)}: return a pair, (state, Outbox(...)).")
    state, outbox = answer
    for name in ("version", "weights", "fleet"):
        if not hasattr(state, name):
            raise InputError(f"answered a state without '{name}': give {_kind(state)} version, weights and fleet.")
    if not isinstance(state.version, int):
        raise InputError(f"answered version {state.version!r}, {_kind(state.version)}: make it an int.")
    if state.version < version:
        raise InputError(
            f"answered version {state.version} after {version}: a version only grows, by 1 for each new model."
        )
    _check_vector("weights", state.weights, like)
    _check_jobs(outbox.jobs, state.weights)
    _check_receipts(outbox.receipts, updates)
    return state, outbox


def _check_receipts(receipts: Any, updates: int) -> None:
    if not _are(Receipt, receipts):
        raise InputError(f"answered receipts={receipts!r}: give a tuple with one Receipt for each update.")
    if len(receipts) != updates:
        raise InputError(
            f"answered {len(receipts)} receipts to {updates} updates: give one Receipt for each update of the inbox, in its "
            "order, also for those that are not merged."
        )


def _check_jobs(jobs: Any, weights: Vector) -> None:
    """Jobs of one version share their weights, and mostly their work: each of these is looked at once."""
    if not _are(Job, jobs):
        raise InputError("answered jobs that are no tuple of Job: `jobs_for` makes one.")
    good_weights: Tensor = weights
    good_work: Work | None = None
    for job in jobs:
        if job.weights is not good_weights:
            _check_vector(f"device {job.device} weights", job.weights, weights)
            good_weights = job.weights
        if job.drift is not None:
            _check_vector(f"device {job.device} a drift", job.drift, weights)
        if job.work is not good_work:
            _check_work(job)
            good_work = job.work


def _check_vector(what: str, vector: Any, like: Vector) -> None:
    if not isinstance(vector, Tensor):
        flaw = f"{_kind(vector)}, not a tensor"
    elif vector.shape != like.shape:
        flaw = f"a tensor of shape {list(vector.shape)}"
    elif vector.dtype != like.dtype:
        flaw = f"a tensor of {vector.dtype}"
    elif vector.device != like.device:
        flaw = f"a tensor on {vector.device}"
    elif vector.requires_grad:
        flaw = "a tensor that requires a gradient (detach it, or compute it under `torch.no_grad()`)"
    else:
        return
    raise InputError(
        f"gave {what} that are {flaw}: give what `init` was given, one flat vector of shape {list(like.shape)}, {like.dtype}, "
        f"on {like.device}, without a gradient."
    )


def _check_work(job: Job) -> None:
    """Once for all jobs that share it."""
    work = job.work
    try:
        require_whole("epochs", work.epochs)
        require_whole("batch_size", work.batch_size)
        require_positive("learning_rate", work.learning_rate)
        if work.proximal != 0:
            require_positive("proximal", work.proximal)
        if work.clip != math.inf:
            require_positive("clip", work.clip)
        if not is_single_number(work.part) or not 0 < work.part <= 1:
            raise InputError(f"part={work.part!r} is no part of the work: give a number above 0, 1 at most.")
    except InputError as error:
        raise InputError(f"gave device {job.device} work that cannot be done: {error}") from None


def _are(kind: type, given: Any) -> bool:
    return isinstance(given, tuple | list) and all(isinstance(each, kind) for each in given)


def _kind(value: object) -> str:
    """As it is called in a sentence."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
