"""Gymnasium's spaces as plain trees, and back, so that an agent's state says what it was built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dsec.errors import StateError

__all__ = ["build", "describe"]

Tree = dict[str, Any]


def describe(space: Any) -> Tree:
    """What decides the elements of a space, as a state tree.

    Raises
    ------
    StateError
        If it is none of gymnasium's fundamental and composite spaces.
    """
    if type(space) not in _DESCRIBE:
        raise StateError(
            f"{type(space).__module__}.{type(space).__qualname__} can't be told to an agent",
            where="space",
            hint=f"use one of gymnasium's: {', '.join(_BUILD)}",
        )
    return {"kind": type(space).__name__, **_DESCRIBE[type(space)](space)}


def build(tree: Tree, seed: int) -> Any:
    """A space from its tree; what is drawn from it starts at ``seed``."""
    made = _build(tree)
    made.seed(seed)
    return made


def _build(tree: Tree) -> Any:
    return _BUILD[tree["kind"]](tree)


def _text(space: Any) -> Tree:
    characters = "".join(sorted(space.character_set))
    return {"min_length": int(space.min_length), "max_length": int(space.max_length), "characters": characters}


_DESCRIBE: Mapping[type, Callable[[Any], Tree]] = {
    spaces.Box: lambda it: {"low": it.low, "high": it.high, "dtype": it.dtype.str},
    spaces.Discrete: lambda it: {"n": int(it.n), "start": int(it.start), "dtype": it.dtype.str},
    spaces.MultiDiscrete: lambda it: {"nvec": it.nvec, "start": it.start, "dtype": it.dtype.str},
    spaces.MultiBinary: lambda it: {"shape": list(it.shape)},
    spaces.Text: _text,
    spaces.Dict: lambda it: {"spaces": {str(name): describe(item) for name, item in it.spaces.items()}},
    spaces.Tuple: lambda it: {"spaces": [describe(item) for item in it.spaces]},
    spaces.OneOf: lambda it: {"spaces": [describe(item) for item in it.spaces]},
    spaces.Sequence: lambda it: {"spaces": [describe(it.feature_space)], "stack": bool(it.stack)},
}


def _kind(tree: Tree) -> Any:
    return np.dtype(tree["dtype"]).type


def _binary(tree: Tree) -> Any:
    shape = tree["shape"]
    return spaces.MultiBinary(shape if len(shape) != 1 else shape[0])


_BUILD: Mapping[str, Callable[[Tree], Any]] = {
    "Box": lambda it: spaces.Box(it["low"], it["high"], dtype=_kind(it)),
    "Discrete": lambda it: spaces.Discrete(it["n"], start=it["start"], dtype=_kind(it)),
    "MultiDiscrete": lambda it: spaces.MultiDiscrete(it["nvec"], _kind(it), start=it["start"]),
    "MultiBinary": _binary,
    "Text": lambda it: spaces.Text(it["max_length"], min_length=it["min_length"], charset=it["characters"]),
    "Dict": lambda it: spaces.Dict({name: _build(item) for name, item in it["spaces"].items()}),
    "Tuple": lambda it: spaces.Tuple([_build(item) for item in it["spaces"]]),
    "OneOf": lambda it: spaces.OneOf([_build(item) for item in it["spaces"]]),
    "Sequence": lambda it: spaces.Sequence(_build(it["spaces"][0]), stack=it["stack"]),
}
