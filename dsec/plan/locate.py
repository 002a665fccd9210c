"""Places in the files of a plan, and the problems that stand there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dsec.errors import PlanError, Problem

__all__ = [
    "MAX_PROBLEMS",
    "NOWHERE",
    "Fault",
    "Sources",
    "Span",
    "did_you_mean",
    "nearest",
    "refuse",
    "shown",
    "split_lines",
]

MAX_PROBLEMS = 20
"""Problems shown at once; the rest is counted."""

_MAX_FRAME = 160
_MAX_SHOWN = 60
_MAX_MESSAGE = 600
# The line breaks of libyaml, whose line numbers we report.
_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class Span(NamedTuple):
    """Where a key or a value stands."""

    file: str
    """The file, as the user named it."""
    line: int
    """1-based; 0 where the file as a whole is meant."""
    column: int
    """1-based, in characters."""
    width: int = 1
    """Characters to underline."""


NOWHERE = Span("", 0, 0)
"""The place of what stands in no file."""


class Fault(ValueError):
    """A value that a plan can't have, before its place is known.

    Parameters
    ----------
    at
        Where inside the value: keys and indices from there.
    key
        Whether the key at that place is meant, and not its value.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code: str = "wrong-value",
        at: tuple[str | int, ...] = (),
        key: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.at = at
        self.key = key


@dataclass(frozen=True, slots=True)
class Sources:
    """Lines of every file that was read, for the code frames."""

    lines: dict[str, Sequence[str]] = field(default_factory=dict)

    def add(self, file: str, text: str) -> None:
        """Remember the text of a file."""
        self.lines[file] = split_lines(text)

    def problem(self, span: Span, code: str, message: str, hint: str = "") -> Problem:
        """A problem at a place, with its code frame."""
        source = self._frame(span)
        width = max(1, min(span.width, len(source) - span.column + 1))
        return Problem(span.file, span.line, span.column, code, _line(message), _line(hint), width, source)

    def _frame(self, span: Span) -> str:
        lines = self.lines.get(span.file, ())
        if not 0 < span.line <= len(lines) or span.column > _MAX_FRAME:
            return ""
        line = lines[span.line - 1]
        return _line(line, _MAX_FRAME)


def _line(text: str, longest: int = _MAX_MESSAGE) -> str:
    cut = text if len(text) <= longest else text[:longest] + "…"
    # One character stays one column, and no control sequence reaches the terminal.
    return cut if cut.isprintable() else "".join(char if char.isprintable() else " " for char in cut)


def split_lines(text: str) -> list[str]:
    """Lines of a text as YAML counts them."""
    return _BREAKS.split(text)


def refuse(problems: Iterable[Problem], unseen: int = 0) -> PlanError:
    """One error of all problems: sorted by place, each place and code once, at most `MAX_PROBLEMS` shown.

    ``unseen`` counts those that were found and not explained.
    """
    first: dict[tuple[object, ...], Problem] = {}
    for problem in sorted(problems, key=lambda p: (p.path, p.line, p.column, p.code, p.message)):
        # Through an alias one fault has many paths; of several missing keys each is a fault.
        what = problem.message if problem.code == "missing-key" else problem.code
        first.setdefault((problem.path, problem.line, problem.column, what), problem)
    found = list(first.values())
    if len(found) > MAX_PROBLEMS:
        more = len(found) - MAX_PROBLEMS + unseen
        rest = Problem(found[MAX_PROBLEMS].path, 0, 0, "more", f"and {more} more", "put these right first")
        found = [*found[:MAX_PROBLEMS], rest]
    return PlanError(found)


def shown(value: object, longest: int = _MAX_SHOWN) -> str:
    """A user's value as it may stand in a message: one line, quoted if text, cut if long."""
    text = repr(value) if isinstance(value, str | int | float | bool) or value is None else _kind(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return str(value)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The right word a wrong one most likely meant, or None."""
    candidates = sorted(words)
    folded = {_fold(candidate): candidate for candidate in reversed(candidates)}
    if _fold(word) in folded:
        return folded[_fold(word)]
    import difflib  # an error is rare, a cached run must start fast

    # Hostile names are long; difflib is quadratic.
    found = difflib.get_close_matches(word[:80], candidates[:1000], n=1, cutoff=0.6)
    return found[0] if found else None


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def did_you_mean(word: str, words: Iterable[str], *, else_list: bool = True) -> str:
    """``did you mean 'needs'?``, or the possible words where none is near and there are few."""
    candidates = sorted(words)
    near = nearest(word, candidates)
    if near is not None:
        return f"did you mean '{near}'?"
    if else_list and 0 < len(candidates) <= 12:
        return "possible: " + ", ".join(candidates)
    return ""
