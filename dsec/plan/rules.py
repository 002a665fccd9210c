"""Rules of a plan that need no other stage: what goes together, which names exist, what is not there yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsec.errors import Problem
from dsec.plan.load import Document, Where
from dsec.plan.locate import did_you_mean, shown
from dsec.plan.placed import Placed
from dsec.plan.schema import ExecutionPlan, Matrix, Profile
from dsec.plan.values import Expr

__all__ = ["rules"]

_OF_A_LOOP = frozenset({"iterate", "stages", "needs", "matrix", "when"})
_LATER = "not-supported-yet"


def rules(plan: ExecutionPlan, document: Document, stages: Iterable[Placed]) -> Iterator[Problem]:
    """Problems of the plan's own parts and of each stage by itself."""
    every = [placed for top in stages for placed in top.walk()]
    yield from _not_yet(plan, document)
    if plan.matrix is not None:
        yield from _matrix(plan.matrix, ("matrix",), document)
    yield from _profile(plan, document, plan.defaults.resources, ("defaults", "resources"))
    if plan.session is not None and plan.session.agent is not None:
        where: Where = ("session", "agent", "resource_profile")
        yield from _profile(plan, document, plan.session.agent.resource_profile, where)
    for placed in every:
        yield from _shape(placed, document)
        yield from _stage_matrix(placed, plan, document)
        yield from _profile(plan, document, placed.stage.resources, (*placed.where, "resources"))
        yield from _asked(plan, document, placed.stage.services, (*placed.where, "services"))
        yield from _stage_not_yet(placed, document)


def _not_yet(plan: ExecutionPlan, document: Document) -> Iterator[Problem]:
    """What the format has and this version does not do."""
    session = plan.session
    if session is not None and session.agent is not None and session.agent.tools:
        yield _later(document, ("session", "agent", "tools"), "tools of an agent")
    if session is not None and session.agent is not None and session.agent.provenance == "required":
        yield _later(document, ("session", "agent", "provenance"), "provenance 'required'", value=True)
    if session is not None and session.reward is not None:
        yield from _asked(plan, document, session.reward.services, ("session", "reward", "services"))
    if plan.curriculum is not None:
        yield _later(document, ("curriculum",), "a curriculum")
    if plan.scheduler is not None and plan.scheduler.scheduling_policy != "fifo":
        where = ("scheduler", "scheduling_policy")
        yield _later(document, where, f"the policy '{plan.scheduler.scheduling_policy}'", value=True)
    yield from _numerics(document, plan.defaults.numerics, ("defaults", "numerics"))


def _stage_not_yet(placed: Placed, document: Document) -> Iterator[Problem]:
    yield from _numerics(document, placed.stage.numerics, (*placed.where, "numerics"))
    for name, output in placed.stage.outputs.items():
        if output.at:
            yield _later(document, (*placed.where, "outputs", name, "at"), "outputs at events")


def _numerics(document: Document, level: str | Expr | None, where: Where) -> Iterator[Problem]:
    if isinstance(level, str) and level != "strict":
        yield _later(document, where, f"numerics '{level}'", value=True)


def _later(document: Document, where: Where, what: str, *, value: bool = False) -> Problem:
    return document.problem(where, _LATER, f"{what}: not supported yet", "leave it out for now", key=not value)


def _asked(plan: ExecutionPlan, document: Document, names: Iterable[str], where: Where) -> Iterator[Problem]:
    """Services that a stage or a reward asks."""
    known = True
    for index, name in enumerate(names):
        if name not in plan.services:
            known = False
            hint = did_you_mean(name, plan.services) or "declare it under the plan's own 'services'"
            yield document.problem((*where, index), "unknown-service", f"there is no service {shown(name)}", hint)
    if names and known:
        yield _later(document, where, "asking services")


def _profile(plan: ExecutionPlan, document: Document, profile: Profile | None, where: Where) -> Iterator[Problem]:
    if isinstance(profile, str) and profile not in plan.resources:
        hint = did_you_mean(profile, plan.resources) or "declare it under the plan's own 'resources'"
        yield document.problem(where, "unknown-profile", f"there is no resource profile {shown(profile)}", hint)


