"""The state of plain Python objects, taken from their attributes and put back into a fresh instance.

Nothing is pickled or deep-copied, and no class is looked up by name: objects are filled in where the fresh instance
has one of the same class, generators and containers are made anew. Objects that are reached twice stay one object.
Whatever is not understood is `Opaque` with its path, and then the environment is replayed instead.
"""

from __future__ import annotations

import abc
import enum
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dsec.core import canon, generators, leaves
from dsec.runtime import chain

__all__ = ["Capture", "Opaque", "Restore", "fingerprint"]

_PLAIN = (type(None), bool, int, float, str, bytes)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, so it hides no C state of its own
_TAG = "$"


class Opaque(Exception):
    """A value that can't be saved by its attributes.

    Parameters
    ----------
    path
        Where it stands, ``env.env.simulator``.
    reason
        What it is, or what is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Capture:
    """Takes values apart; one instance sees all that one environment holds, so it knows what is shared."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._arrays: list[tuple[int, int, str]] = []

    def attributes(self, owner: object, names: Iterable[str], path: str) -> dict[str, Any]:
        """Attributes by name, those that the owner lacks left out.

        Raises
        ------
        Opaque
            At the first value that isn't understood.
        """
        held = vars(owner)
        return {name: self.value(held[name], f"{path}.{name}") for name in sorted(names) if name in held}

    def value(self, value: Any, path: str) -> Any:
        """One value as a state tree that shares nothing with it."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple:
            return tuple(self.value(item, f"{path}[{at}]") for at, item in enumerate(value))
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            return value
        if isinstance(value, _NAMED):
            return {_TAG: "name", "of": _name(value, path)}
        if id(value) in self._seen:
            return {_TAG: "same", "as": self._seen[id(value)]}
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return self._mutable(value, path)

    def _mutable(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            return self._array(value, path)
        if kind is list:
            return [self.value(item, f"{path}[{at}]") for at, item in enumerate(value)]
        if kind is dict:
            pairs = [[self.value(key, path), self.value(item, f"{path}[{key!r}]")] for key, item in value.items()]
            return {_TAG: "dict", "items": pairs}
        if kind is deque:
            items = [self.value(item, f"{path}[{at}]") for at, item in enumerate(value)]
            return {_TAG: "deque", "items": items, "maxlen": value.maxlen}
        if kind in (set, frozenset):
            return {_TAG: kind.__name__, "items": self._sorted(value, path)}
        return self._object(value, path)

    def _sorted(self, value: Iterable[Any], path: str) -> list[Any]:
        try:
            return [self.value(item, path) for item in sorted(value)]
        except TypeError:
            raise Opaque(path, "a set whose items have no order") from None

    def _array(self, value: npt.NDArray[Any], path: str) -> npt.NDArray[Any]:
        try:
            leaves.dtype_name(value.dtype)
        except leaves.Refused as refused:
            raise Opaque(path, refused.message) from None
        low, high = np.lib.array_utils.byte_bounds(value)
        for other_low, other_high, other in self._arrays:
            if low < other_high and other_low < high:
                raise Opaque(path, f"an array that shares memory with {other}")
        if value.size:
            self._arrays.append((low, high, path))
        return value.copy()

    def _object(self, value: Any, path: str) -> Any:
        try:
            if type(value) is np.random.Generator:
                return {_TAG: "generator", "parts": generators.bit_generator_parts(value.bit_generator)}
            if type(value) is np.random.RandomState:
                return {_TAG: "random_state", "parts": generators.legacy_parts(value)}
        except leaves.Refused as refused:
            raise Opaque(path, refused.message) from None
        if leaves.type_name(type(value)) == "random.Random":
            return {_TAG: "random", "state": value.getstate()}
        if not _is_plain_object(value):
            raise Opaque(path, leaves.type_name(type(value)))
        held = {name: self.value(item, f"{path}.{name}") for name, item in sorted(vars(value).items())}
        return {_TAG: "object", "of": leaves.type_name(type(value)), "attributes": held}


class Restore:
    """Puts together what a `Capture` took apart, in the same order."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def attributes(self, owner: object, saved: Mapping[str, Any], names: Iterable[str], path: str) -> None:
        """Set the owner's attributes; those of ``names`` that weren't saved are removed.

        Raises
        ------
        Opaque
            Where the fresh owner is not like the one that was saved.
        """
        held = vars(owner)
        for name in sorted(names):
            if name not in saved:
                held.pop(name, None)
        for name in sorted(saved):
            held[name] = self.value(saved[name], held.get(name), f"{path}.{name}")

    def value(self, saved: Any, fresh: Any, path: str) -> Any:
        """One value; ``fresh`` is what the fresh instance has in its place."""
        kind = type(saved)
        if kind is tuple:
            return tuple(self.value(item, None, path) for item in saved)
        if kind is np.ndarray:
            return self._remember(saved.copy())
        if kind is list:
            return self._filled(self._remember([]), saved, fresh, path)
        return self._tagged(saved[_TAG], saved, fresh, path) if kind is dict else saved

    def _tagged(self, tag: str, saved: Mapping[str, Any], fresh: Any, path: str) -> Any:
        if tag == "same":
            return self._made[saved["as"]]
        if tag == "name":
            return _same_name(saved["of"], fresh, path)
        if tag == "object":
            return self._object(saved, fresh, path)
        return self._container(tag, saved, fresh, path)

    def _container(self, tag: str, saved: Mapping[str, Any], fresh: Any, path: str) -> Any:
        if tag == "dict":
            made = self._remember({})
            known = fresh if type(fresh) is dict else {}
            for key, item in saved["items"]:
                made_key = self.value(key, None, path)
                made[made_key] = self.value(item, known.get(made_key), f"{path}[{made_key!r}]")
            return made
        if tag == "deque":
            return self._filled(self._remember(deque(maxlen=saved["maxlen"])), saved["items"], fresh, path)
        if tag in ("set", "frozenset"):
            at = len(self._made)
            self._made.append(None)
            items = [self.value(item, None, path) for item in saved["items"]]
            self._made[at] = set(items) if tag == "set" else frozenset(items)
            return self._made[at]
        return self._remember(_generator(tag, saved, fresh, path))

    def _filled(self, made: Any, saved: Iterable[Any], fresh: Any, path: str) -> Any:
        known = list(fresh) if isinstance(fresh, list | deque) else []
        for at, item in enumerate(saved):
            made.append(self.value(item, known[at] if at < len(known) else None, f"{path}[{at}]"))
        return made

    def _object(self, saved: Mapping[str, Any], fresh: Any, path: str) -> Any:
        if leaves.type_name(type(fresh)) != saved["of"] or any(fresh is made for made in self._made):
            raise Opaque(path, f"{saved['of']}, and a fresh instance has {leaves.type_name(type(fresh))} there")
        self._remember(fresh)
        self.attributes(fresh, saved["attributes"], list(vars(fresh)), path)
        return fresh

    def _remember(self, made: Any) -> Any:
        self._made.append(made)
        return made


