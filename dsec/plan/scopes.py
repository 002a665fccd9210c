"""Which names an expression can read where it stands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dsec.errors import Problem
from dsec.plan import schema
from dsec.plan.kinds import MAX_CELLS
from dsec.plan.load import Document, Where
from dsec.plan.locate import did_you_mean, shown
from dsec.plan.placed import Placed
from dsec.plan.schema import Axis, ExecutionPlan, Matrix
from dsec.plan.values import FUNCTIONS, Expr, ExprError, expressions
from dsec.plan.wiring import Axes

__all__ = ["scopes"]

_SESSION = ("seed", "max_steps")
_OF_EACH_CALL = ("with_", "steps")
"""Fields of a stage that are evaluated for each of its calls; the others are settled once for the plan."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """Names that have a value, and the keys of those whose keys are known."""

    keys: Mapping[str, tuple[str, ...] | None]
    """Name -> its keys, None where any will do or there are none."""

    def problem(self, expr: Expr, document: Document) -> Problem | None:
        for path in sorted(expr.reads):
            message, hint = self._fault(path)
            if message:
                return document.sources.problem(expr.span, "bad-expression", message, hint)
        return None

    def _fault(self, path: tuple[str, ...]) -> tuple[str, str]:
        name = path[0]
        if name in FUNCTIONS:
            return f"'{name}' is a function; it has to be called", ""
        if name not in self.keys:
            return f"'{name}' has no value here", _where(name, self.keys)
        known = self.keys[name]
        if known is None:
            return "", ""
        if len(path) > 1 and path[1] not in known:
            return f"{name} has no '{path[1][:40]}'", did_you_mean(path[1], known) or _none(name)
        return "", ""


def _where(name: str, here: Iterable[str]) -> str:
    hints = {
        "iteration": "it counts the iterations of a loop, inside of it",
        "metrics": "they are read in 'when' and 'until'",
        "matrix": "the same for all sessions here",
        "session": "the same for all sessions here",
        "item": "it has the stage's own axes, in 'with', 'steps', 'when'",
    }
    return hints.get(name) or f"here: {', '.join(sorted(here))}"


def _none(name: str) -> str:
    return {"params": "the plan has no such param", "matrix": "the matrix has no such axis"}.get(name, "")


def scopes(plan: ExecutionPlan, document: Document, stages: Mapping[str, Placed]) -> Iterator[Problem]:
    """Problems of expressions: unknown names, and params and axes that have no value."""
    whole = _Whole(plan, document)
    try:
        params = schema.parameters(plan)
    except ExprError as error:
        yield document.sources.problem(error.span, error.code, error.message, error.hint)
    else:
        yield from whole.cells(stages.values(), params)
    yield from whole.plan_parts()
    for top in stages.values():
        for placed in top.walk():
            yield from whole.stage(placed)


class _Whole:
    def __init__(self, plan: ExecutionPlan, document: Document) -> None:
        self.plan = plan
        self.document = document
        self.axes = _cell_names(plan.matrix)
        self.axes_of = Axes()
        self.fixed = _Scope({"params": tuple(plan.params)})

    def _all(self, expressions: Iterable[Expr], scope: _Scope) -> Iterator[Problem]:
        for expr in expressions:
            problem = scope.problem(expr, self.document)
            if problem is not None:
                yield problem

    def cells(self, stages: Iterable[Placed], params: Mapping[str, object]) -> Iterator[Problem]:
        """Matrices whose axes have no values, too many, or none that are left."""
        scope = {"params": params}
        if self.plan.matrix is not None:
            yield from self._cells(self.plan.matrix, ("matrix",), scope)
        for top in stages:
            for placed in top.walk():
                if placed.stage.matrix is not None:
                    yield from self._cells(placed.stage.matrix, (*placed.where, "matrix"), scope)

    def _cells(self, matrix: Matrix, where: Where, scope: Mapping[str, object]) -> Iterator[Problem]:
        columns: dict[str, tuple[object, ...]] = {}
        for name, axis in matrix.axes.items():
            try:
                columns[name] = _distinct(axis, axis.cells(scope))
            except ExprError as error:
                yield self.document.sources.problem(error.span, error.code, error.message, error.hint)
                return
        total = math.prod(map(len, columns.values())) if columns else 0
        if total > MAX_CELLS:
            message = f"the matrix has {total} cells; {MAX_CELLS} is the most"
            yield self.document.problem(where, "too-many-cells", message, "split the plan", key=True)
        elif not matrix.axes and not matrix.include:
            yield self.document.problem(where, "wrong-value", "the matrix has no cells", "add an axis", key=True)
        elif _written_out(matrix):
            yield from self._listed(matrix, columns, where)

    def _listed(self, matrix: Matrix, columns: Mapping[str, tuple[object, ...]], where: Where) -> Iterator[Problem]:
        """Cells that include repeats, and a matrix of which exclude leaves nothing."""
        if not matrix.include and not matrix.exclude:
            return
        excluded = schema.Excluded(matrix.exclude)
        rows = itertools.product(*columns.values()) if columns else iter(())
        cells = (dict(zip(columns, row, strict=True)) for row in rows)
        kept = {tuple(map(str, cell.values())) for cell in cells if cell not in excluded}
        for index, cell in enumerate(matrix.include):
            if columns and tuple(str(cell.get(name)) for name in columns) in kept:
                message, hint = "this cell is in the matrix already", "leave it out"
                yield self.document.problem((*where, "include", index), "duplicate-cell", message, hint)
        if not kept and not matrix.include:
            message, hint = "exclude leaves no cell", "leave one of them out"
            yield self.document.problem((*where, "exclude"), "wrong-value", message, hint, key=True)

    def plan_parts(self) -> Iterator[Problem]:
        plan = self.plan
        parts = (plan.services, plan.curriculum, plan.resources, plan.scheduler, plan.defaults)
        for part in parts:
            yield from self._all(schema.expressions_of(part), self.fixed)
        yield from self._all(_in_matrix(plan.matrix), self.fixed)
        session = _Scope({**self.fixed.keys, "matrix": self.axes})
        yield from self._all(schema.expressions_of(plan.session), session)

    def stage(self, placed: Placed) -> Iterator[Problem]:
        stage = placed.stage
        yield from self._all(_in_matrix(stage.matrix), self.fixed)
        call = self._call(placed)
        for name in sorted(stage.model_fields_set):
            if name not in ("iterate", "stages", "matrix", "when"):
                scope = call if name in _OF_EACH_CALL else self.fixed
                yield from self._all(schema.expressions_of(getattr(stage, name)), scope)
        if stage.when is not None:
            yield from self._condition(stage.when, call, placed.names())
        if stage.iterate is not None:
            yield from self._all(schema.expressions_of(stage.iterate.times), call)
            if stage.iterate.until is not None:
                inside = _Scope({**call.keys, "iteration": None})
                yield from self._condition(stage.iterate.until, inside, placed.inner)

    def _call(self, placed: Placed) -> _Scope:
        own = dict(self.axes_of.of(placed))
        for loop in placed.loops():
            own |= {} if loop.stage.matrix is None else dict.fromkeys(loop.stage.matrix.axes, loop.stage.matrix)
        keys: dict[str, tuple[str, ...] | None] = {"params": tuple(self.plan.params), "session": _SESSION}
        keys["matrix"] = None if self.axes is None else (*self.axes, *own)
        keys["item"] = tuple(own)
        if placed.outer is not None:
            keys["iteration"] = None
        return _Scope(keys)

    def _condition(self, expr: Expr, scope: _Scope, seen: Iterable[str]) -> Iterator[Problem]:
        with_metrics = _Scope({**scope.keys, "metrics": tuple(seen)})
        found = list(self._all([expr], with_metrics))
        yield from found
        for path in sorted(expr.reads) if not found else ():
            if path[0] == "metrics" and len(path) != 3:
                message, hint = "metrics are read as metrics.<stage>.<name>", "for example metrics.eval.mean_return"
                yield self.document.sources.problem(expr.span, "bad-expression", message, hint)


def _cell_names(matrix: Matrix | None) -> tuple[str, ...] | None:
    if matrix is None:
        return ()
    return tuple(matrix.axes) or tuple(dict.fromkeys(name for cell in matrix.include for name in cell))


def _distinct(axis: Axis, found: tuple[object, ...]) -> tuple[object, ...]:
    """Values that an expression gave, each naming another cell; those written out are looked at where they stand."""
    if isinstance(axis.values, Expr):
        seen: set[str] = set()
        for value in found:
            if str(value) in seen:
                raise ExprError(f"{shown(value)} names two cells of this axis", span=axis.values.span)
            seen.add(str(value))
        if not found:
            raise ExprError("this axis is empty", span=axis.values.span)
    return found


def _written_out(matrix: Matrix) -> bool:
    """Whether the cells of include and exclude are all written out."""
    return not any(True for _ in expressions([list(matrix.include), list(matrix.exclude)]))


def _in_matrix(matrix: Matrix | None) -> Iterator[Expr]:
    if matrix is None:
        return
    for axis in matrix.axes.values():
        yield from expressions([axis.values, axis.range])
    yield from expressions([list(matrix.include), list(matrix.exclude)])
