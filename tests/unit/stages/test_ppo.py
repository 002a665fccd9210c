"""The example agent, on the runtime alone."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.core.stage import StageCall
from tests.unit.runtime.serial import Serial, agent, env, out

TUNED = {"lr": 1e-3, "anneal_updates": 30, "epochs": 10}


def trained(run: Serial, iterations: int, steps: int) -> tuple[StageCall, StageCall]:
    state, place = run.made("init.agent", "init_agent"), run.made("init.env", "init_env", stream="")
    for k in range(iterations):
        given = {"agent": out(state, "agent"), "env": out(place, "env")}
        place = run.made("collect", "rollout", given, steps=(k * steps, (k + 1) * steps - 1))
        given = {"agent": out(place, "agent"), "batch": out(place, "batch")}
        state = run.made(f"learn#{k}", "learn", given)
    return state, place


def ppo(run: Serial, seed: int, num_envs: int | None = None, **config: Any) -> Serial:
    run.session = {"agent": agent("examples.ppo:PPO", **config), "env": env(num_envs=num_envs), "seed": seed}
    return run


@pytest.mark.parametrize("num_envs", [None, 2])
def test_it_learns_alone_and_in_a_batch_and_touches_no_global_generator(run: Serial, num_envs: int | None) -> None:
    state, place = trained(ppo(run, 0, num_envs, epochs=1), iterations=2, steps=64)
    assert "touched" not in run.result(state).cost | run.result(place).cost
    assert set(run.result(state).stats) == {"approx_kl", "clip_fraction", "entropy", "policy_loss", "value_loss"}
    score = run.made("eval", "evaluate", {"agent": out(state, "agent")}, config={"episodes": 2})
    assert run.result(score).stats["episodes"] == 2
    steps = run.tree(place, "batch")["rewards"].shape
    assert steps == ((64,) if num_envs is None else (64, 2))


def test_it_goes_on_from_an_anchor_as_if_it_had_never_been_put_away(run: Serial) -> None:
    ppo(run, 0, epochs=1)
    state, place = trained(run, iterations=1, steps=64)
    given = {"agent": out(state, "agent"), "env": out(place, "env")}
    whole = run.made("whole", "rollout", given, steps=(64, 163))
    first = run.made("first", "rollout", given, steps=(64, 100))
    rest = run.made("rest", "rollout", {"state": out(first, "state")}, steps=(101, 163))
    assert run.result(rest).outputs["state"] == run.result(whole).outputs["state"]


def test_it_learns_from_the_batches_of_several_collectors(run: Serial) -> None:
    ppo(run, 0, epochs=1)
    begun = run.made("init.agent", "init_agent")
    batches = []
    for label in ("shard=0", "shard=1"):
        given = {"agent": out(begun, "agent")}
        call = run.made(label, "rollout", given, steps=(0, 63), stream=label, restream=True)
        batches.append((label, out(call, "batch")))
    learn = run.made("learn", "learn", {"agent": out(begun, "agent"), "batch": batches})
    assert run.tree(learn, "agent")["state"]["updates"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_balances_the_pole_in_30_iterations_of_1024_steps(run: Serial, seed: int) -> None:
    state, _ = trained(ppo(run, seed, **TUNED), iterations=30, steps=1024)
    score = run.made("eval", "evaluate", {"agent": out(state, "agent")}, config={"episodes": 20})
    assert run.result(score).stats["return_mean"] >= 475.0
