"""What computes a run besides hybridfl: a digest of every piece of the user's own code that its parts reach.

A folder of results belongs to the code that computed them. The user's algorithm, model, loss, laws are followed to the
functions and classes they call in the user's own modules, through decorators and imports, and to the values those hold:
closures, defaults, constants of modules, attributes of objects, tensors. What is installed beside Python (PyTorch,
hybridfl itself) is known by its version, and an installed object by its class and by what it would be pickled with.

Digests are of bytecode: a comment, a docstring or a moved line changes nothing, an edited step does.

Not covered: the parameters and buffers of the task's own model (its checksum has them), names that are computed
(`getattr(module, name)`, `globals()[name]`), a global name that the code itself assigns, files and environment variables
read at run time, weak references, the order of a dict's keys, patches of installed packages, and what C extensions'
objects hold that cannot be pickled.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import random
import re
import site
import sys
import sysconfig
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def code_of(**parts: object) -> dict[str, str]:
    """A digest of what each part is and holds, and one of every piece of the user's code that the parts reach, by name.

    The weights of the part called `model` are no code, wherever else they are reached.

    >>> def loss(outputs, targets):
    ...     return (outputs - targets) ** 2
    >>> list(code_of(loss=loss))
    ['hybridfl.provenance.loss', 'loss']
    """
    return _Walk(parts.get("model"), with_variables=False).digests(parts)


def code_and_variables_of(**parts: object) -> dict[str, str]:
    """Likewise, and what the global variables hold now that the code itself assigns."""
    return _Walk(parts.get("model"), with_variables=True).digests(parts)


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


_PLAIN = {type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range}
_PLAIN |= {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format}
"""Types whose `repr` is all there is to a value."""

_KNOWN = ("hybridfl", "torch", "numpy", "numba", "builtins")
"""Their versions are a run's anyway."""

_OF_THE_PROCESS: dict[int, str] = {
    id(os.environ): "os.environ",
    id(random.random.__self__): "Python's global generator",  # type: ignore[attr-defined]
    id(np.random.random.__self__): "NumPy's global generator",  # type: ignore[attr-defined]
    id(torch.default_generator): "PyTorch's global generator",
}
"""They differ between processes, and hybridfl draws from none of them."""

