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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dsec.core import generators, leaves
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
        self._arrays: list[tuple[npt.NDArray[Any], str]] = []

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
        for other, place in self._arrays:
            if np.may_share_memory(value, other):
                raise Opaque(path, f"an array that shares memory with {place}")
        self._arrays.append((value, path))
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

    def attributes(self, owner: object, saved: Mapping[str, Any], fresh: Mapping[str, Any], path: str) -> None:
        """Set the owner's attributes; those it has in ``fresh`` that weren't saved are removed.

        ``__dict__`` is not touched: in Python 3.11 that makes every later access of the owner's attributes slower.

        Raises
        ------
        Opaque
            Where the fresh owner is not like the one that was saved.
        """
        for name in sorted(fresh.keys() - saved.keys()):
            object.__delattr__(owner, name)
        for name in sorted(saved):
            object.__setattr__(owner, name, self.value(saved[name], fresh.get(name), f"{path}.{name}"))

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
        self.attributes(fresh, saved["attributes"], dict(vars(fresh)), path)
        return fresh

    def _remember(self, made: Any) -> Any:
        self._made.append(made)
        return made


def fingerprint(tree: Any) -> bytes:
    """16 bytes over a captured tree; made of repr, which is exact and three times as fast as canonical bytes."""
    parts: list[bytes] = []
    _write(tree, parts.append)
    return chain.state_digest(b"".join(parts))


def _write(tree: Any, put: Callable[[bytes], None]) -> None:
    kind = type(tree)
    if kind is dict:
        put(b"{%d:" % len(tree))
        for name, item in tree.items():  # in order of insertion, which `Capture` fixes
            put(repr(name).encode())
            _write(item, put)
    elif kind is list or kind is tuple:
        put(b"%c%d:" % (b"[" if kind is list else b"(", len(tree)))
        for item in tree:
            _write(item, put)
    elif kind in _PLAIN:
        put(b"%a;" % tree)
    else:
        put(f"{tree.dtype.str}{tree.shape}".encode())
        put(tree.tobytes())


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
