import json

import numpy as np
import pytest

from dsec.core import seeds, state
from dsec.errors import StageError, StateError
from dsec.runtime import environments, rollout
from dsec.testing.environments import Wanderer, round_trip, spec_of

FAKES = "dsec.testing.environments"


def started(uses, *, root=0, label="", **more):
    env = environments.open_env(spec_of(uses, **more), root=root, label=label)
    env.start()
    return env


def walked(env, steps):
    space = getattr(env.simulators[0].environment, "action_space", None)
    agent = Wanderer(space, env.size if env.batched else None)
    rollout.rollout(agent, env, env.step, env.step + steps - 1)
    return env


@pytest.mark.parametrize(
    ("uses", "method", "coverage"),
    [
        ("gymnasium/CartPole-v1", "state", "full"),
        ("gymnasium/Taxi-v4", "state", "full"),
        (f"{FAKES}:Corridor", "state", "full"),
        (f"{FAKES}:Layered", "state", "full"),
        (f"{FAKES}:Hidden", "replay", "partial"),
        (f"{FAKES}:Drifting", "replay", "partial"),
        (f"{FAKES}:Clocked", "replay", "observational"),
    ],
)
def test_the_trial_finds_how_an_environment_is_saved(uses, method, coverage):
    env = started(uses)
    assert (env.saving.method, env.saving.coverage) == (method, coverage)


def test_what_the_state_hash_cannot_see_is_named():
    assert started(f"{FAKES}:Hidden").tree()["opaque"] == ["env.dice: generator"]


def test_a_state_is_a_tree_that_anchors_can_hold():
    tree = round_trip(walked(started("gymnasium/CartPole-v1", label="shard=3"), 30).tree())
    assert (tree["kind"], tree["step"], tree["label"], tree["num_envs"]) == ("env", 30, "shard=3", None)
    assert tree["observation"].shape == (4,)
    assert len(tree["chain"]) == 16


def test_the_layers_of_gymnasium_are_saved_with_their_counters():
    tree = walked(started("gymnasium/CartPole-v1"), 3).tree()
    layers = tree["simulators"][0]["state"]
    assert [layer["class"].partition(":")[2] for layer in layers] == ["TimeLimit", "CartPoleEnv"]
    assert layers[0]["attributes"] == {"_elapsed_steps": 3}


def test_reset_seeds_follow_their_paths():
    env = started("gymnasium/CartPole-v1", root=5, label="shard=3")
    expected = seeds.reset_seed(5, seeds.episode_path("shard=3", 0, 0))
    assert env.tree()["simulators"][0]["seed"] == expected
    env.next_episode(0)
    assert env.tree()["simulators"][0]["seed"] == seeds.reset_seed(5, seeds.episode_path("shard=3", 0, 1))


def test_environments_of_a_batch_have_their_own_seeds():
    env = started("gymnasium/CartPole-v1", num_envs=3)
    found = [entry["seed"] for entry in env.tree()["simulators"]]
    assert found == [seeds.reset_seed(0, seeds.episode_path("", index, 0)) for index in range(3)]
    assert env.observation.shape == (3, 4)


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("uses", ["gymnasium/CartPole-v1", "gymnasium/Blackjack-v1", f"{FAKES}:Drifting"])
def test_loading_what_was_saved_changes_nothing(uses, num_envs):
    env = walked(started(uses, num_envs=num_envs), 45)
    tree = round_trip(env.tree())
    other = environments.open_env(env.spec, root=0)
    other.load(tree)
    assert state.equal(other.tree(), tree)


def test_a_state_is_detached_from_the_running_environment():
    env = walked(started("gymnasium/CartPole-v1"), 5)
    tree = env.tree()
    before = state.flatten(round_trip(tree))
    walked(env, 20)
    after = state.flatten(round_trip(tree))
    assert before.structure == after.structure
    assert all(np.array_equal(a, b) for a, b in zip(before.arrays, after.arrays, strict=True))


def test_relabelled_before_the_first_step_it_begins_again():
    env, other = started("gymnasium/CartPole-v1"), started("gymnasium/CartPole-v1", label="shard=1")
    env.relabel("shard=1")
    assert state.equal(env.tree(), other.tree())


def test_relabelled_later_it_goes_on_and_then_takes_the_new_seeds():
    env = walked(started("gymnasium/CartPole-v1"), 5)
    shown = env.observation.tolist()
    env.relabel("shard=1")
    assert env.observation.tolist() == shown
    env.next_episode(0)
    assert env.tree()["simulators"][0]["seed"] == seeds.reset_seed(0, seeds.episode_path("shard=1", 0, 1))


