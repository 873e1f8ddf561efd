"""Many runs advance together, and what they want trained at a time is trained in one call.

An update depends on its job alone, so a run's records are the same as when it runs alone: to the last bit, since trainers
keep jobs apart that would change one another's rounding.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from hybridfl.engines import closed_form, evaluator_for, trainer_for
from hybridfl.errors import InputError
from hybridfl.evaluation import Evaluator, Scores, Scoring
from hybridfl.free_memory import free_bytes
from hybridfl.plan import Run, Stage
from hybridfl.playing import NEVER, Ended, Often, Playing, Savepoint, play
from hybridfl.protocol import Job, Update, Vector
from hybridfl.tally import Draft, Snapshot
from hybridfl.task import Task
from hybridfl.training import JointTrainer
from hybridfl.trial import watched_closely, watched_for_randomness
from hybridfl.vectors import times_written

Event = Snapshot | Savepoint | Ended


class Saves(Protocol):
    """Where runs go on from, and how often they can be saved."""

    @property
    def often(self) -> Often: ...
    def savepoint(self, plan: Run, stage: Stage) -> Savepoint | None:
        """What a run goes on from; None: its beginning."""


class NoSaves:
    """Every run begins at its beginning, and none is saved."""

    often = NEVER

    def savepoint(self, plan: Run, stage: Stage) -> None:
        return None


MODEL = "A model or its loss"
CLOSELY = 30
"""In this many first turns, NumPy's and Python's global generators are watched too: it takes time to look at them."""
FROZEN_BY_PYTHON = gc.get_freeze_count()
"""From Python 3.12 on, some objects are left out of the collector's sight from the start."""

MakeTrainer = Callable[[Task, int], JointTrainer]
"""The trainer for a task and a seed."""


@dataclass(eq=False)
class _Player:
    """A run under way, with what trains and scores it."""

    plan: Run
    stage: Stage
    playing: Playing
    trainer: JointTrainer
    evaluator: Evaluator
    wanted: Sequence[Job] = ()
    answer: list[Update] | None = None
    has_ended: bool = False
    scoring: Scoring | None = None
    """Of what was said last that has weights: those, and how often that tensor had been written to, are `mark`."""
    mark: tuple[Vector, int] | None = None

    @classmethod
    def of(cls, plan: Run, device: torch.device, make_trainer: MakeTrainer | None, saves: Saves) -> _Player:
        stage = plan.stage
        trainer = make_trainer(stage.task, plan.seed) if make_trainer else trainer_for(stage.task, plan.seed, device)
        evaluator = evaluator_for(stage.task, stage.is_straggler, plan.seed, device)
        playing = play(plan, stage, device, saves.savepoint(plan, stage), saves.often)
        return cls(plan, stage, playing, trainer, evaluator)

    def is_new(self, said: Draft | Ended) -> bool:
        """Whether its weights are to be scored: a run's last model mostly is that of its last record, which has been."""
        before, self.mark = self.mark, (said.weights, times_written(said.weights))
        is_same = before is not None and before[0] is said.weights and before[1] == self.mark[1]
        return not (is_same and isinstance(said, Ended))

    def sayings(self) -> Iterator[Draft | Savepoint | Ended]:
        """Go on until jobs have to be trained, or to the end; then nothing is `wanted`."""
        self.wanted = ()
        try:
            said = self.playing.send(self.answer)
            while isinstance(said, Draft | Savepoint):
                yield said
                said = next(self.playing)
            if isinstance(said, Ended):
                yield said
            else:
                self.wanted = said
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    @property
    def name(self) -> str:
        return f"{self.plan.name}, seed {self.plan.seed}"


def execute_all(
    plans: Sequence[Run],
    device: torch.device,
    make_trainer: MakeTrainer | None = None,
    saves: Saves = NoSaves(),
) -> Iterator[tuple[Run, Event]]:
    """Play runs in virtual time, as many at once as memory allows: each one's snapshots and savepoints in their order.

    `make_trainer`: what trains, if not this machine alone. On a GPU the scores of a turn are read while the next turn is
    trained, so the GPU is never idle for a record's sake.
    """
    if torch.is_autocast_enabled(device.type):
        raise InputError("torch.autocast is on, but devices train in threads of their own without it: leave it out.")
    return _in_lockstep(plans, device, make_trainer, saves) if plans else iter(())


