"""Where a module's source is, and whose: the project's, a distribution's, Python's or DSec's. Nothing is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

__all__ = ["Finder", "Source", "Whose"]

ENVIRONMENTS = "dsec_envs"
_VENDORED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Source:
    """A first-party module."""

    name: str
    path: Path | None
    """Its file; None for a package without ``__init__``."""
    file: str
    """The same for people and for comparison: relative to the root, or to the folder it is imported from."""
    is_package: bool


@dataclass(frozen=True, slots=True)
class Whose:
    """Where a top-level name comes from."""

    kind: str
    """``first-party``, ``python``, ``dsec``, ``third-party`` or ``absent``."""
    base: Path | None = None
    """Of first-party: the folder that is imported from."""
    package: Path | None = None
    """Of first-party packages whose folder has another name: that folder; of third-party code: where it is."""


class Finder:
    """Finds modules as Python would with the root as first import path; answers are kept, as a snapshot."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tops: dict[str, Whose] = {}
        self._sources: dict[str, Source | None] = {}

    def whose(self, name: str) -> Whose:
        """Where the top-level package of a module comes from."""
        top = name.partition(".")[0]
        if top not in self._tops:
            self._tops[top] = self._look(top)
        return self._tops[top]

    def source(self, name: str) -> Source | None:
        """A first-party module by absolute name; None if it is no one's, or not first-party."""
        if name not in self._sources:
            self._sources[name] = self._find(name)
        return self._sources[name]

    def children(self, package: str) -> list[str]:
        """Names of modules in a first-party package, or at the root for an empty name; sorted."""
        if not package:
            folder: Path | None = self.root
        else:
            source = self.source(package)
            folder = self._folder(package) if source and source.is_package else None
        return sorted(set(_modules_in(folder))) if folder else []

    def _look(self, top: str) -> Whose:
        if top in sys.builtin_module_names:
            return Whose("python")
        if top == "dsec":
            return Whose("dsec")
        if _regular(self.root / top):
            return Whose("first-party", self.root)
        if top in sys.stdlib_module_names:
            return Whose("python")
        found = self._elsewhere(top)
        if found.kind == "absent" and (self.root / top).is_dir() and _free(self.root / top):
            return Whose("first-party", self.root)
        return found

    def _elsewhere(self, top: str) -> Whose:
        spec = _spec(top)
        if spec is None:
            return _beside(top)
        origin, folders = spec
        place = Path(folders[0]) if folders else Path(origin or "")
        if top == ENVIRONMENTS and folders:
            # Users' code wherever it is: people edit it in a checkout, and name it in plans.
            return Whose("first-party", place.parent, place)
        vendored = any(part in _VENDORED for part in place.parts)
        if vendored or (origin and not origin.endswith(".py")) or not _free(place, self.root):
            return Whose("third-party", package=place)
        if folders and place.name != top:
            return Whose("first-party", place.parent, place)
        return Whose("first-party", place.parent)

    def _folder(self, name: str) -> Path | None:
        """Folder that a package would be, whether or not it is there."""
        whose = self.whose(name)
        if whose.kind != "first-party" or whose.base is None:
            return None
        top, *rest = name.split(".")
        return (whose.package or whose.base / top).joinpath(*rest)

    def _find(self, name: str) -> Source | None:
        stem = self._folder(name) if all(part.isidentifier() for part in name.split(".")) else None
        parent = name.rpartition(".")[0]
        if stem is None or (parent and not self._is_package(parent)):
            return None
        init = stem / "__init__.py"
        if init.is_file():
            return Source(name, init, self._shown(name, init), True)
        plain = stem.with_name(f"{stem.name}.py")
        for path in (plain, *_extensions(stem)):
            if path.is_file():
                return Source(name, path, self._shown(name, path), False)
        if stem.is_dir() and _free(stem, self.root):
            return Source(name, None, self._shown(name, stem), True)
        return None

    def _is_package(self, name: str) -> bool:
        source = self.source(name)
        return source is not None and source.is_package

    def _shown(self, name: str, path: Path) -> str:
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            stem = name.replace(".", "/")
            return f"{stem}/__init__.py" if path.name == "__init__.py" else f"{stem}{path.suffix}"


def _regular(stem: Path) -> bool:
    """Whether a module, or a package with ``__init__``, stands there, and not in someone's virtual environment."""
    if (stem / "__init__.py").is_file():
        return _free(stem)
    return any(path.is_file() for path in (stem.with_name(f"{stem.name}.py"), *_extensions(stem)))


def _extensions(stem: Path) -> list[Path]:
    """Files that a compiled module of that name could be."""
    return [stem.with_name(f"{stem.name}{suffix}") for suffix in EXTENSION_SUFFIXES]


def _free(place: Path, root: Path | None = None) -> bool:
    """Whether no folder from here up to the root is a virtual environment or holds installed packages."""
    for folder in (place, *place.parents):
        if folder == root:
            return True
        if folder.name in _VENDORED or (folder / "pyvenv.cfg").is_file():
            return False
        if root is None:
            return True
    return True


def _spec(top: str) -> tuple[str | None, list[str]] | None:
    """Origin and folders of a top-level name, as the finders of this interpreter say; nothing is imported."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        try:
            spec = find(top, _import_path() if finder is PathFinder else None)
        except (ImportError, ValueError, OSError, AttributeError):
            continue
        if spec is not None:
            return spec.origin, list(spec.submodule_search_locations or ())
    return None


def _import_path() -> list[str]:
    """The import path without the folder that Python adds for where it was started."""
    here = str(Path.cwd())
    meant = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in sys.path if entry not in ("", ".") and (entry != here or entry in meant)]


def _beside(top: str) -> Whose:
    """The environments that come with DSec, in a checkout that is not installed."""
    folder = Path(__file__).resolve().parents[2] / "envs"
    if top == ENVIRONMENTS and (folder / "__init__.py").is_file():
        return Whose("first-party", folder.parent, folder)
    return Whose("absent")


def _modules_in(folder: Path) -> Iterator[str]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == ".py" and entry.stem.isidentifier() and entry.stem != "__init__":
            yield entry.stem
        elif entry.name.isidentifier() and any(entry.glob("*.py")):
            yield entry.name
