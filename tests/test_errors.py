import math

import pytest

from hybridfl.data.store import DATA_SETS
from hybridfl.errors import InputError, nearest, require_positive, require_share
from hybridfl.fleets import FLEETS
from hybridfl.presets import PRESETS
from hybridfl.spelling import ALGORITHMS, PARTS, TASKS


def test_an_input_error_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize("word", ["fedagv", "FEDAVG", "fed-avg"])
def test_nearest_suggests_the_word_as_it_is_spelled(word: str) -> None:
    assert nearest(word, ["HFL", "FedAvg", "FedBuff"]) == " Did you mean 'FedAvg'?"


@pytest.mark.parametrize("words", [["HFL", "FedAvg"], []])
def test_nearest_says_nothing_where_nothing_is_near(words: list[str]) -> None:
    assert nearest("xyzzy", words) == ""


SCHEDULES = ("inverse", "sqrt", "constant", "cosine")
PART_NAMES = tuple(dict.fromkeys(part.__name__ for parts in PARTS.values() for part in parts))
NAMES = {
    "algorithms": tuple(ALGORITHMS),
    "tasks": tuple(TASKS),
    "fleets": tuple(FLEETS),
    "schedules": SCHEDULES,
    "presets": tuple(PRESETS),
    "data sets": tuple(DATA_SETS),
    "parts": PART_NAMES,
}


@pytest.mark.parametrize(
    ("word", "kind", "meant"),
    [
        ("fedavgg", "algorithms", "fedavg"),
        ("hlf", "algorithms", "hfl"),
        ("fedbuf", "algorithms", "fedbuff"),
        ("fedasinc", "algorithms", "fedasync"),
        ("fedporx", "algorithms", "fedprox"),
        ("hfl-drfit", "algorithms", "hfl-drift"),
        ("sgd", "algorithms", "s-sgd"),
        ("inverze", "schedules", "inverse"),
        ("cosin", "schedules", "cosine"),
        ("const", "schedules", "constant"),
        ("sqr", "schedules", "sqrt"),
        ("fashon-mnist", "tasks", "fashion-mnist"),
        ("fashion", "tasks", "fashion-mnist"),
        ("fashionmnist", "data sets", "fashion-mnist"),
        ("minst", "tasks", "mnist"),
        ("sinthetic", "tasks", "synthetic"),
        ("shakspere", "tasks", "shakespeare"),
        ("phone", "fleets", "phones"),
        ("falky", "fleets", "flaky"),
        ("daynight", "fleets", "day-night"),
        ("fashion-mnst", "presets", "fashion-mnist"),
        ("Unifrom", "parts", "Uniform"),
        ("Dirichelt", "parts", "Dirichlet"),
        ("LogNormal", "parts", "Lognormal"),
    ],
)
def test_a_slip_of_the_finger_is_recognised(word: str, kind: str, meant: str) -> None:
    assert nearest(word, NAMES[kind]) == f" Did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("linear", "schedules"),
        ("step", "schedules"),
        ("exponential", "schedules"),
        ("none", "schedules"),
        ("scaffold", "algorithms"),
        ("fedopt", "algorithms"),
        ("fednova", "algorithms"),
        ("fedadam", "algorithms"),
        ("moon", "algorithms"),
        ("sync", "algorithms"),
        ("cifar10", "tasks"),
        ("femnist", "tasks"),
        ("reddit", "tasks"),
        ("stackoverflow", "tasks"),
        ("laptops", "fleets"),
        ("robots", "fleets"),
        ("imagenet", "data sets"),
        ("Normal", "parts"),
        ("Exponential", "parts"),
        ("", "algorithms"),
        ("x", "tasks"),
        ("Ж", "fleets"),
    ],
)
def test_another_word_is_not_taken_for_a_known_one(word: str, kind: str) -> None:
    assert nearest(word, NAMES[kind]) == ""


@pytest.mark.parametrize("kind", NAMES)
def test_no_known_name_is_taken_for_another(kind: str) -> None:
    for name in NAMES[kind]:
        assert nearest(name, NAMES[kind]) == f" Did you mean '{name}'?"


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 0, 1])
def test_a_share_lies_between_0_and_1(value: float) -> None:
    require_share("share", value)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
def test_what_is_not_a_share_is_refused_by_name_and_value(value: float) -> None:
    with pytest.raises(InputError, match=f"my_share={value} .*from 0 to 1"):
        require_share("my_share", value)


@pytest.mark.parametrize("value", [1e-9, 1, 5.5])
def test_a_positive_number_is_above_0(value: float) -> None:
    require_positive("epochs", value)


def test_a_whole_number_fits_into_a_machines_word() -> None:
    require_positive("max_delay", 2**63 - 1)
    require_positive("seconds", 1e30)
    with pytest.raises(InputError, match="max_delay=9223372036854775808 is too large"):
        require_positive("max_delay", 2**63)


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_what_is_not_positive_is_refused_by_name_and_value(value: float) -> None:
    with pytest.raises(InputError, match=f"epochs={value} must be above 0"):
        require_positive("epochs", value)
