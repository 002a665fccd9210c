import numpy as np
import pytest

from dsec.core import state
from dsec.errors import StageError, StageTimeout
from dsec.runtime import environments, rollout
from dsec.runtime.rollout import During
from dsec.testing.environments import Corridor, Wanderer, round_trip, spec_of

CARTPOLE = spec_of("gymnasium/CartPole-v1")


class Ticking:
    """A clock that goes on by ``pace`` each time it is read."""

    def __init__(self, pace):
        self.pace = pace
        self.now = 0.0

    def __call__(self):
        self.now += self.pace
        return self.now


class Scripted:
    """Answers what a function of the step makes of it."""

    def __init__(self, answer):
        self.answer = answer
        self.steps = 0
        self.heard = []

    def step(self, observation):
        self.steps += 1
        return self.answer(self.steps - 1)

    def on_reward(self, reward, done, info):
        self.heard.append((reward, done))


class Faulty:
    """An environment without spaces whose n-th step gives what it is told to."""

    def __init__(self, at=3, **outcome):
        self.at = at
        self.outcome = {"observation": 0, "reward": 1.0} | outcome
        self.steps = 0

    def deterministic_reset(self, seed):
        return 0, {}

    def step(self, action):
        self.steps += 1
        given = self.outcome if self.steps == self.at + 1 else {"observation": 0, "reward": 1.0}
        if given["reward"] == "raise":
            raise RuntimeError("it broke")
        return given["observation"], given["reward"], False, False, {}

    def state_hash(self):
        return self.steps.to_bytes(16, "big")


def opened(spec=CARTPOLE):
    env = environments.open_env(spec, root=3)
    env.start()
    return env


def faulty(**config):
    return opened(spec_of("tests.unit.runtime.test_rollout:Faulty", **config))


def always(action=1, **more):
    return Scripted(lambda step: {"action": action, **more})


def test_the_agent_hears_of_every_step():
    agent, env = always(), opened()
    result = rollout.rollout(agent, env, 0, 49)
    assert [reward for reward, _ in agent.heard] == result.batch["rewards"].tolist()
    assert [done for _, done in agent.heard] == result.batch["terminated"].tolist()
    assert env.step == 50


def test_the_range_must_begin_where_the_environment_stands():
    with pytest.raises(StageError, match="begins at step 5, and the environment stands at step 0"):
        rollout.rollout(always(), opened(), 5, 9)


def test_an_environment_is_reset_in_the_step_where_it_ended():
    env = opened()
    batch = rollout.rollout(always(), env, 0, 49).batch
    after = np.nonzero(batch["terminated"])[0] + 1
    assert np.abs(batch["observations"][after]).max() < 0.051  # where CartPole's resets are


@pytest.mark.parametrize("uses", ["gymnasium/CartPole-v1", "gymnasium/Taxi-v4", "gymnasium/Pendulum-v1"])
def test_one_environment_in_a_batch_is_one_alone_but_for_the_axis(uses):
    single, batch = opened(spec_of(uses)), opened(spec_of(uses, num_envs=1))
    space = single.simulators[0].environment.action_space
    alone = rollout.rollout(Wanderer(space), single, 0, 299)
    among = rollout.rollout(Wanderer(space, 1), batch, 0, 299)
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        assert np.array_equal(alone.batch[name], among.batch[name][:, 0])
    assert np.array_equal(alone.trace["hash"], among.trace["hash"][:, 0])
    assert alone.stats == among.stats


def test_a_batch_gives_each_environment_what_its_own_seeds_give():
    env = opened(spec_of("gymnasium/CartPole-v1", num_envs=3))
    batch = rollout.rollout(Wanderer(env.simulators[0].environment.action_space, 3), env, 0, 99).batch
    assert batch["observations"].shape == (100, 3, 4)
    assert len({tuple(row) for row in batch["observations"][0]}) == 3


def test_num_envs_asks_for_a_vectorized_agent():
    with pytest.raises(StageError, match="takes one observation at a time") as caught:
        rollout.rollout(always(), opened(spec_of("gymnasium/CartPole-v1", num_envs=2)), 0, 9)
    assert "vectorized = True" in caught.value.hint


def test_a_buffer_that_agent_and_environment_use_again_is_safe():
    class Reusing(Scripted):
        def step(self, observation):
            observation[:] = 0  # mutates what it was shown
            self.buffer[:] = 0.1 * self.steps
            self.steps += 1
            return {"action": self.buffer, "extras": {"buffer": self.buffer}}

        buffer = np.zeros(1, np.float32)

    batch = rollout.rollout(Reusing(None), opened(spec_of("gymnasium/Pendulum-v1")), 0, 9).batch
    assert batch["actions"][:, 0].tolist() == pytest.approx([0.1 * step for step in range(10)])
    assert np.abs(batch["observations"]).min() > 0
    assert np.array_equal(batch["extras"]["buffer"], batch["actions"])


