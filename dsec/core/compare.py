"""Where two state trees differ, bit by bit: NaN equals itself, -0.0 differs from 0.0, 1 differs from 1.0 and True."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dsec.core import generators, leaves
from dsec.core.decode import MAX_DEPTH
from dsec.core.flatten import form, mapping_order
from dsec.core.leaves import Named, Refused, render_path
from dsec.errors import StateError

__all__ = ["ABSENT", "Difference", "differences", "equal"]


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()
"""Stands for the value on the side that has none."""

_Path = tuple[str | int, ...]


class Difference(NamedTuple):
    """One leaf that differs."""

    path: str
    """Where, for example ``agent.weights[3, 4]``."""
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.left)} vs {_shown(self.right)}"


def equal(left: object, right: object) -> bool:
    """Whether both trees are the same, bit by bit, so that they have the same anchor id."""
    return next(differences(left, right), None) is None


def differences(left: object, right: object) -> Iterator[Difference]:
    """Leaves that differ, in canonical order; of an array its first element that does.

    A live value equals what stands for it once it is stored: a torch tensor its `Tensor`, an enum its `Named`.

    Raises
    ------
    StateError
        If a value is none of the leaves; ``where`` is its path.

    Examples
    --------
    >>> print(next(differences({"step": 1, "x": 0.0}, {"step": 1, "x": -0.0})))
    x: 0.0 vs -0.0
    """
    try:
        yield from _Pair().walk(left, right, ())
    except RecursionError:
        raise StateError("nested too deep for the stack that is left") from None


class _Pair:
    """One walk over two trees; knows which storages it met, since sharing is part of equality."""

    def __init__(self) -> None:
        self.met: tuple[dict[object, _Path], dict[object, _Path]] = ({}, {})
        self.kept: list[object] = []  # what `met` knows by address must not be freed meanwhile

    def walk(self, left: Any, right: Any, path: _Path) -> Iterator[Difference]:
        """Differences at and below one place."""
        if len(path) > MAX_DEPTH:
            raise StateError(f"nested deeper than {MAX_DEPTH}", where=render_path(path))
        try:
            one, other = _neutral(left), _neutral(right)
            found = self.compare(one, other, path)
        except Refused as refused:
            refused.path.extend(reversed(path))
            raise refused.error() from refused.__cause__
        yield from found

    def compare(self, left: Any, right: Any, path: _Path) -> Iterator[Difference]:
        """Differences of two neutral values."""
        if type(left) is not type(right):
            return iter([Difference(render_path(path), left, right)])
        compare = _COMPARED.get(type(left))
        if compare is not None:
            return compare(self, left, right, path)
        same = _bytes(left) == _bytes(right)
        return iter(()) if same else iter([Difference(render_path(path), left, right)])

    def mappings(self, left: Mapping[Any, Any], right: Mapping[Any, Any], path: _Path) -> Iterator[Difference]:
        keys = {bytes_: key for side in (left, right) for bytes_, key, _ in mapping_order(side)}
        for _, key in sorted(keys.items()):
            yield from self.either(left.get(key, ABSENT), right.get(key, ABSENT), (*path, key))

    def sequences(self, left: Any, right: Any, path: _Path) -> Iterator[Difference]:
        for index in range(max(len(left), len(right))):
            one = left[index] if index < len(left) else ABSENT
            other = right[index] if index < len(right) else ABSENT
            yield from self.either(one, other, (*path, index))

    def either(self, left: Any, right: Any, path: _Path) -> Iterator[Difference]:
        if left is ABSENT or right is ABSENT:
            yield Difference(render_path(path), left, right)
        else:
            yield from self.walk(left, right, path)

    def named(self, left: Named, right: Named, path: _Path) -> Iterator[Difference]:
        if (left.kind, left.name) != (right.kind, right.name):
            yield Difference(render_path(path), left, right)
        elif left.kind in ("enum", "flag"):
            if left.value != right.value:
                yield Difference(render_path(path), left, right)
        else:
            yield from self.walk(left.value, right.value, path)

    def arrays(self, left: npt.NDArray[Any], right: npt.NDArray[Any], path: _Path) -> Iterator[Difference]:
        return _arrays(left, right, path)

    def tensors(self, left: leaves.TensorParts, right: leaves.TensorParts, path: _Path) -> Iterator[Difference]:
        for name in ("dtype", "kind"):
            one, other = getattr(left, name), getattr(right, name)
            if one != other:
                yield Difference(f"{render_path(path)}.{name}", one, other)
                return
        yield from self.sharing(left.storage, right.storage, path)
        yield from _arrays(left.array, right.array, path)

    def sources(self, left: _Source, right: _Source, path: _Path) -> Iterator[Difference]:
        yield from self.sharing((id(left.owner),), (id(right.owner),), path)
        self.kept.append((left, right))
        yield from self.walk(left.parts, right.parts, path)

    def sharing(self, left: object, right: object, path: _Path) -> Iterator[Difference]:
        """Whether both sides share this leaf's storage with the same leaf before it."""
        firsts = []
        for met, storage in zip(self.met, (left, right), strict=True):
            firsts.append(path if storage is None else met.setdefault(storage, path))
        one, other = (f"shared with {render_path(first)}" if first != path else "not shared" for first in firsts)
        if one != other:
            yield Difference(render_path(path), one, other)


