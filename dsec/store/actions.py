"""Results by key: the truth about what was computed.

An action entry is a sealed object ``actions/ab/<action_key>``. Blobs are written before it, so whoever finds it finds
its outputs. The first entry of a key stays; a different second one is an alarm, a damaged one makes way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsec.core import canon, failpoint
from dsec.core.stage import ActionKey, PlanKey, StageCall, StageResult
from dsec.errors import AbsentError, CorruptObject, NondeterminismError, StoreError
from dsec.store import root
from dsec.store.blobs import BlobStore

__all__ = [
    "ActionEntry",
    "commit",
    "differences",
    "entries",
    "entry_of",
    "input_ids",
    "inputs_digest",
    "load",
    "read",
    "supersede",
]

_ATTEMPTS = 10  # each one more needs the entry to be damaged or removed anew between two system calls


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """A result, and all that its key was made of."""

    result: StageResult
    plan_key: PlanKey
    """Key under which it was planned when it ran; other plans may reach it by other plan_keys."""
    instance: str
    stage: str
    recipe: canon.Digest
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Anchor ids by argument, in matrix order for a gather."""
    labels: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    """Cells of a gather by argument, None for a single source."""
    steps: tuple[int, int] | None = None
    stream: str = ""
    restream: bool = False
    produced_by: Mapping[str, Any] = field(default_factory=dict)
    """Who made it: run, host, worker, version. In no key."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ActionEntry:
        """Inverse of `to_json`, also after a trip through JSON."""
        steps = raw["steps"]
        return cls(**{**raw, "result": StageResult(**raw["result"]), "steps": None if steps is None else tuple(steps)})


def entry_of(call: StageCall, result: StageResult, produced_by: Mapping[str, Any] | None = None) -> ActionEntry:
    """The entry of a call whose inputs are all known as anchors."""
    return ActionEntry(
        result,
        call.plan_key,
        call.instance,
        call.stage,
        call.recipe,
        input_ids(call),
        {name: source.labels for name, source in call.inputs.items()},
        call.steps,
        call.stream,
        call.restream,
        produced_by or {},
    )


def input_ids(call: StageCall) -> dict[str, list[str]]:
    """Anchor ids of a call's inputs by argument.

    Raises
    ------
    ValueError
        If an input is still an edge.
    """
    if edges := call.edges():
        raise ValueError(f"input {edges[0].output} of {call.instance} is not resolved")
    return {name: [str(item) for item in source.sources] for name, source in call.inputs.items()}


def inputs_digest(inputs: Mapping[str, Sequence[str]]) -> canon.Digest:
    """Digest of the anchor ids that a call was run with; a plan_key hits only if they still are its inputs."""
    return canon.digest("dsec/inputs/1", {name: list(ids) for name, ids in inputs.items()})


def load(blobs: BlobStore, action_key: ActionKey) -> StageResult | None:
    """The result of a key, None for a miss; a damaged entry goes to quarantine and is a miss."""
    entry = read(blobs, action_key)
    return None if entry is None else entry.result


def read(blobs: BlobStore, action_key: ActionKey) -> ActionEntry | None:
    """The whole entry of a key, None for a miss; a damaged entry goes to quarantine and is a miss."""
    name = _name(action_key)
    try:
        return _decode(action_key, name, blobs.get(name))
    except AbsentError:
        return None
    except CorruptObject:
        root.set_aside(blobs, name)
        return None


def commit(blobs: BlobStore, entry: ActionEntry) -> StageResult:
    """File a result under its key and return what is filed there: this one, or an equal earlier one.

    Everything the result names must have been put before.

    Raises
    ------
    NondeterminismError
        If the key has another result already; that one stays.
    """
    name = _name(entry.result.action_key)
    content = [root.seal(name, entry.to_json())]
    failpoint.reached("store.actions.before-entry")
    for _ in range(_ATTEMPTS):
        if blobs.put_new(name, content):
            failpoint.reached("store.actions.after-entry")
            return entry.result
        first = load(blobs, entry.result.action_key)
        if first is not None:
            return _agreed(first, entry)
    raise StoreError("the entry is damaged or removed as often as it is written", where=name)


def supersede(blobs: BlobStore, entry: ActionEntry) -> StageResult:
    """File the result of a refresh: a different earlier one moves to ``superseded/ab/<action_key>.<n>``."""
    name = _name(entry.result.action_key)
    first = read(blobs, entry.result.action_key)
    if first is None:
        return commit(blobs, entry)
    if not differences(first.result, entry.result):
        return first.result
    number = sum(1 for _ in blobs.names(f"superseded/{name.removeprefix('actions/')}."))
    kept = f"superseded/{name.removeprefix('actions/')}.{number}"
    blobs.put(kept, [root.seal(kept, first.to_json())])
    blobs.replace(name, [root.seal(name, entry.to_json())])
    return entry.result


def differences(first: StageResult, second: StageResult) -> list[str]:
    """What two results of one key differ in, as texts; empty if they are the same.

    Compared are outputs, trace and stats, as they read after a trip through JSON; never cost. Results with unequal
    journals saw different answers from outside and are not compared.
    """
    first, second = (StageResult.from_json(result.to_json()) for result in (first, second))
    if first.journal != second.journal or first.same(second):
        return []
    found = _differing("output", first.outputs, second.outputs) + _differing("stat", first.stats, second.stats)
    found += _differing(
        "", {"trace": first.trace, "index": first.index}, {"trace": second.trace, "index": second.index}
    )
    return found


def entries(blobs: BlobStore) -> Iterator[ActionEntry]:
    """All entries that are whole, sorted by key."""
    for name in blobs.names("actions/"):
        entry = read(blobs, ActionKey(name.rpartition("/")[2]))
        if entry is not None:
            yield entry


def _name(action_key: ActionKey) -> str:
    return f"actions/{action_key[:2]}/{action_key}"


def _decode(action_key: ActionKey, name: str, raw: bytes) -> ActionEntry:
    body = root.unseal(name, raw)
    try:
        entry = ActionEntry.from_json(body)
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptObject(f"{name} has fields that format {root.FORMAT} does not know") from error
    if entry.result.action_key != action_key:
        raise CorruptObject(f"{name} holds the result of {entry.result.action_key}")
    return entry


def _agreed(first: StageResult, entry: ActionEntry) -> StageResult:
    found = differences(first, entry.result)
    if not found:
        return first
    raise NondeterminismError(
        f"stage {entry.stage} gave two results for one key, {first.action_key}: {'; '.join(found)}",
        where=entry.instance,
        hint="the first result is kept; find what the stage reads besides its inputs, or say `cache: refresh`",
    )


def _differing(kind: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind} {name}: first {_shown(first, name)}, now {_shown(second, name)}".strip()
        for name in sorted({*first, *second})
        if canon.encode([first.get(name), name in first]) != canon.encode([second.get(name), name in second])
    ]


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "absent"
    text = json.dumps(values[name])
    return text if len(text) <= 80 else f"{text[:77]}..."