def test_not_a_number_may_be_observed():
    batch = rollout.rollout(always(), faulty(observation=0), 0, 9).batch
    assert batch["observations"].tolist() == [0] * 10
    env = opened(spec_of("tests.unit.runtime.test_rollout:Fog"))
    assert np.isnan(rollout.rollout(always(), env, 0, 9).batch["observations"]).any()


class Fog(Faulty):
    def deterministic_reset(self, seed):
        return np.array([np.nan]), {}

    def step(self, action):
        return np.array([np.nan]), 1.0, False, False, {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"action": 2}, "the agent's action: 2 is outside of 0 to 1"),
        ({"action": np.array([0, 1])}, "expected int"),
        ({"action": 0.5}, "the agent's action: float 0.5, expected int"),
        ({}, "must give a dict with 'action'"),
        (None, "must give a dict with 'action'"),
        ({"action": 1, "extra": {}}, "gave 'extra', which the loop doesn't know: did you mean 'extras'"),
        ({"action": 1, "extras": {"value": 0.5}}, "gave the extras value, and none at the first step"),
    ],
    ids=repr,
)
def test_an_answer_that_cannot_be_used_is_named_with_its_step(answer, message):
    agent = Scripted(lambda step: answer if step == 7 else {"action": step % 2})
    with pytest.raises(StageError, match=message) as caught:
        rollout.rollout(agent, opened(), 0, 99)
    assert caught.value.step == 7


def test_extras_must_stay_what_they_were():
    agent = Scripted(lambda step: {"action": 0, "extras": {"value": np.zeros(1 + (step == 4))}})
    with pytest.raises(StageError, match=r"shape \(2,\), expected float64 of shape \(1,\)") as caught:
        rollout.rollout(agent, opened(), 0, 9)
    assert caught.value.step == 4


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"reward": float("nan")}, "the reward.* is nan"),
        ({"reward": float("inf")}, "the reward.* is inf"),
        ({"reward": None}, "the reward raised TypeError"),
        ({"reward": "raise"}, "the environment's step raised RuntimeError: it broke"),
        ({"observation": "fog"}, "the observation: str 'fog', expected int"),
    ],
    ids=str,
)
def test_what_an_environment_may_not_give_is_named_with_its_step(outcome, message, num_envs):
    agent = Scripted(lambda step: {"action": [1] * num_envs if num_envs else 1})
    agent.vectorized = num_envs is not None
    with pytest.raises(StageError, match=message) as caught:
        rollout.rollout(agent, faulty(num_envs=num_envs, **outcome), 0, 9)
    assert caught.value.step == 3


def test_the_story_of_an_agents_failure_is_its_own():
    def answer(step):
        if step == 5:
            raise ValueError("lost")
        return {"action": 1}

    with pytest.raises(StageError, match=r"at step 5: agent.step raised ValueError: lost") as caught:
        rollout.rollout(Scripted(answer), opened(), 0, 9)
    assert 'raise ValueError("lost")' in caught.value.story
    assert "dsec/runtime" not in caught.value.story


def test_what_is_raised_between_steps_goes_through():
    def progress(step):
        raise StageTimeout("too late", step=step)

    with pytest.raises(StageTimeout):
        rollout.rollout(always(), opened(), 0, 9, during=During(progress=progress))


def test_a_reward_function_replaces_the_reward():
    def reward(step):
        return 10.0 * step.step + step.reward

    agent, env = always(), opened()
    result = rollout.rollout(agent, env, 0, 19, reward=reward)
    assert result.batch["rewards"].tolist() == [10.0 * step + 1 for step in range(20)]
    assert [heard for heard, _ in agent.heard] == result.batch["rewards"].tolist()
    assert "reward_components" not in result.batch


@pytest.mark.parametrize("num_envs", [None, 2])
def test_components_of_a_reward_are_added_up_and_kept(num_envs):
    def reward(step):
        return {"step": float(step.step), "action": float(step.action), "episode": float(step.episode)}

    env = opened(spec_of("gymnasium/CartPole-v1", num_envs=num_envs))
    agent = Wanderer(env.simulators[0].environment.action_space, num_envs)
    batch = rollout.rollout(agent, env, 0, 299, reward=reward).batch
    parts = batch["reward_components"]
    assert sorted(parts) == ["action", "episode", "step"]
    assert np.array_equal(sum(parts.values()), batch["rewards"])
    assert np.array_equal(parts["action"], batch["actions"])


def test_components_must_stay_the_same():
    def reward(step):
        return {"a": 1.0} if step.step < 5 else {"b": 1.0}

    with pytest.raises(StageError, match="gave the components b, and a at the first step") as caught:
        rollout.rollout(always(), opened(), 0, 9, reward=reward)
    assert caught.value.step == 5


def test_a_reward_function_that_counts_is_found():
    counted = []

    def reward(step):
        counted.append(step)
        return float(len(counted))

    with pytest.raises(StageError, match=r"gave 1\.0, then 2\.0 for the same step: it is not pure"):
        rollout.rollout(always(), opened(), 0, 9, reward=reward)


