"""The same runs on many machines: jobs of one run, or whole runs, spread over the workers of a Ray cluster.

A job's answer depends on the job alone and a run's records on the run alone, so it does not matter who computes them, and
what a worker had in hand when it died is simply given to another.
"""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from hybridfl.engines import CPU, trainer_for
from hybridfl.errors import InputError
from hybridfl.lockstep import Event, NoSaves, Saves, execute_all
from hybridfl.plan import Run, Stage
from hybridfl.playing import Often, Savepoint
from hybridfl.protocol import Job, Update
from hybridfl.tally import Snapshot
from hybridfl.task import Task
from hybridfl.threads import shared_out
from hybridfl.training import JointTrainer

MOST_DEATHS = 5
"""So many workers lost over one piece of work, and it is given up: it is likely the work that kills them."""


class Cluster:
    """The workers of a Ray cluster, one for each CPU that is free; a worker's data are sent to it once, and stay."""

    def __init__(self, address: str) -> None:
        self._ray = connected(address)
        cpus = int(self._ray.available_resources().get("CPU", 0))
        kind = self._ray.remote(num_cpus=1, max_restarts=-1, runtime_env={"env_vars": _ENVIRONMENT})(Worker)
        asked = {worker.pid.remote(): worker for worker in (kind.remote() for _ in range(cpus))}
        # Somebody else may have taken a CPU meanwhile: who has not got one by now is not waited for.
        started, _ = self._ray.wait(list(asked), num_returns=cpus, timeout=_START_SECONDS) if asked else ([], [])
        for reference in asked.keys() - set(started):
            self._ray.kill(asked[reference])
        self.workers = [asked[reference] for reference in started]
        if not self.workers:
            raise InputError("The Ray cluster has no free CPU: wait for what else runs on it, or add machines.")
        self._placed: dict[int, tuple[Task, Placed]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            self._ray.kill(worker)

    def placed(self, task: Task) -> Placed:
        """A task in the cluster's store, from which each worker fetches it once."""
        if id(task) not in self._placed:
            self._placed[id(task)] = task, Placed(self._ray.put(task))
        return self._placed[id(task)][1]

    def put(self, savepoint: Savepoint | None) -> Placed | None:
        """A savepoint in the cluster's store, for whoever goes on from it."""
        return None if savepoint is None else Placed(self._ray.put(savepoint))

    def answers(self, pieces: Sequence[Piece]) -> list[Any]:
        """What each piece of work returns."""
        found = dict(self.as_they_come(pieces, lambda number, answer: True))
        return [found[number] for number in range(len(pieces))]

    def as_they_come(self, pieces: Sequence[Piece], is_done: Callable[[int, Any], bool]) -> Iterator[tuple[int, Any]]:
        """(number of the piece, answer), whenever one is ready. A worker keeps a piece until it is done, or dies over it."""
        waiting, deaths = deque(range(len(pieces))), [0] * len(pieces)
        idle = deque(self.workers)
        busy: dict[Any, tuple[int, Any]] = {}
        while waiting or busy:
            while waiting and idle:
                number, worker = waiting.popleft(), idle.popleft()
                busy[pieces[number](worker)] = number, worker
            ready, _ = self._ray.wait(list(busy))
            for reference in ready:
                number, worker = busy.pop(reference)
                try:
                    answer = self._ray.get(reference)
                except _deaths(self._ray):
                    deaths[number] += 1
                    if deaths[number] == MOST_DEATHS:
                        raise InputError(
                            f"{MOST_DEATHS} Ray workers died over the same piece of work: give them more memory."
                        ) from None
                    idle.append(worker)  # Ray starts it again
                    waiting.append(number)
                    continue
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, InputError) else error from None
                yield number, answer
                if is_done(number, answer):
                    idle.append(worker)
                else:
                    busy[pieces[number](worker)] = number, worker


Piece = Callable[[Any], Any]
"""Given a worker, asks it for something, and returns Ray's reference to the answer."""
_START_SECONDS = 60.0
_ENVIRONMENT = {"HYBRIDFL_THREADS": "1", "OMP_NUM_THREADS": "1"}


def connected(address: str) -> Any:
    """Ray, connected to the cluster at `address`; `auto`: to the one this machine belongs to, else to one started here."""
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install 'hybridfl[ray]'.") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if ray.is_initialized():
        return ray
    _check_answers(address)
    try:
        ray.init(address=address, **quiet)
    except ConnectionError:
        if address != "auto":
            raise _nobody_at(address) from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(include_dashboard=False, **quiet)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"Ray cannot connect to '{address}': {str(error).splitlines()[0]}") from None
    return ray


