"""fuse: one agent out of several, the mean of their numbers."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsec.core import state
from dsec.core.leaves import AnchorRef, Named
from dsec.errors import StageError
from dsec.runtime import tensors
from dsec.runtime.context import StageContext

__all__ = ["fuse"]


def fuse(ctx: StageContext, *, agents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of all floats, in arrays, tensors and alone, leaf by leaf; everything else has to be equal.

    The streams of the new agent begin anew, at ``agent`` and ``agent/torch`` below the stage's own.

    Parameters
    ----------
    agents
        Trees of kind ``agent``, gathered.

    Returns
    -------
    dict
        ``agent``.
    """
    if not agents:
        raise StageError("there is no agent to fuse", hint="gather some: `agents: train[shard=*].agent`")
    first = agents[0]
    cells = [cell or str(number) for number, cell in enumerate(ctx.cells("agents"))]
    merged = _Mean(cells, [(agent["rng"].bit_generator, agent["torch_rng"]) for agent in agents])
    fused = {
        **first,
        "state": merged.value([agent["state"] for agent in agents], "agent"),
        "rng": ctx.rng("agent"),
        "torch_rng": None if first["torch_rng"] is None else ctx.torch_generator("agent/torch"),
    }
    merged.value([agent["spaces"] for agent in agents], "agent.spaces")
    ctx.log(agents=len(agents))
    return {"agent": _with_stream(fused, first)}


class _Mean:
    """One pass over several trees at once."""

    def __init__(self, cells: Sequence[str], streams: Sequence[tuple[Any, Any]]) -> None:
        self.cells = cells
        self.streams = streams

    def value(self, values: Sequence[Any], path: str) -> Any:
        """The mean of what stands at one place of all trees."""
        first = values[0]
        if self._are_streams(values):
            return first
        self._check([type(value) for value in values], path)
        if isinstance(first, dict | list | tuple | Named):
            return self._parts(values, path)
        if dataclasses.is_dataclass(first) and not isinstance(first, AnchorRef):
            return self._fields(values, path)
        mean = _mean(list(values))
        if mean is None:
            self._check_equal(values, path)
        return first if mean is None else mean

    def _parts(self, values: Sequence[Any], path: str) -> Any:
        first = values[0]
        if isinstance(first, Named):
            self._check([(value.kind, value.name) for value in values], path)
            return Named(first.kind, first.name, self.value([value.value for value in values], path))
        if isinstance(first, dict):
            self._check([sorted(map(str, value)) for value in values], path)
            return {key: self.value([value[key] for value in values], f"{path}.{key}") for key in first}
        self._check([len(value) for value in values], path)
        columns = enumerate(zip(*values, strict=True))
        return type(first)(self.value(column, f"{path}[{index}]") for index, column in columns)

    def _fields(self, values: Sequence[Any], path: str) -> Any:
        """The mean of dataclasses, field by field and without their constructor."""
        made = copy.copy(values[0])
        for field in dataclasses.fields(made):
            found = [getattr(value, field.name) for value in values]
            object.__setattr__(made, field.name, self.value(found, f"{path}.{field.name}"))
        return made

    def _are_streams(self, values: Sequence[Any]) -> bool:
        """Whether each is its agent's stream: those differ, and the new agent gets its own."""
        held = [getattr(value, "bit_generator", value) for value in values]
        pairs = list(zip(held, self.streams, strict=True))
        return any(all(one is not None and one is streams[k] for one, streams in pairs) for k in (0, 1))

    def _check(self, found: Sequence[Any], path: str) -> None:
        for cell, other in zip(self.cells, found, strict=True):
            if other != found[0]:
                raise self._unlike(path, cell)

    def _check_equal(self, values: Sequence[Any], path: str) -> None:
        for cell, value in zip(self.cells, values, strict=True):
            if not state.equal(values[0], value):
                raise self._unlike(path, cell)

    def _unlike(self, path: str, cell: str) -> StageError:
        return StageError(
            f"{path} of the agents {self.cells[0]} and {cell} differ, and have no mean",
            hint="only floats are averaged; counters and the like have to be equal",
        )


def _mean(values: list[Any]) -> Any:
    """The mean of floats, added up in order and in float64; None for anything else."""
    first = values[0]
    if type(first) is float:
        return math.fsum(values) / len(values)
    if isinstance(first, np.ndarray | np.generic) and first.dtype.kind == "f":
        if any(value.shape != first.shape or value.dtype != first.dtype for value in values):
            return None
        total = np.zeros(first.shape, np.float64)
        for value in values:
            total = total + value
        return (total / len(values)).astype(first.dtype)[()]
    return tensors.averaged(values)


def _with_stream(fused: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """The new streams wherever the first agent's stand in the state."""
    old, old_torch = first["rng"].bit_generator, first["torch_rng"]

    def replace(value: Any) -> Any:
        if value is old:
            return fused["rng"].bit_generator
        if isinstance(value, np.random.Generator) and value.bit_generator is old:
            return fused["rng"]
        return fused["torch_rng"] if old_torch is not None and value is old_torch else value

    return {**fused, "state": tensors.restored(fused["state"], replace, unwrap=False)}
