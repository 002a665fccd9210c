from __future__ import annotations

import numpy as np
import pytest

from dsec.errors import StageError
from tests.unit.runtime.serial import Serial, agent, env, out, reward


@pytest.mark.parametrize("num_envs", [None, 3])
def test_rewards_computed_later_are_those_computed_at_once(run: Serial, num_envs: int | None) -> None:
    name = "Owner" if num_envs is None else "Batcher"
    run.session |= {"agent": agent(name), "env": env(num_envs=num_envs)}
    spec = reward("pole_reward", scale=3.0)
    at_once = run.tree(run.made("collect", "rollout", steps=(0, 79), reward=spec), "batch")
    plain = run.made("collect", "rollout", steps=(0, 79))
    call = run.made("score", "score", {"batch": out(plain, "batch")}, reward=spec)
    later = run.tree(call, "batch")
    assert np.array_equal(later["rewards"], at_once["rewards"])
    for part in ("up", "centre"):
        assert np.array_equal(later["reward_components"][part], at_once["reward_components"][part])
    assert np.array_equal(later["observations"], at_once["observations"])
    assert run.result(call).stats["steps"] == 80


def test_scoring_needs_a_reward_function(run: Serial) -> None:
    plain = run.made("collect", "rollout", steps=(0, 9))
    with pytest.raises(StageError, match="the session has no reward function"):
        run.made("score", "score", {"batch": out(plain, "batch")})


def test_a_reward_that_is_no_number_names_its_step(run: Serial) -> None:
    first = run.made("collect", "rollout", steps=(0, 9))
    plain = run.made("collect", "rollout", {"state": out(first, "state")}, steps=(10, 19))
    with pytest.raises(StageError, match=r"^score at step 10: the reward is nan"):
        run.made("score", "score", {"batch": out(plain, "batch")}, reward=reward("Offset", by=float("nan")))
