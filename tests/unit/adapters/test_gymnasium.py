import itertools
import random
from collections import deque

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from dsec.adapters import gymnasium as adapter
from dsec.errors import StateError
from dsec.runtime import environments, layouts
from dsec.testing.environments import Hidden, Layered, round_trip

CLASSIC = [
    "Acrobot-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Taxi-v4",
]

WRAPPED = {
    "frames": lambda env: wrappers.FrameStackObservation(env, 3),
    "normalized": wrappers.NormalizeObservation,
    "normalized rewards": wrappers.NormalizeReward,
    "statistics": wrappers.RecordEpisodeStatistics,
    "clipped": lambda env: wrappers.ClipReward(wrappers.DtypeObservation(env, np.float64), 0, 1),
    "sticky": lambda env: wrappers.StickyAction(env, 0.3),
    "time aware": wrappers.TimeAwareObservation,
    "limited": lambda env: wrappers.TimeLimit(env, 7),
    "delayed": lambda env: wrappers.DelayObservation(env, 2),
    "stacked": lambda env: wrappers.NormalizeObservation(wrappers.FrameStackObservation(env, 2)),
}


def driven(env, seed, actions):
    """What an environment shows from a reset on, with resets by seed where episodes end."""
    shown = [env.deterministic_reset(seed)[0]]
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        shown.append((observation, float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            shown.append(env.deterministic_reset(seed + len(shown))[0])
    return shown


def sampled(env, count):
    env.action_space.seed(4)
    return [env.action_space.sample() for _ in range(count)]


def goes_on_the_same(build):
    actions = sampled(build(), 120)
    env = build()
    driven(env, 1, actions[:60])
    other = build()
    other.deterministic_reset(99)
    other.load_state_dict(round_trip(env.state_dict()))
    assert other.state_hash() == env.state_hash()
    for action in actions[60:]:
        here, there = env.step(action), other.step(action)
        assert repr(here[:4]) == repr(there[:4])
        if here[2] or here[3]:
            break
    assert other.state_hash() == env.state_hash()


@pytest.mark.parametrize("name", CLASSIC)
def test_what_gymnasium_brings_is_saved_by_its_attributes(name):
    goes_on_the_same(lambda: adapter.make(name, {}))


@pytest.mark.parametrize("name", CLASSIC)
def test_listed_attributes_are_all_that_a_step_changes(name):
    env = adapter.make(name, {})
    base = env.env.unwrapped
    listed = adapter._STATE[f"{type(base).__module__}:{type(base).__qualname__}"]
    env.deterministic_reset(3)
    before = {key: repr(value) for key, value in vars(base).items()}
    for action in sampled(adapter.make(name, {}), 20):
        if any(env.step(action)[2:4]):
            env.deterministic_reset(4)
    changed = {key for key, value in vars(base).items() if before.get(key) != repr(value)}
    assert changed <= {*listed, "_np_random", "_np_random_seed"}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_the_state_of_wrappers_counts(wrap):
    goes_on_the_same(lambda: adapter.adapt(wrap(gymnasium.make("CartPole-v1", disable_env_checker=True))))


def test_a_clock_in_a_wrapper_is_no_state():
    envs = [adapter.adapt(wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))) for _ in range(2)]
    for env in envs:
        driven(env, 1, [1] * 30)
    assert envs[0].state_hash() == envs[1].state_hash()


def test_checkers_are_left_out():
    layers = str(adapter.make("CartPole-v1", {}).env)
    assert "PassiveEnvChecker" not in layers and "OrderEnforcing" not in layers
    assert "TimeLimit" in layers
    assert gymnasium.spec("CartPole-v1").order_enforce


def test_what_is_configured_reaches_the_environment():
    assert adapter.make("FrozenLake-v1", {"map_name": "8x8"}).observation_space.n == 64
    assert adapter.make("CartPole-v1", {"max_episode_steps": 9}).env._max_episode_steps == 9


