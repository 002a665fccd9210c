"""How stages hang together: references, orders, carries, axes, cycles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dsec.errors import Problem
from dsec.plan import schema
from dsec.plan.load import Document, Where
from dsec.plan.locate import MAX_PROBLEMS, did_you_mean, shown
from dsec.plan.placed import Placed
from dsec.plan.reference import EVERY, CarryRef, InitRef, Reference, StageRef
from dsec.plan.schema import ExecutionPlan, Matrix
from dsec.plan.values import Expr, ExprError, metric_stages

__all__ = ["Axes", "Outputs", "Use", "uses_of", "wiring"]

Outputs = Mapping[str, tuple[str, ...] | None]
"""Names that a body makes, by path of the stage; None where they are not known before it runs."""

_GATHERED = {("dsec.stages:fuse", "agents"), ("dsec.stages:table", "**")}


@dataclass(frozen=True, slots=True)
class Use:
    """One reference where it stands."""

    reader: Placed
    """The stage whose names it sees."""
    where: Where
    reference: Reference
    argument: str = ""
    """The argument it feeds; empty for a carry."""


def uses_of(placed: Placed) -> Iterator[Use]:
    """References of one stage: inputs, and where its carries begin."""
    for name, reference in placed.stage.inputs.items():
        yield Use(placed, (*placed.where, "inputs", name), reference, name)
    if placed.stage.iterate is not None:
        for name, carry in placed.stage.iterate.carry.items():
            yield Use(placed, (*placed.where, "iterate", "carry", name, "from"), carry.from_)


def wiring(
    plan: ExecutionPlan, document: Document, stages: Mapping[str, Placed], outputs: Outputs
) -> Iterator[Problem]:
    """Problems of references, orders, carries and axes, then of cycles."""
    check = _Wiring(plan, document, outputs)
    for top in stages.values():
        for placed in top.walk():
            yield from check.stage(placed)
    yield from _cycles(stages, document)


class _Wiring:
    def __init__(self, plan: ExecutionPlan, document: Document, outputs: Outputs) -> None:
        self.plan = plan
        self.document = document
        self.outputs = outputs
        self.axes = Axes()

    def stage(self, placed: Placed) -> Iterator[Problem]:
        for index, name in enumerate(placed.stage.needs):
            yield from self._need(placed, name, (*placed.where, "needs", index))
        for use in uses_of(placed):
            yield from self._use(use)
        if placed.stage.iterate is not None:
            yield from self._carries(placed)

    def _need(self, placed: Placed, name: str, where: Where) -> Iterator[Problem]:
        target = placed.see(name)
        if target is None:
            yield self._unknown(placed, name, where)
        elif target in placed.loops():
            message = f"{placed.path} can't wait for '{name}', which it is part of"
            yield self.document.problem(where, "bad-reference", message, "name a stage beside it")

    def _unknown(self, reader: Placed, name: str, where: Where) -> Problem:
        top = [reader, *reader.loops()][-1]
        for holder in top.group.values():
            inside = next((inner for inner in holder.walk() if inner.name == name and inner is not holder), None)
            if inside is not None:
                carried = next(iter(holder.stage.iterate.carry if holder.stage.iterate else ()), "…")
                hint = f"from outside a loop gives its carries alone: {holder.name}.{carried}"
                message = f"the stage '{name}' is inside the loop '{holder.name}'"
                return self.document.problem(where, "unknown-stage", message, hint)
        hint = did_you_mean(name, reader.names())
        return self.document.problem(where, "unknown-stage", f"there is no stage '{name}' here", hint)

    def _use(self, use: Use) -> Iterator[Problem]:
        reference = use.reference
        if isinstance(reference, CarryRef):
            yield from self._carry(use.reader, reference, use.where)
        elif isinstance(reference, InitRef):
            yield from self._init(reference, use.where)
        elif isinstance(reference, StageRef):
            yield from self._output(use, reference)

    def _carry(self, reader: Placed, reference: CarryRef, where: Where) -> Iterator[Problem]:
        carries = [name for loop in reader.loops() if loop.stage.iterate for name in loop.stage.iterate.carry]
        if reference.name in carries:
            return
        if reader.outer is None:
            message, hint = f"{reference} stands in no loop", "a carry is seen by the nested stages of its loop"
            yield self.document.problem(where, "unknown-carry", message, hint)
            return
        hint = did_you_mean(reference.name, carries) or "declare it under iterate.carry"
        yield self.document.problem(where, "unknown-carry", f"there is no carry '{reference.name}' here", hint)

    def _init(self, reference: InitRef, where: Where) -> Iterator[Problem]:
        session = self.plan.session
        if session is None or getattr(session, reference.what) is None:
            message = f"{reference} needs a session with '{reference.what}'"
            yield self.document.problem(where, "missing-key", message, f"add session: {{{reference.what}: …}}")

    def _output(self, use: Use, reference: StageRef) -> Iterator[Problem]:
        target = use.reader.see(reference.stage)
        if target is None:
            yield self._unknown(use.reader, reference.stage, use.where)
        elif target in use.reader.loops():
            message = f"{use.reader.path} is part of '{reference.stage}' and can't read it"
            yield self.document.problem(use.where, "bad-reference", message, "inside a loop its value is carry.<name>")
        else:
            yield from self._named(reference, target, use.where)
            yield from self._gathering(use, reference, target)

    def _named(self, reference: StageRef, target: Placed, where: Where) -> Iterator[Problem]:
        """Whether the target makes what is asked of it."""
        made = self._made(target)
        if made is None:
            return
        if reference.output is None:
            if len(made) != 1 and "state" not in made:
                hint = f"write {target.name}.{made[0]}" if made else "a loop gives its carries"
                message = f"'{target.name}' makes {_listed(made)}; say which"
                yield self.document.problem(where, "unknown-output", message, hint)
        elif reference.output not in made:
            kind = "the loop" if target.stage.iterate is not None else "the stage"
            message = f"{kind} '{target.name}' has no output '{reference.output}'"
            yield self.document.problem(where, "unknown-output", message, did_you_mean(reference.output, made))
        elif reference.at is not None:
            yield from self._declared(reference, target, where)

    def _made(self, target: Placed) -> tuple[str, ...] | None:
        if target.stage.iterate is not None:
            return tuple(target.stage.iterate.carry)
        return self.outputs.get(target.path)

    def _declared(self, reference: StageRef, target: Placed, where: Where) -> Iterator[Problem]:
        """``state@25`` exists where ``every`` and the range say so."""
        output = target.stage.outputs.get(reference.output or "")
        every = output.every if output is not None else None
        at = reference.at or 0
        if every is None:
            message = f"'{target.name}' declares no steps of '{reference.output}'"
            hint = f"add outputs: {{{reference.output}: {{every: {at or 1}}}}} to it"
            yield self.document.problem(where, "unknown-output", message, hint)
            return
        steps = target.stage.steps
        if isinstance(every, Expr) or isinstance(steps, Expr) or steps is None or steps.first is None:
            return
        last = math.inf if steps.last is None else steps.last
        if not ((at and at % every == 0 and steps.first <= at <= last) or at == last):
            near = max(every, round(at / every) * every)
            inside = steps.first <= near <= last
            message = f"'{target.name}' has no '{reference.name}': every {every} in steps {steps}"
            hint = f"did you mean '{reference.stage}.{reference.output}@{near if inside else steps.last}'?"
            yield self.document.problem(where, "unknown-output", message, hint)

    def _gathering(self, use: Use, reference: StageRef, target: Placed) -> Iterator[Problem]:
        session = list(self.plan.matrix.axes) if self.plan.matrix is not None else []
        axes = self.axes.of(target)
        if reference.gather is None:
            if self._wants_list(use):
                count = self._count(axes, session if use.reader.outer is None else [])
                hint = f"add [*] to gather {count}: {_gathered(reference)}"
                message = f"'{use.argument}' takes a gathered list, and {reference} is one"
                yield self.document.problem(use.where, "missing-gather", message, hint)
            return
        for axis in reference.gather if reference.gather != EVERY else ():
            if axis in session and use.reader.outer is not None:
                message = f"the session axis '{axis}' can't be gathered inside a loop"
                hint = "top-level stages gather sessions"
                yield self.document.problem(use.where, "bad-gather", message, hint)
            elif axis not in session and axis not in axes:
                hint = did_you_mean(axis, [*session, *axes]) or "write [*]"
                message = f"'{target.name}' has no axis '{axis}'"
                yield self.document.problem(use.where, "unknown-axis", message, hint)

    def _wants_list(self, use: Use) -> bool:
        body = use.reader.stage.uses
        return (body, use.argument) in _GATHERED or (bool(use.argument) and (body, "**") in _GATHERED)

    def _count(self, axes: Mapping[str, Matrix], session: list[str]) -> str:
        matrix = self.plan.matrix
        if matrix is not None and matrix.exclude:
            return "all instances"
        try:
            scope = {"params": schema.parameters(self.plan)}
            sizes = [len(axes[name].axes[name].cells(scope)) for name in axes]
            cells = [len(matrix.axes[name].cells(scope)) for name in session] if matrix is not None else []
        except ExprError:
            return "all instances"
        included = len(matrix.include) if matrix is not None and session else 0
        total = math.prod(sizes) * (math.prod(cells) + included)
        return f"{total} instance{'' if total == 1 else 's'}"

    def _carries(self, loop: Placed) -> Iterator[Problem]:
        iterate = loop.stage.iterate
        outer = {name for around in loop.loops() if around.stage.iterate for name in around.stage.iterate.carry}
        for name, carry in iterate.carry.items() if iterate is not None else ():
            where = (*loop.where, "iterate", "carry", name)
            if name in outer:
                message, hint = f"the carry '{name}' hides the one of a loop around it", "give it another name"
                yield self.document.problem(where, "duplicate-carry", message, hint, key=True)
            yield from self._next(loop, carry.next, (*where, "next"))

    def _next(self, loop: Placed, reference: Reference, where: Where) -> Iterator[Problem]:
        target = loop.inner.get(reference.stage) if isinstance(reference, StageRef) else None
        if isinstance(reference, StageRef) and target is not None:
            yield from self._named(reference, target, where)
            return
        name = reference.stage if isinstance(reference, StageRef) else str(reference)
        hint = did_you_mean(name, loop.inner) or "write nested_stage.output"
        message = f"'next' is an output of a stage inside the loop, not {shown(str(reference))}"
        yield self.document.problem(where, "unknown-stage", message, hint)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if names else "nothing"


def _gathered(reference: StageRef) -> str:
    return str(StageRef(reference.stage, reference.output, EVERY, reference.at))


class Axes:
    """Axes that stages add up to a stage, by name: its own, those of its inputs, those inside a loop."""

    def __init__(self) -> None:
        self._known: dict[Placed, dict[str, Matrix]] = {}

    def of(self, target: Placed) -> dict[str, Matrix]:
        """Axes of a stage with the matrices that have them."""
        begun: set[Placed] = set()
        stack = [target]
        while stack:
            placed = stack[-1]
            sources = [] if placed in self._known else list(_behind(placed))
            missing = [source for source in sources if source not in self._known and source not in begun]
            begun.add(placed)
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if placed not in self._known:
                self._known[placed] = self._joined(placed, sources)
        return self._known[target]

    def _joined(self, placed: Placed, sources: Iterable[Placed]) -> dict[str, Matrix]:
        matrix = placed.stage.matrix
        found = dict.fromkeys(matrix.axes, matrix) if matrix is not None else {}
        for source in sources:
            # More axes than these have no cells that could be counted; a hostile plan ends here.
            if len(found) < _MAX_AXES:
                found |= self._known.get(source, {})
        return found


_MAX_AXES = 64


def _behind(placed: Placed) -> Iterator[Placed]:
    for use in uses_of(placed):
        reference = use.reference
        if isinstance(reference, StageRef) and not reference.gather:
            source = placed.see(reference.stage)
            if source is not None:
                yield source
    yield from placed.inner.values()


def _cycles(stages: Mapping[str, Placed], document: Document) -> Iterator[Problem]:
    """Stages that wait for each other, group by group; each stage is named in one cycle."""
    groups = [dict(stages), *(placed.inner for top in stages.values() for placed in top.walk() if placed.inner)]
    for group in groups:
        edges = {placed: dict(_waits(placed)) for placed in group.values()}
        for _ in range(MAX_PROBLEMS):
            cycle = _cycle(edges)
            if not cycle:
                break
            yield _circle(cycle, edges, document)
            for placed in cycle:
                edges.pop(placed)


def _waits(placed: Placed) -> Iterator[tuple[Placed, Where]]:
    """What a stage of a group waits for in the same group, and where it says so; the first saying counts last."""
    found: list[tuple[Placed, Where]] = []
    for reader in placed.walk():
        named = [(use.reference.stage, use.where) for use in uses_of(reader) if isinstance(use.reference, StageRef)]
        named += [(name, (*reader.where, "needs", index)) for index, name in enumerate(reader.stage.needs)]
        named += [
            (name, (*reader.where, "when")) for name in (metric_stages(reader.stage.when) if reader.stage.when else ())
        ]
        for name, where in named:
            target = reader.see(name)
            beside = target.beside(placed) if target is not None else None
            inside = target is not None and target is not placed and placed in target.loops()
            if beside is not None and not inside and not (reader is not placed and beside is placed):
                found.append((beside, where))
    yield from reversed(found)


def _cycle(edges: Mapping[Placed, Mapping[Placed, Where]]) -> list[Placed]:
    """Some cycle, beginning with its first stage in written order; empty if there is none."""
    done: set[Placed] = set()
    for start in edges:
        path: list[Placed] = []
        on_path: set[Placed] = set()
        stack = [(start, iter(edges[start]))]
        while stack:
            placed, targets = stack[-1]
            if not path or path[-1] is not placed:
                path.append(placed)
                on_path.add(placed)
            target = next((target for target in targets if target in edges and target not in done), None)
            if target is None:
                done.add(placed)
                on_path.discard(path.pop())
                stack.pop()
            elif target in on_path:
                return _first(path[path.index(target) :], {placed: index for index, placed in enumerate(edges)})
            else:
                stack.append((target, iter(edges[target])))
    return []


def _first(cycle: list[Placed], order: Mapping[Placed, int]) -> list[Placed]:
    begin = min(range(len(cycle)), key=lambda index: order[cycle[index]])
    return cycle[begin:] + cycle[:begin]


def _circle(cycle: list[Placed], edges: Mapping[Placed, Mapping[Placed, Where]], document: Document) -> Problem:
    pairs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    lines = ", ".join(f"{a.name} needs {b.name} at line {document.value(edges[a][b]).line}" for a, b in pairs[:8])
    names = " -> ".join(placed.name for placed in [*cycle[:8], cycle[0]])
    return document.problem(edges[pairs[0][0]][pairs[0][1]], "cycle", f"stages wait for each other: {names}", lines)
