"""Canonical bytes, and the one digest function of DSec.

Equal values give equal bytes on every machine, in every process, whatever the insertion order of their
mappings. The form is tagged and length-prefixed, so no two different values share their bytes:

====== =====================================================================
tag    what follows
====== =====================================================================
``N``  nothing (None)
``T``  nothing (True); ``F`` is False
``i``  hexadecimal digits with a sign if negative, then ``;``
``d``  8 bytes, big-endian IEEE 754 double, every bit kept (NaN payload, -0.0)
``s``  byte count, ``:``, UTF-8 (surrogates are refused)
``b``  byte count, ``:``, the bytes
``l``  item count, ``:``, the items (a list; ``u`` is a tuple)
``m``  entry count, ``:``, entries as key then value, sorted by the key's bytes; keys are str or int
====== =====================================================================

Counts are decimal. ``1``, ``1.0`` and ``True`` differ, so do a list and a tuple. This is format 1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NewType

from blake3 import blake3

from dsec.errors import StateError

__all__ = ["Digest", "Encoded", "blob_digest", "digest", "encode", "raw_digest"]

Digest = NewType("Digest", str)
"""64 lower-case hexadecimal characters of BLAKE3-256."""

_double = struct.Struct(">d").pack


class Encoded(bytes):
    """Canonical bytes made earlier, taken as they are where a value is expected."""

    __slots__ = ()


def digest(domain: str, value: object) -> Digest:
    """Digest of a value under a domain tag such as ``dsec/plan-key/1``.

    Raises
    ------
    StateError
        If the value holds something that has no canonical bytes; names its path.
    """
    encoded = value if type(value) is Encoded else encode(value)
    return Digest(blake3(domain.encode() + b"\0" + encoded).hexdigest())


def blob_digest(content: bytes | bytearray | memoryview) -> Digest:
    """Digest of raw bytes, without domain tag: the name of a chunk, and of a source file."""
    return Digest(blake3(content).hexdigest())


def raw_digest(content: bytes | bytearray | memoryview) -> bytes:
    """The 32 bytes behind `blob_digest`: how manifests and indexes of objects name a chunk."""
    return blake3(content).digest()


def encode(value: object) -> Encoded:
    """Canonical bytes of None, bool, int, float, str, bytes, list, tuple and str- or int-keyed mappings.

    Raises
    ------
    StateError
        For any other type, or a str with lone surrogates; ``where`` is the path from the root.
    """
    parts: list[bytes] = []
    _encode(value, parts, "$")
    return Encoded(b"".join(parts))


def _encode(value: object, parts: list[bytes], path: str) -> None:
    kind = type(value)
    if kind is str:
        parts.append(_text(value, path))  # type: ignore[arg-type]
    elif kind is Encoded:
        parts.append(value)  # type: ignore[arg-type]
    elif value is None:
        parts.append(b"N")
    elif kind is bool:
        parts.append(b"T" if value else b"F")
    elif kind is int:
        parts.append(b"i%x;" % value)  # type: ignore[str-format]
    elif kind is float:
        parts.append(b"d" + _double(value))
    elif kind is bytes:
        parts.append(b"b%d:" % len(value))  # type: ignore[arg-type]
        parts.append(value)  # type: ignore[arg-type]
    elif kind is list or kind is tuple:
        parts.append(b"%c%d:" % (b"l" if kind is list else b"u", len(value)))  # type: ignore[arg-type]
        for index, item in enumerate(value):  # type: ignore[arg-type,var-annotated]
            _encode(item, parts, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        _encode_mapping(value, parts, path)
    else:
        raise StateError(f"{kind.__module__}.{kind.__qualname__} has no canonical form", where=path)


def _encode_mapping(value: Mapping[object, object], parts: list[bytes], path: str) -> None:
    entries = []
    for key, item in value.items():
        if type(key) is str:
            encoded = _text(key, path)
        elif type(key) is int:
            encoded = b"i%x;" % key
        else:
            raise StateError(f"a mapping's keys are str or int, not {type(key).__qualname__}", where=path)
        entries.append((encoded, key, item))
    entries.sort(key=lambda entry: entry[0])
    parts.append(b"m%d:" % len(entries))
    for encoded, key, item in entries:
        parts.append(encoded)
        _encode(item, parts, f"{path}.{key}")


def _text(value: str, path: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise StateError("text with a lone surrogate has no canonical form", where=path) from error
    return b"s%d:" % len(raw) + raw
