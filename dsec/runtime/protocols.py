"""What users write, as the runtime calls it: environments, agents, rewards and bodies.

All are Protocols: nothing has to be inherited. Optional members stand in the docstrings, since a Protocol has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from dsec.core.records import Step

__all__ = ["Agent", "Environment", "RewardFn", "StageFn"]


@runtime_checkable
class Environment(Protocol):
    """A simulator whose future is decided by its seed and the actions it is given.

    Optional attributes:

    - ``state_dict() -> tree`` and ``load_state_dict(tree)``: everything that decides the future, as a state tree;
      without them the episode's actions are replayed on a fresh instance, which is exact but slower;
    - ``observation_space`` and ``action_space``: spaces of gymnasium; without them first values show what to expect;
    - ``close()``.
    """

    def deterministic_reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Begin an episode that ``seed`` (in [0, 2**31)) decides; gives observation and info."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once; gives observation, reward, terminated, truncated, info."""

    def state_hash(self) -> bytes:
        """16 bytes over everything that decides the future."""


@runtime_checkable
class Agent(Protocol):
    """Who acts.

    Optional: ``learn(batch)``, ``state_dict()`` and ``load_state_dict(tree)``, and ``vectorized = True``, which asks
    for all environments of a ``num_envs`` batch at once: observations (num_envs, ...), actions the same, and arrays
    in `on_reward`.
    """

    def step(self, observation: Any) -> Mapping[str, Any]:
        """Choose: a dict with ``action``, and perhaps ``extras``, a dict of arrays that the batch keeps."""

    def on_reward(self, reward: Any, done: Any, info: Any) -> None:
        """Hear what came of it: reward (float), done (terminated or truncated), the environment's info.

        In a batch: float64 (num_envs,), bool (num_envs,), and a list of infos.
        """


class RewardFn(Protocol):
    """A pure function of one step; the environment's own reward is ``step.reward``."""

    def __call__(self, step: Step) -> float | Mapping[str, float]:
        """The reward, or its components by name, which are added up and kept apart in the batch."""


class StageFn(Protocol):
    """A body: ``def body(ctx, *, inputs..., with...) -> {"output": tree}``."""

    def __call__(self, ctx: Any, **arguments: Any) -> Mapping[str, Any]:
        """Outputs by name."""
