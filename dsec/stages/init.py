"""The session's beginning: an agent built from its spec, an environment freshly reset."""

from __future__ import annotations

from typing import Any

from dsec.core import failpoint
from dsec.core.specs import EnvSpec
from dsec.errors import StageError
from dsec.runtime import agents, environments
from dsec.runtime.agents import LiveAgent, Surroundings
from dsec.runtime.context import StageContext
from dsec.runtime.environments import LiveEnv

__all__ = ["begin_agent", "begin_env", "env_spec", "init_agent", "init_env"]


def init_agent(ctx: StageContext) -> dict[str, Any]:
    """A new agent, made for the spaces of the session's environment."""
    failpoint.reached("init.body")
    return {"agent": begin_agent(ctx).tree()}


def init_env(ctx: StageContext) -> dict[str, Any]:
    """An environment, reset for its first episode; the call's stream is the label of its stage's axes."""
    failpoint.reached("init.body")
    env = begin_env(ctx)
    tree = env.tree()
    env.close()
    ctx.log(saving=tree["method"], coverage=tree["coverage"])
    return {"env": tree}


def begin_agent(ctx: StageContext) -> LiveAgent:
    """The session's agent, new."""
    spec = ctx.scope.recipe.agent
    if spec is None:
        raise StageError("the session has no agent", hint="write `session: {agent: package.module:Class}`")
    setting = agents.Setting(ctx.root, ctx.configured(spec), ctx.device)
    return agents.build_agent(spec, _surroundings(ctx), setting)


def begin_env(ctx: StageContext) -> LiveEnv:
    """The session's environment, reset for its first episode."""
    env = environments.open_env(env_spec(ctx), root=ctx.root, label=ctx.scope.call.stream)
    env.start()
    return env


def env_spec(ctx: StageContext) -> EnvSpec:
    """The spec of the session's environment, declared files as paths."""
    spec = ctx.scope.recipe.env
    if spec is None:
        raise StageError("the session has no environment", hint="write `session: {env: gymnasium/CartPole-v1}`")
    return spec.model_copy(update={"config": ctx.configured(spec)})


def _surroundings(ctx: StageContext) -> Surroundings:
    if ctx.scope.recipe.env is None:
        return Surroundings()
    return Surroundings.of_spec(env_spec(ctx))
