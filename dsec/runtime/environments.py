"""Live environments: built from a spec, saved, restored, and stepped ``num_envs`` at a time.

Every instance is fresh: `LiveEnv.start` and `LiveEnv.load` build new ones, since a reset does not undo everything.
An environment is saved by its own ``state_dict`` where that passed a trial (restored into a second instance, it must go
on the same way), and otherwise by its episode: the reset seed and the actions since, replayed on a fresh instance. A
replayed environment therefore gets a fresh instance for every episode. Which of the two it is, and how much the state
hash covers, is found at the start of the session and travels in the state.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dsec.core import seeds, state
from dsec.core.specs import EnvSpec
from dsec.errors import DsecError, StageError, StateError
from dsec.runtime import chain, failures, layouts
from dsec.runtime.protocols import Environment

__all__ = ["LiveEnv", "Saving", "Simulator", "open_env", "trial"]

ADAPTERS: Mapping[str, str] = {"gymnasium": "dsec.adapters.gymnasium"}
"""Library -> the module that turns its environments into ours; named, since nothing imports adapters."""

TRIAL_SEED = 20_001
TRIAL_STEPS = 8


@dataclass(frozen=True, slots=True)
class Saving:
    """How an environment is saved, and what its state hash covers."""

    method: str
    """``state`` (its own state_dict) or ``replay``."""
    coverage: str
    """``full``, ``partial`` (see ``opaque``) or ``observational`` (no state hash: it differs between equal runs)."""
    opaque: tuple[str, ...] = ()
    """What the state hash can't see, or why the state can't be used."""

    def to_tree(self) -> dict[str, Any]:
        """As the state of an environment keeps it."""
        return {"method": self.method, "coverage": self.coverage, "opaque": list(self.opaque)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Saving:
        """Inverse of `to_tree`."""
        return cls(tree["method"], tree["coverage"], tuple(tree["opaque"]))


class Simulator:
    """One environment with what it takes to save it.

    Parameters
    ----------
    build
        Makes a fresh instance.
    saving
        How it is saved; None where it never is.
    """

    def __init__(self, build: Callable[[], Environment], saving: Saving | None) -> None:
        self._build = build
        self._replayed = saving is not None and saving.method == "replay"
        self._hashed = saving is not None and saving.coverage != "observational"
        self._used = False
        self._seed = 0
        self._actions: list[bytes] = []
        self._shown: Any = None
        self.environment = build()
        self.observation_layout: layouts.Layout | None = _space_layout(self.environment, "observation_space")
        self.action_layout: layouts.Layout | None = _space_layout(self.environment, "action_space")
        self._bind()

    def _bind(self) -> None:
        self.step: Callable[[Any], tuple[Any, Any, Any, Any, Any]]
        """Act once with an action that was read."""
        self.step = self._recorded if self._replayed else self.environment.step

    def _recorded(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if self.action_layout is None:
            self.action_layout = layouts.layout_of(action)
        self._actions.append(self.action_layout.pack(action))
        return self.environment.step(action)

    def reset(self, seed: int) -> Any:
        """Begin an episode; gives its first observation, read."""
        if self._replayed and self._used:
            close(self.environment)
            self.environment = self._build()
            self._bind()
        self._used = True
        self._seed = seed
        self._actions = []
        observation, _ = self.environment.deterministic_reset(seed)
        return self.read(observation)

    def read(self, observation: Any) -> Any:
        """An observation in its one form."""
        if self.observation_layout is None:
            self.observation_layout = layouts.layout_of(observation)
        return self.observation_layout.read(observation)

    def state_hash(self) -> bytes:
        """16 bytes over its state; empty where its coverage is observational."""
        return state_hash(self.environment) if self._hashed else b""

    def tree(self) -> dict[str, Any]:
        """Its state."""
        state: Any = None
        actions: Any = None
        if self._replayed:
            actions = self.action_layout.unpack(self._actions) if self.action_layout and self._actions else None
        else:
            state = self.environment.state_dict()  # type: ignore[attr-defined]
        count = len(self._actions)
        return {"seed": self._seed, "state": state, "actions": actions, "count": count, "hash": self.state_hash()}

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Put a fresh instance where the saved one was; `check` comes next."""
        shown = self.reset(tree["seed"])
        if not self._replayed:
            self.environment.load_state_dict(tree["state"])  # type: ignore[attr-defined]
        elif tree["count"]:
            shown = self._replay(tree["actions"], tree["count"])
        self._shown = shown

    def check(self, tree: Mapping[str, Any], observation: Any) -> None:
        """Compare a restored instance with what was saved.

        Raises
        ------
        StateError
            If it is not where the saved one was.
        """
        assert self.observation_layout is not None
        pack = self.observation_layout.pack
        other = self._replayed and pack(self._shown) != pack(observation)
        if other or self.state_hash() != tree["hash"]:
            raise StateError(
                "restored, the environment is not where it was saved",
                where=type(self.environment).__qualname__,
                hint="its future must depend on its seed and its actions alone",
            )

    def _replay(self, actions: Any, count: int) -> Any:
        if self.action_layout is None:
            self.action_layout = layouts.layout_of(layouts.first_of(actions))
        observation = None
        for action in self.action_layout.split(actions, count):
            observation = self.step(action)[0]
        return self.read(observation)


