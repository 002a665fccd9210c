"""Columns: what a rollout collects, and the batch, trace and stats made of it.

Packed values and references are appended step by step; `Columns.flush` turns what came since into arrays and chained
hashes. Where it is flushed, and where a range is split over calls, never shows: joined, the parts are the whole.

Rewards are float64 everywhere, as the environment gave them; who learns in float32 converts once, and nothing is lost.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dsec.runtime import chain, layouts

__all__ = ["Columns", "Ended", "exact_sum", "joined"]


class Ended(NamedTuple):
    """The end of one episode."""

    step: int
    """Absolute step at which it ended."""
    env: int
    """Which environment of the batch, 0 where there is one."""
    terminated: bool
    truncated: bool
    value: float
    """Its return, also over steps of earlier calls."""
    length: int
    """Its steps, also those of earlier calls."""
    observation: bytes
    """The observation that it ended with, packed."""


class Columns:
    """The steps of one range, by column.

    Parameters
    ----------
    first
        First absolute step of the range.
    size
        Environments.
    batched
        Whether arrays have an axis of environments after that of steps.
    """

    def __init__(self, first: int, size: int, batched: bool) -> None:
        self.first = first
        self.size = size
        self.batched = batched
        self.observation_layout: layouts.Layout = layouts.Plain()
        self.action_layout: layouts.Layout = layouts.Plain()
        self.observations: list[bytes] = []
        """Packed, one for each step and environment since the last flush; so are actions and rewards."""
        self.actions: list[bytes] = []
        self.rewards: list[float] = []
        self.extras: dict[str, list[npt.NDArray[Any]]] = {}
        """What the agent added, one array for each step since the last flush."""
        self.extra_layouts: dict[str, layouts.Array] = {}
        """What each of these arrays looks like."""
        self.components: dict[str, list[float]] = {}
        """Parts of the reward by name, one for each step and environment since the last flush."""
        self.ended: list[Ended] = []
        """Episodes that ended in the range, by step and environment."""
        self._flushed = first
        self._counted = 0
        self._blocks: dict[str, list[Any]] = {}

    def define_extras(self, extras: Mapping[str, Any]) -> None:
        """What the agent adds at each step, from what it adds at the first one."""
        found = {name: np.asarray(layouts.loose(value)) for name, value in sorted(extras.items())}
        self._shape_extras({name: (value.dtype, value.shape) for name, value in found.items()})

    def _shape_extras(self, shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self.extras = {name: [] for name in shapes}
        self.extra_layouts = {n: layouts.Array(layouts.little(dtype), shape) for n, (dtype, shape) in shapes.items()}

    def flush(self, stop: int, episode: Sequence[int], links: Sequence[bytes], hashes: Sequence[bytes]) -> list[bytes]:
        """Turn the steps before ``stop`` into arrays; gives the last link of each environment's chain.

        Parameters
        ----------
        stop
            The step after the last one that was collected.
        episode
            Episode of each environment after the last step.
        links
            Chained hash of each environment before these steps.
        hashes
            State hash of each environment, mixed into the last row where ``stop`` is a multiple of
            `chain.STATE_EVERY`; empty elsewhere.
        """
        count = stop - self._flushed
        rewards = np.array(self.rewards, np.float64).reshape(count, self.size)
        flags, tails = self._flags(count)
        for index, state in enumerate(hashes):
            tails[index][count - 1] = tails[index].get(count - 1, b"") + state
        chains = [self._chain(index, rewards, flags, links[index], tails[index]) for index in range(self.size)]
        block = {
            "observations": self.observation_layout.unpack(self.observations),
            "actions": self.action_layout.unpack(self.actions),
            "rewards": rewards.reshape(-1),
            "flags": flags.reshape(-1),
            "episodes": _episodes(flags, episode).reshape(-1),
            "hashes": np.frombuffer(bytearray().join(_interleaved(chains)), np.uint8).reshape(-1, chain.SIZE),
            "extras": {name: self.extra_layouts[name].stack(values) for name, values in self.extras.items()},
            "components": {name: np.array(values, np.float64) for name, values in self.components.items()},
        }
        for name, values in block.items():
            self._blocks.setdefault(name, []).append(values)
        self._emptied(stop)
        return [hashed[-1] for hashed in chains]

    def _flags(self, count: int) -> tuple[npt.NDArray[np.uint8], list[dict[int, bytes]]]:
        flags = np.zeros((count, self.size), np.uint8)
        tails: list[dict[int, bytes]] = [{} for _ in range(self.size)]
        for end in self.ended[self._counted :]:
            flags[end.step - self._flushed, end.env] = end.terminated + 2 * end.truncated
            tails[end.env][end.step - self._flushed] = end.observation
        return flags, tails

    def _chain(self, index: int, rewards: Any, flags: Any, link: bytes, tails: Mapping[int, bytes]) -> list[bytes]:
        own = slice(index, None, self.size)
        heads = self.observations[own], self.actions[own]
        return chain.extend(link, heads, rewards[:, index], flags[:, index], tails)

    def _emptied(self, stop: int) -> None:
        self._flushed = stop
        self._counted = len(self.ended)
        columns: list[list[Any]] = [self.observations, self.actions, self.rewards]
        for column in columns + list(self.extras.values()) + list(self.components.values()):
            column.clear()

    def tree(self) -> dict[str, Any]:
        """What was flushed, as a state tree for a recovery point."""
        final = [end.observation for end in self.ended]
        return {
            "stop": self._flushed,
            "blocks": self._whole(),
            "ended": [list(end[:-1]) for end in self.ended],
            "final": self.observation_layout.unpack(final) if final else None,
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        """Inverse of `tree`; the layout of observations is set already."""
        layout = self.observation_layout
        final = layout.split(tree["final"], len(tree["ended"])) if tree["ended"] else []
        self.ended = [Ended(*[*end, layout.pack(seen)]) for end, seen in zip(tree["ended"], final, strict=True)]
        self._counted = len(self.ended)
        self._flushed = tree["stop"]
        self._blocks = {name: [values] for name, values in tree["blocks"].items()}
        self._shape_extras({name: (it.dtype, it.shape[1:]) for name, it in tree["blocks"]["extras"].items()})
        self.components = {name: [] for name in tree["blocks"]["components"]}

    def batch(self, last_observation: Any) -> dict[str, Any]:
        """The batch: arrays (steps, [num_envs,] ...).

        ``final_observations`` holds, for the episodes that ended in the range, ``row`` (step less the first step) and
        with ``num_envs`` also ``env``, and ``observation`` (n, ...), all in order of step and environment.
        """
        whole = self._whole()
        batch = {
            "kind": "batch",
            "first": self.first,
            "observations": self._folded(whole["observations"]),
            "actions": self._folded(whole["actions"]),
            "rewards": self._folded(whole["rewards"]),
            "terminated": self._folded(whole["flags"] & 1 != 0),
            "truncated": self._folded(whole["flags"] & 2 != 0),
            "extras": whole["extras"],
            "last_observation": last_observation,
            "final_observations": self._final(),
        }
        if whole["components"]:
            batch["reward_components"] = self._folded(whole["components"])
        return batch

    def _final(self) -> dict[str, Any]:
        final: dict[str, Any] = {"row": np.array([end.step - self.first for end in self.ended], np.int64)}
        if self.batched:
            final["env"] = np.array([end.env for end in self.ended], np.int64)
        final["observation"] = self.observation_layout.unpack([end.observation for end in self.ended])
        return final

    def trace(self) -> dict[str, Any]:
        """The trace: `core.records.TRACE_COLUMNS` as arrays (steps, [num_envs]); hashes are uint8 (..., 16)."""
        whole = self._whole()
        steps = np.repeat(np.arange(self.first, self._flushed, dtype=np.int64), self.size)
        columns = {
            "step": steps,
            "episode": whole["episodes"],
            "action": whole["actions"],
            "reward": whole["rewards"],
            "terminated": whole["flags"] & 1 != 0,
            "truncated": whole["flags"] & 2 != 0,
            "hash": whole["hashes"],
        }
        return {"kind": "trace", "first": self.first, **{name: self._folded(it) for name, it in columns.items()}}

    def stats(self) -> dict[str, Any]:
        """Scalars over the range; those of episodes are over episodes that ended in it, None where none did."""
        returns = [end.value for end in self.ended]
        lengths = [end.length for end in self.ended]
        rewards = self._whole()["rewards"]
        return {
            "steps": self._flushed - self.first,
            "episodes": len(returns),
            "reward_sum": exact_sum(rewards.tolist()),
            "return_mean": exact_sum(returns) / len(returns) if returns else None,
            "return_min": min(returns, default=None),
            "return_max": max(returns, default=None),
            "return_last": returns[-1] if returns else None,
            "length_mean": math.fsum(lengths) / len(lengths) if lengths else None,
        }

    def _whole(self) -> dict[str, Any]:
        """What was flushed, each column in one piece and kept so."""
        for name, blocks in self._blocks.items():
            if len(blocks) > 1:
                self._blocks[name] = [joined(blocks)]
        return {name: blocks[0] for name, blocks in self._blocks.items()}

    def _folded(self, values: Any) -> Any:
        if not self.batched:
            return values
        if isinstance(values, dict):
            return {name: self._folded(item) for name, item in values.items()}
        if isinstance(values, tuple):
            return tuple(self._folded(item) for item in values)
        if isinstance(values, list):
            return [values[at : at + self.size] for at in range(0, len(values), self.size)]
        return values.reshape(-1, self.size, *values.shape[1:])


def joined(blocks: Sequence[Any]) -> Any:
    """Blocks of equal structure, one after another along the first axis."""
    first = blocks[0]
    if isinstance(first, dict):
        return {name: joined([block[name] for block in blocks]) for name in first}
    if isinstance(first, tuple):
        return tuple(joined(items) for items in zip(*blocks, strict=True))
    if isinstance(first, list):
        return [item for block in blocks for item in block]
    return np.concatenate(blocks)


def _interleaved(chains: Sequence[list[bytes]]) -> list[bytes]:
    return chains[0] if len(chains) == 1 else [link for links in zip(*chains, strict=True) for link in links]


def _episodes(flags: npt.NDArray[np.uint8], after: Sequence[int]) -> npt.NDArray[np.int64]:
    ended = (flags != 0).astype(np.int64)
    begun = np.cumsum(ended, axis=0) - ended
    episodes: npt.NDArray[np.int64] = np.asarray(after, np.int64) - ended.sum(axis=0) + begun
    return episodes


def exact_sum(values: Sequence[float]) -> float:
    """Sum rounded once, so that neither order nor blocks show; infinite where it is beyond the largest double."""
    try:
        return math.fsum(values)
    except OverflowError:  # a partial sum beyond the largest double
        exact = sum(map(Fraction, values), Fraction())
        if abs(exact) <= Fraction(sys.float_info.max):
            return float(exact)
        return math.inf if exact > 0 else -math.inf
    except ValueError:  # returns that overflowed in both directions
        return math.nan
