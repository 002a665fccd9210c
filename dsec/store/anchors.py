"""State trees in the store, each named by the digest of its manifest.

Chunks are named by their raw bytes; how they are compressed is transport, and no part of any id. Stored bytes are
verified before they are decoded, raw bytes after. A damaged object goes to quarantine, so that it counts as absent and
whoever made it makes it again. docs/reference/store-format.md specifies the bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numcodecs
import numpy as np
import numpy.typing as npt

from dsec.core import canon, failpoint, leaves, state
from dsec.core.stage import AnchorId
from dsec.errors import AbsentError, CorruptObject, StateError, StoreError
from dsec.store import layout
from dsec.store import tags as tags_of
from dsec.store.blobs import BlobStore, Buffer
from dsec.store.layout import ArrayEntry, Manifest, Place, Record, Slot, present

__all__ = [
    "Reach",
    "Stored",
    "get",
    "identify",
    "load",
    "manifest",
    "pack_whole",
    "present",
    "put",
    "reach",
    "read_chunk",
    "read_record",
    "skeleton",
    "unpack_whole",
]

_MIN_COMPRESSED = 1024  # smaller chunks are not worth the time of a codec
_ALLOCATED_FREELY = 64 << 20
_MAX_FOLLOWED = 10_000
_zstd = numcodecs.Zstd(level=1, checksum=True)
_SHUFFLES = {Place.SHUFFLED_2: 2, Place.SHUFFLED_4: 4, Place.SHUFFLED_8: 8}
_shuffles = {place: numcodecs.Shuffle(elementsize=size) for place, size in _SHUFFLES.items()}
_PLACE_BY_SIZE = {size: place for place, size in _SHUFFLES.items()}


@dataclass(frozen=True, slots=True)
class Stored:
    """What `put` acknowledges."""

    anchor_id: AnchorId
    size: int
    """Bytes of the anchor's own object; separate chunks are apart."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What an anchor needs in order to be read."""

    chunks: tuple[str, ...]
    """Names of its separate chunks' objects."""
    anchors: tuple[AnchorId, ...]
    """Anchors that stand in its tree."""


class _Chunk(NamedTuple):
    raw: Buffer
    place: int
    """In which form it should be stored."""


class _Cut(NamedTuple):
    manifest: bytes
    chunks: Mapping[bytes, _Chunk]
    """Distinct ones, in order of first appearance."""


def put(blobs: BlobStore, tree: object, *, tags: Iterable[str] = ()) -> Stored:
    """Store a tree; chunks that are there already are not written again.

    Parameters
    ----------
    blobs
        Where to.
    tree
        See `dsec.core.state`.
    tags
        Names under which the anchor is found and kept; not part of its id.

    Raises
    ------
    StateError
        If the tree holds something that is no leaf; names its path.
    StoreError
        If it can't be written.
    """
    cut = _cut(tree)
    slots, pieces = [], []
    for digest, chunk in cut.chunks.items():
        if len(chunk.raw) > layout.INLINE_LIMIT:
            _put_chunk(blobs, digest, chunk)
            slots.append(Slot(Place.SEPARATE, 0, 0, bytes(32)))
        else:
            slot, stored = _inline(digest, chunk)
            slots.append(slot)
            pieces.append(stored)
    failpoint.reached("store.anchors.put.after-chunks")
    anchor_id, content = layout.pack(cut.manifest, slots, pieces)
    blobs.put(layout.anchor_name(anchor_id), content)
    for tag in tags:
        tags_of.put_tag(blobs, tags_of.Tagged(anchor_id, tag))
    return Stored(anchor_id, sum(map(len, content)))


def identify(tree: object) -> AnchorId:
    """The id that `put` would give a tree."""
    return layout.manifest_id(_cut(tree).manifest)


def get(blobs: BlobStore, anchor_id: str, *, resolve: state.Resolve | None = None) -> Any:
    """Read a tree, every byte verified.

    Parameters
    ----------
    blobs
        Where from.
    anchor_id
        Its id.
    resolve
        Restores enums and dataclasses, see `state.by_class`; without it they come back as `Named`.

    Raises
    ------
    AbsentError
        If the anchor or one of its chunks is not there.
    CorruptObject
        If stored bytes are damaged; the object is then in quarantine.
    """
    record = read_record(blobs, anchor_id)
    return _tree(blobs, record, layout.anchor_name(anchor_id), resolve)


