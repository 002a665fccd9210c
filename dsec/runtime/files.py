"""Declared files on a worker: their content comes from the store by digest, and is laid out under its own name.

A key names a file by name and content, so the worker takes neither from its own disk. The driver puts the content
(`put`) when a call that declares the file is to run.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dsec.core import canon
from dsec.errors import CorruptObject, StoreError
from dsec.store.blobs import BlobStore

__all__ = ["blob_name", "laid_out", "placed", "put"]


def blob_name(digest: str) -> str:
    """Name of a file's content in the store."""
    return f"code/{digest[:2]}/{digest}"


def put(blobs: BlobStore, content: bytes) -> canon.Digest:
    """Store the content of a file; gives its digest."""
    digest = canon.blob_digest(content)
    blobs.put(blob_name(digest), [content])
    return digest


def laid_out(blobs: BlobStore, name: str, digest: str) -> Path:
    """Where the content of a declared file lies on this machine, under its own last name, read-only.

    Raises
    ------
    AbsentError
        If the store has no such content.
    CorruptObject
        If the store's content is damaged; it is then in quarantine.
    """
    path = _folder() / digest[:32] / (PurePosixPath(name).name or "file")
    if _is(path, digest):
        return path
    content = blobs.get(blob_name(digest))
    if canon.blob_digest(content) != digest:
        blobs.quarantine(blob_name(digest))
        raise CorruptObject(f"the stored content of file {name!r} is damaged", where=blob_name(digest))
    _write(path, content)
    return path


def placed(config: Any, blobs: BlobStore) -> Any:
    """A configuration with the path of each declared file in place of its ``{"file": ..., "digest": ...}``."""
    if isinstance(config, Mapping):
        if set(config) == {"file", "digest"}:
            return laid_out(blobs, config["file"], config["digest"])
        return {name: placed(item, blobs) for name, item in config.items()}
    if isinstance(config, list | tuple):
        return [placed(item, blobs) for item in config]
    return config


def _is(path: Path, digest: str) -> bool:
    try:
        return canon.blob_digest(path.read_bytes()) == digest
    except OSError:
        return False


def _folder() -> Path:
    """A folder of this user alone, the same for all of the user's processes: paths may end up in results."""
    folder = Path(tempfile.gettempdir()) / f"dsec-files-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StoreError("it is not a directory of this user", where=str(folder), hint="remove it, or set TMPDIR")
    return folder


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).chmod(0o444)
    Path(temporary).replace(path)
