import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import hybridfl

ROOT = Path(hybridfl.__file__).parent


def module_name(path: Path) -> str:
    """`algorithms.hfl` for src/hybridfl/algorithms/hfl.py."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(name: str) -> set[str]:
    """Everything a module imports, wherever in it: ours as `vectors`, others as `torch.func`, the package as `hybridfl`."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by a relative path"
            module = str(node.module)
            ours = [f"{module}.{alias.name}" for alias in node.names if is_ours(f"{module}.{alias.name}")]
            found |= set(ours) if len(ours) == len(node.names) else {module, *ours}
    return {each.removeprefix("hybridfl.") for each in found}


def is_ours(dotted: str) -> bool:
    return dotted.startswith("hybridfl.") and dotted.removeprefix("hybridfl.") in MODULES


def ours(name: str) -> set[str]:
    return {each for each in imported(name) if each in MODULES or each == "hybridfl"}


def reached(name: str) -> set[str]:
    """All of our modules that a module imports, or that those import, and so on."""
    seen, open_ends = set(), {name}
    while open_ends:
        one = open_ends.pop()
        seen.add(one)
        open_ends |= {each for each in ours(one) if each in MODULES} - seen
    return seen - {name}


def modules_in(package: str) -> list[str]:
    return [name for name in MODULES if name.startswith(f"{package}.")]


def test_imports_are_seen() -> None:
    assert {"protocol", "vectors"} <= ours("algorithms.fedavg")
    assert "torch" in imported("vectors")
    assert "dense_training" in ours("engines"), "also those inside functions"
    assert "randomness" in reached("experiment")


@pytest.mark.parametrize("name", ["protocol", "errors", "wording"])
def test_the_vocabulary_imports_nothing_of_ours(name: str) -> None:
    assert ours(name) == set()


@pytest.mark.parametrize("name", ["vectors", "randomness", "contract", "flags"])
def test_what_algorithms_are_made_with_imports_the_vocabulary_only(name: str) -> None:
    assert ours(name) <= {"protocol", "errors"}


@pytest.mark.parametrize("name", modules_in("algorithms"))
def test_algorithms_import_the_vocabulary_and_each_other_only(name: str) -> None:
    assert ours(name) <= {
        "protocol",
        "vectors",
        "randomness",
        "contract",
        "flags",
        "errors",
        "wording",
        *modules_in("algorithms"),
    }


@pytest.mark.parametrize("name", modules_in("algorithms"))
def test_algorithms_need_torch_and_numpy_and_nothing_that_does_io(name: str) -> None:
    pure = {"__future__", "collections", "dataclasses", "functools", "itertools", "math", "typing", "numpy", "torch"}
    others = {each.split(".")[0] for each in imported(name) - ours(name)}
    assert others <= pure


@pytest.mark.parametrize("name", ["run", "simulation", "training", "dense_training", "batches", "evaluation", "timing"])
def test_what_runs_an_algorithm_knows_no_algorithm(name: str) -> None:
    assert not reached(name) & {*modules_in("algorithms"), "experiment"}


@pytest.mark.parametrize("name", modules_in("data"))
def test_data_knows_nothing_of_learning(name: str) -> None:
    assert not reached(name) & {
        *modules_in("algorithms"),
        "simulation",
        "training",
        "dense_training",
        "experiment",
        "models",
    }


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("cli", "__main__")])
def test_nothing_imports_the_command_line(name: str) -> None:
    assert "cli" not in ours(name)


@pytest.mark.parametrize(
    "name",
    [
        "stored",
        "records",
        "interval",
        "summary",
        "summary_remarks",
        "charts",
        "panels",
        "plots",
        "fault_table",
        "headline",
        "report",
    ],
)
def test_reports_read_result_folders_only(name: str) -> None:
    drawn = {"summary", "summary_remarks", "charts", "panels", "plots", "fault_table", "headline", "report"}
    assert name in MODULES
    assert reached(name) <= {"errors", "wording", "seals", "stored", "records", "interval", *drawn}
    assert "hybridfl" not in imported(name)
    assert "torch" not in {each.split(".")[0] for each in imported(name)}


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: ours(name) & set(MODULES) for name in MODULES}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(MODULES)


def test_a_module_is_named_after_what_it_holds() -> None:
    last_names = {name.split(".")[-1] for name in MODULES}
    assert not last_names & {"utils", "util", "helpers", "common", "misc", "core"}


def test_every_public_name_can_be_imported() -> None:
    names = vars(hybridfl)["__all__"]
    assert {"HFL", "simulate", "Task"} <= set(names) <= set(dir(hybridfl))
    for name in names:
        assert getattr(hybridfl, name) is not None


def test_importing_the_package_does_not_load_pytorch() -> None:
    code = "import sys, hybridfl; print(hybridfl.__version__, 'torch' in sys.modules, 'numpy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split()[1:] == ["False", "False"]