def load(blobs: BlobStore, anchor_id: str, *, resolve: state.Resolve | None = None) -> Any:
    """Like `get`, with the trees of the anchors that stand in it in place of each `AnchorRef`."""
    return _Follow(blobs, resolve).anchor(anchor_id, 0)


def manifest(blobs: BlobStore, anchor_id: str) -> Any:
    """A tree without the elements of its arrays: each is an `ArraySpec`, and no separate chunk is read."""
    record = read_record(blobs, anchor_id)
    return skeleton(record)


def skeleton(record: Record) -> Any:
    """The tree of an anchor's object with an `ArraySpec` for each array."""
    name = layout.anchor_name(record.anchor_id)
    return state.unflatten(record.manifest.structure, _specs(record.manifest), where=name)


def reach(blobs: BlobStore, anchor_id: str) -> Reach:
    """What an anchor needs: what a collection must keep with it."""
    record = read_record(blobs, anchor_id)
    separate = [layout.chunk_name(digest) for digest, slot in record.slots.items() if slot.place == Place.SEPARATE]
    name = layout.anchor_name(anchor_id)
    anchors = state.references(record.manifest.structure, _specs(record.manifest), name)
    return Reach(tuple(separate), tuple(AnchorId(anchor) for anchor in anchors))


def read_record(blobs: BlobStore, anchor_id: str) -> Record:
    """An anchor's own object, parsed; damaged, it goes to quarantine."""
    name = layout.anchor_name(anchor_id)
    content = blobs.get(name)
    with _quarantine(blobs, name):
        return layout.parse(content, name, anchor_id)


def pack_whole(tree: object) -> list[Buffer]:
    """Bytes of one object that holds a tree with all its chunks."""
    cut = _cut(tree)
    inline = [_inline(digest, chunk) for digest, chunk in cut.chunks.items()]
    return layout.pack(cut.manifest, [slot for slot, _ in inline], [stored for _, stored in inline])[1]


def unpack_whole(content: bytes, name: str) -> Any:
    """The tree of an object that `pack_whole` made.

    Raises
    ------
    CorruptObject
        If it is damaged, or has chunks elsewhere; ``name`` is what the error names.
    """
    record = layout.parse(content, name)
    if any(slot.place == Place.SEPARATE for slot in record.slots.values()):
        raise CorruptObject("some of its chunks are elsewhere", where=name)
    return _tree(None, record, name, None)


def _cut(tree: object) -> _Cut:
    flat = state.flatten(tree)
    parts = [b"l3:i1;b%d:" % len(flat.structure), flat.structure, b"l%d:" % len(flat.arrays)]
    chunks: dict[bytes, _Chunk] = {}
    for number, array in enumerate(flat.arrays):
        head, cuts, place = _rule(array.dtype.str, array.shape)
        place = Place.PLAIN if number in flat.floats else place
        parts.append(head)
        if cuts.count == 1 and array.nbytes <= layout.INLINE_LIMIT:
            raw: Buffer = array.tobytes()
            digest = canon.raw_digest(raw)
            parts.append(digest)
            chunks.setdefault(digest, _Chunk(raw, place))
        else:
            parts.extend(_runs(array, cuts, place, chunks))
    return _Cut(b"".join(parts), chunks)


def _runs(array: npt.NDArray[Any], cuts: layout.Grid, place: int, chunks: dict[bytes, _Chunk]) -> Iterator[bytes]:
    """Digests of an array's chunks, which it adds to ``chunks``."""
    if cuts.count == 0:
        return
    content = _bytes(array)
    for offset, length in cuts.runs():
        raw = content[offset : offset + length]
        digest = canon.raw_digest(raw)
        chunks.setdefault(digest, _Chunk(raw, place))
        yield digest


