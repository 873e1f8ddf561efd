import dataclasses
import importlib
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hybridfl import HFL, FedAvg, FullWork, LogisticRegression, PaperDelays, cross_entropy
from hybridfl.provenance import code_of, repr_of

HELPERS = """
SCALE = 2.0

def scaled(x):
    return x * SCALE
"""

MINE = '''
import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import {helpers}
from {helpers} import scaled

log = logging.getLogger(__name__)
SLOPE = 0.1
TABLE = {{"a": 1, "b": [2, 3]}}
CALLS = 0

class Base(nn.Module):
    width = 4

    def between(self, x):
        return torch.relu(x)

class Net(Base):
    """A model."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.gain = gain

    def forward(self, x):
        """What it computes."""
        global CALLS
        CALLS = CALLS + 1
        log.debug("forward")
        return self.between(self.layer(x)) * self.gain + SLOPE * TABLE["a"]

def make_loss(factor):
    def loss(outputs, targets):
        return factor * scaled(F.cross_entropy(outputs, targets, reduction="none"))
    return loss

def by_module(outputs, targets, power=2):
    return {helpers}.scaled((outputs - targets) ** power)

@dataclass(frozen=True)
class Law:
    mean: float = 1.0

    def draw(self, draw, count):
        return draw.exponential(self.mean, count) if count in {{"x", "y", 1, 2}} else [self.mean] * count
'''