class LiveEnv:
    """An environment of a session, or ``num_envs`` of them side by side, at one step between two.

    Parameters
    ----------
    spec
        What builds it.
    root
        Root of the random streams.
    label
        Axes of its stage, ``shard=3``; part of its seeds' paths.
    """

    def __init__(self, spec: EnvSpec, root: seeds.Root, label: str) -> None:
        self.spec = spec
        self.root = root
        self.label = label
        self.batched = spec.num_envs is not None
        """Whether there is a leading axis of environments."""
        self.size = spec.num_envs or 1
        """How many environments there are."""
        self.step = 0
        """Next absolute step."""
        self.saving: Saving | None = None
        """How it is saved; None before `start` or `load`, and after `begin`."""
        self.simulators: list[Simulator] = []
        self.observations: list[Any] = []
        """What each environment shows now, read by its layout."""
        self.episode = [0] * self.size
        """Episode of each environment, from 0."""
        self.episode_return = [0.0] * self.size
        """Sum of rewards of the episode so far."""
        self.episode_length = [0] * self.size
        """Steps of the episode so far."""
        self.chain = [chain.START] * self.size
        """Chained hash of each environment before the next step."""

    def start(self) -> None:
        """Begin a session: find out how it is saved, then reset each environment for its episode 0."""
        with _building(self.spec):
            self.saving = trial(self._build)
        self._first()

    def begin(self, seed: int) -> None:
        """Begin one episode with this seed, in an environment that is never saved: for evaluation, without batch.

        Raises
        ------
        StageError
            If the spec has num_envs.
        """
        if self.batched:
            raise StageError("one episode is that of one environment", hint="open the spec without num_envs")
        with _building(self.spec):
            self._open(None)
        self._restart([seed])

    def next_episode(self, index: int) -> Any:
        """Reset environment ``index`` for its next episode; gives the first observation, read."""
        self.episode[index] += 1
        self.episode_return[index] = 0.0
        self.episode_length[index] = 0
        self.observations[index] = self.simulators[index].reset(self._seed(index, self.episode[index]))
        return self.observations[index]

    def stand(self, step: int, observations: list[Any], returns: list[float], lengths: list[int]) -> None:
        """Say where the loop left it: next step, and for each environment what it shows and its episode so far."""
        self.step = step
        self.observations = observations
        self.episode_return = returns
        self.episode_length = lengths

    def learn_actions(self, action: Any) -> layouts.Layout:
        """The layout of actions from the first of them, where the environment has no space."""
        found = layouts.layout_of(action)
        for simulator in self.simulators:
            simulator.action_layout = found
        return found

    def relabel(self, label: str) -> None:
        """Go on below another label: before the first step by starting again, later from the next episode on."""
        if label == self.label:
            return
        self.label = label
        if self.step == 0:
            self._first()

    def state_hashes(self) -> list[bytes]:
        """The state hash of each environment; empty where coverage is observational."""
        return [simulator.state_hash() for simulator in self.simulators]

    def tree(self) -> dict[str, Any]:
        """Everything that decides its future, as a state tree; valid until the next step.

        Raises
        ------
        StateError
            If something that decides the future can't be saved.
        """
        if self.saving is None:
            raise StateError("an environment that was begun for one episode is never saved", where="env")
        return {
            "kind": "env",
            "step": self.step,
            "label": self.label,
            "num_envs": self.spec.num_envs,
            **self.saving.to_tree(),
            "simulators": [simulator.tree() for simulator in self.simulators],
            "observation": self.observation,
            "episode": list(self.episode),
            "episode_return": list(self.episode_return),
            "episode_length": list(self.episode_length),
            "chain": b"".join(self.chain),
        }

    @property
    def observation(self) -> Any:
        """What the agent sees next: one observation, or all of a batch on a leading axis."""
        return self.observation_layout.stack(self.observations) if self.batched else self.observations[0]

    @property
    def observation_layout(self) -> layouts.Layout:
        """Layout of one environment's observations."""
        found = self.simulators[0].observation_layout
        assert found is not None
        return found

    @property
    def action_layout(self) -> layouts.Layout | None:
        """Layout of one environment's actions; None until the first one, where there is no space."""
        return self.simulators[0].action_layout

    def load(self, tree: Mapping[str, Any]) -> None:
        """Inverse of `tree`, on fresh instances.

        Raises
        ------
        StateError
            If the state is of another kind or number of environments, or can't be restored.
        """
        if tree.get("kind") != "env" or tree["num_envs"] != self.spec.num_envs:
            found = f"num_envs: {tree['num_envs']}" if tree.get("kind") == "env" else f"kind {tree.get('kind')!r}"
            raise StateError(f"a state with {found}, the spec has num_envs: {self.spec.num_envs}", where="env")
        with _building(self.spec):
            self._open(Saving.from_tree(tree))
            self._restore(tree)
        self.step = tree["step"]
        self.label = tree["label"]
        self.episode = list(tree["episode"])
        self.episode_return = list(tree["episode_return"])
        self.episode_length = list(tree["episode_length"])
        self.chain = [tree["chain"][at : at + chain.SIZE] for at in range(0, len(tree["chain"]), chain.SIZE)]

    def close(self) -> None:
        """Close all instances."""
        for simulator in self.simulators:
            close(simulator.environment)
        self.simulators = []

    def _restore(self, tree: Mapping[str, Any]) -> None:
        for simulator, entry in zip(self.simulators, tree["simulators"], strict=True):
            simulator.restore(entry)
        layout, shown = self.observation_layout, tree["observation"]
        self.observations = layout.split(shown, self.size) if self.batched else [layout.read(shown)]
        checked = zip(self.simulators, tree["simulators"], self.observations, strict=True)
        for simulator, entry, observation in checked:
            simulator.check(entry, observation)

    def _first(self) -> None:
        with _building(self.spec):
            self._open(self.saving)
        self._restart([self._seed(index, 0) for index in range(self.size)])

    def _open(self, saving: Saving | None) -> None:
        self.close()
        self.saving = saving
        self.simulators = [Simulator(self._build, saving) for _ in range(self.size)]

    def _restart(self, numbers: list[int]) -> None:
        with _building(self.spec):
            pairs = zip(self.simulators, numbers, strict=True)
            self.observations = [simulator.reset(number) for simulator, number in pairs]
        self.step = 0
        self.episode = [0] * self.size
        self.episode_return = [0.0] * self.size
        self.episode_length = [0] * self.size
        self.chain = [chain.START] * self.size

    def _seed(self, index: int, episode: int) -> int:
        return seeds.reset_seed(self.root, seeds.episode_path(self.label, index, episode))

    def _build(self) -> Environment:
        return build(self.spec)


