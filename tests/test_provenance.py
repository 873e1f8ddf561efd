import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

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
        ("model", "SLOPE = 0.1", "SLOPE = 0.2", "Net.forward"),
        ("model", '"b": [2, 3]', '"b": [2, 4]', "Net.forward"),
        ("model", "width = 4", "width = 5", "Base"),
        ("model", "gain=1.0", "gain=2.0", "model"),
        ("model", "* self.gain", "/ self.gain", "Net.forward"),
        ("loss", "return factor *", "return 5 * factor *", "make_loss.<locals>.loss"),
        ("loss", "SCALE = 2.0", "SCALE = 3.0", "scaled"),
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
    assert code_of(part=PARTS[part](loaded(old, old))) == code_of(part=PARTS[part](loaded(old, new)))


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


def test_weights_are_no_code() -> None:
    """They have their own checksum. A recurrent layer keeps its parameters in a list besides."""
    assert code_of(model=nn.LSTM(3, 2)) == code_of(model=nn.LSTM(3, 2))


def test_of_hybridfls_own_parts_there_is_no_piece() -> None:
    code = code_of(algorithm=HFL(), model=LogisticRegression(3, 2), loss=cross_entropy, fleet=PaperDelays())
    assert sorted(code) == ["algorithm", "fleet", "loss", "model"]
    assert code["algorithm"] != code_of(algorithm=HFL(local=FullWork(epochs=1)))["algorithm"]


def test_digests_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Sets are ordered by hashes, which differ between processes; modules are compiled once and then read back."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "mine.py").write_text(MINE.format(helpers="helpers"))
    code = (
        "import mine; from hybridfl.provenance import code_of;"
        "print(code_of(a=mine.Net(), b=mine.make_loss(2.0), c=mine.Law(), d=mine.by_module))"
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