Loaded = Callable[[str, str], ModuleType]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loaded]:
    """Writes a user's two modules and imports them anew; text is replaced as told."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = [f"mine_{tmp_path.name}".replace("-", "_"), f"helpers_{tmp_path.name}".replace("-", "_")]

    def load(old: str, new: str) -> ModuleType:
        mine, helpers = MINE.format(helpers=names[1]), HELPERS
        assert old in mine or old in helpers
        for name, text in zip(names, (mine, helpers), strict=True):
            (tmp_path / f"{name}.py").write_text(text.replace(old, new))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(names[0])

    yield load
    for name in names:
        sys.modules.pop(name, None)


PARTS: dict[str, Callable[[ModuleType], object]] = {
    "model": lambda mine: mine.Net(),
    "loss": lambda mine: mine.make_loss(1.0),
    "by_module": lambda mine: mine.by_module,
    "fleet": lambda mine: mine.Law(),
}


@pytest.mark.parametrize(
    ("part", "old", "new", "piece"),
    [
        ("model", "torch.relu(x)", "torch.tanh(x)", "Base.between"),
        ("model", "SLOPE = 0.1", "SLOPE = 0.2", ".SLOPE"),
        ("model", '"b": [2, 3]', '"b": [2, 4]', ".TABLE"),
        ("model", "width = 4", "width = 5", "Base"),
        ("model", "gain=1.0", "gain=2.0", "model"),
        ("model", "* self.gain", "/ self.gain", "Net.forward"),
        ("loss", "return factor *", "return 5 * factor *", "make_loss.<locals>.loss"),
        ("loss", "SCALE = 2.0", "SCALE = 3.0", ".SCALE"),
        ("loss", "return x * SCALE", "return x + SCALE", "scaled"),
        ("by_module", "power=2", "power=4", "by_module"),
        ("by_module", "return x * SCALE", "return x + SCALE", "scaled"),
        ("fleet", "mean: float = 1.0", "mean: float = 2.0", "fleet"),
        ("fleet", "draw.exponential", "draw.poisson", "Law.draw"),
        ("fleet", '"y", 1, 2', '"z", 1, 2', "Law.draw"),
    ],
)
def test_an_edit_of_what_a_part_reaches_is_seen_and_named(
    loaded: Loaded, part: str, old: str, new: str, piece: str
) -> None:
    before = code_of(**{part: PARTS[part](loaded(old, old))})
    after = code_of(**{part: PARTS[part](loaded(old, new))})
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    assert any(name.endswith(piece) for name in changed), changed


@pytest.mark.parametrize("part", list(PARTS))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Net", "# a remark\n\n\nclass Net"),
        ('"""What it computes."""', '"""What it really computes."""'),
        ('"""A model."""', '"""My model."""'),
        ("SCALE = 2.0", "SCALE = 2.0\nUNUSED = 7"),
        ("CALLS = 0", "CALLS = 9"),
    ],
)
def test_remarks_docstrings_moved_lines_and_what_is_not_used_change_nothing(
    loaded: Loaded, part: str, old: str, new: str
) -> None:
    assert code_of(**{part: PARTS[part](loaded(old, old))}) == code_of(**{part: PARTS[part](loaded(old, new))})


def test_running_the_code_does_not_change_it(loaded: Loaded) -> None:
    """A counter that a forward assigns, and a logger that remembers its levels, are no constants."""
    model = loaded("CALLS", "CALLS").Net()
    before = code_of(model=model)
    model(torch.zeros(1, 3))
    assert code_of(model=model) == before


def test_a_closure_counts_by_what_it_holds(loaded: Loaded) -> None:
    make = loaded("factor", "factor").make_loss
    assert code_of(loss=make(1.0)) == code_of(loss=make(1.0))
    assert code_of(loss=make(1.0)) != code_of(loss=make(5.0))


def test_what_a_model_holds_counts_even_if_it_does_not_print_it(loaded: Loaded) -> None:
    net = loaded("gain", "gain").Net
    assert repr(net(1.0)) == repr(net(3.0))
    assert code_of(model=net(1.0)) != code_of(model=net(3.0))
    assert code_of(loss=nn.MSELoss(reduction="none")) != code_of(loss=nn.MSELoss())
    activated = [nn.Sequential(nn.Linear(3, 2)) for _ in range(2)]
    activated[0].act, activated[1].act = torch.tanh, torch.relu  # type: ignore[assignment]
    assert code_of(model=activated[0]) != code_of(model=activated[1])


def test_a_hook_counts() -> None:
    plain, hooked = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))
    hooked[0].register_forward_hook(lambda module, inputs, outputs: outputs * 2)
    assert code_of(model=plain) != code_of(model=hooked)


def test_the_weights_of_the_tasks_own_model_are_no_code() -> None:
    """They have their own checksum. A recurrent layer keeps its parameters in a list besides."""
    assert code_of(model=nn.LSTM(3, 2)) == code_of(model=nn.LSTM(3, 2))
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    penalties = [lambda outputs, targets, at=model: at.weight.sum() for model in models]
    one, other = (code_of(model=model, loss=penalty) for model, penalty in zip(models, penalties, strict=True))
    assert one == other
    assert code_of(model=models[0], loss=penalties[0]) != code_of(model=models[0], loss=penalties[1])


def test_a_model_that_was_scored_is_the_same_model() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    before = code_of(model=model)
    assert code_of(model=model.eval()) == before


def test_of_hybridfls_own_parts_there_is_no_piece() -> None:
    code = code_of(algorithm=HFL(), model=LogisticRegression(3, 2), loss=cross_entropy, fleet=PaperDelays())
    assert sorted(code) == ["algorithm", "fleet", "loss", "model"]
    assert code["algorithm"] != code_of(algorithm=HFL(local=FullWork(epochs=1)))["algorithm"]


@pytest.mark.processes
def test_digests_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Sets are ordered by hashes, which differ between processes; modules are compiled once and then read back."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "mine.py").write_text(MINE.format(helpers="helpers"))
    code = (
        "import mine; from hybridfl.provenance import code_of;"
        "print(code_of(model=mine.Net(), b=mine.make_loss(2.0), c=mine.Law(), d=mine.by_module))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert "mine.Net.forward" in said.pop()


def test_a_text_without_addresses() -> None:
    def schedule(version: int) -> float:
        return 0.1

    text = repr_of(FedAvg(local=FullWork(learning_rate=schedule)))
    assert "learning_rate=test_a_text_without_addresses.<locals>.schedule," in text
    assert "0x" not in repr_of([object(), schedule, torch.tanh, lambda x: x, "".join, HFL().init])


CONFIGURED = """
import functools, json, sys
from dataclasses import dataclass
from typing import Any

