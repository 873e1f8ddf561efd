"""What computes a run besides hybridfl: a digest of every piece of the user's own code that its parts reach.

A folder of results belongs to the code that computed them. The user's algorithm, model, loss, laws are followed to the
functions and classes they call in the user's own modules, and to the values those hold: closures, defaults, constants of
modules, attributes of objects. What is installed beside Python (PyTorch, hybridfl itself) is known by its version.

Digests are of bytecode: a comment, a docstring or a moved line changes nothing, an edited step does.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import re
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), PurePath, np.generic)
_KNOWN = ("hybridfl", "torch", "numpy", "numba", "builtins")
"""Their versions are a run's anyway."""
_PLAIN_TOO = (torch.dtype, torch.device, torch.Size, range, slice)


def code_of(**parts: object) -> dict[str, str]:
    """A digest of what each part is and holds, and one of every piece of the user's code that the parts reach, by name.

    >>> def loss(outputs, targets):
    ...     return (outputs - targets) ** 2
    >>> list(code_of(loss=loss))
    ['hybridfl.provenance.loss', 'loss']
    """
    walk = _Walk()
    for role, part in parts.items():
        walk.add(role, walk.value(part))
    return {name: walk.found[name].hexdigest() for name in sorted(walk.found)}


def repr_of(value: object) -> str:
    """`repr(value)`, the same for the same value tomorrow: without memory addresses, sets in an order of their own.

    NumPy's numbers are written as Python's: they are the same value.

    >>> repr_of({"b", "a"})
    "{'a', 'b'}"
    """
    plain = re.sub(r"np\.(?:float64|int\d+|uint\d+|bool)\(([^()]*)\)", r"\1", _written(value))
    named = re.sub(r"<(?:function|built-in function) ([^<>]*(?:<\w+>[^<>]*)*?)(?: at 0x[0-9a-fA-F]+)?>", r"\1", plain)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", named)


def _written(value: Any) -> str:
    """`repr(value)`, but for the sets in it, which Python orders by chance."""
    if type(value) is frozenset and value:
        return f"frozenset({_written(set(value))})"
    if type(value) is set and value:
        return f"{{{', '.join(sorted(map(_written, value)))}}}"
    if type(value) is tuple:
        return f"({', '.join(map(_written, value))}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(map(_written, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{_written(name)}: {_written(each)}' for name, each in value.items())}}}"
    if _is_written_by_field(value):
        held = [f"{each.name}={_written(getattr(value, each.name))}" for each in dataclasses.fields(value) if each.repr]
        return f"{type(value).__qualname__}({', '.join(held)})"
    return repr(value)


