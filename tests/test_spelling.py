import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridfl.algorithms.ad_sgd import NoCorrection, RankOne
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.local_work import ConstantRate, FullWork
from hybridfl.algorithms.memory import Memory
from hybridfl.algorithms.sampling import ProportionalToDelay
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.algorithms.stragglers import KnownShare
from hybridfl.attacks import Hostile, Noise
from hybridfl.availability import OnOff
from hybridfl.conditions import Conditions, Deaths
from hybridfl.data.partition import Dirichlet, PowerLaw
from hybridfl.data.sent140 import Chosen
from hybridfl.errors import InputError
from hybridfl.fleets import FLEETS
from hybridfl.laws import Pareto, Zipf
from hybridfl.spelling import (
    ALGORITHMS,
    PARTS,
    TASKS,
    read_algorithm,
    read_algorithms,
    read_fleet,
    read_guard,
    read_task,
    split_list,
)
from hybridfl.tasks import MNIST, FashionMNIST, Sent140, Shakespeare, Synthetic, SyntheticCrowd, SyntheticIID
from hybridfl.timing import Drawn, PaperDelays, PerDevice, Recorded
from hybridfl.traces import RecordedAvailability

LOCAL = FullWork(epochs=3)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("hfl", HFL(local=LOCAL)),
        ("HFL", HFL(local=LOCAL)),
        ("hfl-as-printed", HFL.as_printed(local=LOCAL)),
        ("HFL.as_printed(lambda_0=0.3, normalised=True)", HFL.as_printed(0.3, True, local=LOCAL)),
        ("HFL(merge=Memory(correction=RankOne(trust=inf)))", HFL(Memory(RankOne(math.inf)), local=LOCAL)),
        ("HFL(Memory(NoCorrection), KnownShare(0.5), 3)", HFL(Memory(NoCorrection()), KnownShare(0.5), 3.0, LOCAL)),
        ("FedBuff(buffer=20)", FedBuff(buffer=20, local=LOCAL)),
        ("FedBuff(20, local=FullWork(1, 2, ConstantRate(1)))", FedBuff(20, local=FullWork(1, 2, ConstantRate(1.0)))),
        ("FedProx(mu=0)", FedProx(0.0, local=LOCAL)),
        ("FedAvg(participants=ProportionalToDelay(3))", FedAvg(ProportionalToDelay(3), LOCAL)),
        ("s-sgd", SSGD(LOCAL)),
        ("SSGD()", SSGD(LOCAL)),
    ],
)  # fmt: skip
def test_algorithms_by_name_and_as_calls(text: str, algorithm: Any) -> None:
    assert read_algorithm(text, LOCAL) == algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_prints_can_be_read_back(name: str) -> None:
    algorithm = read_algorithm(name, LOCAL)
    assert read_algorithm(repr(algorithm), FullWork()) == algorithm


@pytest.mark.parametrize("part", [part for parts in PARTS.values() for part in parts])
def test_every_part_can_be_made_without_arguments_and_prints_as_a_call(part: type) -> None:
    needed: dict[type, tuple[object, ...]] = {
        Recorded: ("a.csv",),
        RecordedAvailability: ("a.csv",),
        PerDevice: ((1.0,),),
    }
    made = part(*needed.get(part, ()))
    assert repr(made).startswith(part.__name__ + "(")


@pytest.mark.parametrize("name", FLEETS)
def test_every_fleet_with_a_name_prints_as_it_can_be_written(name: str) -> None:
    fleet = read_fleet(name)
    assert read_fleet(repr(fleet)) == fleet
    assert fleet == FLEETS[name]()


