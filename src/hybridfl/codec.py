"""Any state of a run as plain values and tensors, and back, exactly: what checkpoints are made of.

A tree is JSON. What JSON has says itself; all else is an object whose first key says what it is:

    {"float": "7ff0000000000000"}             infinite or not a number: its bits
    {"int": "0x8000000000000000"}             longer than 63 bits
    {"text": "eda080"}                        a string that is no valid Unicode
    {"tuple": [...]}, {"frozenset": [...]}
    {"number": "<f4", "bytes": "0000803f"}    a NumPy scalar
    {"list": [...], "id": 3}, {"set": [...], "id": 4}, {"dict": [[key, value], ...], "id": 5}
    {"array": "<f8", "shape": [2, 3], "id": 6}                            its bytes are tensor "6"
    {"tensor": "accelerator", "id": 7}                                    where it was; it is tensor "7"
    {"object": "hybridfl.protocol.Job", "fields": {"device": 0, ...}, "id": 8}
    {"fleet": {"barred": ...}, "id": 9}       the run's own fleet, but for these fields
    {"same": 8}                               the object that has this id, once more

So an old model that forty jobs share is stored once, and shared again when it is read. Nothing is ever imported or called
because a tree says so: objects are made of the classes the reader names, field by field.
"""

from __future__ import annotations

import functools
import json
import math
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AnySet
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridfl import protocol
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet

_NUMPY_KINDS = "biufc"
_NUMBER = re.compile(rf"[<>|=]?[{_NUMPY_KINDS}]\d{{1,2}}")
_NONSENSE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What reading a tree that nobody wrote can raise."""
_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    )
)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A tree, and the tensors it speaks of by number.

    Those that were on the CPU may share memory with what was encoded: write them before it is changed in place.
    """

    tree: Any
    tensors: dict[str, Tensor]


def encode(value: object, fleet: Fleet, classes: Mapping[str, type] | None = None) -> Encoded:
    """What `decode` makes `value` of again.

    Its dataclasses go by name: with `classes`, one that `decode` would not find among them is refused now, not then.
    """
    encoder = _Encoder(fleet, classes)
    try:
        return Encoded(encoder.tree(value, ""), encoder.tensors)
    except RecursionError:
        raise InputError("The state is nested too deeply to be saved: keep long chains in a list.") from None


def decode(encoded: Encoded, fleet: Fleet, classes: Mapping[str, type], device: torch.device) -> Any:
    """The value again, with memory of its own; what was on an accelerator is on `device`.

    Raises `InputError` for whatever is no tree of ours, although its checksum may hold.
    """
    try:
        return _Decoder(encoded.tensors, fleet, classes, device).value(encoded.tree)
    except InputError:
        raise
    except _NONSENSE as error:
        what = f"{type(error).__name__}: {error}"[:200].splitlines()[0]
        raise InputError(
            f"The saved state makes no sense ({what}): restore it from a copy, or remove it to start anew."
        ) from None


def classes_of(algorithm: object) -> dict[str, type]:
    """The dataclasses a state of this algorithm may be made of, by name.

    These are the protocol's, and all in the modules of the algorithm's own class and of the classes of its fields, and of
    theirs: whoever writes an algorithm and its state in one module need not register anything.
    """
    kinds = [kind for made_of in _kinds(algorithm) for kind in made_of.__mro__]
    holders = [protocol, *(sys.modules.get(kind.__module__) for kind in kinds), *kinds]
    found = [each for holder in holders if holder is not None for each in vars(holder).values()]
    return named(each for each in (*found, *kinds) if isinstance(each, type) and is_dataclass(each))


def named(classes: Iterable[type]) -> dict[str, type]:
    """Dataclasses by the names trees use."""
    return {_name(each): each for each in classes}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _kinds(value: object) -> Iterator[type]:
    """The class of an algorithm, and those of all that its fields hold."""
    if isinstance(value, tuple | list | AnySet):
        for each in value:
            yield from _kinds(each)
    elif isinstance(value, Mapping):
        yield from _kinds(tuple(value.values()))
    else:
        yield type(value)
        if is_dataclass(value):
            yield from _kinds([getattr(value, field.name) for field in fields(value)])


