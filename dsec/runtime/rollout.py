"""The loop between an agent and its environment.

It runs in blocks: within one nothing is looked at but the step itself; between two, columns are flushed, clocks read,
recovery points offered. A block ends at the latest at the next multiple of 256 steps and at every step somebody asked
to be called after. Where blocks end, and where a range is split over calls, never shows in what comes out.

The order within a step: the agent sees the observation and acts; the environment steps; the reward function, if there
is one, gives the reward; the agent hears of it; and an environment whose episode ended is reset.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import getrefcount as refs
from typing import Any, NoReturn

import numpy as np

from dsec.core.records import Step
from dsec.errors import DsecError, StageError
from dsec.runtime import chain, failures, layouts
from dsec.runtime.environments import LiveEnv
from dsec.runtime.protocols import Agent, RewardFn
from dsec.runtime.trace import Columns, Ended

__all__ = ["During", "RolloutResult", "episode", "rollout"]

BLOCK_SECONDS = 1.0
"""How long a block may take, about; slow steps make short blocks."""

FIRST_BLOCK = 16
"""Steps of the first block, before anything is known of their pace."""

_CHOICE = frozenset({"action", "extras"})


@dataclass(frozen=True, slots=True)
class During:
    """Who is called while a rollout runs; none of it changes what comes out."""

    every: int | None = None
    """Call ``on_state`` after each absolute step k > 0 that this divides, and after the last one."""
    on_state: Callable[[int], None] | None = None
    """Called with k when environment and agent stand right after step k; only where ``every`` is given."""
    offer: Callable[[int, Callable[[], dict[str, Any]]], None] | None = None
    """Called with the next step and a function that makes the recovery tree, every `offer_seconds`, between steps."""
    offer_seconds: float = 10.0
    progress: Callable[[int], None] | None = None
    """Called with the next step after every block; what it raises (a deadline) ends the rollout as it is."""
    clock: Callable[[], float] = time.monotonic
    """Seconds from some beginning."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """What a range of steps gave; agent and environment themselves stand after its last step."""

    batch: dict[str, Any]
    trace: dict[str, Any]
    stats: dict[str, Any]


def rollout(
    agent: Agent,
    env: LiveEnv,
    first: int,
    last: int,
    *,
    reward: RewardFn | None = None,
    resume: Mapping[str, Any] | None = None,
    during: During | None = None,
) -> RolloutResult:
    """Let the agent act in the environment for the absolute steps ``first`` to ``last``, inclusive.

    Parameters
    ----------
    agent
        Stands at step ``first``, or where ``resume`` was cut.
    env
        Stands at step ``first``; with ``resume`` any environment of the same spec, it is loaded.
    first, last
        The range.
    reward
        Replaces the environment's own reward.
    resume
        What ``make_tree()`` of an offered recovery point gave. It holds no agent: whoever keeps recovery points keeps
        the agent's state beside it.
    during
        Who is called meanwhile.

    Raises
    ------
    StageError
        If users' code raises or gives what it may not; ``step`` and ``story`` say where.
    """
    columns = Columns(first, env.size, env.batched)
    if resume is not None:
        env.load(resume["env"])
        columns.observation_layout = env.observation_layout
        columns.load(resume["columns"])
    elif env.step != first:
        raise StageError(f"the range begins at step {first}, and the environment stands at step {env.step}")
    loop = _loop(agent, env, columns, reward)
    _run(loop, last, during or During())
    return RolloutResult(columns.batch(env.observation), columns.trace(), columns.stats())


def episode(agent: Agent, env: LiveEnv, *, reward: RewardFn | None = None, limit: int | None = None) -> RolloutResult:
    """One whole episode, at most ``limit`` steps, in an environment that was begun or stands at an episode's start.

    The environment is not reset at the end, so nothing but `LiveEnv.begin` comes after it.
    """
    if env.batched:
        raise StageError("one episode is that of one environment", hint="open the spec without num_envs")
    columns = Columns(env.step, env.size, env.batched)
    loop = _loop(agent, env, columns, reward)
    loop.once = True
    while not columns.ended and (limit is None or env.step - columns.first < limit):
        stop = (env.step // chain.STATE_EVERY + 1) * chain.STATE_EVERY
        loop.block(stop if limit is None else min(stop, columns.first + limit))
        loop.flush()
    return RolloutResult(columns.batch(env.observation), columns.trace(), columns.stats())


def _run(loop: _Loop, last: int, during: During) -> None:
    env = loop.env
    limit, offered = FIRST_BLOCK, during.clock()
    while env.step <= last:
        began = during.clock()
        loop.block(_stop(env.step, last, during.every, limit))
        loop.flush()
        now = during.clock()
        limit = _pace(limit, now - began)
        if during.on_state is not None and _is_asked(env.step - 1, last, during.every):
            during.on_state(env.step - 1)
        if during.progress is not None:
            during.progress(env.step)
        if during.offer is not None and now - offered >= during.offer_seconds and env.step <= last:
            during.offer(env.step, lambda: {"env": env.tree(), "columns": loop.columns.tree()})
            offered = during.clock()


def _stop(step: int, last: int, every: int | None, limit: int) -> int:
    stop = min(last + 1, step + limit, (step // chain.STATE_EVERY + 1) * chain.STATE_EVERY)
    return stop if every is None else min(stop, max(1, math.ceil(step / every)) * every + 1)


def _is_asked(step: int, last: int, every: int | None) -> bool:
    return every is not None and (step == last or (step > 0 and step % every == 0))


def _pace(limit: int, seconds: float) -> int:
    fitting = chain.STATE_EVERY if seconds <= 0 else int(limit * BLOCK_SECONDS / seconds)
    return max(1, min(chain.STATE_EVERY, fitting))


def _loop(agent: Agent, env: LiveEnv, columns: Columns, reward: RewardFn | None) -> _Loop:
    if not env.batched:
        return _Single(agent, env, columns, reward)
    if getattr(agent, "vectorized", False):
        return _Batch(agent, env, columns, reward)
    raise StageError(
        f"num_envs: {env.size} with {type(agent).__qualname__}, which takes one observation at a time",
        hint="give the agent `vectorized = True` and observations (num_envs, ...), or leave num_envs out",
    )


class _Loop:
    """What both loops share: everything but the steps themselves."""

    def __init__(self, agent: Agent, env: LiveEnv, columns: Columns, reward: RewardFn | None) -> None:
        self.agent = agent
        self.env = env
        self.columns = columns
        self.reward = reward
        self.once = False
        self._pure = False
        columns.observation_layout = env.observation_layout
        if env.action_layout is not None:
            columns.action_layout = env.action_layout

    def block(self, stop: int) -> None:
        """Run the steps before ``stop``."""
        raise NotImplementedError

    def flush(self) -> None:
        """Put the steps since the last flush into columns and chain."""
        env = self.env
        try:
            hashes = env.state_hashes() if env.step % chain.STATE_EVERY == 0 else []
        except Exception as error:
            self.fail("the environment's state_hash", error, env.step - 1)
        unstarted = self.once and bool(self.columns.ended)
        env.chain = self.columns.flush(env.step, [k + unstarted for k in env.episode], env.chain, hashes)

    def choosing(self) -> tuple[Callable[[Any], Any], Callable[[Any], bytes]]:
        """How an action is read and packed; without a space the first one shows it."""
        if self.env.action_layout is not None:
            return self.env.action_layout.read, self.env.action_layout.pack
        return lambda action: self.learned(action).read(action), lambda action: self.learned(action).pack(action)

    def learned(self, action: Any) -> layouts.Layout:
        """The layout of actions, from the first of them."""
        if self.env.action_layout is None:
            self.columns.action_layout = self.env.learn_actions(action)
        return self.columns.action_layout

    def take_extras(self, choice: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Keep what the agent's answer holds besides the action; gives the columns of it."""
        for name in choice:
            if name not in _CHOICE:
                near = difflib.get_close_matches(name, _CHOICE, n=1)
                wanted = f"did you mean {near[0]!r}?" if near else "arrays to be kept stand in 'extras'"
                raise _Wrong(f"agent.step gave {name!r}, which the loop doesn't know: {wanted}")
        extras = choice.get("extras") or {}
        columns = self.columns
        if step == columns.first:
            columns.define_extras(extras)
        _same_names("agent.step gave the extras", extras, columns.extras)
        for name, kept in columns.extras.items():
            kept.append(columns.extra_layouts[name].read(extras[name]))
        return columns.extras

    def score(self, step: Step) -> float:
        """The reward function's answer, its components kept."""
        answer = self._asked(step)
        if not self._pure:
            again = self._asked(step)
            if repr(again) != repr(answer):
                raise _Wrong(f"the reward function gave {answer!r}, then {again!r} for the same step: it is not pure")
            self._pure = True
        parts = {name: float(value) for name, value in answer.items()} if isinstance(answer, Mapping) else {}
        columns = self.columns
        if step.step == columns.first and not columns.rewards:
            columns.components = {name: [] for name in sorted(parts)}
        _same_names("the reward function gave the components", parts, columns.components)
        for name, values in columns.components.items():
            values.append(parts[name])
        return math.fsum(parts.values()) if isinstance(answer, Mapping) else float(answer)

    def _asked(self, step: Step) -> Any:
        assert self.reward is not None
        try:
            return self.reward(step)
        except Exception as error:
            self.fail("the reward function", error, step.step)

    def fail(self, doing: str, error: Exception, step: int) -> NoReturn:
        """Turn whatever users' code did wrong into the error that says so."""
        if isinstance(error, DsecError):
            raise error
        if isinstance(error, _Wrong):
            raise StageError(str(error), step=step) from None
        if isinstance(error, layouts.LayoutError):
            raise StageError(f"{doing}: {error}", step=step) from None
        if doing == _CHOICE_READ and isinstance(error, KeyError | TypeError | IndexError):
            raise StageError("agent.step must give a dict with 'action'", step=step) from None
        raise failures.failed(doing, error, step=step) from error