def _is_written_by_field(value: object) -> bool:
    """Whether it is a dataclass whose `repr` is the one that dataclasses have."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and value.__dataclass_params__.repr  # type: ignore[attr-defined]
        and hasattr(type(value).__repr__, "__wrapped__")
    )


class _Walk:
    """Follows values to the user's code. `found` has a digest per piece, by name; a plain value belongs to what holds it."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._seen: dict[int, object] = {}
        """What was followed already, by id; kept alive, so that no id is given away a second time."""

    def add(self, name: str, text: str) -> None:
        """Pieces of one name, such as two lambdas in a module, are digested together."""
        self.found.setdefault(name, hashlib.blake2b(digest_size=8)).update(text.encode())

    def value(self, value: object) -> str:
        """What a value contributes to the digest of what holds it. What it reaches is followed."""
        if isinstance(value, enum.Enum):
            return f"{self._class(type(value))}.{value.name}"
        if isinstance(value, np.float64 | np.integer | np.bool_):
            return repr(value.item())
        if isinstance(value, _PLAIN + _PLAIN_TOO):
            return repr(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, tuple):  # before what was seen: whether equal tuples are one object is Python's affair
            return f"({self._all(value)})"
        if isinstance(value, frozenset):
            return f"{{{', '.join(sorted(map(self.value, value)))}}}"
        if isinstance(value, nn.Parameter):
            return "a parameter"  # its numbers have their own checksum
        if id(value) in self._seen:
            return _kind(value)
        self._seen[id(value)] = value
        return self._followed(value)

    def _followed(self, value: Any) -> str:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return f"{self.value(value.__func__)} of {self.value(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial {self._all([value.func, value.args, value.keywords])}"
        if isinstance(value, Tensor):
            return f"{value.dtype} {tuple(value.shape)} {_digest_of(value)}"
        if isinstance(value, np.ndarray):
            return f"{value.dtype} {value.shape} {hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest()}"
        if isinstance(value, Mapping):
            return f"{{{', '.join(sorted(f'{self.value(k)}: {self.value(v)}' for k, v in value.items()))}}}"
        if isinstance(value, set):
            return f"{{{', '.join(sorted(map(self.value, value)))}}}"
        if isinstance(value, list):
            return f"[{self._all(value)}]"
        if isinstance(value, staticmethod | classmethod):
            return self.value(value.__func__)
        if isinstance(value, property):
            return self._all([value.fget, value.fset, value.fdel])
        if isinstance(value, functools.cached_property):
            return self.value(value.func)
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "py_func", None)  # lru_cache, numba
        if isinstance(wrapped, types.FunctionType):
            return self.value(wrapped)
        return self._object(value)

    def _all(self, values: Iterable[object]) -> str:
        return ", ".join(map(self.value, values))

    def _object(self, value: object) -> str:
        """An object is its class and what it holds; of PyTorch's modules without the weights, which are no code."""
        held = f"{self._class(type(value))} {_own_name(value)}"
        for name, each in _attributes(value):
            held += f" {name}={self.value(each)}"
        return held

    def _class(self, kind: type) -> str:
        """A class of the user's is a piece: its methods, and the values in it."""
        if not _is_users_class(kind):
            self._installed(kind.__module__)
            return kind.__qualname__
        name = _name(kind.__module__, kind.__qualname__)
        if id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            bases = [self._class(base) for base in kind.__bases__]
            members = [
                (each, self.value(member))
                for each, member in sorted(vars(kind).items())
                if each not in _NOT_CODE
                and not isinstance(member, types.GetSetDescriptorType | types.MemberDescriptorType)
            ]
            self.add(name, repr([bases, members]))
        return name

    def _installed(self, module: str) -> None:
        """What is installed beside Python is known by its version."""
        package = module.split(".")[0]
        if package not in _KNOWN and package not in sys.stdlib_module_names and package not in self.found:
            with contextlib.suppress(metadata.PackageNotFoundError):
                self.add(package, metadata.version(package))

    def _function(self, function: types.FunctionType) -> str:
        """A function of the user's is a piece: its bytecode, and what its names stand for."""
        if not _is_users_file(function.__code__.co_filename):
            self._installed(function.__module__ or "")
            return function.__qualname__
        name = _name(function.__module__ or "", function.__qualname__)
        reached = [f"{each}={self.value(value)}" for each, value in _reached(function.__code__, function.__globals__)]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closed = [f"{each}={self.value(_content(cell))}" for each, cell in cells]
        defaults = self._all([function.__defaults__, function.__kwdefaults__])
        self.add(name, repr([self._code(function.__code__, function.__doc__), reached, closed, defaults]))
        return name

    def _code(self, code: types.CodeType, doc: str | None = None) -> str:
        """Bytecode, its constants and names; without line numbers, and without the docstring."""
        constants = [
            self._code(each, _doc_of(each)) if isinstance(each, types.CodeType) else self.value(each)
            for each in code.co_consts
            if doc is None or each != doc
        ]
        return repr([code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars])


