"""Agents: built from a spec, saved as a state tree, restored, and given their streams.

What an agent gets is one mapping, its ``session_config``: the entries of its own ``with``, and beside them

- ``rng``: numpy Generator of the agent's stream; ``torch_generator``: torch's, of a stream beside it;
- ``device``: where its tensors belong, ``cpu`` or ``cuda``;
- ``mode``: ``train`` or ``evaluate``;
- ``observation_space``, ``action_space``: mappings with ``kind``, ``shape``, ``dtype``, ``n``, ``low``, ``high``; None
  where the environment has no space;
- ``num_envs``: environments stepped together, None for one.

It shows no id, time, placement or horizon: they would decide results without being in a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dsec.core import seeds
from dsec.core.leaves import Named
from dsec.core.specs import AgentSpec
from dsec.errors import StageError, StateError
from dsec.runtime import failures, names

__all__ = ["LiveAgent", "open_agent", "spaces_of"]

RESERVED = ("rng", "torch_generator", "device", "mode", "observation_space", "action_space", "num_envs")


@dataclass(slots=True)
class LiveAgent:
    """An agent with the streams it draws from and the spaces it was made for."""

    agent: Any
    rng: np.random.Generator
    torch_generator: torch.Generator
    spaces: Mapping[str, Any]
    """``observation_space``, ``action_space``, ``num_envs``."""

    def tree(self) -> dict[str, Any]:
        """Its state as a state tree.

        Raises
        ------
        StateError
            If an attribute can't be saved; names its path.
        """
        return {
            "kind": "agent",
            "state": _state_of(self.agent),
            "rng": self.rng,
            "torch_generator": self.torch_generator,
            "spaces": dict(self.spaces),
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        """Inverse of `tree`, on an agent that was built anew."""
        if tree.get("kind") != "agent":
            raise StateError(f"a state of kind {tree.get('kind')!r} is no agent", where="agent")
        _take_stream(self.rng, tree["rng"])
        self.torch_generator.set_state(tree["torch_generator"].get_state())
        if callable(getattr(self.agent, "load_state_dict", None)):
            self.agent.load_state_dict(tree["state"])
            return
        for name, value in tree["state"].items():
            setattr(self.agent, name, _restored(getattr(self.agent, name, None), value, self, f"agent.{name}"))

    def restream(self, root: seeds.Root, path: str) -> None:
        """Go on from the start of another stream."""
        _take_stream(self.rng, seeds.generator(root, path))
        self.torch_generator.manual_seed(seeds.stream_key(root, f"{path}/torch") & 0x7FFFFFFFFFFFFFFF)


def open_agent(
    spec: AgentSpec,
    *,
    root: seeds.Root,
    spaces: Mapping[str, Any],
    device: str = "cpu",
    mode: str = "train",
    stream: str = "agent",
) -> LiveAgent:
    """A fresh agent at the start of its stream.

    Raises
    ------
    StageError
        If its class can't be imported or built.
    """
    kind = names.load(spec.code.uses)
    if taken := [name for name in spec.config if name in RESERVED]:
        raise StageError(f"`with` of an agent can't have {taken[0]!r}", hint=f"reserved: {', '.join(RESERVED)}")
    rng = seeds.generator(root, stream)
    generator = torch.Generator()
    generator.manual_seed(seeds.stream_key(root, f"{stream}/torch") & 0x7FFFFFFFFFFFFFFF)
    own = {"rng": rng, "torch_generator": generator, "device": device, "mode": mode, **spaces}
    try:
        agent = kind({**spec.config, **own})
    except Exception as error:
        raise failures.failed(f"{spec.code.uses}(session_config)", error) from error
    return LiveAgent(agent, rng, generator, spaces)


def spaces_of(environment: Any, num_envs: int | None) -> dict[str, Any]:
    """Spaces of an environment as plain values, for an agent to be made for."""
    found = {name: _space(getattr(environment, name, None)) for name in ("observation_space", "action_space")}
    return {**found, "num_envs": num_envs}


def _space(space: Any) -> dict[str, Any] | None:
    if space is None:
        return None
    described: dict[str, Any] = {"kind": type(space).__name__}
    for name in ("shape", "n", "start", "low", "high", "nvec"):
        value = getattr(space, name, None)
        if value is not None:
            described[name] = value if isinstance(value, np.ndarray) else _plain(value)
    if getattr(space, "dtype", None) is not None:
        described["dtype"] = str(space.dtype)
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        described["spaces"] = {str(name): _space(part) for name, part in parts.items()}
    elif isinstance(parts, tuple):
        described["spaces"] = [_space(part) for part in parts]
    return described


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_plain(item) for item in value)
    return int(value) if isinstance(value, int | np.integer) else value


def _state_of(agent: Any) -> Any:
    if callable(getattr(agent, "state_dict", None)):
        return agent.state_dict()
    return {name: value for name, value in vars(agent).items() if name != "session_config"}


def _take_stream(into: np.random.Generator, source: np.random.Generator) -> None:
    into.bit_generator.state = source.bit_generator.state


def _restored(current: Any, saved: Any, live: LiveAgent, path: str) -> Any:
    """A saved attribute, put into the object that the constructor made where the value is such an object's state."""
    if isinstance(saved, Named) and saved.kind == "object":
        if not callable(getattr(current, "load_state_dict", None)):
            raise StateError(f"a stored {saved.name} has no place to go", where=path, hint="make it in __init__")
        current.load_state_dict(saved.value)
        return current
    if isinstance(saved, np.random.Generator) and current is live.rng:
        return live.rng
    if isinstance(saved, torch.Generator) and current is live.torch_generator:
        return live.torch_generator
    if isinstance(saved, dict) and isinstance(current, dict):
        return {key: _restored(current.get(key), item, live, f"{path}.{key}") for key, item in saved.items()}
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        pairs = zip(current, saved, strict=True)
        return [_restored(one, item, live, f"{path}[{index}]") for index, (one, item) in enumerate(pairs)]
    return saved
