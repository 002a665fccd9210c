"""From nodes to calls: matrix, iterate and references, one strand at a time, lazily and without recursion over calls.

A *strand* is one top-level stage of one session (or of one group of sessions, or of none). It is a generator of calls
in an order in which inputs come first; where what follows depends on a number that is not there yet, it yields
`Pending`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from dsec.core import bodies, canon, keys
from dsec.core.stage import AnchorId, Edge, Input, PlanKey, Recipe, StageCall
from dsec.errors import PlanError, Problem
from dsec.plan import values
from dsec.plan.grids import UNKNOWN, Grid, Made, Pending, Ref, Scope, Strand, named
from dsec.plan.nodes import (
    CallFacts,
    Cell,
    Lane,
    Node,
    Source,
    StageGraph,
    label_of,
)

__all__ = ["Expander"]

T = TypeVar("T")
Calls: TypeAlias = Generator["StageCall | Pending", None, T]
"""Calls in order, and at the end a value."""
Found: TypeAlias = "list[tuple[str, Ref]] | Ref"

_INIT = {"agent": "dsec.stages:init_agent", "env": "dsec.stages:init_env"}


class Expander:
    """Turns strands of a graph into calls.

    Parameters
    ----------
    graph
        The compiled plan.
    stats
        Looks up the stats of a finished call, None while it is not finished; only asked for calls of stages that
        ``until``, ``when`` or ``needs`` name.
    retire
        Told the calls to whose results nothing can refer any more.
    """

    def __init__(
        self,
        graph: StageGraph,
        stats: Callable[[PlanKey], Mapping[str, Any] | None],
        retire: Callable[[Sequence[PlanKey]], None] = lambda _: None,
    ) -> None:
        self.graph = graph
        self.strands = _strands(graph)
        self.facts: dict[PlanKey, CallFacts] = {}
        """Facts of emitted calls; whoever takes a call takes its facts out."""
        self._stats = stats
        self._retire = retire
        self._by_node: dict[str, list[Strand]] = {}
        for strand in self.strands:
            self._by_node.setdefault(strand.node.name, []).append(strand)
        self._scopes: dict[int, Scope] = {}
        self._inits: dict[tuple[int, str, str], Ref] = {}
        self._bundle = None if graph.bundle is None else canon.Digest(graph.bundle)
        self._shared: dict[tuple[Any, ...], tuple[canon.Digest, CallFacts]] = {}
        self._targets = _target_names(graph)

    def upstream(self, strand: Strand) -> tuple[list[Strand], list[Strand]]:
        """Strands whose calls must be known before it starts, and strands that must have ended."""
        sources = [s for s in _sources_of(strand.node) if s.kind == "stage"]
        known = [s for source in sources for s in self._matching(strand, source.name, source.gather)]
        watched = _read_by(strand.node.when)
        ended = [s for name in (*strand.node.after, *watched) for s in self._matching(strand, name, None)]
        return known + ended, [s for s in ended if s.node.name in strand.node.after]

    def calls(self, strand: Strand) -> Iterator[StageCall | Pending]:
        """The calls of a strand, whose upstream strands have been expanded."""
        scope = Scope()
        self._scopes[strand.number] = scope
        yield from self._node(strand, strand.node, scope, target=strand.node.name in self._targets)

    # ---- one stage -------------------------------------------------------------------------------------

    def _node(self, strand: Strand, node: Node, scope: Scope, *, target: bool) -> Calls[None]:
        axes = tuple(node.cells[0]) if node.cells else ()
        made = scope.made[node.name] = Made(axes, position=node.position)
        if node.loop is not None:
            yield from self._loops(strand, node, scope, made, target=target)
            return
        for cell in node.cells:
            yield from self._instance(strand, node, scope, cell, made, target=target)

    def _instance(
        self, strand: Strand, node: Node, scope: Scope, cell: Cell, made: Made, *, target: bool
    ) -> Calls[None]:
        place = tuple(cell.values())
        full = {**scope.cell, **cell} if cell else scope.cell
        yield from self._ended(node, scope)
        if not (yield from self._wanted(strand, node, scope, full)):
            made.calls[place] = None
            return
        inputs = yield from self._inputs(strand, node, scope, full)
        if inputs is None:
            made.calls[place] = None
            return
        label = label_of(full)
        digest, facts = self._what_is_shared(strand, node, scope, full)
        call, next_step = self._call(strand, node, scope, cell, inputs, label=label, recipe=digest)
        made.calls[place] = (call.plan_key, label, next_step)
        self.facts[call.plan_key] = replace(facts, target=True) if target else facts
        yield call

    def _call(
        self,
        strand: Strand,
        node: Node,
        scope: Scope,
        cell: Cell,
        inputs: Mapping[str, Found],
        *,
        label: str,
        recipe: canon.Digest,
    ) -> tuple[StageCall, int | None]:
        position = inputs.get("state") or inputs.get("env")
        at = position if isinstance(position, Ref) else None
        steps = None if node.steps is None else self._steps(strand, node, scope, {**scope.cell, **cell}, at)
        taken = {name: _input(inputs[name]) for name in sorted(inputs)}
        stream = _stream(node, scope, label)
        restream = _starts_stream(node, inputs.get("agent"), label) or _starts_stream(node, inputs.get("state"), label)
        plan_key = keys.plan_key(recipe, taken, steps=steps, stream=stream, restream=restream)
        name = named(node.name, cell if scope.prefix else {**strand.group, **cell})
        call = StageCall(
            scope.prefix + name, node.path, plan_key, recipe, taken, steps, stream, restream,
            bundle=self._bundle, timeout=node.timeout,
        )  # fmt: skip
        return call, steps[1] + 1 if steps else (at.next_step if at else None)

    # ---- loops -----------------------------------------------------------------------------------------

    def _loops(self, strand: Strand, node: Node, scope: Scope, made: Made, *, target: bool) -> Calls[None]:
        assert node.loop is not None
        yield from self._ended(node, scope)
        finals: dict[tuple[Any, ...], Mapping[str, Grid]] = {}
        runs = [self._loop(strand, node, scope, cell, finals=finals, target=target) for cell in node.cells]
        yield from _interleaved(runs)
        made.carries = _joined(made.axes, finals, tuple(node.loop.carry))

    def _loop(
        self,
        strand: Strand,
        node: Node,
        scope: Scope,
        cell: Cell,
        *,
        finals: dict[tuple[Any, ...], Mapping[str, Grid]],
        target: bool,
    ) -> Calls[None]:
        assert node.loop is not None
        loop = node.loop
        full = {**scope.cell, **cell}
        carries: dict[str, Grid] = {
            name: self._bound(self._grid(strand, scope, start), cell) for name, (start, _) in loop.carry.items()
        }
        wanted = yield from self._wanted(strand, node, scope, full)
        times = self._value(loop.times, strand, scope, full) if wanted else 0
        names = named(node.name, {**(strand.group if not scope.prefix else {}), **cell})
        own: set[PlanKey] = set()
        for iteration in range(times):
            inner = Scope(
                f"{scope.prefix}{names}#{iteration}/", full, (*scope.iteration, iteration), {}, carries, scope
            )
            last = target and iteration == times - 1
            for nested in loop.nodes:
                yield from self._node(strand, nested, inner, target=last)
            own.update(_keys_of(inner))
            carries = {
                name: self._followed(strand, inner, following, carries[name])
                for name, (_, following) in loop.carry.items()
            }
            kept = {
                r.source.plan_key for g in carries.values() for r in g.refs.values() if r and isinstance(r.source, Edge)
            }
            self._retire(sorted(own - kept))
            own &= kept
            if loop.until is not None and (yield from self._met(strand, loop.until, inner, full, unknown=False)):
                break
        finals[tuple(cell.values())] = carries

    def _followed(self, strand: Strand, inner: Scope, following: Source, old: Grid) -> Grid:
        """The next carry; where its maker was skipped, the old one passes on."""
        grid = self._grid(strand, inner, following)
        if all(ref is not None for ref in grid.refs.values()):
            return grid
        if old.init:
            # A skipped maker leaves the session's beginning as it was only if all of them were skipped.
            return old if not any(grid.refs.values()) else grid
        cells = {place: dict(zip(grid.axes, place, strict=True)) for place in grid.refs}
        return Grid(grid.axes, {p: ref if ref is not None else old.at(cells[p]) for p, ref in grid.refs.items()})

    def _bound(self, grid: Grid, cell: Cell) -> Grid:
        """The part of a grid that belongs to one cell of a loop's own axes."""
        rest = tuple(axis for axis in grid.axes if axis not in cell)
        if grid.init or len(rest) == len(grid.axes):
            return grid
        refs = {}
        for place, ref in grid.refs.items():
            here = dict(zip(grid.axes, place, strict=True))
            if all(here[axis] == value for axis, value in cell.items() if axis in here):
                refs[tuple(here[axis] for axis in rest)] = ref
        return Grid(rest, refs)

    # ---- conditions ------------------------------------------------------------------------------------

    def _ended(self, node: Node, scope: Scope) -> Calls[None]:
        """Waits for nested stages that are only to be over; top-level ones are the frontier's."""
        if scope.parent is None or not node.after:
            return
        due = [call[0] for name in node.after for call in scope.made[name].calls.values() if call is not None]
        while missing := tuple(key for key in due if self._stats(key) is None):
            yield Pending(missing)

    def _wanted(self, strand: Strand, node: Node, scope: Scope, full: Cell) -> Calls[bool]:
        if node.when is None:
            return True
        return (yield from self._met(strand, node.when, scope, full, unknown=True))

    def _met(self, strand: Strand, condition: values.Expr, scope: Scope, full: Cell, *, unknown: bool) -> Calls[bool]:
        """Whether a condition holds; ``unknown`` where a dry run can't tell."""
        watched: dict[str, PlanKey | None] = {}
        for name in values.metric_stages(condition):
            watched[name] = self._metric_call(strand, scope, name, full)
        due = tuple(key for key in watched.values() if key is not None)
        while missing := tuple(key for key in due if self._stats(key) is None):
            yield Pending(missing)
        if any(self._stats(key) is UNKNOWN for key in due):
            return unknown
        metrics = {name: dict(self._stats(key) or {}) if key else {} for name, key in watched.items()}
        # A stat without a value (no episode ended) makes no condition true.
        read = [metrics[path[1]].get(path[2], 0) for path in condition.reads if path[0] == "metrics" and len(path) > 2]
        return None not in read and bool(self._value(condition, strand, scope, full, metrics))

    def _metric_call(self, strand: Strand, scope: Scope, name: str, full: Cell) -> PlanKey | None:
        inner: Scope | None = scope
        while inner is not None and name not in inner.made:
            inner = inner.parent
        made = inner.made[name] if inner is not None else self._top(self._matching(strand, name, None)[0]).made[name]
        call = made.calls.get(tuple(full[axis] for axis in made.axes if axis in full))
        return call[0] if call is not None else None

    # ---- inputs ----------------------------------------------------------------------------------------

    def _inputs(self, strand: Strand, node: Node, scope: Scope, full: Cell) -> Calls[dict[str, Found] | None]:
        """Values by argument; None if one of them was skipped."""
        found: dict[str, Found] = {}
        for argument, source in node.inputs.items():
            if source.gather is not None:
                found[argument] = yield from self._gathered(strand, scope, source, full)
                continue
            grid = self._grid(strand, scope, source)
            ref = grid.at(full) if not grid.init else (yield from self._init(strand, grid.init, full))
            if ref is None:
                return None
            found[argument] = ref._replace(reseed=True) if source.reseed and not grid.init else ref
        return found

    def _gathered(self, strand: Strand, scope: Scope, source: Source, full: Cell) -> Calls[list[tuple[str, Ref]]]:
        gather = source.gather or ()
        found: list[tuple[str, Ref]] = []
        for group, grid in self._grids(strand, scope, source):
            if grid.init:
                begun = yield from self._init(strand, grid.init, {})
                found.append(("", begun))
                continue
            for place, ref in grid.refs.items():
                here = dict(zip(grid.axes, place, strict=True))
                kept = {axis: value for axis, value in here.items() if axis not in gather}
                if ref is not None and all(full.get(axis) == value for axis, value in kept.items()):
                    over = {axis: value for axis, value in {**group, **here}.items() if axis in gather}
                    found.append((label_of(over), ref))
        return found

    def _grids(self, strand: Strand, scope: Scope, source: Source) -> list[tuple[Cell, Grid]]:
        if source.kind == "stage" and scope.out(source.frame).parent is None and source.name != strand.node.name:
            matching = self._matching(strand, source.name, source.gather)
            return [(s.group, self._top(s).made[source.name].grid(source.output)) for s in matching]
        return [({}, self._grid(strand, scope, source))]

    def _grid(self, strand: Strand, scope: Scope, source: Source) -> Grid:
        if source.kind == "init":
            return Grid(init=source.name)
        if source.kind == "anchor":
            anchor = AnchorId(source.name)
            header = self.graph.anchors.get(anchor)
            next_step, label = (header.next_step, header.label) if header else (None, "")
            return Grid((), {(): Ref(anchor, label, next_step, source.reseed)})
        where = scope.out(source.frame)
        if source.kind == "carry":
            return where.carries[source.name]
        if where.parent is None and source.name not in where.made:
            where = self._top(self._matching(strand, source.name, None)[0])
        return where.made[source.name].grid(source.output)

    def _init(self, strand: Strand, kind: str, full: Cell) -> Calls[Ref]:
        """The session's beginning, emitted when it is first asked for; environments by stage cell."""
        assert strand.lane is not None
        cell = full if kind == "env" else {}
        label = label_of(cell)
        known = (strand.lane.index, kind, label)
        if known in self._inits:
            return self._inits[known]
        uses = _INIT[kind]
        node = Node(f"init.{kind}", f"init.{kind}", uses, bodies.code_digest(uses), bodies.BODIES[uses].specs)
        digest, facts = self._what_is_shared(strand, node, Scope(), {})
        plan_key = keys.plan_key(digest, {}, stream=label)
        instance = named(node.name, {**strand.group, **cell})
        call = StageCall(instance, node.path, plan_key, digest, {}, None, label, bundle=self._bundle)
        self.facts[plan_key] = facts
        self._inits[known] = Ref(Edge(plan_key, kind), label, 0 if kind == "env" else None)
        yield call
        return self._inits[known]

    # ---- values ----------------------------------------------------------------------------------------

    def _variables(self, strand: Strand, scope: Scope, full: Cell) -> dict[str, Any]:
        session = strand.lane.deciding if strand.lane else None
        return {
            "params": self.graph.params,
            "matrix": {**strand.group, **full},
            "item": dict(full),
            "session": {"seed": session.seed, "max_steps": session.max_steps} if session else {},
            "iteration": scope.iteration[-1] if scope.iteration else None,
        }

    def _value(self, raw: Any, strand: Strand, scope: Scope, full: Cell, metrics: Any = None) -> Any:
        variables = self._variables(strand, scope, full)
        if metrics is not None:
            variables["metrics"] = metrics
        return values.evaluated(raw, variables)

    def _steps(self, strand: Strand, node: Node, scope: Scope, full: Cell, at: Ref | None) -> tuple[int, int]:
        assert node.steps is not None
        horizon = strand.lane.deciding.max_steps if strand.lane else None
        due = at.next_step if at else None
        if node.steps.count is not None:
            count = node.steps.count
            if isinstance(count, values.Expr):
                count = self._value(count, strand, scope, full)
            if type(count) is not int or count < 1:
                raise _problem(node, "steps", f"steps must be a count of at least 1, not {count!r}")
            if due is None:
                raise _problem(node, "steps", "a count needs an input whose step is known", "write an absolute range")
            first, last = due, due + count - 1
        else:
            first = node.steps.first or 0
            if node.steps.last is None and horizon is None:
                raise _problem(node, "steps", f"the range {first}- is open", "set session.max_steps or an end")
            last = node.steps.last if node.steps.last is not None else (horizon or 0) - 1
        _check_range(node, at, first, last, horizon)
        return first, last

    def _what_is_shared(self, strand: Strand, node: Node, scope: Scope, full: Cell) -> tuple[canon.Digest, CallFacts]:
        """The recipe of a stage's calls in a strand, by digest, and the facts of those that are no targets."""
        where: tuple[Any, ...] = (node.path, strand.number if strand.lane is None else -1 - strand.lane.index)
        if node.config_varies:
            where = (*where, scope.iteration, tuple(full.items()))
        found = self._shared.get(where)
        if found is None:
            recipe = self._make_recipe(strand, node, scope, full)
            lane = label_of(strand.group)
            facts = CallFacts(node.placement, node.retry, node.priority, lane, False, node.cache, recipe)
            found = self._shared[where] = recipe.digest(), facts
            if node.config_varies and len(self._shared) > 100_000:
                self._shared.clear()
        return found

    def _make_recipe(self, strand: Strand, node: Node, scope: Scope, full: Cell) -> Recipe:
        lane = strand.lane
        root = lane.deciding.seed if lane else canon.digest("dsec/root/1", [node.path, dict(strand.group)])
        return Recipe(
            uses=node.uses,
            code=canon.Digest(node.code),
            config=self._value(node.config or {}, strand, scope, full),
            files={name: canon.Digest(digest) for name, digest in node.files.items()},
            agent=lane.agent if lane and "agent" in node.specs else None,
            env=lane.env if lane and "env" in node.specs else None,
            reward=lane.reward if lane and "reward" in node.specs else None,
            seed=root,
            class_id=self.graph.classes.get(node.placement.worker),
            outputs=node.outputs,
            cache_version=node.cache_version,
            salt=self.graph.salt if node.cache == "off" else None,
        )

    # ---- strands ---------------------------------------------------------------------------------------

    def _top(self, strand: Strand) -> Scope:
        return self._scopes[strand.number]

    def _matching(self, strand: Strand, name: str, gather: tuple[str, ...] | None) -> list[Strand]:
        """Strands of a stage that share the session axes which are not gathered."""
        candidates = self._by_node[name]
        if gather is None and len(candidates) == len(self.graph.lanes) and strand.lane is not None:
            return [candidates[strand.lane.index]] if candidates[0].lane is not None else candidates[:1]
        free = set(gather or ())
        mine = {axis: value for axis, value in strand.group.items() if axis not in free}
        return [s for s in candidates if all(mine.get(a, v) == v for a, v in s.group.items() if a not in free)]


