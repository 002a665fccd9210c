"""Whose fault it was, and what is said about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsec.core.stage import PlanKey, StageCall
from dsec.engine import moves
from dsec.engine.borders import Erred, Killed
from dsec.errors import (
    AbsentError,
    ClassMismatch,
    CorruptObject,
    DsecError,
    IntegrityError,
    OutOfMemory,
    StageError,
    StageTimeout,
    StoreFull,
    WorkerLost,
)

if TYPE_CHECKING:
    from dsec.plan.nodes import CallFacts, Retry

__all__ = ["Verdict", "final", "link", "tries", "verdict"]

MOST_SOURCES = 16
"""A call with a longer gather is sent once all its inputs are known, since the list travels as an anchor."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to make of an error."""

    cause: str
    """As `moves.Failure.cause`; ``fatal`` stops the run, ``final`` fails the call at once."""
    error: DsecError
    certain: bool = True


def link(call: StageCall, facts: CallFacts, needs: frozenset[PlanKey], *, alone: bool = False) -> moves.Link:
    """A call as the Window sees it; ``alone`` if it can't take results as they are made."""
    wide = any(len(source.sources) > MOST_SOURCES for source in call.inputs.values())
    return moves.Link(
        call.plan_key,
        call.stage,
        facts.lane,
        facts.placement.worker,
        needs,
        facts.priority,
        facts.placement.cpu,
        facts.placement.memory,
        tries(facts.retry),
        facts.retry.backoff,
        alone or wide or facts.cache == "refresh",
    )


def tries(retry: Retry) -> Mapping[str, int]:
    """How often a call is tried again, by cause."""
    return dict.fromkeys(sorted(retry.when), retry.max)


def verdict(erred: Erred, call: StageCall, flying: frozenset[PlanKey], *, overdue: bool) -> Verdict:
    """Judge an error of a call whose inputs were all there.

    Parameters
    ----------
    erred
        What was heard.
    call
        The call.
    flying
        Those of the calls its dead worker was heard to run that have not ended.
    overdue
        Whether the driver ended the worker since this call took too long.
    """
    if erred.killed is not None and not erred.cancelled:
        return _death(erred.killed, call, flying | {call.plan_key} if erred.killed.sole else flying, overdue)
    if erred.cancelled:
        return Verdict("innocent", WorkerLost("the cluster forgot it", instance=call.instance))
    return _raised(erred.error, call)


def _death(killed: Killed, call: StageCall, flying: frozenset[PlanKey], overdue: bool) -> Verdict:
    if killed.ours and overdue:
        seconds = f"{call.timeout:g} s" if call.timeout else "its time"
        return Verdict("timeout", StageTimeout(f"it did not end within {seconds}", instance=call.instance))
    if killed.ours:
        return Verdict("innocent", WorkerLost("its worker was restarted", instance=call.instance))
    if flying and call.plan_key not in flying:
        return Verdict("innocent", WorkerLost("another call ended its worker", instance=call.instance))
    certain = call.plan_key in flying
    if killed.rss:
        # Among calls that were queued together it is not known whose memory it was: alone, the next death tells.
        return Verdict("oom" if certain else "worker-lost", _out_of_memory(killed, call), certain)
    return Verdict("worker-lost", WorkerLost("its worker died", instance=call.instance), certain)


def _out_of_memory(killed: Killed, call: StageCall) -> OutOfMemory:
    held, limit = f"{killed.rss / 2**30:.3g}GiB", f"{killed.limit / 2**30:.3g}GiB"
    return OutOfMemory(
        f"stage {call.stage} held {held}, and its worker's limit is {limit}",
        instance=call.instance,
        hint="ask for more with `resources: {memory: ...}`, use fewer workers, or let it hold less",
    )


def _raised(error: BaseException, call: StageCall) -> Verdict:
    if not isinstance(error, DsecError):
        wrapped = StageError(f"{type(error).__name__}: {error}", instance=call.instance)
        return Verdict("error", wrapped)
    if isinstance(error, StoreFull):
        error = StoreFull(f"{error.message}, while {call.instance} was stored", where=error.where, hint=error.hint)
    if isinstance(error, StoreFull | ClassMismatch):
        return Verdict("fatal", error)
    if isinstance(error, CorruptObject | AbsentError):
        return Verdict("input", error)
    if isinstance(error, IntegrityError):
        return Verdict("final", error)
    if isinstance(error, OutOfMemory | StageTimeout):
        return Verdict(error.code, error)
    return Verdict("error", error)


def final(error: DsecError, cause: str, attempts: int) -> DsecError:
    """What is said of a call that was tried as often as it may be."""
    if attempts < 2:
        return error
    if cause == "worker-lost" and type(error) is WorkerLost:
        return WorkerLost(
            f"its worker died {attempts} times while it ran",
            instance=error.instance,
            hint="look for a crash in native code (a segmentation fault ends a worker), or for the kernel's OOM killer",
        )
    error.hint = "; ".join(part for part in (error.hint, f"tried {attempts} times") if part)
    return error
