"""The progress of a run as numbers: what was counted, and an estimate of what is left; no clock and no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["StageTally", "Tally"]

FEWEST = 3
"""Calls that must have run before a remaining time is estimated."""


@dataclass(slots=True)
class StageTally:
    """Counts of one stage, or of all of them."""

    planned: int = 0
    """Calls, as far as the plan is expanded."""
    hits: int = 0
    ran: int = 0
    failed: int = 0
    skipped: int = 0
    retried: int = 0

    @property
    def ended(self) -> int:
        """Calls that need nothing more."""
        return self.hits + self.ran + self.failed + self.skipped

    @property
    def total(self) -> int:
        """Calls that are known of."""
        return max(self.planned, self.ended)


@dataclass(slots=True)
class Tally:
    """Counts of a run by stage, in the order in which the stages were first named."""

    stages: dict[str, StageTally] = field(default_factory=dict)
    began: float | None = None
    """Seconds of the caller's clock when the first call was submitted."""
    settled: float | None = None
    """The same when the first call had run: before, workers start and import what they need."""

    def stage(self, name: str) -> StageTally:
        """Counts of one stage, made when it is first named."""
        return self.stages.setdefault(name, StageTally())

    def total(self) -> StageTally:
        """All stages together."""
        every = self.stages.values()
        return StageTally(
            planned=sum(counts.total for counts in every),
            hits=sum(counts.hits for counts in every),
            ran=sum(counts.ran for counts in every),
            failed=sum(counts.failed for counts in every),
            skipped=sum(counts.skipped for counts in every),
            retried=sum(counts.retried for counts in every),
        )

    def remaining(self, now: float, counts: StageTally) -> float | None:
        """Seconds until `counts` is complete at the pace so far; None while nobody can tell."""
        if self.settled is None or counts.ran < FEWEST or now <= self.settled:
            return None
        return (counts.total - counts.ended) * (now - self.settled) / counts.ran

    def __iter__(self) -> Iterator[tuple[str, StageTally]]:
        return iter(self.stages.items())
