from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import dsec
from dsec.adapters import spaces as told
from dsec.core import canon, seeds
from dsec.errors import StageError, StateError
from dsec.runtime import agents, environments, files, numerics, tensors
from dsec.runtime import rollout as loop
from dsec.runtime.agents import LiveAgent, Setting, Surroundings
from dsec.store import anchors
from tests.unit.runtime import lab
from tests.unit.runtime.serial import Serial, agent, env, out

POLE = Surroundings.of_spec(env())


@pytest.fixture(autouse=True)
def pinned() -> Iterator[None]:
    with numerics.pinned():
        yield


def built(name: str, surroundings: Surroundings = POLE, **config: Any) -> LiveAgent:
    return agents.build_agent(agent(name), surroundings, Setting(3, config))


def stored(run: Serial, live: LiveAgent) -> tuple[str, Any]:
    """Its id, and its tree as the next stage gets it."""
    anchor_id = anchors.put(run.store.blobs, live.tree()).anchor_id
    return anchor_id, tensors.restored(anchors.load(run.store.blobs, anchor_id))


def acted(live: LiveAgent, steps: int = 20) -> LiveAgent:
    place = environments.open_env(env(), root=3)
    place.start()
    made = loop.rollout(live.agent, place, 0, steps - 1)
    if hasattr(live.agent, "learn"):
        live.agent.learn(made.batch)
    return live


@pytest.mark.parametrize("name", ["Drifter", "Owner", "Net"])
def test_an_agent_that_was_restored_goes_on_as_it_would_have(bare: Serial, name: str) -> None:
    live = acted(built(name))
    _, tree = stored(bare, live)
    again = agents.load_agent(agent(name), tree, Setting(3, {}))
    assert stored(bare, again)[0] == stored(bare, live)[0]
    assert stored(bare, acted(again))[0] == stored(bare, acted(live))[0]


def test_the_stream_of_an_agent_stays_one_wherever_it_stands(bare: Serial) -> None:
    for name in ("Drifter", "Owner"):
        _, tree = stored(bare, acted(built(name)))
        again = agents.load_agent(agent(name), tree, Setting(3, {}))
        assert again.agent.rng is again.config["rng"]
    assert agents.load_agent(agent("Drifter"), stored(bare, built("Drifter"))[1], Setting(3, {})).agent.generator


def test_attributes_that_hold_objects_are_filled_and_not_replaced(bare: Serial) -> None:
    live = acted(built("Drifter"))
    _, tree = stored(bare, live)
    again = agents.load_agent(agent("Drifter"), tree, Setting(3, {}))
    one: lab.Drifter = again.agent
    assert one.optimizer.param_groups[0]["params"][2] is one.bias
    assert torch.equal(one.bias, live.agent.bias) and one.bias.requires_grad
    assert torch.equal(one.heads[1].weight, live.agent.heads[1].weight)
    assert one.mood is lab.Mood.EAGER
    assert type(one.memory) is lab.Memory and one.memory.seen == live.agent.memory.seen
    assert one.space is again.config["action_space"]


def test_a_module_keeps_what_is_beside_its_parameters(bare: Serial) -> None:
    live = acted(built("Net"))
    _, tree = stored(bare, live)
    again = agents.load_agent(agent("Net"), tree, Setting(3, {}))
    assert again.agent.steps == 20
    assert again.agent.optimizer.state_dict()["state"]


def test_a_list_of_objects_that_has_shrunk_is_an_error_with_its_path(bare: Serial) -> None:
    live = built("Drifter")
    live.agent.heads.append(torch.nn.Linear(2, 2))
    _, tree = stored(bare, live)
    with pytest.raises(StateError, match=r"agent\.heads\[2\]: .*nothing there to take it"):
        agents.load_agent(agent("Drifter"), tree, Setting(3, {}))


def test_an_agent_is_told_its_configuration_streams_spaces_and_mode_and_no_more() -> None:
    live = built("Greeter", lr=0.5, steps=[1])
    config = live.config
    assert dict(config).keys() == {*agents.RESERVED, "lr", "steps"}
    assert (config["lr"], config["mode"], config["device"], config["num_envs"]) == (0.5, "train", "cpu", None)
    assert config["resources"] == {"device": "cpu", "threads": 1}
    assert config["action_space"] == spaces.Discrete(2)
    assert config["observation_space"] == gymnasium.make("CartPole-v1").observation_space
    assert (config["rng"].random(3) == seeds.generator(3, "agent").random(3)).all()
    assert config.get("nothing", 7) == 7
    assert len(config) == len(list(config))


@pytest.mark.parametrize("name", ["max_steps", "session_id", "creation_timestamp", "seed", "lrr"])
def test_what_decides_no_result_is_not_shown(name: str) -> None:
    with pytest.raises(KeyError, match=f"session_config has no '{name}'"):
        built("Greeter", lr=1).config[name]


def test_drawing_from_a_space_repeats() -> None:
    first, second = (built("Greeter").config["action_space"] for _ in range(2))
    assert [first.sample() for _ in range(9)] == [second.sample() for _ in range(9)]