# ---- pure pieces ---------------------------------------------------------------------------------------


def _strands(graph: StageGraph) -> list[Strand]:
    """All strands, session by session within a stage, stages in order of their inputs."""
    strands: list[Strand] = []
    for node in graph.nodes:
        if node.in_session:
            groups: list[tuple[Cell, Lane | None]] = [(lane.cell, lane) for lane in graph.lanes]
        else:
            seen: dict[tuple[Any, ...], Cell] = {}
            for lane in graph.lanes:
                cell: Cell = {axis: lane.cell[axis] for axis in node.session_axes}
                seen.setdefault(tuple(cell.values()), cell)
            groups = [(cell, None) for cell in seen.values()]
        for cell, owner in groups:
            strands.append(Strand(node, cell, owner, len(strands)))
    return strands


def _sources_of(node: Node) -> Iterator[Source]:
    """Top-level sources of a node and of all stages nested in it."""
    stack: list[tuple[Node, int]] = [(node, 0)]
    while stack:
        inner, depth = stack.pop()
        yield from (s for s in inner.inputs.values() if s.frame == depth)
        if inner.loop is not None:
            for start, following in inner.loop.carry.values():
                yield from (s for s, frame in ((start, depth), (following, depth + 1)) if s.frame == frame)
            stack.extend((nested, depth + 1) for nested in inner.loop.nodes)


