"""The ready-made stage bodies as a plan sees them: arguments, outputs, specs, and their semantics number.

Kept apart from the bodies themselves, so that loading and keying a plan imports neither them nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsec.core import canon

__all__ = ["BODIES", "RUNTIME_SEMANTICS", "Body", "code_digest"]

RUNTIME_SEMANTICS = 1
"""Raised when the runtime's loop would give other results for the same call."""


@dataclass(frozen=True, slots=True)
class Body:
    """What a plan may say about one ready-made body."""

    semantics: int
    """Raised when results would change for the same inputs."""
    inputs: Mapping[str, bool] = field(default_factory=dict)
    """Argument name -> required; ``**`` stands for any other name."""
    outputs: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    """Names that ``with`` may have -> ``int``, ``float``, ``bool`` or ``str``."""
    specs: tuple[str, ...] = ()
    """Specs it instantiates, and so has in its key: agent, env, reward."""
    named_stream: bool = True
    """Whether the stage's path is in the key; False where lane paths alone decide."""
    steps: bool = False
    """Whether it covers a range of steps."""


BODIES: Mapping[str, Body] = {
    "dsec.stages:init_agent": Body(1, outputs=("agent",), specs=("agent", "env"), named_stream=False),
    "dsec.stages:init_env": Body(1, outputs=("env",), specs=("env",), named_stream=False),
    "dsec.stages:rollout": Body(
        1,
        inputs={"agent": False, "env": False, "state": False},
        outputs=("agent", "env", "state", "batch", "trace"),
        specs=("agent", "env", "reward"),
        named_stream=False,
        steps=True,
    ),
    "dsec.stages:learn": Body(1, inputs={"agent": True, "batch": True}, outputs=("agent", "metrics"), specs=("agent",)),
    "dsec.stages:evaluate": Body(
        1,
        inputs={"agent": True},
        outputs=("score", "trace"),
        config={"episodes": "int", "max_episode_steps": "int"},
        specs=("agent", "env", "reward"),
        named_stream=False,
    ),
    "dsec.stages:score": Body(1, inputs={"batch": True}, outputs=("batch",), specs=("reward",)),
    "dsec.stages:fuse": Body(1, inputs={"agents": True}, outputs=("agent",), specs=("agent",)),
    "dsec.stages:table": Body(1, inputs={"**": True}, outputs=("table",)),
}
"""By ``uses``. The two ``init`` bodies stand behind ``init.agent`` and ``init.env``; a plan does not name them."""


def code_digest(uses: str) -> canon.Digest:
    """What stands for a ready-made body's code in keys: its semantics number and the runtime's."""
    return canon.digest("dsec/semantics/1", [uses, BODIES[uses].semantics, RUNTIME_SEMANTICS])
