from __future__ import annotations

import numpy as np
import pytest
import torch

from dsec.core.stage import StageCall
from dsec.errors import StageError
from tests.unit.runtime.serial import Serial, agent, out


def learners(run: Serial, lengths: tuple[int, ...] = (20, 20)) -> list[tuple[str, StageCall]]:
    begun = run.made("init.agent", "init_agent")
    found = []
    for shard, steps in enumerate(lengths):
        label = f"shard={shard}"
        place = run.made(f"init.env@{label}", "init_env", stream=label)
        given = {"agent": out(begun, "agent"), "env": out(place, "env")}
        collect = run.made(label, "rollout", given, steps=(0, steps - 1), stream=label, restream=True)
        learn = run.made(label, "learn", {"agent": out(collect, "agent"), "batch": out(collect, "batch")})
        found.append((label, learn))
    return found


def test_floats_are_averaged_and_the_stream_begins_anew(run: Serial) -> None:
    # Drifter keeps its last observation and what it heard, floats both.
    shards = learners(run)
    fuse = run.made("fuse", "fuse", {"agents": [(label, out(call, "agent")) for label, call in shards]})
    states = [run.tree(call, "agent")["state"] for _, call in shards]
    fused = run.tree(fuse, "agent")
    mean = (states[0]["bias"].double() + states[1]["bias"].double()).div(2).float()
    assert torch.equal(fused["state"]["bias"], mean)
    weights = [state["net"].value["weight"].double() for state in states]
    assert torch.equal(fused["state"]["net"].value["weight"], (weights[0] + weights[1]).div(2).float())
    last = [state["memory"].last for state in states]
    assert np.array_equal(fused["state"]["memory"].last, np.mean(last, axis=0, dtype=np.float64).astype(np.float32))
    assert fused["state"]["heard"] == np.mean([state["heard"] for state in states])
    assert fused["state"]["rng"].bit_generator is fused["rng"].bit_generator
    assert fused["state"]["generator"] is fused["torch_rng"]
    went_on = run.made("collect", "rollout", {"agent": out(fuse, "agent")}, steps=(0, 9))
    assert run.result(went_on).stats["steps"] == 10
    assert run.result(fuse).stats == {"agents": 2}


def test_what_has_no_mean_and_differs_is_named(run: Serial) -> None:
    run.session["agent"] = agent("Net")
    shards = learners(run, (20, 30))
    with pytest.raises(StageError, match=r"fuse: agent\.steps of the agents shard=0 and shard=1 differ"):
        run.made("fuse", "fuse", {"agents": [(label, out(call, "agent")) for label, call in shards]})


def test_one_agent_fused_keeps_its_state(run: Serial) -> None:
    (label, call), *_ = learners(run, (20,))
    fuse = run.made("fuse", "fuse", {"agents": [(label, out(call, "agent"))]})
    one, fused = run.tree(call, "agent")["state"], run.tree(fuse, "agent")["state"]
    assert torch.equal(one["bias"], fused["bias"])


def test_no_agents_are_an_error(run: Serial) -> None:
    with pytest.raises(StageError, match="there is no agent to fuse"):
        run.made("fuse", "fuse", {"agents": []})
