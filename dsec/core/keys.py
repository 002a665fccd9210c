"""Formulas of the keys. docs/reference/keys.md is their specification, tests/golden/v1 keeps them.

A plan_key names a call before anything runs: its inputs stand as plan_keys of the calls that make them. An action_key
names it once its inputs are known: they stand as anchor ids. The rest is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    return PlanKey(_call_key("dsec/plan-key/1", _planned, recipe, inputs, steps, stream, restream))


def action_key(call: StageCall) -> ActionKey:
    """Key of a call whose inputs are all known as anchors.

    Raises
    ------
    ValueError
        If an input is still an edge.
    """
    position = (call.steps, call.stream, call.restream)
    return ActionKey(_call_key("dsec/action-key/1", _known, call.recipe, call.inputs, *position))


def _call_key(
    domain: str,
    name: Callable[[AnchorId | Edge], list[str] | str],
    recipe: canon.Digest,
    inputs: Mapping[str, Input],
    *position: object,
) -> canon.Digest:
    named = [
        [
            argument,
            None if source.labels is None else list(source.labels),
            [name(item) for item in source.sources],
        ]
        for argument, source in sorted(inputs.items())
    ]
    return canon.digest(domain, [recipe, *position, named])


def _planned(source: AnchorId | Edge) -> list[str] | str:
    return [source.plan_key, source.output] if isinstance(source, Edge) else source


def _known(source: AnchorId | Edge) -> str:
    if isinstance(source, Edge):
        raise ValueError(f"input {source.output} of {source.plan_key} is not resolved")
    return source


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
