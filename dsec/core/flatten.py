"""From a state tree to canonical bytes of its structure, and its arrays in the order the structure names them.

The form is `canon`'s with more tags; `dsec.core.state` lists them. A tree is walked in canonical order, keys sorted by
their bytes, so insertion order and hash seeds leave no trace.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dsec.core import canon, generators, leaves
from dsec.core.decode import MAX_DEPTH
from dsec.core.leaves import Refused, type_name
from dsec.errors import StateError

__all__ = ["MAX_VALUES", "Flat", "flatten", "form", "mapping_order"]

MAX_VALUES = 1 << 24
"""How many values one tree may hold."""

_double = struct.Struct(">d").pack
_by_key = itemgetter(0)

_DEEP = "keep it flat, or as arrays"
_HINTS: Mapping[str, str] = {
    "collections.deque": "keep a list, or an array with a position in it (a ring buffer)",
    "collections.defaultdict": "keep dict(it); its factory is code",
    "collections.Counter": "keep dict(it)",
    "complex": "keep numpy.complex128(it)",
    "bytearray": "keep bytes(it)",
    "range": "keep list(it)",
    "datetime.datetime": "keep it.isoformat()",
    "random.Random": "keep it.getstate(), or use a numpy.random.Generator",
    "function": "keep the name of it, and make it again in load_state_dict()",
    "method": "keep the name of it, and make it again in load_state_dict()",
    "builtin_function_or_method": "keep the name of it, and make it again in load_state_dict()",
    "torch.Size": "keep tuple(it)",
}
_ELSE = "leave it out of state_dict(), or give its class state_dict() and load_state_dict()"


class Flat(NamedTuple):
    """A tree taken apart."""

    structure: bytes
    """Canonical bytes of everything but the elements of arrays."""
    arrays: list[npt.NDArray[Any]]
    """Little-endian arrays in the order of their numbers in the structure, in whatever memory layout."""
    floats: frozenset[int]
    """Numbers of arrays of integers that hold the bits of floats (bfloat16, float8)."""


def flatten(tree: object) -> Flat:
    """Take a tree apart; no array is copied but one that is big-endian, or not on the CPU.

    Raises
    ------
    StateError
        For a cycle, or a value that is none of the leaves; ``where`` is its path, ``agent.memory[3].client``.
    """
    walk = _Walk()
    try:
        walk.node(tree)
    except Refused as refused:
        raise refused.error() from refused.__cause__
    except RecursionError:
        raise StateError("nested too deep for the stack that is left", hint=_DEEP) from None
    return Flat(b"".join(walk.parts), walk.arrays, frozenset(walk.floats))


class _Walk:
    """One pass over a tree."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.write = self.parts.append
        self.arrays: list[npt.NDArray[Any]] = []
        self.floats: list[int] = []
        self.inside: set[int] = set()
        self.values = 0
        self.shared: dict[object, int] = {}
        self.kept: list[object] = []  # what `shared` knows by address must not be freed meanwhile

    def node(self, value: Any) -> None:
        """Write one value, by its exact type."""
        write = _WRITERS.get(type(value))
        if write is not None:
            write(self, value)
        else:
            self.other(value)

    def other(self, value: Any) -> None:
        """Write a value whose type is not known beforehand: torch's, enums, dataclasses, objects."""
        parts = leaves.tensor_parts(value)
        if parts is not None:
            self.tensor(parts, value)
        elif (torch_generator := leaves.torch_generator(value)) is not None:
            self.torch_generator(torch_generator, value)
        elif (named := leaves.named(value)) is not None:
            self.named(named, value)
        else:
            raise _unknown(value)

    def integer(self, value: int) -> None:
        self.write(b"i%x;" % value)

    def text(self, value: str) -> None:
        self.write(_text(value))

    def fields(self, stand_in: object, *values: tuple[object, type]) -> None:
        """Write the parts of a stand-in that its maker may have filled with anything."""
        for value, kind in values:
            if type(value) is not kind:
                raise Refused(f"{type(stand_in).__name__} with a {type(value).__name__}", f"it takes {kind.__name__}")
            self.node(value)

    def blob(self, value: bytes) -> None:
        self.write(b"b%d:" % len(value))
        self.write(value)

    def sequence(self, value: Sequence[Any]) -> None:
        self.enter(value, len(value))
        self.write(b"%c%d:" % (b"l" if type(value) is list else b"u", len(value)))
        self.each(enumerate(value))
        self.leave(value)

    def mapping(self, value: Mapping[Any, Any]) -> None:
        self.enter(value, len(value))
        self.write(b"m%d:" % len(value))
        for name, key, item in mapping_order(value):
            self.write(name)
            try:
                self.node(item)
            except Refused as refused:
                refused.path.append(key)
                raise
        self.leave(value)

    def each(self, items: Iterable[tuple[int, Any]]) -> None:
        for index, item in items:
            try:
                self.node(item)
            except Refused as refused:
                refused.path.append(index)
                raise

    def elements(self, value: Set[Any]) -> None:
        self.enter(value, len(value))
        self.write(b"%c%d:" % (b"S" if type(value) is set else b"Z", len(value)))
        last = b""
        for element in sorted(_element(item) for item in value):
            if element == last:
                raise Refused(f"{type_name(type(value))} of two elements with the same bytes", "keep a list")
            last = element
            self.write(element)
        self.leave(value)

    def enter(self, container: object, size: int) -> None:
        """Note that a container is being walked; finds cycles, depth and trees that explode."""
        self.values += size
        if id(container) in self.inside:
            raise Refused(f"{type_name(type(container))} that contains itself", "break the cycle")
        if len(self.inside) >= MAX_DEPTH:
            raise Refused(f"{type_name(type(container))} nested deeper than {MAX_DEPTH}", _DEEP)
        if self.values > MAX_VALUES:
            raise Refused(f"{type_name(type(container))} that brings the tree above {MAX_VALUES} values", "keep arrays")
        self.inside.add(id(container))

    def leave(self, container: object) -> None:
        self.inside.discard(id(container))

    def array(self, value: npt.NDArray[Any]) -> None:
        self.write(b"ai%x;" % len(self.arrays))
        self.arrays.append(_little(value))

    def scalar(self, value: np.generic) -> None:
        name = leaves.dtype_name(value.dtype)
        self.write(b"ns%d:%b" % (len(name), name.encode()))
        self.blob(np.asarray(value).astype(name, copy=False).tobytes())

    def tensor(self, parts: leaves.TensorParts, value: object) -> None:
        number = self.shared.get(parts.storage) if parts.storage else None
        if number is None:
            number = len(self.arrays)
            self.arrays.append(_little(parts.array))
            if "float" in parts.dtype:
                self.floats.append(number)
            if parts.storage:
                self.shared[parts.storage] = number
                self.kept.append(value)
        tail = (len(parts.dtype), parts.dtype.encode(), len(parts.kind), parts.kind.encode())
        self.write(b"ti%x;s%d:%bs%d:%b" % (number, *tail))

    def generator(self, value: np.random.Generator) -> None:
        self.write(b"g")
        self.node(value.bit_generator)

    def bit_generator(self, value: np.random.BitGenerator) -> None:
        if self.known(b"P", value):
            return
        self.write(b"p")
        self.node(generators.bit_generator_parts(value))

    def legacy(self, value: np.random.RandomState) -> None:
        if self.known(b"H", value):
            return
        self.write(b"h")
        self.node(generators.legacy_parts(value))

    def torch_generator(self, parts: leaves.TorchGenerator, value: object) -> None:
        if self.known(b"Q", value):
            return
        self.write(b"q")
        self.fields(parts, (parts.device, str), (parts.state, bytes))

    def known(self, tag: bytes, value: object) -> bool:
        """Write a reference if this very object came before; else number it among those of its tag."""
        number = self.shared.get((tag, id(value)))
        if number is not None:
            self.write(b"%bi%x;" % (tag, number))
            return True
        self.shared[tag, id(value)] = self.shared.get(tag, 0)
        self.shared[tag] = self.shared.get(tag, 0) + 1
        self.kept.append(value)
        return False

    def named(self, stand_in: leaves.Named, value: object) -> None:
        tag = _NAMED.get(stand_in.kind)
        if tag is None:
            raise Refused(f"Named of kind {stand_in.kind!r}", f"use one of {', '.join(_NAMED)}")
        self.enter(value, 1)
        self.write(tag)
        holds = _HOLDS.get(stand_in.kind, type(stand_in.value))
        self.fields(stand_in, (stand_in.name, str), (stand_in.value, holds))
        self.leave(value)

    def unread(self, _: leaves.ArraySpec) -> None:
        raise Refused("ArraySpec", "it stands for an array that was not read; take the tree from anchors.get")

    def anchor(self, value: leaves.AnchorRef) -> None:
        self.write(b"r")
        self.fields(value, (value.anchor_id, str))


