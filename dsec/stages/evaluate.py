"""evaluate: a copy of the agent plays whole episodes, and learns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsec.core import failpoint, seeds
from dsec.errors import StageError
from dsec.runtime import agents, environments, rewards, trace
from dsec.runtime import rollout as loop
from dsec.runtime.agents import LiveAgent, Surroundings
from dsec.runtime.context import StageContext
from dsec.runtime.environments import LiveEnv
from dsec.stages.init import env_spec

__all__ = ["evaluate"]


def evaluate(
    ctx: StageContext, *, agent: Mapping[str, Any], episodes: int = 10, max_episode_steps: int | None = None
) -> dict[str, Any]:
    """Play episodes one after another; episode ``k`` begins alike at every iteration.

    A vectorized agent of a session with ``num_envs`` sees batches of one.

    Parameters
    ----------
    agent
        Tree of kind ``agent``; the copy made of it has ``session_config["mode"] == "evaluate"``.
    episodes
        How many.
    max_episode_steps
        Steps after which an episode counts as over; None leaves that to the environment.

    Returns
    -------
    dict
        ``score``: ``returns`` float64 (episodes,), ``lengths`` int64 (episodes,); ``trace``: steps of all episodes.
    """
    if episodes < 1:
        raise StageError(f"episodes is {episodes}", hint="play at least one")
    spec, reward_spec = ctx.scope.recipe.agent, ctx.scope.recipe.reward
    place = env_spec(ctx)
    if spec is None:
        raise StageError("the session has no agent", hint="write `session: {agent: package.module:Class}`")
    live = _copy(ctx, agent, batched=place.num_envs is not None)
    reward = None if reward_spec is None else rewards.load_reward(reward_spec, ctx.configured(reward_spec))
    played = []
    for number in range(episodes):
        env = environments.open_env(place.model_copy(update={"num_envs": None}), root=ctx.root)
        env.begin(seeds.reset_seed(ctx.root, f"evaluate/{number}"))
        actor = live.agent if place.num_envs is None else _OfOne(live.agent, env)
        played.append(loop.episode(actor, env, reward=reward, limit=max_episode_steps))
        env.close()
        failpoint.reached("evaluate.mid")
    score = _score(played)
    ctx.log_all(_stats(score["returns"], score["lengths"]))
    return {"score": score, "trace": _trace(played)}


def _copy(ctx: StageContext, tree: Mapping[str, Any], *, batched: bool) -> LiveAgent:
    spec = ctx.scope.recipe.agent
    assert spec is not None
    setting = agents.Setting(ctx.root, ctx.configured(spec), ctx.device, mode="evaluate", stream="evaluate/agent")
    built = Surroundings.from_tree(tree["spaces"])
    return agents.load_agent(spec, tree, setting, built.with_envs(1 if batched else None))


class _OfOne:
    """A vectorized agent before one environment."""

    def __init__(self, agent: Any, env: LiveEnv) -> None:
        self._agent = agent
        self._env = env

    def step(self, observation: Any) -> dict[str, Any]:
        """Ask for a batch of one; extras are of no use here."""
        action = self._agent.step(self._env.observation_layout.stack([observation]))["action"]
        layout = self._env.action_layout
        return {"action": action[0] if layout is None else layout.split(action, 1)[0]}

    def on_reward(self, reward: float, done: bool, info: Any) -> None:
        """Tell it as a batch of one."""
        self._agent.on_reward(np.array([reward]), np.array([done]), [info])


def _score(played: list[loop.RolloutResult]) -> dict[str, Any]:
    returns = np.array([one.stats["reward_sum"] for one in played], np.float64)
    lengths = np.array([one.stats["steps"] for one in played], np.int64)
    return {"kind": "score", "returns": returns, "lengths": lengths}


def _stats(returns: Any, lengths: Any) -> dict[str, Any]:
    return {
        "episodes": len(returns),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
    }


def _trace(played: list[loop.RolloutResult]) -> dict[str, Any]:
    traces = [{name: value for name, value in one.trace.items() if name not in ("kind", "first")} for one in played]
    for number, one in enumerate(traces):
        one["episode"] = np.full_like(one["episode"], number)
    return {"kind": "trace", "first": 0, **trace.joined(traces)}
