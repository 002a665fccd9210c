"""Live agents: built from a spec, saved, restored, and told what they may know of their session.

The tree of an agent is ``{"kind": "agent", "state", "rng", "torch_rng", "spaces"}``. The state is what its own
``state_dict()`` gives, or else its attributes; ``rng`` is its one stream of random numbers, wherever in the state it
stands besides; ``spaces`` say what it was built for, so that a stage that learns needs no environment.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsec.core import seeds
from dsec.core.leaves import Named
from dsec.core.specs import AgentSpec, EnvSpec
from dsec.errors import DsecError, StageError, StateError
from dsec.runtime import environments, failures, names, numerics, tensors

__all__ = ["RESERVED", "LiveAgent", "SessionConfig", "Setting", "Surroundings", "build_agent", "load_agent"]

_SPACES = "dsec.adapters.spaces"
"""Named, since nothing imports adapters."""
_MODULE = "(module)"
_HIDDEN = {
    "max_steps": "a session may go on for longer; an agent that needs a horizon gets it by `with`",
    "session_id": "results are the same in every session with these specs and this seed",
    "creation_timestamp": "results do not depend on the time; ctx.now() gives a virtual one",
    "seed": "draw from session_config['rng']",
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an agent is built for."""

    observation: Any = None
    """Tree of the space of one environment's observations; None where it has none."""
    action: Any = None
    """Tree of the space of one environment's actions."""
    num_envs: int | None = None
    """Environments side by side; None is one without a leading axis."""

    @classmethod
    def of_spec(cls, spec: EnvSpec) -> Surroundings:
        """Those of an environment, found by building it once."""
        with _using(f"environment {spec.code.uses}"):
            environment = environments.build(spec)
            found = [getattr(environment, name, None) for name in ("observation_space", "action_space")]
            told = [None if space is None else _spaces().describe(space) for space in found]
            environments.close(environment)
        return cls(told[0], told[1], spec.num_envs)

    def with_envs(self, num_envs: int | None) -> Surroundings:
        """The same with another number of environments."""
        return replace(self, num_envs=num_envs)

    def to_tree(self) -> dict[str, Any]:
        """As an agent's state keeps them."""
        return {"observation": self.observation, "action": self.action, "num_envs": self.num_envs}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Surroundings:
        """Inverse of `to_tree`."""
        return cls(tree["observation"], tree["action"], tree["num_envs"])


@dataclass(frozen=True, slots=True)
class Setting:
    """Where an agent lives."""

    root: seeds.Root
    """Root of the random streams."""
    config: Mapping[str, Any]
    """The spec's ``with``, declared files as paths."""
    device: str = "cpu"
    mode: str = "train"
    """``train`` or ``evaluate``."""
    stream: str | None = None
    """Path of a stream to draw from instead of the one that its state holds."""


