"""In which order calls that could run are admitted. Pure: the same facts give the same order.

A policy changes when results are made, never what they are; a property test shuffles them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TypeAlias

from dsec.errors import UsageError

__all__ = ["POLICIES", "Policy", "Rank", "fifo", "policy"]

Rank: TypeAlias = tuple[int, int]
"""Smaller goes first."""
Policy: TypeAlias = Callable[[int, int], Rank]
"""(priority, place in plan order) -> rank."""


def fifo(priority: int, number: int) -> Rank:
    """Higher priority first, then plan order."""
    return -priority, number


POLICIES: Mapping[str, Policy] = {"fifo": fifo}
"""By the name that ``scheduler.scheduling_policy`` takes."""


def policy(name: str) -> Policy:
    """The policy of a name.

    Raises
    ------
    UsageError
        If there is none.
    """
    if name in POLICIES:
        return POLICIES[name]
    near = difflib.get_close_matches(name, POLICIES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(sorted(POLICIES))}"
    raise UsageError(f"no scheduling policy {name!r}", hint=hint, where="scheduler.scheduling_policy")