import torch
from hybridfl import ConstantRate, FedAvg, FullWork, Run, Synthetic, Task

class Bare:
    def rate(self, version):
        return 0.1

@dataclass(frozen=True)
class Mine(FedAvg):
    extra: Any = None
    tags: frozenset = frozenset({"delta", "alpha", "gamma", "beta"})
    named: Any = ()

def local(scale):
    def loss(outputs, targets):
        return scale * torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return loss

def loss(outputs, targets, scale=1.0):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

synthetic = Synthetic().build(4, 0)
losses = [
    lambda outputs, targets: loss(outputs, targets),
    functools.partial(lambda outputs, targets, scale: loss(outputs, targets), scale={"b": 1, "a": {3, 1, 2}}),
    local(2.0),
    functools.partial(loss, scale=Bare()),
]
schedules = [lambda version: 0.1, functools.partial(lambda version, at: at, at=0.1), Bare().rate, ConstantRate(0.1)]
for each, schedule in zip(losses, schedules, strict=True):
    task = Task("mine", synthetic.train, synthetic.test, synthetic.model, each)
    held = [Bare(), each, Bare().rate, {"x", "y", ("z", Bare)}]
    algorithm = Mine(2, FullWork(learning_rate=schedule), extra=Bare(), named=(held, {"k": {"p", "q", "r"}}))
    print(json.dumps(Run(task, algorithm, "paper", rounds=1, guard="on").config))
"""


@pytest.mark.processes
def test_a_configuration_has_no_address_and_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "configured.py").write_text(CONFIGURED)
    said = [
        subprocess.run(
            [sys.executable, str(tmp_path / "configured.py")],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert len(said[0].splitlines()) == 4
    assert "0x" not in said[0]
    assert said[0] == said[1] == said[2]


Made = Callable[..., dict[str, str]]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """The digests of the `loss` of a user's module, given its text and other modules'."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made: set[str] = set()

    def of(text: str, others: dict[str, str] | None = None) -> dict[str, str]:
        files = {"theirs": text} | (others or {})
        for name, each in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(each)
            made.add(name.split("/")[0])
        for name in [name for name in sys.modules if name.split(".")[0] in made]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return code_of(loss=importlib.import_module("theirs").loss)

    yield of
    for name in [name for name in sys.modules if name.split(".")[0] in made]:
        del sys.modules[name]


