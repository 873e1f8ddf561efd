"""Algorithms, tasks and fleets written as text, the way they print: `hfl`, `HFL(merge=Memory(NoCorrection()))`, `phones`.

The text is parsed as a literal call and checked against the constructor's signature. Nothing in it is evaluated.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hybridfl.algorithms.ad_sgd import Correction, Damping, Diagonal, MeanRankOne, NoCorrection, RankOne, Secant
from hybridfl.algorithms.averages import Average, ClippedMean, Mean, Median, TrimmedMean
from hybridfl.algorithms.blend import Blend, ByStaleness, ConstantWeight, DataShare, Printed, Weight
from hybridfl.algorithms.drift import DriftControl
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL, Merge
from hybridfl.algorithms.local_work import (
    ConstantRate,
    Cosine,
    FullWork,
    InverseSqrt,
    InverseTime,
    Local,
    PartialWork,
    Schedule,
)
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import Deadline, Everyone, FirstOf, Participants, ProportionalToDelay, Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.algorithms.staleness import Constant, Hinge, Polynomial, StalenessWeight
from hybridfl.algorithms.stragglers import KnownShare, Learned, Stragglers
from hybridfl.algorithms.weighting import ByData, ByDevice, Weighting
from hybridfl.attacks import Attack, Hostile, Noise, NotANumber, Scaled
from hybridfl.availability import AlwaysOn, Availability, DayNight, OnOff
from hybridfl.conditions import Conditions, Deaths, LateJoins, SpeedChange
from hybridfl.data.partition import IID, Dirichlet, Partition, PowerLaw, Shards
from hybridfl.data.sent140 import Chosen, Merged, Users
from hybridfl.errors import InputError, nearest
from hybridfl.fleets import FLEETS
from hybridfl.laws import Fixed, HalfNormal, Law, Lognormal, Pareto, SlowShare, Zipf
from hybridfl.protocol import Algorithm
from hybridfl.tasks import (
    MNIST,
    FashionMNIST,
    Sent140,
    Shakespeare,
    Synthetic,
    SyntheticCrowd,
    SyntheticIID,
    TaskRecipe,
)
from hybridfl.timing import ComputeAndLink, ConstantSeconds, Drawn, Pace, PaperDelays, PerDevice, Recorded
from hybridfl.traces import RecordedAvailability
from hybridfl.wording import counted

Constructor = Callable[..., Any]

ALGORITHMS: Mapping[str, Constructor] = {
    "hfl": HFL,
    "hfl-by-device": HFL.by_device,
    "hfl-drift": HFL.drift_controlled,
    "hfl-as-printed": HFL.as_printed,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "s-sgd": SSGD,
}
TASKS: Mapping[str, Constructor] = {
    "synthetic": Synthetic,
    "synthetic-iid": SyntheticIID,
    "synthetic-crowd": SyntheticCrowd,
    "fashion-mnist": FashionMNIST,
    "mnist": MNIST,
    "shakespeare": Shakespeare,
    "shakespeare-paper": Shakespeare.paper,
    "sent140": Sent140,
}

PACES = (PaperDelays, ConstantSeconds, Drawn, ComputeAndLink, Recorded, PerDevice)

PARTS: Mapping[Any, tuple[type, ...]] = {
    Merge: (Memory, Blend),
    DriftControl: (DriftControl,),
    Average: (Mean, ClippedMean, Median, TrimmedMean),
    Correction: (Secant, RankOne, MeanRankOne, Diagonal, Damping, NoCorrection),
    Weight: (Printed, ByStaleness, ConstantWeight, DataShare),
    Weighting: (ByData, ByDevice),
    Stragglers: (Learned, KnownShare),
    Participants: (Uniform, Everyone, ProportionalToDelay, FirstOf, Deadline),
    StalenessWeight: (Polynomial, Constant, Hinge),
    Local: (FullWork, PartialWork),
    FullWork: (FullWork,),
    Schedule: (InverseTime, InverseSqrt, ConstantRate, Cosine),
    Partition: (PowerLaw, IID, Dirichlet, Shards),
    Users: (Merged, Chosen),
    Pace: PACES,
    Law: (Fixed, HalfNormal, Lognormal, SlowShare, Pareto, Zipf),
    Availability: (AlwaysOn, DayNight, OnOff, RecordedAvailability),
    LateJoins: (LateJoins,),
    Deaths: (Deaths,),
    SpeedChange: (SpeedChange,),
    Hostile: (Hostile,),
    Attack: (Scaled, NotANumber, Noise),
}
"""What may stand where a parameter of this type is wanted."""

PLAIN = (Schedule, Participants)
"""Where a plain number may stand for a part, as in FedAvg(5) and FullWork(learning_rate=0.1): the constructor takes it."""


def read_algorithm(text: str, local: FullWork = FullWork()) -> Algorithm[Any]:
    """The algorithm that `text` spells; `local` is its local work where the text does not say."""
    algorithm: Algorithm[Any] = _read(text, ALGORITHMS, "algorithm", {"local": local})
    return algorithm


MOST_LETTERS = 100
"""Of a label: it names a folder, a row of a table and a line of a legend."""


def read_labelled(text: str, local: FullWork) -> tuple[str, Algorithm[Any]]:
    """An algorithm with a label of its own, `small=HFL(round_seconds=2)`; without one, its text is its label."""
    _check_text(text, "algorithm")
    label, sign, spelled = text.partition("=")
    if not sign or "(" in label:
        return text, read_algorithm(text, local)
    if not label.strip() or not spelled.strip():
        raise InputError(f"'{_cut(text)}' is no label and algorithm: write them as small=HFL(round_seconds=2).")
    if len(label.strip()) > MOST_LETTERS:
        raise InputError(
            f"The label '{label.strip()[:20]}…' has {len(label.strip()):,} letters: give one of {MOST_LETTERS} at most."
        )
    return label.strip(), read_algorithm(spelled, local)


def read_algorithms(text: str, local: FullWork) -> dict[str, Algorithm[Any]]:
    """A comma-separated list of algorithms, by label."""
    algorithms: dict[str, Algorithm[Any]] = {}
    for item in split_list(text):
        label, algorithm = read_labelled(item, local)
        if label in algorithms:
            raise InputError(
                f"Two algorithms are called '{label}': give one a label of its own, for example other={item}."
            )
        algorithms[label] = algorithm
    return algorithms


def read_task(text: str) -> TaskRecipe:
    """The task that `text` spells."""
    task: TaskRecipe = _read(text, TASKS, "task", {})
    return task


def read_fleet(text: str) -> Pace | Conditions:
    """The fleet that `text` spells: one with a name, a pace alone, or conditions in full."""
    paces: dict[str, Constructor] = {pace.__name__: pace for pace in PACES}
    fleet: Pace | Conditions = _read(text, {**FLEETS, **paces, "Conditions": Conditions}, "fleet", {})
    return fleet


def read_guard(text: str) -> Guard | None:
    """`on`, `off`, or a guard as it prints."""
    if text in ("off", "None"):
        return None
    guard: Guard = _read(text, {"on": Guard, "off": Guard, "Guard": Guard}, "guard", {})
    return guard


def spelled(name: str, constructor: Constructor) -> str:
    """A constructor with its parameters and their defaults, as they can be written."""
    parameters = inspect.signature(constructor).parameters.values()
    return (
        f"{name}({', '.join(p.name if p.default is p.empty else f'{p.name}={_short(p.default)}' for p in parameters)})"
    )


def _short(default: object) -> str:
    """A part with nothing but defaults of its own is its name alone."""
    made = type(default)() if dataclasses.is_dataclass(default) and not isinstance(default, type) else None
    return f"{type(default).__name__}()" if made == default and made is not None else repr(default)


def split_list(text: str) -> list[str]:
    """The comma-separated items of a list; commas inside parentheses belong to their item."""
    items, depth, current = [], 0, ""
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append(current.strip())
            current = ""
        else:
            current += letter
    items.append(current.strip())
    return [item for item in items if item]


MOST_LETTERS_OF_A_CALL = 100_000
MOST_DIGITS = 308
"""Of a number: no larger one is a float."""


def _read(text: str, constructors: Mapping[str, Constructor], kind: str, defaults: Mapping[str, Any]) -> Any:
    """What `text` calls. Python's own parser has limits of many kinds; each of them is one line here."""
    if len(text) > MOST_LETTERS_OF_A_CALL:
        raise InputError(f"'{_cut(text[:40])}…' has {len(text):,} letters: give {MOST_LETTERS_OF_A_CALL:,} at most.")
    _check_text(text, kind)
    try:
        return _called(text, constructors, kind, defaults)
    except (RecursionError, MemoryError):  # Python's parser says both of what is nested
        raise InputError(f"'{_cut(text[:40])}…' is nested too deeply: write it as it prints.") from None


