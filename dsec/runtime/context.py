"""StageContext: the only door of a body to random numbers, a clock, files, anchors, and outside answers.

Everything it gives follows from the call's key, so a body that uses nothing else gives the same at every run.
"""

from __future__ import annotations

import datetime
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsec.core import bodies, canon, failpoint, seeds
from dsec.core.specs import AgentSpec, EnvSpec, RewardSpec
from dsec.core.stage import ActionKey, AnchorId, Recipe, StageCall
from dsec.errors import AbsentError, StageError, UsageError
from dsec.runtime import files, tensors
from dsec.runtime.facts import WorkerFacts
from dsec.store import anchors, partial
from dsec.store.root import Store

if TYPE_CHECKING:
    import torch

__all__ = ["Scope", "StageContext", "own_path", "plain_scalar"]

EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""Where the virtual clock starts."""

_log = logging.getLogger("dsec.stage")


@dataclass(frozen=True, slots=True)
class Scope:
    """What surrounds a call. For DSec's own bodies; what of it is in no key must not decide a result."""

    call: StageCall
    """With all inputs as anchors."""
    recipe: Recipe
    action_key: ActionKey
    store: Store
    facts: WorkerFacts
    clock: Callable[[], float] = time.monotonic
    """Real seconds, for recovery points alone."""


