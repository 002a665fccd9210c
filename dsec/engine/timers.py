"""What is due when. No clock: whoever asks says what time it is."""

from __future__ import annotations

import heapq

from dsec.core.stage import PlanKey

__all__ = ["Timers"]


class Timers:
    """Calls that rest until a time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, PlanKey]] = []

    def set(self, key: PlanKey, at: float) -> None:
        """Let a call rest until ``at``."""
        heapq.heappush(self._heap, (at, key))

    def due(self, now: float) -> list[PlanKey]:
        """Calls whose time has come; each is named once."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[1])
        return found

    def wait(self, now: float, most: float) -> float:
        """Seconds until the next is due, ``most`` at most."""
        return min(most, max(0.0, self._heap[0][0] - now)) if self._heap else most

    def __bool__(self) -> bool:
        return bool(self._heap)
