"""Layout of anchors and chunks as objects: names, chunk rules, and binary form, as in docs/reference/store-format.md.

Pure parsing on the standard library and the one digest, so that a cached rerun can ask `present` without numpy.
Whatever is wrong with bytes is one `CorruptObject`: a length is checked against the bytes that are there before use.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from dsec.core import canon, decode
from dsec.core.records import TRACE_ROWS
from dsec.core.stage import AnchorId
from dsec.errors import AbsentError, CorruptObject, UsageError
from dsec.store.blobs import BlobStore, Buffer

__all__ = [
    "INLINE_LIMIT",
    "ArrayEntry",
    "Grid",
    "Manifest",
    "Place",
    "Record",
    "Slot",
    "anchor_name",
    "chunk_name",
    "grid",
    "manifest_id",
    "open_chunk",
    "pack",
    "pack_chunk",
    "parse",
    "parse_manifest",
    "present",
    "raw_lengths",
]

CHUNK_LIMIT = 1 << 20
"""Bytes of a chunk at most."""
FINE_LIMIT = 64 << 20
"""Arrays up to these bytes have chunks of at most `TRACE_ROWS` rows."""
INLINE_LIMIT = 64 << 10
"""Chunks up to these raw bytes stand inside the anchor's own object."""

DOMAIN = "dsec/anchor/1"
_ANCHOR_MAGIC = b"DSECANC1"
_CHUNK_MAGIC = b"DSECCHK1"
_slot = struct.Struct("<BI32s")  # place, stored length, stored digest
_head = struct.Struct("<32sQQ")  # anchor id, length of manifest, length of index
_foot = struct.Struct("<32s8s")  # digest of index and head, magic
_chunk = struct.Struct("<8sB3sI32s")  # magic, place, zeros, raw length, stored digest
_FOOTER = _head.size + _foot.size
_NO_DIGEST = bytes(32)
_ID = re.compile(r"[0-9a-f]{64}")
_ITEM = re.compile(r"[<|]([biufcSUmM])([1-9][0-9]{0,6}|0)(?:\[[a-zA-Z]{1,2}\])?")


class Place:
    """Where a chunk is, and in which form."""

    SEPARATE = 0
    """An object of its own."""
    PLAIN = 1
    """As it is."""
    ZSTD = 2
    """One zstd frame with its checksum."""
    SHUFFLED_2 = 3
    """Bytes of elements of two bytes regrouped, all first ones, then all second ones; then one zstd frame."""
    SHUFFLED_4 = 4
    SHUFFLED_8 = 5


