"""What a worker says of itself. Imports next to nothing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RECOVERY_SECONDS", "WorkerFacts"]

RECOVERY_SECONDS = 10.0
"""How old a recovery point gets before the next one, about."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The worker that runs a call. Only its class is in a key."""

    kind: str = "cpu"
    """``cpu`` or ``gpu``."""
    device: str = "cpu"
    """Where to compute: ``cpu`` (an emulated gpu, too) or ``cuda``."""
    name: str = "serial"
    """Its name, for people."""
    class_id: str | None = None
    """Its runtime class; None where nobody asked, and then only calls without a class run on it."""
    run_id: str = ""
    """The run it works for, for the entry's `produced_by`."""
    recovery_seconds: float = RECOVERY_SECONDS
    """Seconds between recovery points."""