def fingerprint(tree: Any) -> bytes:
    """16 bytes over a captured tree."""
    return chain.state_digest(canon.encode(_flat(tree)))


def _flat(tree: Any) -> Any:
    if isinstance(tree, np.ndarray | np.generic):
        return [tree.dtype.str, list(tree.shape), tree.tobytes()]
    if type(tree) in (list, tuple):
        return [type(tree).__name__, *(_flat(item) for item in tree)]
    if type(tree) is dict:
        return {name: _flat(item) for name, item in tree.items()}
    return tree


def _generator(tag: str, saved: Mapping[str, Any], fresh: Any, path: str) -> Any:
    if tag == "generator":
        return np.random.Generator(generators.bit_generator(saved["parts"]))
    if tag == "random_state":
        return generators.legacy(saved["parts"])
    if leaves.type_name(type(fresh)) != "random.Random":
        raise Opaque(path, "random.Random, and a fresh instance has none there")
    fresh.setstate(saved["state"])
    return fresh


def _same_name(saved: str, fresh: Any, path: str) -> Any:
    if isinstance(fresh, _NAMED) and _name(fresh, path) == saved:
        return fresh
    if isinstance(fresh, enum.Enum):
        members = {_name(member, path): member for member in type(fresh)}
        if saved in members:
            return members[saved]
    raise Opaque(path, f"{saved}, and a fresh instance has {fresh!r} there")


def _name(value: Any, path: str) -> str:
    if isinstance(value, enum.Enum):
        return f"{leaves.type_name(type(value))}.{value.name}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.FunctionType) and value.__closure__:
        raise Opaque(path, f"the function {value.__qualname__} with variables of its own")
    if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
        raise Opaque(path, f"the method {value.__qualname__}")
    return f"{value.__module__}:{value.__qualname__}"


def _is_plain_object(value: Any) -> bool:
    kinds = type(value).__mro__[:-1]
    made_in_python = all(kind.__flags__ & _HEAP_TYPE and type(kind) in (type, abc.ABCMeta) for kind in kinds)
    return made_in_python and hasattr(value, "__dict__") and not any(_slots(kind) for kind in kinds)


def _slots(kind: type) -> bool:
    return bool(vars(kind).get("__slots__", ()))
