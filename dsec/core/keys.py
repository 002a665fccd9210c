"""Formulas of the keys. docs/reference/keys.md is their specification, tests/golden/v1 keeps them.

A plan_key names a call before anything runs: its inputs stand as plan_keys of the calls that make them. An action_key
names it once its inputs are known: they stand as anchor ids. The rest is the same in both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from dsec.core import canon
from dsec.core.stage import ActionKey, AnchorId, Edge, Input, PlanKey, StageCall

__all__ = ["action_key", "anchor_plan_key", "dask_key", "plan_key", "run_identity"]


def plan_key(
    recipe: canon.Digest,
    inputs: Mapping[str, Input],
    *,
    steps: tuple[int, int] | None = None,
    stream: str = "",
    restream: bool = False,
) -> PlanKey:
    """Key of a call from its recipe, position and the calls upstream of it.

    An anchor that a plan names itself (``anchor:<id>``) stands in ``inputs`` as its id.
    """
    return PlanKey(_call_key("dsec/plan-key/1", recipe, inputs, steps, stream, restream=restream))


def action_key(call: StageCall) -> ActionKey:
    """Key of a call whose inputs are all known as anchors.

    Raises
    ------
    ValueError
        If an input is still an edge.
    """
    for edge in call.edges():
        raise ValueError(f"input {edge.output} of {edge.plan_key} is not resolved")
    parts = (call.recipe, call.inputs, call.steps, call.stream)
    return ActionKey(_call_key("dsec/action-key/1", *parts, restream=call.restream))


def _call_key(
    domain: str,
    recipe: canon.Digest,
    inputs: Mapping[str, Input],
    steps: tuple[int, int] | None,
    stream: str,
    *,
    restream: bool,
) -> canon.Digest:
    """Digest of ``[recipe, steps, stream, restream, [[argument, labels, sources], ...]]``, arguments sorted.

    The canonical bytes are written out here, a fifth of the time of `canon.encode`: large plans have half a million.
    """
    span = "N" if steps is None else f"u2:i{steps[0]:x};i{steps[1]:x};"
    named = "".join([_argument(name, inputs[name]) for name in sorted(inputs)])
    position = f"{_text(recipe)}{span}{_text(stream)}{'T' if restream else 'F'}"
    return canon.digest(domain, canon.Encoded(f"l5:{position}l{len(inputs)}:{named}".encode()))


def _argument(name: str, source: Input) -> str:
    items = source.sources
    sources = _source(items[0]) if len(items) == 1 else "".join([_source(item) for item in items])
    labels = "N" if source.labels is None else f"l{len(source.labels)}:{''.join(map(_text, source.labels))}"
    return f"l3:{_name(name)}{labels}l{len(items)}:{sources}"


def _source(item: AnchorId | Edge) -> str:
    if isinstance(item, Edge):
        return f"l2:s{len(item.plan_key)}:{item.plan_key}{_name(item.output)}"
    return _text(item)


def _text(value: str) -> str:
    return f"s{len(value)}:{value}" if value.isascii() else canon.encode(value).decode()


_name = functools.lru_cache(maxsize=1024)(_text)
"""The same few names of arguments and outputs stand in every key of a plan."""


def anchor_plan_key(anchor: AnchorId) -> PlanKey:
    """The plan_key of an anchor that a plan names itself is its id."""
    return PlanKey(anchor)


def dask_key(stage: str, store_id: str, call: StageCall) -> str:
    """Name of the call on a scheduler: ``train.learn-<64 hex>``, so that dashboards group by stage.

    A shared scheduler must not hand one store's result to another, nor an old one after a refresh; so the store, the
    literal inputs and the attempt count.
    """
    literal = [s for i in call.inputs.values() for s in i.sources if not isinstance(s, Edge)]
    index = [i.index for i in call.inputs.values()]
    return f"{stage}-{canon.digest('dsec/dask-key/1', [store_id, call.plan_key, literal, index, call.attempt])}"


def run_identity(plan: object, params: Mapping[str, object], select: tuple[str, ...]) -> canon.Digest:
    """Identity by which an unfinished run is found again: expanded plan, ``-p``, ``--select``."""
    return canon.digest("dsec/run/1", [plan, dict(params), list(select)])
