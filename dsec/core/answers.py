"""What DSec tells people: dry runs, summaries, explanations. Plain values, made by `dsec.api`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsec.errors import DsecError

__all__ = ["Preview", "PreviewRow", "RunRow", "RunSummary", "Table", "Why", "Workers"]


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """One stage of a dry run."""

    stage: str
    instances: int
    cached: int
    to_run: int
    reason: str
    """Why the first of them would run; empty if none would."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would do."""

    plan: str
    rows: tuple[PreviewRow, ...]
    calls: int
    hits: int
    to_run: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workers:
    """Where calls should run: counts of a local cluster, or the address of one that runs."""

    cpu: int | None = None
    gpu: int | None = None
    scheduler: str | None = None
    memory: int | None = None
    """Bytes that each worker of a local cluster may hold; None shares the host's evenly."""


@dataclass(frozen=True, slots=True)
class Table:
    """An output called ``table``."""

    instance: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended."""

    run_id: str
    plan: str
    status: str
    """``done``, ``failed``, or ``stopped`` where the same command goes on."""
    calls: int
    hits: int
    ran: int
    failed: int
    skipped: int
    seconds: float
    cluster: bool
    tables: tuple[Table, ...]
    errors: tuple[DsecError, ...]
    store: Path


@dataclass(frozen=True, slots=True)
class Why:
    """Why an instance is cached or would run."""

    instance: str
    status: str
    reasons: tuple[str, ...]
    plan_key: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list."""

    run_id: str
    plan: str
    status: str
    created: str
    calls: int
    hits: int
    ran: int
    failed: int
    seconds: float | None
    path: str = ""
    """File of the plan when it was started."""
    params: Mapping[str, object] = field(default_factory=dict)
    """Overrides it was started with."""