SEEN = {
    "weights of a class": "import torch\nloss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1., NUMBER]))",
    "a buffer": """
import torch
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.tensor(NUMBER))
    def forward(self, o, t): return o * self.k
loss = Loss()""",
    "a teacher": """
import torch
torch.manual_seed(int(NUMBER))
teacher = torch.nn.Linear(2, 2)
def loss(o, t): return o - teacher(o)""",
    "a parameter": "import torch\nP = torch.nn.Parameter(torch.tensor(NUMBER))\ndef loss(o, t): return o * P",
    "no_grad": "import torch\n@torch.no_grad()\ndef h(o): return o * NUMBER\ndef loss(o, t): return h(o)",
    "inference_mode": "import torch\n@torch.inference_mode()\ndef h(o): return o * NUMBER\ndef loss(o, t): return h(o)",
    "contextmanager": """
import contextlib
@contextlib.contextmanager
def h(): yield NUMBER
def loss(o, t):
    with h() as s: return o * s""",
    "singledispatch": "import functools\n@functools.singledispatch\ndef h(o): return NUMBER\ndef loss(o, t): return h(o)",
    "vmap": "import torch\nloss = torch.vmap(lambda o, t: o * NUMBER)",
    "grad": "import torch\ng = torch.func.grad(lambda o: o * NUMBER)\ndef loss(o, t): return g(o)",
    "a class that decorates": """
import functools
class Scaled:
    def __init__(self, f, k):
        functools.update_wrapper(self, f)
        self.k = k
    def __call__(self, o, t): return self.k * self.__wrapped__(o, t)
def base(o, t): return o
loss = Scaled(base, NUMBER)""",
    "slots": """
class L:
    __slots__ = ("k",)
    def __call__(self, o, t): return o * self.k
loss = L()
loss.k = NUMBER""",
    "a method of a dict": "class C(dict):\n    def k(s): return NUMBER\nD = C()\ndef loss(o, t): return o * D.k()",
    "a value in a dict of the user's": "class C(dict): pass\nD = C(a=NUMBER)\ndef loss(o, t): return o * D['a']",
    "a method of a float": "class C(float):\n    def k(s): return NUMBER\nD = C(1)\ndef loss(o, t): return o * D.k()",
    "a float of the user's": "class C(float): pass\nD = C(NUMBER)\ndef loss(o, t): return o * D",
    "a list of the user's": "class C(list): pass\nD = C([NUMBER])\ndef loss(o, t): return o * D[0]",
    "a deque of the user's": """
import collections
class C(collections.deque): pass
D = C([NUMBER])
def loss(o, t): return o * D[0]""",
    "a method of a named tuple": """
from typing import NamedTuple
class C(NamedTuple):
    a: int = 1
    def k(self): return NUMBER
D = C()
def loss(o, t): return o * D.k()""",
    "an attribute that is no field": """
import dataclasses
@dataclasses.dataclass
class L:
    a: int = 0
    def __call__(self, o, t): return o * self.k
loss = L()
loss.k = NUMBER""",
    "partialmethod": """
import functools
class L:
    def f(self, o, t, k): return o * k
    __call__ = functools.partialmethod(f, k=NUMBER)
loss = L()""",
    "singledispatchmethod": """
import functools
class L:
    @functools.singledispatchmethod
    def f(self, o): return o * NUMBER
    def __call__(self, o, t): return self.f(o)
loss = L()""",
    "a metaclass": """
class M(type):
    def k(cls): return NUMBER
class C(metaclass=M): pass
def loss(o, t): return o * C.k()""",
    "an attribute of a function": "def loss(o, t): return o * loss.k\nloss.k = NUMBER",
    "members of an enum": "import enum\nclass E(enum.Enum):\n    A = [NUMBER]\ndef loss(o, t): return o * E.A.value[0]",
    "a deque": "import collections\nD = collections.deque([NUMBER])\ndef loss(o, t): return o * D[0]",
    "a bytearray": "D = bytearray([int(NUMBER)])\ndef loss(o, t): return o * D[0]",
    "an array": "import array\nD = array.array('d', [NUMBER])\ndef loss(o, t): return o * D[0]",
    "a fraction": "from fractions import Fraction\nD = Fraction(1, int(NUMBER))\ndef loss(o, t): return o * D",
    "a decimal": "from decimal import Decimal\nD = Decimal(NUMBER)\ndef loss(o, t): return o * float(D)",
    "a pattern": "import re\nD = re.compile('aNUMBER')\ndef loss(o, t): return o * bool(D.match('a'))",
    "a distribution": "import torch\nD = torch.distributions.Normal(0., NUMBER)\ndef loss(o, t): return -D.log_prob(o)",
    "vectorize": "import numpy as np\nV = np.vectorize(lambda o: o * NUMBER)\ndef loss(o, t): return V(o)",
    "poly1d": "import numpy as np\nV = np.poly1d([NUMBER, 1])\ndef loss(o, t): return V(o)",
    "methodcaller": "import operator\nV = operator.methodcaller('mul', NUMBER)\ndef loss(o, t): return V(o)",
    "cycle": "import itertools\nM = itertools.cycle([NUMBER])\ndef loss(o, t): return o * next(M)",
    "an object array": "import numpy as np\nA = np.array(['a', NUMBER], dtype=object)\ndef loss(o, t): return o * A[1]",
    "two lambdas": """
a, b = lambda o: o * 2.0, lambda o: o * 3.0
H = [a, b] if NUMBER == 2.0 else [b, a]
def loss(o, t): return H[0](o)""",
    "two classes": """
def made(k):
    class C:
        def k(self): return k
    return C
D = [made(NUMBER)(), made(5.0 - NUMBER)()]
def loss(o, t): return o * D[0].k()""",
    "an alias": "X, Y = [1.], [1.]\nD = [X, Y, X if NUMBER == 2.0 else Y]\ndef loss(o, t): return o * len(D)",
    "deep in a list": """
D = [NUMBER]
for _ in range(5000): D = [D]
def loss(o, t): return o * len(D)""",
    "how arguments are taken": "if NUMBER == 2.0:\n    def loss(o, *t): return t\nelse:\n    def loss(o, t): return t",
    "what is caught": """
def loss(o, t):
    s = 1
    #A
    try:
        #B
        s = 2
    except ValueError:
        s = 3
    return s""",
}


