"""StageContext: the only door of a body to random numbers, a clock, files, anchors and outside answers."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dsec.core import canon, failpoint, seeds
from dsec.core.leaves import AnchorRef
from dsec.core.stage import ActionKey, Recipe, StageCall
from dsec.errors import StageError, StateError, UsageError
from dsec.runtime import tensors
from dsec.store import anchors, partial
from dsec.store.root import Store

__all__ = ["RECOVERY_SECONDS", "StageContext"]

RECOVERY_SECONDS = 10.0
"""Seconds between recovery points, about."""

_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@dataclass(slots=True)
class StageContext:
    """What a body is given beside its inputs."""

    call: StageCall
    recipe: Recipe
    store: Store
    action_key: ActionKey
    device: str = "cpu"
    recovery_seconds: float = RECOVERY_SECONDS
    made: dict[str, AnchorRef] = field(default_factory=dict)
    """Declared outputs that were stored on the way, ``state@25``."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the objects stored so far, by anchor id."""
    stats: dict[str, Any] = field(default_factory=dict)
    """Scalars that follow from the result alone."""
    resumed_from_step: int | None = None
    """Step of the recovery point that the call went on from."""
    step: int | None = None
    """Next absolute step, for errors and progress."""
    notes: list[str] = field(default_factory=list)
    """What `log` was told; scheduling facts, in no anchor."""
    drawn: int = 0

    # ---- random numbers, time, names --------------------------------------------------------------------

    def rng(self, path: str = "") -> np.random.Generator:
        """A numpy generator at the start of the stream ``path`` below this call's own."""
        return seeds.generator(self.recipe.seed, self._path(path))

    def torch_generator(self, path: str = "") -> torch.Generator:
        """A torch generator at the start of the stream ``path`` below this call's own."""
        key = seeds.stream_key(self.recipe.seed, f"{self._path(path)}/torch")
        generator = torch.Generator()
        generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
        return generator

    def now(self) -> datetime.datetime:
        """A virtual clock: a fixed epoch plus one second for each step."""
        return _EPOCH + datetime.timedelta(seconds=self.step or 0)

    def uuid(self) -> uuid.UUID:
        """The next of this call's own ids, the same at every run."""
        self.drawn += 1
        return uuid.UUID(int=seeds.stream_key(self.recipe.seed, self._path(f"uuid/{self.drawn}")))

    # ---- files, anchors, recovery -----------------------------------------------------------------------

    def file(self, name: str) -> bytes:
        """Content of a file that the plan declares.

        Raises
        ------
        UsageError
            If the plan does not declare it: its content would decide results without being in a key.
        """
        declared = _declared(self.recipe)
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise UsageError(f"the file {name!r} is not declared", hint=f"add it to `files:`; declared: {known}")
        content = self.store.blobs.get(f"code/{declared[name][:2]}/{declared[name]}")
        if canon.blob_digest(content) != declared[name]:
            raise StateError(f"the stored copy of {name!r} is damaged", where=self.call.instance)
        return content

    def anchor(self, tree: object, tags: Sequence[str] = ()) -> AnchorRef:
        """Store a tree; what it gives may stand in an output."""
        stored = anchors.put(self.store.blobs, tree, tags=tags)
        self.sizes[stored.anchor_id] = stored.size
        return AnchorRef(stored.anchor_id)

    def load_state(self, anchor_id: str) -> Any:
        """The tree of an anchor, with torch values on the device of this call."""
        tree = anchors.load(self.store.blobs, anchor_id, resolve=tensors.known_classes)
        return tensors.torched(tree, self.device)

    def recover(self) -> Any:
        """The last tree given to `save` by a run of this very call that was killed; None at a first start."""
        tree = partial.load(self.store.blobs, self.action_key)
        return None if tree is None else tensors.torched(tree, self.device)

    def save(self, tree: object) -> None:
        """Keep a recovery point: if the call is killed, the next try finds it in `recover`."""
        partial.save(self.store.blobs, self.action_key, tree)
        failpoint.reached("rollout.mid")

    def cells(self, argument: str) -> tuple[str, ...]:
        """Labels of a gathered input, ``shard=3``, in the order of the list."""
        return self.call.inputs[argument].labels or ()

    def log(self, message: str) -> None:
        """Tell whoever reads the run's costs; never part of a result."""
        self.notes.append(message[:500])

    def progress(self, step: int) -> None:
        """Say which step comes next."""
        self.step = step

    def ask(self, service: str, request: object) -> Any:  # noqa: ARG002 - the signature that bodies will use
        """Not there yet: services from outside."""
        raise StageError(f"asking {service!r}: services are not supported yet", instance=self.call.instance)

    def every(self, output: str) -> int | None:
        """The ``every`` of a declared output."""
        return dict(self.recipe.outputs).get(output)

    def _path(self, path: str) -> str:
        own = self.call.stream or f"stage/{self.call.stage}"
        return f"{own}/{path}" if path else own


def _declared(recipe: Recipe) -> dict[str, str]:
    found: dict[str, str] = dict(recipe.files)
    for spec in (recipe.agent, recipe.env, recipe.reward):
        if spec is not None:
            found.update(spec.files)
            found.update(_in_config(spec.config))
    found.update(_in_config(recipe.config))
    return found


def _in_config(config: Mapping[str, Any]) -> dict[str, str]:
    files = [v for v in config.values() if isinstance(v, Mapping) and set(v) == {"file", "digest"}]
    return {file["file"]: file["digest"] for file in files}
