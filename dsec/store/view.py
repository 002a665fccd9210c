"""An anchor as a read-only Zarr v3 store: ``zarr.open_group(zarr_store(blobs, anchor_id), mode="r")``.

Nothing is written: ``zarr.json`` is made when it is asked for, chunks are read from the anchor, verified and decoded,
and served as raw little-endian bytes. A dict, a dataclass and an object with state_dict() are groups of their entries,
a list or tuple that holds arrays is a group of ``0``, ``1``...; arrays and tensors are arrays; everything else is an
attribute of the group it stands in. An anchor that stands in the tree is a group with its tree.

What numpy or Zarr v3 has no stable type for is shown by its bits, with its dtype as the attribute ``dsec:dtype``:
bfloat16 as uint16, float8 as uint8, dates as int64, text as uint32 and bytes as uint8 on one more axis.

A chunk whose object is missing is an `AbsentError`; Zarr would read zeros.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from dsec.core import leaves, state
from dsec.errors import CorruptObject, UsageError
from dsec.store import anchors
from dsec.store.blobs import BlobStore
from dsec.store.layout import ArrayEntry, Record

__all__ = ["AnchorStore", "zarr_store"]

_DEPTH = 16
_METADATA = "zarr.json"
_READ_ONLY = "an anchor never changes; put a new one instead"
_TAKEN = ("", _METADATA)
_UNSAFE = re.compile(r"[/%\\\x00-\x1f\x7f\ud800-\udfff]")
_BITS: Mapping[str, str] = {"M": "<i8", "m": "<i8", "U": "<u4", "S": "|u1"}
_FILL: Mapping[str, Any] = {"b": False, "c": [0.0, 0.0]}


@dataclass(frozen=True, slots=True)
class _Array:
    """An array as it is shown."""

    record: Record
    entry: ArrayEntry
    dtype: np.dtype[Any]
    """What each element is shown as."""
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group as it is shown."""

    children: dict[str, _Group | _Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def zarr_store(blobs: BlobStore, anchor_id: str) -> AnchorStore:
    """A read-only Zarr store over an anchor.

    Raises
    ------
    AbsentError
        If there is no such anchor.
    CorruptObject
        If it is damaged.
    """
    return AnchorStore(blobs, anchor_id)


class AnchorStore(Store):  # type: ignore[misc]  # zarr is not followed
    """See `zarr_store`."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, blobs: BlobStore, anchor_id: str) -> None:
        super().__init__(read_only=True)
        self.blobs = blobs
        self.anchor_id = anchor_id
        self._root = _root(blobs, anchor_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AnchorStore):
            return NotImplemented
        return self.anchor_id == other.anchor_id and self.blobs is other.blobs

    def __hash__(self) -> int:
        return hash(self.anchor_id)

    def __repr__(self) -> str:
        return f"AnchorStore({self.anchor_id!r})"

    def with_read_only(self, read_only: bool = False) -> AnchorStore:
        """The same store; there is no other than read-only."""
        if not read_only:
            raise UsageError("an anchor can't be opened for writing", hint=_READ_ONLY)
        return self

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Bytes of a key; None only for keys that the anchor does not have."""
        content = self._content(key)
        if content is None:
            return None
        return prototype.buffer.from_bytes(_cut(content, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Bytes of several keys."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether the anchor has a key."""
        return self._has(key)

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002  (zarr names it)
        """Refused."""
        raise UsageError(f"can't write {key}", hint=_READ_ONLY)

    async def delete(self, key: str) -> None:
        """Refused."""
        raise UsageError(f"can't delete {key}", hint=_READ_ONLY)

    async def list(self) -> AsyncIterator[str]:
        """All keys, in the order of the tree."""
        for key in _keys(self._root, ""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that start with ``prefix``."""
        for key in _keys(self._root, ""):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names below a group or an array."""
        path = prefix.strip("/")
        node = self._node(path)
        if node is not None:
            yield _METADATA
        if isinstance(node, _Group):
            for name in node.children:
                yield name
        elif node is not None and node.entry.digests:
            yield "c"

    def _node(self, path: str) -> _Group | _Array | None:
        node: _Group | _Array | None = self._root
        for name in path.split("/") if path else ():
            node = node.children.get(name) if isinstance(node, _Group) else None
        return node

    def _has(self, key: str) -> bool:
        path, _, last = key.rpartition("/")
        if last == _METADATA:
            return self._node(path) is not None
        return self._chunk(key) is not None

    def _content(self, key: str) -> bytes | None:
        path, _, last = key.rpartition("/")
        if last == _METADATA:
            node = self._node(path)
            return None if node is None else json.dumps(_metadata(node), allow_nan=False).encode()
        found = self._chunk(key)
        return None if found is None else _padded(self.blobs, *found)

    def _chunk(self, key: str) -> tuple[_Array, tuple[int, ...]] | None:
        """An array and the position of one of its chunks."""
        head, mark, tail = f"/{key}/".rpartition("/c/")
        node = self._node(head.strip("/")) if mark else None
        numbers = [part for part in tail.split("/") if part]
        if not isinstance(node, _Array) or not all(part.isdecimal() and part.isascii() for part in numbers):
            return None
        position = tuple(int(part) for part in numbers)
        counts = _counts(node)
        inside = len(position) == len(counts) and all(at < count for at, count in zip(position, counts, strict=True))
        return (node, position) if inside and node.entry.digests else None


def _counts(array: _Array) -> tuple[int, ...]:
    return tuple(-(-length // step) for length, step in zip(array.shape, array.chunk_shape, strict=True))


def _padded(blobs: BlobStore, array: _Array, position: tuple[int, ...]) -> bytes:
    """Raw bytes of a chunk, filled up with zeros to the full chunk shape that Zarr expects."""
    number = 0
    for at, count in zip(position, _counts(array), strict=True):
        number = number * count + at
    digest, length = array.entry.chunk(number)
    return bytes(anchors.read_chunk(blobs, array.record, digest, length)).ljust(array.entry.grid.step, b"\0")


def _cut(content: bytes, byte_range: ByteRequest | None) -> bytes:
    match byte_range:
        case RangeByteRequest(start=start, end=end):
            return content[start:end]
        case OffsetByteRequest(offset=offset):
            return content[offset:]
        case SuffixByteRequest(suffix=suffix):
            return content[-suffix:] if suffix else b""
    return content


def _keys(node: _Group | _Array, prefix: str) -> Iterable[str]:
    yield prefix + _METADATA
    if isinstance(node, _Group):
        for name, child in node.children.items():
            yield from _keys(child, f"{prefix}{name}/")
    elif node.entry.digests:
        for position in np.ndindex(*_counts(node)):
            yield "/".join([f"{prefix}c", *map(str, position)])


def _metadata(node: _Group | _Array) -> dict[str, Any]:
    if isinstance(node, _Group):
        return {"zarr_format": 3, "node_type": "group", "attributes": node.attributes}
    endian = {} if node.dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(node.shape),
        "data_type": node.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(node.chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _FILL.get(node.dtype.kind, 0),
        "codecs": [{"name": "bytes", **endian}],
        "attributes": dict(node.attributes),
    }


def _root(blobs: BlobStore, anchor_id: str) -> _Group:
    """The root group; a tree that is no mapping or sequence stands in it as ``value``."""
    root = _Group()
    _Builder(blobs).add_anchor(root, "value", anchor_id, 0)
    inner = root.children.get("value")
    return inner if isinstance(inner, _Group) else root


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes groups and arrays of trees."""

    blobs: BlobStore

    def add_anchor(self, group: _Group, name: str, anchor_id: str, depth: int) -> None:
        """Show the tree of an anchor as an entry of ``group``."""
        if depth > _DEPTH:
            raise UsageError(f"anchors refer to each other more than {_DEPTH} deep", where=f"anchor {anchor_id}")
        record = anchors.read_record(self.blobs, anchor_id)
        self.add(group, name, anchors.skeleton(record), record, depth)

    def add(self, group: _Group, name: str, value: Any, record: Record, depth: int) -> None:
        """Show a value as an entry of ``group``."""
        entries = _entries(value)
        if entries is not None:
            group.children[name] = child = _Group()
            if isinstance(value, state.Named):
                child.attributes["dsec:class"] = value.name
            for key, item in entries:
                self.add(child, key, item, record, depth)
        elif isinstance(value, state.ArraySpec):
            group.children[name] = _array(record, value)
        elif isinstance(value, state.AnchorRef):
            self.add_anchor(group, name, value.anchor_id, depth + 1)
        else:
            group.attributes[name] = _json(value)


def _entries(value: Any) -> list[tuple[str, Any]] | None:
    """Entries of what is shown as a group, None for anything else."""
    if isinstance(value, state.Named) and value.kind in ("dataclass", "object"):
        return _entries(value.value) or [("value", value.value)]
    if isinstance(value, dict):
        return [(_name(key, value), item) for key, item in value.items()]
    if isinstance(value, list | tuple) and any(map(_has_arrays, value)):
        return [(str(index), item) for index, item in enumerate(value)]
    return None


def _has_arrays(value: Any) -> bool:
    if isinstance(value, state.Named):
        return _has_arrays(value.value)
    if isinstance(value, dict):
        return any(map(_has_arrays, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_arrays, value))
    return isinstance(value, state.ArraySpec | state.AnchorRef)


def _name(key: str | int, siblings: Mapping[str | int, Any]) -> str:
    """A key as a part of a Zarr path; what a path can't hold is percent-escaped."""
    name = _UNSAFE.sub(_escaped, str(key))
    clash = isinstance(key, str) and key.lstrip("-").isdecimal() and any(str(k) == key for k in siblings if k != key)
    if clash or name in _TAKEN or name.startswith((".", "__")):
        return f"%{ord(name[0]):02X}{name[1:]}" if name else "%"
    return name


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _array(record: Record, spec: state.ArraySpec) -> _Array:
    """An array shown as itself, or by its bits where Zarr has no stable type for it."""
    entry = record.manifest.arrays[spec.number]
    stored = leaves.array_dtype(entry.dtype)
    if stored is None:
        raise CorruptObject(f"an array of dtype {entry.dtype!r}", where=f"anchor {record.anchor_id}")
    shown = _BITS.get(stored.kind, stored.str)
    axis = (stored.itemsize // np.dtype(shown).itemsize,) if stored.kind in "SU" else ()
    attributes = {} if spec.dtype in (shown, np.dtype(shown).name) else {"dsec:dtype": spec.dtype}
    chunk_shape = entry.grid.chunk_shape + tuple(max(1, length) for length in axis)
    return _Array(record, entry, np.dtype(shown), entry.shape + axis, chunk_shape, attributes)


def _json(value: Any) -> Any:
    """A value as JSON, for people to read; the tree itself is what `anchors.get` returns."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    return _json_leaf(value)


def _json_leaf(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _json(value.item()) if value.dtype.kind in "biufSU" else str(value)
    if isinstance(value, set | frozenset):
        return sorted((_json(item) for item in value), key=repr)
    if isinstance(value, state.Named):
        return (
            f"{value.name}.{value.value}"
            if value.kind == "enum"
            else {"class": value.name, "value": _json(value.value)}
        )
    return type(value).__qualname__