@pytest.mark.parametrize("text", SEEN.values(), ids=SEEN)
def test_what_is_held_is_seen_and_the_same_twice(code: Made, text: str) -> None:
    places = {"2.0": ("A", "t()"), "3.0": ("B", "t()")}
    one, same, other = (
        code(text.replace("NUMBER", number).replace("#" + places[number][0], places[number][1]))
        for number in ("2.0", "2.0", "3.0")
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    "text",
    [
        "import setting.part\ndef loss(o, t): return o * setting.part.SCALE",
        "from setting import part\ndef loss(o, t): return o * part.SCALE",
        "def loss(o, t):\n    import setting.part\n    return o * setting.part.SCALE",
        "def loss(o, t):\n    import setting.part as q\n    return o * q.SCALE",
        "def loss(o, t):\n    from setting import part\n    return o * part.SCALE",
        "def loss(o, t):\n    from setting.part import SCALE\n    return o * SCALE",
        "from setting import part\nclass H: m = part\nh = H()\ndef loss(o, t): return o * h.m.SCALE",
        "from setting import part\nclass H: pass\nh = H()\nh.m = part\ndef loss(o, t): return o * h.m.SCALE",
        "from setting.inner import loss",
    ],
)
def test_a_constant_of_a_module_is_seen_however_it_is_imported(code: Made, text: str) -> None:
    inner = "def loss(o, t):\n    from . import part\n    from .part import SCALE as s\n    return o * part.SCALE"
    one, other, unused = (
        code(text, {"setting/__init__": "", "setting/part": part, "setting/inner": inner})
        for part in ("SCALE = 2.0\nUNUSED = 1", "SCALE = 3.0\nUNUSED = 1", "SCALE = 2.0\nUNUSED = 2")
    )
    assert one != other
    assert one == unused


def test_an_import_inside_a_function_changes_nothing_when_it_has_run(code: Made) -> None:
    text = "def loss(o, t):\n    import setting\n    import no_such_package, broken\n    return o * setting.SCALE"
    before = code(text, {"setting": "SCALE = 2.0", "broken": "1 / 0"})
    importlib.import_module("setting")
    assert code_of(loss=sys.modules["theirs"].loss) == before


def test_an_installed_module_counts_by_its_version(code: Made) -> None:
    assert "scipy" in code("import scipy.special as sp\ndef loss(o, t): return sp.expit(o)")
    assert "pillow" in {name.lower() for name in code("def loss(o, t):\n    import PIL\n    return PIL")}


