"""However a range of steps is split into stages, on whatever worker each runs: the same steps, the same final state."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.core import state
from dsec.runtime import environments, rollout, trace
from dsec.runtime.rollout import During
from dsec.testing.environments import Wanderer, round_trip, spec_of

ENVIRONMENTS = [
    "gymnasium/CartPole-v1",
    "gymnasium/MountainCar-v0",
    "gymnasium/Acrobot-v1",
    "gymnasium/Pendulum-v1",
    "gymnasium/FrozenLake-v1",
    "gymnasium/Taxi-v4",
    "gymnasium/Blackjack-v1",
    "gymnasium/CliffWalkingSlippery-v1",
    "dsec.testing.environments:Corridor",
    "dsec.testing.environments:Layered",
    "dsec.testing.environments:Hidden",
    "dsec.testing.environments:Drifting",
]
STEPS = 600


def opened(spec):
    return environments.open_env(spec, root=8, label="shard=1")


def space_of(uses):
    built = environments.build(spec_of(uses))
    return getattr(built, "action_space", None)


@functools.lru_cache
def whole(uses, num_envs):
    env = opened(spec_of(uses, num_envs=num_envs))
    env.start()
    result = rollout.rollout(Wanderer(space_of(uses), num_envs), env, 0, STEPS - 1)
    return result, round_trip(env.tree())


def by_stages(uses, num_envs, cuts):
    """Results of the stages: each saves environment and agent, and the next one restores them in fresh objects."""
    spec = spec_of(uses, num_envs=num_envs)
    env = opened(spec)
    env.start()
    saved = round_trip({"env": env.tree(), "agent": Wanderer(space_of(uses), num_envs).state_dict()})
    for first, stop in zip((0, *cuts), (*cuts, STEPS), strict=True):
        env, agent = opened(spec), Wanderer(space_of(uses), num_envs)
        env.load(saved["env"])
        agent.load_state_dict(saved["agent"])
        yield rollout.rollout(agent, env, first, stop - 1), env
        saved = round_trip({"env": env.tree(), "agent": agent.state_dict()})


def without(tree, *names):
    return {name: item for name, item in tree.items() if name not in names}


@pytest.mark.parametrize("num_envs", [None, 1, 3])
@pytest.mark.parametrize("uses", ENVIRONMENTS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(cuts=st.sets(st.sampled_from([1, 2, 255, 256, 257, 512, STEPS - 1]) | st.integers(1, STEPS - 1), max_size=4))
def test_a_rollout_split_anywhere_gives_the_same(uses, num_envs, cuts):
    expected, final = whole(uses, num_envs)
    results, env = [], None
    for result, at in by_stages(uses, num_envs, tuple(sorted(cuts))):
        results.append(result)
        env = at
    assert state.equal(env.tree(), final)
    assert state.equal(
        trace.joined([without(result.trace, "kind", "first") for result in results]),
        without(expected.trace, "kind", "first"),
    )
    unlike = ("kind", "first", "last_observation", "final_observations")
    assert state.equal(
        trace.joined([without(result.batch, *unlike) for result in results]), without(expected.batch, *unlike)
    )
    assert state.equal(results[-1].batch["last_observation"], expected.batch["last_observation"])
    ends = [result.batch["final_observations"] for result in results]
    assert state.equal(
        trace.joined([end["observation"] for end in ends]), expected.batch["final_observations"]["observation"]
    )
    rows = [end["row"] + result.batch["first"] for end, result in zip(ends, results, strict=True)]
    assert np.concatenate(rows).tolist() == expected.batch["final_observations"]["row"].tolist()
    assert sum(result.stats["episodes"] for result in results) == expected.stats["episodes"]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(paces=st.lists(st.floats(0, 30), min_size=1, max_size=50), every=st.none() | st.integers(1, 700))
def test_neither_clocks_nor_calls_show(paces, every):
    uses = "gymnasium/CartPole-v1"
    expected, final = whole(uses, None)
    ticks = iter(np.cumsum(paces * 5000))
    during = During(
        every=every,
        on_state=lambda step: None,
        offer=lambda step, make: make(),
        progress=lambda step: None,
        clock=lambda: float(next(ticks)),
    )
    env = opened(spec_of(uses))
    env.start()
    result = rollout.rollout(Wanderer(space_of(uses)), env, 0, STEPS - 1, during=during)
    assert state.equal(env.tree(), final)
    assert state.equal(result.trace, expected.trace)
    assert state.equal(result.batch, expected.batch)