def _check_answers(address: str) -> None:
    """Ray itself tries for minutes where nobody is."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"'{address}' is no address of a Ray cluster: give HOST:PORT, or auto.")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError):
        raise _nobody_at(address) from None


def _nobody_at(address: str) -> InputError:
    return InputError(f"No Ray cluster answers at '{address}': start one with `ray start --head`.")


def _deaths(ray: Any) -> tuple[type[Exception], ...]:
    """How Ray says that a worker is gone."""
    gone = ray.exceptions
    return gone.RayActorError, gone.WorkerCrashedError, gone.OutOfMemoryError, gone.NodeDiedError


@dataclass(frozen=True, eq=False)
class Placed:
    """Where a task lies in the cluster's store. (Ray would fetch a bare reference anew for every call.)"""

    reference: Any

    @property
    def name(self) -> str:
        return str(self.reference.hex())


@dataclass(frozen=True, eq=False)
class _Errand:
    """Jobs to train, with their weights apart: jobs of one version share them, so they travel once."""

    task: Placed
    seed: int
    jobs: tuple[Job, ...]
    which: tuple[int, ...]
    weights: tuple[Any, ...]

    @classmethod
    def of(cls, task: Placed, seed: int, jobs: Sequence[Job]) -> _Errand:
        distinct = {id(job.weights): job.weights for job in jobs}
        places = {key: place for place, key in enumerate(distinct)}
        return cls(
            task,
            seed,
            tuple(replace(job, weights=_NOTHING) for job in jobs),
            tuple(places[id(job.weights)] for job in jobs),
            tuple(weights.numpy() for weights in distinct.values()),
        )

    def unpacked(self) -> list[Job]:
        weights = [torch.from_numpy(each.copy()) for each in self.weights]
        return [replace(job, weights=weights[place]) for job, place in zip(self.jobs, self.which, strict=True)]


_NOTHING = torch.zeros(0)


@dataclass(frozen=True, eq=False)
class _Stand:
    """Where a run stands: its last savepoint, and how many of the snapshots after it are known."""

    savepoint: Placed | None
    often: Often
    known: int = 0


@dataclass(frozen=True, eq=False)
class _GoOn:
    """`Saves` for a worker's run."""

    from_here: Savepoint | None
    often: Often

    def savepoint(self, plan: Run, stage: Stage) -> Savepoint | None:
        return self.from_here


def _after(events: Iterator[Event], known: int) -> Iterator[Event]:
    """What comes after the first `known` snapshots."""
    for event in events:
        if known == 0:
            yield event
        known -= isinstance(event, Snapshot) and known > 0


