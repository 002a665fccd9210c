"""What one plan asked of a project's sources: each name is fingerprinted once, and all of them make the bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsec.code import bundle
from dsec.code.fingerprint import Fingerprint, Project
from dsec.core import canon

__all__ = ["Readings"]


class Readings:
    """A project's sources as one plan sees them; a snapshot, as `Project` is.

    Parameters
    ----------
    root
        Project root.
    cache
        Where to remember what was parsed, None for nowhere.
    versioned
        Whether a cache version answers for what can't be seen in the code of a name.
    """

    def __init__(self, root: Path, cache: Path | None, versioned: Callable[[str], bool]) -> None:
        self.project = Project(root, cache)
        self.found: dict[str, Fingerprint] = {}
        """Fingerprints by name, in the order in which they were asked for."""
        self._versioned = versioned

    def fingerprint(self, uses: str) -> canon.Digest:
        """Digest of all the code that a name can reach."""
        if uses not in self.found:
            self.found[uses] = self.project.fingerprint(uses, allow_dynamic=self._versioned(uses))
        return self.found[uses].digest

    def outputs(self, uses: str) -> tuple[str, ...] | None:
        """Names of what a body returns, None where only running it tells."""
        return self.project.signature(uses).outputs

    def takes(self, uses: str, name: str) -> bool:
        """Whether a body has a parameter of that name."""
        found = self.project.signature(uses)
        return found.accepts_any or any(parameter.name == name for parameter in found.parameters)

    def sources(self) -> dict[str, Any]:
        """The bundle of everything that was fingerprinted."""
        return bundle.bundle(self.found.values(), self.project)

    def bundle(self) -> canon.Digest | None:
        """Digest of the bundle; None if no code of the project was asked for."""
        sources = self.sources()
        return bundle.bundle_digest(sources) if sources["modules"] else None
