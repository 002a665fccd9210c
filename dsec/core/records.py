"""Steps as a trace keeps them."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["TRACE_COLUMNS", "TRACE_ROWS", "Step"]

TRACE_ROWS = 4096
"""Rows in one chunk of a trace."""

TRACE_COLUMNS = ("step", "episode", "action", "reward", "terminated", "truncated", "hash")
"""Arrays of a trace, all with the steps on axis 0 and, where ``num_envs`` is written, environments on axis 1."""


class Step(NamedTuple):
    """One step, as `RewardFn` sees it."""

    observation: Any
    """What the agent saw before it acted."""
    action: Any
    next_observation: Any
    reward: float
    """The environment's own reward."""
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    step: int
    """Absolute, 0-based."""
    episode: int