_NUMPY_NUMBERS = (np.float64, np.bool_, *{type(np.zeros(1, kind)[0]) for kind in np.typecodes["AllInteger"]})
_CONTAINERS = {dict, types.MappingProxyType, set, frozenset, tuple, list, staticmethod, classmethod, property}
_CONTAINERS |= {types.MethodType, types.BuiltinFunctionType}
_CACHED = type(functools.cache(lambda: None))
_WEAK = (weakref.ReferenceType, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_DEEP = 60
"""Levels of nesting that are followed at once; what lies deeper is taken up afterwards."""
_LONG = 1000
"""Letters of a constant's text above which its digest stands for it."""
_FUNCTION = 15
"""Levels that a function inside a value counts for: it is a piece of its own besides."""


class _Walk:
    """Follows values to the user's code.

    A function or class is a piece: the text of what holds it has its name, and it is digested later, in a turn of its own.
    What is reached by a name, a constant of a module for example, has a text of its own that depends on nothing else.
    """

    def __init__(self, model: object, with_variables: bool) -> None:
        self._with_variables = with_variables
        self._own = _ids_of(model)
        """The task's own layers and weights."""
        self._pieces: dict[str, set[str]] = {}
        """Texts by name: several pieces can have one name, two lambdas in a module for example."""
        self._waiting: list[tuple[str, types.FunctionType | type]] = []
        self._begun: set[int] = set()
        """Pieces, by id."""
        self._modules: dict[str, tuple[types.ModuleType, set[str]]] = {}
        """The user's modules that an object holds, and which names were looked up in them."""
        self._attributes: set[str] = set()
        """What any code looks up in anything."""
        self._texts: dict[int, str] = {}
        """Of what was reached by a name, by id."""
        self._constants: dict[int, str] = {}
        """Texts of tuples and frozen sets that hold nothing which could change, by id."""
        self._numbers: dict[int, str] = {}
        """Of tensors and arrays, by id: each is digested once."""
        self._kept: list[object] = []
        """Everything that has an id above or below, so that no id is given away a second time."""
        self._seen: dict[int, int] = {}
        """Numbers, by id, of what the text that is being written has been through."""
        self._steps = 0
        """How often something was numbered, met again or put off."""
        self._later: list[object] = []
        self._depth = 0
        self._written_out: set[int] = set()
        """Classes that are being written, by id."""

    def digests(self, parts: Mapping[str, object]) -> dict[str, str]:
        for role, part in parts.items():
            self._add(role, self._text(part))
        while self._waiting or self._look_into_modules():
            name, piece = self._waiting.pop()
            self._add(name, self._of_class(piece) if isinstance(piece, type) else self._of_function(piece))
        return {name: _digest("\0".join(sorted(self._pieces[name]))) for name in sorted(self._pieces)}

    def _add(self, name: str, text: str) -> None:
        self._pieces.setdefault(name, set()).add(text)

    def _begin(self, name: str, piece: types.FunctionType | type) -> None:
        if id(piece) not in self._begun:
            self._begun.add(id(piece))
            self._kept.append(piece)
            self._waiting.append((name, piece))

    def _look_into_modules(self) -> bool:
        """In a module that an object holds, code may look up any name that it looks up in something."""
        for module, known in list(self._modules.values()):
            if not self._attributes <= known:
                known |= self._attributes
                for name, value in _in_module(module, known, self._installed):
                    self._add(_module_name(module.__name__), f"{name}={self._text(value)}")
        return bool(self._waiting)

    # Pieces

    def _of_function(self, function: types.FunctionType) -> str:
        """Its bytecode, what it holds, and what its names stand for."""
        names = _Names.of(function.__code__)
        self._attributes |= names.attributes
        looked_up = names.looked_up | names.assigned if self._with_variables else names.looked_up
        reached = [*_globals(looked_up, function.__globals__), *_imports(names, function.__globals__, self._installed)]
        texts = []
        for name, value in sorted(self._no_modules(reached, names.attributes), key=lambda each: each[0]):
            if callable(value):
                texts.append(f"{name}={self._text(value)}")
            else:  # a piece of its own, so that what has changed is named
                self._add(_name(str(function.__globals__.get("__name__")), name), self._text(value))
        return repr([self._text(function), texts])

    def _no_modules(self, reached: Iterable[tuple[str, object]], attributes: set[str]) -> Iterator[tuple[str, object]]:
        """What code may look up in the modules that it reaches, in place of the modules."""
        for name, value in reached:
            if not isinstance(value, types.ModuleType):
                yield name, value
            elif _is_users(value):
                yield from _in_module(value, attributes, self._installed)
            else:
                self._installed(value.__name__)

    def _of_class(self, kind: type) -> str:
        """Its metaclass, its bases, its methods, and the values in it."""
        members = [(name, self._text(member)) for name, member in _members(kind)]
        return repr([self._text(type(kind)), [self._text(base) for base in kind.__bases__], members])

    def _installed(self, module: object) -> None:
        """What is installed beside Python is known by its version."""
        package = module.split(".")[0] if isinstance(module, str) else ""
        if package not in _KNOWN and package not in sys.stdlib_module_names and package not in self._pieces:
            for name, version in _distributions(package):
                self._add(name, version)

    # Values

    def _text(self, value: object) -> str:
        """Of what is reached by a name: the same, whatever else was reached before."""
        if type(value) in _PLAIN:
            return _plain(value)
        if id(value) not in self._texts:
            self._kept.append(value)
            self._seen, self._later = {}, [value]
            self._texts[id(value)] = "; ".join(map(self.value, self._later))  # which grows meanwhile
        return self._texts[id(value)]

    def value(self, value: Any) -> str:
        """What a value contributes to the text of what holds it. What it reaches is followed."""
        kind = type(value)
        try:
            if kind in _PLAIN:
                return _plain(value)
            if kind in _NUMPY_NUMBERS:
                return _plain(value.item())
            if issubclass(kind, PurePath | np.generic) and not _is_users_class(kind):
                return repr(value)
            if issubclass(kind, enum.Enum):
                return f"{self._class(kind)}.{value.name or value.value}"
            if id(value) in self._own and isinstance(value, Tensor):
                return "a weight of the model"
            if id(value) in _OF_THE_PROCESS:
                return _OF_THE_PROCESS[id(value)]
            if id(value) in self._constants:
                return self._constants[id(value)]
            if id(value) in self._seen:
                self._steps += 1
                return f"the same as {self._seen[id(value)]}"
            if self._depth >= _DEEP:
                return self._not_now(value)
            self._kept.append(value)
            return self._immutable(value) if kind in (tuple, frozenset) else self._numbered(value)
        except Exception:  # of the user's own methods, or of an object that PyTorch or NumPy cannot read
            return f"{kind.__qualname__}, which cannot be read"

    def _numbered(self, value: object) -> str:
        self._steps += 1
        self._seen[id(value)] = len(self._seen)
        return self._followed(value)

    def _immutable(self, value: object) -> str:
        """Whether equal constants are one object is Python's affair, unless they hold something that can change."""
        steps = self._steps
        text = self._followed(value)
        if self._steps > steps:
            self._seen[id(value)] = len(self._seen)
        else:
            self._constants[id(value)] = text = text if len(text) < _LONG else _digest(text)
        return text

    def _not_now(self, value: object) -> str:
        """A function is a piece of its own besides; all else is taken up when this text is at its end."""
        self._steps += 1
        if isinstance(value, types.FunctionType):
            return self._named(value)
        self._later.append(value)
        return "further on"

    def _followed(self, value: Any) -> str:
        levels = _FUNCTION if isinstance(value, types.FunctionType | type) else 1
        self._depth += levels
        try:
            return self._written(value)
        finally:
            self._depth -= levels

    def _written(self, value: Any) -> str:
        kind = type(value)
        if issubclass(kind, type):
            return self._class(value)
        if issubclass(kind, types.FunctionType):
            return self._function(value)
        if issubclass(kind, types.CodeType):
            return _of_code(value)
        if issubclass(kind, types.ModuleType):
            return self._module(value)
        if issubclass(kind, Tensor | np.ndarray):
            return f"{self._class(kind)} {self._array(value)}{self._held(_attributes(value))}"
        if issubclass(kind, _WEAK):
            return kind.__qualname__
        if isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            return f"{self._class(kind)} {_of_graph(value)}{self._held(_weights_of(value))}"
        if (behind := _behind(value)) is not None:
            return self.value(behind)
        if issubclass(kind, nn.Module):
            return f"{self._class(kind)}{self._held(_of_module(value, id(value) in self._own))}"
        if kind in _CONTAINERS:
            return f"{kind.__name__} {self._contents(value)}"
        if _is_users_class(kind):
            reduced = self._reduced(value) if _has_more(kind) else ""
            return f"{self._class(kind)} {self._contents(value)}{self._held(_attributes(value))}{reduced}"
        return f"{self._class(kind)} {_own_name(value)} {self._reduced(value)}"

    def _all(self, values: Iterable[object]) -> str:
        return ", ".join([_plain(each) if type(each) in _PLAIN else self.value(each) for each in values])

    def _held(self, attributes: Iterable[tuple[str, object]]) -> str:
        return "".join(f" {name}={self.value(each)}" for name, each in attributes)

    def _contents(self, value: Any) -> str:
        """What a value of one of Python's own types holds; also of a user's subclass of it, past the methods of that."""
        kind = type(value)  # an object may say that it is of another
        if issubclass(kind, dict):
            return self._mapping(list(dict.items(value)))
        if issubclass(kind, types.MappingProxyType):
            return self._mapping(list(value.items()))
        if issubclass(kind, set | frozenset):
            return f"{{{self._unordered(list(value))}}}"
        if issubclass(kind, tuple):
            return f"({self._all(tuple.__iter__(value))})"
        if issubclass(kind, list):
            return f"[{self._all(list.__iter__(value))}]"
        if issubclass(kind, staticmethod | classmethod):
            return self.value(value.__func__)
        if issubclass(kind, property):
            return self._all([value.fget, value.fset, value.fdel])
        if issubclass(kind, types.MethodType):
            return f"{self.value(value.__func__)} of {self.value(value.__self__)}"
        if issubclass(kind, types.BuiltinFunctionType):
            self._installed(value.__module__)
            of = value.__self__
            return f"{value.__qualname__} of {'' if isinstance(of, types.ModuleType | None) else self.value(of)}"
        for plain in (int, float, complex, str, bytes):
            if issubclass(kind, plain):
                return plain.__repr__(value)
        return ""

    def _mapping(self, items: list[tuple[object, object]]) -> str:
        if all(type(key) in _PLAIN for key, _ in items):
            in_order = sorted(((_plain(key), each) for key, each in items), key=lambda item: item[0])
            return f"{{{', '.join([f'{key}: {self.value(each)}' for key, each in in_order])}}}"
        return f"{{{self._unordered(items)}}}"

    def _unordered(self, values: Iterable[object]) -> str:
        """Each has a text that does not depend on those before it, which are others in another process."""
        texts, seen, later = [], len(self._seen), len(self._later)
        for each in values:
            texts.append(self.value(each))
            while len(self._seen) > seen:
                self._seen.popitem()
            del self._later[later:]
        return ", ".join(sorted(texts))

    def _reduced(self, value: Any) -> str:
        """What an object would be pickled with; nothing, if it cannot be: a lock, an open file, a generator."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known: Any = copyreg.dispatch_table.get(type(value))
                reduced = known(value) if known else value.__reduce_ex__(4)
        except Exception:
            return self._contents(value)
        if isinstance(reduced, str):
            return reduced
        how, args, state, each, pairs = (*reduced, None, None, None)[:5]
        if isinstance(state, dict):
            state = {name: held for name, held in state.items() if not _is_derived(type(value), name)}
        items = list(pairs or ())
        held = items if isinstance(value, collections.OrderedDict) else dict(items)
        return self._all([how, args, state, list(each or ()), held])

    def _array(self, value: Any) -> str:
        if isinstance(value, np.ndarray) and (value.dtype.hasobject or value.dtype.kind in "VT"):
            return f"{value.dtype} {value.shape} {self._all(np.asarray(value).ravel().tolist())}"
        if id(value) not in self._numbers:
            self._numbers[id(value)] = _of_tensor(value) if isinstance(value, Tensor) else _of_array(value)
        return self._numbers[id(value)]

    def _module(self, module: types.ModuleType) -> str:
        if _is_users(module):
            self._modules.setdefault(module.__name__, (module, set()))
        else:
            self._installed(module.__name__)
        return _module_name(module.__name__)

    def _class(self, kind: type) -> str:
        """A class of the user's is a piece. One made inside a function shares its name with others, so it is written out."""
        if not _is_users_class(kind):
            self._installed(kind.__module__)
            return kind.__qualname__
        name = _name(kind.__module__, kind.__qualname__)
        self._begin(name, kind)
        if "<locals>" not in kind.__qualname__ or id(kind) in self._written_out or self._depth >= _DEEP:
            return name
        self._written_out.add(id(kind))
        self._depth += _FUNCTION
        try:
            return f"{name}{self._held(_members(kind))}"
        finally:
            self._depth -= _FUNCTION
            self._written_out.discard(id(kind))

    def _named(self, function: types.FunctionType) -> str:
        """A function of the user's is a piece."""
        name = _name(function.__module__ or "", function.__qualname__)
        if _is_users_file(function.__code__.co_filename):
            self._begin(name, function)
            return f"{name} {_of_code(function.__code__)}"
        self._installed(function.__module__)
        return name

    def _function(self, function: types.FunctionType) -> str:
        """What a function holds besides its name: an installed one may hold one of the user's, which it decorates."""
        defaults = self._all([function.__defaults__, function.__kwdefaults__])
        return f"{self._named(function)} {defaults}{self._held(_held_by(function))}"


_NOT_CODE = {
    "__doc__",
    "__module__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__match_args__",
    "__dataclass_params__",
    "__abstractmethods__",
    "_abc_impl",
    "__non_callable_proto_members__",
    "__parameters__",
    "__type_params__",
    "__orig_bases__",
    "__hash__",
}
_OF_ENUM = {
    "_member_names_",
    "_member_map_",
    "_value2member_map_",
    "_hashable_values_",
    "_unhashable_values_",
    "_unhashable_values_map_",
}
"""What an enum class knows of its members, some of which it makes when they are first asked for."""


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """What a class of the user's defines, by name; of an enum's members the values."""
    is_enum = issubclass(kind, enum.Enum)
    for name, member in sorted(vars(kind).items()):
        if is_enum and (name in _OF_ENUM or name in kind.__members__):  # type: ignore[attr-defined]
            continue
        if name == "__dataclass_fields__":
            yield name, [(each, field.default, field.default_factory) for each, field in member.items()]
        elif name not in _NOT_CODE and not isinstance(member, types.GetSetDescriptorType | types.MemberDescriptorType):
            yield name, member
    if is_enum:
        yield "members", [(name, each._value_) for name, each in kind.__members__.items()]  # type: ignore[attr-defined]


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """What an object holds, by name, past whatever its class does when it is asked; without what it can compute again."""
    for kind in type(value).__mro__:
        for name, member in sorted(vars(kind).items()):
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # not yet assigned
                    yield name, member.__get__(value)
    with contextlib.suppress(AttributeError):
        held = object.__getattribute__(value, "__dict__")
        yield from [(name, held[name]) for name in sorted(held, key=str) if not _is_derived(type(value), name)]


def _is_derived(kind: type, name: str) -> bool:
    return name == "__doc__" or isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)