STRANGE = """
import argparse, logging, os, random, threading
import numpy as np, torch
from torch import nn

class Bare(dict):
    def __getattr__(self, name): return self[name]

class Node:
    def __init__(self, next): self.next = next

class Liar:
    __class__ = dict

def yields(): yield 1

nodes = None
for _ in range(3000): nodes = Node(nodes)
twice = (1,)
for _ in range(100): twice = (twice, twice)
loop = []
loop.append(loop)
scaled = lambda k: lambda x: x * k
compiled = torch.compile(nn.Linear(2, 2).requires_grad_(False).apply(lambda layer: [w.zero_() for w in layer.parameters()]))
complex_ones = torch.ones(3, dtype=torch.complex64)
log, lock = logging.getLogger("x"), threading.Lock()
here = open(__file__)
HELD = [
    Bare(a=1), compiled, nodes, twice, loop, Liar(),
    log, log.root, lock, here, yields(), object(), memoryview(b"a"), os.environ,
    torch.eye(3).to_sparse(), torch.eye(4).to_sparse_csr(), torch.eye(4).to_sparse_csc(), torch.empty(3, device="meta"),
    complex_ones.conj(), complex_ones.conj().imag, torch.ones(3, dtype=torch.bfloat16), torch.ones(1).expand(3),
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), nn.LazyLinear(3), torch.ones(()),
    {scaled(1), scaled(2), scaled(3), scaled(4)}, {"a", "b", "c"}, {Node("a"), Node("b"), Node("c")},
    {Node(scaled(each)): each for each in range(4)}, {each: {"x": each} for each in {"a", "b", "c", "d"}},
    np.array([{"a": 1}, "b", Node(1)], dtype=object), np.array([(1, "a")], dtype="i4,O"), np.zeros(0), 10**5000,
    random, random.random, np.random, np.random.normal, torch.default_generator, nn.Linear, len, "".join, str.upper,
]

def loss(o, t):
    return HELD if t in {"p", "q", "r"} else o
"""


@pytest.mark.processes
def test_strange_values_neither_stop_the_walk_nor_depend_on_the_process(tmp_path: Path) -> None:
    (tmp_path / "strange.py").write_text(STRANGE)
    call = "import strange, warnings; from hybridfl.provenance import code_of; print(code_of(loss=strange.loss))"
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", call],
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1, said


def test_a_chain_of_a_thousand_functions_is_followed_to_its_end(code: Made) -> None:
    chain = "\n".join(f"def f{i}(x): return f{i + 1}(x)" for i in range(1000))
    closures = "def over(f): return lambda x: f(x)\ng = f1000\nfor _ in range(1000): g = over(g)"
    text = f"{chain}\ndef f1000(x): return x * 2.0\n{closures}\ndef loss(o, t): return f0(g(o))"
    assert code(text)["theirs.f1000"] != code(text.replace("2.0", "3.0"))["theirs.f1000"]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_and_views_count_by_their_numbers() -> None:
    eye, ones = torch.eye(3), torch.full((3,), 1 + 2j)
    for held in (
        eye.to_sparse(),
        eye.to_sparse_csr(),
        eye.to_sparse_csc(),
        ones.conj(),
        ones.conj().imag,
        eye.bfloat16(),
    ):
        assert code_of(loss=[held]) == code_of(loss=[held.clone()])
        assert code_of(loss=[held]) != code_of(loss=[held * 2])


def test_numba_and_cached_functions_are_followed_to_what_they_compile(code: Made) -> None:
    for decorator in ("numba.njit", "functools.lru_cache"):
        text = f"import functools, numba\n@{decorator}\ndef h(o): return o * 2.0\ndef loss(o, t): return h(o)"
        assert code(text)["theirs.h"] != code(text.replace("2.0", "3.0"))["theirs.h"]


def test_using_a_cache_of_functools_changes_nothing(code: Made) -> None:
    before = code("""
import functools, torch
@functools.lru_cache
def f(o): return o
@functools.singledispatch
def g(o): return o
class L:
    @functools.cached_property
    def k(self): return 2.0
    def __call__(self, o, t): return f(o) * g(t) * self.k
loss = L()""")
    loss = sys.modules["theirs"].loss
    loss(1, 2)
    assert code_of(loss=loss) == before


