"""The paper's two theorems against what is measured: F(w_t) − F*, its rate in 1/(t + τ), and min ‖∇F(w_t)‖²."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.engines import trainer_for
from hybridfl.interval import Interval
from hybridfl.paper import theory
from hybridfl.paper.results import Result, of
from hybridfl.paper.study import Arm, Study
from hybridfl.paper.theory import Constants, Floats, Problem
from hybridfl.paper.verdict import DRIFT, NOT_ASKED, OURS, PRINTED, Book, Claim, Finding, Judgement, at_least, judged
from hybridfl.plan import Run
from hybridfl.run import Moment, run
from hybridfl.simulation import Simulation
from hybridfl.spelling import read_task
from hybridfl.task import Task
from hybridfl.tasks import PAPER_L2
from hybridfl.timing import PaperDelays

MAX_DELAY = 10
CLASSES = 10
CONSTANT_RATE = 0.01
EVERY = 10
"""Constants are the greatest over every tenth version."""
FALLING, CONSTANT = FullWork(), FullWork(learning_rate=ConstantRate(CONSTANT_RATE))
"""Theorem 1 is about a falling rate, Theorem 2 about a constant one; each has the constants of its own runs."""


def measured(study: Study, data_dir: Path | None) -> dict[str, Any]:
    """By seed: F*, the theorems' constants, and min ‖∇F‖² with a constant rate."""
    return {"seeds": [_measured(study, seed, data_dir) for seed in range(study.seeds)]}


def _measured(study: Study, seed: int, data_dir: Path | None) -> dict[str, Any]:
    task = read_task(study.task).build(study.devices, seed, data_dir)
    problem = Problem.of(task.train, CLASSES, PAPER_L2)
    lowest = theory.optimum(problem)
    return {
        "minimum": lowest.value,
        "certified": lowest.certified,
        "start": problem.value_and_gradient(task.first_weights.double().numpy(), theory.EVERYTHING)[0],
        "falling": {
            PRINTED: _falling(problem, task, HFL.as_printed(local=FALLING), study.rounds, seed),
            OURS: _falling(problem, task, HFL(local=FALLING), study.rounds, seed),
        },
        "constant": {
            PRINTED: _constant(problem, task, HFL.as_printed(local=CONSTANT), study.rounds, seed),
            OURS: _constant(problem, task, HFL(local=CONSTANT), study.rounds, seed),
        },
    }


def _falling(problem: Problem, task: Task, algorithm: HFL, rounds: int, seed: int) -> dict[str, Any]:
    plan = Run(task, algorithm, PaperDelays(0.9, MAX_DELAY), rounds=rounds, seed=seed)
    return {"constants": asdict(_constants(problem, plan, *_followed(plan)))}


def _constant(problem: Problem, task: Task, algorithm: HFL, rounds: int, seed: int) -> dict[str, Any]:
    plan = Run(task, algorithm, PaperDelays(0.9, MAX_DELAY), rounds=rounds, seed=seed)
    models, longest = _followed(plan)
    slopes = [problem.gradient(weights, theory.EVERYTHING) for weights in models]
    squares = np.minimum.accumulate([float(slope @ slope) for slope in slopes])
    return {
        "constants": asdict(_constants(problem, plan, models, longest)),
        "versions": list(range(1, len(models), 5)),
        "least_squared_gradient": [float(f"{square:.4g}") for square in squares[1::5]],
    }


def _followed(plan: Run) -> tuple[list[Floats], float]:
    """The weights of every version, and the longest accumulated gradient."""
    models, longest = [plan.task.first_weights.double().numpy()], 0.0
    for moment in _moments(plan):
        longest = max([longest, *(float(update.gradient.norm()) for update in moment.inbox.updates)])
        if moment.state.version >= len(models):
            models.append(moment.state.weights.double().numpy())
    return models, longest


def _constants(problem: Problem, plan: Run, models: Sequence[Floats], longest: float) -> Constants:
    few = models[:: EVERY if len(models) > EVERY else 1]
    return Constants(
        mu=theory.convexity(PAPER_L2),
        smooth=theory.smoothness(problem),
        gradient=longest,
        stochastic=theory.stochastic(problem, few, 64, np.random.default_rng(plan.seed)),
        dissimilarity=theory.dissimilarity(problem, few),
        normal_share=float(problem.shares[~plan.stage.is_straggler].sum()),
        taylor=theory.taylor(problem, few, 1),
        delay=MAX_DELAY,
    )


def _moments(plan: Run) -> Iterator[Moment[Any]]:
    """A run, moment by moment, with the weights of every version."""
    stage = plan.stage
    trainer = trainer_for(stage.task, plan.seed)
    simulation = Simulation(stage.fleet, trainer, stage.timing, stage.timing.comes_online, stage.timing.answer)
    state, outbox = stage.algorithm.init(stage.task.first_weights, stage.fleet)
    for moment in run(stage.algorithm, simulation, state, outbox):
        yield moment
        if plan.rounds is not None and moment.state.version >= plan.rounds:
            return


def first_bound(seed: dict[str, Any], label: str, versions: Floats) -> Floats:
    """Theorem 1's, on F(w_t) − F*."""
    return Constants(**seed["falling"][label]["constants"]).convex_bound(versions)


def gaps(losses: tuple[float, ...], seed: dict[str, Any]) -> Floats:
    """F(w_t) − F*."""
    return np.array(losses) - float(seed["minimum"])