class StageContext:
    """What a body gets as ``ctx``.

    Parameters
    ----------
    scope
        What surrounds the call.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.stats: dict[str, Any] = {}
        """Scalars of the result so far."""
        self.sizes: dict[str, int] = {}
        """Bytes of each anchor that was put here, by id."""
        self.made: dict[str, AnchorId] = {}
        """Outputs that were stored on the way, ``state@25``."""
        self.step: int | None = None
        """Next absolute step, None before the first one."""
        self.resumed_from_step: int | None = None
        """Step of the recovery point that `recover` gave."""
        self.anchor_misses = 0
        """How often an anchor was asked for that is not there."""
        self._streams: dict[str, np.random.Generator] = {}
        self._torch_streams: dict[str, torch.Generator] = {}
        self._uuids = 0
        self._saved = scope.clock()

    # ---- random numbers, time, names --------------------------------------------------------------------

    def rng(self, path: str = "") -> np.random.Generator:
        """The stream at ``path`` below the call's own; asked for again, it goes on where it is."""
        if path not in self._streams:
            self._streams[path] = seeds.generator(self.root, self._path(path))
        return self._streams[path]

    def torch_generator(self, path: str = "") -> torch.Generator:
        """The same for torch, on the CPU."""
        if path not in self._torch_streams:
            self._torch_streams[path] = tensors.generator(self.root, self._path(path))
        return self._torch_streams[path]

    def now(self) -> datetime.datetime:
        """A virtual clock: midnight of 2000-01-01 UTC, and one second for each step."""
        first = self.scope.call.steps[0] if self.scope.call.steps else 0
        return EPOCH + datetime.timedelta(seconds=first if self.step is None else self.step)

    def uuid(self) -> uuid.UUID:
        """The next one of the call's own row of ids."""
        self._uuids += 1
        raw = bytes.fromhex(canon.digest("dsec/uuid/1", [self.root, self._path(""), self._uuids])[:32])
        return uuid.UUID(bytes=raw, version=4)

    @property
    def root(self) -> seeds.Root:
        """Root of the random streams."""
        return self.scope.recipe.seed

    @property
    def device(self) -> str:
        """Where to compute: ``cpu`` or ``cuda``."""
        return self.scope.facts.device

    # ---- inputs, files, anchors -------------------------------------------------------------------------

    def cells(self, argument: str) -> tuple[str, ...]:
        """The cell of each item of a gathered input, ``shard=3``, in its order.

        Raises
        ------
        UsageError
            If the call has no such input, or it is a single one.
        """
        source = self.scope.call.inputs.get(argument)
        if source is None or source.labels is None:
            raise UsageError(f"{argument!r} is no gathered input of this call", where=self.scope.call.instance)
        return source.labels

    def file(self, path: str) -> Path:
        """A declared file, read-only, with the content that the key names.

        Raises
        ------
        UsageError
            If the stage does not declare it.
        """
        declared = self.declared()
        if path not in declared:
            known = f"; declared are {', '.join(sorted(declared))}" if declared else ""
            raise UsageError(
                f"the file {path!r} is not declared{known}",
                where=self.scope.call.instance,
                hint=f"write `files: [{path}]` at the stage, so that its content is in the key",
            )
        return files.laid_out(self.scope.store.blobs, path, declared[path])

    def declared(self) -> dict[str, str]:
        """Digest of each file that the stage and the specs it instantiates declare, by name."""
        recipe = self.scope.recipe
        specs = [spec for spec in (recipe.agent, recipe.env, recipe.reward) if spec is not None]
        return {name: digest for each in (*specs, recipe) for name, digest in each.files.items()}

    def configured(self, spec: AgentSpec | EnvSpec | RewardSpec) -> dict[str, Any]:
        """A spec's ``with``, declared files as paths."""
        return dict(files.placed(spec.config, self.scope.store.blobs))

    def anchor(self, tree: object, tags: Iterable[str] = ()) -> AnchorId:
        """Store a tree; gives its id."""
        stored = anchors.put(self.scope.store.blobs, tree, tags=tags)
        self.sizes[stored.anchor_id] = stored.size
        return stored.anchor_id

    def load_state(self, anchor_id: str) -> Any:
        """The tree of an anchor, with those of the anchors that stand in it.

        Raises
        ------
        AbsentError
            If it is not there; that is also logged and counted.
        """
        try:
            return tensors.restored(anchors.load(self.scope.store.blobs, anchor_id))
        except AbsentError as error:
            self.anchor_misses += 1
            _log.warning("%s: anchor %s is not in the store", self.scope.call.instance, anchor_id)
            raise AbsentError(f"there is no anchor {anchor_id}", where=self.scope.call.instance) from error

    # ---- recovery ---------------------------------------------------------------------------------------

    def recover(self) -> Any:
        """What `save` kept last, if this very call was cut short before; else None.

        The streams of `rng` and `torch_generator` then go on as they stood at that time.
        """
        kept = partial.load(self.scope.store.blobs, self.scope.action_key)
        if kept is None:
            return None
        kept = tensors.restored(kept)
        self._streams.update(kept["streams"])
        self._torch_streams.update(kept["torch_streams"])
        self._uuids = kept["uuids"]
        self.stats.update(kept["stats"])
        self.sizes.update(kept["sizes"])
        self.made.update(kept["made"])
        self.step = self.resumed_from_step = kept["step"]
        return kept["tree"]

    def save(self, tree: object) -> None:
        """Offer a recovery point; it is kept if the last one is `WorkerFacts.recovery_seconds` old."""
        now = self.scope.clock()
        if now - self._saved >= self.scope.facts.recovery_seconds:
            self.keep(tree)
            self._saved = now

    def keep(self, tree: object) -> None:
        """Keep a recovery point now."""
        point = {
            "tree": tree,
            "step": self.step,
            "streams": self._streams,
            "torch_streams": self._torch_streams,
            "uuids": self._uuids,
            "stats": self.stats,
            "sizes": self.sizes,
            "made": self.made,
        }
        partial.save(self.scope.store.blobs, self.scope.action_key, point)
        failpoint.reached("stage.after-recovery-point")

    # ---- what people see --------------------------------------------------------------------------------

    def log(self, message: str = "", /, **stats: Any) -> None:
        """Say something in the worker's log, and set stats of the result: bool, int, float or text by name.

        Raises
        ------
        StageError
            If a stat is no scalar.
        """
        if message:
            _log.info("%s: %s", self.scope.call.instance, message)
        for name, value in stats.items():
            self.stats[name] = _scalar(name, value)

    def log_all(self, stats: Mapping[str, Any]) -> None:
        """Set stats by name."""
        self.log(**stats)

    def progress(self, step: int) -> None:
        """Say which absolute step comes next: `now` and errors go by it."""
        self.step = step

    def ask(self, service: str, request: object) -> Any:
        """Ask a service of the outside world; not supported yet."""
        raise StageError(
            f"ctx.ask({service!r}, {type(request).__name__}) is not supported yet",
            instance=self.scope.call.instance,
            step=self.step,
            hint="compute it in the stage, or pass it as an input",
        )

    def _path(self, path: str) -> str:
        own = own_path(self.scope.call, self.scope.recipe.uses)
        return f"{own}/{path}" if path else own


def own_path(call: StageCall, uses: str) -> str:
    """Path of a call's own streams; only what is in its key is in it."""
    body = bodies.BODIES.get(uses)
    if body is None or body.named_stream:
        return call.stream
    first = call.steps[0] if call.steps else 0
    return f"lane/{uses}/{call.stream}/{first}"


def plain_scalar(value: Any) -> Any:
    """A number of numpy or torch as Python's; anything else as it is."""
    is_number = callable(getattr(value, "item", None)) and tuple(getattr(value, "shape", (0,))) == ()
    return value.item() if is_number else value


def _scalar(name: str, value: Any) -> Any:
    plain = plain_scalar(value)
    if plain is not None and type(plain) not in (bool, int, float, str):
        raise StageError(f"the stat {name!r} is a {type(value).__name__}", hint="stats are bool, int, float or text")
    return plain