@dataclass(frozen=True, slots=True)
class Grid:
    """How an array is cut: every chunk is one run of its bytes in C order."""

    chunk_shape: tuple[int, ...]
    """At least 1 on every axis; the last chunk of an axis may be shorter."""
    blocks: int
    """How many blocks: the array's bytes are ``blocks * block`` of them."""
    block: int
    """Bytes of a block, which is what the axes before the cut one select."""
    step: int
    """Bytes of a chunk; the last of a block may have fewer."""

    @property
    def count(self) -> int:
        """How many chunks."""
        return self.blocks * -(-self.block // self.step) if self.block else 0

    def runs(self) -> Iterator[tuple[int, int]]:
        """Offset and length of each chunk, in order."""
        for start in range(0, self.blocks * self.block, self.block or 1):
            for offset in range(0, self.block, self.step):
                yield start + offset, min(self.step, self.block - offset)


@functools.lru_cache(maxsize=4096)
def grid(itemsize: int, shape: tuple[int, ...]) -> Grid:
    """The rule of format 1: chunks of at most 1 MiB, and at most 4,096 rows in arrays of up to 64 MiB.

    The first axis along which a chunk holds at least one whole entry is cut; axes before it have chunks of 1, axes
    after it are whole. An array without bytes has no chunks.
    """
    if not itemsize * prod(shape):
        return Grid(tuple(max(1, length) for length in shape), 0, 0, 1)
    if not shape:
        return Grid((), 1, itemsize, itemsize)
    axis = next(k for k in range(len(shape)) if itemsize * prod(shape[k + 1 :]) <= CHUNK_LIMIT)
    entry = itemsize * prod(shape[axis + 1 :])
    fine = axis == 0 and itemsize * prod(shape) <= FINE_LIMIT
    rows = min(CHUNK_LIMIT // entry, shape[axis], TRACE_ROWS if fine else CHUNK_LIMIT)
    chunk_shape = (1,) * axis + (rows,) + shape[axis + 1 :]
    return Grid(chunk_shape, prod(shape[:axis]), shape[axis] * entry, rows * entry)


@functools.lru_cache(maxsize=256)
def item_size(dtype: str) -> int | None:
    """Bytes of an element of a dtype as manifests name it; None if it is no such name."""
    found = _ITEM.fullmatch(dtype)
    if found is None:
        return None
    size = int(found[2]) * (4 if found[1] == "U" else 1)
    return size if size <= CHUNK_LIMIT else None


class ArrayEntry(NamedTuple):
    """An array in a manifest."""

    dtype: str
    """Numpy's name, little-endian: ``<f4``, ``|u1``, ``<M8[ns]``."""
    shape: tuple[int, ...]
    digests: bytes
    """32 bytes for each chunk, in order."""

    @property
    def grid(self) -> Grid:
        """How it is cut."""
        return grid(item_size(self.dtype) or 0, self.shape)

    def chunks(self) -> Iterator[tuple[bytes, int, int]]:
        """Digest, offset and length of each chunk, in order."""
        for number, (offset, length) in enumerate(self.grid.runs()):
            yield self.digests[32 * number : 32 * number + 32], offset, length

    def chunk(self, number: int) -> tuple[bytes, int]:
        """Digest and length of one chunk."""
        cuts = self.grid
        offset = number % -(-cuts.block // cuts.step) * cuts.step
        return self.digests[32 * number : 32 * number + 32], min(cuts.step, cuts.block - offset)


class Manifest(NamedTuple):
    """What an anchor id is the digest of."""

    structure: bytes
    """See `dsec.core.state`."""
    arrays: tuple[ArrayEntry, ...]


class Slot(NamedTuple):
    """Where a chunk's stored bytes are."""

    place: int
    offset: int
    length: int
    digest: bytes
    """Digest of the stored bytes."""


class Record(NamedTuple):
    """An object of an anchor, its own digests verified, its chunks not yet."""

    anchor_id: AnchorId
    manifest: Manifest
    slots: Mapping[bytes, Slot]
    """By chunk digest, in order of first appearance."""
    content: bytes

    def stored(self, digest: bytes) -> memoryview:
        """Stored bytes of an inline chunk."""
        slot = self.slots[digest]
        return memoryview(self.content)[slot.offset : slot.offset + slot.length]

    def verified(self, digest: bytes, name: str) -> memoryview:
        """Stored bytes of an inline chunk, after a look at their digest.

        Raises
        ------
        CorruptObject
            If they differ from it; ``name`` is what the error names.
        """
        stored = self.stored(digest)
        if canon.raw_digest(stored) != self.slots[digest].digest:
            raise CorruptObject(f"bytes of its chunk {digest.hex()} differ from their digest", where=name)
        return stored

    def verify(self, name: str) -> None:
        """Look at the digests of all inline chunks."""
        for digest, slot in self.slots.items():
            if slot.place != Place.SEPARATE:
                self.verified(digest, name)


def anchor_name(anchor_id: str) -> str:
    """Name of an anchor's object.

    Raises
    ------
    UsageError
        If it is no anchor id.
    """
    if not _ID.fullmatch(anchor_id):
        raise UsageError(f"{anchor_id!r} is no anchor id", hint="an anchor id is 64 hexadecimal characters")
    return f"anchors/{anchor_id[:2]}/{anchor_id}"


def chunk_name(digest: bytes) -> str:
    """Name of a separate chunk's object."""
    name = digest.hex()
    return f"chunks/{name[:2]}/{name}"


def manifest_id(manifest: bytes) -> AnchorId:
    """Anchor id of a manifest's bytes."""
    return AnchorId(canon.digest(DOMAIN, canon.Encoded(manifest)))


def pack(manifest: bytes, slots: Sequence[Slot], pieces: Sequence[Buffer]) -> tuple[AnchorId, list[Buffer]]:
    """Id and bytes of an anchor's object.

    Parameters
    ----------
    manifest
        Canonical bytes.
    slots
        One for each distinct chunk, in order of first appearance; offsets are not looked at.
    pieces
        Stored bytes of the inline ones, in the same order.
    """
    anchor_id = manifest_id(manifest)
    index = b"".join([_slot.pack(slot.place, slot.length, slot.digest) for slot in slots])
    separate = any(slot.place == Place.SEPARATE for slot in slots)
    size = sum(slot.length for slot in slots) + len(manifest) + len(index) + _FOOTER
    if size % 2 != separate:
        index += b"\0"
    head = _head.pack(bytes.fromhex(anchor_id), len(manifest), len(index))
    foot = _foot.pack(canon.raw_digest(index + head), _ANCHOR_MAGIC)
    return anchor_id, [*pieces, manifest, index + head + foot]


def parse(content: bytes, name: str, anchor_id: str | None = None) -> Record:
    """Read an anchor's object as far as its chunks.

    Parameters
    ----------
    content
        All of its bytes.
    name
        What an error names.
    anchor_id
        The id it must have; None takes the one it says.

    Raises
    ------
    CorruptObject
        If any byte besides the chunks' is not what its digest says.
    """
    found_id, manifest, index = _parts(content, name)
    if anchor_id is not None and found_id != anchor_id:
        raise CorruptObject(f"it is anchor {found_id}", where=name)
    if manifest_id(manifest) != found_id:
        raise CorruptObject("its manifest differs from its id", where=name)
    parsed = parse_manifest(manifest, name)
    region = len(content) - _FOOTER - len(index) - len(manifest)
    slots = _slots(index, raw_lengths(parsed), region, name)
    if len(content) % 2 != any(slot.place == Place.SEPARATE for slot in slots.values()):
        raise CorruptObject("its size has the wrong parity", where=name)
    return Record(found_id, parsed, slots, content)


def _parts(content: bytes, name: str) -> tuple[AnchorId, bytes, bytes]:
    if len(content) < _FOOTER:
        raise CorruptObject(f"{len(content)} bytes are no anchor", where=name)
    at = len(content) - _FOOTER
    found_id, manifest_length, index_length = _head.unpack_from(content, at)
    check, magic = _foot.unpack_from(content, at + _head.size)
    if magic != _ANCHOR_MAGIC or manifest_length + index_length > at:
        raise CorruptObject("no footer of an anchor of format 1", where=name)
    start = at - index_length
    if canon.raw_digest(memoryview(content)[start : at + _head.size]) != check:
        raise CorruptObject("its index differs from its digest", where=name)
    return AnchorId(found_id.hex()), content[start - manifest_length : start], content[start:at]


def _slots(index: bytes, raw: Mapping[bytes, int], region: int, name: str) -> dict[bytes, Slot]:
    count, rest = divmod(len(index), _slot.size)
    if count != len(raw) or rest > 1 or index[count * _slot.size :].strip(b"\0"):
        raise CorruptObject(f"an index of {len(index)} bytes for {len(raw)} chunks", where=name)
    slots, offset = {}, 0
    for (digest, length), found in zip(raw.items(), _slot.iter_unpack(index[: count * _slot.size]), strict=True):
        place, stored, check = found
        if not _sane(place, stored, length) or (place == Place.PLAIN and check != digest):
            raise CorruptObject("an index that contradicts its manifest", where=name)
        slots[digest] = Slot(place, offset, stored, check)
        offset += stored
    if offset != region:
        raise CorruptObject(f"{region} bytes of chunks where {offset} belong", where=name)
    return slots


def _sane(place: int, stored: int, raw: int) -> bool:
    if place in (Place.SEPARATE, Place.PLAIN):
        return stored == (raw if place else 0)
    return Place.ZSTD <= place <= Place.SHUFFLED_8 and 0 < stored < raw


def parse_manifest(content: bytes, name: str) -> Manifest:
    """Read a manifest.

    Raises
    ------
    CorruptObject
        If it is none.
    """
    match decode.decode(content, name):
        case [1, bytes(structure), list(arrays)]:
            return Manifest(structure, tuple(_entry(array, name) for array in arrays))
    raise CorruptObject("no manifest of format 1", where=name)


def _entry(array: object, name: str) -> ArrayEntry:
    match array:
        case [str(dtype), list(shape), bytes(digests)] if item_size(dtype) is not None and len(shape) <= 64:
            entry = ArrayEntry(dtype, tuple(shape), digests)
        case _:
            raise CorruptObject("no array where one belongs in its manifest", where=name)
    if any(type(length) is not int or not 0 <= length < 1 << 62 for length in shape):
        raise CorruptObject("an array of an impossible shape", where=name)
    if 32 * entry.grid.count != len(digests):
        raise CorruptObject(f"{len(digests) // 32} chunks for an array of {dtype} {entry.shape}", where=name)
    return entry


def raw_lengths(manifest: Manifest) -> dict[bytes, int]:
    """Raw bytes of each distinct chunk, in order of first appearance."""
    lengths: dict[bytes, int] = {}
    for digest, _, length in itertools.chain.from_iterable(entry.chunks() for entry in manifest.arrays):
        lengths.setdefault(digest, length)
    return lengths


def pack_chunk(place: int, raw_length: int, stored: Buffer, digest: bytes) -> list[Buffer]:
    """Bytes of a separate chunk's object."""
    return [_chunk.pack(_CHUNK_MAGIC, place, b"", raw_length, digest), stored]


def open_chunk(content: bytes, digest: bytes, raw_length: int, name: str) -> tuple[int, memoryview]:
    """Place and stored bytes of a separate chunk, its header and stored digest verified.

    Raises
    ------
    CorruptObject
        If it is not what its name and its header say.
    """
    if len(content) <= _chunk.size:
        raise CorruptObject(f"{len(content)} bytes are no chunk", where=name)
    magic, place, zeros, raw, check = _chunk.unpack_from(content)
    stored = memoryview(content)[_chunk.size :]
    sane = magic == _CHUNK_MAGIC and not any(zeros) and place != Place.SEPARATE and _sane(place, len(stored), raw)
    if not sane or raw != raw_length or (place == Place.PLAIN and check != digest):
        raise CorruptObject(f"no chunk of {raw_length} bytes of format 1", where=name)
    if canon.raw_digest(stored) != check:
        raise CorruptObject("its bytes differ from their digest", where=name)
    return place, stored


def present(blobs: BlobStore, anchor_id: str, size: int | None = None) -> bool:
    """Whether an anchor can be read, as far as existence and sizes tell.

    Its object alone is asked where it is self-contained, which its size says: it is even. Else its manifest is read,
    and the size of each separate chunk asked. An object of another size than ``size`` counts if its bytes are right,
    since another version of a codec may have written it.
    """
    name = anchor_name(anchor_id)
    found = blobs.size(name)
    if found is None or (found % 2 == 0 and size in (None, found)):
        return found is not None
    try:
        record = parse(blobs.get(name), name, anchor_id)
        if size not in (None, found):
            record.verify(name)
    except (AbsentError, CorruptObject):
        return False
    raw = raw_lengths(record.manifest)
    separate = [digest for digest, slot in record.slots.items() if slot.place == Place.SEPARATE]
    return all(_plausible(blobs.size(chunk_name(digest)), raw[digest]) for digest in separate)


def _plausible(size: int | None, raw: int) -> bool:
    """A plain chunk has one size; a compressed one is smaller than that, and how much depends on its codec."""
    return size is not None and _chunk.size < size <= _chunk.size + raw
