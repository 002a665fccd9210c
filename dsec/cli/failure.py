"""How a command fails: one named error on stderr, the command that continues, the exit code of the error.

A traceback is never shown. What DSec raises on purpose prints as ``error[code]: ...``; anything else is a fault of
DSec itself, and its traceback goes into a file that the message names.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

import typer

from dsec.cli import output
from dsec.errors import DsecError, IntegrityError, Interrupted, PlanError, StageError, StateError, UsageError

__all__ = ["as_json", "command", "exit_code", "guarded", "next_step", "text"]

INTERNAL = 1
"""Exit status of a fault of DSec itself: the call did not end well, and can be repeated."""
STORY_LINES = 20
"""Lines of a user's own traceback that are shown with a failed stage."""


def guarded(call: Callable[[], object], argv: Sequence[str]) -> int:
    """Run a command; report whatever ends it early.

    Parameters
    ----------
    call
        The command. Returns an exit status, or None for 0.
    argv
        What the user wrote after ``dsec``.

    Returns
    -------
    int
        The exit status of the process.
    """
    try:
        outcome = call()
        sys.stdout.flush()
    except DsecError as error:
        return _reported(error, argv)
    except (KeyboardInterrupt, typer.Abort):
        return _reported(_interrupted(argv), argv)
    except BrokenPipeError:
        return _reader_gone()
    except Exception as error:
        return _unexpected(error, argv)
    status = outcome if isinstance(outcome, int) else 0
    # Typer turns Ctrl-C into this status without a word.
    return _reported(_interrupted(argv), argv) if status == Interrupted.exit_code else status


def text(error: DsecError) -> str:
    """An error as it is printed: place, code, what is wrong, what to do, and the user's own frames if it has any."""
    if isinstance(error, PlanError):
        return str(error)
    place = f"{error.where}: " if error.where else ""
    lines = [f"error[{error.code}]: {place}{error.message}"]
    lines += [f"  | {row}" for row in _story(error)]
    if error.hint:
        lines.append(f"  {error.hint}")
    return "\n".join(lines)


def as_json(error: DsecError) -> dict[str, object]:
    """An error as an event of ``--json``."""
    shown: dict[str, object] = {"event": "error", "code": error.code, "message": error.message, "hint": error.hint}
    shown["where"] = error.where
    if isinstance(error, StageError | StateError):
        shown["instance"], shown["step"] = error.instance, error.step
    return shown


def exit_code(errors: Sequence[DsecError]) -> int:
    """Exit status of a run that ended with failed stages: an integrity error outweighs the others."""
    if any(isinstance(error, IntegrityError) for error in errors):
        return IntegrityError.exit_code
    return max((error.exit_code for error in errors), default=1)


def command(argv: Sequence[str]) -> str:
    """The command as the user can type it again."""
    return shlex.join(["dsec", *argv])


def next_step(error: DsecError, argv: Sequence[str]) -> str:
    """Last line of a failure: what to type next."""
    if isinstance(error, PlanError):
        return f"when corrected: {command(argv)}"
    if isinstance(error, UsageError):
        verb = [word for word in argv[:1] if not word.startswith("-")]
        return f"see: {command([*verb, '--help'])}"
    return f"to continue: {command(argv)}"


def _story(error: DsecError) -> list[str]:
    """The user's frames, shortened from the top: the last ones tell most."""
    if not isinstance(error, StageError) or not error.story:
        return []
    rows = [row for row in error.story.rstrip().splitlines() if not row.startswith("Traceback (most recent")]
    return rows[-STORY_LINES:]


def _reported(error: DsecError, argv: Sequence[str]) -> int:
    output.note(text(error))
    output.note(next_step(error, argv))
    return error.exit_code


def _interrupted(argv: Sequence[str]) -> Interrupted:
    saved = "what was finished is kept" if argv[:1] == ["run"] else ""
    return Interrupted("interrupted", hint=saved)


def _reader_gone() -> int:
    """The reader of stdout went away, as ``head`` does: end quietly, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _unexpected(error: Exception, argv: Sequence[str]) -> int:
    # Typer carries a copy of click of its own in newer versions, so its usage errors are told by what they can do.
    format_message = getattr(error, "format_message", None)
    if not callable(format_message):
        return _internal(error, argv)
    wrong = UsageError(_sentence(format_message()))
    context = getattr(error, "ctx", None)
    output.note(text(wrong))
    output.note(f"see: {getattr(context, 'command_path', 'dsec')} --help")
    return wrong.exit_code


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".")


def _internal(error: Exception, argv: Sequence[str]) -> int:
    story = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile("w", prefix="dsec-error-", suffix=".txt", delete=False) as file:
        file.write(f"{command(argv)}\n{story}")
    summary = " ".join(traceback.format_exception_only(error)[-1].split())
    output.note(f"error[internal]: {summary[:200]}: internal error, please report it with {file.name}")
    output.note(f"to continue: {command(argv)}")
    return INTERNAL
