"""What the documentation names exists, and what it shows runs."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED_IN_MAP = re.findall(r"`((?:hybridfl\.|tests/)[^`]+)`", (ROOT / "docs" / "paper-map.md").read_text())


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}-{number}", block))
    return found


def commands() -> list[tuple[str, list[str]]]:
    """The `hybridfl …` lines of every shell block that has some; a backslash at a line's end continues it."""
    found = []
    for name, block in blocks("sh"):
        lines = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("hybridfl ")]
        found += [(name, lines)] if lines else []
    return found


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
def test_python_examples_run(name: str, code: str, tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("name", "lines"), commands(), ids=[name for name, _ in commands()])
def test_commands_run(name: str, lines: list[str], tmp_path: Path) -> None:
    executable = shutil.which("hybridfl", path=str(Path(sys.executable).parent))
    assert executable
    for line in lines:
        command = line.replace("hybridfl ", f"{executable} ", 1)
        result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{line}\n{result.stderr}"


def test_the_example_with_an_own_model_is_at_most_20_lines() -> None:
    (code,) = [code for name, code in blocks("python") if name.startswith("README") and "from_devices" in code]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_local_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
