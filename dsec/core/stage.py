"""StageCall and StageResult: the only two values that cross Dask.

Both are frozen, turn into JSON and stay under 4 KiB. What all calls of one stage in one lane share stands once
in the store as a `Recipe`; a call names it by digest. States never travel: a call names its inputs by anchor id,
or by the call and output they come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NewType

from dsec.core import canon, seeds
from dsec.core.specs import AgentSpec, EnvSpec, RewardSpec

__all__ = [
    "ActionKey",
    "AnchorId",
    "Edge",
    "Input",
    "Placement",
    "PlanKey",
    "Recipe",
    "StageCall",
    "StageResult",
    "replace",
]

AnchorId = NewType("AnchorId", str)
PlanKey = NewType("PlanKey", str)
ActionKey = NewType("ActionKey", str)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a call asks of a worker and of its host; in no key."""

    worker: str = "cpu"
    """Kind of worker: ``cpu`` or ``gpu``."""
    cpu: float = 1.0
    """Cores of the host."""
    gpu: float = 0.0
    memory: int = 0
    """Bytes of the host; 0 asks for none."""
    vram: int = 0
    """Bytes of the device; an emulated gpu ignores it."""
    labels: tuple[str, ...] = ()
    """Labels a worker must have, sorted."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An output of another call."""

    plan_key: PlanKey
    output: str


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of a call: one source, or a gather of several in matrix order."""

    sources: tuple[AnchorId | Edge, ...]
    """An anchor id once it is known, the edge before."""
    labels: tuple[str, ...] | None = None
    """None for a single source; for a gather the cell of each source, ``shard=3`` (empty text for no axes)."""
    index: AnchorId | None = None
    """Anchor of the list of sources where it is too long to travel; then ``sources`` and ``labels`` are empty."""

    @property
    def gathered(self) -> bool:
        """Whether the body receives a list."""
        return self.labels is not None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all calls of one stage in one lane share, and what their keys have in common."""

    uses: str
    """Body, ``package.module:name``."""
    code: canon.Digest
    """Fingerprint of the body's code; for a body of DSec a digest of its semantics number."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``with`` after expansion; a declared file stands as ``{"file": name, "digest": digest}``."""
    files: Mapping[str, canon.Digest] = field(default_factory=dict)
    """Files declared by the stage, as content digests."""
    agent: AgentSpec | None = None
    env: EnvSpec | None = None
    reward: RewardSpec | None = None
    seed: seeds.Root = 0
    """Root of the random streams."""
    numerics: str = "strict"
    class_id: str | None = None
    """Runtime class; None only in a dry run that does not know it yet."""
    services: Mapping[str, str] | None = None
    curriculum: None = None
    outputs: tuple[tuple[str, int | None], ...] = ()
    """Declared outputs and their ``every``, sorted by name."""
    cache_version: str | None = None
    salt: str | None = None
    """Identity of the run for ``cache: off``, else None."""

    def digest(self) -> canon.Digest:
        """Name of the recipe in the store and in the keys of its calls."""
        return canon.digest("dsec/recipe/1", self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain values, every field present, absent ones None."""
        return {
            "uses": self.uses,
            "code": self.code,
            "config": self.config,
            "files": dict(self.files),
            "agent": self.agent.model_dump() if self.agent else None,
            "env": self.env.model_dump() if self.env else None,
            "reward": self.reward.model_dump() if self.reward else None,
            "seed": self.seed,
            "numerics": self.numerics,
            "class_id": self.class_id,
            "services": self.services,
            "curriculum": self.curriculum,
            "outputs": [list(output) for output in self.outputs],
            "cache_version": self.cache_version,
            "salt": self.salt,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Recipe:
        """Inverse of `to_json`, also after a trip through JSON."""
        fields = dict(raw)
        for name, kind in (("agent", AgentSpec), ("env", EnvSpec), ("reward", RewardSpec)):
            fields[name] = kind.model_validate(fields[name]) if fields[name] is not None else None
        fields["outputs"] = tuple((name, every) for name, every in fields["outputs"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class StageCall:
    """One instance of a stage."""

    instance: str
    """Name a person sees, for example ``train@seed=0#17/learn``."""
    stage: str
    """Path of the stage, ``train.learn``."""
    plan_key: PlanKey
    recipe: canon.Digest
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """By argument name, sorted."""
    steps: tuple[int, int] | None = None
    """Absolute first and last step, inclusive."""
    stream: str = ""
    """Path of the body's stream; for `rollout` and `init_env` the label of its stage axes, ``shard=3``."""
    restream: bool = False
    """Whether the agent is broadcast over axes it lacks, so that its stream is derived anew."""
    attempt: int = 0
    """How often it was tried before; in no key."""
    bundle: canon.Digest | None = None
    """Code bundle that holds the sources; in no key."""
    timeout: float | None = None
    """Seconds until it counts as hung; in no key."""

    def edges(self) -> tuple[Edge, ...]:
        """Sources that are not known as anchors yet, in order of arguments."""
        return tuple(s for i in self.inputs.values() for s in i.sources if isinstance(s, Edge))

    def to_json(self) -> str:
        """Compact JSON text; an edge is ``[plan_key, output]``, an anchor a string."""
        raw = asdict(self)
        raw["inputs"] = [
            [
                name,
                [[s.plan_key, s.output] if isinstance(s, Edge) else s for s in source.sources],
                source.labels,
                source.index,
            ]
            for name, source in self.inputs.items()
        ]
        return json.dumps(raw, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StageCall:
        """Inverse of `to_json`."""
        raw = json.loads(text)
        raw["inputs"] = {
            name: Input(
                tuple(Edge(*s) if isinstance(s, list) else AnchorId(s) for s in sources),
                None if labels is None else tuple(labels),
                index,
            )
            for name, sources, labels, index in raw["inputs"]
        }
        raw["steps"] = tuple(raw["steps"]) if raw["steps"] is not None else None
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class StageResult:
    """What one call made: names of anchors, small numbers, and what it cost."""

    action_key: ActionKey
    outputs: Mapping[str, AnchorId] = field(default_factory=dict)
    """Anchor ids by output name, declared ones too (``state@25``)."""
    trace: AnchorId | None = None
    journal: str | None = None
    """Anchor of the outside answers; None where there were none."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Scalars that follow from the result alone, never timings."""
    cost: Mapping[str, Any] = field(default_factory=dict)
    """Scheduling facts: seconds, worker, device, attempt, resumed_from_step; compared with nothing."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each output's own object, by output name."""
    index: AnchorId | None = None
    """Anchor of the full outputs, stats and sizes where they are too long to travel."""

    def same(self, other: StageResult) -> bool:
        """Whether both are the same result: outputs, trace and stats, never cost."""
        return canon.encode(self._compared()) == canon.encode(other._compared())

    def _compared(self) -> list[object]:
        return [dict(self.outputs), self.trace, dict(self.stats), self.index]

    def to_json(self) -> str:
        """Compact JSON text."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> StageResult:
        """Inverse of `to_json`."""
        return cls(**json.loads(text))
