"""The chained hash, the seeds of episodes and the ids of what a rollout makes stay what they are in format 1.

Environment and agent compute with whole numbers alone, so no library and no processor has a say.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from dsec.runtime import chain, environments, rollout
from dsec.store import anchors
from dsec.testing.environments import spec_of

GOLDEN = Path(__file__).parent / "v1" / "rollout.json"
WALK = "golden_walk:Walk"
STEPS = 600


class Counter:
    """Goes right, and left at every third step."""

    vectorized = False

    def __init__(self, num_envs: int | None = None) -> None:
        self.steps = itertools.count()
        self.num_envs = num_envs
        self.vectorized = num_envs is not None

    def step(self, observation: Any) -> dict[str, Any]:
        step = next(self.steps)
        action = int(step % 3 != 2)
        return {"action": action if self.num_envs is None else [action ^ (i & 1) for i in range(self.num_envs)]}

    def on_reward(self, reward: Any, done: Any, info: Any) -> None:
        pass


def made(num_envs: int | None) -> dict[str, Any]:
    env = environments.open_env(spec_of(WALK, num_envs=num_envs), root=7, label="shard=1")
    env.start()
    found = rollout.rollout(Counter(num_envs), env, 0, STEPS - 1)
    hashes = found.trace["hash"]
    return {
        "hashes": {str(step): hashes[step].tobytes().hex() for step in (0, 254, 255, 256, STEPS - 1)},
        "trace": anchors.identify(found.trace),
        "batch": anchors.identify(found.batch),
        "env": anchors.identify(env.tree()),
        "stats": found.stats,
    }


@pytest.mark.parametrize("num_envs", [None, 3])
def test_a_rollout_is_that_of_format_1(num_envs: int | None) -> None:
    assert made(num_envs) == json.loads(GOLDEN.read_text())[str(num_envs)]


def test_links_are_those_of_format_1() -> None:
    first = chain.link(chain.START, b"row")
    assert [first.hex(), chain.link(first, b"").hex()] == json.loads(GOLDEN.read_text())["links"]
