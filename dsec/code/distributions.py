"""Which installed distribution a third-party module belongs to, and in which version; read from metadata on disk."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dsec.core import canon

__all__ = ["Distributions", "Installed", "unlisted"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution as it counts."""

    name: str
    """Normalised: lower case, with ``-``."""
    version: str
    """With a digest of its RECORD where it was installed from a folder or a repository."""


class Distributions:
    """The installed distributions of this interpreter, by the modules they provide.

    Parameters
    ----------
    cache
        Folder for the table, renewed when a folder of packages changes; None keeps it in memory.
    path
        Import path, ``sys.path`` unless given.
    """

    def __init__(self, cache: Path | None = None, path: tuple[str, ...] | None = None) -> None:
        self._cache = cache
        self._path = path
        self._table: Mapping[str, list[list[str]]] | None = None

    def of(self, module: str) -> tuple[Installed, ...]:
        """Distributions that provide a module: those with the longest common name; empty if none does."""
        table = self._load()
        parts = module.split(".")
        for length in range(min(len(parts), 2), 0, -1):
            found = table.get(".".join(parts[:length]))
            if found:
                return tuple(Installed(name, version) for name, version in found)
        return ()

    def named(self, name: str) -> Installed | None:
        """A distribution by name."""
        wanted = _normal(name)
        for entries in self._load().values():
            for found, version in entries:
                if found == wanted:
                    return Installed(found, version)
        return None

    def _load(self) -> Mapping[str, list[list[str]]]:
        if self._table is None:
            stamp = self._stamp()
            table = self._stored(stamp)
            if table is None:
                table = _scan(tuple((entry, changed) for entry, changed in stamp))
                self._store(stamp, table)
            self._table = table
        return self._table

    def _stamp(self) -> list[list[str]]:
        """Folders of installed packages with the time of their last change."""
        found = []
        for entry in dict.fromkeys(self._path if self._path is not None else sys.path):
            folder = Path(entry)
            if self._path is None and folder.name not in ("site-packages", "dist-packages"):
                continue
            with contextlib.suppress(OSError):
                found.append([entry, str(folder.stat().st_mtime_ns)])
        return found

    def _stored(self, stamp: list[list[str]]) -> dict[str, list[list[str]]] | None:
        if self._cache is None:
            return None
        try:
            found = json.loads((self._cache / "distributions.json").read_bytes())
            table = found["table"]
            if found["format"] != _FORMAT or found["stamp"] != stamp or found["digest"] != _digest(stamp, table):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return table  # type: ignore[no-any-return]

    def _store(self, stamp: list[list[str]], table: Mapping[str, list[list[str]]]) -> None:
        if self._cache is None:
            return
        from dsec.code.cache import write  # only where there is a cache

        body = {"format": _FORMAT, "stamp": stamp, "table": table, "digest": _digest(stamp, table)}
        write(self._cache / "distributions.json", json.dumps(body).encode())


def unlisted(place: Path) -> str:
    """A version for code among the installed packages that no distribution lists: the digest of its sources."""
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    found = [[path.relative_to(place.parent).as_posix(), canon.blob_digest(_read(path))] for path in files]
    return f"sources {canon.digest('dsec/code-unlisted/1', found)[:16]}"


def _digest(stamp: object, table: object) -> str:
    return canon.digest("dsec/code-distributions/1", [stamp, table])


@lru_cache(maxsize=4)
def _scan(stamp: tuple[tuple[str, str], ...]) -> dict[str, list[list[str]]]:
    """Module -> [name, version] of each distribution that has it; a second level where several share a name."""
    entries: dict[str, tuple[Path, Installed]] = {}
    for folder, _ in stamp:
        for entry in sorted(Path(folder).iterdir()):
            found = _installed(entry) if entry.suffix in (".dist-info", ".egg-info") and entry.is_dir() else None
            if found is not None:
                entries.setdefault(found.name, (entry, found))
    owners: dict[str, list[list[str]]] = {}
    tops = {name: _tops(entry) for name, (entry, _) in entries.items()}
    for name, (_, found) in sorted(entries.items()):
        for top in tops[name]:
            owners.setdefault(top, []).append([found.name, found.version])
    shared = {top for top, found in owners.items() if len(found) > 1}
    for name, (entry, found) in sorted(entries.items()):
        if shared & tops[name]:
            for inner in _seconds(entry, shared):
                owners.setdefault(inner, []).append([found.name, found.version])
    return dict(sorted(owners.items()))


def _installed(entry: Path) -> Installed | None:
    """Name and version from the folder's name; None for an editable install, whose code counts itself."""
    name, _, version = entry.stem.partition("-")
    version = version.partition("-py")[0] if entry.suffix == ".egg-info" else version
    direct = _json(entry / "direct_url.json")
    if direct.get("dir_info", {}).get("editable"):
        return None
    local = str(direct.get("url", "")).startswith("file:")
    if local or "vcs_info" in direct:
        version = f"{version} (RECORD {_recorded(entry)})"
    return Installed(_normal(name), version)


def _recorded(entry: Path) -> str:
    """Short digest of the files of a distribution, without those in which an installer notes places and times."""
    lines = _read(entry / "RECORD").decode("utf-8", "replace").splitlines()
    files = sorted(
        line for line in lines if ".dist-info/" not in line and not line.startswith("..") and ".pyc," not in line
    )
    return canon.digest("dsec/code-record/1", files)[:16]


def _tops(entry: Path) -> set[str]:
    """Top-level modules of a distribution."""
    listed = set(_read(entry / "top_level.txt").decode("utf-8", "replace").split())
    if listed:
        return listed
    found = set()
    for path in _record(entry):
        first, slash, _ = path.partition("/")
        found.add(first if slash else _stem(first))
    return {name for name in found if name.isidentifier() and name != "__pycache__"}


def _seconds(entry: Path, shared: set[str]) -> set[str]:
    """Modules right below top-level names that several distributions share."""
    found = set()
    for path in _record(entry):
        first, *rest = path.split("/")
        if first in shared and rest:
            second = rest[0] if len(rest) > 1 else _stem(rest[0])
            if second.isidentifier() and second != "__pycache__":
                found.add(f"{first}.{second}")
    return found


def _stem(file: str) -> str:
    """Module of a file, empty for one that is none."""
    return file.partition(".")[0] if file.endswith((".py", ".so", ".pyd")) else ""


def _record(entry: Path) -> Iterator[str]:
    for line in _read(entry / "RECORD").decode("utf-8", "replace").splitlines():
        path = line.partition(",")[0]
        if ".." not in path and ".dist-info/" not in path:
            yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _json(path: Path) -> dict[str, dict[str, object]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