def test_names_that_session_config_has_are_refused() -> None:
    with pytest.raises(StageError, match="`with` has 'rng', a name that session_config has already"):
        built("Greeter", rng=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Refuser", "raised RuntimeError: no"),
        ("Silent", r"has no on_reward\(\)"),
        ("Nobody", "has no 'Nobody'"),
        ("tests.unit.runtime.nowhere:Agent", "there is no module"),
        ("__main__:Agent", "lives in a script or notebook"),
        ("tests.unit.runtime.lab:Drifer", "did you mean 'Drifter'"),
    ],
)
def test_an_agent_that_cant_be_made_says_why(name: str, message: str) -> None:
    with pytest.raises(StageError, match=message):
        built(name)


def test_an_agent_with_half_a_pair_of_state_methods_is_refused() -> None:
    with pytest.raises(StateError, match=r"has state_dict\(\) and no load_state_dict\(\)"):
        built("Half").tree()


def test_what_the_spec_says_of_vectorized_counts() -> None:
    spec = agent("Owner").model_copy(update={"vectorized": True})
    assert agents.build_agent(spec, POLE, Setting(3, {})).agent.vectorized is True


def test_provenance_that_nobody_would_check_is_refused() -> None:
    spec = agent("Owner").model_copy(update={"provenance": "required"})
    with pytest.raises(StageError, match="provenance: required is not supported yet"):
        agents.build_agent(spec, POLE, Setting(3, {}))


def test_a_state_that_cant_be_kept_names_its_attribute(bare: Serial) -> None:
    live = built("Drifter")
    live.agent.memory = {"client": [threading_lock()]}
    with pytest.raises(StateError, match=r"state\.memory\.client\[0\]: _thread\.lock"):
        stored(bare, live)


def threading_lock() -> object:
    import threading

    return threading.Lock()


def test_a_tree_of_another_kind_is_refused() -> None:
    with pytest.raises(StateError, match="a state of kind 'env', expected an agent's"):
        agents.load_agent(agent("Owner"), {"kind": "env"}, Setting(3, {}))


def test_an_evaluating_copy_draws_from_its_own_stream_each_time(bare: Serial) -> None:
    setting = Setting(3, {}, mode="evaluate", stream="evaluate/agent")
    drawn = []
    for steps in (0, 20):
        live = acted(built("Drifter"), steps) if steps else built("Drifter")
        copy = agents.load_agent(agent("Drifter"), stored(bare, live)[1], setting)
        assert copy.config["mode"] == "evaluate"
        assert copy.agent.rng is copy.config["rng"]
        drawn.append([copy.agent.rng.random(), float(torch.rand((), generator=copy.agent.generator))])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] == seeds.generator(3, "evaluate/agent").random()


def test_an_agent_broadcast_over_shards_draws_otherwise_in_each(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    calls = []
    for shard in ("shard=0", "shard=1"):
        place = run.made(f"init.env@{shard}", "init_env", stream=shard)
        given = {"agent": out(begun, "agent"), "env": out(place, "env")}
        calls.append(run.made(f"collect@{shard}", "rollout", given, steps=(0, 99), stream=shard, restream=True))
    actions = [run.tree(call, "trace")["action"] for call in calls]
    assert not np.array_equal(*actions)
    assert run.tree(calls[0], "env")["label"] == "shard=0"
    batches = [(f"shard={k}", out(call, "batch")) for k, call in enumerate(calls)]
    learn = run.made("learn", "learn", {"agent": out(begun, "agent"), "batch": batches})
    assert run.result(learn).stats["batches"] == 2


SPACES = [
    spaces.Box(-1.0, np.array([1.0, 2.0], np.float32)),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 2]),
    spaces.Text(5, charset="ab"),
    spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
    spaces.Dict(b=spaces.Discrete(2), a=spaces.Dict(x=spaces.Box(-1, 1, (1,)))),
    spaces.OneOf([spaces.Discrete(2), spaces.MultiBinary(2)]),
    spaces.Sequence(spaces.Discrete(2), stack=True),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_a_space_comes_back_from_an_anchor_as_it_was(bare: Serial, space: spaces.Space[Any]) -> None:
    anchor_id = anchors.put(bare.store.blobs, told.describe(space)).anchor_id
    assert told.build(anchors.get(bare.store.blobs, anchor_id), 3) == space


def test_a_space_that_cant_be_told_is_an_error() -> None:
    with pytest.raises(StateError, match="can't be told to an agent"):
        told.describe(spaces.Graph(spaces.Discrete(2), None))


def test_the_base_keeps_the_stream_and_hears_without_doing_anything() -> None:
    class Mute(dsec.Agent):
        pass

    one = Mute({"rng": 3})
    assert (one.rng, one.on_reward(1.0, False, {})) == (3, None)
    with pytest.raises(NotImplementedError, match="has no step"):
        one.step(None)


def test_the_package_root_is_light_until_the_agent_is_asked_for() -> None:
    code = "import sys, dsec; assert 'dsec.runtime' not in sys.modules; dsec.Agent; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_an_agent_of_no_environment_has_no_spaces() -> None:
    live = built("Owner", Surroundings())
    assert live.config["action_space"] is None
    assert canon.encode(live.surroundings.to_tree()) == canon.encode(
        {"observation": None, "action": None, "num_envs": None}
    )


def test_a_declared_file_comes_as_a_path_that_is_no_state(bare: Serial) -> None:
    digest = files.put(bare.store.blobs, b"weights")
    config = files.placed({"table": {"file": "w.bin", "digest": digest}}, bare.store.blobs)
    live = built("Drifter", **config)
    live.agent.path = live.config["table"]
    assert live.agent.path.read_bytes() == b"weights"
    assert "path" not in live.tree()["state"]
