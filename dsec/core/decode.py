"""Inverse of `canon.encode`, made for bytes that nobody vouches for.

Every length is checked before anything is made of it, only the one canonical form of a value is taken, and whatever is
wrong is one `CorruptObject`. Nothing here runs code that the bytes name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dsec.errors import CorruptObject, StateError

__all__ = ["MAX_DEPTH", "Reader", "decode"]

MAX_DEPTH = 100
"""How deep values may be nested."""

_INNER = 8  # values inside of a leaf, which count as no level when it is written
_DIGITS = 18  # longer counts are lies: nothing has 10**18 bytes
_double = struct.Struct(">d").unpack_from


def decode(content: bytes, where: str = "") -> Any:
    """The plain value that ``content`` is the canonical form of.

    Raises
    ------
    CorruptObject
        If it is not one whole value in canonical form; ``where`` is what the error names.
    """
    return Reader(content, where).whole()


class Reader:
    """Reads one value; a subclass adds tags.

    Parameters
    ----------
    content
        Canonical bytes.
    where
        What an error names.
    """

    tags: ClassVar[Mapping[int, Callable[[Any], Any]]]
    """What reads the rest of a value, by its tag; called with the reader."""

    def __init__(self, content: bytes, where: str = "") -> None:
        self.content = content
        self.where = where
        self.at = 0
        self.depth = 0

    def whole(self) -> Any:
        """The value, and nothing after it.

        Raises
        ------
        CorruptObject
            If the bytes are no such value.
        StateError
            If the caller left too little stack to read it.
        """
        try:
            value = self.value()
        except RecursionError:
            raise StateError("nested too deep for the stack that is left", where=self.where) from None
        if self.at != len(self.content):
            raise self.wrong("more bytes than its value has")
        return value

    def value(self) -> Any:
        """The next value."""
        if self.at >= len(self.content):
            raise self.wrong("it ends early")
        read = self.tags.get(self.content[self.at])
        if read is None:
            raise self.wrong(f"unknown tag 0x{self.content[self.at]:02x}")
        if self.depth >= MAX_DEPTH + _INNER:
            raise self.wrong(f"nested deeper than {MAX_DEPTH}")
        self.depth += 1
        self.at += 1
        value = read(self)
        self.depth -= 1
        return value

    def typed(self, kind: type) -> Any:
        """The next value, which must be of exactly this type."""
        value = self.value()
        if type(value) is not kind:
            raise self.wrong(f"{type(value).__name__} where {kind.__name__} belongs")
        return value

    def wrong(self, what: str) -> CorruptObject:
        """The error for what is wrong at this place."""
        return CorruptObject(f"not in canonical form at byte {self.at}: {what}", where=self.where)

    def count(self) -> int:
        """A decimal count and its colon; never more than the bytes that are left, since every item has one."""
        end = self.content.find(b":", self.at, self.at + _DIGITS)
        digits = self.content[self.at : end]
        if end < 0 or not digits.isdigit() or (digits[0] == 0x30 and len(digits) > 1):
            raise self.wrong("bad count")
        self.at = end + 1
        count = int(digits)
        if count > len(self.content) - self.at:
            raise self.wrong(f"{count} items or bytes are said to follow, {len(self.content) - self.at} bytes do")
        return count

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        taken = self.content[self.at : self.at + count]
        if len(taken) != count:
            raise self.wrong("it ends early")
        self.at += count
        return taken

    def integer(self) -> int:
        """Hexadecimal digits and their semicolon."""
        end = self.content.find(b";", self.at)
        try:
            value = int(self.content[self.at : end], 16)
        except ValueError:
            raise self.wrong("bad integer") from None
        if end < 0 or b"%x" % value != self.content[self.at : end]:
            raise self.wrong("bad integer")
        self.at = end + 1
        return value

    def double(self) -> float:
        """Eight bytes."""
        return _double(self.take(8))[0]  # type: ignore[no-any-return]

    def text(self) -> str:
        """Counted UTF-8."""
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError:
            raise self.wrong("text that is not UTF-8") from None

    def blob(self) -> bytes:
        """Counted bytes."""
        return self.take(self.count())

    def items(self) -> list[Any]:
        """Counted values."""
        return [self.value() for _ in range(self.count())]

    def mapping(self) -> dict[str | int, Any]:
        """Counted entries, in the order of their keys' bytes."""
        entries: dict[str | int, Any] = {}
        last = b""
        for _ in range(self.count()):
            start = self.at
            key = self.value()
            form = self.content[start : self.at]
            if type(key) not in (str, int) or form <= last:
                raise self.wrong("a mapping's keys are str or int, in order, each once")
            last = form
            entries[key] = self.value()
        return entries


Reader.tags = {
    ord("N"): lambda _: None,
    ord("T"): lambda _: True,
    ord("F"): lambda _: False,
    ord("i"): Reader.integer,
    ord("d"): Reader.double,
    ord("s"): Reader.text,
    ord("b"): Reader.blob,
    ord("l"): Reader.items,
    ord("u"): lambda reader: tuple(reader.items()),
    ord("m"): Reader.mapping,
}
