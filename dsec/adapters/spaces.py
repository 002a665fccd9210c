"""Gymnasium's spaces as plain trees, and back, so that an agent's state says what it was built for."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from dsec.errors import StateError

__all__ = ["build", "describe"]


def describe(space: Any) -> dict[str, Any]:
    """What decides the elements of a space, as a state tree.

    Raises
    ------
    StateError
        If it is none of gymnasium's fundamental and composite spaces.
    """
    kind = type(space)
    if kind is spaces.Dict:
        return {"kind": "Dict", "spaces": {str(name): describe(item) for name, item in space.spaces.items()}}
    if kind in (spaces.Tuple, spaces.OneOf):
        return {"kind": kind.__name__, "spaces": [describe(item) for item in space.spaces]}
    if kind is spaces.Sequence:
        return {"kind": "Sequence", "spaces": [describe(space.feature_space)], "stack": bool(space.stack)}
    if kind is spaces.Box:
        return {"kind": "Box", "low": space.low, "high": space.high, "dtype": space.dtype.str}
    if kind is spaces.Discrete:
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": space.dtype.str}
    if kind is spaces.MultiDiscrete:
        return {"kind": "MultiDiscrete", "nvec": space.nvec, "start": space.start, "dtype": space.dtype.str}
    if kind is spaces.MultiBinary:
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    if kind is spaces.Text:
        found = {"kind": "Text", "min_length": int(space.min_length), "max_length": int(space.max_length)}
        return {**found, "characters": "".join(sorted(space.character_set))}
    raise StateError(
        f"{kind.__module__}.{kind.__qualname__} can't be told to an agent",
        where="space",
        hint="use spaces of gymnasium: Box, Discrete, MultiDiscrete, MultiBinary, Text, Tuple, Dict, OneOf, Sequence",
    )


def build(tree: dict[str, Any], seed: int) -> Any:
    """A space from its tree; what is drawn from it starts at ``seed``."""
    made = _build(tree)
    made.seed(seed)
    return made


def _build(tree: dict[str, Any]) -> Any:
    match tree["kind"]:
        case "Dict":
            return spaces.Dict({name: _build(item) for name, item in tree["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([_build(item) for item in tree["spaces"]])
        case "OneOf":
            return spaces.OneOf([_build(item) for item in tree["spaces"]])
        case "Sequence":
            return spaces.Sequence(_build(tree["spaces"][0]), stack=tree["stack"])
        case "Box":
            return spaces.Box(tree["low"], tree["high"], dtype=np.dtype(tree["dtype"]).type)
        case "Discrete":
            return spaces.Discrete(tree["n"], start=tree["start"], dtype=np.dtype(tree["dtype"]).type)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(tree["nvec"], np.dtype(tree["dtype"]).type, start=tree["start"])
        case "MultiBinary":
            shape = tree["shape"]
            return spaces.MultiBinary(shape if len(shape) != 1 else shape[0])
        case "Text":
            return spaces.Text(tree["max_length"], min_length=tree["min_length"], charset=tree["characters"])
        case other:
            raise StateError(f"there is no space of kind {other!r}", where="space")
