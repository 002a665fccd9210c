"""Layouts: what observations and actions look like, and their bytes.

A layout is found once, from a space or from a first value, and every later value is read through it: what the agent
sees, what is hashed and what a batch holds are then the same thing, and one environment stepped alone gives what it
gives among others. Bytes of a fixed layout have one length; inside of another layout, others carry theirs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dsec.core import canon, decode
from dsec.errors import StateError

__all__ = [
    "Array",
    "Layout",
    "LayoutError",
    "Plain",
    "Record",
    "Row",
    "Scalar",
    "first_of",
    "layout_of",
    "little",
    "loose",
]


class LayoutError(ValueError):
    """A value that its layout refuses; says what was found and what was expected."""


class Layout(Protocol):
    """How values of one kind are read, turned into bytes, and put side by side."""

    @property
    def width(self) -> int | None:
        """Bytes of one value; None where their number varies."""

    @property
    def read(self) -> Callable[[Any], Any]:
        """Gives the value in its one form, sharing no array with anyone, or raises `LayoutError`."""

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Bytes of a value that was read."""

    def unpack(self, parts: Sequence[bytes]) -> Any:
        """Values from their bytes, side by side on a new first axis; inverse of `pack`."""

    def stack(self, values: Sequence[Any]) -> Any:
        """Values that were read, side by side on a new first axis."""

    def split(self, values: Any, count: int) -> list[Any]:
        """``count`` values from where they stand side by side, each read."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A bool, int or float, kept as bool, int64 or float64."""

    kind: type[bool] | type[int] | type[float]
    low: int | None = None
    """Least int; None is that of 64 bits."""
    high: int | None = None
    """Greatest int, inclusive; None is that of 64 bits."""

    @property
    def width(self) -> int:
        """1 or 8."""
        return _SCALARS[self.kind].itemsize

    @property
    def read(self) -> Callable[[Any], Any]:
        """Takes Python's and numpy's scalars and arrays of one element."""
        kind, low, high = self.kind, self.low, self.high
        if kind is not int:
            return lambda value: value if type(value) is kind else _scalar(kind, value)
        floor = _LEAST if low is None else low
        ceiling = _GREATEST if high is None else high

        def read(value: Any) -> Any:
            if type(value) is not int:
                value = _scalar(int, value)
            if floor <= value <= ceiling:
                return value
            raise LayoutError(f"{value!r} is outside of {floor} to {ceiling}")

        return read

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Little-endian."""
        return struct.Struct({bool: "<?", int: "<q", float: "<d"}[self.kind]).pack

    def unpack(self, parts: Sequence[bytes]) -> npt.NDArray[Any]:
        """One array (n,)."""
        return np.frombuffer(bytearray().join(parts), _SCALARS[self.kind])

    def stack(self, values: Sequence[Any]) -> npt.NDArray[Any]:
        """One array (n,)."""
        return np.array(values, _SCALARS[self.kind])

    def split(self, values: Any, count: int) -> list[Any]:
        """From an array or list of ``count``."""
        found = loose(values)
        if np.shape(found) != (count,):
            raise LayoutError(f"shape {np.shape(found)}, expected ({count},): one for each environment")
        return [self.read(value) for value in (found.tolist() if isinstance(found, np.ndarray) else found)]


@dataclass(frozen=True, slots=True)
class Array:
    """An array of one dtype and shape."""

    dtype: np.dtype[Any]
    """Of its elements, little-endian."""
    shape: tuple[int, ...]
    low: npt.NDArray[Any] | None = field(default=None, compare=False)
    """Least elements, in this shape; None is unbounded."""
    high: npt.NDArray[Any] | None = field(default=None, compare=False)
    """Greatest elements, inclusive."""

    @property
    def width(self) -> int:
        """Bytes of all elements."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def read(self) -> Callable[[Any], Any]:
        """Takes what converts to the dtype without loss of kind; always a copy."""
        dtype, shape = self.dtype, self.shape

        def read(value: Any) -> Any:
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                return value.copy()
            return _array(value, dtype, shape)

        return read if self.low is None else lambda value: self._bounded(read(value))

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Elements in C order."""
        return np.ndarray.tobytes

    def unpack(self, parts: Sequence[bytes]) -> npt.NDArray[Any]:
        """One array (n, ...)."""
        return np.frombuffer(bytearray().join(parts), self.dtype).reshape(len(parts), *self.shape)

    def stack(self, values: Sequence[Any]) -> npt.NDArray[Any]:
        """One array (n, ...)."""
        return np.array(values, self.dtype).reshape(len(values), *self.shape)

    def split(self, values: Any, count: int) -> list[Any]:
        """From an array (count, ...); each is a copy."""
        return [self._bounded(value) for value in _array(values, self.dtype, (count, *self.shape))]

    def _bounded(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.low is not None and not ((self.low <= value) & (value <= self.high)).all():
            raise LayoutError(f"{value.tolist()} is outside of {self.low.tolist()} to {_listed(self.high)}")
        return value


@dataclass(frozen=True, slots=True)
class Row:
    """A tuple of a fixed length."""

    items: tuple[Layout, ...]

    @property
    def width(self) -> int | None:
        """Sum of its items'."""
        return _total(self.items)

    @property
    def read(self) -> Callable[[Any], Any]:
        """Takes tuples and lists."""
        readers = tuple(item.read for item in self.items)

        def read(value: Any) -> Any:
            if not isinstance(value, tuple | list) or len(value) != len(readers):
                raise LayoutError(f"{_shown(value)}, expected a tuple of {len(readers)}")
            return tuple(_inside(f"[{i}]", r, v) for i, (r, v) in enumerate(zip(readers, value, strict=True)))

        return read

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Its items one after another."""
        packers = tuple(_framed(item) for item in self.items)
        return lambda value: b"".join([pack(item) for pack, item in zip(packers, value, strict=True)])

    def unpack(self, parts: Sequence[bytes]) -> tuple[Any, ...]:
        """A tuple of what its items give."""
        return tuple(_columns(self.items, parts))

    def stack(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A tuple of what its items give."""
        return tuple(item.stack([value[i] for value in values]) for i, item in enumerate(self.items))

    def split(self, values: Any, count: int) -> list[Any]:
        """From a tuple with one entry for each item."""
        if not isinstance(values, tuple | list) or len(values) != len(self.items):
            raise LayoutError(f"{_shown(values)}, expected a tuple of {len(self.items)}")
        columns = [item.split(value, count) for item, value in zip(self.items, values, strict=True)]
        return list(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Record:
    """A dict with fixed names."""

    names: tuple[str, ...]
    """Sorted."""
    items: tuple[Layout, ...]

    @property
    def width(self) -> int | None:
        """Sum of its items'."""
        return _total(self.items)

    @property
    def read(self) -> Callable[[Any], Any]:
        """Takes mappings with exactly these names."""
        names = self.names
        readers = tuple((name, item.read) for name, item in zip(names, self.items, strict=True))

        def read(value: Any) -> Any:
            if not isinstance(value, Mapping) or len(value) != len(names) or any(n not in value for n in names):
                raise LayoutError(f"{_shown(value)}, expected a dict with {', '.join(names)}")
            return {name: _inside(f".{name}", reader, value[name]) for name, reader in readers}

        return read

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Its items in order of their names."""
        packers = tuple((name, _framed(item)) for name, item in zip(self.names, self.items, strict=True))
        return lambda value: b"".join([pack(value[name]) for name, pack in packers])

    def unpack(self, parts: Sequence[bytes]) -> dict[str, Any]:
        """A dict of what its items give."""
        return dict(zip(self.names, _columns(self.items, parts), strict=True))

    def stack(self, values: Sequence[Any]) -> dict[str, Any]:
        """A dict of what its items give."""
        pairs = zip(self.names, self.items, strict=True)
        return {name: item.stack([value[name] for value in values]) for name, item in pairs}

    def split(self, values: Any, count: int) -> list[Any]:
        """From a dict with these names."""
        if not isinstance(values, Mapping) or set(values) != set(self.names):
            raise LayoutError(f"{_shown(values)}, expected a dict with {', '.join(self.names)}")
        columns = [item.split(values[name], count) for name, item in zip(self.names, self.items, strict=True)]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Plain:
    """Anything with canonical bytes: text, lists of varying length; arrays inside become lists."""

    @property
    def width(self) -> None:
        """It varies."""
        return

    @property
    def read(self) -> Callable[[Any], Any]:
        """Takes what `canon.encode` takes, and numpy's arrays and scalars as lists and numbers."""
        return _plain

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Canonical bytes."""
        return canon.encode

    def unpack(self, parts: Sequence[bytes]) -> list[Any]:
        """A list of values."""
        return [decode.decode(part) for part in parts]

    def stack(self, values: Sequence[Any]) -> list[Any]:
        """A list of values."""
        return list(values)

    def split(self, values: Any, count: int) -> list[Any]:
        """From a list of ``count``."""
        if not isinstance(values, list | tuple) or len(values) != count:
            raise LayoutError(f"{_shown(values)}, expected a list of {count}: one for each environment")
        return [_plain(value) for value in values]


_LEAST, _GREATEST = -(2**63), 2**63 - 1
_length = struct.Struct("<Q")
_SCALARS: Mapping[type, np.dtype[Any]] = {bool: np.dtype("|b1"), int: np.dtype("<i8"), float: np.dtype("<f8")}


def layout_of(value: Any) -> Layout:
    """The layout that a first value shows; used where there is no space."""
    value = loose(value)
    if isinstance(value, np.ndarray) and value.ndim and not value.dtype.hasobject:
        return Array(little(value.dtype), value.shape)
    if isinstance(value, np.ndarray | np.generic):
        value = value.item() if np.ndim(value) == 0 else value.tolist()
    if type(value) in _SCALARS:
        return Scalar(type(value))
    if isinstance(value, tuple) and value:
        return Row(tuple(layout_of(item) for item in value))
    if isinstance(value, Mapping) and value and all(type(name) is str for name in value):
        names = tuple(sorted(value))
        return Record(names, tuple(layout_of(value[name]) for name in names))
    return Plain()


def first_of(values: Any) -> Any:
    """The first of values that stand side by side."""
    if isinstance(values, Mapping):
        return {name: first_of(item) for name, item in values.items()}
    return tuple(first_of(item) for item in values) if isinstance(values, tuple) else values[0]


def little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype, little-endian, as the one object numpy has for it: reading compares identities."""
    return np.dtype(dtype.newbyteorder("<").str)


def loose(value: Any) -> Any:
    """A torch tensor as a numpy array, anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _total(items: Sequence[Layout]) -> int | None:
    total = 0
    for item in items:
        if item.width is None:
            return None
        total += item.width
    return total


def _framed(item: Layout) -> Callable[[Any], bytes]:
    pack = item.pack
    if item.width is not None:
        return pack

    def framed(value: Any) -> bytes:
        packed = pack(value)
        return _length.pack(len(packed)) + packed

    return framed


def _columns(items: Sequence[Layout], parts: Sequence[bytes]) -> list[Any]:
    cells: list[list[bytes]] = [[] for _ in items]
    for part in parts:
        at = 0
        for item, column in zip(items, cells, strict=True):
            width = item.width
            if width is None:
                (width,) = _length.unpack_from(part, at)
                at += _length.size
            column.append(part[at : at + width])
            at += width
    return [item.unpack(column) for item, column in zip(items, cells, strict=True)]


def _scalar(kind: type, value: Any) -> Any:
    found = loose(value)
    if isinstance(found, np.ndarray) and found.size == 1:
        found = found.reshape(())[()]
    if isinstance(found, np.generic):
        found = found.item()
    if type(found) is kind:
        return found
    if kind is float and type(found) is int:
        return float(found)
    if kind is int and type(found) is bool:
        return int(found)
    raise LayoutError(f"{_shown(value)}, expected {kind.__name__}")


def _array(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        found = np.asarray(loose(value))
    except ValueError:
        raise LayoutError(f"{_shown(value)}, expected {dtype} {shape}") from None
    if found.shape != shape:
        raise LayoutError(f"{found.dtype} of shape {found.shape}, expected {dtype} of shape {shape}")
    if not np.can_cast(found.dtype, dtype, "same_kind") and not _fits(found, dtype):
        raise LayoutError(f"{found.dtype} of shape {found.shape} doesn't turn into {dtype} without loss")
    return found.astype(dtype)


def _fits(found: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    if found.dtype.kind not in "biu" or dtype.kind not in "biuf":
        return False
    return bool((found.astype(dtype) == found).all())


def _plain(value: Any) -> Any:
    found = loose(value)
    if isinstance(found, np.ndarray | np.generic):
        found = found.tolist()
    if isinstance(found, list | tuple):
        return type(found)(_plain(item) for item in found) if type(found) in (list, tuple) else _refuse(value)
    if isinstance(found, Mapping):
        return {name: _plain(item) for name, item in found.items()}
    try:
        canon.encode(found)
    except StateError:
        _refuse(value)
    return found


def _refuse(value: Any) -> Any:
    raise LayoutError(f"{_shown(value)} is neither an array, a number, text, nor a tuple, list or dict of those")


def _inside(place: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except LayoutError as error:
        raise LayoutError(f"at {place}: {error}") from None


def _listed(value: Any) -> Any:
    return value if value is None else value.tolist()


def _shown(value: Any) -> str:
    text = repr(value)
    kind = type(value).__qualname__
    return f"{kind} {text}" if len(text) <= 60 else f"{kind} {text[:57]}..."
