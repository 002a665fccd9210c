"""The sources behind fingerprints, as a value to store and to put back; and what a process has really loaded."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from dsec.code.fingerprint import Fingerprint, Project
from dsec.code.modules import ENVIRONMENTS
from dsec.code.problem import CodeProblem
from dsec.core import canon

__all__ = ["bundle", "bundle_digest", "loaded", "loaded_differs", "to_json", "unpack", "watch_imports"]


def bundle(fingerprints: Iterable[Fingerprint], project: Project) -> dict[str, Any]:
    """Sources of all modules that some fingerprints import, first-party packages around them included.

    Returns
    -------
    dict
        ``{"modules": {name: source}, "packages": [name, …]}``, sorted. A source is text, or bytes if it is no UTF-8.

    Raises
    ------
    CodeProblem
        ``changed`` if a file is not the one that was fingerprinted.
    """
    wanted: dict[str, str] = {}
    for fingerprint in fingerprints:
        for name, digest in fingerprint.modules.items():
            if wanted.setdefault(name, digest) != digest:
                raise _changed(name, fingerprint.files.get(name, ""))
    modules: dict[str, str | bytes] = {}
    packages = []
    for name in sorted(wanted):
        content = project.content(name)
        source = project.finder.source(name)
        if canon.blob_digest(content) != wanted[name] or source is None:
            raise _changed(name, source.file if source else "")
        if not source.file.endswith(".py"):
            # Compiled for one machine: its bytes are in the fingerprint, and it stays where it is.
            continue
        modules[name] = _text(content)
        if source.is_package:
            packages.append(name)
    return {"modules": modules, "packages": packages}


def _changed(name: str, file: str) -> CodeProblem:
    return CodeProblem("changed", f"{name} was edited while it was read", file=file, hint="run the command again")


def _text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def bundle_digest(sources: Mapping[str, Any]) -> canon.Digest:
    """Digest of a bundle: the same sources have one, wherever they lay."""
    raw = {name: canon.blob_digest(_raw(source)) for name, source in sources["modules"].items()}
    return canon.digest("dsec/code-bundle/1", {"modules": raw, "packages": sorted(sources["packages"])})


def to_json(sources: Mapping[str, Any]) -> dict[str, Any]:
    """A bundle as JSON can hold it, with the digest of each source; bytes that are no UTF-8 stand as hexadecimal."""
    modules = sources["modules"]
    return {
        "digests": {name: canon.blob_digest(_raw(source)) for name, source in modules.items()},
        "modules": {name: s if isinstance(s, str) else {"hex": bytes(s).hex()} for name, s in modules.items()},
        "packages": sources["packages"],
    }


def _raw(source: str | bytes) -> bytes:
    return source.encode() if isinstance(source, str) else bytes(source)


def unpack(sources: Mapping[str, Any], folder: Path) -> Path:
    """Write a bundle as a folder that can be put on the import path.

    Raises
    ------
    CodeProblem
        ``bad-name`` for a module whose name would leave the folder.
    """
    packages = set(sources["packages"])
    for name, source in sources["modules"].items():
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            raise CodeProblem("bad-name", f"a bundle can't hold a module named {name!r}")
        stem = folder.joinpath(*parts)
        path = stem / "__init__.py" if name in packages else stem.with_name(f"{stem.name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_raw(source))
    return folder


# ---- what is loaded --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Record:
    """Sources that were compiled in this process."""

    digests: dict[str, str]
    """Module -> digest of the bytes it was compiled from."""
    roots: list[Path]


_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = sysconfig.get_path("stdlib")
_RECORD = _Record({}, [])
"""One for a process, as ``sys.modules`` is."""


def watch_imports(roots: Sequence[Path]) -> None:
    """Note from now on the source of every module imported from under these folders.

    Python's own modules, DSec's and installed ones are left out, ``dsec_envs`` apart. The others are always compiled
    from their source: a ``.pyc`` file can be older than the file it stands for.
    """
    _RECORD.roots.extend(root.absolute() for root in roots if root.absolute() not in _RECORD.roots)
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def loaded() -> dict[str, str]:
    """Modules of the watched folders that are loaded, with the digest of the source they were compiled from."""
    return {name: digest for name, digest in sorted(_RECORD.digests.items()) if name in sys.modules}


def loaded_differs(modules: Mapping[str, str]) -> list[str]:
    """Which of these modules this process has loaded from another source, sorted.

    One that was loaded before `watch_imports` is among them: nobody knows what it was compiled from.
    """
    return sorted(
        name for name, digest in modules.items() if name in sys.modules and _RECORD.digests.get(name) != digest
    )


class _Watch(importlib.abc.MetaPathFinder):
    """Asks the other finders, and puts a loader that notes the source in place of theirs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return self._watched(fullname, spec)
        return None

    def _watched(self, name: str, spec: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec:
        plain = type(spec.loader) is importlib.machinery.SourceFileLoader
        if not plain or not spec.origin or not _counts(name.partition(".")[0], Path(spec.origin)):
            return spec
        loader = _Noting(name, spec.origin)
        folders = spec.submodule_search_locations
        found = importlib.util.spec_from_file_location(name, spec.origin, loader=loader)
        if found is None:
            return spec
        found.submodule_search_locations = folders
        return found


def _counts(top: str, origin: Path) -> bool:
    """Whether a bundle could hold it, and it is under a watched folder."""
    if top in ("dsec", ENVIRONMENTS):
        return top == ENVIRONMENTS
    place = origin.absolute()
    if any(part in _INSTALLED for part in place.parts) or place.is_relative_to(_PYTHON):
        return False
    return any(place.is_relative_to(root) for root in _RECORD.roots)


class _Noting(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source and notes the digest of exactly those bytes."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        content = self.get_data(path)
        code: CodeType | None = self.source_to_code(content, path)
        _RECORD.digests[fullname] = canon.blob_digest(content)
        return code