def _target_names(graph: StageGraph) -> set[str]:
    used = {s.name for node in graph.nodes for s in _sources_of(node) if s.kind == "stage"}
    used.update(name for node in graph.nodes for name in node.after)
    return {node.name for node in graph.nodes} - used


def _read_by(condition: values.Expr | None) -> tuple[str, ...]:
    return values.metric_stages(condition) if condition is not None else ()


def _input(value: Found) -> Input:
    if isinstance(value, Ref):
        return Input((value.source,))
    return Input(tuple(ref.source for _, ref in value), tuple(label for label, _ in value))


def _stream(node: Node, scope: Scope, label: str) -> str:
    if not node.named_stream:
        return label if node.is_rollout else ""
    return f"stage/{node.path}/{'.'.join(map(str, scope.iteration))}/{label}"


def _starts_stream(node: Node, ref: object, label: str) -> bool:
    return node.is_rollout and isinstance(ref, Ref) and (ref.reseed or ref.label != label)


def _keys_of(scope: Scope) -> Iterator[PlanKey]:
    for made in scope.made.values():
        yield from (call[0] for call in made.calls.values() if call is not None)
        for grid in (made.carries or {}).values():
            yield from grid.keys()


def _joined(
    axes: tuple[str, ...], finals: Mapping[tuple[Any, ...], Mapping[str, Grid]], names: tuple[str, ...]
) -> dict[str, Grid]:
    """The last carries of a loop's cells as one grid a name."""
    if not axes:
        return dict(finals[()])
    joined = {}
    for name in names:
        inner = next(iter(finals.values()))[name]
        refs = {(*cell, *place): ref for cell, final in finals.items() for place, ref in final[name].refs.items()}
        joined[name] = inner if inner.init else Grid((*axes, *inner.axes), refs)
    return joined