_ABOUT_HOOKS = {name for name in vars(nn.Module()) if "hooks_" in name}
_HOOKS = {name for name in vars(nn.Module()) if name.endswith("_hooks")}


def _of_module(module: nn.Module, is_own: bool) -> Iterator[tuple[str, object]]:
    """Layers and weights by name, hooks, and plain attributes. The task's own model is trained and scored as the run wants."""
    for name, each in sorted(vars(module).items()):
        if name in ("_modules", "_parameters", "_buffers"):
            yield from each.items()
        elif name in _HOOKS:
            if each:
                yield name, list(each.values())
        elif name not in ("_non_persistent_buffers_set", *(["training"] if is_own else []), *_ABOUT_HOOKS):
            yield name, each


def _of_graph(compiled: torch.jit.ScriptModule | torch.jit.ScriptFunction) -> str:  # type: ignore[type-arg]
    """What TorchScript computes, without the lines of the source that it came from."""
    return _digest(re.sub(r" #.*", "", str(compiled.inlined_graph)))


def _weights_of(compiled: object) -> Iterator[tuple[str, object]]:
    """Of a module; a function of TorchScript has none."""
    if isinstance(compiled, nn.Module):
        yield from compiled.named_parameters()
        yield from compiled.named_buffers()


def _ids_of(model: object) -> set[int]:
    """Of a model's layers, parameters and buffers."""
    if not isinstance(model, nn.Module):
        return set()
    return {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}


