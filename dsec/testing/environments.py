"""The contract of environments as a test class, small environments that keep or break it, and an agent for any of them.

Subclass `EnvironmentContract` with the spec of your environment and pytest does the rest::

    class TestMyEnvironment(EnvironmentContract):
        spec = spec_of("my_package.envs:MyEnvironment", size=5)
"""

from __future__ import annotations

import random  # noqa: TID251  poisoned on purpose: an environment must not draw from it
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from dsec.core import seeds, state
from dsec.core.canon import Digest
from dsec.core.specs import CodeRef, EnvSpec
from dsec.runtime import chain, environments, rollout

__all__ = [
    "Clocked",
    "Corridor",
    "Drifting",
    "EnvironmentContract",
    "Hidden",
    "Layered",
    "Leaking",
    "Wanderer",
    "round_trip",
    "spec_of",
]


def spec_of(uses: str, *, num_envs: int | None = None, **config: Any) -> EnvSpec:
    """A spec with a made-up fingerprint, for tests."""
    return EnvSpec(code=CodeRef(uses=uses, fingerprint=Digest("0" * 64)), config=config, num_envs=num_envs)


def round_trip(tree: Any) -> Any:
    """The tree as it comes back from an anchor."""
    flat = state.flatten(tree)
    return state.unflatten(flat.structure, flat.arrays)


class Wanderer:
    """An agent for any action space: a walk drawn from a stream that is its whole state, with one array as extras.

    Parameters
    ----------
    space
        Where actions are drawn from; a space of gymnasium, or None for 0 and 1.
    num_envs
        None acts in one environment, a number in that many at once.
    """

    def __init__(self, space: Any, num_envs: int | None = None) -> None:
        self.space = space
        self.num_envs = num_envs
        self.vectorized = num_envs is not None
        self.numbers = np.random.Generator(np.random.Philox(key=7))
        self.heard = 0.0

    def step(self, observation: Any) -> dict[str, Any]:  # noqa: ARG002
        """Draw an action for each environment; what was heard so far shows in the extras."""
        if self.num_envs is None:
            return {"action": self._draw(self.space), "extras": {"heard": np.float32(self.heard)}}
        drawn = [self._draw(self.space) for _ in range(self.num_envs)]
        return {"action": np.array(drawn), "extras": {"heard": np.full(self.num_envs, self.heard, np.float32)}}

    def on_reward(self, reward: Any, done: Any, info: Any) -> None:  # noqa: ARG002
        """Remember it, fading."""
        self.heard = 0.9 * self.heard + float(np.sum(reward)) + float(np.sum(done))

    def state_dict(self) -> dict[str, Any]:
        """The stream and what was heard."""
        return {"numbers": self.numbers, "heard": self.heard}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.numbers, self.heard = tree["numbers"], tree["heard"]

    def _draw(self, space: Any) -> Any:
        if isinstance(space, spaces.Box):
            return self.numbers.uniform(-1.0, 1.0, space.shape).astype(space.dtype)
        return int(self.numbers.integers(2 if space is None else space.n))


class Corridor:
    """Own contract, no gymnasium, no spaces: walk right with a slippery foot; observations are dicts."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.position = 0
        self.numbers = np.random.Generator(np.random.PCG64(0))

    def deterministic_reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Stand at the left end."""
        self.numbers = np.random.Generator(np.random.PCG64(seed))
        self.position = 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """0 is left, 1 is right; every fourth step or so slips."""
        slipped = self.numbers.random() < 0.25
        self.position = max(0, self.position + (0 if slipped else 2 * action - 1))
        reached = self.position >= self.length
        return self._shown(), 1.0 if reached else -0.1, reached, False, {"slipped": slipped}

    def state_hash(self) -> bytes:
        """Over position and generator."""
        return chain.state_digest(repr((self.position, self.numbers.bit_generator.state)).encode())

    def state_dict(self) -> dict[str, Any]:
        """Position and generator."""
        return {"position": self.position, "numbers": self.numbers}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.position, self.numbers = tree["position"], tree["numbers"]

    def _shown(self) -> dict[str, Any]:
        return {"position": self.position, "view": np.array([self.position, self.length], np.int16), "sign": "walk on"}


def _dice(seed: int) -> Iterator[int]:
    numbers = np.random.Generator(np.random.PCG64(seed))
    while True:
        yield int(numbers.integers(6))