class _Encoder:
    """Remembers what it has seen, and keeps it alive: an `id` tells objects apart only as long as they live."""

    def __init__(self, fleet: Fleet, classes: Mapping[str, type] | None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._fleet = fleet
        self._classes = classes
        self._seen: dict[int, tuple[int, object]] = {}
        self._storages: set[int] = set()

    def tree(self, value: Any, where: str) -> Any:
        """Types are compared exactly: what inherits from `float` or `tuple` would come back as something else."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is str:
            return _text(value)
        if kind is tuple:
            return {"tuple": self._items(value, where)}
        if kind is frozenset:
            return {"frozenset": self._members(value, where)}
        if isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
            return {"number": value.dtype.str, "bytes": value.tobytes().hex()}
        if id(value) in self._seen:
            return {"same": self._seen[id(value)][0]}
        number = len(self._seen)
        self._seen[id(value)] = number, value
        return {**self._object(value, where, number), "id": number}

    def _object(self, value: Any, where: str, number: int) -> dict[str, Any]:
        """What has an identity, at its first place."""
        kind = type(value)
        if kind is list:
            return {"list": self._items(value, where)}
        if kind is set:
            return {"set": self._members(value, where)}
        if kind is dict:
            pairs = value.items()
            return {
                "dict": [[self.tree(key, f"{where} (a key)"), self.tree(each, _at(where, key))] for key, each in pairs]
            }
        if kind is Tensor:
            return self._tensor(value, where, number)
        if kind is np.ndarray and value.dtype.kind in _NUMPY_KINDS:
            self.tensors[str(number)] = torch.from_numpy(np.array(value, order="C").reshape(-1).view(np.uint8))
            return {"array": value.dtype.str, "shape": list(value.shape)}
        if kind is type(self._fleet):
            return {"fleet": self._fields(value, where, besides=self._fleet)}
        if is_dataclass(kind):
            return self._dataclass(value, where)
        raise _refused(where, f"is a {_name(kind)}", "keep plain values, tensors, arrays, or a dataclass of them")

    def _items(self, values: Iterable[object], where: str) -> list[Any]:
        return [self.tree(each, f"{where}[{number}]") for number, each in enumerate(values)]

    def _members(self, values: AnySet[Any], where: str) -> list[Any]:
        """In an order that does not depend on hashes, which for strings are others in every process."""
        if all(type(each) is int for each in values):
            return [self.tree(each, where) for each in sorted(values)]
        where = f"{where} (a member)"
        alone = {id(each): _Encoder(self._fleet, self._classes).tree(each, where) for each in values}
        return [self.tree(each, where) for each in sorted(values, key=lambda each: json.dumps(alone[id(each)]))]

    def _tensor(self, value: Tensor, where: str, number: int) -> dict[str, Any]:
        if value.dtype not in _DTYPES or value.layout != torch.strided or value.is_meta:
            raise _refused(where, f"is a tensor of {value.dtype}, {value.layout}", "keep dense real numbers")
        if value.requires_grad:
            raise _refused(where, "is a tensor that requires a gradient", "detach() it")
        stored = value.cpu().resolve_neg().contiguous()
        storage = stored.untyped_storage().data_ptr()
        # Tensors that view the same memory are stored apart: safetensors refuses to write one memory twice.
        self.tensors[str(number)] = stored.clone() if storage in self._storages else stored
        self._storages.add(storage)
        return {"tensor": "cpu" if value.device.type == "cpu" else "accelerator"}

    def _dataclass(self, value: Any, where: str) -> dict[str, Any]:
        kind = type(value)
        if self._classes is not None and self._classes.get(_name(kind)) is not kind:
            remedy = "define it at the top level of the algorithm's module, or import it there"
            raise _refused(where, f"is a {_name(kind)}, which would not be found when it is read", remedy)
        names = {field.name for field in fields(kind)}
        for name in getattr(value, "__dict__", {}).keys() - names:
            if not isinstance(getattr(kind, name, None), functools.cached_property):
                raise _refused(_at(where, name), "is no field of its dataclass", "make it one")
        return {"object": _name(kind), "fields": self._fields(value, where)}

    def _fields(self, value: Any, where: str, besides: object = None) -> dict[str, Any]:
        """The fields' trees, but for those whose very values `besides` has too."""
        trees = {}
        for name in (field.name for field in fields(value)):
            if not hasattr(value, name):
                raise _refused(_at(where, name), "has no value", "give it one")
            if besides is None or getattr(value, name) is not getattr(besides, name):
                trees[name] = self.tree(getattr(value, name), _at(where, name))
        return trees


class _Decoder:
    """Goes through a tree in the order it was made in, so what has to be the same again is there already."""

    def __init__(
        self, tensors: Mapping[str, Tensor], fleet: Fleet, classes: Mapping[str, type], device: torch.device
    ) -> None:
        self._tensors = tensors
        self._fleet = fleet
        self._classes = classes
        self._device = device
        self._made: dict[int, Any] = {}

    def value(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "id" in node:
            return self._object(node, node["id"])
        match node:
            case {"same": number}:
                return self._made[number]
            case {"tuple": items}:
                return tuple(self.value(each) for each in items)
            case {"frozenset": items}:
                return frozenset(self.value(each) for each in items)
            case {"number": dtype, "bytes": content}:
                return np.frombuffer(bytes.fromhex(content), _dtype(dtype))[0]
            case {"float": bits}:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"int": digits}:
                return int(digits, 16)
            case {"text": content}:
                return bytes.fromhex(content).decode("utf-8", "surrogatepass")
        raise _unknown(node)

    def _object(self, node: dict[str, Any], number: int) -> Any:
        """Containers and dataclasses are there before what they hold, which may be themselves."""
        made: Any
        match node:
            case {"list": items}:
                made = self._made[number] = []
                made.extend(self.value(each) for each in items)
            case {"set": items}:
                made = self._made[number] = set()
                made.update(self.value(each) for each in items)
            case {"dict": pairs}:
                made = self._made[number] = {}
                made.update((self.value(key), self.value(each)) for key, each in pairs)
            case {"tensor": place}:
                # A copy: rounding may depend on how memory is aligned, and a file's is not.
                device = self._device if place == "accelerator" else torch.device("cpu")
                self._made[number] = self._tensors[str(number)].to(device, copy=True)
            case {"array": dtype, "shape": shape}:
                content = self._tensors[str(number)].numpy()
                self._made[number] = content.view(_dtype(dtype)).reshape(shape).copy()
            case {"fleet": changes}:
                changed = {name: self.value(each) for name, each in changes.items()}
                self._made[number] = replace(self._fleet, **changed) if changed else self._fleet
            case {"object": name, "fields": trees}:
                made = self._made[number] = object.__new__(self._class(name, trees))
                for field, each in trees.items():
                    object.__setattr__(made, field, self.value(each))
            case _:
                raise _unknown(node)
        return self._made[number]

    def _class(self, name: str, saved: Mapping[str, Any]) -> type:
        kind = self._classes.get(name)
        if kind is None:
            raise InputError(
                f"The saved state has a '{_short(name)}', which the algorithm does not know: go on with the algorithm and from "
                "the module it was started with, or start anew."
            )
        now = {field.name for field in fields(kind)}
        if now != set(saved):
            raise InputError(
                f"The saved '{name}' has the fields {_short(', '.join(sorted(saved)))}; now it has "
                f"{', '.join(sorted(now))}: go on with the code it was saved by, or start anew."
            )
        return kind


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # surrogates: JSON would make one letter of two
        return {"text": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _short(text: str) -> str:
    """In one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:300])


def _dtype(name: str) -> np.dtype[Any]:
    if not _NUMBER.fullmatch(name):
        raise _unknown(name)
    return np.dtype(name)


def _at(where: str, name: object) -> str:
    """Keys may be anything, with a `repr` as long as a model."""
    if isinstance(name, str):
        return f"{where}.{name}"
    return f"{where}[{name}]" if isinstance(name, int) and name.bit_length() < 64 else f"{where}[...]"


def _refused(where: str, what: str, remedy: str) -> InputError:
    return InputError(f"Cannot be saved: {where.removeprefix('.') or 'the state'} {what}: {remedy}.")


def _unknown(node: object) -> InputError:
    return InputError(
        f"The saved state has {_short(str(node)[:80])!r}, which this version of hybridfl cannot read: upgrade it."
    )
