from __future__ import annotations

import contextlib
import functools
import json
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fakes import Towards, fleet_of
from hybridfl.algorithms.ad_sgd import Diagonal
from hybridfl.algorithms.fedasync import FedAsync
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.fedbuff import FedBuff
from hybridfl.algorithms.fedprox import FedProx
from hybridfl.algorithms.hfl import HFL, HFLState
from hybridfl.algorithms.memory import Memory, Remembered
from hybridfl.algorithms.sampling import Deadline, FirstOf, Uniform
from hybridfl.algorithms.ssgd import SSGD
from hybridfl.algorithms.stragglers import KnownShare
from hybridfl.codec import Encoded, classes_of, decode, encode, named
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet, Inbox, Job, Outbox, Vector, Work
from hybridfl.simulation import Simulation

CPU = torch.device("cpu")
FLEET = fleet_of(1, 2, 3)


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0


@dataclass(frozen=True, slots=True, eq=False)
class Slotted:
    x: Any


@dataclass(eq=False)
class Node:
    """Mutable, may hold itself, and checks and derives things when it is made for the first time."""

    value: Any
    next: Any = None
    derived: int = field(init=False)

    def __post_init__(self) -> None:
        self.derived = 7

    @functools.cached_property
    def long_to_compute(self) -> int:
        return 42


@dataclass(frozen=True, eq=False)
class CountingState:
    version: int
    weights: Vector
    fleet: Fleet
    seen: Counts


@dataclass(frozen=True)
class Counts:
    by_device: tuple[int, ...]


@dataclass(frozen=True)
class Counting:
    """An algorithm as a user writes it: with its state in the same module, and nothing registered."""

    inner: Any = FedBuff(buffer=3)

    def init(self, weights: Vector, fleet: Fleet) -> tuple[CountingState, Outbox]:
        return CountingState(0, weights, fleet, Counts((0,) * len(fleet))), Outbox()

    def step(self, state: CountingState, inbox: Inbox) -> tuple[CountingState, Outbox]:
        return replace(state, version=state.version + 1), Outbox()


CLASSES = named([Point, Slotted, Node])


def through_a_file(encoded: Encoded) -> Encoded:
    """As it comes back from JSON and safetensors."""
    tensors = safetensors.torch.load(safetensors.torch.save(encoded.tensors))
    return Encoded(json.loads(json.dumps(encoded.tree, allow_nan=False)), tensors)


def back(value: Any, fleet: Fleet = FLEET, classes: dict[str, type] = CLASSES) -> Any:
    return decode(through_a_file(encode(value, fleet, classes)), fleet, classes, CPU)


def told(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """All there is to a value: types, bits, order, and which of its parts are one object."""
    seen = {} if seen is None else seen
    kind = type(value)
    if kind is float:
        return "float", struct.pack("d", value)
    if isinstance(value, np.generic):
        return kind.__name__, value.tobytes()
    if kind is tuple:
        return "tuple", [told(each, seen) for each in value]
    if value is None or kind in (bool, int, str):
        return kind.__name__, value
    if kind is frozenset:
        return "frozenset", sorted(repr(told(each)) for each in value)
    if id(value) in seen:
        return "same", list(seen).index(id(value))
    seen[id(value)] = value
    if kind is list:
        return "list", [told(each, seen) for each in value]
    if kind is set:
        return "set", sorted(repr(told(each)) for each in value)
    if kind is dict:
        return "dict", [(told(key, seen), told(each, seen)) for key, each in value.items()]
    if kind is np.ndarray:
        return "array", value.dtype, value.shape, value.tobytes()
    if kind is torch.Tensor:
        bits = torch.empty(value.shape, dtype=value.dtype).copy_(value).flatten().view(torch.uint8).numpy().tobytes()
        return "tensor", value.dtype, tuple(value.shape), bits
    if kind is Fleet:
        return "fleet", id(value)
    assert is_dataclass(value), value
    return kind, [(one.name, told(getattr(value, one.name), seen)) for one in fields(value)]


NUMBERS = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?")
    | hnp.complex_number_dtypes(endianness="?")
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = hnp.arrays(NUMBERS, SHAPES)
VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda tensor: tensor,
    lambda tensor: tensor.reshape(-1),
    lambda tensor: tensor.reshape(-1)[::2],
    lambda tensor: tensor.movedim(0, -1) if tensor.ndim else tensor,
    lambda tensor: tensor.expand(2, *tensor.shape),
    lambda tensor: tensor.to(torch.bfloat16),
]
TENSORS = st.builds(
    lambda array, view: view(torch.from_numpy(np.array(array))),
    hnp.arrays(st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]), SHAPES),
    st.sampled_from(VIEWS),
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "L"]))
)
SCALARS = PLAIN | hnp.arrays(NUMBERS, ()).map(lambda array: array[()])
KEYS = PLAIN | st.tuples(PLAIN, PLAIN) | st.builds(Point, PLAIN, PLAIN)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(Slotted, inner)
        | st.builds(Node, inner)
        | st.builds(lambda one: [one, (one,), Point(one)], inner)
    )


