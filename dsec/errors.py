"""Everything DSec can refuse, as one tree; every error pickles and prints as one line.

::

    DsecError                     code        exit
    ├── UsageError                usage         2    the call is wrong
    ├── PlanError                 plan          2    the plan is wrong; carries every Problem found
    ├── StateError                state         1    a value can't be saved or restored, with its path
    ├── StageError                stage         1    a stage body failed, with instance and step
    │   ├── StageTimeout          timeout       1    it did not end within its deadline
    │   └── WorkerLost            worker-lost   1    its worker died, again and again
    │       └── OutOfMemory       oom           1    its worker met the memory limit
    ├── StoreError                store         1    the store can't be read or written
    │   ├── StoreFull             store-full    1    the disk is full; the run can go on later
    │   └── AbsentError           absent        1    an object that should be there is not
    ├── IntegrityError            integrity     3    bytes or results contradict their name
    │   ├── CorruptObject         corrupt       3    stored bytes differ from their digest
    │   ├── NondeterminismError   nondeterminism 3   one key, two results
    │   └── CodeMismatch          code-mismatch 3    a worker can't run the sources of the key
    ├── ClusterError              cluster       4    the cluster can't serve the plan
    │   ├── Unsatisfiable         unsatisfiable 4    a profile that no worker has
    │   ├── ClassMismatch         class         4    no worker of the runtime class of this run
    │   └── Stalled               stalled       4    no progress and no workers
    └── Interrupted               interrupted 130    stopped by the user; resumable
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

__all__ = [
    "AbsentError",
    "ClassMismatch",
    "ClusterError",
    "CodeMismatch",
    "CorruptObject",
    "DsecError",
    "IntegrityError",
    "Interrupted",
    "NondeterminismError",
    "OutOfMemory",
    "PlanError",
    "Problem",
    "StageError",
    "StageTimeout",
    "Stalled",
    "StateError",
    "StoreError",
    "StoreFull",
    "Unsatisfiable",
    "UsageError",
    "WorkerLost",
]


class DsecError(Exception):
    """Base of all errors that DSec raises on purpose.

    Parameters
    ----------
    message
        What was found and what was expected, in one line.
    hint
        What to do next, or an empty string.
    where
        The place: a file position, an instance name, a path in a state tree.
    """

    code: ClassVar[str] = "error"
    """Stable word that names the kind of error in output and docs."""
    exit_code: ClassVar[int] = 1
    """Exit status of the command line when this error ends it."""

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message}{hint}"


def _rebuild(cls: type[DsecError], args: tuple[object, ...], state: dict[str, object]) -> DsecError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(DsecError):
    """The call or the command line is wrong."""

    code = "usage"
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a plan, with its place."""

    path: str
    """The file, as the user named it."""
    line: int
    """1-based line, 0 where the fault is the file's as a whole."""
    column: int
    """1-based column."""
    code: str
    """Stable word, for example ``unknown-key``."""
    message: str
    """What was found and what was expected."""
    hint: str = ""
    """What to do, for example ``did you mean 'needs'?``."""
    width: int = 1
    """How many characters the frame underlines."""
    source: str = ""
    """The line itself, for the code frame; empty where there is none."""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        head = f"{place}: error[{self.code}]: {self.message}"
        if not self.source:
            return f"{head}\n  {self.hint}" if self.hint else head
        gutter = f"{self.line:>3} | "
        blank = " " * (len(gutter) - 2) + "| "
        marks = " " * (self.column - 1) + "^" * max(1, self.width)
        return f"{head}\n{gutter}{self.source}\n{blank}{marks}{' ' + self.hint if self.hint else ''}"


class PlanError(DsecError):
    """A plan with faults; ``problems`` holds them sorted by file and line."""

    code = "plan"
    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class StateError(DsecError):
    """A value that an anchor can't hold, or a stored value that can't be put back; ``where`` ends with its path."""

    code = "state"

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message, hint=hint, where=where)
        self.instance = ""
        """Name of the call, once it is known; see `of`."""
        self.step: int | None = None
        """Absolute step at which the call was, if it was stepping."""

    def of(self, instance: str, step: int | None) -> Self:
        """The same error, which from now on says in which call and at which step it was, unless it does already."""
        if not self.instance:
            self.instance, self.step = instance, step
            place = instance if step is None else f"{instance} at step {step}"
            self.where = f"{place}: {self.where}" if self.where else place
        return self


class StageError(DsecError):
    """A stage body failed.

    Parameters
    ----------
    instance
        Name of the call, for example ``train@seed=0#17/learn``.
    step
        Absolute step at which it failed, if it was stepping.
    story
        The user's own traceback, without DSec's frames.
    """

    code = "stage"

    def __init__(
        self, message: str, *, instance: str = "", step: int | None = None, story: str = "", hint: str = ""
    ) -> None:
        where = instance if step is None else f"{instance} at step {step}"
        super().__init__(message, hint=hint, where=where)
        self.instance = instance
        self.step = step
        self.story = story


class StageTimeout(StageError):
    """A call that did not end within its deadline."""

    code = "timeout"


class WorkerLost(StageError):
    """A call whose worker died."""

    code = "worker-lost"


class OutOfMemory(WorkerLost):
    """A call whose worker met its memory limit."""

    code = "oom"


class StoreError(DsecError):
    """The store can't be read or written."""

    code = "store"


class StoreFull(StoreError):
    """No space is left; nothing half-written was kept, and the run can go on later."""

    code = "store-full"


class AbsentError(StoreError):
    """An object that was asked for by name is not in the store."""

    code = "absent"


class IntegrityError(DsecError):
    """What is stored, or what came out, contradicts its name."""

    code = "integrity"
    exit_code = 3


class CorruptObject(IntegrityError):
    """Stored bytes whose digest differs from the one they are filed under."""

    code = "corrupt"


class NondeterminismError(IntegrityError):
    """One key gave two results; the first one is kept."""

    code = "nondeterminism"


class CodeMismatch(IntegrityError):
    """A worker that can't run the sources a call was keyed with."""

    code = "code-mismatch"


class ClusterError(DsecError):
    """The cluster can't serve the plan."""

    code = "cluster"
    exit_code = 4


class Unsatisfiable(ClusterError):
    """A resource profile that no worker of the cluster can ever satisfy."""

    code = "unsatisfiable"


class ClassMismatch(ClusterError):
    """No worker is of the runtime class that the keys of this run name."""

    code = "class"


class Stalled(ClusterError):
    """No progress and no workers for too long."""

    code = "stalled"


class Interrupted(DsecError):
    """Stopped by the user; the same command goes on."""

    code = "interrupted"
    exit_code = 130