def _shape(placed: Placed, document: Document) -> Iterator[Problem]:
    """A stage is a body, or a loop around stages, never both and never neither."""
    stage, where = placed.stage, placed.where
    if stage.iterate is None and stage.stages is not None:
        message, hint = "nested stages stand in a loop alone", "add iterate: {times: n, carry: …}"
        yield document.problem((*where, "stages"), "bad-stage", message, hint, key=True)
    elif stage.iterate is not None and not stage.stages:
        yield document.problem(
            (*where, "iterate"), "bad-stage", "a loop needs nested stages", "add stages: …", key=True
        )
    elif stage.iterate is None and stage.uses is None:
        message = f"'uses' is missing in {'.'.join(map(str, where))}"
        yield document.problem(where, "missing-key", message, "add uses: package.module:function", key=True)
    if stage.iterate is not None:
        for name in sorted(stage.model_fields_set - _OF_A_LOOP):
            key = name.rstrip("_")
            message = f"'{key}' can't stand beside 'iterate'"
            hint = "write it in the nested stages"
            yield document.problem((*where, key), "bad-stage", message, hint, key=True)


def _matrix(matrix: Matrix, where: Where, document: Document) -> Iterator[Problem]:
    for name, axis in matrix.axes.items():
        if isinstance(axis.values, tuple):
            if not axis.values:
                yield document.problem((*where, name), "wrong-value", f"axis '{name}' is empty", "give it a value")
            yield from _twice(axis.values, (*where, name), document)
    yield from _whole_cells(matrix, where, document)
    for index, cell in enumerate(matrix.exclude):
        yield from _cell_axes(cell, matrix, (*where, "exclude", index), document)


def _twice(values: tuple[Any, ...], where: Where, document: Document) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        label = str(value)
        if label in first:
            line = document.value((*where, first[label])).line
            message = f"{shown(value)} names the same cell as the value at line {line}"
            yield document.problem((*where, index), "duplicate-cell", message, "each value is one cell")
        first.setdefault(label, index)


def _whole_cells(matrix: Matrix, where: Where, document: Document) -> Iterator[Problem]:
    axes = list(matrix.axes) or list(dict.fromkeys(name for cell in matrix.include for name in cell))
    seen: dict[tuple[str, ...], int] = {}
    for index, cell in enumerate(matrix.include):
        at = (*where, "include", index)
        if matrix.axes:
            yield from _cell_axes(cell, matrix, at, document)
        missing = [name for name in axes if name not in cell]
        if missing:
            message = f"a cell of include has every axis; '{missing[0]}' is missing"
            yield document.problem(at, "missing-key", message, f"add {missing[0]}: …")
        label = tuple(str(cell.get(name)) for name in axes)
        if label in seen:
            line = document.value((*where, "include", seen[label])).line
            yield document.problem(at, "duplicate-cell", f"the same cell stands at line {line}", "keep one of them")
        seen.setdefault(label, index)


def _cell_axes(cell: Mapping[str, Any], matrix: Matrix, where: Where, document: Document) -> Iterator[Problem]:
    for name in cell:
        if name not in matrix.axes:
            hint = did_you_mean(name, matrix.axes)
            message = f"the matrix has no axis {shown(name)}"
            yield document.problem((*where, name), "unknown-axis", message, hint, key=True)


def _stage_matrix(placed: Placed, plan: ExecutionPlan, document: Document) -> Iterator[Problem]:
    matrix = placed.stage.matrix
    if matrix is None:
        return
    where = (*placed.where, "matrix")
    for name in ("include", "exclude"):
        if name in matrix.model_fields_set:
            message, hint = f"'{name}' belongs to the plan's own matrix", "a stage's matrix has axes alone"
            yield document.problem((*where, name), "unknown-key", message, hint, key=True)
    yield from _matrix(matrix.model_copy(update={"include": (), "exclude": ()}), where, document)
    taken = dict.fromkeys(plan.matrix.axes if plan.matrix is not None else (), "the plan's matrix")
    for loop in placed.loops():
        taken |= dict.fromkeys(loop.stage.matrix.axes if loop.stage.matrix else (), f"the matrix of {loop.path}")
    for name in matrix.axes:
        if name in taken:
            message = f"the axis '{name}' is there already, in {taken[name]}"
            yield document.problem((*where, name), "duplicate-axis", message, "give it another name", key=True)