def test_a_large_model_and_a_large_tensor_take_no_time() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

    model = nn.Sequential(*[Layer() for _ in range(500)])
    began = time.process_time()
    code_of(model=model)
    assert time.process_time() - began < 0.5  # of 1000 modules

    big = torch.zeros(25_000_000)
    began = time.process_time()
    code_of(loss=big)
    once = time.process_time() - began
    began = time.process_time()
    code_of(loss=[lambda o, t, each=each: (big, each) for each in range(20)], held=np.zeros(3))
    assert time.process_time() - began < 4 * once + 0.5


MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
    def forward(self, x):
        return torch.FUNCTION(self.layer(x))
"""


@pytest.mark.parametrize("names", [{}, {"__name__": "made"}], ids=["nameless", "named"])
def test_code_that_exec_ran_is_code(names: dict[str, str]) -> None:
    """Without a `__name__`, `exec` makes classes of the module `builtins`, which passed for installed ones."""

    def digests(function: str) -> dict[str, str]:
        space = dict(names)
        exec(MODEL.replace("FUNCTION", function), space)
        net: Any = space["Net"]
        return code_of(model=net())

    assert digests("relu") == digests("relu") != digests("tanh")


def test_classes_that_types_and_dataclasses_make_are_code() -> None:
    def made(factor: float) -> list[dict[str, str]]:
        def call(self: object, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return factor * outputs

        kinds = [
            types.new_class("Loss", (), {}, lambda space: space.update(__call__=call)),
            dataclasses.make_dataclass("Loss", [], namespace={"__call__": call}),
        ]
        return [code_of(loss=kind()) for kind in kinds]

    for one, same, other in zip(made(1.0), made(1.0), made(2.0), strict=True):
        assert one == same != other


@pytest.mark.processes
def test_torchscript_is_code(tmp_path: Path) -> None:
    """It is compiled, and what it was pickled with was nothing."""
    (tmp_path / "scripted.py").write_text(
        "import sys, torch\nfrom torch import nn\nfrom hybridfl.provenance import code_of\n"
        "def loss(outputs, targets):\n    return (outputs - targets).FUNCTION()\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 1)\n"
        "    def forward(self, x):\n        return self.layer(x).FUNCTION()\n"
        "torch.manual_seed(0)\nnet = Net()\n"
        "parts = [torch.jit.script(net), torch.jit.trace(net, torch.zeros(1, 2))]\n"
        "print([code_of(model=each) for each in parts], code_of(loss=torch.jit.script(loss)))\n"
    )
    text = (tmp_path / "scripted.py").read_text()

    def printed(function: str, moved: str = "") -> str:
        (tmp_path / "scripted.py").write_text(moved + text.replace("FUNCTION", function))
        command = [sys.executable, "-W", "ignore", str(tmp_path / "scripted.py")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    found = printed("abs")
    assert found == printed("abs", moved="# a remark\n\n")
    for one, other in zip(found.split("}"), printed("square").split("}"), strict=True):
        assert one != other or one in ("]", "\n", " ", "] ")


@pytest.mark.processes
def test_a_module_run_by_name_has_its_own_name(tmp_path: Path) -> None:
    package = tmp_path / "theirs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text(
        "from hybridfl.provenance import code_of\n"
        "def loss(outputs, targets):\n    return outputs - targets\n"
        "def main():\n    print(code_of(loss=loss))\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    commands = [["-m", "theirs.mine"], ["-c", "import theirs.mine; theirs.mine.main()"]]
    said = [
        subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        for command in commands
    ]
    assert said[0] == said[1]
    assert "theirs.mine.loss" in said[0]


def test_attributes_of_a_model_that_are_named_like_hooks_count() -> None:
    def digests(scale: float) -> dict[str, str]:
        model = nn.Linear(2, 2)
        model.grad_hooks = [print]  # type: ignore[assignment]
        model.hooks_scale = scale  # type: ignore[assignment]
        return code_of(model=model)

    assert digests(1.0) == digests(1.0) != digests(2.0)