def open_env(spec: EnvSpec, *, root: seeds.Root, label: str = "") -> LiveEnv:
    """The environment of a session; `LiveEnv.start` or `LiveEnv.load` comes next.

    Raises
    ------
    StageError
        If ``num_envs`` makes no sense. Whatever is wrong with users' code shows at start or load.
    """
    if spec.num_envs is not None and spec.num_envs < 1:
        raise StageError(f"num_envs is {spec.num_envs}", hint="write 1 or more, or leave it out")
    return LiveEnv(spec, root, label)


def build(spec: EnvSpec) -> Environment:
    """A fresh instance of what ``spec`` names.

    Raises
    ------
    StageError
        If the name leads nowhere, to something that is no environment, or to something that raises.
    """
    with _building(spec):
        return _built(spec)


def _built(spec: EnvSpec) -> Environment:
    library, slash, name = spec.code.uses.partition("/")
    if slash and library in ADAPTERS:
        return _adapter(library).make(name, spec.config)  # type: ignore[no-any-return]
    module, _, attribute = spec.code.uses.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            return _by_id(found, module, attribute, spec.config)
        found = getattr(found, part)
    return _conforming(found(**spec.config), spec.code.uses)


def trial(build: Callable[[], Environment]) -> Saving:
    """How an environment can be saved: its own state_dict if that passes, else its episode's actions.

    Two instances are driven alike: a state hash that differs covers nothing. Then a third one, reset with another seed
    and loaded with the state of the first, has to go on as the first does.
    """
    actions = _sampled(build, 2 * TRIAL_STEPS)
    before, after = actions[:TRIAL_STEPS], actions[TRIAL_STEPS:]
    with _opened(build) as first, _opened(build) as second:
        for environment in (first, second):
            environment.deterministic_reset(TRIAL_SEED)
        if _drive(first, before) != _drive(second, before) or state_hash(first) != state_hash(second):
            return Saving("replay", "observational", ("its state hash differs between two equal runs",))
        opaque = tuple(getattr(first, "opaque", tuple)())
        coverage = "partial" if opaque else "full"
        reason = _refusal(first, build, after)
    return Saving("replay", coverage, opaque or (reason,)) if reason else Saving("state", coverage, opaque)