def _held_by(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """What a function's closure and its attributes hold."""
    own, code = vars(function), function.__code__
    if "registry" in own and code.co_filename == functools.singledispatch.__code__.co_filename:
        yield "registry", own["registry"]  # of functools.singledispatch, which holds a cache besides
        return
    if "_torchdynamo_orig_callable" in own:
        yield "compiled", own["_torchdynamo_orig_callable"]
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield name, _content(cell)
    yield from sorted(own.items())


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _behind(value: object) -> object:
    """The function of a cache of functools', or what Numba or PyTorch compiles."""
    if type(value) is _CACHED:
        return value.__wrapped__
    if str(type(value).__module__).startswith("numba."):
        return getattr(value, "py_func", None)
    if isinstance(value, nn.Module) and str(type(value).__module__).startswith("torch._dynamo"):
        return value._modules.get("_orig_mod")
    return None


def _has_more(kind: type) -> bool:
    """Whether a class of the user's inherits from an installed one that has a way of its own to be pickled."""
    first = next(each for each in kind.__mro__ if {"__reduce__", "__reduce_ex__"} & set(vars(each)))
    return first not in (object, set, frozenset) and not _is_users_class(first)


@dataclasses.dataclass(frozen=True)
class _Names:
    """What a function's code, and the code inside it, looks up."""

    looked_up: set[str]
    """In its module. A name that the code itself assigns is a variable: what it holds now decides nothing."""
    assigned: set[str]
    """Such variables."""
    attributes: set[str]
    """In anything."""
    imports: list[tuple[str, int, tuple[str, ...]]]
    """(name, level, what is taken from it)."""

    @classmethod
    def of(cls, code: types.CodeType) -> _Names:
        found, assigned, attributes = set(), set(), set()
        imports = []
        for each in _nested(code):
            steps = [step for step in dis.get_instructions(each) if step.opname != "EXTENDED_ARG"]
            for place, step in enumerate(steps):
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                    found.add(step.argval)
                elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_SUPER_ATTR"):
                    attributes.add(step.argval)
                elif step.opname == "STORE_GLOBAL":
                    assigned.add(step.argval)
                elif step.opname == "IMPORT_NAME":
                    imports.append((step.argval, steps[place - 2].argval, steps[place - 1].argval or ()))
        return cls(found - assigned, assigned, attributes, imports)


def _globals(names: set[str], module: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [(name, module[name]) for name in sorted(names) if name in module]


def _imports(
    names: _Names, module: Mapping[str, Any], installed: Callable[[object], None]
) -> Iterator[tuple[str, object]]:
    """The modules that code imports when it runs."""
    for name, level, taken in names.imports:
        parent = module.get("__package__") or str(module.get("__name__")).rpartition(".")[0]
        with contextlib.suppress(ImportError):
            whole = importlib.util.resolve_name("." * level + name, parent)
            parts = whole.split(".")
            for each in (*(".".join(parts[: end + 1]) for end in range(len(parts))), *(f"{whole}.{i}" for i in taken)):
                found = _imported(each, installed)
                if found is not None:
                    yield each, found


def _imported(name: str, installed: Callable[[object], None]) -> types.ModuleType | None:
    """A module of the user's, imported now if it was not yet. What is installed need not be."""
    if name in sys.modules:
        return sys.modules[name]
    with contextlib.suppress(Exception):  # whatever the module raises
        top = importlib.util.find_spec(name.partition(".")[0])
        files = [] if top is None else [top.origin, *(top.submodule_search_locations or ())]
        if any(file is not None and _is_users_file(file) for file in files if file not in ("built-in", "frozen")):
            return importlib.import_module(name)
        installed(name)
    return None


def _in_module(
    module: types.ModuleType, attributes: set[str], installed: Callable[[object], None]
) -> Iterator[tuple[str, object]]:
    """What code may look up by one of these names in a module, and in the modules that are found in it."""
    waiting, begun = [module], {id(module)}
    while waiting:
        each = waiting.pop()
        if not _is_users(each):
            installed(each.__name__)
            continue
        for name, found in list(_looked_up(each, attributes)):
            if not isinstance(found, types.ModuleType):
                yield _name(each.__name__, name), found
            elif id(found) not in begun:
                begun.add(id(found))
                waiting.append(found)


def _looked_up(module: types.ModuleType, names: set[str]) -> Iterator[tuple[str, object]]:
    held = vars(module)
    for name in sorted(names):
        if name in held:
            yield name, held[name]
        elif "__getattr__" in held:
            with contextlib.suppress(Exception):  # whatever the module's own __getattr__ raises
                yield name, getattr(module, name)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _nested(each)


def _of_code(code: types.CodeType) -> str:
    """Bytecode, its constants, names and arguments; without line numbers, and without the docstring."""
    constants = [_of_constant(each) for place, each in enumerate(code.co_consts) if place or not _has_doc(code)]
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS
    names = code.co_names, code.co_varnames, code.co_freevars
    return _digest(repr([code.co_code, code.co_exceptiontable, constants, arguments, names]))


_FLAGS = 0x3FF
"""How arguments are taken, and whether it is a generator or a coroutine; not whether there is a docstring."""


def _of_constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _of_code(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_of_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_of_constant, value)))}}}"
    return _plain(value)