@functools.lru_cache(maxsize=4096)
def _rule(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, layout.Grid, int]:
    """What the manifest says of such an array before its digests, how it is cut, and how its chunks are stored."""
    size = layout.item_size(dtype)
    if size is None:
        raise StateError(f"an array of dtype {dtype} has no place in a manifest")
    cuts = layout.grid(size, shape)
    lengths = b"".join(b"i%x;" % length for length in shape)
    head = b"l3:s%d:%bl%d:%bb%d:" % (len(dtype), dtype.encode(), len(shape), lengths, 32 * cuts.count)
    return head, cuts, _form(dtype, size)


def _form(dtype: str, size: int) -> int:
    """Floats are stored plain, bytes as zstd, larger elements shuffled before."""
    if dtype[1] in "fc":
        return Place.PLAIN
    return _PLACE_BY_SIZE.get(4 if dtype[1] == "U" else size, Place.ZSTD) if dtype[1] != "S" else Place.ZSTD


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """All bytes of an array in C order; copied only if it lies otherwise."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _inline(digest: bytes, chunk: _Chunk) -> tuple[Slot, Buffer]:
    place, stored = _compressed(chunk)
    check = digest if place == Place.PLAIN else canon.raw_digest(stored)
    return Slot(place, 0, len(stored), check), stored


def _put_chunk(blobs: BlobStore, digest: bytes, chunk: _Chunk) -> None:
    """Write a separate chunk unless it is there whole: a plain one is judged by its size, the others by their bytes."""
    name = layout.chunk_name(digest)
    if chunk.place != Place.PLAIN and _whole(blobs, name, digest, len(chunk.raw)):
        return
    place, stored = _compressed(chunk)
    check = digest if place == Place.PLAIN else canon.raw_digest(stored)
    blobs.put(name, layout.pack_chunk(place, len(chunk.raw), stored, check))


def _whole(blobs: BlobStore, name: str, digest: bytes, length: int) -> bool:
    if blobs.size(name) is None:
        return False
    try:
        layout.open_chunk(blobs.get(name), digest, length, name)
    except (AbsentError, CorruptObject):
        return False
    return True


def _compressed(chunk: _Chunk) -> tuple[int, Buffer]:
    if chunk.place == Place.PLAIN or len(chunk.raw) < _MIN_COMPRESSED:
        return Place.PLAIN, chunk.raw
    regrouped = _shuffles[chunk.place].encode(chunk.raw) if chunk.place in _shuffles else chunk.raw
    stored = _zstd.encode(regrouped)
    return (chunk.place, stored) if len(stored) < len(chunk.raw) else (Place.PLAIN, chunk.raw)


def _specs(found: Manifest) -> list[state.ArraySpec]:
    return [state.ArraySpec(entry.dtype, entry.shape, number) for number, entry in enumerate(found.arrays)]


def _tree(blobs: BlobStore | None, record: Record, name: str, resolve: state.Resolve | None) -> Any:
    with _quarantine(blobs, name):
        for entry in record.manifest.arrays:
            if leaves.array_dtype(entry.dtype) is None:
                raise CorruptObject(f"an array of dtype {entry.dtype!r}", where=name)
    done: dict[bytes, memoryview] = {}
    arrays = [_array(blobs, record, entry, name, done) for entry in record.manifest.arrays]
    with _quarantine(blobs, name):
        return state.unflatten(record.manifest.structure, arrays, resolve=resolve, where=name)


def _array(
    blobs: BlobStore | None, record: Record, entry: ArrayEntry, name: str, done: dict[bytes, memoryview]
) -> npt.NDArray[Any]:
    """An array with its elements; ``done`` are chunks that were verified before, and are now copied."""
    array = _allocated(blobs, record, entry, name)
    target = _bytes(array)
    for digest, offset, length in entry.chunks():
        into = target[offset : offset + length]
        if digest in done:
            into[:] = done[digest]
        else:
            _fill(blobs, record, digest, into, name)
            done[digest] = into
    return array


def _allocated(blobs: BlobStore | None, record: Record, entry: ArrayEntry, name: str) -> npt.NDArray[Any]:
    """Room for an array; for a large one only once all that it needs is known to be there."""
    cuts = entry.grid
    if blobs is not None and cuts.blocks * cuts.block > _ALLOCATED_FREELY:
        for digest in dict.fromkeys(digest for digest, _, _ in entry.chunks()):
            if record.slots[digest].place == Place.SEPARATE and blobs.size(layout.chunk_name(digest)) is None:
                raise _lost(digest, name)
    try:
        return np.empty(entry.shape, leaves.array_dtype(entry.dtype))
    except (MemoryError, ValueError) as error:
        raise StoreError(f"no memory for an array of {entry.dtype} {entry.shape}", where=name) from error


def read_chunk(blobs: BlobStore, record: Record, digest: bytes, length: int) -> bytearray:
    """Raw bytes of one chunk of an anchor, verified."""
    raw = bytearray(length)
    _fill(blobs, record, digest, memoryview(raw), layout.anchor_name(record.anchor_id))
    return raw


def _fill(blobs: BlobStore | None, record: Record, digest: bytes, into: memoryview, name: str) -> None:
    """Write a chunk's raw bytes where they belong: stored bytes verified before decoding, raw bytes after."""
    place = record.slots[digest].place
    if place == Place.SEPARATE:
        _fill_separate(blobs, digest, into, name)
        return
    with _quarantine(blobs, name):
        _decoded(place, record.verified(digest, name), digest, into, name)