def _check_text(text: str, kind: str) -> None:
    """Bytes that are no UTF-8 reach us as halves of letters, which nothing can print."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{ascii(text)[:200]} is no valid text: write the {kind} in UTF-8.")


def _called(text: str, constructors: Mapping[str, Constructor], kind: str, defaults: Mapping[str, Any]) -> Any:
    name, parenthesis, rest = text.strip().partition("(")
    constructor = _named(name, constructors, kind)
    try:
        with warnings.catch_warnings(action="ignore"):  # a backslash in a path, for example
            call = ast.parse(f"call({rest}" if parenthesis else "call()", mode="eval").body
    except (SyntaxError, ValueError):
        raise InputError(
            f"'{_cut(text)}' is not a call: write it as it prints, for example FedBuff(buffer=20)."
        ) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise InputError(
            f"'{_cut(text)}' is more than one call: write it as it prints, for example FedBuff(buffer=20)."
        )
    return _build(name.strip(), constructor, call, defaults)


def _cut(text: str) -> str:
    """Not more of it than a line shows, and nothing but what can be printed."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text[:400].split()))
    return line if len(line) <= 200 else f"{line[:200]}…"


def _written(node: ast.AST) -> str:
    return _cut(ast.unparse(node))


def _named(name: str, constructors: Mapping[str, Constructor], kind: str) -> Constructor:
    """`HFL.as_printed`, `hfl_as_printed` and `hfl-as-printed` are one name; so are `SSGD` and `s-sgd`."""
    known = {_plain(spelled): constructor for spelled, constructor in constructors.items()}
    if _plain(name) not in known:
        written = _cut(name.strip())
        raise InputError(
            f"Unknown {kind} '{written}'.{nearest(written, constructors)} Known: {', '.join(constructors)}."
        )
    return known[_plain(name)]