def test_fleets_by_name_as_a_pace_and_in_full() -> None:
    assert read_fleet("paper(0.5, 20)") == PaperDelays(0.5, 20)
    assert read_fleet("day_night(on=0.25)") == FLEETS["day-night"](on=0.25)
    assert read_fleet("PerDevice((1, 2.5))") == PerDevice((1.0, 2.5))
    assert read_fleet(repr(PerDevice((1.0, math.inf)))) == PerDevice((1.0, math.inf))
    assert read_fleet("Drawn(Pareto(cap=50))") == Drawn(Pareto(cap=50.0))
    full = "Drawn(Zipf()), jitter=None, availability=OnOff(10, 5), deaths=Deaths(0.5), hostile=Hostile(0.1, Noise())"
    assert read_fleet(f"Conditions({full})") == Conditions(
        Drawn(Zipf()), availability=OnOff(10.0, 5.0), deaths=Deaths(0.5), hostile=Hostile(0.1, Noise())
    )
    assert read_fleet("Recorded('a.csv')") == Recorded("a.csv")


def test_guards() -> None:
    assert read_guard("off") is None
    assert read_guard("on") == Guard()
    assert read_guard("Guard(norm=None, quarantine=5)") == Guard(norm=None, quarantine=5)
    assert read_guard(repr(Guard(history=9))) == Guard(history=9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("phone", "Unknown fleet 'phone'. Did you mean 'phones'?"),
        ("Conditions(lost=1)", "lost=1.0"),
        ("Conditions(jitter=Normal())", "wants one of Fixed, HalfNormal"),
        ("Conditions(lost='often')", "wants float"),
        ("PerDevice((1, 'x'))", "wants numbers in parentheses"),
        ("PerDevice()", "PerDevice needs seconds"),
        ("Drawn(law=None)", "wants one of Fixed"),
    ],
)
def test_mistakes_in_fleets_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_fleet(text)
    assert message in str(error.value)


def test_tasks() -> None:
    assert read_task("synthetic") == Synthetic(1.0, 1.0)
    assert read_task("synthetic(0, 0.5)") == Synthetic(0.0, 0.5)
    assert read_task("Synthetic(xi=0)") == Synthetic(1.0, 0.0)
    assert read_task("synthetic-iid") == SyntheticIID()
    assert read_task("fashion-mnist") == FashionMNIST(PowerLaw())
    assert read_task("mnist(Dirichlet(0.1))") == MNIST(Dirichlet(0.1))
    assert read_task("shakespeare(hidden=32)") == Shakespeare(hidden=32)
    assert read_task("shakespeare-paper") == Shakespeare(517_106)
    assert read_task("sent140(Chosen(30), glove='glove.txt')") == Sent140(Chosen(30), glove="glove.txt")
    assert read_task("synthetic-crowd(samples=5)") == SyntheticCrowd(samples=5)
    assert len(TASKS) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedbufff", "Unknown algorithm 'fedbufff'. Did you mean 'fedbuff'"),
        ("", "Unknown algorithm ''"),
        ("FedBuff(bufer=3)", "no hyperparameter 'bufer'. Did you mean 'buffer'"),
        ("FedBuff(buffer='x')", "wants int, not 'x'"),
        ("FedBuff(buffer=2.5)", "wants int, not 2.5"),
        ("FedBuff(buffer=True)", "wants int, not True"),
        ("FedBuff(1, buffer=1)", "buffer twice"),
        ("FedBuff(1, 1, 1, 1, 1, 1, 1)", "takes 6 values at most"),
        ("FedBuff(**{})", "no hyperparameter"),
        ("HFL(merge=RankOne())", "wants one of Memory, Blend, not 'RankOne'"),
        ("HFL(merge=Memry())", "Did you mean 'Memory'"),
        ("HFL(merge=3)", "wants one of Memory, Blend, not '3'"),
        ("HFL(round_seconds='soon')", "wants float or None"),
        ("HFL(merge=Memory(RankOne(trust=-1)))", "trust=-1.0"),
        ("FedBuff(buffer=__import__('os').getpid())", "plain value"),
        ("FedBuff(buffer=1)()", "more than one call"),
        ("FedBuff(buffer=1", "is not a call"),
        ("FedBuff)", "Unknown algorithm"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_algorithm(text, LOCAL)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(alphabet="HFLfedbuf()=,.[]{}'\"0123456789_- \n\\*:+", max_size=40))
def test_no_text_is_worse_than_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        read_algorithm(text, LOCAL)


def test_a_list_is_split_outside_parentheses() -> None:
    assert split_list("hfl, FedBuff(1, 2),fedavg,") == ["hfl", "FedBuff(1, 2)", "fedavg"]
    assert split_list("") == []


