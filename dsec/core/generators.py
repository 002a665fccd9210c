"""Numpy's random generators as plain values, and back.

The state is kept bit by bit, with the seed sequence, since `Generator.spawn` draws from it. Setting a state that was
tampered with could read outside of numpy's buffers, so every field is compared with those of a fresh generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsec.core.leaves import Refused, type_name

__all__ = ["CLASSES", "bit_generator", "bit_generator_parts", "legacy", "legacy_parts"]

CLASSES: Mapping[str, type[np.random.BitGenerator]] = {
    "MT19937": np.random.MT19937,
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}
"""Bit generators that anchors hold."""
_LIMITS = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "uinteger": 2**32 - 1, "state": 2**128 - 1, "inc": 2**128 - 1}


def bit_generator_parts(value: Any) -> list[Any]:
    """Class name, state, and seed sequence of a bit generator as plain values."""
    seeding = value.seed_seq
    kind = type(seeding)
    if seeding is not None and kind is not np.random.SeedSequence:
        raise Refused(f"{type_name(type(value))} seeded by a {type_name(kind)}", "seed it with an int or SeedSequence")
    state = {name: _plain(item) for name, item in value.state.items() if name != "bit_generator"}
    return [type(value).__name__, state, None if seeding is None else _seeding(seeding)]


def legacy_parts(value: np.random.RandomState) -> list[Any]:
    """State of a RandomState's MT19937 and of its Gaussian cache; it has no seed sequence that it would use."""
    state: dict[str, Any] = value.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise Refused(f"numpy.random.RandomState over {state['bit_generator']}", "keep a numpy.random.Generator")
    return [{"state": _plain(state["state"])}, int(state["has_gauss"]), float(state["gauss"])]


def _seeding(seeding: np.random.SeedSequence) -> list[Any]:
    entropy = seeding.entropy
    return [
        _entropy(entropy),
        [int(item) for item in seeding.spawn_key],
        int(seeding.pool_size),
        int(seeding.n_children_spawned),
    ]


def _entropy(entropy: Any) -> Any:
    if isinstance(entropy, int | np.integer):
        return int(entropy)
    if isinstance(entropy, list | tuple | np.ndarray) and all(isinstance(item, int | np.integer) for item in entropy):
        return [int(item) for item in entropy]
    raise Refused(f"numpy.random.SeedSequence of {type_name(type(entropy))}", "seed it with an int or a list of them")


def _plain(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        return item.astype(item.dtype.newbyteorder("<"), copy=False).tobytes()
    if isinstance(item, dict):
        return {name: _plain(inner) for name, inner in item.items()}
    return int(item)


def bit_generator(parts: Any) -> np.random.BitGenerator:
    """A bit generator from its parts.

    Raises
    ------
    ValueError
        If the parts are none.
    """
    match parts:
        case [str(name), dict(state), seeding] if name in CLASSES:
            made = _fresh(CLASSES[name], seeding)
        case _:
            raise ValueError("no bit generator of numpy")
    _fill(made, state)
    return made


def legacy(parts: Any) -> np.random.RandomState:
    """A RandomState from its parts.

    Raises
    ------
    ValueError
        If the parts are none.
    """
    match parts:
        case [dict(state), int(has_gauss), float(gauss)] if has_gauss in (0, 1):
            source = np.random.MT19937(0)
            _fill(source, state)
        case _:
            raise ValueError("no RandomState of numpy")
    made = np.random.RandomState(source)
    made.set_state({**source.state, "has_gauss": has_gauss, "gauss": gauss})
    return made


def _fresh(kind: Any, seeding: Any) -> np.random.BitGenerator:
    match seeding:
        case None if kind is np.random.Philox:
            return np.random.Philox(key=0)
        case None:
            return kind(0)  # type: ignore[no-any-return]
        case [entropy, list(spawn_key), int(pool_size), int(children)]:
            return kind(_seed_sequence(entropy, spawn_key, pool_size, children))  # type: ignore[no-any-return]
    raise ValueError("no seed sequence of numpy")


def _seed_sequence(entropy: Any, spawn_key: list[Any], pool_size: int, children: int) -> np.random.SeedSequence:
    flat = entropy if isinstance(entropy, list) else [entropy]
    small = 0 <= children < 2**32 and 4 <= pool_size <= 1024
    if not small or not all(type(item) is int and item >= 0 for item in [*flat, *spawn_key]):
        raise ValueError("no seed sequence of numpy")
    return np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=children)


def _fill(made: np.random.BitGenerator, stored: Mapping[str, Any]) -> None:
    fresh: Any = made.state
    name = fresh.pop("bit_generator")
    made.state = {"bit_generator": name, **_matched(fresh, stored)}


def _matched(fresh: Mapping[str, Any], stored: Any) -> dict[str, Any]:
    if type(stored) is not dict or set(stored) != set(fresh):
        raise ValueError("no state of this generator")
    return {name: _field(name, fresh[name], stored[name]) for name in fresh}


def _field(name: str, fresh: Any, stored: Any) -> Any:
    if isinstance(fresh, dict):
        return _matched(fresh, stored)
    if isinstance(fresh, np.ndarray):
        if type(stored) is not bytes or len(stored) != fresh.nbytes:
            raise ValueError(f"bad {name}")
        return np.frombuffer(stored, fresh.dtype.newbyteorder("<")).astype(fresh.dtype)
    if type(stored) is not int or not 0 <= stored <= _LIMITS[name]:
        raise ValueError(f"bad {name}")
    return stored