def _plain(value: object) -> str:
    """Python writes no whole number of more than 4300 digits, but in base 16."""
    return hex(value) if type(value) is int else repr(value)


def _has_doc(code: types.CodeType) -> bool:
    """Whether the first constant is a docstring: a text that nothing loads."""
    first = code.co_consts[0] if code.co_consts else None
    return isinstance(first, str) and not any(
        step.opcode in dis.hasconst and step.arg == 0 for step in dis.get_instructions(code)
    )


def _of_tensor(tensor: Tensor) -> str:
    try:
        return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout} {_digest_of(tensor.detach())}"
    except Exception:  # without numbers: on the meta device, not yet initialised, inside a transform
        return f"{tensor.dtype} {tensor.device}"


def _digest_of(tensor: Tensor) -> str:
    if tensor.is_nested:
        return " ".join(map(_of_tensor, tensor.unbind()))
    if tensor.is_quantized:
        return f"{tensor.q_scale()} {tensor.q_zero_point()} {_digest_of(tensor.int_repr())}"
    if tensor.layout is not torch.strided:
        return " ".join(map(_digest_of, _inside_of(tensor)))
    if tensor.is_meta:
        return "meta"
    flat = tensor.resolve_conj().resolve_neg().cpu().contiguous().flatten()
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data).hexdigest() if flat.numel() else ""


