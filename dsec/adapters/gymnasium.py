"""Gymnasium's environments by the runtime's contract.

``gymnasium/<id>`` is made by id without PassiveEnvChecker and OrderEnforcing, which check what the runtime checks or
does anyway; a subclass of `gymnasium.Env` is taken as it is. The state is that of the environment and of each wrapper
around it: for the classes gymnasium brings, the attributes listed here, for all others every attribute. What hides in
an opaque object makes `state_dict` an error (then the runtime replays the episode), and the state hash covers the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing

from dsec.adapters import attributes
from dsec.errors import StateError
from dsec.runtime import layouts

__all__ = ["GymnasiumEnvironment", "adapt", "layout", "make", "registered"]

_NUMBERS = ("_np_random", "_np_random_seed")

_STATE: dict[str, tuple[str, ...]] = {
    "gymnasium.envs.classic_control.acrobot:AcrobotEnv": ("state",),
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv": ("state", "steps_beyond_terminated"),
    "gymnasium.envs.classic_control.continuous_mountain_car:Continuous_MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.mountain_car:MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.pendulum:PendulumEnv": ("state", "last_u"),
    "gymnasium.envs.toy_text.blackjack:BlackjackEnv": (
        "dealer",
        "dealer_top_card_suit",
        "dealer_top_card_value_str",
        "player",
    ),
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": ("lastaction", "s"),
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": ("lastaction", "s"),
    "gymnasium.envs.toy_text.taxi:TaxiEnv": ("fickle_step", "lastaction", "s", "taxi_orientation"),
    "gymnasium.wrappers.common:OrderEnforcing": ("_has_reset",),
    "gymnasium.wrappers.common:PassiveEnvChecker": (),
    "gymnasium.wrappers.common:TimeLimit": ("_elapsed_steps",),
    "gymnasium.wrappers.stateful_observation:TimeAwareObservation": ("timesteps",),
}
"""Attributes that decide the future, by class; the generator comes on top. Everything else they hold is constant."""

_CLOCKS: Mapping[str, frozenset[str]] = {
    "gymnasium.wrappers.common:RecordEpisodeStatistics": frozenset({"episode_start_time", "time_queue"}),
}
"""Attributes that hold wall-clock times and decide nothing."""

_STATELESS = {
    "transform_action": ("ClipAction", "DiscretizeAction", "RescaleAction"),
    "transform_observation": (
        "DiscretizeObservation",
        "DtypeObservation",
        "FilterObservation",
        "FlattenObservation",
        "GrayscaleObservation",
        "RescaleObservation",
        "ReshapeObservation",
        "ResizeObservation",
    ),
    "transform_reward": ("ClipReward",),
}
_STATE |= {f"gymnasium.wrappers.{module}:{name}": () for module, names in _STATELESS.items() for name in names}

_CONSTANT = (EnvSpec, spaces.Space)
"""What no step changes. A space has a generator, but no reset seeds it: who draws from it is not deterministic."""

_PLUMBING = frozenset({"_cached_spec", "_metadata", "_saved_kwargs", "env", "metadata", "render_mode", "spec"})


class GymnasiumEnvironment:
    """One environment of gymnasium, with all its wrappers.

    Parameters
    ----------
    env
        A fresh instance.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.step = env.step
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._layers = [(layer, _class(layer), f"env{'.env' * at}") for at, layer in enumerate(_layers(env))]

    def deterministic_reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """``reset(seed=seed)``."""
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def state_dict(self) -> list[Any]:
        """State of each layer, the outermost wrapper first.

        Raises
        ------
        StateError
            If something that may decide the future can't be saved; ``where`` is its path.
        """
        captured, opaque = self._capture()
        if opaque:
            raise StateError(
                f"{opaque[0].reason} can't be saved by its attributes",
                where=opaque[0].path,
                hint="give the environment state_dict() and load_state_dict(); its episodes are replayed meanwhile",
            )
        return captured

    def load_state_dict(self, saved: list[Any]) -> None:
        """Inverse of `state_dict`, on a fresh instance that was reset.

        Raises
        ------
        StateError
            If this instance has other layers, or lacks an object that was saved.
        """
        found, expected = [name for _, name, _ in self._layers], [entry["class"] for entry in saved]
        if found != expected:
            raise StateError(f"the state is of {' over '.join(expected)}, the environment is {' over '.join(found)}")
        restore = attributes.Restore()
        for (layer, name, path), entry in zip(self._layers, saved, strict=True):
            try:
                restore.attributes(layer, entry["attributes"], _held(layer, name), path)
            except attributes.Opaque as opaque:
                raise StateError(f"can't restore {opaque.reason}", where=opaque.path) from None

    def state_hash(self) -> bytes:
        """16 bytes over all attributes that can be saved."""
        return attributes.fingerprint(self._capture()[0])

    def opaque(self) -> tuple[str, ...]:
        """Paths and types of what the state hash can't cover."""
        return tuple(str(found) for found in self._capture()[1])

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _capture(self) -> tuple[list[Any], list[attributes.Opaque]]:
        capture = attributes.Capture()
        captured, opaque = [], []
        for layer, kind, path in self._layers:
            held: dict[str, Any] = {}
            for name, value in sorted(_held(layer, kind).items()):
                try:
                    held[name] = capture.value(value, f"{path}.{name}")
                except attributes.Opaque as found:
                    opaque.append(found)
            captured.append({"class": kind, "attributes": held})
        return captured, opaque


