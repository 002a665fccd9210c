"""The chained hash: 16 bytes a step that cover everything up to and including it.

``h_t = xxh3_128(h_{t-1} | row_t)``, with 16 zero bytes before step 0, each environment of a batch with its own chain.
``row_t`` is, in this order and without separators (layouts are fixed or carry their length):

- observation: what the agent saw before it acted, in the bytes of its layout;
- action, in the bytes of its layout;
- reward as the agent got it, little-endian double;
- one byte of flags: 1 terminated, 2 truncated;
- where the episode ended at this step: the observation it ended with;
- where ``t + 1`` is a multiple of `STATE_EVERY`: the environment's own 16-byte state hash after the step (and after
  the reset, if the episode ended). The place is fixed by the absolute step, so it is the same however stages are cut.

Two runs are equal up to a step exactly if their hashes there are equal. This is format 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

__all__ = ["SIZE", "START", "STATE_EVERY", "extend", "link", "state_digest"]

SIZE = 16
"""Bytes of one hash."""

START = bytes(SIZE)
"""The hash before step 0."""

STATE_EVERY = 256
"""How often, in absolute steps, the environment's state hash is mixed in."""


def link(previous: bytes, row: bytes) -> bytes:
    """The hash after one more row: the definition."""
    return xxh3_128_digest(previous + row)


_TAIL = np.dtype([("reward", "<f8"), ("flags", "u1")])
_TAIL_BYTES = np.dtype("V9")


def extend(
    previous: bytes,
    heads: tuple[Sequence[bytes], Sequence[bytes]],
    rewards: npt.NDArray[np.float64],
    flags: npt.NDArray[np.uint8],
    ends: Mapping[int, bytes],
) -> list[bytes]:
    """Hashes of a block of rows; equal to `link` row by row.

    Parameters
    ----------
    previous
        The hash before the block.
    heads
        Packed observations, and packed actions.
    rewards, flags
        One for each row.
    ends
        The last parts of rows that have them, by position in the block.
    """
    fixed: Any = np.empty(len(rewards), _TAIL)
    fixed["reward"], fixed["flags"] = rewards, flags
    tails = fixed.view(_TAIL_BYTES).tolist()
    for at, end in ends.items():
        tails[at] += end
    digest = xxh3_128_digest
    return [previous := digest(previous + seen + done + tail) for seen, done, tail in zip(*heads, tails, strict=True)]


def state_digest(content: bytes) -> bytes:
    """A 16-byte state hash of canonical bytes."""
    return xxh3_128_digest(content)
