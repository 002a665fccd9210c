"""The one error of the code layer."""

from __future__ import annotations

from collections.abc import Iterable

from dsec.errors import DsecError

__all__ = ["CodeProblem", "closest"]


class CodeProblem(DsecError):
    """Users' code that can't be read, found or keyed.

    Parameters
    ----------
    kind
        ``no-module``, ``no-name``, ``not-first-party``, ``dynamic``, ``syntax``, ``main``, ``bad-name`` or ``changed``.
    candidates
        Names that were probably meant, best first.
    file
        File relative to the project's root, or an empty string.
    line
        1-based line, 0 where there is none.
    """

    code = "code"
    exit_code = 2

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        hint: str = "",
        candidates: Iterable[str] = (),
        file: str = "",
        line: int = 0,
    ) -> None:
        self.kind = kind
        self.candidates = tuple(candidates)
        self.file = file
        self.line = line
        meant = f"did you mean {self.candidates[0]!r}?" if self.candidates else ""
        where = f"{file}:{line}" if file and line else file
        super().__init__(message, hint=hint or meant, where=where)


def closest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that look like ``name``, best first, at most three."""
    import difflib  # an error is rare, a cached run must start fast

    return tuple(difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.6))