VALUES = st.recursive(SCALARS | ARRAYS | TENSORS, nested, max_leaves=12)


@given(VALUES)
def test_any_value_comes_back_exactly(value: Any) -> None:
    assert told(back(value)) == told(value)


@given(VALUES)
def test_the_same_value_has_the_same_tree(value: Any) -> None:
    assert json.dumps(encode(back(value), FLEET).tree) == json.dumps(encode(value, FLEET).tree)


@pytest.mark.parametrize(
    "number", [0.0, -0.0, 5e-324, 0.1 + 0.2, math.inf, -math.inf, math.nan, -math.nan, -(2**63), 2**63]
)
def test_numbers_keep_all_their_bits(number: float) -> None:
    assert told(back(number)) == told(number)


def test_integers_have_any_length() -> None:
    assert back([10**5000, -(10**5000)]) == [10**5000, -(10**5000)]


def test_a_float_that_numpy_made_is_not_a_float() -> None:
    assert type(back(np.float64(0.5))) is np.float64
    assert type(back((True, np.True_))[1]) is np.bool_


def test_sets_are_written_in_one_order() -> None:
    one, other = {"a", "b", "c", 1, (2, "d")}, {(2, "d"), 1, "c", "b", "a"}
    assert encode(one, FLEET).tree == encode(other, FLEET).tree
    assert encode(frozenset(range(9, 0, -1)), FLEET).tree == {"frozenset": list(range(1, 10))}


def test_a_model_that_many_jobs_share_is_stored_once() -> None:
    weights = torch.arange(5.0)
    work = Work(1, 2, 0.1)
    jobs = [Job(device, 3, weights, work, 1.5) for device in range(40)]
    encoded = encode({"out": tuple(jobs), "again": jobs[7], "weights": weights}, FLEET)
    assert len(encoded.tensors) == 1
    found = decode(through_a_file(encoded), FLEET, classes_of(FedAsync()), CPU)
    assert len({id(job.weights) for job in found["out"]} | {id(found["weights"])}) == 1
    assert len({id(job.work) for job in found["out"]}) == 1
    assert found["again"] is found["out"][7]


def test_equal_objects_that_are_two_stay_two() -> None:
    one, other = back([torch.ones(2), torch.ones(2)])
    assert one is not other
    first, second = back([Point(1), Point(1)])
    assert first is not second


def test_objects_made_for_the_occasion_are_told_apart() -> None:
    """An object that is gone may leave its id to the next one."""

    @dataclass
    class Maker:
        weights: torch.Tensor | None = None

        def __getattribute__(self, name: str) -> Any:
            return torch.ones(2) if name == "weights" else object.__getattribute__(self, name)

    assert len(encode([Maker(), Maker(), Maker()], FLEET).tensors) == 3


def test_views_of_one_memory_are_stored_as_values() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    found = back([rows, rows.t(), rows[0], rows[1], rows.view(-1), rows[:, 1]])
    assert [each.tolist() for each in found[1:4]] == [[[0, 3], [1, 4], [2, 5]], [0, 1, 2], [3, 4, 5]]
    found[0].zero_()
    assert found[4].tolist() == [0, 1, 2, 3, 4, 5]


