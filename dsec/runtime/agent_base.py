"""The convenience base of agents; see `dsec.runtime.protocols.Agent` for what is asked of any agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Agent"]


class Agent:
    """An agent that keeps its configuration and hears rewards without doing anything.

    Give it ``step``, and where it learns ``learn(batch)``. Its state is what ``state_dict()`` gives, or else its
    attributes; those that come from ``session_config`` as they are (the mapping itself, spaces) are left out.

    Parameters
    ----------
    session_config
        See `dsec.runtime.agents.SessionConfig`.
    """

    vectorized = False
    """Whether it takes all environments of a ``num_envs`` batch at once."""

    def __init__(self, session_config: Mapping[str, Any]) -> None:
        self.session_config = session_config
        self.rng = session_config["rng"]

    def step(self, observation: Any) -> dict[str, Any]:
        """Choose: a dict with ``action``, and perhaps ``extras``, a dict of arrays that the batch keeps."""
        raise NotImplementedError(f"{type(self).__qualname__} has no step(observation)")

    def on_reward(self, reward: Any, done: Any, info: Any) -> None:
        """Hear what came of the last action."""