def _plain(name: str) -> str:
    return name.strip().lower().translate(str.maketrans("", "", "-_."))


def _build(name: str, constructor: Constructor, call: ast.Call, defaults: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(constructor).parameters
    annotations = typing.get_type_hints(constructor)
    if len(call.args) > len(parameters):
        raise InputError(
            f"{name} takes {counted(len(parameters), 'value')} at most, not {len(call.args)}: {', '.join(parameters)}."
        )
    written = dict(zip(parameters, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in parameters:
            spelled = _cut(keyword.arg or "**")
            known = f"It has: {', '.join(parameters)}." if parameters else "It has none."
            raise InputError(f"{name} has no hyperparameter '{spelled}'.{nearest(spelled, parameters)} {known}")
        if keyword.arg in written:
            raise InputError(f"{name} is given {keyword.arg} twice.")
        written[keyword.arg] = keyword.value
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in {*written, *defaults}]
    if missing:
        raise InputError(f"{name} needs {', '.join(missing)}.")
    values = {key: _value(f"{name}({key}=…)", node, annotations[key]) for key, node in written.items()}
    return constructor(**{key: value for key, value in defaults.items() if key in parameters} | values)


def _value(where: str, node: ast.expr, annotation: Any) -> Any:
    allowed = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    parts = tuple(part for kind in allowed if kind in PARTS for part in PARTS[kind])
    if annotation in PLAIN and isinstance(node, ast.Constant):
        return _literal(where, node)
    if parts and not (types.NoneType in allowed and isinstance(node, ast.Constant) and node.value is None):
        return _part(where, node, parts)
    if typing.get_origin(annotation) is tuple:
        return _numbers(where, node)
    value = _literal(where, node)
    if isinstance(value, int) and not isinstance(value, bool) and float in allowed:
        value = float(value)
    if not any(type(value) is kind for kind in allowed):
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in allowed)
        raise InputError(f"{where} wants {wanted}, not {_written(node)}.")
    return value


def _numbers(where: str, node: ast.expr) -> tuple[float, ...]:
    values = [_literal(where, each) for each in node.elts] if isinstance(node, ast.Tuple | ast.List) else [None]
    numbers = tuple(float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool))
    if len(numbers) != len(values):
        raise InputError(f"{where} wants numbers in parentheses, not {_written(node)}.")
    return numbers


def _part(where: str, node: ast.expr, parts: Iterable[type]) -> Any:
    named = {part.__name__: part for part in parts}
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or call.func.id not in named:
        written = _written(call.func)
        raise InputError(f"{where} wants one of {', '.join(named)}, not '{written}'.{nearest(written, named)}")
    return _build(call.func.id, named[call.func.id], call, {})


def _literal(where: str, node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id == "inf":
        return math.inf
    try:
        value: object = ast.literal_eval(node)
        if any(isinstance(each, int) and abs(each) >= 10**MOST_DIGITS for each in _within(value)):
            raise InputError(f"{where} has a number of more than {MOST_DIGITS} digits: give a smaller one.")
    except InputError:
        raise
    except (ValueError, TypeError, SyntaxError):
        raise InputError(f"{where} wants a plain value, not '{_written(node)}'.") from None
    return value


def _within(value: object) -> Iterable[object]:
    """A value, and all that it is made of."""
    yield value
    parts = (
        (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, tuple | list | set) else ()
    )
    for part in parts:
        yield from _within(part)
