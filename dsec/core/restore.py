"""From canonical bytes of a structure and its arrays back to a state tree.

The bytes may come from anyone: see `decode`. What names a class comes back as a stand-in unless the caller resolves it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from dsec.core import decode, generators, leaves
from dsec.core.leaves import ArraySpec, Named, Tensor
from dsec.errors import StateError

__all__ = ["Resolve", "references", "unflatten"]

Resolve = Callable[[Named], Any]
"""What makes a value of a stand-in, or returns it as it is; see `leaves.by_class`."""


def unflatten(structure: bytes, arrays: Sequence[Any], *, resolve: Resolve | None = None, where: str = "") -> Any:
    """Put a tree together.

    Parameters
    ----------
    structure
        What `flatten` gave.
    arrays
        Arrays by their number; an `ArraySpec` where the elements were not read.
    resolve
        Restores enums, dataclasses and objects; without it they come back as `Named`.
    where
        What an error names.

    Raises
    ------
    CorruptObject
        If the bytes are no structure over these arrays.
    StateError
        If ``resolve`` can't restore a value.
    """
    reader = _Reader(structure, arrays, resolve, where)
    tree = reader.whole()
    if reader.used != len(arrays):
        raise reader.wrong(f"it uses {reader.used} of {len(arrays)} arrays")
    return tree


def references(structure: bytes, arrays: Sequence[Any], where: str = "") -> tuple[str, ...]:
    """Ids of the anchors that stand in a structure, in its order, each once."""
    reader = _Reader(structure, arrays, None, where)
    reader.whole()
    return tuple(dict.fromkeys(reader.anchors))


class _Reader(decode.Reader):
    """Reads the tags of trees besides the plain ones."""

    def __init__(self, structure: bytes, arrays: Sequence[Any], resolve: Resolve | None, where: str) -> None:
        super().__init__(structure, where)
        self.arrays = arrays
        self.resolve = resolve
        self.used = 0
        self.tensors: dict[tuple[int, str, str], Any] = {}
        self.met: dict[str, list[Any]] = {"p": [], "h": [], "q": []}
        self.anchors: list[str] = []

    def elements(self) -> list[Any]:
        """Elements of a set, in the order of their bytes, each once."""
        values, last = [], b""
        for _ in range(self.count()):
            start = self.at
            values.append(self.value())
            form = self.content[start : self.at]
            if form <= last:
                raise self.wrong("elements of a set stand in order, each once")
            last = form
        return values

    def collected(self, kind: type) -> Any:
        """A set of its elements."""
        values = self.elements()
        try:
            made = kind(values)
        except TypeError:
            made = ()
        if len(made) == len(values):
            return made
        if self.resolve is not None:
            raise StateError("elements of a set are equal, or can't be in one, once restored by their classes")
        raise self.wrong("elements of a set that are equal, or can't be in one")

    def array(self) -> Any:
        """A numpy array: the next one."""
        number = self.typed(int)
        if number != self.used or number >= len(self.arrays):
            raise self.wrong(f"array {number} out of turn")
        self.used += 1
        return self.arrays[number]

    def tensor(self) -> Any:
        """A tensor: the next array, or one that a tensor before it has."""
        key = (self.typed(int), self.typed(str), self.typed(str))
        if key not in self.tensors:
            self.tensors[key] = self.new_tensor(*key)
        return self.tensors[key]

    def new_tensor(self, number: int, dtype: str, kind: str) -> Any:
        """The stand-in of a tensor that did not come before in this form."""
        before = any(known == number for known, _, _ in self.tensors) if number < self.used else number == self.used
        held = leaves.TORCH_DTYPES.get(dtype)
        if not before or number >= len(self.arrays) or held is None or kind not in leaves.KINDS:
            raise self.wrong(f"no tensor: array {number}, {dtype!r}, {kind!r}")
        self.used = max(self.used, number + 1)
        array = self.arrays[number]
        if (array.dtype if isinstance(array, ArraySpec) else leaves.dtype_name(array.dtype)) != held:
            raise self.wrong(f"a tensor of {dtype} over an array of {array.dtype}")
        if isinstance(array, ArraySpec):
            return ArraySpec(dtype, array.shape, array.number)
        return Tensor(array, dtype, cast(Any, kind))

    def scalar(self) -> Any:
        """A numpy scalar."""
        name, raw = self.typed(str), self.typed(bytes)
        dtype = leaves.array_dtype(name)
        if dtype is None or len(raw) != dtype.itemsize or not raw:
            raise self.wrong(f"no numpy scalar of dtype {name!r}")
        return np.frombuffer(raw, dtype)[0]

    def generator(self) -> Any:
        """A numpy Generator over a bit generator."""
        source = self.value()
        if not isinstance(source, np.random.BitGenerator):
            raise self.wrong("a Generator over no bit generator")
        return np.random.Generator(source)

    def made(self, tag: str, make: Callable[[Any], Any]) -> Any:
        """A generator made of its parts, and numbered among its kind."""
        parts = self.value()
        try:
            made = make(parts)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise self.wrong(f"no state of a generator: {error}") from None
        self.met[tag].append(made)
        return made

    def torch_generator(self) -> Any:
        """The stand-in of a torch Generator."""
        made = leaves.TorchGenerator(self.typed(str), self.typed(bytes))
        self.met["q"].append(made)
        return made

    def again(self, tag: str) -> Any:
        """A generator that came before."""
        number = self.typed(int)
        if not 0 <= number < len(self.met[tag]):
            raise self.wrong(f"generator {number} that did not come before")
        return self.met[tag][number]

    def named(self, kind: Any, holds: type | None) -> Any:
        """A value by the name of its class."""
        name = self.typed(str)
        stand_in = Named(kind, sys.intern(name), self.typed(holds) if holds else self.value())
        return self.resolve(stand_in) if self.resolve else stand_in

    def anchor(self) -> Any:
        """An anchor in place of its tree."""
        anchor_id = self.typed(str)
        self.anchors.append(anchor_id)
        return leaves.AnchorRef(anchor_id)


_TAGS: dict[str, Callable[[_Reader], Any]] = {
    "S": lambda reader: reader.collected(set),
    "Z": lambda reader: reader.collected(frozenset),
    "a": _Reader.array,
    "t": _Reader.tensor,
    "n": _Reader.scalar,
    "g": _Reader.generator,
    "p": lambda reader: reader.made("p", generators.bit_generator),
    "P": lambda reader: reader.again("p"),
    "h": lambda reader: reader.made("h", generators.legacy),
    "H": lambda reader: reader.again("h"),
    "q": _Reader.torch_generator,
    "Q": lambda reader: reader.again("q"),
    "e": lambda reader: reader.named("enum", str),
    "f": lambda reader: reader.named("flag", int),
    "c": lambda reader: reader.named("dataclass", dict),
    "o": lambda reader: reader.named("object", None),
    "r": _Reader.anchor,
}

_Reader.tags = {**decode.Reader.tags, **{ord(tag): read for tag, read in _TAGS.items()}}
