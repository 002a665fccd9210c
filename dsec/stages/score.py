"""score: rewards of a batch computed after the fact, by the session's reward function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dsec.core.records import Step
from dsec.errors import StageError
from dsec.runtime import failures, rewards
from dsec.runtime.context import StageContext

__all__ = ["score"]


def score(ctx: StageContext, *, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The same batch with rewards of the session's reward function.

    A batch does not keep all that was there: ``step.info`` is empty, and ``step.episode`` counts from 0 in the batch.

    Parameters
    ----------
    batch
        What a rollout gave; ``step.reward`` is what it has as reward.

    Returns
    -------
    dict
        ``batch`` with ``rewards``, and ``reward_components`` where the function gives a dict.
    """
    spec = ctx.scope.recipe.reward
    if spec is None:
        raise StageError("the session has no reward function", hint="write `session: {reward: package.module:name}`")
    reward = rewards.load_reward(spec, ctx.configured(spec))
    assert reward is not None
    values: list[float] = []
    parts: list[dict[str, float]] = []
    for step in _steps(batch):
        ctx.progress(step.step)
        try:
            answer = reward(step)
            part = {name: float(value) for name, value in answer.items()} if isinstance(answer, Mapping) else {}
            values.append(math.fsum(part.values()) if isinstance(answer, Mapping) else float(answer))
        except Exception as error:
            raise failures.failed("the reward function", error, step=step.step) from error
        _check(step, values[-1], part, parts)
        parts.append(part)
    shape = np.shape(batch["rewards"])
    scored = {**batch, "rewards": np.array(values, np.float64).reshape(shape)}
    scored.pop("reward_components", None)
    if parts and parts[0]:
        scored["reward_components"] = {n: np.array([p[n] for p in parts]).reshape(shape) for n in sorted(parts[0])}
    ctx.log(steps=shape[0], reward_sum=math.fsum(values))
    return {"batch": scored}


def _check(step: Step, value: float, part: Mapping[str, float], parts: list[dict[str, float]]) -> None:
    if not math.isfinite(value):
        raise StageError(f"the reward is {value}", step=step.step)
    if parts and part.keys() != parts[0].keys():
        raise StageError(
            f"the reward has the components {', '.join(sorted(part)) or 'none'}, and at first "
            f"{', '.join(sorted(parts[0])) or 'none'}",
            step=step.step,
        )


def _steps(batch: Mapping[str, Any]) -> Iterator[Step]:
    """Steps in order of time, and of the environment within one."""
    batched = np.ndim(batch["rewards"]) == 2
    count = len(batch["rewards"])
    size = batch["rewards"].shape[1] if batched else 1
    final = _final(batch["final_observations"], batched)
    episode = [0] * size
    for row in range(count):
        for env in range(size):
            at = (row, env) if batched else (row,)
            terminated, truncated = (bool(batch[name][at]) for name in ("terminated", "truncated"))
            if terminated or truncated:
                after = final[row, env]
            elif row + 1 < count:
                after = _at(batch["observations"], (row + 1, *at[1:]))
            else:
                after = _at(batch["last_observation"], at[1:])
            before, action = _at(batch["observations"], at), _at(batch["actions"], at)
            own, step = float(batch["rewards"][at]), int(batch["first"]) + row
            yield Step(before, action, after, own, terminated, truncated, {}, step, episode[env])
            episode[env] += terminated or truncated


def _final(ended: Mapping[str, Any], batched: bool) -> dict[tuple[int, int], Any]:
    rows = ended["row"].tolist()
    envs = ended["env"].tolist() if batched else [0] * len(rows)
    keys = zip(rows, envs, strict=True)
    return {key: _at(ended["observation"], (number,)) for number, key in enumerate(keys)}


def _at(values: Any, index: tuple[int, ...]) -> Any:
    """One of values that stand side by side, as the agent saw it."""
    if not index:
        return values
    if isinstance(values, Mapping):
        return {name: _at(item, index) for name, item in values.items()}
    if isinstance(values, tuple):
        return tuple(_at(item, index) for item in values)
    for number in index:
        values = values[number]
    return values.item() if isinstance(values, np.generic) else values