def _fill_separate(blobs: BlobStore | None, digest: bytes, into: memoryview, name: str) -> None:
    chunk = layout.chunk_name(digest)
    if blobs is None:
        raise _lost(digest, name)
    try:
        content = blobs.get(chunk)
    except AbsentError:
        raise _lost(digest, name) from None
    with _quarantine(blobs, chunk):
        place, stored = layout.open_chunk(content, digest, len(into), chunk)
        _decoded(place, stored, digest, into, chunk)


def _lost(digest: bytes, name: str) -> AbsentError:
    return AbsentError(
        f"its chunk {layout.chunk_name(digest)} is not in the store",
        where=name,
        hint="run the plan again: the stage that made the anchor makes it again",
    )


def _decoded(place: int, stored: memoryview, digest: bytes, into: memoryview, name: str) -> None:
    if place == Place.PLAIN:
        into[:] = stored
        return
    try:
        _decompress(place, stored, into)
    except (ValueError, RuntimeError) as error:
        raise CorruptObject(f"a chunk that can't be decoded: {error}", where=name) from None
    if canon.raw_digest(into) != digest:
        raise CorruptObject(f"decoded bytes differ from the chunk's id {digest.hex()}", where=name)


def _decompress(place: int, stored: memoryview, into: memoryview) -> None:
    """Into memory of the size that the manifest says; a frame that holds more is refused by the codec."""
    if place not in _shuffles:
        _zstd.decode(stored, out=into)
        return
    regrouped = np.empty(len(into), np.uint8)
    _zstd.decode(stored, out=regrouped)
    _shuffles[place].decode(regrouped, out=into)


@contextlib.contextmanager
def _quarantine(blobs: BlobStore | None, name: str) -> Iterator[None]:
    try:
        yield
    except CorruptObject:
        if blobs is not None:
            with contextlib.suppress(StoreError):  # a store that can't be written still says what is damaged
                blobs.quarantine(name)
        raise


class _Follow:
    """Puts trees in place of references to anchors."""

    def __init__(self, blobs: BlobStore, resolve: state.Resolve | None) -> None:
        self.blobs = blobs
        self.resolve = resolve
        self.followed = 0

    def anchor(self, anchor_id: str, depth: int) -> Any:
        """A whole tree."""
        self.followed += 1
        if depth > 16 or self.followed > _MAX_FOLLOWED:
            raise StateError(f"more than 16 anchors deep, or {_MAX_FOLLOWED} in all", where=f"anchor {anchor_id}")
        tree = get(self.blobs, anchor_id, resolve=self.resolve)
        return self.node(tree, depth)

    def node(self, value: Any, depth: int) -> Any:
        """A value with the references in it followed."""
        kind = type(value)
        if kind is state.AnchorRef:
            return self.anchor(value.anchor_id, depth + 1)
        if kind is dict:
            return {key: self.node(item, depth) for key, item in value.items()}
        if kind is list or kind is tuple:
            return kind(self.node(item, depth) for item in value)
        if kind is state.Named:
            return state.Named(value.kind, value.name, self.node(value.value, depth))
        return value