class Hidden(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Its dice roll inside of a Python generator, which nothing can look into; so it is replayed."""

    observation_space = spaces.Box(-1000, 1000, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.dice = _dice(0)
        self.buffer = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Take new dice."""
        super().reset(seed=seed)
        self.dice = _dice(seed or 0)
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Add a roll; the observation is one buffer, used again and again."""
        self.buffer += (next(self.dice) - 2 + action, 1)
        return self.buffer, float(self.buffer[0]), bool(abs(self.buffer[0]) > 20), bool(self.buffer[1] >= 40), {}


class Drifting(Hidden):
    """A reset does not undo everything: each episode on one instance is a little longer."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Count, which changes later episodes."""
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As `Hidden`, truncated later from episode to episode."""
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, bool(observation[1] >= 10 + self.episodes), info


class _Ball:
    def __init__(self) -> None:
        self.place = np.zeros(2)
        self.trail: list[np.ndarray[Any, Any]] = []


class Layered(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """State in plain objects, with an array and a generator that are reached twice; saved by its attributes."""

    observation_space = spaces.Tuple((spaces.Discrete(50), spaces.Box(-np.inf, np.inf, (2,), np.float32)))
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.ball = _Ball()
        self.same_place = self.ball.place
        self.moods = {"calm": 0, "wild": 0}
        self.clock: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Throw the ball."""
        super().reset(seed=seed)
        self.ball.place[:] = self.np_random.normal(size=2)
        self.ball.trail = []
        self.wind = self.np_random
        self.clock = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push it; the wind pushes too."""
        assert self.clock is not None
        self.clock += 1
        self.same_place += action + 0.3 * self.wind.normal(size=2)
        self.ball.trail = [*self.ball.trail[-2:], self.ball.place.copy()]
        self.moods["wild" if abs(action[0]) > 0.5 else "calm"] += 1
        far = float(np.abs(self.ball.place).max())
        return self._shown(), -far, far > 4, self.clock >= 30, {}

    def _shown(self) -> tuple[int, Any]:
        return len(self.ball.trail), self.ball.place.astype(np.float32)


class Clocked(Hidden):
    """Holds something that differs between equal runs, but decides nothing."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Clocked.made += 1
        self.number = Clocked.made


class Leaking(Corridor):
    """Breaks the contract: it draws from numpy's global generator."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As `Corridor`, with a reward nobody can repeat."""
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + np.random.random_sample(), terminated, truncated, info


class EnvironmentContract:
    """What DSec relies on; each test says what breaks when it fails."""

    spec: ClassVar[EnvSpec]
    """The environment under test, without num_envs."""
    steps: ClassVar[int] = 300
    """How long it is watched; more than one episode, if it has any."""
    seeds_differ: ClassVar[bool] = True
    """False for an environment without chance."""

    def run(self, root: seeds.Root = 0, cuts: tuple[int, ...] = ()) -> tuple[Any, list[bytes]]:
        """Final state and hash of each step, saved and restored in fresh instances at each of ``cuts``."""
        env = environments.open_env(self.spec, root=root)
        env.start()
        agent = self.agent(env)
        hashes: list[bytes] = []
        for first, stop in zip((0, *cuts), (*cuts, self.steps), strict=True):
            if first:
                saved = round_trip(env.tree())
                env.close()
                env = environments.open_env(self.spec, root=root)
                env.load(saved)
            result = rollout.rollout(agent, env, first, stop - 1)
            hashes += [bytes(row) for row in result.trace["hash"]]
        tree = round_trip(env.tree())
        env.close()
        return tree, hashes

    def agent(self, env: environments.LiveEnv) -> Any:
        """Who acts; override for spaces that `Wanderer` doesn't know."""
        return Wanderer(getattr(env.simulators[0].environment, "action_space", None))

    def test_the_same_seed_gives_the_same_steps(self) -> None:
        """Reruns and cache hits would be wrong otherwise."""
        tree, hashes = self.run()
        again, hashes_again = self.run()
        assert hashes == hashes_again
        assert state.equal(tree, again)

    def test_another_seed_gives_other_steps(self) -> None:
        """Sessions with different seeds would be copies of one."""
        assert (self.run(0)[1] != self.run(1)[1]) == self.seeds_differ

    def test_global_generators_decide_nothing(self) -> None:
        """What else runs in the process would show in the results."""
        _, hashes = self.run()
        kept, kept_too = np.random.get_state(), random.getstate()
        try:
            np.random.set_state(np.random.RandomState(12345).get_state())
            random.seed(12345)
            _, poisoned = self.run()
        finally:
            np.random.set_state(kept)
            random.setstate(kept_too)
        assert hashes == poisoned

    def test_instances_do_not_meet(self) -> None:
        """Environments of one process would disturb each other."""
        _, hashes = self.run()
        other = environments.open_env(self.spec, root=99)
        other.start()
        agent = self.agent(other)
        rollout.rollout(agent, other, 0, 4)
        _, beside = self.run()
        rollout.rollout(agent, other, 5, 9)
        other.close()
        assert hashes == beside

    def test_saved_and_restored_it_goes_on_the_same_way(self) -> None:
        """A session could not move to another worker, nor survive a kill."""
        tree, hashes = self.run()
        third = self.steps // 3
        cut, hashes_cut = self.run(cuts=(1, third, 2 * third + 1))
        assert hashes == hashes_cut
        assert state.equal(tree, cut)

    def test_the_state_hash_has_16_bytes(self) -> None:
        """The chained hash could not cover the state."""
        environment = environments.build(self.spec)
        environment.deterministic_reset(0)
        assert len(environments.state_hash(environment)) == chain.SIZE
        environments.close(environment)
