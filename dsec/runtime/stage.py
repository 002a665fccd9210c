"""run_stage: one call on one worker, from its inputs to its committed result.

Order of what is written: anchors, then the action entry, then the recovery point goes. A worker that dies in between leaves
nothing that could be taken for a result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsec.core import bodies, failpoint, keys
from dsec.core.leaves import AnchorRef
from dsec.core.stage import ActionKey, AnchorId, Edge, Input, Recipe, StageCall, StageResult, replace
from dsec.errors import AbsentError, ClassMismatch, CorruptObject, DsecError, StageError, StateError
from dsec.runtime import context, failures, names, numerics
from dsec.runtime.context import StageContext
from dsec.store import actions, anchors, partial, root
from dsec.store.root import Store

__all__ = ["WorkerFacts", "run_stage"]

MAX_TRAVELLING = 3500
"""Bytes of a result that travels; a longer one leaves its lists in an index anchor."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Which worker runs a call; goes to cost, never to a key."""

    kind: str = "cpu"
    device: str = "cpu"
    name: str = "serial"
    class_id: str | None = None
    recovery_seconds: float = context.RECOVERY_SECONDS


def run_stage(
    call: StageCall, upstream: Mapping[str, StageResult], store: Store, facts: WorkerFacts, *, refresh: bool = False
) -> tuple[StageResult, bool]:
    """Run one call, or find its result.

    Parameters
    ----------
    call
        Its inputs are anchors, or edges to calls in ``upstream``.
    upstream
        Results by plan_key.
    refresh
        Whether it runs although there is a result.

    Returns
    -------
    StageResult
        What is filed under its action_key.
    bool
        Whether the body ran.

    Raises
    ------
    StageError, StateError
        If the body or its outputs fail, with the instance's name.
    CorruptObject, AbsentError
        If an input can't be read; ``where`` names the argument.
    """
    bound = _bound(call, upstream, store)
    action_key = keys.action_key(bound)
    found = None if refresh else actions.load(store.blobs, action_key)
    if found is not None:
        return replace(found, cost={**found.cost, "cutoff": True}), False
    recipe = root.get_recipe(store, call.recipe)
    if recipe.class_id is not None and facts.class_id != recipe.class_id:
        raise ClassMismatch(
            f"{call.instance} is keyed to the runtime class {recipe.class_id[:12]}, this worker's is "
            f"{(facts.class_id or 'unknown')[:12]}",
            hint="run it on workers of the class it began on, or in another store",
        )
    failpoint.reached("stage.start")
    return _executed(bound, recipe, action_key, store, facts, refresh=refresh), True


def _executed(
    call: StageCall, recipe: Recipe, action_key: ActionKey, store: Store, facts: WorkerFacts, *, refresh: bool
) -> StageResult:
    began = time.perf_counter()
    ctx = StageContext(call, recipe, store, action_key, facts.device, facts.recovery_seconds)
    stream = f"global/{recipe.uses}/{call.steps}/{call.stream}"
    inputs = {name: _loaded(ctx, name, source) for name, source in call.inputs.items()}
    with numerics.global_streams(recipe.seed, stream) as used:
        made = _asked(ctx, inputs)
    outputs, trace = _stored(ctx, made)
    failpoint.reached("stage.before-action")
    cost = {
        "seconds": time.perf_counter() - began,
        "worker": facts.name,
        "kind": facts.kind,
        "device": facts.device,
        "attempt": call.attempt,
        "resumed_from_step": ctx.resumed_from_step,
        **({"global_rng": used} if used else {}),
        **({"notes": ctx.notes[:5]} if ctx.notes else {}),
    }
    sizes = {name: ctx.sizes[ref] for name, ref in outputs.items() if ref in ctx.sizes}
    result = StageResult(action_key, outputs, trace, None, _plain_stats(ctx), cost, sizes)
    result = _travelling(ctx, result)
    entry = actions.entry_of(call, result, {"worker": facts.name, "kind": facts.kind, "device": facts.device})
    filed = actions.supersede(store.blobs, entry) if refresh else actions.commit(store.blobs, entry)
    failpoint.reached("stage.after-action")
    partial.remove(store.blobs, action_key)
    return replace(filed, cost=cost) if filed.action_key == result.action_key else filed


# ---- inputs --------------------------------------------------------------------------------------------


def _bound(call: StageCall, upstream: Mapping[str, StageResult], store: Store) -> StageCall:
    return replace(call, inputs={name: _bound_input(call, s, upstream, store) for name, s in call.inputs.items()})


def _bound_input(call: StageCall, source: Input, upstream: Mapping[str, StageResult], store: Store) -> Input:
    if source.index is not None:
        listed = anchors.get(store.blobs, source.index)
        labels = None if listed["labels"] is None else tuple(listed["labels"])
        return Input(tuple(AnchorId(ref.anchor_id) for ref in listed["sources"]), labels)
    return replace(source, sources=tuple(_anchor(call, item, upstream, store) for item in source.sources))