def _interleaved(runs: Sequence[Iterator[StageCall | Pending]]) -> Iterator[StageCall | Pending]:
    """Calls of several loops in turn, so that they can run side by side."""
    active = list(runs)
    while active:
        blocked: list[PlanKey] = []
        progressed = False
        for run in list(active):
            item = next(run, None)
            if item is None:
                active.remove(run)
                progressed = True
            elif isinstance(item, Pending):
                blocked.extend(item.keys)
            else:
                progressed = True
                yield item
        if blocked and not progressed:
            yield Pending(tuple(itertools.chain(blocked)))


def _check_range(node: Node, at: Ref | None, first: int, last: int, horizon: int | None) -> None:
    if last < first:
        raise _problem(node, "steps", f"the range {first}-{last} ends before it starts")
    if horizon is not None and last > horizon - 1:
        raise _problem(
            node,
            "steps-overrun",
            f"step {last} lies beyond the session's last step {horizon - 1}",
            "raise session.max_steps",
        )
    due = at.next_step if at else None
    if due is None or first == due:
        return
    made_at = at.made_at if at else None
    before = f"what comes before (line {made_at[1]}) ends at {due - 1}" if made_at else f"the session is at step {due}"
    if first > due:
        raise _problem(node, "steps-gap", f"starts at step {first}, but {before}: {due}-{first - 1} are missing")
    raise _problem(node, "steps-overlap", f"starts at step {first}, but {before}: {first}-{due - 1} are there twice")


def _problem(node: Node, code: str, message: str, hint: str = "") -> PlanError:
    path, line, column, source = node.position
    return PlanError([Problem(path, line, column, code, f"{node.path}: {message}", hint, 1, source)])