def test_algorithms_of_a_list_may_have_labels_of_their_own() -> None:
    read = read_algorithms("hfl,quick=HFL(round_seconds=2), large = FedBuff(buffer=20),FedBuff(buffer=5)", LOCAL)
    assert read == {
        "hfl": HFL(local=LOCAL),
        "quick": HFL(round_seconds=2.0, local=LOCAL),
        "large": FedBuff(buffer=20, local=LOCAL),
        "FedBuff(buffer=5)": FedBuff(buffer=5, local=LOCAL),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hfl,hfl", "Two algorithms are called 'hfl'"),
        ("a=hfl,a=fedavg", "Two algorithms are called 'a'"),
        ("=hfl", "no label and algorithm"),
        ("a=", "no label and algorithm"),
        ("a=hlf", "Did you mean 'hfl'"),
    ],
)
def test_a_list_that_cannot_be_told_apart_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_algorithms(text, LOCAL)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"FedAvg({'9' * 400})", "has a number of more than 308 digits"),
        (
            f"FedAvg(local=FullWork(proximal={'9' * 400}))",
            r"FullWork\(proximal=…\) has a number of more than 308 digits",
        ),
        (f"FedAvg(0x{'9' * 5000})", "has a number of more than 308 digits"),
        (f"FedAvg({'9' * 5000})", "is not a call"),
        (f"FedBuff({'-' * 3000}1)", "is nested too deeply"),
        (f"FedBuff({'-' * 90_000}1)", "is nested too deeply"),
        (f"FedBuff({'-' * 200_000}1)", "has 200,010 letters: give 100,000 at most"),
        (f"FedBuff({'(' * 1500}1{')' * 1500})", "is not a call"),
        (f"hfl({'a.' * 5000}b)", "is nested too deeply"),
        (f"hfl(round_seconds={'1+' * 5000}1)", "is nested too deeply"),
        ("\udc80", "is no valid text: write the algorithm in UTF-8"),
        ("hfl('\udc80')", "is no valid text: write the algorithm in UTF-8"),
        ("hfl(\0)", "is not a call"),
        ("x" * 5000, "Unknown algorithm 'x+…'"),
        (f"hfl({'x' * 5000}=1)", "has no hyperparameter 'x+…'"),
        ("FedAvg(local=FullWork(epochs=1000000000))", "epochs=1000000000 are more than a device gets through"),
        (f"FedAvg(local=FullWork(batch_size={2**63}))", "is too large: give 9223372036854775807"),
    ],
)
def test_what_python_itself_chokes_on_is_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as said:
        read_algorithm(text)
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 1000
    str(said.value).encode()


def test_a_label_is_valid_text_too() -> None:
    with pytest.raises(InputError, match="is no valid text"):
        read_algorithms("a\udc80=hfl", FullWork())


def test_a_backslash_in_a_path_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    read_fleet(r"Recorded('a\d.csv')")
    assert not recwarn.list


WORDS = (
    "(",
    ")",
    ",",
    "=",
    "-",
    "+",
    "*",
    "[",
    "]",
    "{",
    "}",
    ":",
    "'",
    '"',
    "\\",
    ".",
    "#",
    " ",
    "\n",
    "1",
    "9" * 400,
    "1e9",
    "inf",
)
NAMES = (
    "hfl",
    "HFL",
    "FedAvg",
    "Uniform",
    "merge",
    "Memory",
    "local",
    "FullWork",
    "epochs",
    "Conditions",
    "None",
    "True",
    "lambda",
    "\ud800",
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(WORDS + NAMES) | st.text(max_size=3), max_size=20).map("".join), st.sampled_from(NAMES[:4])
)
def test_any_text_is_read_or_refused_in_one_line(text: str, name: str) -> None:
    for each in (text, f"{name}({text}", f"{name}({text})"):
        for read in (read_algorithm, read_task, read_fleet, read_guard, lambda text: read_algorithms(text, FullWork())):
            try:
                read(each)
            except InputError as error:
                assert len(str(error).splitlines()) == 1  # noqa: PT017 - either is well