def _anchor(call: StageCall, source: AnchorId | Edge, upstream: Mapping[str, StageResult], store: Store) -> AnchorId:
    if not isinstance(source, Edge):
        return source
    result = upstream[source.plan_key]
    outputs = result.outputs
    if result.index is not None:
        listed = anchors.get(store.blobs, result.index)["outputs"]
        outputs = {name: AnchorId(ref.anchor_id) for name, ref in listed.items()}
    if source.output not in outputs:
        made = ", ".join(sorted(outputs)) or "nothing"
        raise StageError(f"it takes the output {source.output!r} of a call that made {made}", instance=call.instance)
    return outputs[source.output]


def _loaded(ctx: StageContext, name: str, source: Input) -> Any:
    trees = []
    for anchor in source.sources:
        try:
            trees.append(ctx.load_state(str(anchor)))
        except (CorruptObject, AbsentError) as error:
            error.where = f"{ctx.call.instance}: input {name}, anchor {anchor}"
            raise
    return trees if source.gathered else trees[0]


# ---- the body ------------------------------------------------------------------------------------------


def _asked(ctx: StageContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the body returns, with every failure named by instance and step."""
    recipe, instance = ctx.recipe, ctx.call.instance
    body = names.load(recipe.uses)
    config = {name: _argument(value) for name, value in recipe.config.items()}
    try:
        made = body(ctx, **inputs, **config)
    except StageError as error:
        raise _named(error, instance) from error.__cause__
    except StateError as error:
        error.where = f"{instance}: {error.where}"
        raise
    except DsecError:
        raise
    except Exception as error:
        failed = failures.failed(recipe.uses, error, step=ctx.step)
        raise _named(failed, instance) from error
    if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
        raise StageError(
            f"{recipe.uses} returned {type(made).__name__}, not a dict of outputs",
            instance=instance,
            hint='return {"name": tree}',
        )
    return made


def _argument(value: Any) -> Any:
    is_file = isinstance(value, Mapping) and set(value) == {"file", "digest"}
    return value["file"] if is_file else value


def _named(error: StageError, instance: str) -> StageError:
    named = type(error)(error.message, instance=instance, step=error.step, story=error.story, hint=error.hint)
    return named


# ---- outputs -------------------------------------------------------------------------------------------


def _stored(ctx: StageContext, made: Mapping[str, Any]) -> tuple[dict[str, AnchorId], AnchorId | None]:
    """Anchor ids by output name, sorted, and the trace's."""
    declared = [name for name, _ in ctx.recipe.outputs]
    ready_made = ctx.recipe.uses in bodies.BODIES
    if missing := [name for name in declared if name not in made]:
        raise StageError(
            f"{ctx.recipe.uses} did not return {missing[0]!r}, which `outputs` declares; it returned {', '.join(made)}",
            instance=ctx.call.instance,
        )
    if declared and not ready_made and (extra := sorted(set(made) - set(declared))):
        raise StageError(
            f"{ctx.recipe.uses} returned {extra[0]!r}, which `outputs` does not declare", instance=ctx.call.instance
        )
    found: dict[str, AnchorId] = {}
    for name, tree in sorted({**made, **ctx.made}.items()):
        found[name] = _put(ctx, name, tree)
    return found, found.get("trace")


def _put(ctx: StageContext, name: str, tree: Any) -> AnchorId:
    if isinstance(tree, AnchorRef):
        return AnchorId(tree.anchor_id)
    try:
        return AnchorId(ctx.anchor(tree).anchor_id)
    except StateError as error:
        path = error.where.removeprefix("$").removeprefix("tree")
        error.where = (
            f"{ctx.call.instance}: output {name}{'' if path.startswith(('.', '[')) or not path else '.'}{path}"
        )
        raise


def _plain_stats(ctx: StageContext) -> dict[str, Any]:
    """Stats as plain scalars; one that is no number, text, bool or None is an error of the body."""
    found: dict[str, Any] = {}
    for name, value in sorted(ctx.stats.items()):
        plain = value.item() if hasattr(value, "item") else value
        if not isinstance(plain, bool | int | float | str | None):
            raise StageError(f"the stat {name!r} is {type(value).__name__}, not a scalar", instance=ctx.call.instance)
        found[name] = str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain
    return found


def _travelling(ctx: StageContext, result: StageResult) -> StageResult:
    if len(result.to_json()) <= MAX_TRAVELLING:
        return result
    outputs = {name: AnchorRef(anchor) for name, anchor in result.outputs.items()}
    index = ctx.anchor({"outputs": outputs, "stats": dict(result.stats), "sizes": dict(result.sizes)})
    return replace(result, outputs={}, stats={}, sizes={}, index=AnchorId(index.anchor_id))
