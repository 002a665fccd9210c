"""fuse: one agent out of several, the mean of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dsec.core import state
from dsec.errors import StageError
from dsec.runtime.context import StageContext

__all__ = ["fuse"]


def fuse(ctx: StageContext, *, agents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of all floating-point arrays, tensors and numbers, leaf by leaf; all else must be equal.

    The random streams are those of the first agent.
    """
    if not agents:
        raise StageError("there is no agent to fuse", hint="gather them: agents: train[*].agent")
    first = agents[0]
    mean = _mean([agent["state"] for agent in agents], "agent")
    ctx.stats["agents"] = len(agents)
    return {"agent": {**first, "state": mean}}


def _mean(values: Sequence[Any], path: str) -> Any:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise _unlike(path)
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise _unlike(path)
        return {key: _mean([value[key] for value in values], f"{path}.{key}") for key in first}
    if isinstance(first, list | tuple):
        if any(len(value) != len(first) for value in values):
            raise _unlike(path)
        return type(first)(_mean(items, f"{path}[{i}]") for i, items in enumerate(zip(*values, strict=True)))
    if isinstance(first, torch.Tensor) and first.is_floating_point():
        return torch.stack(list(values)).mean(0)
    if isinstance(first, np.ndarray) and first.dtype.kind == "f":
        return np.mean(np.stack(values), axis=0, dtype=first.dtype)
    if isinstance(first, float):
        return float(np.mean(values))
    if not all(state.equal(value, first) for value in values):
        raise _unlike(path)
    return first


def _unlike(path: str) -> StageError:
    return StageError(f"the agents differ at {path}, which is no number to take the mean of")
