"""What the documentation names exists, and what it shows runs."""

import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED_IN_MAP = [
    name
    for page in ("paper-map.md", "reliability.md", "deploy.md")
    for name in re.findall(r"`((?:hybridfl\.|tests/)[^`]+)`", (ROOT / "docs" / page).read_text())
]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}-{number}", block))
    return found


REAL_DATA = re.compile(r"mnist|shakespeare|sent140")


def shell_blocks() -> list[ParameterSet]:
    """Shell blocks that call `hybridfl`, but for those that need a fleet (`tests/flower/test_deploy_page.py`)."""
    return [
        pytest.param(
            block,
            id=name,
            marks=[
                *([pytest.mark.data] if REAL_DATA.search(block) else []),
                *([pytest.mark.xdist_group("ray")] if "--ray" in block else []),
            ],
        )
        for name, block in blocks("sh")
        if re.search(r"^ *hybridfl ", block, re.MULTILINE) and "flwr run" not in block and "deploy" not in block
    ]


@pytest.mark.parametrize("name", sorted({name for name in NAMED_IN_MAP if name.startswith("hybridfl.")}))
def test_every_object_of_the_map_exists(name: str) -> None:
    parts = name.split(".")
    depth = next(d for d in range(len(parts), 0, -1) if (ROOT / "src" / Path(*parts[:d])).with_suffix(".py").exists())
    found: object = importlib.import_module(".".join(parts[:depth]))
    for part in parts[depth:]:
        found = getattr(found, part)


@pytest.mark.parametrize("name", sorted({name for name in NAMED_IN_MAP if name.startswith("tests/")}))
def test_every_test_of_the_map_exists(name: str) -> None:
    path, _, function = name.partition("::")
    text = (ROOT / path).read_text()
    assert f"def {function or 'test_'}" in text


def test_every_equation_of_the_method_is_in_the_map() -> None:
    page = (ROOT / "docs" / "paper-map.md").read_text()
    labels = ("Formulation", "Local_objective", "local", "joint", "Taylor", "Outer_matrix", "newgrad", "Lambda", "New")
    for label in labels:
        assert f"Eq. ({label})" in page
    assert "Algorithm 1" in page
    assert "Algorithm 2" in page


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_python_examples_run(name: str, code: str, tmp_path: Path, python: list[str]) -> None:
    (tmp_path / "example.py").write_text(code)
    command = [*python, str(tmp_path / "example.py")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_example_with_an_own_model_is_read_back_when_it_is_run_again(tmp_path: Path, python: list[str]) -> None:
    (code,) = [code for name, code in blocks("python") if name.startswith("README") and "from_devices" in code]
    (tmp_path / "example.py").write_text(code)
    command = [*python, str(tmp_path / "example.py")]
    first, again = (subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True) for _ in range(2))
    assert again.stdout == first.stdout
    assert first.stderr == ""
    assert "holds this run already: it is read back" in again.stderr


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words that run a file of Python, without the seconds that loading PyTorch takes."""
    address = tmp_path_factory.mktemp("warm") / "python"
    warm = [sys.executable, "-S", str(ROOT / "tests" / "warm.py"), str(address)]
    with subprocess.Popen([word for word in warm if word != "-S"]) as waiting:
        while not address.exists():
            assert waiting.poll() is None
            time.sleep(0.05)
        yield warm
        waiting.terminate()


SMALLER = """\
import sys
import hybridfl.cli
from hybridfl.cli import main
from hybridfl.data.store import data_set
budget = {
    "run": "--seconds 2 --devices 12 --batch-size 200 --epochs 1 --evaluate-every 9",
    "compare": "--seconds 2 --devices 12 --batch-size 200 --epochs 1 --seeds 1 --evaluate-every 9",
}
sys.argv += budget.get(sys.argv[1], "").split()
sys.argv = [argument.replace("sequences=20000", "sequences=1000") for argument in sys.argv]
# A comparison's report takes longer than its runs; `hybridfl report` has its own examples.
hybridfl.cli._report = lambda *arguments, **options: None
if sys.argv[1:3] == ["data", "fetch"]:  # no test touches the internet
    data_set(sys.argv[3])
else:
    main()
"""


@pytest.mark.parametrize("block", shell_blocks())
def test_shell_examples_run(block: str, tmp_path: Path, python: list[str]) -> None:
    """As they stand, but with a smaller fleet and budget: the last of two equal options counts."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "smaller.py").write_text(SMALLER)
    (tmp_path / "bin" / "hybridfl").write_text(f'#!/bin/sh\nexec {" ".join(python)} {tmp_path}/bin/smaller.py "$@"\n')
    (tmp_path / "bin" / "hybridfl").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = ["bash", "-euc", block]
    result = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_example_with_an_own_model_is_at_most_20_lines() -> None:
    (code,) = [code for name, code in blocks("python") if name.startswith("README") and "from_devices" in code]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_local_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r'(?:\]\(|src=")([^)#"]+)', page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