@dataclass(frozen=True, slots=True)
class _Source:
    """A generator as plain values, and the object whose identity is shared."""

    owner: object
    parts: Any


_COMPARED: Mapping[type, Callable[[_Pair, Any, Any, _Path], Iterator[Difference]]] = {
    dict: _Pair.mappings,
    list: _Pair.sequences,
    tuple: _Pair.sequences,
    Named: _Pair.named,
    np.ndarray: _Pair.arrays,
    leaves.TensorParts: _Pair.tensors,
    _Source: _Pair.sources,
}


def _random_state(value: np.random.RandomState) -> _Source:
    return _Source(value, ["RandomState", *generators.legacy_parts(value)])


def _bit_generator(value: np.random.BitGenerator) -> _Source:
    return _Source(value, generators.bit_generator_parts(value))


_NEUTRAL: Mapping[type, Callable[[Any], Any]] = {
    dict: lambda value: value,
    list: lambda value: value,
    tuple: lambda value: value,
    np.ndarray: lambda value: value,
    leaves.AnchorRef: lambda value: value,
    leaves.ArraySpec: lambda value: value,
    OrderedDict: dict,
    np.memmap: np.asarray,
    np.random.Generator: lambda value: Named("object", "numpy.random:Generator", value.bit_generator),
    np.random.RandomState: _random_state,
    **dict.fromkeys(generators.CLASSES.values(), _bit_generator),
}


def _neutral(value: Any) -> Any:
    """What a live value is compared as."""
    neutral = _NEUTRAL.get(type(value))
    if neutral is not None:
        return neutral(value)
    made = leaves.torch_generator(value)
    if made is not None:
        return _Source(value, [made.device, made.state])
    return leaves.tensor_parts(value) or leaves.named(value) or value


def _bytes(value: Any) -> bytes:
    """Canonical bytes of a value without parts; a set counts as one."""
    return repr(value).encode() if isinstance(value, leaves.ArraySpec) else form(value)


def _arrays(left: npt.NDArray[Any], right: npt.NDArray[Any], path: _Path) -> Iterator[Difference]:
    names = [leaves.dtype_name(side.dtype) for side in (left, right)]
    where = render_path(path)
    if names[0] != names[1]:
        yield Difference(f"{where}.dtype", *names)
    elif left.shape != right.shape:
        yield Difference(f"{where}.shape", left.shape, right.shape)
    elif left.nbytes:
        index = _first_other_element(left.astype(names[0], copy=False), right.astype(names[0], copy=False))
        if index is not None:
            place = f"[{', '.join(map(str, index))}]" if index else ""
            yield Difference(f"{where}{place}", left[index], right[index])


def _first_other_element(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[int, ...] | None:
    one, other = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (left, right))
    different = one != other
    first = int(different.argmax())
    if not different[first]:
        return None
    return tuple(int(axis) for axis in np.unravel_index(first // left.itemsize, left.shape))


def _shown(value: Any) -> str:
    text = value.item() if isinstance(value, np.generic) else value
    shown = repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
