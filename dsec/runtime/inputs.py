"""Inputs of a call: edges become anchors, anchors become trees.

Lists too long to travel are index objects: ``{"sources": [AnchorRef, ...], "labels": [...] or None}`` for an input,
``{"outputs": {name: AnchorRef}, "stats": ..., "sizes": ...}`` for a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsec.core.stage import AnchorId, Edge, Input, StageCall, StageResult, replace
from dsec.errors import AbsentError, CorruptObject, StageError
from dsec.runtime import tensors
from dsec.store import anchors
from dsec.store.blobs import BlobStore

__all__ = ["expanded", "full", "loaded", "resolved"]


def resolved(call: StageCall, upstream: Mapping[str, StageResult], blobs: BlobStore) -> StageCall:
    """The call with all its inputs as anchors, indexed ones too.

    Raises
    ------
    StageError
        If a call upstream did not make the output that is asked for, or its result was not given.
    """
    if not call.inputs:
        return call
    inputs = {name: _resolved(call, expanded(source, blobs), upstream, blobs) for name, source in call.inputs.items()}
    return replace(call, inputs=inputs)


def expanded(source: Input, blobs: BlobStore) -> Input:
    """An input with its sources, read from its index where they were too long to travel."""
    if source.index is None:
        return source
    listed = anchors.get(blobs, source.index)
    labels = None if listed["labels"] is None else tuple(listed["labels"])
    return Input(tuple(AnchorId(ref.anchor_id) for ref in listed["sources"]), labels)


def full(result: StageResult, blobs: BlobStore) -> StageResult:
    """A result with its outputs, stats and sizes, read from its index where they were too long to travel."""
    if result.index is None:
        return result
    listed = anchors.get(blobs, result.index)
    outputs = {name: AnchorId(ref.anchor_id) for name, ref in listed["outputs"].items()}
    return replace(result, outputs=outputs, stats=listed["stats"], sizes=listed["sizes"])


def _resolved(call: StageCall, source: Input, upstream: Mapping[str, StageResult], blobs: BlobStore) -> Input:
    return replace(source, sources=tuple(_anchor(call, item, upstream, blobs) for item in source.sources))


def _anchor(call: StageCall, item: AnchorId | Edge, upstream: Mapping[str, StageResult], blobs: BlobStore) -> AnchorId:
    if not isinstance(item, Edge):
        return item
    if item.plan_key not in upstream:
        raise StageError(f"the result of {item.plan_key} was not given", instance=call.instance)
    outputs = full(upstream[item.plan_key], blobs).outputs
    if item.output not in outputs:
        made = ", ".join(sorted(outputs)) or "nothing"
        raise StageError(
            f"it takes the output {item.output!r} of a call that made {made}",
            instance=call.instance,
            hint="name one of these, or let the upstream body return it",
        )
    return outputs[item.output]


def loaded(original: StageCall, call: StageCall, blobs: BlobStore) -> dict[str, Any]:
    """Trees of a resolved call by argument: one, or a list for a gather.

    Parameters
    ----------
    original
        The call as it came, with edges: they name who can make a damaged anchor again.

    Raises
    ------
    CorruptObject, AbsentError
        If an input can't be read; ``anchor_id``, ``argument`` and ``producer`` (plan_key and output, or None) say
        which.
    """
    found: dict[str, Any] = {}
    for name, source in call.inputs.items():
        edges = original.inputs[name].sources or (None,) * len(source.sources)
        pairs = zip(source.sources, edges, strict=True)
        trees = [_tree(call, name, AnchorId(str(anchor_id)), edge, blobs) for anchor_id, edge in pairs]
        found[name] = trees if source.gathered else trees[0]
    return found


def _tree(call: StageCall, argument: str, anchor_id: AnchorId, edge: object, blobs: BlobStore) -> Any:
    try:
        return tensors.restored(anchors.load(blobs, anchor_id))
    except (CorruptObject, AbsentError) as error:
        producer = (edge.plan_key, edge.output) if isinstance(edge, Edge) else None
        made_by = f", output {producer[1]!r} of the call {producer[0]}" if producer else ""
        named = type(error)(
            f"input {argument!r}, anchor {anchor_id}{made_by}, can't be read: {error}",
            where=call.instance,
            hint="the same command makes it again" if producer else "restore it from a copy of the store",
        )
        named.__dict__.update(anchor_id=anchor_id, argument=argument, producer=producer)
        raise named from error
