"""rollout: the agent acts in the environment for a range of absolute steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsec.core.leaves import AnchorRef
from dsec.errors import StageError
from dsec.runtime import agents, environments, names
from dsec.runtime import rollout as loop
from dsec.runtime.agents import LiveAgent
from dsec.runtime.context import StageContext
from dsec.runtime.environments import LiveEnv

__all__ = ["rollout"]


def rollout(
    ctx: StageContext,
    *,
    agent: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Act from the first to the last step of the call.

    Parameters
    ----------
    agent, env
        Trees of kind ``agent`` and ``env``.
    state
        Both in one, in place of them.

    Returns
    -------
    dict
        ``agent``, ``env``, ``state`` after the last step; ``batch`` and ``trace`` of the range.
    """
    if state is not None:
        agent, env = state["agent"], state["env"]
    if agent is None or env is None or ctx.call.steps is None:
        raise StageError("a rollout starts from an agent and an environment", hint="give `agent` and `env`, or `state`")
    first, last = ctx.call.steps
    saved = ctx.recover()
    live_agent, live_env = _live(ctx, agent if saved is None else saved["agent"], env, fresh=saved is None)
    if saved is not None:
        ctx.made.update({name: AnchorRef(ref.anchor_id) for name, ref in saved["made"].items()})
        ctx.sizes.update(saved["sizes"])
        ctx.resumed_from_step = saved["step"]
    made = loop.rollout(
        live_agent.agent,
        live_env,
        first,
        last,
        reward=names.reward_of(ctx.recipe.reward),
        resume=None if saved is None else saved["rollout"],
        during=_during(ctx, live_agent, live_env),
    )
    ctx.stats.update(made.stats)
    ends = _state(ctx, live_agent, live_env)
    return {"agent": ends["agent"], "env": ends["env"], "state": ends, "batch": made.batch, "trace": made.trace}


def _live(
    ctx: StageContext, agent: Mapping[str, Any], env: Mapping[str, Any], *, fresh: bool
) -> tuple[LiveAgent, LiveEnv]:
    recipe, label = ctx.recipe, ctx.call.stream
    if recipe.agent is None or recipe.env is None:
        raise StageError("a rollout needs an agent and an environment", hint="add session.agent and session.env")
    live_agent = agents.open_agent(recipe.agent, root=recipe.seed, spaces=agent["spaces"], device=ctx.device)
    live_agent.load(agent)
    live_env = environments.open_env(recipe.env, root=recipe.seed, label=label)
    if fresh:
        live_env.load(env)
        live_env.relabel(label)
        if ctx.call.restream and ctx.call.steps is not None:
            where = f"{label}/{ctx.call.steps[0]}" if label else str(ctx.call.steps[0])
            live_agent.restream(recipe.seed, f"agent/{where}")
    return live_agent, live_env


def _during(ctx: StageContext, agent: LiveAgent, env: LiveEnv) -> loop.During:
    def keep(step: int) -> None:
        ctx.made[f"state@{step}"] = ctx.anchor(_state(ctx, agent, env))

    def offer(step: int, rollout_tree: Callable[[], dict[str, Any]]) -> None:
        tree = {"step": step, "agent": agent.tree(), "rollout": rollout_tree()}
        ctx.save({**tree, "made": dict(ctx.made), "sizes": dict(ctx.sizes)})

    every = ctx.every("state")
    return loop.During(every, keep if every else None, offer, ctx.recovery_seconds, ctx.progress)


def _state(ctx: StageContext, agent: LiveAgent, env: LiveEnv) -> dict[str, Any]:
    return {"kind": "state", "step": env.step, "agent": ctx.anchor(agent.tree()), "env": ctx.anchor(env.tree())}
