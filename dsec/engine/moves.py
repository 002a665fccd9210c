"""What the Window hears and says: events, commands, and the values in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dsec.core.stage import PlanKey
from dsec.engine.borders import Capacity
from dsec.engine.policy import Policy, fifo

__all__ = [
    "Admitted",
    "Bind",
    "Command",
    "Detained",
    "Drop",
    "Due",
    "Ended",
    "Event",
    "Failure",
    "Freed",
    "GiveUp",
    "Link",
    "Offered",
    "Recall",
    "Resized",
    "Retry",
    "Settings",
    "Withheld",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is at the cluster at once, and how often a call is tried."""

    seconds: float = 0.2
    """Work per slot that is at the cluster. More hides longer round trips, less lets a policy choose later."""
    fewest: int = 3
    """Calls per slot, however long they are."""
    most: int = 128
    """Calls per slot, however short they are. A scheduler should hold fewer than 20,000 in all."""
    siblings: float = 0.025
    """Seconds up to which two calls that need the same one may follow it in one batch, so on one worker."""
    policy: Policy = fifo


@dataclass(frozen=True, slots=True)
class Link:
    """What the Window knows of a call."""

    key: PlanKey
    stage: str
    lane: str
    kind: str
    needs: frozenset[PlanKey] = frozenset()
    """Calls without a result that it takes one from."""
    priority: int = 0
    cpu: float = 1.0
    memory: int = 0
    tries: Mapping[str, int] = field(default_factory=dict)
    """How often it is tried again, by cause."""
    backoff: float = 1.0
    """Seconds before the first retry, doubled each time."""
    alone: bool = False
    """Whether it may be sent only once all it needs is known."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Event: a call is to run."""

    link: Link


@dataclass(frozen=True, slots=True)
class Resized:
    """Event: the cluster is there, or has another size."""

    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Ended:
    """Event: a call has its result, from wherever."""

    key: PlanKey
    seconds: float | None = None
    """What it took on a worker; None if it did not run there."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Event: a call that flew gave no result."""

    key: PlanKey
    cause: str
    """``worker-lost``, ``timeout``, ``oom``, ``error``; ``innocent`` if another call was to blame; ``input`` if what
    it reads has to be made anew."""
    certain: bool = True
    """Whether this call, and not one that was queued behind or before it, ended its worker."""
    needs: frozenset[PlanKey] = frozenset()
    """Calls that make its inputs anew."""


@dataclass(frozen=True, slots=True)
class Due:
    """Event: the wait before a retry is over."""

    key: PlanKey


@dataclass(frozen=True, slots=True)
class Withheld:
    """Event: a call that was admitted is computed by another run."""

    key: PlanKey


@dataclass(frozen=True, slots=True)
class Freed:
    """Event: the other run gave it up."""

    key: PlanKey


@dataclass(frozen=True, slots=True)
class Detained:
    """Event: a call that could go has to wait after all, for calls that make its inputs again."""

    key: PlanKey
    needs: frozenset[PlanKey]


@dataclass(frozen=True, slots=True)
class Drop:
    """Event: a call is not wanted any more."""

    key: PlanKey


@dataclass(frozen=True, slots=True)
class Bind:
    """Command: all that a call waits for has a result; look whether its own is there."""

    key: PlanKey


@dataclass(frozen=True, slots=True)
class Recall:
    """Command: these calls fly behind one that failed; take them back."""

    keys: tuple[PlanKey, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Command: say `Due` after ``wait`` seconds."""

    key: PlanKey
    cause: str
    attempt: int
    wait: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Command: a call failed for good."""

    key: PlanKey
    cause: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """One batch, in an order in which needs come first."""

    keys: tuple[PlanKey, ...]


Event: TypeAlias = Offered | Resized | Ended | Failure | Due | Withheld | Freed | Detained | Drop
Command: TypeAlias = Bind | Recall | Retry | GiveUp
