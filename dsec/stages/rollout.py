"""rollout: the agent acts in the environment for a range of absolute steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dsec.core import failpoint
from dsec.core.leaves import AnchorRef
from dsec.core.stage import AnchorId
from dsec.errors import StageError
from dsec.runtime import agents, environments, outputs, rewards
from dsec.runtime import rollout as loop
from dsec.runtime.agents import LiveAgent
from dsec.runtime.context import StageContext
from dsec.runtime.environments import LiveEnv
from dsec.stages.init import begin_agent, begin_env, env_spec

__all__ = ["rollout"]

_KEPT = ("agent", "env", "state")


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
        Trees of kind ``agent`` and ``env``; the session's beginning where there is none.
    state
        Both in one, in place of them.

    Returns
    -------
    dict
        ``agent``, ``env`` and ``state`` after the last step; ``batch`` and ``trace`` of the range.
    """
    if ctx.scope.call.steps is None:
        raise StageError("a rollout needs a range of steps", hint="write `steps: 1000`")
    agent, env = _begun(agent, env, state)
    first, last = ctx.scope.call.steps
    ctx.progress(first)
    saved = ctx.recover()
    live = _agent(ctx, agent if saved is None else saved["agent"], resumed=saved is not None)
    place = _env(ctx, env) if saved is None else environments.open_env(env_spec(ctx), root=ctx.root)
    reward = ctx.scope.recipe.reward
    made = loop.rollout(
        live.agent,
        place,
        first,
        last,
        reward=None if reward is None else rewards.load_reward(reward, ctx.configured(reward)),
        resume=None if saved is None else saved["rollout"],
        during=_during(ctx, live, place),
    )
    ctx.log_all(made.stats)
    ends = _kept(ctx, live, place)
    place.close()
    return {**{name: AnchorRef(anchor) for name, anchor in ends.items()}, "batch": made.batch, "trace": made.trace}


def _begun(agent: Any, env: Any, state: Any) -> tuple[Any, Any]:
    if state is None:
        return agent, env
    if agent is not None or env is not None:
        raise StageError("`state` and `agent` or `env` are given", hint="give `state`, or the other two")
    if not isinstance(state, Mapping) or state.get("kind") != "state":
        raise StageError("the input `state` is no state of a rollout", hint="give `<rollout stage>.state`")
    return state["agent"], state["env"]


def _agent(ctx: StageContext, tree: Mapping[str, Any] | None, *, resumed: bool) -> LiveAgent:
    spec, call = ctx.scope.recipe.agent, ctx.scope.call
    if spec is None or tree is None:
        return begin_agent(ctx)
    stream = None
    if call.restream and not resumed:
        first = call.steps[0] if call.steps else 0
        stream = f"agent/{call.stream}/{first}" if call.stream else f"agent/{first}"
    setting = agents.Setting(ctx.root, ctx.configured(spec), ctx.device, stream=stream)
    return agents.load_agent(spec, tree, setting)


def _env(ctx: StageContext, tree: Mapping[str, Any] | None) -> LiveEnv:
    if tree is None:
        return begin_env(ctx)
    env = environments.open_env(env_spec(ctx), root=ctx.root, label=ctx.scope.call.stream)
    env.load(tree)
    env.relabel(ctx.scope.call.stream)
    return env


def _during(ctx: StageContext, live: LiveAgent, env: LiveEnv) -> loop.During:
    wanted = {name: every for name, every in ctx.scope.recipe.outputs if every is not None}
    if unfit := sorted(wanted.keys() - set(_KEPT)):
        raise StageError(f"`every` of {unfit[0]!r}: only {', '.join(_KEPT)} stand after a step")
    last = ctx.scope.call.steps[1] if ctx.scope.call.steps else 0

    def keep(step: int) -> None:
        due = [name for name, every in sorted(wanted.items()) if step % every == 0 or step == last]
        if due:
            kept = _kept(ctx, live, env)
            ctx.made.update({f"{name}@{step}": kept[name] for name in due})

    def offer(step: int, columns: Callable[[], dict[str, Any]]) -> None:
        ctx.progress(step)
        ctx.keep({"agent": live.tree(), "rollout": columns()})

    def progress(step: int) -> None:
        ctx.progress(step)
        failpoint.reached("rollout.mid")

    every = math.gcd(*wanted.values()) if wanted else None
    return loop.During(every, keep if every else None, offer, ctx.scope.facts.recovery_seconds, progress)


def _kept(ctx: StageContext, live: LiveAgent, env: LiveEnv) -> dict[str, AnchorId]:
    """Ids of agent and environment as they stand, and of both."""
    agent, place = outputs.put(ctx, "agent", live.tree()), outputs.put(ctx, "env", env.tree())
    state = {"kind": "state", "step": env.step, "agent": AnchorRef(agent), "env": AnchorRef(place)}
    return {"agent": agent, "env": place, "state": ctx.anchor({**state, "label": env.label})}
