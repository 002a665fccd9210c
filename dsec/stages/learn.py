"""learn: the agent learns from one batch, or from a gathered list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsec.errors import StageError
from dsec.runtime import agents
from dsec.runtime.context import StageContext

__all__ = ["learn"]


def learn(ctx: StageContext, *, agent: Mapping[str, Any], batch: Any) -> dict[str, Any]:
    """Call ``agent.learn(batch)``; numbers it returns are the stage's metrics and stats.

    Returns
    -------
    dict
        ``agent`` after learning, ``metrics`` as the agent returned them.
    """
    if ctx.recipe.agent is None:
        raise StageError("learning needs an agent", hint="add session.agent")
    live = agents.open_agent(ctx.recipe.agent, root=ctx.recipe.seed, spaces=agent["spaces"], device=ctx.device)
    live.load(agent)
    if not callable(getattr(live.agent, "learn", None)):
        raise StageError(f"{ctx.recipe.agent.code.uses} has no method learn(batch)", hint="add it, or leave learn out")
    metrics = live.agent.learn(batch) or {}
    if not isinstance(metrics, Mapping):
        raise StageError(f"learn returned {type(metrics).__name__}", hint="return a dict of numbers, or None")
    ctx.stats.update({name: value for name, value in metrics.items() if _is_scalar(value)})
    return {"agent": live.tree(), "metrics": dict(metrics)}


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float | str) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)