class _Wrong(ValueError):
    """An answer of users' code that can't be used."""


_ACT = "agent.step"
_CHOICE_READ = "the agent's action"
_STEP = "the environment's step"
_SEE = "the observation"
_PAID = "the reward"
_HEAR = "agent.on_reward"
_RESET = "the environment's reset"


class _Single(_Loop):
    """One environment, no leading axis."""

    def block(self, stop: int) -> None:
        """Run the steps before ``stop``; whatever is called at each step is bound once."""
        env, columns, extras = self.env, self.columns, dict[str, Any](self.columns.extras)
        act, hear, rescored = self.agent.step, self.agent.on_reward, self.reward is not None
        see, pack = env.observation_layout.read, env.observation_layout.pack
        choose, pack_action = self.choosing()
        put, put_action, put_reward = columns.observations.append, columns.actions.append, columns.rewards.append
        low, high = _plain_range(env.action_layout)
        kind, dtype, shape = _plain_array(env.observation_layout)
        probe: Any = np.empty(0)
        alone = refs(probe)  # an array that nobody else holds, and that is no view, needs no copy
        step_env, observation, total = env.simulators[0].step, env.observations[0], env.episode_return[0]
        step, begun, doing = env.step, env.step - env.episode_length[0], _ACT
        try:
            for step in range(env.step, stop):
                put(pack(observation))
                choice, doing = act(observation), _CHOICE_READ
                action = choice["action"]
                if type(action) is not int or not low <= action <= high:
                    action = choose(action)
                if len(choice) != 1 or extras:
                    extras = self.take_extras(choice, step)
                put_action(pack_action(action))
                doing = _STEP
                (shown, reward, terminated, truncated, info), doing = step_env(action), _SEE
                if (
                    type(shown) is not kind
                    or shown.dtype is not dtype
                    or shown.shape != shape
                    or shown.base is not None
                    or refs(shown) != alone
                ):
                    shown = see(shown)
                doing = _PAID
                reward = float(reward)
                if rescored:
                    at = (step, env.episode[0])
                    reward = self.score(Step(observation, action, shown, reward, terminated, truncated, info, *at))
                if reward - reward != 0.0:
                    raise _Wrong(f"the reward is {reward}")
                put_reward(reward)
                total += reward
                observation, done, doing = shown, bool(terminated or truncated), _HEAR
                hear(reward, done, info)
                if done:
                    doing = _RESET
                    ended = Ended(step, 0, bool(terminated), bool(truncated), total, step + 1 - begun, pack(shown))
                    observation, total, begun = self._end(ended, shown), 0.0, step + 1
                    step_env = env.simulators[0].step
                    if self.once:
                        break
                doing = _ACT
        except Exception as error:
            self.fail(doing, error, step)
        env.stand(step + 1, [observation], [total], [step + 1 - begun])

    def _end(self, ended: Ended, shown: Any) -> Any:
        self.columns.ended.append(ended)
        return shown if self.once else self.env.next_episode(0)