_NOT_CODE = {
    "__doc__",
    "__module__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__match_args__",
    "__dataclass_params__",
    "__abstractmethods__",
    "_abc_impl",
    "__parameters__",
    "__orig_bases__",
    "__hash__",
}


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """What an object holds, by name. Of what is installed, only that which is made to hold values: a logger is not."""
    if isinstance(value, nn.Module):
        yield from _of_module(value)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
    elif isinstance(value, types.SimpleNamespace | argparse.Namespace) or _is_users_class(type(value)):
        yield from sorted(getattr(value, "__dict__", {}).items())


def _of_module(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Layers by name, hooks, and plain attributes; parameters and buffers have their own checksum."""
    for name, each in sorted(vars(module).items()):
        if name == "_modules":
            yield from each.items()
        elif name.endswith("_hooks") or name.endswith("_pre_hooks"):
            yield name, list(each.values())
        elif (
            name not in ("_parameters", "_buffers", "training", "_non_persistent_buffers_set") and "hooks_" not in name
        ):
            yield name, each


def _reached(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """(name, value) of all that a function's code, and the code inside it, looks up in its module and imports.

    A name that the code itself assigns is a variable, not a constant: what it holds now decides nothing.
    """
    found, attributes, assigned = set(), set(), set()
    for each in _nested(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
                attributes.add(instruction.argval)
            elif instruction.opname == "STORE_GLOBAL":
                assigned.add(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                yield from _in_module(sys.modules.get(instruction.argval), attributes)
    for name in sorted(found - assigned):
        if name in names:
            if isinstance(names[name], types.ModuleType):
                yield from _in_module(names[name], attributes)
            else:
                yield name, names[name]


def _in_module(module: types.ModuleType | None, attributes: set[str]) -> Iterator[tuple[str, object]]:
    """Of a module of the user's, what code may look up in it by one of these names."""
    if module is not None and _is_users(module):
        for name in sorted(attributes):
            if hasattr(module, name):
                yield f"{module.__name__}.{name}", getattr(module, name)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _nested(each)


def _doc_of(code: types.CodeType) -> str | None:
    """The docstring of a function inside a function: its first constant, if that is a text which nothing loads."""
    first = code.co_consts[0] if code.co_consts else None
    if not isinstance(first, str) or any(
        instruction.opname == "LOAD_CONST" and instruction.arg == 0 for instruction in dis.get_instructions(code)
    ):
        return None
    return first


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _kind(value: object) -> str:
    """Of what is followed elsewhere."""
    return value.__qualname__ if isinstance(value, types.FunctionType) else f"the same {type(value).__qualname__}"


def _digest_of(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.blake2b(flat.view(torch.uint8).numpy().tobytes()).hexdigest() if flat.numel() else ""


def _name(module: str, qualified: str) -> str:
    """A script is called by its file, so that it has one name whether it is run or imported."""
    main = sys.modules.get("__main__")
    if module == "__main__" and getattr(main, "__file__", None):
        module = Path(str(main.__file__)).stem  # type: ignore[union-attr]
    return f"{module}.{qualified}"


def _own_name(value: object) -> str:
    """Of a function that is not written in Python, `torch.tanh` for example."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return name if isinstance(name, str) else ""


def _is_users_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is None or _is_users(module)


def _is_users(module: types.ModuleType) -> bool:
    """Whether a module is neither Python's, nor installed, nor hybridfl's. The one without a file is where users type."""
    file = getattr(module, "__file__", None)
    return module.__name__ == "__main__" if file is None else _is_users_file(file)


def _is_users_file(file: str) -> bool:
    """What has no file was typed in, by the user, or made by a decorator in what the user wrote."""
    if file.startswith("<"):
        return not file.startswith("<frozen")
    return not any(Path(file).resolve().is_relative_to(folder) for folder in _folders_of_others())


@functools.cache
def _folders_of_others() -> tuple[Path, ...]:
    """Where hybridfl, Python, and what is installed beside it lie."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    everywhere: list[str | Path] = [
        Path(__file__).parent,
        *folders,
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]
    return tuple({Path(folder).resolve() for folder in everywhere})