class _Odd(gymnasium.Env):
    """Holds one value of a kind."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def __init__(self, value):
        self.value = value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(self.np_random.integers(5)), 0.0, False, False, {}


def _counting():
    counted = 0

    def count():
        nonlocal counted
        counted += 1
        return counted

    return count


class _Slotted:
    __slots__ = ("a",)


_shared = np.zeros(3)
PLAIN = {
    "deque": lambda: deque([np.zeros(2), (1, "x")], maxlen=3),
    "dict": lambda: {(1, 2): [None], "b": {2.5: b"x"}},
    "set": lambda: {3, 1, 2},
    "frozenset": lambda: frozenset({"a"}),
    "numbers": lambda: np.float32(0.5),
    "generator": lambda: np.random.Generator(np.random.MT19937(3)),
    "legacy": lambda: np.random.RandomState(3),
    "random": lambda: random.Random(3),
    "function": lambda: max,
    "module": lambda: itertools,
    "class": lambda: _Odd,
    "empty": lambda: [np.zeros(0), np.zeros(0)],
    "texts": lambda: np.array(["a", "bc"]),
}
OPAQUE = {
    "closure": _counting,
    "method": lambda: [].append,
    "iterator": lambda: iter([1]),
    "count": itertools.count,
    "objects": lambda: np.array([object()]),
    "views": lambda: [_shared[:2], _shared[1:]],
    "unordered": lambda: {1, "a"},
    "slots": _Slotted,
}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_plain_values_come_back(make):
    env, other = adapter.adapt(_Odd(make())), adapter.adapt(_Odd(make()))
    env.deterministic_reset(1)
    other.deterministic_reset(2)
    other.load_state_dict(round_trip(env.state_dict()))
    assert other.state_hash() == env.state_hash()
    assert type(other.env.value) is type(env.env.value)


@pytest.mark.parametrize("make", OPAQUE.values(), ids=OPAQUE)
def test_what_is_not_understood_is_refused_with_its_path(make):
    env = adapter.adapt(_Odd(make()))
    env.deterministic_reset(1)
    with pytest.raises(StateError, match=r"env\.value"):
        env.state_dict()
    assert env.opaque()[0].startswith("env.value")
    assert len(env.state_hash()) == 16


def test_the_order_of_a_dict_is_state():
    hashes = []
    for value in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        env = adapter.adapt(_Odd(value))
        env.deterministic_reset(1)
        saved = round_trip(env.state_dict())
        other = adapter.adapt(_Odd({}))
        other.load_state_dict(saved)
        assert list(other.env.value) == list(value)
        hashes.append(env.state_hash())
    assert hashes[0] != hashes[1]


def test_what_is_reached_twice_stays_one():
    env, other = adapter.adapt(Layered()), adapter.adapt(Layered())
    driven(env, 1, [np.ones(2, np.float32)] * 3)
    other.deterministic_reset(2)
    other.load_state_dict(round_trip(env.state_dict()))
    assert other.env.same_place is other.env.ball.place
    assert other.env.wind is other.env.np_random
    assert other.env.ball.place is not env.env.ball.place


def test_an_attribute_that_was_not_saved_goes():
    env, other = adapter.adapt(_Odd(1)), adapter.adapt(_Odd(2))
    env.deterministic_reset(1)
    other.deterministic_reset(1)
    other.env.later = 5
    other.load_state_dict(env.state_dict())
    assert not hasattr(other.env, "later") and other.env.value == 1


@pytest.mark.parametrize("other", [1, None])
def test_a_fresh_instance_that_lacks_an_object_is_refused(other):
    env = adapter.adapt(Layered())
    env.deterministic_reset(1)
    saved = env.state_dict()
    fresh = Layered()
    fresh.ball = other
    with pytest.raises(StateError, match="a fresh instance has"):
        adapter.adapt(fresh).load_state_dict(saved)


def test_a_known_environment_keeps_its_attributes_quick():
    """The state hash must not look at ``__dict__``, which makes every later step slower in Python 3.11."""
    looked = []

    class Watched(gymnasium.Env):
        @property
        def __dict__(self):
            looked.append(1)
            return {}

    kind = f"{Watched.__module__}:{Watched.__qualname__}"
    known = dict(adapter._STATE)
    adapter._held(Watched(), "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    assert not looked and kind not in known
    adapter._held(Watched(), kind)
    assert looked


@pytest.mark.parametrize(
    ("space", "layout"),
    [
        (spaces.Discrete(3, start=-1), layouts.Scalar(int, -1, 1)),
        (spaces.Box(0, 1, (2, 3), np.float64), layouts.Array(np.dtype("<f8"), (2, 3))),
        (spaces.MultiBinary(4), layouts.Array(np.dtype("i1"), (4,))),
        (spaces.MultiDiscrete([2, 3]), layouts.Array(np.dtype("<i8"), (2,))),
        (spaces.Text(5), layouts.Plain()),
        (spaces.Sequence(spaces.Discrete(2)), layouts.Plain()),
        (spaces.Tuple((spaces.Discrete(2), spaces.Text(3))), layouts.Row((layouts.Scalar(int, 0, 1), layouts.Plain()))),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(3)}),
            layouts.Record(("a", "b"), (layouts.Scalar(int, 0, 2), layouts.Scalar(int, 0, 1))),
        ),
    ],
    ids=str,
)
def test_spaces_have_layouts(space, layout):
    found = adapter.layout(space)
    assert found == layout
    space.seed(1)
    for _ in range(5):
        value = found.read(space.sample())
        assert repr(found.unpack([found.pack(value)])) == repr(found.stack([value]))


def test_the_trial_takes_an_opaque_environment_for_replay():
    saving = environments.trial(lambda: adapter.adapt(Hidden()))
    assert (saving.method, saving.coverage) == ("replay", "partial")