@dataclass(frozen=True, eq=False)
class _Pending:
    """What a run has said, and its scores, which may still be on their way; what has none waits for those before it."""

    player: _Player
    said: Draft | Savepoint | Ended
    scoring: Scoring | None

    def is_known(self) -> bool:
        return self.scoring is None or self.scoring.is_known()

    def events(self) -> Iterator[tuple[Run, Event]]:
        """What comes of it. A run that has diverged ends with that record: what it said meanwhile is not heard any more."""
        player = self.player
        if player.has_ended:
            return
        if isinstance(self.said, Draft):
            assert self.scoring is not None
            scores = self.scoring.scores()
            snapshot = self.said.scored(scores)
            if snapshot.record.has_diverged and snapshot.record.version == 0:
                raise InputError(f"{player.name}: {_no_first_loss(scores)}")
            yield player.plan, snapshot
            if snapshot.record.has_diverged:
                player.has_ended = True
                yield player.plan, Ended(self.said.weights)
        elif isinstance(self.said, Ended):
            assert self.scoring is not None
            player.has_ended = True
            yield player.plan, replace(self.said, devices=player.stage.by_device(self.scoring.scores()))
        else:
            yield player.plan, self.said


def _in_lockstep(
    plans: Sequence[Run], device: torch.device, make_trainer: MakeTrainer | None, saves: Saves
) -> Iterator[tuple[Run, Event]]:
    pending: deque[_Pending] = deque()
    waiting = deque(plans)
    players: list[_Player] = []
    width = runs_that_fit(plans, device)
    turns = itertools.count()
    while waiting or players:
        watched = watched_closely if next(turns) < CLOSELY else watched_for_randomness
        while waiting and len(players) < width:
            players.append(_Player.of(waiting.popleft(), device, make_trainer, saves))
        with _undisturbed(plans, device):
            with watched("An algorithm or a fleet"):
                said = [(player, each) for player in players for each in player.sayings()]
            with watched(MODEL):
                scorings = _scorings(said)
        earlier = len(pending)
        pending += [_Pending(*each, scoring) for each, scoring in zip(said, scorings, strict=True)]
        while pending and pending[0].is_known():
            yield from pending.popleft().events()
            earlier -= 1
        players = [player for player in players if player.wanted and not player.has_ended]
        with _undisturbed(plans, device), watched(MODEL):
            _train_together(players)
        for _ in range(earlier):
            yield from pending.popleft().events()
        players = [player for player in players if not player.has_ended]
    while pending:
        yield from pending.popleft().events()


def _train_together(players: Sequence[_Player]) -> None:
    for kind in dict.fromkeys(type(player.trainer) for player in players):
        group = [player for player in players if type(player.trainer) is kind]
        answers = kind.together([(player.trainer, player.wanted) for player in group])
        for player, updates in zip(group, answers, strict=True):
            player.answer = updates


def _no_first_loss(scores: Scores) -> str:
    samples = "test" if math.isfinite(scores.train_loss) else "training"
    return (
        f"the first model's loss on the {samples} samples is not finite: check the first weights, the loss and the scale of "
        "the inputs."
    )


def _scorings(said: Sequence[tuple[_Player, Draft | Savepoint | Ended]]) -> list[Scoring | None]:
    """Of all that has weights, in one go."""
    new = [(player, each) for player, each in said if not isinstance(each, Savepoint) and player.is_new(each)]
    together = _score_together([(player.evaluator, each.weights) for player, each in new])
    scorings = {id(each): scoring for (_, each), scoring in zip(new, together, strict=True)}
    found: list[Scoring | None] = []
    for player, each in said:
        if not isinstance(each, Savepoint):
            player.scoring = scorings.get(id(each), player.scoring)
        found.append(None if isinstance(each, Savepoint) else player.scoring)
    return found


def _score_together(wanted: Sequence[tuple[Evaluator, Vector]]) -> list[Scoring]:
    scorings: dict[int, Scoring] = {}
    for kind in dict.fromkeys(type(evaluator) for evaluator, _ in wanted):
        group = [number for number, (evaluator, _) in enumerate(wanted) if type(evaluator) is kind]
        scores = kind.together([wanted[number] for number in group])
        scorings.update(zip(group, scores, strict=True))
    return [scorings[number] for number in range(len(wanted))]


def runs_that_fit(plans: Sequence[Run], device: torch.device) -> int:
    """How many runs may be under way at once: half of what memory is free, if every device of each holds four models."""
    largest = max(4 * len(plan.task.test) * plan.task.first_weights.nbytes for plan in plans)
    return max(1, free_bytes(device) // 2 // max(1, largest))


@contextmanager
def _undisturbed(plans: Sequence[Run], device: torch.device) -> Iterator[None]:
    """For the length of a turn, PyTorch's threads and Python's collector keep out of the way.

    The closed form brings its own threads, one a core; PyTorch's would wait in busy loops and take the cores from them. The
    collector looks at every object there is, again and again: those that are there already are left out.
    """
    threads = torch.get_num_threads()
    is_frozen = gc.get_freeze_count() > FROZEN_BY_PYTHON
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
