"""learn: the agent learns from a batch, or from a gathered list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsec.errors import DsecError, StageError
from dsec.runtime import agents, failures
from dsec.runtime.context import StageContext, plain_scalar

__all__ = ["learn"]


def learn(ctx: StageContext, *, agent: Mapping[str, Any], batch: Any) -> dict[str, Any]:
    """Call ``agent.learn(batch)``.

    Parameters
    ----------
    agent
        Tree of kind ``agent``.
    batch
        What a rollout gave, or a list of such from a gather, in its order.

    Returns
    -------
    dict
        ``agent`` after learning; ``metrics``, as `learn` returned them: their scalars are the stage's stats.
    """
    spec = ctx.scope.recipe.agent
    if spec is None:
        raise StageError("the session has no agent", hint="write `session: {agent: package.module:Class}`")
    live = agents.load_agent(spec, agent, agents.Setting(ctx.root, ctx.configured(spec), ctx.device))
    if not callable(getattr(live.agent, "learn", None)):
        raise StageError(f"{spec.code.uses} has no learn(batch)", hint="give it one, or leave the stage out")
    metrics = _learnt(live.agent, batch)
    return {"agent": live.tree(), "metrics": metrics}


def _learnt(agent: Any, batch: Any) -> dict[str, Any]:
    try:
        metrics = agent.learn(batch)
    except DsecError:
        raise
    except (Exception, SystemExit) as error:
        raise failures.failed("agent.learn", error) from error
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise StageError(f"agent.learn returned {type(metrics).__name__}", hint="return a dict of metrics, or nothing")
    return {name: plain_scalar(value) for name, value in metrics.items()}