def squared_gradients(seed: dict[str, Any], label: str) -> tuple[Floats, Floats, Floats]:
    """(T, min ‖∇F‖² until then, Theorem 2's bound)."""
    found = seed["constant"][label]
    rounds = np.array(found["versions"], dtype=np.float64)
    bound = Constants(**found["constants"]).non_convex_bound(seed["start"] - seed["minimum"], CONSTANT_RATE, rounds)
    return rounds, np.array(found["least_squared_gradient"]), bound


STUDIES = tuple(
    Study(
        f"convergence-{name}",
        "the theorems of Section 4",
        task,
        (Arm(OURS, HFL()), Arm(PRINTED, HFL.as_printed()), Arm(DRIFT, HFL.drift_controlled())),
        aside=measured,
        small_task=f"synthetic-crowd{task.removeprefix('synthetic')[:-1]}, kinds=20, samples=50)",
    )
    for name, task in (("synthetic-0-0", "synthetic(0, 0)"), ("synthetic-1-1", "synthetic(1, 1)"))
)


def _paired(book: Book, study: str, label: str) -> Iterator[tuple[Result, dict[str, Any]]]:
    """A run, and what was measured aside with its seed."""
    yield from zip(of(book[study], label), book.asides[study]["seeds"], strict=True)


def _first_bound(study: str) -> Callable[[Book], Judgement]:
    """F(w_t) − F* lies below Theorem 1's bound in every seed and version."""

    def judge(book: Book) -> Judgement:
        bounds: list[float] = []

        def measure(label: str) -> Finding:
            last, is_below = [], True
            for result, seed in _paired(book, study, label):
                distances = gaps(result.loss, seed)
                bound = first_bound(seed, label, np.array(result.versions, dtype=np.float64))
                is_below &= bool((distances <= bound).all())
                last.append(float(distances[-1]))
                bounds.append(float(bound[-1]))
            return Finding(Interval.of(last).shown(2), is_below)

        printed, ours = measure(PRINTED), measure(OURS)
        why = f"F(w_T) − F*; the bounds there are {min(bounds):.0e} to {max(bounds):.0e}, which anything keeps to."
        return Judgement(printed, ours, NOT_ASKED, why)

    return judge


def _rate(study: str) -> Callable[[Book], Judgement]:
    """The exponent fitted to F(w_t) − F* is 1 or more."""

    def judge(book: Book) -> Judgement:
        def measure(label: str) -> Finding:
            found = Interval.of(
                [
                    theory.exponent(np.array(result.versions, dtype=np.float64), gaps(result.loss, seed), MAX_DELAY)
                    for result, seed in _paired(book, study, label)
                ]
            )
            return Finding(found.shown(2), at_least(found, 1))

        versions = np.arange(1.0, 201.0)
        rates = np.array([FALLING.learning_rate(int(version)) for version in versions])
        allowed = [
            bool((rates <= Constants(**seed["falling"][label]["constants"]).convex_rate(versions)).all())
            for seed in book.asides[study]["seeds"]
            for label in (PRINTED, OURS)
        ]
        kept = "keeps" if all(allowed) else f"in {sum(allowed)} of {len(allowed)} runs keeps"
        why = (
            f"α in F(w_t) − F* ∝ 1/(t + τ)^α, fitted from t = τ to T, over these rounds only. η_t = 0.1/(1 + t) {kept} to "
            "Theorem 1's condition, which bounds it from above: a rate of almost 0 would too, and nothing would converge."
        )
        return judged(measure, why)

    return judge


def _second_bound(study: str) -> Callable[[Book], Judgement]:
    """min ‖∇F‖² lies below Theorem 2's bound."""

    def judge(book: Book) -> Judgement:
        seeds = book.asides[study]["seeds"]
        rates = [
            Constants(**seed["constant"][label]["constants"]).largest_rate()
            for seed in seeds
            for label in (PRINTED, OURS)
        ]

        def measure(label: str) -> Finding:
            pairs = [squared_gradients(seed, label) for seed in seeds]
            least, bound = (float(np.median([pair[place][-1] for pair in pairs])) for place in (1, 2))
            is_below = all(bool((least <= bound).all()) for _, least, bound in pairs)
            return Finding(f"{least:.1e}, bound {bound:.1e}", is_below if min(rates) >= CONSTANT_RATE else None)

        why = (
            f"Medians over seeds of min ‖∇F‖² after T rounds with η = {CONSTANT_RATE}; the theorem's condition allows up "
            f"to {min(rates):.2g}. Its bound divides by B⁴: the more devices differ, the better it says training goes."
        )
        return Judgement(measure(PRINTED), measure(OURS), NOT_ASKED, why)

    return judge


def _second_rate(study: str) -> Callable[[Book], Judgement]:
    """The exponent fitted to min ‖∇F‖² is 1 or more."""

    def judge(book: Book) -> Judgement:
        def measure(label: str) -> Finding:
            pairs = [squared_gradients(seed, label)[:2] for seed in book.asides[study]["seeds"]]
            found = Interval.of([theory.exponent(rounds, least, 0) for rounds, least in pairs])
            return Finding(found.shown(2), at_least(found, 1))

        why = f"α in min ‖∇F‖² ∝ 1/T^α with η = {CONSTANT_RATE}, fitted over these rounds only."
        return Judgement(measure(PRINTED), measure(OURS), NOT_ASKED, why)

    return judge


CLAIMS = tuple(
    Claim(f"{text}: {study.task}", paper, (study.name,), make(study.name))
    for study in STUDIES
    for text, paper, make in (
        ("Theorem 1 bounds F(w_t) − F*", "", _first_bound),
        ("HFL converges at O(1/(t + τ))", "α = 1", _rate),
        ("Theorem 2 bounds min ‖∇F‖²", "", _second_bound),
        ("min ‖∇F‖² falls at O(1/T)", "α = 1", _second_rate),
    )
)
