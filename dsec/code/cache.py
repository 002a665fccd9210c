"""What was found out about code, kept on disk and believed only while every file it was read from is the same."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from dsec.core import canon
from dsec.errors import DsecError

__all__ = ["Cache", "write"]

_FORMAT = 1


class Cache:
    """One small file for each question; whatever is wrong with one, it counts as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The stored answer, unchecked against the sources; None if there is none, or it is damaged."""
        try:
            found = json.loads(self._path(kind, name).read_bytes())
            body = found["body"]
            whole = found["digest"] == canon.digest("dsec/code-cache/1", body)
        except (OSError, ValueError, KeyError, TypeError, DsecError):
            return None
        return body if whole and isinstance(body, dict) and body.get("name") == name else None

    def put(self, kind: str, name: str, body: dict[str, Any]) -> None:
        """Keep an answer."""
        body = {**body, "name": name}
        stored = {"body": body, "digest": canon.digest("dsec/code-cache/1", body)}
        write(self._path(kind, name), json.dumps(stored, separators=(",", ":")).encode())

    def _path(self, kind: str, name: str) -> Path:
        return self.folder / f"{kind}-{canon.digest('dsec/code-cache-name/1', [_FORMAT, name])[:32]}.json"


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. A folder that can't be written costs time, never a result."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