def make(name: str, config: Mapping[str, Any]) -> GymnasiumEnvironment:
    """The registered environment ``name`` (``CartPole-v1``, ``module:Id-v0``), made with ``config``."""
    return GymnasiumEnvironment(_unordered(gymnasium.make(name, disable_env_checker=True, **config)))


def registered(name: str) -> bool:
    """Whether an environment of this id is registered by now."""
    return name in gymnasium.registry


def adapt(env: Any) -> GymnasiumEnvironment:
    """An instance of `gymnasium.Env`."""
    return GymnasiumEnvironment(env)


def layout(space: Any) -> layouts.Layout:
    """The layout of a space's elements; spaces of varying size have none that is fixed."""
    if isinstance(space, spaces.Discrete):
        return layouts.Scalar(int, int(space.start), int(space.start + space.n - 1))
    if isinstance(space, spaces.MultiDiscrete):
        low = np.asarray(space.start)
        return layouts.Array(layouts.little(space.dtype), space.shape, low, low + space.nvec - 1)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return layouts.Array(layouts.little(space.dtype), space.shape)
    if isinstance(space, spaces.Tuple):
        return layouts.Row(tuple(layout(item) for item in space.spaces))
    if isinstance(space, spaces.Dict):
        names = tuple(sorted(space.spaces))
        return layouts.Record(names, tuple(layout(space.spaces[name]) for name in names))
    return layouts.Plain()


def _unordered(env: Any) -> Any:
    """The same stack without OrderEnforcing: the loop always resets first, and a wrapper costs 3 % of a small step."""
    if type(env) is OrderEnforcing:
        return _unordered(env.env)
    for layer in _layers(env):
        if isinstance(layer, gymnasium.Wrapper) and type(layer.env) is OrderEnforcing:
            layer.env = layer.env.env
    return env


def _layers(env: Any) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _held(layer: Any, kind: str) -> dict[str, Any]:
    """Attributes that may decide the future; for known classes without a look at ``__dict__`` (see `Restore`)."""
    known = _STATE.get(kind)
    if known is not None:
        names = known if isinstance(layer, gymnasium.Wrapper) else (*known, *_NUMBERS)
        return {name: getattr(layer, name) for name in names if hasattr(layer, name)}
    skipped = _PLUMBING | _CLOCKS.get(kind, frozenset())
    return {
        name: value for name, value in vars(layer).items() if name not in skipped and not isinstance(value, _CONSTANT)
    }


def _class(layer: Any) -> str:
    return f"{type(layer).__module__}:{type(layer).__qualname__}"
