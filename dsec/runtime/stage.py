"""run_stage: one call on one worker, from its inputs to its committed result.

Anchors are written first, then the action entry, and then the recovery point goes. A worker that dies in between leaves
nothing that could be taken for a result.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping
from typing import Any

from dsec.core import bodies, failpoint, keys
from dsec.core.stage import Recipe, StageCall, StageResult, replace
from dsec.errors import ClassMismatch, DsecError, StageError, StateError
from dsec.runtime import failures, files, inputs, names, numerics, outputs, sources
from dsec.runtime.context import Scope, StageContext, own_path, plain_scalar
from dsec.runtime.facts import WorkerFacts
from dsec.store import actions, partial, root
from dsec.store.root import Store

__all__ = ["WorkerFacts", "run_stage"]

_log = logging.getLogger("dsec.stage")


def run_stage(
    call: StageCall, upstream: Mapping[str, StageResult], store: Store, facts: WorkerFacts, *, refresh: bool = False
) -> StageResult:
    """Run one call, or find its result.

    Parameters
    ----------
    call
        Its inputs are anchors, or edges to calls in ``upstream``.
    upstream
        Results by plan_key.
    refresh
        Whether it runs although there is a result, which the new one then replaces.

    Returns
    -------
    StageResult
        What is filed under its action_key; ``cost["cutoff"]`` is True where the body did not run.

    Raises
    ------
    StageError
        If the body fails; with instance, step, and the user's own traceback as its story.
    StateError
        If an output can't be stored; names stage, output and path.
    CorruptObject, AbsentError
        If an input can't be read; ``anchor_id`` and ``producer`` say which.
    ClassMismatch
        If this worker is of another runtime class than the key names.
    """
    bound = inputs.resolved(call, upstream, store.blobs)
    action_key = keys.action_key(bound)
    found = None if refresh else actions.load(store.blobs, action_key)
    if found is not None:
        return replace(found, cost={**found.cost, "cutoff": True})
    recipe = root.get_recipe(store, call.recipe)
    _check_class(call, recipe, facts)
    ctx = StageContext(Scope(bound, recipe, action_key, store, facts))
    return _executed(ctx, call, refresh=refresh)


def _check_class(call: StageCall, recipe: Recipe, facts: WorkerFacts) -> None:
    if recipe.numerics not in numerics.LEVELS:
        raise StageError(
            f"numerics: {recipe.numerics} is not supported yet",
            instance=call.instance,
            hint=f"use {', '.join(numerics.LEVELS)}",
        )
    if recipe.class_id is not None and recipe.class_id != facts.class_id:
        raise ClassMismatch(
            f"worker {facts.name} is of class {(facts.class_id or 'unknown')[:12]}, the key names "
            f"{recipe.class_id[:12]}",
            where=call.instance,
            hint="run it on workers of the class that the run began with, or begin a new run",
        )


def _executed(ctx: StageContext, original: StageCall, *, refresh: bool) -> StageResult:
    scope = ctx.scope
    call, blobs = scope.call, scope.store.blobs
    failpoint.reached("stage.start")
    began = scope.clock()
    sources.check(call, scope.store)
    given = inputs.loaded(original, call, blobs)
    with numerics.pinned(), numerics.isolated(ctx.root, f"global/{_stream(ctx)}") as watch:
        made = _asked(ctx, given)
        ids = dict(sorted({**outputs.stored(ctx, made), **ctx.made}.items()))
    sources.check(call, scope.store)  # once more, with all that the body imported
    _say_touched(call, watch)
    failpoint.reached("stage.after-blobs")
    cost = _cost(ctx, watch, scope.clock() - began)
    sizes = {name: ctx.sizes[anchor] for name, anchor in ids.items() if anchor in ctx.sizes}
    whole = StageResult(scope.action_key, ids, ids.get("trace"), None, dict(sorted(ctx.stats.items())), cost, sizes)
    result = outputs.travelling(ctx, whole)
    entry = actions.entry_of(call, result, _produced_by(scope.facts))
    failpoint.reached("stage.before-action")
    filed = actions.supersede(blobs, entry) if refresh else actions.commit(blobs, entry)
    failpoint.reached("stage.after-action")
    partial.remove(blobs, scope.action_key)
    return replace(filed, cost=cost)


def _stream(ctx: StageContext) -> str:
    return own_path(ctx.scope.call, ctx.scope.recipe.uses)


def _asked(ctx: StageContext, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the body gives; every failure with instance, step and story."""
    recipe, instance = ctx.scope.recipe, ctx.scope.call.instance
    try:
        body = names.resolve(recipe.uses, "body")
        config = files.placed(recipe.config, ctx.scope.store.blobs)
        _check_arguments(given, config)
        made = body(ctx, **given, **config)
        checked = outputs.checked(made, outputs.expected(recipe, body), recipe)
        _take_metrics(ctx, checked)
    except StageError as error:
        raise _located(error, instance, ctx.step) from error.__cause__
    except StateError as error:
        raise error.of(instance, ctx.step) from error.__cause__
    except DsecError:
        raise
    except (Exception, SystemExit) as error:
        raise _located(failures.failed(_called(recipe), error), instance, ctx.step) from error
    return checked


def _called(recipe: Recipe) -> str:
    return recipe.uses if recipe.uses in bodies.BODIES else f"body {recipe.uses}"


def _check_arguments(given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    if both := sorted(given.keys() & config.keys()):
        raise StageError(f"{both[0]!r} stands in `inputs` and in `with`", hint="give one of them another name")


def _take_metrics(ctx: StageContext, made: Mapping[str, Any]) -> None:
    """Scalars of an output called ``metrics`` are stats: what `until` and `when` go by."""
    metrics = made.get("metrics")
    if isinstance(metrics, Mapping):
        for name, value in metrics.items():
            plain = plain_scalar(value)
            if isinstance(name, str) and type(plain) in (bool, int, float, str):
                ctx.log(**{name: plain})


def _located(error: StageError, instance: str, step: int | None) -> StageError:
    """The same error with the call's instance, and the step it was at if it says none itself."""
    at = error.step if error.step is not None else step
    if error.instance:
        return error
    return type(error)(error.message, instance=instance, step=at, story=error.story, hint=error.hint)


def _say_touched(call: StageCall, watch: numerics.Watch) -> None:
    if watch.touched:
        _log.warning(
            "%s draws from %s; draw from ctx.rng() or session_config['rng'], or its results depend on how it is split",
            call.instance,
            " and ".join(watch.touched),
        )


def _cost(ctx: StageContext, watch: numerics.Watch, seconds: float) -> dict[str, Any]:
    facts = ctx.scope.facts
    cost: dict[str, Any] = {
        "seconds": seconds,
        "worker": facts.name,
        "kind": facts.kind,
        "device": facts.device,
        "attempt": ctx.scope.call.attempt,
        "resumed_from_step": ctx.resumed_from_step,
    }
    if watch.touched:
        cost["touched"] = watch.touched
    if ctx.anchor_misses:
        cost["anchor_misses"] = ctx.anchor_misses
    return cost


def _produced_by(facts: WorkerFacts) -> dict[str, Any]:
    try:
        version = importlib.metadata.version("dsec")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    return {"run": facts.run_id, "worker": facts.name, "kind": facts.kind, "class": facts.class_id, "dsec": version}
