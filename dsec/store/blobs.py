"""Objects by name, in a local directory.

An object is whole or absent: it is written under a temporary name and renamed. Names are relative slash paths, such as
``anchors/ab/<id>``. What survives what is `LocalBlobs.durability`: ``group`` survives the death of the process (and of
the machine after the next `sync`), ``strict`` survives power loss once the call returns.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar

from dsec.core import failpoint
from dsec.errors import AbsentError, StoreError, StoreFull, UsageError
from dsec.store import system

__all__ = ["BlobStore", "Buffer", "Durability", "LocalBlobs", "check_name"]

T = TypeVar("T")

Buffer: TypeAlias = "bytes | bytearray | memoryview[Any]"
"""A contiguous piece of an object."""

Durability: TypeAlias = Literal["group", "strict"]
"""What an acknowledged write survives: process death, or power loss."""

_NAME = re.compile(r"(?!tmp/|tmp$|catalog\.db)[\w@=+,%~-][\w@=+,%~.-]*(?:/[\w@=+,%~-][\w@=+,%~.-]*)*", re.ASCII)
_PIECES = 1024  # IOV_MAX of Linux: more pieces in one writev are refused
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}


class BlobStore(Protocol):
    """Where objects are kept. `dsec.testing.blobstore.BlobStoreContract` is its test."""

    def put(self, name: str, content: Sequence[Buffer]) -> None:
        """Write an object that is named by its content; one of the same size that is there already is kept.

        Raises
        ------
        StoreFull
            If there is no space; nothing half-written stays.
        StoreError
            If it can't be written; names the object.
        """

    def put_new(self, name: str, content: Sequence[Buffer]) -> bool:
        """Write an object unless the name is taken; False if it is. Of several writers one wins."""

    def replace(self, name: str, content: Sequence[Buffer]) -> None:
        """Write an object whatever is there; a reader sees the old or the new one, whole."""

    def get(self, name: str) -> bytes:
        """All bytes of an object.

        Raises
        ------
        AbsentError
            If there is none of this name.
        """

    def size(self, name: str) -> int | None:
        """Bytes of an object, None if it is absent."""

    def remove(self, name: str) -> None:
        """Delete an object; an absent one is no error."""

    def quarantine(self, name: str) -> None:
        """Move a damaged object to ``quarantine/<name>.<n>``, so that it counts as absent; no error if it is."""

    def names(self, prefix: str) -> Iterator[str]:
        """Names that start with ``prefix``, sorted."""

    def sync(self) -> None:
        """Everything written so far survives power loss when this returns."""


def check_name(name: str) -> str:
    """The name, if it is one.

    Raises
    ------
    UsageError
        If it is empty, absolute, leaves the store (``..``), hides (``.x``), or is in the store's own ``tmp/``.
    """
    if _NAME.fullmatch(name):
        return name
    raise UsageError(f"{name!r} is no name of an object", hint="names are relative slash paths such as anchors/ab/<id>")


class LocalBlobs:
    """Objects as files under a directory.

    Parameters
    ----------
    root
        The store's directory; it exists.
    durability
        ``group`` renames and leaves syncing to `sync`; ``strict`` syncs file and folders before it returns.
    fsync
        Syncs an open file or folder; a test puts a recorder here.
    """

    def __init__(
        self, root: Path, durability: Durability = "group", *, fsync: Callable[[int], None] = os.fsync
    ) -> None:
        if durability not in ("group", "strict"):
            raise UsageError(f"durability is 'group' or 'strict', not {durability!r}")
        self.root = root
        self.durability = durability
        self._strict = durability == "strict"
        self._fsync = fsync
        self._token = os.urandom(8).hex()
        self._numbers = itertools.count()
        self._secured: set[Path] = set()

    def __repr__(self) -> str:
        return f"LocalBlobs({str(self.root)!r}, {self.durability!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LocalBlobs):
            return NotImplemented
        return (self.root, self.durability) == (other.root, other.durability)

    def __hash__(self) -> int:
        return hash((self.root, self.durability))

    def put(self, name: str, content: Sequence[Buffer]) -> None:
        """Write an object that is named by its content; one of the same size is kept."""
        path = self._path(name)
        if self._size(path) == sum(_length(piece) for piece in content) and self._secured_there(path):
            return
        self._publish(path, content)

    def put_new(self, name: str, content: Sequence[Buffer]) -> bool:
        """Write an object unless the name is taken; False if it is."""
        path = self._path(name)
        if self._size(path) is not None and self._secured_there(path):
            return False
        temporary = self._written(path, content)
        try:
            won = self._reaching(path, lambda: _link(temporary, path))
        except OSError as error:
            _fail(error, path)
        finally:
            _discard(temporary)
        failpoint.reached("store.blobs.put.after-rename")
        if won:
            self._secure_folder(path.parent)
        else:
            self._secured_there(path)
        return won

    def replace(self, name: str, content: Sequence[Buffer]) -> None:
        """Write an object whatever is there."""
        self._publish(self._path(name), content)

    def get(self, name: str) -> bytes:
        """All bytes of an object."""
        path = self._path(name)
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            raise AbsentError(f"the store has no {name}", where=str(self.root)) from None
        except OSError as error:
            _fail(error, path)

    def size(self, name: str) -> int | None:
        """Bytes of an object, None if it is absent."""
        return self._size(self._path(name))

    def remove(self, name: str) -> None:
        """Delete an object; an absent one is no error."""
        path = self._path(name)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            _fail(error, path)
        self._secure_folder(path.parent)

    def quarantine(self, name: str) -> None:
        """Move a damaged object to ``quarantine/<name>.<n>``."""
        path = self._path(name)
        if self._size(path) is None:
            return
        for number in itertools.count():
            target = self.root / "quarantine" / f"{name}.{number}"
            if not target.exists():
                break
        try:
            self._reaching(target, lambda: path.rename(target))
        except FileNotFoundError:
            return
        except OSError as error:
            _fail(error, path)
        self._secure_folder(path.parent)

    def names(self, prefix: str) -> Iterator[str]:
        """Names that start with ``prefix``, sorted."""
        folder, slash, start = prefix.rpartition("/")
        if folder:
            check_name(folder)
        for entry in _sorted_entries(self.root / folder):
            name = f"{folder}{slash}{entry.name}"
            if not entry.name.startswith(start) or not _NAME.fullmatch(name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self.names(f"{name}/")
            else:
                yield name

    def sync(self) -> None:
        """Everything written so far, by whatever process of this machine, survives power loss."""
        try:
            system.sync_filesystem(self.root)
        except OSError as error:
            _fail(error, self.root)

    def sweep(self) -> int:
        """Delete temporary files that processes of this machine left when they died; returns how many."""
        swept = 0
        for entry in _sorted_entries(self.root / "tmp"):
            if _orphaned(entry.name):
                _discard(Path(entry.path))
                swept += 1
        return swept

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _fail(error, path)

    def _publish(self, path: Path, content: Sequence[Buffer]) -> None:
        temporary = self._written(path, content)
        try:
            self._reaching(path, lambda: temporary.replace(path))
        except OSError as error:
            _discard(temporary)
            _fail(error, path)
        failpoint.reached("store.blobs.put.after-rename")
        self._secure_folder(path.parent)

    def _written(self, path: Path, content: Sequence[Buffer]) -> Path:
        """A complete temporary file; ``path`` is what an error names."""
        failpoint.reached("store.blobs.put.before-write")
        me = system.this_process()
        temporary = self.root / "tmp" / f"{me.mark}-{me.pid}-{me.started}-{self._token}-{next(self._numbers)}"
        try:
            self._reaching(temporary, lambda: self._create(temporary, content))
        except OSError as error:
            _discard(temporary)
            _fail(error, path)
        except BaseException:
            _discard(temporary)
            raise
        failpoint.reached("store.blobs.put.after-temp")
        return temporary

    def _create(self, path: Path, content: Sequence[Buffer]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            _write(descriptor, content)
            if self._strict:
                self._fsync(descriptor)
        finally:
            os.close(descriptor)

    def _reaching(self, path: Path, act: Callable[[], T]) -> T:
        """Do what needs the folder of ``path``, and make the folder if there is none yet."""
        try:
            return act()
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            return act()

    def _secured_there(self, path: Path) -> bool:
        """Let an object of another writer, perhaps unsynced, survive as our own would; False if it has gone since."""
        if self._strict:
            try:
                self._sync_path(path)
            except AbsentError:
                return False
            self._secure_folder(path.parent)
        return True

    def _secure_folder(self, folder: Path) -> None:
        """Sync the folder of a new object; the first time also those above it, which others may have made unsynced."""
        if not self._strict:
            return
        self._sync_path(folder)
        if folder not in self._secured:
            for above in folder.parents[: len(folder.parts) - len(self.root.parts)]:
                self._sync_path(above)
            self._secured.add(folder)  # last, so that no other thread relies on it too early

    def _sync_path(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._fsync(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise AbsentError("it has gone", where=str(path)) from None
        except OSError as error:
            _fail(error, path)


def _length(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def _write(descriptor: int, content: Sequence[Buffer]) -> None:
    pending = [memoryview(piece).cast("B") for piece in content if _length(piece)]
    first = 0
    while first < len(pending):
        written = os.writev(descriptor, pending[first : first + _PIECES])
        while first < len(pending) and written >= len(pending[first]):
            written -= len(pending[first])
            first += 1
        if written:
            pending[first] = pending[first][written:]


def _read(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.readall()


def _link(temporary: Path, path: Path) -> bool:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return temporary.stat().st_nlink == 2  # a repeated NFS request finds its own first success
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return system.rename_new(temporary, path)
    return True


def _discard(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink()


def _orphaned(temporary: str) -> bool:
    """Whether a temporary name is of this machine and of a process that is gone."""
    try:
        mark, pid, started, _ = temporary.split("-", 3)
        me = system.this_process()
        return mark == me.mark and system.is_alive(system.Process(me.host, int(pid), int(started))) is False
    except ValueError:
        return False


def _sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=_sort_key)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _fail(error, folder)


def _sort_key(entry: os.DirEntry[str]) -> str:
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _fail(error: OSError, path: Path) -> NoReturn:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        hint = "free space and run the same command again; nothing half-written was kept"
        raise StoreFull(f"no space to write it: {reason}", where=str(path), hint=hint) from error
    hint = "the store's directory must be writable" if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) else ""
    raise StoreError(f"the operating system refuses it: {reason}", where=str(path), hint=hint) from error