def _inside_of(sparse: Tensor) -> list[Tensor]:
    """Where the numbers of a sparse tensor are, and which they are."""
    if sparse.layout is torch.sparse_coo:
        whole = sparse.coalesce()
        return [whole.indices(), whole.values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]


def _of_array(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype} {array.shape} {hashlib.blake2b(np.ascontiguousarray(array).tobytes()).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).hexdigest()


def _name(module: str, qualified: str) -> str:
    return f"{_module_name(module)}.{qualified}"


def _module_name(module: str) -> str:
    """A script is called by its file, a module run by `-m` by its name: it has one name whether it is run or imported."""
    if module != "__main__":
        return module
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else module


def _own_name(value: object) -> str:
    """Of a function that is not written in Python, `torch.tanh` for example."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return name if isinstance(name, str) else ""


@functools.cache
def _distributions(package: str) -> list[tuple[str, str]]:
    """(name, version) of what a package was installed with, which may have another name: Pillow has PIL."""
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
        return [(package, metadata.version(package))]
    return [(name, metadata.version(name)) for name in sorted(set(_packages().get(package, ())))]


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _is_users_class(kind: type) -> bool:
    module = sys.modules.get(str(kind.__module__))
    return module is None or _is_users(module) or _is_made_by_code(kind, module)


_MAKERS = ("builtins", "types")
"""What `exec` without a `__name__`, `types.new_class` and `dataclasses.make_dataclass` name as the module of a class."""


def _is_made_by_code(kind: type, module: types.ModuleType) -> bool:
    """Whether a class is not of the module that it names."""
    return (
        module.__name__ in _MAKERS
        and bool(kind.__flags__ & _ON_THE_HEAP)
        and vars(module).get(kind.__name__) is not kind
    )


_ON_THE_HEAP = 1 << 9
"""CPython's flag of a class that a statement made, and not C."""


def _is_users(module: types.ModuleType) -> bool:
    """Whether a module is neither Python's, nor installed, nor hybridfl's. The one without a file is where users type."""
    file = vars(module).get("__file__")
    if isinstance(file, str):
        return _is_users_file(file)
    return module.__name__ == "__main__" or any(map(_is_users_file, vars(module).get("__path__", ())))


@functools.cache
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
