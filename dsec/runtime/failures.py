"""Users' failures as people see them: the step, the sentence, and a traceback without DSec's frames."""

from __future__ import annotations

import traceback
from pathlib import Path

from dsec.errors import StageError

__all__ = ["failed", "story"]

_PACKAGE = Path(__file__).parents[1]
_USERS = _PACKAGE / "testing"


def story(error: BaseException) -> str:
    """The traceback of an exception and of its causes, DSec's own frames left out."""
    found = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    rest: list[traceback.TracebackException | None] = [found]
    while rest:
        part = rest.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if _theirs(frame.filename)])
            rest += [part.__cause__, part.__context__]
    return "".join(found.format())


def failed(what: str, error: BaseException, *, step: int | None = None, hint: str = "") -> StageError:
    """The error for users' code that raised ``error`` while it did ``what`` (``agent.step``)."""
    message = f"{what} raised {type(error).__name__}: {error}"
    return StageError(message, step=step, story=story(error), hint=hint)


def _theirs(filename: str) -> bool:
    path = Path(filename)
    return not path.is_relative_to(_PACKAGE) or path.is_relative_to(_USERS)
