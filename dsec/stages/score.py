"""score: rewards of a batch computed after the fact, by the session's reward function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsec.core.records import Step
from dsec.errors import StageError
from dsec.runtime import names
from dsec.runtime.context import StageContext

__all__ = ["score"]


def score(ctx: StageContext, *, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The same batch with ``rewards`` from the reward function; the environment's own are in ``step.reward``.

    Only batches of one environment are scored; ``step.info`` is empty, since a batch does not keep it.
    """
    reward = names.reward_of(ctx.recipe.reward)
    if reward is None:
        raise StageError("scoring needs a reward function", hint="add session.reward")
    if np.ndim(batch["rewards"]) != 1:
        raise StageError("a batch of several environments can't be scored yet", hint="leave num_envs out")
    found = [_total(reward(step)) for step in _steps(batch)]
    rewards = np.array(found, np.float64)
    if not np.isfinite(rewards).all():
        where = int(np.flatnonzero(~np.isfinite(rewards))[0]) + int(batch["first"])
        raise StageError(f"the reward is {rewards[where - int(batch['first'])]}", step=where)
    ctx.stats.update({"steps": len(found), "reward_sum": float(rewards.sum())})
    return {"batch": {**batch, "rewards": rewards}}


def _steps(batch: Mapping[str, Any]) -> list[Step]:
    final = dict(
        zip(batch["final_observations"]["row"].tolist(), batch["final_observations"]["observation"], strict=True)
    )
    episode, steps = 0, []
    count = len(batch["rewards"])
    for row in range(count):
        ended = bool(batch["terminated"][row] or batch["truncated"][row])
        following = batch["observations"][row + 1] if row + 1 < count else batch["last_observation"]
        shown = final[row] if ended else following
        flags = bool(batch["terminated"][row]), bool(batch["truncated"][row])
        own = float(batch["rewards"][row])
        at = int(batch["first"]) + row
        steps.append(Step(batch["observations"][row], batch["actions"][row], shown, own, *flags, {}, at, episode))
        episode += ended
    return steps


def _total(value: Any) -> float:
    return float(sum(value.values())) if isinstance(value, Mapping) else float(value)
