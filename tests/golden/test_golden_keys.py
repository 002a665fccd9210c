"""Keys of format 1 stay what they are: a changed digest means that every stored result would be lost."""

from __future__ import annotations

import json
from pathlib import Path

from dsec.core import canon, keys, seeds, session
from dsec.core.specs import AgentSpec, CodeRef, EnvSpec, RewardSpec, spec_hash
from dsec.core.stage import AnchorId, Edge, Input, PlanKey, Recipe, StageCall

GOLDEN = Path(__file__).parent / "v1" / "keys.json"


def made() -> dict[str, str | int]:
    code = CodeRef(uses="examples.ppo:PPO", fingerprint=canon.digest("test", "code"))
    agent = AgentSpec(code=code, config={"lr": 2.5e-4, "hidden": [64, 64]}, vectorized=True)
    env = EnvSpec(code=CodeRef(uses="gymnasium/CartPole-v1", fingerprint=canon.digest("test", "env")), num_envs=4)
    reward = RewardSpec(code=code, files={"weights.csv": canon.digest("test", "file")})
    recipe = Recipe(
        "dsec.stages:rollout", canon.digest("test", "body"), {"x": 1, "y": 1.0}, {}, agent, env, reward, 7,
        class_id="c" * 64, outputs=(("state", 25),), cache_version="2",
    )  # fmt: skip
    edges = {"env": Input((Edge(PlanKey("a" * 64), "env"),)), "agent": Input((AnchorId("b" * 64),), ("shard=0",))}
    plan_key = keys.plan_key(recipe.digest(), edges, steps=(0, 99), stream="shard=0", restream=True)
    known = {"env": Input((AnchorId("d" * 64),)), "agent": Input((AnchorId("b" * 64),), ("shard=0",))}
    call = StageCall("x", "x", plan_key, recipe.digest(), known, (0, 99), "shard=0", True)
    deciding = session.Deciding(spec_hash(agent), spec_hash(env), spec_hash(reward), 7, 100)
    values = [None, True, -255, 10**30, 1.5, -0.0, "ä", b"\0", [1, (2,)], {"b": 1, "a": {2: 3}}]
    return {
        "values": canon.digest("dsec/test/1", values),
        "agent": deciding.agent_spec or "",
        "env": deciding.env_spec or "",
        "reward": deciding.reward_fn_hash or "",
        "recipe": recipe.digest(),
        "plan_key": plan_key,
        "action_key": keys.action_key(call),
        "dask_key": keys.dask_key("train.learn", "store", call),
        "lane": session.lane_key(*deciding[:4]),
        "session": session.identity(deciding, "plan", {"seed": 7, "lr": "a"}),
        "stream": f"{seeds.stream_key(7, 'env/0/episode/3'):032x}",
        "reset_seed": seeds.reset_seed("root", "evaluate/0"),
        "drawn": int(seeds.generator(7, "agent").integers(1 << 62)),
    }


def test_keys_are_those_of_format_1() -> None:
    assert made() == json.loads(GOLDEN.read_text())