class Worker:
    """What runs in a worker's process: it keeps the tasks, their trainers, and the run it has begun."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._trainers: dict[tuple[str, int], JointTrainer] = {}
        self._playing: tuple[str, Iterator[Event]] | None = None

    def pid(self) -> int:
        """The process, as its machine counts it."""
        return os.getpid()

    def train(self, errands: Sequence[_Errand]) -> list[list[tuple[Any, int, float]]]:
        """(weights, steps, loss) of each job of each errand."""
        return [self._train(errand) for errand in errands]

    def _train(self, errand: _Errand) -> list[tuple[Any, int, float]]:
        name = errand.task.name, errand.seed
        if name not in self._trainers:
            self._trainers[name] = trainer_for(self._task(errand.task), errand.seed, CPU)
        updates = self._trainers[name](errand.unpacked())
        return [(update.weights.numpy(), update.num_steps, float(update.train_loss)) for update in updates]

    def play(self, name: str, task: Placed, rest: dict[str, Any], stand: _Stand) -> tuple[list[Event], bool]:
        """The next that a run says from where it stands on, and whether it has ended."""
        import ray

        if self._playing is None or self._playing[0] != name:
            saves = _GoOn(None if stand.savepoint is None else ray.get(stand.savepoint.reference), stand.often)
            events = (event for _, event in execute_all([Run(self._task(task), **rest)], CPU, saves=saves))
            self._playing = name, _after(events, stand.known)
        found = [_light(event) for event in itertools.islice(self._playing[1], _EVENTS_AT_A_TIME)]
        return found, len(found) < _EVENTS_AT_A_TIME

    def _task(self, placed: Placed) -> Task:
        import ray

        if placed.name not in self._tasks:
            self._tasks[placed.name] = ray.get(placed.reference)
        return self._tasks[placed.name]


_EVENTS_AT_A_TIME = 10


def _light(event: Event) -> Event:
    """A snapshot travels without its weights: who asked for the run on a cluster keeps its record only."""
    return replace(event, weights=_NOTHING) if isinstance(event, Snapshot) else event


class RayTrainer:
    """What the task's own trainer computes, by the workers of a cluster: the same bits.

    Jobs are dealt out by their number of samples, largest first; those that must stay together for their rounding do.
    """

    def __init__(self, cluster: Cluster, task: Task, seed: int) -> None:
        self._cluster, self._task, self._seed = cluster, task, seed
        self._local = trainer_for(task, seed, CPU)

    def __call__(self, jobs: Sequence[Job]) -> list[Update]:
        return self.together([(self, jobs)])[0]

    @staticmethod
    def together(wanted: Sequence[tuple[RayTrainer, Sequence[Job]]]) -> list[list[Update]]:
        """One piece of work for each worker, with jobs of all trainers in it."""
        cluster = wanted[0][0]._cluster
        hands = [_by_trainer(hand) for hand in _dealt_out(wanted, len(cluster.workers))]
        answers = cluster.answers([_train_piece(wanted, hand) for hand in hands])
        updates: list[dict[int, Update]] = [{} for _ in wanted]
        for hand, answer in zip(hands, answers, strict=True):
            for (number, places), trained in zip(hand.items(), answer, strict=True):
                for place, (weights, steps, loss) in zip(places, trained, strict=True):
                    job = wanted[number][1][place]
                    updates[number][place] = Update(job, torch.from_numpy(weights.copy()), steps, loss)
        return [[own[place] for place in range(len(own))] for own in updates]

    def bundles(self, jobs: Sequence[Job]) -> list[list[int]]:
        return self._local.bundles(jobs)

    def errand(self, jobs: Sequence[Job]) -> _Errand:
        """These jobs, as they travel."""
        return _Errand.of(self._cluster.placed(self._task), self._seed, jobs)

    def load(self, jobs: Sequence[Job]) -> int:
        """How many samples these jobs visit."""
        return sum(int(self._task.train.num_samples[job.device]) * job.work.epochs for job in jobs)


_Place = tuple[int, int]
"""(number of the trainer, place of the job among its jobs)."""


def _dealt_out(wanted: Sequence[tuple[RayTrainer, Sequence[Job]]], workers: int) -> list[list[_Place]]:
    bundles = [(number, bundle) for number, (own, jobs) in enumerate(wanted) for bundle in own.bundles(jobs)]
    loads = [wanted[number][0].load([wanted[number][1][place] for place in bundle]) for number, bundle in bundles]
    return [
        [(bundles[i][0], place) for i in hand for place in bundles[i][1]]
        for hand in shared_out(np.array(loads), workers)
    ]


def _by_trainer(hand: Sequence[_Place]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for number, place in sorted(hand):
        places.setdefault(number, []).append(place)
    return places


def _train_piece(wanted: Sequence[tuple[RayTrainer, Sequence[Job]]], hand: dict[int, list[int]]) -> Piece:
    errands = [wanted[number][0].errand([wanted[number][1][place] for place in hand[number]]) for number in hand]
    return lambda worker: worker.train.remote(errands)


def execute_on_cluster(plans: Sequence[Run], cluster: Cluster, saves: Saves = NoSaves()) -> Iterator[tuple[Run, Event]]:
    """Play runs on a cluster's workers, each run on one of them: each one's snapshots and savepoints in their order.

    A run whose worker died goes on elsewhere from its last savepoint, and what is known of it already is passed over: it would
    be the same.
    """
    stands = [_Stand(cluster.put(saves.savepoint(plan, plan.stage)), saves.often) for plan in plans]
    names = [uuid.uuid4().hex for _ in plans]

    def piece(number: int) -> Piece:
        plan = plans[number]
        task = cluster.placed(plan.task)
        rest = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "task"}
        return lambda worker: worker.play.remote(names[number], task, rest, stands[number])

    pieces = [piece(number) for number in range(len(plans))]
    for number, (events, _) in cluster.as_they_come(pieces, lambda number, answer: bool(answer[1])):
        for event in events:
            if isinstance(event, Snapshot):
                stands[number] = replace(stands[number], known=stands[number].known + 1)
            elif isinstance(event, Savepoint):
                stands[number] = _Stand(cluster.put(event), saves.often)
            yield plans[number], event