class SessionConfig(Mapping[str, Any]):
    """What an agent is told: what its constructor gets as ``session_config``.

    ``rng`` (numpy Generator) and ``torch_generator`` (on the CPU): its random streams, part of its state;
    ``device``: where to compute; ``mode``: ``train`` or ``evaluate``;
    ``observation_space``, ``action_space``: gymnasium's, of one environment, or None;
    ``num_envs``: None, or how many observations come at once; ``resources``: ``{"device", "threads"}``;
    and each name of the spec's ``with``. No id, time, placement or number of steps is here.
    """

    def __init__(self, values: Mapping[str, Any], root: seeds.Root, stream: str) -> None:
        self._values = dict(values)
        self._root = root
        self._stream = stream
        self.torch_rng: Any = None
        """The torch generator, None until it was asked for."""

    def __getitem__(self, name: str) -> Any:
        if name == "torch_generator":
            return self.torch_generator()
        if name not in self._values:
            reason = _HIDDEN.get(name) or f"it has {', '.join(sorted(self))}"
            raise KeyError(f"session_config has no {name!r}: {reason}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values, "torch_generator"])

    def __len__(self) -> int:
        return len(self._values) + 1

    def torch_generator(self) -> Any:
        """The torch generator, made at the start of its stream when it is first asked for."""
        if self.torch_rng is None:
            self.torch_rng = tensors.generator(self._root, f"{self._stream}/torch")
        return self.torch_rng

    def holds(self, value: object) -> bool:
        """Whether a constructor gets just this each time, so that it is no state: the mapping, a space, a file."""
        files = [held for held in self._values.values() if isinstance(held, Path)]
        told = [self._values["observation_space"], self._values["action_space"], *files]
        return value is self or any(value is held for held in told if held is not None)


RESERVED = frozenset(
    {"action_space", "device", "mode", "num_envs", "observation_space", "resources", "rng", "torch_generator"}
)
"""Names of session_config that an agent's ``with`` can't have."""


class LiveAgent:
    """An agent with what the runtime keeps beside it."""

    def __init__(self, agent: Any, config: SessionConfig, surroundings: Surroundings) -> None:
        self.agent = agent
        self.config = config
        self.surroundings = surroundings

    def tree(self) -> dict[str, Any]:
        """Its state, valid until its next step.

        Raises
        ------
        StateError
            If it can't say its state.
        """
        return {
            "kind": "agent",
            "state": _state(self.agent, self.config),
            "rng": self.config["rng"],
            "torch_rng": self.config.torch_rng,
            "spaces": self.surroundings.to_tree(),
        }


def build_agent(spec: AgentSpec, surroundings: Surroundings, setting: Setting) -> LiveAgent:
    """A new agent.

    Its constructor runs with global generators seeded from the session, since torch's layers draw from them.

    Raises
    ------
    StageError
        If it can't be made.
    """
    taken = sorted(RESERVED & setting.config.keys())
    if taken:
        raise StageError(
            f"agent: `with` has {taken[0]!r}, a name that session_config has already", hint="give it another name"
        )
    if spec.provenance == "required":
        raise StageError("agent: provenance: required is not supported yet", hint="leave it out")
    config = _config(surroundings, setting)
    kind = names.resolve(spec.code.uses, "agent")
    with _using(f"agent {spec.code.uses}"), numerics.constructing(setting.root, "agent/init"):
        agent = kind(config)
    for method in ("step", "on_reward"):
        if not callable(getattr(agent, method, None)):
            raise StageError(
                f"agent {spec.code.uses} has no {method}()", hint="see dsec.Agent, which has all that is asked for"
            )
    if spec.vectorized is not None and spec.vectorized != getattr(agent, "vectorized", False):
        agent.vectorized = spec.vectorized
    return LiveAgent(agent, config, surroundings)


def load_agent(
    spec: AgentSpec, tree: Mapping[str, Any], setting: Setting, surroundings: Surroundings | None = None
) -> LiveAgent:
    """An agent as it was saved.

    Parameters
    ----------
    spec
        What builds it.
    tree
        Its tree, with torch's tensors.
    setting
        Where it lives now.
    surroundings
        What it is for now, if not what it was built for.

    Raises
    ------
    StateError
        If the tree is no agent's, or this agent can't take it.
    """
    if tree.get("kind") != "agent":
        raise StateError(f"a state of kind {tree.get('kind')!r}, expected an agent's", where="agent")
    found = surroundings or Surroundings.from_tree(tree["spaces"])
    live = build_agent(spec, found, setting)
    _take(live, tree)
    if setting.stream is None:
        live.config["rng"].bit_generator.state = tree["rng"].bit_generator.state
        if tree["torch_rng"] is not None:
            tensors.set_state(live.config.torch_generator(), tree["torch_rng"])
    else:
        _begin_stream(live.config, setting.root, setting.stream)
    return live


def _begin_stream(config: SessionConfig, root: seeds.Root, stream: str) -> None:
    config["rng"].bit_generator.state = seeds.generator(root, stream).bit_generator.state
    if config.torch_rng is not None:
        tensors.set_state(config.torch_rng, tensors.generator(root, f"{stream}/torch"))


def _config(surroundings: Surroundings, setting: Setting) -> SessionConfig:
    stream = setting.stream or "agent"
    seed = seeds.reset_seed(setting.root, "agent/space")
    spaces = [
        None if tree is None else _spaces().build(tree, seed)
        for tree in (surroundings.observation, surroundings.action)
    ]
    values = {
        **setting.config,
        "rng": seeds.generator(setting.root, stream),
        "device": setting.device,
        "mode": setting.mode,
        "observation_space": spaces[0],
        "action_space": spaces[1],
        "num_envs": surroundings.num_envs,
        "resources": {"device": setting.device, "threads": 1},
    }
    return SessionConfig(values, setting.root, stream)


def _state(agent: Any, config: SessionConfig) -> Any:
    if _own_state(agent):
        with _using("agent.state_dict"):
            return agent.state_dict()
    module = tensors.is_module(agent)
    if not hasattr(agent, "__dict__"):
        raise StateError(
            f"{type(agent).__qualname__} has neither attributes nor state_dict()",
            where="agent",
            hint="give it state_dict() and load_state_dict()",
        )
    left_out = tensors.module_internals() if module else frozenset()
    state = {n: value for n, value in vars(agent).items() if n not in left_out and not config.holds(value)}
    return {_MODULE: agent.state_dict(), **state} if module else state


def _own_state(agent: Any) -> bool:
    kind = type(agent)
    if not callable(getattr(kind, "state_dict", None)) or tensors.is_module(agent):
        return False
    if not callable(getattr(kind, "load_state_dict", None)):
        raise StateError(
            f"{kind.__qualname__} has state_dict() and no load_state_dict()", where="agent", hint="give it both or none"
        )
    return True


def _take(live: LiveAgent, tree: Mapping[str, Any]) -> None:
    own = _own_state(live.agent)
    state = tensors.restored(tree["state"], _sharing(live.config, tree), unwrap=own)
    if own:
        with _using("agent.load_state_dict"):
            live.agent.load_state_dict(state)
        return
    for name, saved in state.items():
        if name == _MODULE:
            with _using("agent.load_state_dict"):
                live.agent.load_state_dict(saved)
        else:
            current = getattr(live.agent, name, None)
            setattr(live.agent, name, _put(current, saved, f"agent.{name}"))


def _sharing(config: SessionConfig, tree: Mapping[str, Any]) -> Any:
    """Gives the live streams wherever the saved ones stand in the state: an agent's stream is one."""
    saved, torch_saved = tree["rng"].bit_generator, tree["torch_rng"]

    def live(value: Any) -> Any:
        if value is saved:
            return config["rng"].bit_generator
        if isinstance(value, np.random.Generator) and value.bit_generator is saved:
            return config["rng"]
        return config.torch_generator() if torch_saved is not None and value is torch_saved else value

    return live


def _put(current: Any, saved: Any, path: str) -> Any:
    """What an attribute becomes: objects with load_state_dict() and tensors are filled, anything else is replaced."""
    if type(saved) is Named and saved.kind == "object":
        if not callable(getattr(current, "load_state_dict", None)):
            raise StateError(
                f"a state of {saved.name}, and nothing there to take it", where=path, hint="make it in __init__"
            )
        with _using(f"{path}.load_state_dict"):
            current.load_state_dict(tensors.restored(saved.value, unwrap=True))
        return current
    if type(saved) in (list, tuple):
        have = current if isinstance(current, list | tuple) else ()
        return type(saved)(
            _put(have[i] if i < len(have) else None, item, f"{path}[{i}]") for i, item in enumerate(saved)
        )
    if type(saved) is dict:
        held = current if isinstance(current, Mapping) else {}
        return {name: _put(held.get(name), item, f"{path}[{name!r}]") for name, item in saved.items()}
    return current if tensors.copied(current, saved) else saved


@contextmanager
def _using(what: str) -> Iterator[None]:
    """Users' code that fails inside becomes a StageError that says which."""
    try:
        yield
    except DsecError:
        raise
    except (Exception, SystemExit) as error:
        raise failures.failed(what, error) from error


def _spaces() -> Any:
    return importlib.import_module(_SPACES)
