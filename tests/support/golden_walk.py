"""An environment of whole numbers alone; digests in tests/golden/v1 rest on it, so it is never edited."""

from __future__ import annotations

from typing import Any


class Walk:
    """Walk to the right end of six places on ice; an episode is cut off after twelve steps."""

    def deterministic_reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        self.noise, self.place, self.steps = seed, 0, 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.noise = (self.noise * 1103515245 + 12345) % 2**31
        if self.noise >> 16 & 3:
            self.place = max(0, self.place + 2 * action - 1)
        self.steps += 1
        reached = self.place == 6
        return self._shown(), 1.0 if reached else -0.25, reached, self.steps == 12 and not reached, {}

    def state_hash(self) -> bytes:
        return b"%08x%04x%04x" % (self.noise, self.place, self.steps)

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise, "place": self.place, "steps": self.steps}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        self.noise, self.place, self.steps = tree["noise"], tree["place"], tree["steps"]

    def _shown(self) -> dict[str, Any]:
        return {"place": self.place, "sign": "ö" * self.place, "pair": (self.steps, bool(self.noise & 1))}
