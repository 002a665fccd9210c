"""Outputs of a body: checked by name, stored, and put into a result that is short enough to travel."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

from dsec.core import bodies
from dsec.core.leaves import AnchorRef
from dsec.core.stage import AnchorId, Recipe, StageResult, replace
from dsec.errors import StageError, StateError
from dsec.runtime.context import StageContext

__all__ = ["LONGEST", "checked", "expected", "put", "stored", "travelling"]

LONGEST = 3800
"""Bytes of a result's JSON; a longer one leaves outputs, stats and sizes in an index anchor."""


def expected(recipe: Recipe, body: Callable[..., Any]) -> tuple[str, ...] | None:
    """Names of what a body has to give: its traits, ``outputs:``, or a TypedDict it says it returns; else None."""
    if recipe.uses in bodies.BODIES:
        return bodies.BODIES[recipe.uses].outputs
    if recipe.outputs:
        return tuple(name for name, _ in recipe.outputs)
    try:
        returned = typing.get_type_hints(body).get("return")
    except (NameError, TypeError, AttributeError):  # an annotation that is there for type checkers alone
        return None
    return tuple(sorted(returned.__annotations__)) if typing.is_typeddict(returned) else None


def checked(made: object, names: tuple[str, ...] | None, recipe: Recipe) -> dict[str, Any]:
    """What a body gave, sorted by name.

    Raises
    ------
    StageError
        If it is no dict, or its names are not the expected ones.
    """
    if made is None and not names:
        return {}
    if not isinstance(made, Mapping):
        raise StageError(
            f"{recipe.uses} returned {type(made).__name__}, expected a dict of outputs by name",
            hint='end it with `return {"name": value}`',
        )
    for name in made:
        if not isinstance(name, str) or not name.isidentifier():
            raise StageError(
                f"{recipe.uses} returned an output named {name!r}", hint="outputs are named like variables"
            )
    if names is not None:
        _same_names(set(made), names, recipe)
    return dict(sorted(made.items()))


def _same_names(made: set[str], names: tuple[str, ...], recipe: Recipe) -> None:
    if missing := [name for name in names if name not in made]:
        given = ", ".join(sorted(made)) or "nothing"
        raise StageError(
            f"{recipe.uses} did not return the output {missing[0]!r}; it returned {given}",
            hint="return it, or take it out of `outputs:`",
        )
    if unknown := sorted(made - set(names)):
        raise StageError(
            f"{recipe.uses} returned {unknown[0]!r}, which is not declared",
            hint="add it to `outputs:`",
        )


def stored(ctx: StageContext, made: Mapping[str, Any]) -> dict[str, AnchorId]:
    """Anchor ids of outputs; one that is an `AnchorRef` was stored before.

    Raises
    ------
    StateError
        If one can't be kept; ``where`` is instance, output and path, ``train@seed=0/learn: agent.callback``.
    """
    return {
        name: AnchorId(tree.anchor_id) if isinstance(tree, AnchorRef) else put(ctx, name, tree)
        for name, tree in made.items()
    }


def put(ctx: StageContext, name: str, tree: Any) -> AnchorId:
    """Store what is, or becomes part of, the output ``name``.

    Raises
    ------
    StateError
        If it can't be kept; see `stored`.
    """
    try:
        return ctx.anchor(tree)
    except StateError as error:
        error.where = _path(name, tree, error.where)
        raise error.of(ctx.scope.call.instance, ctx.step) from error.__cause__


def _path(name: str, tree: Any, inside: str) -> str:
    """Where in an output: an agent's attributes stand below ``state`` in its tree, and below ``agent`` for people."""
    if isinstance(tree, Mapping) and tree.get("kind") == "agent":
        inside = inside.removeprefix("state")
    if inside in ("", "$"):
        return name
    return f"{name}{inside}" if inside[0] in ".[" else f"{name}.{inside}"


def travelling(ctx: StageContext, result: StageResult) -> StageResult:
    """The result, its long parts in an index anchor if it is too long to travel."""
    if len(result.to_json()) <= LONGEST:
        return result
    outputs = {name: AnchorRef(anchor_id) for name, anchor_id in result.outputs.items()}
    index = ctx.anchor({"kind": "index", "outputs": outputs, "stats": dict(result.stats), "sizes": dict(result.sizes)})
    return replace(result, outputs={}, stats={}, sizes={}, index=index)