class _Batch(_Loop):
    """All environments of a batch, step by step; the agent sees and answers for all at once."""

    def block(self, stop: int) -> None:
        """Run the steps before ``stop``."""
        for step in range(self.env.step, stop):
            self._step(step)
            self.env.step = step + 1

    def _step(self, step: int) -> None:
        env, columns, doing = self.env, self.columns, _ACT
        pack = env.observation_layout.pack
        try:
            columns.observations += [pack(observation) for observation in env.observations]
            choice = self.agent.step(env.observation)
            doing = _CHOICE_READ
            actions = self._actions(choice["action"])
            if len(choice) != 1 or columns.extras:
                self.take_extras(choice, step)
            columns.actions += [columns.action_layout.pack(action) for action in actions]
            doing = _STEP
            outcomes = [simulator.step(action) for simulator, action in zip(env.simulators, actions, strict=True)]
        except Exception as error:
            self.fail(doing, error, step)
        rewards = self._rewards(step, actions, outcomes)
        dones = [bool(terminated or truncated) for _, _, terminated, truncated, _ in outcomes]
        try:
            doing = _HEAR
            self.agent.on_reward(np.array(rewards), np.array(dones), [outcome[4] for outcome in outcomes])
            doing = _RESET
            for index, done in enumerate(dones):
                if done:
                    self._end(step, index, outcomes[index])
        except Exception as error:
            self.fail(doing, error, step)

    def _actions(self, given: Any) -> list[Any]:
        layout = self.env.action_layout or self.learned(layouts.first_of(layouts.loose(given)))
        return layout.split(given, self.env.size)

    def _rewards(self, step: int, actions: list[Any], outcomes: list[Any]) -> list[float]:
        """Read each outcome: its observation into the environment, its reward into the columns."""
        env, columns, rewards = self.env, self.columns, []
        read, doing = env.observation_layout.read, _SEE
        try:
            for index, (shown, reward, terminated, truncated, info) in enumerate(outcomes):
                doing = _SEE
                before, env.observations[index] = env.observations[index], read(shown)
                doing = _PAID
                value = float(reward)
                if self.reward is not None:
                    at = (step, env.episode[index])
                    after = env.observations[index]
                    value = self.score(Step(before, actions[index], after, value, terminated, truncated, info, *at))
                if value - value != 0.0:
                    raise _Wrong(f"the reward of environment {index} is {value}")
                columns.rewards.append(value)
                env.episode_return[index] += value
                env.episode_length[index] += 1
                rewards.append(value)
        except Exception as error:
            self.fail(doing, error, step)
        return rewards

    def _end(self, step: int, index: int, outcome: Any) -> None:
        env = self.env
        final = env.observation_layout.pack(env.observations[index])
        value, length = env.episode_return[index], env.episode_length[index]
        self.columns.ended.append(Ended(step, index, bool(outcome[2]), bool(outcome[3]), value, length, final))
        env.next_episode(index)


def _plain_range(layout: layouts.Layout | None) -> tuple[int, int]:
    """The ints that need no reading, least and greatest: most actions are such, and a call is a hundredth of a step."""
    if isinstance(layout, layouts.Scalar) and layout.kind is int and layout.low is not None and layout.high is not None:
        return layout.low, layout.high
    return 1, 0


def _plain_array(layout: layouts.Layout) -> tuple[Any, Any, Any]:
    """Type, dtype and shape of arrays that need no reading; a type that nothing has for other layouts."""
    return (np.ndarray, layout.dtype, layout.shape) if isinstance(layout, layouts.Array) else (None, None, None)


def _same_names(what: str, found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if found.keys() != known.keys():
        names = [", ".join(sorted(some)) or "none" for some in (found, known)]
        raise _Wrong(f"{what} {names[0]}, and {names[1]} at the first step")
