"""The seed tree: one root seed, one child per path.

A stream is found by its *name*, never by a count, so adding a stage, an environment or a worker shifts
nobody else's numbers. The paths of format 1:

- ``env/<label>/<i>/episode/<k>``: reset seed of environment ``i``'s episode ``k``; the label is that of the
  stage's axes (``shard=3``) and is left out with its slash where there are none;
- ``agent``: one stream that lives in the agent's state; ``agent/<label>/<first step>`` where an agent is
  broadcast over axes it lacks;
- ``stage/<name>/<iteration>/<axes>``: bodies;
- ``evaluate/<k>``: the environment of evaluation episode ``k``, ``evaluate/agent``: the agent there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.core import canon

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Root", "episode_path", "generator", "reset_seed", "stream_key"]

Root = int | str
"""A session's seed, or for calls without a session a digest of stage name and cell."""


def stream_key(root: Root, path: str) -> int:
    """128-bit key of the stream at ``path`` below ``root``."""
    return int(canon.digest("dsec/stream/1", [root, path])[:32], 16)


def generator(root: Root, path: str) -> np.random.Generator:
    """A fresh Philox generator at the start of the stream."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=stream_key(root, path)))


def reset_seed(root: Root, path: str) -> int:
    """Seed in [0, 2**31) for libraries that take one small integer."""
    return stream_key(root, path) & 0x7FFFFFFF


def episode_path(label: str, index: int, episode: int) -> str:
    """Path of the reset seed of environment ``index``'s episode ``episode``."""
    return f"env/{label}/{index}/episode/{episode}" if label else f"env/{index}/episode/{episode}"