def test_a_state_of_another_shape_is_refused():
    tree = started("gymnasium/CartPole-v1", num_envs=2).tree()
    env = environments.open_env(spec_of("gymnasium/CartPole-v1"), root=0)
    with pytest.raises(StateError, match="num_envs: 2, the spec has num_envs: None"):
        env.load(tree)
    with pytest.raises(StateError, match="kind 'agent'"):
        env.load({"kind": "agent"})


def test_a_state_of_another_environment_is_refused():
    tree = started("gymnasium/Acrobot-v1").tree()
    env = environments.open_env(spec_of("gymnasium/CartPole-v1"), root=0)
    with pytest.raises(StateError, match="AcrobotEnv, the environment is"):
        env.load(tree)


@pytest.mark.parametrize("uses", ["gymnasium/CartPole-v1", f"{FAKES}:Corridor", f"{FAKES}:Hidden"])
def test_a_restored_environment_that_is_elsewhere_is_refused(uses):
    env = walked(started(uses), 5)
    tree = env.tree()
    tree["simulators"][0]["hash"] = bytes(16)
    with pytest.raises(StateError, match="not where it was saved"):
        environments.open_env(env.spec, root=0).load(tree)


def test_a_replay_that_shows_something_else_is_refused():
    env = walked(started(f"{FAKES}:Clocked"), 5)
    tree = env.tree()
    tree["simulators"][0]["actions"] = (tree["simulators"][0]["actions"] + 1) % 3
    with pytest.raises(StateError, match="not where it was saved"):
        environments.open_env(env.spec, root=0).load(tree)


def test_one_episode_is_begun_without_being_saved():
    env = environments.open_env(spec_of("gymnasium/CartPole-v1"), root=0)
    env.begin(17)
    first = env.observation.tolist()
    env.begin(17)
    assert env.observation.tolist() == first
    with pytest.raises(StateError, match="never saved"):
        env.tree()


@pytest.mark.parametrize(
    ("uses", "config", "message"),
    [
        ("gymnasium/CartPool-v1", {}, "NameNotFound"),
        ("gymnasium/CartPole-v1", {"gravity": 1}, "TypeError"),
        ("nowhere.at_all:Env", {}, "ModuleNotFoundError"),
        (f"{FAKES}:Corridoor", {}, r"no 'Corridoor' \(did you mean 'Corridor'"),
        (f"{FAKES}:Corridor", {"width": 1}, "unexpected keyword argument 'width'"),
        (f"{FAKES}:Wanderer", {"space": None}, "neither an environment of gymnasium nor has deterministic_reset"),
        ("builtins:dict", {}, "gave a builtins.dict"),
    ],
)
def test_what_is_no_environment_is_refused_with_the_reason(uses, config, message):
    env = environments.open_env(spec_of(uses, **config), root=0)
    with pytest.raises(StageError, match=message):
        env.start()


def test_an_environment_by_id_of_a_module_is_made():
    assert started("gymnasium:CartPole-v1").observation.shape == (4,)


def test_a_factory_is_as_good_as_a_class():
    env = started("tests.unit.runtime.test_environments:corridor", length=2)
    assert env.simulators[0].environment.length == 2


def corridor(length):
    from dsec.testing.environments import Corridor

    return Corridor(length)


def test_num_envs_below_one_is_refused():
    with pytest.raises(StageError, match="num_envs is 0"):
        environments.open_env(spec_of("gymnasium/CartPole-v1", num_envs=0), root=0)


class Broken(Exception):
    pass


class BreaksAtReset:
    def deterministic_reset(self, seed):
        raise Broken("no power")

    def step(self, action):
        raise NotImplementedError

    def state_hash(self):
        return bytes(16)


def test_the_story_of_a_failure_is_the_users_own():
    env = environments.open_env(spec_of("tests.unit.runtime.test_environments:BreaksAtReset"), root=0)
    with pytest.raises(StageError, match="Broken: no power") as caught:
        env.start()
    assert "test_environments.py" in caught.value.story
    assert "dsec/runtime" not in caught.value.story
    json.dumps(caught.value.story)


class ShortHash(BreaksAtReset):
    def deterministic_reset(self, seed):
        return 0, {}

    def state_hash(self):
        return b"short"


def test_a_state_hash_of_the_wrong_size_is_refused():
    env = environments.open_env(spec_of("tests.unit.runtime.test_environments:ShortHash"), root=0)
    with pytest.raises(StateError, match="expected 16 bytes"):
        env.start()