def test_negated_views_are_stored_as_values() -> None:
    imaginary = torch.tensor([1 + 2j]).conj().imag
    assert imaginary.is_neg()
    assert back(imaginary).tolist() == [-2.0]


def test_what_comes_back_has_memory_of_its_own() -> None:
    tensor, array = torch.zeros(3), np.zeros(3)
    encoded = encode([tensor, array], FLEET)
    found = decode(encoded, FLEET, {}, CPU)
    tensor += 1
    array += 1
    assert found[0].tolist() == found[1].tolist() == [0, 0, 0]
    found[1][0] = 5.0  # also what was read-only can be written again


def test_rings_come_back_as_rings() -> None:
    node = Node(1)
    node.next = [node]
    found = back(node)
    assert found.next[0] is found
    assert vars(found) == {"value": 1, "next": [found], "derived": 7}


def test_what_a_cached_property_remembers_is_computed_again() -> None:
    node = Node(1)
    assert node.long_to_compute == 42
    assert "long_to_compute" not in vars(back(node))


def test_tensors_go_back_to_where_they_were() -> None:
    """`meta` stands for a GPU."""
    encoded = encode([torch.ones(2), torch.ones(3)], FLEET)
    encoded.tree["list"][1]["tensor"] = "accelerator"
    column, weights = decode(encoded, FLEET, {}, torch.device("meta"))
    assert (column.device.type, weights.device.type) == ("cpu", "meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu() -> None:
    gpu = torch.device("cuda")
    value = [torch.arange(3.0, device=gpu), torch.arange(3.0)]
    encoded = through_a_file(encode(value, FLEET))
    for device in (gpu, CPU):
        weights, column = decode(encoded, FLEET, {}, device)
        assert (weights.device.type, column.device.type) == (device.type, "cpu")
        assert weights.tolist() == column.tolist() == [0, 1, 2]


def test_the_fleet_itself_is_not_stored() -> None:
    fleet = Fleet(np.ones(1_000_000, dtype=np.int64), np.ones(1_000_000), seed=10**20)
    encoded = encode({"state": fleet, "again": fleet}, fleet)
    assert not encoded.tensors
    assert len(json.dumps(encoded.tree)) < 200
    found = decode(through_a_file(encoded), fleet, {}, CPU)
    assert found["state"] is found["again"] is fleet


def test_what_changed_in_a_fleet_is_stored() -> None:
    changed = replace(FLEET, expected_seconds=np.array([1.0, 2.0, 3.0]))
    one, other, unchanged = back((changed, changed, FLEET))
    assert one is other
    assert unchanged is FLEET
    assert one.num_samples is FLEET.num_samples
    assert one.expected_seconds.tolist() == [1.0, 2.0, 3.0]


ALGORITHMS: list[Any] = [
    HFL(),
    HFL(stragglers=KnownShare(0.5)),
    HFL(Memory(Diagonal())),
    HFL.as_printed(),
    FedAvg(Uniform(3)),
    FedAvg(FirstOf(2, 4)),
    FedAvg(Deadline(4, 2.0)),
    FedProx(partial=0.5, participants=Uniform(3)),
    FedAsync(),
    FedBuff(buffer=3),
    SSGD(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_every_algorithm_goes_on_from_what_comes_back(algorithm: Any) -> None:
    seconds = [1.0] if isinstance(algorithm, SSGD) else [1.0, 1.1, 1.5, 2.0, 5.0, 9.0]
    fleet = fleet_of(*range(1, len(seconds) + 1), seconds=seconds)
    simulation = Simulation(fleet, Towards(), lambda job: seconds[job.device] + 0.01 * job.version)
    classes = classes_of(algorithm)
    state, outbox = algorithm.init(torch.zeros(4), fleet)
    for _ in range(25):
        simulation.send(outbox)
        on_its_way = simulation.in_flight
        inbox = simulation.receive()
        before = {"state": state, "inbox": inbox, "in_flight": on_its_way}
        after = back(before, fleet, classes)
        assert told(after) == told(before)
        state, outbox = algorithm.step(state, inbox)
        assert told(algorithm.step(after["state"], after["inbox"])) == told((state, outbox))
    assert state.version > 2


def test_classes_are_found_by_way_of_the_fields() -> None:
    found = classes_of(HFL())
    for kind in (HFLState, Remembered, Job, Work):
        assert found[f"{kind.__module__}.{kind.__qualname__}"] is kind
    assert "hybridfl.algorithms.memory.Remembered" not in classes_of(FedAsync())


def test_an_algorithm_with_its_state_in_one_module_needs_nothing_else() -> None:
    algorithm = Counting()
    state, _ = algorithm.init(torch.zeros(2), FLEET)
    found = back(state, classes=classes_of(algorithm))
    assert told(found) == told(state)
    assert type(found.seen) is Counts
    assert "hybridfl.algorithms.fedbuff.FedBuffState" in classes_of(algorithm)


def test_so_does_one_that_is_a_script_or_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    code = """
from dataclasses import dataclass
from hybridfl.algorithms.hfl import HFL as Base
@dataclass(frozen=True)
class Mine(Base):
    @dataclass
    class Note: text: str
@dataclass(frozen=True)
class MyState: version: int
"""
    exec(code, vars(script))
    found = classes_of(script.Mine())
    assert found["__main__.MyState"] is script.MyState
    assert found["__main__.Mine.Note"] is script.Mine.Note
    assert "hybridfl.algorithms.hfl.HFLState" in found
    assert back(script.MyState(3), classes=found) == script.MyState(3)


def test_equal_names_in_two_modules_do_not_collide() -> None:
    @dataclass(frozen=True)
    class Other:
        x: int

    Other.__qualname__, Other.__module__ = "Point", "elsewhere"
    found = back([Point(1), Other(2)], classes=named([Point, Other]))
    assert [type(each) for each in found] == [Point, Other]


class Pair(NamedTuple):
    x: int


class Arbitrary:
    pass


def with_extra() -> Node:
    node = Node(1)
    vars(node)["note"] = 1
    return node


def without_value() -> Node:
    node = Node(1)
    del node.derived
    return node


@pytest.mark.parametrize(
    ("value", "where", "what", "remedy"),
    [
        (lambda: 1, "state.x.foo", "function", "a dataclass"),
        (Arbitrary(), "state.x.foo", "test_codec.Arbitrary", "a dataclass"),
        (Pair(1), "state.x.foo", "test_codec.Pair", "a dataclass"),
        (Counter("a"), "state.x.foo", "collections.Counter", "a dataclass"),
        (Point, "state.x.foo", "builtins.type", "a dataclass"),
        (np.array([None]), "state.x.foo", "numpy.ndarray", "tensors"),
        (np.array(["a"]), "state.x.foo", "numpy.ndarray", "tensors"),
        ([1, {"a": b"bytes"}], "state.x.foo[1].a", "builtins.bytes", "plain values"),
        ({3: (object(),)}, "state.x.foo[3][0]", "builtins.object", "a dataclass"),
        ({10**5000: object()}, "state.x.foo[...]", "builtins.object", "a dataclass"),
        ({"a", b"b"}, "state.x.foo (a member)", "builtins.bytes", "plain values"),
        ({b"b": 1}, "state.x.foo (a key)", "builtins.bytes", "plain values"),
        (torch.ones(2, requires_grad=True), "state.x.foo", "gradient", r"detach\(\)"),
        (torch.ones(2).to_sparse(), "state.x.foo", "sparse", "dense"),
        (torch.ones(2, dtype=torch.complex64), "state.x.foo", "complex", "real numbers"),
        (torch.nn.Parameter(torch.ones(2)), "state.x.foo", "Parameter", "tensors"),
        (with_extra(), "state.x.foo.note", "no field", "make it one"),
        (without_value(), "state.x.foo.derived", "no value", "give it one"),
        (Counts(()), "state.x.foo", "Counts, which would not be found", "the algorithm's module"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value: object, where: str, what: str, remedy: str) -> None:
    with pytest.raises(InputError, match=f"saved: {re.escape(where)} .*{what}.*: .*{remedy}"):
        encode({"state": Point({"foo": value})}, FLEET, CLASSES)


def test_the_value_itself_is_called_the_state() -> None:
    with pytest.raises(InputError, match=r"saved: the state is a builtins\.object"):
        encode(object(), FLEET)


def test_a_chain_that_is_too_long_is_refused() -> None:
    chain = functools.reduce(lambda chain, number: Node(number, chain), range(5000), None)
    with pytest.raises(InputError, match="nested too deeply"):
        encode(chain, FLEET)


@pytest.mark.parametrize("name", ["subprocess.Popen", "builtins.eval", "test_codec.Arbitrary", "hybridfl.protocol.Job"])
def test_a_class_that_was_not_named_is_not_made(name: str) -> None:
    tree = {"object": name, "fields": {"args": "ls"}, "id": 0}
    with pytest.raises(InputError, match=f"has a '{name}', which the algorithm does not know"):
        decode(Encoded(tree, {}), FLEET, CLASSES, CPU)


def test_a_class_whose_fields_are_others_now_is_refused() -> None:
    encoded = encode(Point(1, 2), FLEET)
    encoded.tree["fields"]["z"] = encoded.tree["fields"].pop("y")
    with pytest.raises(InputError, match="has the fields x, z; now it has x, y: go on with the code"):
        decode(encoded, FLEET, CLASSES, CPU)


@pytest.mark.parametrize("tree", [{"pickle": "gASV"}, {"id": 3}, {"number": "O", "bytes": "0000000000000000"}])
def test_a_tree_of_something_else_is_refused(tree: Any) -> None:
    with pytest.raises(InputError, match="cannot read: upgrade it"):
        decode(Encoded(tree, {}), FLEET, CLASSES, CPU)


def tuples_in_tuples(depth: int) -> Any:
    tree: Any = None
    for _ in range(depth):
        tree = {"tuple": [tree]}
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        {"same": 7},
        {"tensor": "cpu", "id": 9},
        {"tensor": "cpu", "id": []},
        {"array": "<f8", "shape": [2**62, 2**62], "id": 0},
        {"array": "<f8", "shape": [-1, "x"], "id": 0},
        {"array": "(9999999,)f8", "shape": [1], "id": 0},
        {"number": "<f8", "bytes": "zz"},
        {"number": "<f8", "bytes": ""},
        {"number": [], "bytes": ""},
        {"float": "00"},
        {"float": 1},
        {"int": 5},
        {"int": "ten"},
        {"text": "ff"},
        {"frozenset": [{"list": [], "id": 1}]},
        {"dict": [[{"list": [], "id": 2}, 1]], "id": 1},
        {"dict": [1], "id": 1},
        {"list": 5, "id": 1},
        {"tuple": 5},
        {"fleet": {"nobody": 1}, "id": 1},
        {"fleet": [], "id": 1, "same": 1},
        {"object": "hybridfl.protocol.Job", "fields": [], "id": 1},
        {"object": [], "fields": {}, "id": 1},
        tuples_in_tuples(5000),
    ],
)
def test_a_tree_that_makes_no_sense_is_one_line(tree: Any) -> None:
    encoded = Encoded(tree, {"0": torch.zeros(8, dtype=torch.uint8)})
    with pytest.raises(InputError) as said:
        decode(encoded, FLEET, named([Job, Point]), CPU)
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 1000


TREE_LEAVES = (
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["<f4", "(3,)i8", "00" * 8, "cpu"])
)
TREE_KEYS = (
    "same",
    "tuple",
    "frozenset",
    "number",
    "bytes",
    "float",
    "int",
    "text",
    "id",
    "list",
    "set",
    "dict",
    "tensor",
    "array",
)


def tree_node(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from([*TREE_KEYS, "shape", "fleet", "object", "fields", "x", "y"])
    return st.lists(children, max_size=4) | st.dictionaries(names, children, max_size=4)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.recursive(TREE_LEAVES, tree_node))
def test_any_tree_is_read_or_refused_in_one_line(tree: Any) -> None:
    with contextlib.suppress(InputError):
        decode(Encoded(tree, {"0": torch.zeros(8, dtype=torch.uint8)}), FLEET, named([Job, Point]), CPU)