def mapping_order(value: Mapping[Any, Any]) -> list[tuple[bytes, Any, Any]]:
    """Entries of a mapping in canonical order, as key's bytes, key, item.

    Raises
    ------
    Refused
        For a key that is neither str nor int.
    """
    entries: list[tuple[bytes, Any, Any]] = []
    for key, item in value.items():
        if type(key) is str:
            entries.append((_text(key), key, item))
        elif type(key) is int:
            entries.append((b"i%x;" % key, key, item))
        else:
            raise Refused(f"dict with a key of {type_name(type(key))}", "keys are str or int")
    entries.sort(key=_by_key)
    return entries


def form(value: object) -> bytes:
    """Canonical bytes of a value without arrays and identities, as the elements of a set are.

    Raises
    ------
    Refused
        For any other value.
    """
    walk = _Walk()
    walk.node(value)
    if walk.shared or walk.arrays:
        raise Refused(f"{type_name(type(value))} in a set", "sets hold plain values; keep a list")
    return b"".join(walk.parts)


def _element(item: object) -> bytes:
    try:
        return form(item)
    except Refused as refused:
        refused.path.append("{}")
        raise


def _little(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.dtype in _LITTLE else array.astype(leaves.dtype_name(array.dtype), copy=False)


def _text(value: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise Refused("str with a lone surrogate", "keep bytes") from None
    return b"s%d:%b" % (len(raw), raw)


def _unknown(value: object) -> Refused:
    kind = type(value)
    name = type_name(kind)
    hint = _HINTS.get(name)
    if hint is None and isinstance(value, tuple):
        hint = "keep tuple(it), or make it a dataclass"
    elif hint is None and isinstance(value, np.ndarray):
        hint = "keep numpy.asarray(it), and beside it what the subclass adds"
    elif hint is None and name.startswith("pathlib."):
        hint = "keep str(it)"
    return Refused(name, hint or _ELSE)


_LITTLE = frozenset(np.dtype(name) for name in leaves.FIXED)

_NAMED: Mapping[str, bytes] = {"enum": b"e", "flag": b"f", "dataclass": b"c", "object": b"o"}
_HOLDS: Mapping[str, type] = {"enum": str, "flag": int, "dataclass": dict}

_WRITERS: dict[type, Callable[[_Walk, Any], None]] = {
    type(None): lambda walk, _: walk.write(b"N"),
    bool: lambda walk, value: walk.write(b"T" if value else b"F"),
    int: _Walk.integer,
    float: lambda walk, value: walk.write(b"d" + _double(value)),
    str: _Walk.text,
    bytes: _Walk.blob,
    list: _Walk.sequence,
    tuple: _Walk.sequence,
    dict: _Walk.mapping,
    OrderedDict: _Walk.mapping,
    set: _Walk.elements,
    frozenset: _Walk.elements,
    canon.Encoded: lambda walk, value: walk.write(value),
    np.ndarray: _Walk.array,
    np.memmap: _Walk.array,
    np.random.Generator: _Walk.generator,
    np.random.RandomState: _Walk.legacy,
    leaves.AnchorRef: _Walk.anchor,
    leaves.ArraySpec: _Walk.unread,
    **dict.fromkeys(set(np.sctypeDict.values()), _Walk.scalar),
    **dict.fromkeys(generators.CLASSES.values(), _Walk.bit_generator),
}
