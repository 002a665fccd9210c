"""What a run tells whoever watches it: plain facts, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dsec.core.stage import StageResult
from dsec.errors import DsecError

__all__ = [
    "ClusterUp",
    "Elsewhere",
    "Event",
    "Failed",
    "Finished",
    "HitsFound",
    "Recovering",
    "Remade",
    "Report",
    "Resolved",
    "Retried",
    "Skipped",
    "Submitted",
    "ignore",
]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Calls were taken from the plan and looked up."""

    calls: Mapping[str, int]
    """New calls by stage."""


@dataclass(frozen=True, slots=True)
class HitsFound:
    """Results that were there already."""

    hits: Mapping[str, int]
    """By stage."""
    cutoffs: int
    """How many of them were found by the inputs that an upstream call made anew, not by the plan."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Calls went to the cluster."""

    calls: Mapping[str, int]
    """By stage."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A call gave its result on a worker."""

    instance: str
    stage: str
    result: StageResult
    seconds: float
    """On the worker."""
    ran: bool
    """False if the worker found the result in the store; that counts as a hit."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call failed for good."""

    instance: str
    stage: str
    error: DsecError


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call can't run, since a call it needs failed."""

    instance: str
    stage: str
    because: str
    """Instance that failed."""


@dataclass(frozen=True, slots=True)
class Retried:
    """A call failed and will be tried again."""

    instance: str
    stage: str
    cause: str
    """``worker-lost``, ``timeout``, ``oom`` or ``error``."""
    attempt: int
    """1 for the first retry."""
    wait: float
    """Seconds until then."""
    message: str


@dataclass(frozen=True, slots=True)
class Remade:
    """A result was there, but what it names is absent or damaged, so its call runs again."""

    instance: str
    stage: str
    output: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another run computes this call just now; its result is waited for."""

    instance: str
    stage: str


@dataclass(frozen=True, slots=True)
class ClusterUp:
    """A cluster is there."""

    dashboard: str
    """Address of its pages; empty if it has none."""
    workers: Mapping[str, int]
    """Slots by kind."""
    emulated: bool
    """Whether its gpu slots are emulated on the CPU."""


@dataclass(frozen=True, slots=True)
class Recovering:
    """All workers are gone; the cluster is being made anew."""

    lost: int
    """Calls that were there and will be sent again."""


Event: TypeAlias = (
    Resolved
    | HitsFound
    | Submitted
    | Finished
    | Failed
    | Skipped
    | Retried
    | Remade
    | Elsewhere
    | ClusterUp
    | Recovering
)
Report: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The report of a run that nobody watches."""
