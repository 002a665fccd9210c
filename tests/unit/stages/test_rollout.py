from __future__ import annotations

import pytest

from dsec.errors import StageError
from tests.unit.runtime.serial import LAB, Serial, agent, env, out, reward


def test_a_rollout_without_inputs_starts_at_the_sessions_beginning(run: Serial) -> None:
    agent_call, env_call = run.made("init.agent", "init_agent"), run.made("init.env", "init_env", stream="")
    given = {"agent": out(agent_call, "agent"), "env": out(env_call, "env")}
    told, untold = run.made("a", "rollout", given, steps=(0, 40)), run.made("b", "rollout", steps=(0, 40))
    assert run.result(told).same(run.result(untold))
    assert run.result(told).action_key != run.result(untold).action_key


def test_a_state_is_two_references_and_no_copy(run: Serial) -> None:
    call = run.made("collect", "rollout", steps=(0, 40))
    outputs = run.result(call).outputs
    assert run.result(call).sizes["state"] < 1000
    assert run.tree(call, "state")["step"] == 41
    rest = run.made("rest", "rollout", {"state": out(call, "state")}, steps=(41, 50))
    apart = {"agent": out(call, "agent"), "env": out(call, "env")}
    assert run.result(run.made("rest", "rollout", apart, steps=(41, 50))).outputs == run.result(rest).outputs
    assert set(outputs) == {"agent", "batch", "env", "state", "trace"}
    assert run.result(call).trace == outputs["trace"]


def test_a_range_that_begins_elsewhere_is_an_error(run: Serial) -> None:
    first = run.made("collect", "rollout", steps=(0, 9))
    with pytest.raises(StageError, match="the range begins at step 20, and the environment stands at step 10"):
        run.made("rest", "rollout", {"state": out(first, "state")}, steps=(20, 30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": None}, "needs a range of steps"),
        ({"agent": None}, "the session has no agent"),
        ({"env": None}, "the session has no environment"),
        ({"outputs": (("batch", 10),)}, "`every` of 'batch'"),
        ({"agent": agent("Owner"), "env": env(num_envs=2)}, "takes one observation at a time"),
        ({"env": env("tests.unit.runtime.lab:Nowhere")}, "has no 'Nowhere'"),
    ],
)
def test_what_a_rollout_cant_do_is_said(run: Serial, options: dict[str, object], message: str) -> None:
    steps = options.pop("steps", (0, 9))
    with pytest.raises(StageError, match=message):
        run.made("collect", "rollout", steps=steps, **options)


def test_both_a_state_and_an_agent_are_too_much(run: Serial) -> None:
    first = run.made("collect", "rollout", steps=(0, 9))
    given = {"state": out(first, "state"), "agent": out(first, "agent")}
    with pytest.raises(StageError, match="`state` and `agent` or `env` are given"):
        run.made("rest", "rollout", given, steps=(10, 19))
    with pytest.raises(StageError, match="the input `state` is no state of a rollout"):
        run.made("rest", "rollout", {"state": out(first, "env")}, steps=(10, 19))


def test_a_vectorized_agent_acts_in_all_environments_of_a_batch(run: Serial) -> None:
    run.session |= {"agent": agent("Batcher"), "env": env(num_envs=3)}
    call = run.made("collect", "rollout", steps=(0, 29))
    batch = run.tree(call, "batch")
    assert batch["observations"].shape == (30, 3, 4)
    assert batch["actions"].shape == (30, 3)


def test_an_environment_without_spaces_works_too(run: Serial) -> None:
    run.session |= {"agent": agent("Owner"), "env": env(f"{LAB}:Counting", length=4)}
    call = run.made("collect", "rollout", steps=(0, 29))
    assert run.result(call).stats["episodes"] == 7


def test_the_sessions_reward_function_replaces_the_environments(run: Serial) -> None:
    call = run.made("collect", "rollout", steps=(0, 29), reward=reward("pole_reward", scale=2.0))
    batch = run.tree(call, "batch")
    assert set(batch["reward_components"]) == {"up", "centre"}
    assert (batch["reward_components"]["up"] == 2.0).all()
    made = run.made("collect", "rollout", steps=(0, 29), reward=reward("Offset", by=0.5))
    assert run.result(made).stats["reward_sum"] == 45.0
