"""A store in memory, for tests of whatever reads and writes objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from dsec.errors import AbsentError
from dsec.store.blobs import Buffer, check_name

__all__ = ["MemoryBlobs"]


class MemoryBlobs:
    """`BlobStore` over a dict.

    Attributes
    ----------
    objects
        Bytes by name; a test may damage or remove them.
    written
        Bytes written so far; an object that was there already adds none.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written = 0

    def put(self, name: str, content: Sequence[Buffer]) -> None:
        """Write an object that is named by its content; one of the same size is kept."""
        if self.size(name) != sum(memoryview(piece).nbytes for piece in content):
            self.replace(name, content)

    def put_new(self, name: str, content: Sequence[Buffer]) -> bool:
        """Write an object unless the name is taken; False if it is."""
        whole = b"".join(content)
        won = self.objects.setdefault(check_name(name), whole) is whole
        self.written += len(whole) if won else 0
        return won

    def replace(self, name: str, content: Sequence[Buffer]) -> None:
        """Write an object whatever is there."""
        self.objects[check_name(name)] = b"".join(content)
        self.written += len(self.objects[name])

    def get(self, name: str) -> bytes:
        """All bytes of an object."""
        try:
            return self.objects[check_name(name)]
        except KeyError:
            raise AbsentError(f"the store has no {name}") from None

    def size(self, name: str) -> int | None:
        """Bytes of an object, None if it is absent."""
        content = self.objects.get(check_name(name))
        return None if content is None else len(content)

    def remove(self, name: str) -> None:
        """Delete an object; an absent one is no error."""
        self.objects.pop(check_name(name), None)

    def quarantine(self, name: str) -> None:
        """Move a damaged object to ``quarantine/<name>.<n>``."""
        content = self.objects.pop(check_name(name), None)
        if content is None:
            return
        targets = (f"quarantine/{name}.{number}" for number in itertools.count())
        self.objects[next(target for target in targets if target not in self.objects)] = content

    def names(self, prefix: str) -> Iterator[str]:
        """Names that start with ``prefix``, sorted."""
        return iter(sorted(name for name in self.objects if name.startswith(prefix)))

    def sync(self) -> None:
        """Nothing to do: memory does not survive."""