def test_a_reward_function_that_raises_says_so():
    def reward(step):
        return 1.0 / 0.0

    with pytest.raises(StageError, match="the reward function raised ZeroDivisionError") as caught:
        rollout.rollout(always(), opened(), 0, 9, reward=reward)
    assert caught.value.step == 0


@pytest.mark.parametrize(
    ("first", "last", "every", "called"),
    [
        (0, 100, 25, [25, 50, 75, 100]),
        (0, 99, 25, [25, 50, 75, 99]),
        (26, 60, 25, [50, 60]),
        (25, 25, 25, [25]),
        (0, 0, 25, [0]),
        (0, 3, 1, [1, 2, 3]),
        (0, 5, 7, [5]),
    ],
)
def test_states_are_asked_for_at_absolute_steps_and_at_the_end(first, last, every, called):
    env, states = opened(), []
    if first:
        rollout.rollout(always(), env, 0, first - 1)

    def on_state(step):
        assert env.step == step + 1
        states.append((step, state.flatten(env.tree()).structure))

    rollout.rollout(always(), env, first, last, during=During(every=every, on_state=on_state))
    assert [step for step, _ in states] == called
    other = opened()
    for step, structure in states:
        rollout.rollout(always(), other, other.step, step)
        assert state.flatten(other.tree()).structure == structure


def test_recovery_points_are_offered_by_the_clock_and_do_not_show():
    space = opened().simulators[0].environment.action_space
    plain = rollout.rollout(Wanderer(space), opened(), 0, 999)
    offered = []
    during = During(offer=lambda step, make: offered.append((step, round_trip(make()))), clock=Ticking(3.0))
    agent, env = Wanderer(space), opened()
    watched = rollout.rollout(agent, env, 0, 999, during=during)
    assert state.equal(plain.batch, watched.batch) and state.equal(plain.trace, watched.trace)
    assert plain.stats == watched.stats
    assert len(offered) > 5
    assert all(tree["env"]["step"] == step for step, tree in offered)


def test_slow_steps_are_offered_soon_and_fast_ones_are_not_asked_often():
    slow, fast = [], []
    rollout.rollout(always(), opened(), 0, 99, during=During(progress=slow.append, clock=Ticking(5.0)))
    rollout.rollout(always(), opened(), 0, 2559, during=During(progress=fast.append, clock=Ticking(1e-4)))
    assert len(slow) > 30
    assert len(fast) < 15


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("uses", ["gymnasium/CartPole-v1", "dsec.testing.environments:Hidden"])
def test_from_a_recovery_point_it_goes_on_exactly(uses, num_envs):
    spec = spec_of(uses, num_envs=num_envs)
    space = opened(spec).simulators[0].environment.action_space
    offered, agents, env = [], [], opened(spec)
    agent = Wanderer(space, num_envs)

    def offer(step, make):
        offered.append(round_trip(make()))
        agents.append(round_trip(agent.state_dict()))

    def reward(step):
        return {"own": step.reward, "late": float(step.step)}

    whole = rollout.rollout(
        agent, env, 0, 399, reward=reward, during=During(offer=offer, offer_seconds=1.0, clock=Ticking(0.6))
    )
    for tree, kept in zip(offered[::3], agents[::3], strict=True):
        again, restored = Wanderer(space, num_envs), environments.open_env(spec, root=3)
        again.load_state_dict(kept)
        result = rollout.rollout(again, restored, 0, 399, reward=reward, resume=tree)
        assert state.equal(result.batch, whole.batch)
        assert state.equal(result.trace, whole.trace)
        assert result.stats == whole.stats
        assert state.equal(restored.tree(), env.tree())


def test_one_episode_ends_where_it_ends():
    env = environments.open_env(CARTPOLE, root=0)
    env.begin(11)
    result = rollout.episode(always(), env)
    assert result.stats["episodes"] == 1
    assert result.stats["return_mean"] == len(result.batch["rewards"])
    assert result.batch["terminated"].tolist() == [False] * (result.stats["steps"] - 1) + [True]
    assert np.array_equal(result.batch["last_observation"], result.batch["final_observations"]["observation"][0])
    assert set(result.trace["episode"].tolist()) == {0}


def test_one_episode_stops_at_its_limit():
    env = environments.open_env(spec_of("gymnasium/Pendulum-v1"), root=0)
    env.begin(11)
    result = rollout.episode(always(np.zeros(1, np.float32)), env, limit=50)
    assert (result.stats["steps"], result.stats["episodes"]) == (50, 0)


def test_actions_without_a_space_are_read_by_the_first():
    env = opened(spec_of("dsec.testing.environments:Corridor"))
    agent = Scripted(lambda step: {"action": 1 if step < 5 else "left"})
    with pytest.raises(StageError, match="the agent's action: str 'left', expected int") as caught:
        rollout.rollout(agent, env, 0, 9)
    assert caught.value.step == 5
    assert Corridor
