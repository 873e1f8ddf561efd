"""Many runs advance together, and what they want trained at a time is trained in one call.

An update depends on its job alone, so a run's records are the same as when it runs alone: to the last bit, since trainers
keep jobs apart that would change one another's rounding.
"""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from hybridfl.engines import check_fit, closed_form, evaluator_for, trainer_for
from hybridfl.errors import InputError
from hybridfl.evaluation import Evaluator, Scoring
from hybridfl.free_memory import free_bytes
from hybridfl.plan import Run, Stage
from hybridfl.protocol import Job, Update
from hybridfl.run import Moment
from hybridfl.simulation import Simulation
from hybridfl.tally import Draft, Snapshot, Tally
from hybridfl.task import Task
from hybridfl.training import JointTrainer
from hybridfl.vectors import flatten

Playing = Generator[Sequence[Job] | Draft, list[Update] | None, None]
"""A run in virtual time. It yields drafts of its records, and jobs, for which it wants to be sent their updates."""


MakeTrainer = Callable[[Task, int], JointTrainer]
"""The trainer for a task and a seed."""


@dataclass(eq=False)
class _Player:
    """A run under way, with what trains and scores it."""

    plan: Run
    playing: Playing
    trainer: JointTrainer
    evaluator: Evaluator
    wanted: Sequence[Job] = ()
    answer: list[Update] | None = None

    @classmethod
    def of(cls, plan: Run, device: torch.device, make_trainer: MakeTrainer | None) -> _Player:
        check_fit(plan.task)
        stage = Stage.of(plan)
        trainer = make_trainer(stage.task, plan.seed) if make_trainer else trainer_for(stage.task, plan.seed, device)
        evaluator = evaluator_for(stage.task, plan.timing.is_straggler, plan.seed, device)
        return cls(plan, play(plan, stage, device), trainer, evaluator)

    def drafts(self) -> Iterator[Draft]:
        """Go on until jobs have to be trained, or to the end; then nothing is `wanted`."""
        self.wanted = ()
        try:
            said = self.playing.send(self.answer)
            while isinstance(said, Draft):
                yield said
                said = next(self.playing)
            self.wanted = said
        except StopIteration:
            pass
        except InputError as error:
            raise InputError(f"{self.plan.name}, seed {self.plan.seed}: {error}") from None


def play(plan: Run, stage: Stage, device: torch.device) -> Playing:
    """One run, from its first record to its last."""
    simulation = Simulation(stage.fleet, _nobody, stage.timing)
    weights = flatten(stage.task.model).to(device, non_blocking=True)
    state, outbox = plan.algorithm.init(weights, stage.fleet)
    tally = Tally(bytes_a_model=weights.numel() * weights.element_size(), sent=len(outbox.jobs))
    yield tally.draft(0, 0.0, weights)

    every, due = plan.seconds_between_records, 0.0
    while True:
        simulation.send(outbox)
        jobs = simulation.jump()
        if plan.seconds is not None and simulation.now > plan.seconds:
            break
        if jobs:
            updates = yield jobs
            assert updates is not None
            simulation.trained(updates)
        inbox = simulation.receive()
        before = state.version
        state, outbox = plan.algorithm.step(state, inbox)
        tally.count(Moment(inbox, state, outbox))
        is_last = plan.rounds is not None and state.version >= plan.rounds
        # Only the instant that makes a version is worth a record: all that arrived has been merged into it.
        if state.version > before and (inbox.now >= due or is_last):
            yield tally.draft(state.version, inbox.now, state.weights)
            due = (math.floor(inbox.now / every) + 1) * every if every else inbox.now
        if is_last:
            return
    if tally.recorded_seconds < plan.seconds:
        yield tally.draft(state.version, float(plan.seconds), state.weights)


def execute_all(
    plans: Sequence[Run], device: torch.device, make_trainer: MakeTrainer | None = None
) -> Iterator[tuple[Run, Snapshot]]:
    """Play runs in virtual time, as many at once as memory allows: each one's snapshots in their order.

    `make_trainer`: what trains, if not this machine alone. On a GPU the scores of a turn are read while the next turn is
    trained, so the GPU is never idle for a record's sake.
    """
    return _in_lockstep(plans, device, make_trainer) if plans else iter(())


def _in_lockstep(
    plans: Sequence[Run], device: torch.device, make_trainer: MakeTrainer | None
) -> Iterator[tuple[Run, Snapshot]]:
    started = time.perf_counter()
    unscored: deque[tuple[Run, Draft, Scoring]] = deque()

    def finished() -> tuple[Run, Snapshot]:
        plan, draft, scoring = unscored.popleft()
        scores = scoring.scores()
        return plan, draft.scored(scores, time.perf_counter() - started)

    waiting = deque(plans)
    players: list[_Player] = []
    width = runs_that_fit(plans, device)
    while waiting or players:
        while waiting and len(players) < width:
            players.append(_Player.of(waiting.popleft(), device, make_trainer))
        with _undisturbed(plans, device):
            drafts = [(player, draft) for player in players for draft in player.drafts()]
            scorings = _score_together([(player.evaluator, draft) for player, draft in drafts])
        earlier = len(unscored)
        unscored += [(player.plan, draft, scoring) for (player, draft), scoring in zip(drafts, scorings, strict=True)]
        while unscored and unscored[0][2].is_known():
            yield finished()
            earlier -= 1
        players = [player for player in players if player.wanted]
        with _undisturbed(plans, device):
            _train_together(players)
        for _ in range(earlier):
            yield finished()
    while unscored:
        yield finished()


def _train_together(players: Sequence[_Player]) -> None:
    for kind in dict.fromkeys(type(player.trainer) for player in players):
        group = [player for player in players if type(player.trainer) is kind]
        answers = kind.together([(player.trainer, player.wanted) for player in group])
        for player, updates in zip(group, answers, strict=True):
            player.answer = updates


def _score_together(wanted: Sequence[tuple[Evaluator, Draft]]) -> list[Scoring]:
    scorings: dict[int, Scoring] = {}
    for kind in dict.fromkeys(type(evaluator) for evaluator, _ in wanted):
        group = [number for number, (evaluator, _) in enumerate(wanted) if type(evaluator) is kind]
        scores = kind.together([(wanted[number][0], wanted[number][1].weights) for number in group])
        scorings.update(zip(group, scores, strict=True))
    return [scorings[number] for number in range(len(wanted))]


def runs_that_fit(plans: Sequence[Run], device: torch.device) -> int:
    """How many runs may be under way at once: half of what memory is free, if every device of each holds four models."""
    largest = max(4 * len(plan.task.test) * flatten(plan.task.model).nbytes for plan in plans)
    return max(1, free_bytes(device) // 2 // largest)


def _nobody(jobs: Sequence[Job]) -> list[Update]:
    raise AssertionError("Jobs are trained between send and receive.")


@contextmanager
def _undisturbed(plans: Sequence[Run], device: torch.device) -> Iterator[None]:
    """For the length of a turn, PyTorch's threads and Python's collector keep out of the way.

    The closed form brings its own threads, one a core; PyTorch's would wait in busy loops and take the cores from them. The
    collector looks at every object there is, again and again: those that are there already are left out.
    """
    threads = torch.get_num_threads()
    is_frozen = gc.get_freeze_count() > 0
    if closed_form(plans[0].task, device) is not None:
        torch.set_num_threads(1)
    if not is_frozen:
        gc.freeze()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if not is_frozen:
            gc.unfreeze()
