"""evaluate: a copy of the agent plays whole episodes, and learns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsec.core import seeds
from dsec.errors import StageError
from dsec.runtime import agents, environments, names, trace
from dsec.runtime import rollout as loop
from dsec.runtime.context import StageContext

__all__ = ["evaluate"]


def evaluate(
    ctx: StageContext, *, agent: Mapping[str, Any], episodes: int = 10, max_episode_steps: int | None = None
) -> dict[str, Any]:
    """Play ``episodes`` episodes with ``mode: evaluate``; episode ``k`` has the same seed at every iteration.

    Parameters
    ----------
    max_episode_steps
        Steps after which an episode counts as over, None for the environment's own limit.

    Returns
    -------
    dict
        ``score``: ``returns`` float64 (episodes,), ``lengths`` int64 (episodes,); ``trace``: that of each episode, one
        after another.
    """
    recipe = ctx.recipe
    if recipe.agent is None or recipe.env is None:
        raise StageError("evaluation needs an agent and an environment", hint="add session.agent and session.env")
    single = recipe.env.model_copy(update={"num_envs": None})
    live = agents.open_agent(
        recipe.agent,
        root=recipe.seed,
        spaces=agent["spaces"],
        device=ctx.device,
        mode="evaluate",
        stream="evaluate/agent",
    )
    live.load(agent)
    live.restream(recipe.seed, "evaluate/agent")
    reward = names.reward_of(recipe.reward)
    played = []
    for number in range(episodes):
        env = environments.open_env(single, root=recipe.seed)
        env.begin(seeds.reset_seed(recipe.seed, f"evaluate/{number}"))
        played.append(loop.episode(live.agent, env, reward=reward, limit=max_episode_steps))
        env.close()
    returns = np.array([one.stats["reward_sum"] for one in played], np.float64)
    lengths = np.array([one.stats["steps"] for one in played], np.int64)
    ctx.stats.update(_stats(returns, lengths))
    return {"score": {"kind": "score", "returns": returns, "lengths": lengths}, "trace": _trace(played)}


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
