"""The session's beginning: an agent built from its spec, an environment freshly reset."""

from __future__ import annotations

from typing import Any

from dsec.core import failpoint
from dsec.errors import StageError
from dsec.runtime import agents, environments
from dsec.runtime.context import StageContext

__all__ = ["init_agent", "init_env"]


def init_agent(ctx: StageContext) -> dict[str, Any]:
    """A fresh agent, made for the spaces of the session's environment."""
    failpoint.reached("init.body")
    if ctx.recipe.agent is None:
        raise StageError("the session has no agent", hint="add session.agent")
    spaces: dict[str, Any] = {"observation_space": None, "action_space": None, "num_envs": None}
    if ctx.recipe.env is not None:
        environment = environments.build(ctx.recipe.env)
        spaces = agents.spaces_of(environment, ctx.recipe.env.num_envs)
        environments.close(environment)
    live = agents.open_agent(ctx.recipe.agent, root=ctx.recipe.seed, spaces=spaces, device=ctx.device)
    return {"agent": live.tree()}


def init_env(ctx: StageContext) -> dict[str, Any]:
    """A fresh environment, reset for its first episode; the call's stream is the label of its stage's axes."""
    failpoint.reached("init.body")
    if ctx.recipe.env is None:
        raise StageError("the session has no environment", hint="add session.env")
    live = environments.open_env(ctx.recipe.env, root=ctx.recipe.seed, label=ctx.call.stream)
    live.start()
    return {"env": live.tree()}