def _refusal(first: Environment, build: Callable[[], Environment], actions: list[Any]) -> str:
    if not hasattr(first, "state_dict") or not hasattr(first, "load_state_dict"):
        return "it has no state_dict() and load_state_dict()"
    from dsec.runtime import tensors  # torch, which an environment without a state of its own does not need

    with _opened(build) as other:
        other.deterministic_reset(TRIAL_SEED + 1)
        try:
            saved = state.flatten(first.state_dict())
            other.load_state_dict(tensors.restored(state.unflatten(*saved[:2])))  # type: ignore[attr-defined]
        except Exception as error:
            return f"its state_dict() and load_state_dict() failed: {type(error).__name__}: {error}"
        if state_hash(other) != state_hash(first) or _drive(other, actions) != _drive(first, actions):
            return "restored by load_state_dict(), it went on another way"
        return "" if state_hash(other) == state_hash(first) else "restored by load_state_dict(), it went on another way"


def _drive(environment: Environment, actions: list[Any]) -> list[Any]:
    shown: list[Any] = []
    for action in actions:
        try:
            observation, reward, terminated, truncated, _ = environment.step(action)
        except Exception as error:  # an action that the space allows and the environment does not
            return [*shown, repr(error)]
        layout = layouts.layout_of(observation)
        shown.append((layout.pack(layout.read(observation)), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return shown


def _sampled(build: Callable[[], Environment], count: int) -> list[Any]:
    with _opened(build) as environment:
        space = getattr(environment, "action_space", None)
        layout = _space_layout(environment, "action_space")
        if space is None or layout is None:
            return []
        space.seed(TRIAL_SEED)
        return [layout.read(space.sample()) for _ in range(count)]


def state_hash(environment: Environment) -> bytes:
    """Its state hash, 16 bytes.

    Raises
    ------
    StateError
        If it gives something else.
    """
    found = environment.state_hash()
    if type(found) is not bytes or len(found) != chain.SIZE:
        raise StateError(f"state_hash() gave {found!r:.60}, expected 16 bytes", where=type(environment).__qualname__)
    return found


def close(environment: Environment) -> None:
    """Close it, if it can be closed."""
    closing = getattr(environment, "close", None)
    if closing is not None:
        closing()


@contextmanager
def _opened(build: Callable[[], Environment]) -> Iterator[Environment]:
    environment = build()
    try:
        yield environment
    finally:
        close(environment)


@contextmanager
def _building(spec: EnvSpec) -> Iterator[None]:
    try:
        yield
    except DsecError:
        raise
    except layouts.LayoutError as error:
        raise StageError(f"environment {spec.code.uses}: observation: {error}") from error
    except Exception as error:
        raise failures.failed(f"environment {spec.code.uses}", error) from error


def _adapter(library: str) -> Any:
    return importlib.import_module(ADAPTERS[library])


def _by_id(module: Any, name: str, attribute: str, config: Mapping[str, Any]) -> Environment:
    for library in ADAPTERS:
        if _adapter(library).registered(attribute):
            return _adapter(library).make(attribute, config)  # type: ignore[no-any-return]
    near = difflib.get_close_matches(attribute, vars(module), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "an environment is written package.module:Class"
    raise StageError(f"module {name} has no {attribute!r}", hint=hint)


def _conforming(found: Any, uses: str) -> Environment:
    missing = [name for name in ("deterministic_reset", "step", "state_hash") if not callable(getattr(found, name, 0))]
    if not missing:
        return found  # type: ignore[no-any-return]
    library = _library(found)
    if library is not None:
        return _adapter(library).adapt(found)  # type: ignore[no-any-return]
    kind = f"{type(found).__module__}.{type(found).__qualname__}"
    raise StageError(
        f"{uses} gave a {kind}, which is neither an environment of gymnasium nor has {', '.join(missing)}",
        hint="subclass gymnasium.Env, or give it deterministic_reset(seed), step(action) and state_hash()",
    )


def _library(found: Any) -> str | None:
    roots = [kind.__module__.partition(".")[0] for kind in type(found).__mro__]
    return next((library for library in ADAPTERS if library in roots), None)


def _space_layout(environment: Environment, name: str) -> layouts.Layout | None:
    space = getattr(environment, name, None)
    library = _library(space)
    return _adapter(library).layout(space) if library is not None else None
