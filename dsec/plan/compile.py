"""From a plan to a `StageGraph`: params, sessions, and stages with their axes, order and code."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsec.core import bodies, canon, session
from dsec.core.specs import AgentSpec, CodeRef, EnvSpec, RewardSpec, spec_hash
from dsec.core.stage import AnchorId, Placement
from dsec.errors import PlanError
from dsec.plan import schema, values
from dsec.plan.kinds import DeclaredFile
from dsec.plan.load import Document
from dsec.plan.nodes import (
    AnchorHeader,
    Cell,
    Lane,
    Loop,
    Node,
    Position,
    Retry,
    Source,
    Span,
    StageGraph,
)
from dsec.plan.placed import Placed, place
from dsec.plan.reference import EVERY, CarryRef, InitRef, Reference, StageRef, StoredRef
from dsec.plan.units import Steps
from dsec.plan.wiring import uses_of

__all__ = ["Sourcing", "anchors_of", "cells_of", "compile_plan"]


@dataclass(frozen=True, slots=True)
class Sourcing:
    """What a plan's code says of itself, read without importing it."""

    code: Callable[[str], str]
    """Name as a plan has it -> fingerprint."""
    outputs: Callable[[str], tuple[str, ...] | None] = lambda _: None
    """Body -> names of what it returns, None where only running it tells."""
    takes: Callable[[str, str], bool] = lambda _body, _name: False
    """Whether a body has a parameter of that name."""
    bundle: Callable[[], str | None] = lambda: None
    """Digest of the sources of all that was asked for; asked last."""


def compile_plan(
    plan: schema.ExecutionPlan,
    document: Document,
    sourcing: Sourcing,
    *,
    classes: Mapping[str, str | None],
    anchors: Mapping[AnchorId, AnchorHeader] | None = None,
) -> StageGraph:
    """Compile a checked plan.

    Parameters
    ----------
    classes
        Runtime class by kind of worker, None where it is not known.
    anchors
        What is known of the anchors that the plan names itself.

    Raises
    ------
    PlanError
        If an expression has no value.
    """
    try:
        return _Compilation(plan, document, sourcing).graph(classes, anchors or {})
    except values.ExprError as error:
        raise PlanError([document.sources.problem(error.span, error.code, error.message, error.hint)]) from None


def anchors_of(plan: schema.ExecutionPlan) -> tuple[AnchorId, ...]:
    """Anchors that a plan names itself, sorted."""
    found = {
        use.reference.anchor_id
        for top in place(plan).values()
        for placed in top.walk()
        for use in uses_of(placed)
        if isinstance(use.reference, StoredRef)
    }
    return tuple(sorted(found))


def cells_of(matrix: schema.Matrix | None, scope: Mapping[str, object]) -> list[Cell]:
    """Cells of a matrix in order, the last axis fastest; excluded ones left out, included ones last."""
    if matrix is None:
        return [{}]
    names = list(matrix.axes)
    columns = [matrix.axes[name].cells(scope) for name in names]
    excluded = schema.Excluded([values.evaluated(dict(cell), scope) for cell in matrix.exclude])
    product = (dict(zip(names, row, strict=True)) for row in itertools.product(*columns)) if names else iter(())
    cells: list[Cell] = [cell for cell in product if cell not in excluded]
    for extra in matrix.include:
        cell = values.evaluated(dict(extra), scope)
        cells.append({name: cell[name] for name in (names or cell)})
    return cells


class _Compilation:
    """One plan being compiled: names looked up once, specs made once for equal sessions."""

    def __init__(self, plan: schema.ExecutionPlan, document: Document, sourcing: Sourcing) -> None:
        self.plan = plan
        self.document = document
        self.sourcing = sourcing
        self.params = schema.parameters(plan)
        self.scope = {"params": self.params}
        self.cells = cells_of(plan.matrix, self.scope)
        self.session_axes = tuple(self.cells[0]) if self.cells else ()
        self.stage_cells: dict[Placed, tuple[Cell, ...]] = {}
        self.carry_cells: dict[tuple[Placed, str], tuple[Cell, ...]] = {}
        self.kept_axes: dict[Placed, tuple[str, ...]] = {}
        self.in_session: dict[Placed, bool] = {}

    def graph(self, classes: Mapping[str, str | None], anchors: Mapping[AnchorId, AnchorHeader]) -> StageGraph:
        top = _ordered(place(self.plan))
        nodes = []
        for placed in top:
            self._axes(placed)
            self._sessions(placed)
            nodes.append(self._node(placed))
        lanes = tuple(self._lane(index, cell) for index, cell in enumerate(self.cells))
        return StageGraph(
            self.plan.name,
            tuple(nodes),
            lanes,
            self.session_axes,
            self.params,
            classes,
            anchors,
            self.sourcing.bundle(),
        )  # fmt: skip

    # ---- sessions --------------------------------------------------------------------------------------

    def _lane(self, index: int, cell: Cell) -> Lane:
        source = self.plan.session or schema.SessionSource()
        made = schema.settle(source, {**self.scope, "matrix": cell})
        agent = self._agent(made.agent) if made.agent is not None else None
        env = self._env(made.env) if made.env is not None else None
        reward = self._reward(made.reward) if made.reward is not None else None
        max_steps = made.max_steps if isinstance(made.max_steps, int) else None
        seed = made.seed if isinstance(made.seed, int) else 0
        deciding = session.Deciding(spec_hash(agent), spec_hash(env), spec_hash(reward), seed, max_steps)
        return Lane(index, cell, agent, env, reward, deciding, session.identity(deciding, self.plan.name, cell))

    def _code(self, uses: object) -> CodeRef:
        return CodeRef(uses=str(uses), fingerprint=canon.Digest(self.sourcing.code(str(uses))))

    def _agent(self, source: schema.AgentSource) -> AgentSpec:
        return AgentSpec(
            code=self._code(source.uses),
            config=_plain(source.with_),
            files=_digests(source.files),
            vectorized=source.vectorized,
            deterministic_mode=source.deterministic_mode,
            provenance=source.provenance,
        )

    def _env(self, source: schema.EnvSource) -> EnvSpec:
        count = source.num_envs if isinstance(source.num_envs, int) else None
        files = _digests(source.files)
        return EnvSpec(code=self._code(source.uses), config=_plain(source.with_), files=files, num_envs=count)

    def _reward(self, source: schema.RewardSource) -> RewardSpec:
        return RewardSpec(code=self._code(source.uses), config=_plain(source.with_), files=_digests(source.files))

    # ---- axes ------------------------------------------------------------------------------------------

    def _axes(self, placed: Placed) -> None:
        """Cells of a stage within one session and one iteration; of what is nested in it, too."""
        loops = [axis for loop in placed.loops() for axis in _names(self.stage_cells.get(loop, ({},)))]
        cells = self._inherited(placed) if placed.stage.iterate is None else [{}]
        own = cells_of(placed.stage.matrix, self.scope)
        self.stage_cells[placed] = tuple(_without(_joined(cells, own), loops))
        if placed.stage.iterate is None:
            return
        for name, carry in placed.stage.iterate.carry.items():
            self.carry_cells[placed, name] = tuple(self._cells_behind(placed, carry.from_, ()))
        nested = _ordered(placed.inner)
        for _ in range(len(placed.stage.iterate.carry) + 1):
            for inner in nested:
                self._axes(inner)
            grown = {name: self._grown(placed, name) for name in placed.stage.iterate.carry}
            if all(self.carry_cells[placed, name] == cells for name, cells in grown.items()):
                return
            self.carry_cells.update({(placed, name): cells for name, cells in grown.items()})

    def _grown(self, placed: Placed, name: str) -> tuple[Cell, ...]:
        iterate = placed.stage.iterate
        following = iterate.carry[name].next if iterate is not None else None
        target = placed.inner.get(following.stage) if isinstance(following, StageRef) else None
        behind = list(self.stage_cells[target]) if target is not None else [{}]
        return tuple(_joined(list(self.carry_cells[placed, name]), behind))

    def _inherited(self, placed: Placed) -> list[Cell]:
        cells: list[Cell] = [{}]
        for source in placed.stage.inputs.values():
            gather = source.gather if isinstance(source, StageRef) else None
            if gather == EVERY:
                continue
            cells = _joined(cells, self._cells_behind(placed, source, gather or ()))
        if not placed.stage.inputs and (implied := self._implied(placed)) is not None:
            cells = _joined(cells, self._cells_behind(placed, implied, ()))
        return cells

    def _cells_behind(self, reader: Placed, source: Reference, gather: Iterable[str]) -> list[Cell]:
        if isinstance(source, CarryRef):
            loop = self._carrying(reader, source.name)
            return list(self.carry_cells.get((loop, source.name), ({},)))
        if isinstance(source, StageRef) and (target := reader.see(source.stage)) is not None:
            cells = list(self.stage_cells.get(target, ({},)))
            if target.stage.iterate is not None and source.output is not None:
                cells = _joined(cells, list(self.carry_cells.get((target, source.output), ({},))))
            return _without(cells, gather)
        return [{}]

    def _carrying(self, reader: Placed, name: str) -> Placed:
        for loop in reader.loops():
            if loop.stage.iterate is not None and name in loop.stage.iterate.carry:
                return loop
        raise LookupError(name)

    # ---- per session or not ----------------------------------------------------------------------------

    def _sessions(self, placed: Placed) -> None:
        kept: list[str] = []
        inside = placed.stage.iterate is not None
        for reader in placed.walk():
            inside = inside or self._speaks_of_session(reader)
            for use in uses_of(reader):
                target = reader.see(use.reference.stage) if isinstance(use.reference, StageRef) else None
                if target is None or target.outer is not None or not isinstance(use.reference, StageRef):
                    continue
                inside = inside or (self.in_session[target] and use.reference.gather is None)
                gather = self.session_axes if use.reference.gather == EVERY else use.reference.gather or ()
                kept.extend(axis for axis in self.kept_axes[target] if axis not in gather)
        whole = inside or set(kept) == set(self.session_axes) != set()
        self.in_session[placed] = whole and self.plan.session is not None
        axes = self.session_axes if whole else tuple(axis for axis in self.session_axes if axis in kept)
        self.kept_axes[placed] = axes

    def _speaks_of_session(self, reader: Placed) -> bool:
        stage = reader.stage
        if stage.steps is not None or any(isinstance(s, InitRef | CarryRef) for s in stage.inputs.values()):
            return True
        conditions = [stage.when] if stage.when is not None else []
        for expr in (*schema.expressions_of(stage), *conditions):
            for path in expr.reads:
                if path[0] == "session" or (path[0] == "matrix" and (len(path) == 1 or path[1] in self.session_axes)):
                    return True
        return False

    # ---- nodes -----------------------------------------------------------------------------------------

    def _node(self, placed: Placed) -> Node:
        static = ("resources", "retry", "timeout", "cache", "numerics", "outputs", "priority", "files")
        stage = schema.settle(placed.stage, self.scope, static)
        uses = str(stage.uses or "")
        body = bodies.BODIES.get(uses)
        cells = self.stage_cells[placed]
        defaults = schema.settle(self.plan.defaults, self.scope)
        cache = stage.cache or defaults.cache or schema.Cache()
        timeout = stage.timeout if stage.timeout is not None else defaults.timeout
        return Node(
            name=placed.name,
            path=placed.path,
            uses=uses,
            code="" if not uses else bodies.code_digest(uses) if body else self.sourcing.code(uses),
            specs=body.specs if body else (),
            named_stream=body.named_stream if body else True,
            is_rollout=bool(body and body.steps),
            config=_plain(placed.stage.with_),
            config_varies=self._varies(placed.stage.with_, cells),
            files=_digests(stage.files),
            inputs=self._inputs(placed),
            after=self._after(placed),
            steps=_span(placed.stage.steps, self.scope),
            outputs=tuple(sorted((name, _number(output.every)) for name, output in stage.outputs.items())),
            makes=self._makes(placed),
            cells=cells,
            session_axes=self.kept_axes.get(placed, ()),
            in_session=self.in_session.get(placed, False),
            loop=self._loop(placed) if placed.stage.iterate is not None else None,
            placement=self._placement(stage, defaults, body),
            retry=_retry(stage.retry or defaults.retry),
            timeout=timeout if isinstance(timeout, int | float) else None,
            priority=_number(stage.priority) or 0,
            when=placed.stage.when,
            cache=cache.mode,
            cache_version=str(cache.version) if cache.version is not None else None,
            position=self._position(placed),
        )

    def _position(self, placed: Placed) -> Position:
        where = (*placed.where, "steps") if placed.stage.steps is not None else placed.where
        found = self.document.problem(where, "", "", key=placed.stage.steps is None)
        return found.path, found.line, found.column, found.source

    def _loop(self, placed: Placed) -> Loop:
        iterate = placed.stage.iterate
        assert iterate is not None
        carry = {
            name: (self._source(placed, each.from_), self._next(placed, each.next))
            for name, each in iterate.carry.items()
        }
        nodes = tuple(self._node(inner) for inner in _ordered(placed.inner))
        return Loop(iterate.times, carry, iterate.until, nodes)

    def _next(self, placed: Placed, following: Reference) -> Source:
        if isinstance(following, StageRef):
            return self._stage_source(placed.inner[following.stage], following, 0, None)
        return self._source(placed, following)

    def _inputs(self, placed: Placed) -> dict[str, Source]:
        found = {name: self._source(placed, source) for name, source in placed.stage.inputs.items()}
        body = bodies.BODIES.get(str(placed.stage.uses))
        if not found and (implied := self._implied(placed)) is not None:
            return {"state": self._source(placed, implied)}
        if body is not None and body.steps and "state" not in found:
            found.setdefault("agent", Source("init", "agent"))
            found.setdefault("env", Source("init", "env"))
        return found

    def _implied(self, placed: Placed) -> StageRef | None:
        """The ``state`` of the one stage that is needed, if it makes one and the body takes it."""
        if len(placed.stage.needs) != 1 or placed.stage.inputs or placed.stage.uses is None:
            return None
        upstream = placed.see(placed.stage.needs[0])
        if upstream is None or "state" not in (self._makes(upstream) or ()):
            return None
        body = bodies.BODIES.get(str(placed.stage.uses))
        takes = "state" in body.inputs if body else self.sourcing.takes(str(placed.stage.uses), "state")
        return StageRef(upstream.name, "state") if takes else None

    def _after(self, placed: Placed) -> tuple[str, ...]:
        return () if self._implied(placed) is not None else placed.stage.needs

    def _makes(self, placed: Placed) -> tuple[str, ...] | None:
        if placed.stage.iterate is not None:
            return tuple(placed.stage.iterate.carry)
        uses = str(placed.stage.uses)
        if uses in bodies.BODIES:
            return bodies.BODIES[uses].outputs
        return tuple(placed.stage.outputs) or self.sourcing.outputs(uses)

    def _source(self, reader: Placed, source: Reference) -> Source:
        if isinstance(source, InitRef):
            return Source("init", source.what)
        if isinstance(source, StoredRef):
            return Source("anchor", source.anchor_id, reseed=source.reseed)
        if isinstance(source, CarryRef):
            loop = self._carrying(reader, source.name)
            return Source("carry", source.name, frame=list(reader.loops()).index(loop))
        target = reader.see(source.stage)
        assert target is not None
        frame = len(list(reader.loops())) - len(list(target.loops()))
        return self._stage_source(target, source, frame, reader)

    def _stage_source(self, target: Placed, source: StageRef, frame: int, reader: Placed | None) -> Source:
        gather = source.gather
        if gather == EVERY:
            stage_axes = _names(self.stage_cells[target])
            if target.stage.iterate is not None and source.output is not None:
                stage_axes += _names(self.carry_cells[target, source.output])
            whole = self.kept_axes.get(target, ()) if reader is not None and reader.outer is None else ()
            gather = (*whole, *stage_axes)
        return Source("stage", target.name, source.name or self._only_output(target), gather, frame=frame)

    def _only_output(self, target: Placed) -> str:
        makes = self._makes(target) or ()
        return makes[0] if len(makes) == 1 else "state"

    def _placement(self, stage: schema.Stage, defaults: schema.Defaults, body: bodies.Body | None) -> Placement:
        profile = stage.resources
        agent = self.plan.session.agent if self.plan.session is not None else None
        if profile is None and agent is not None and body is not None and "agent" in body.specs:
            profile = agent.resource_profile
        profile = profile if profile is not None else defaults.resources
        if isinstance(profile, str):
            profile = self.plan.resources[profile]
        if profile is None:
            return Placement()
        asked = schema.settle(profile, self.scope)
        gpu = asked.gpu if asked.gpu is not None else (1.0 if asked.worker == "gpu" else 0.0)
        return Placement(
            str(asked.worker),
            float(_real(asked.cpu)),
            float(_real(gpu)),
            int(_real(asked.memory)),
            int(_real(asked.vram)),
            tuple(sorted(asked.labels)),
        )

    def _varies(self, config: Mapping[str, Any], cells: Sequence[Cell]) -> bool:
        axes = set(_names(cells))
        for expr in values.expressions(config):
            for path in expr.reads:
                if path[0] in ("item", "iteration"):
                    return True
                if path[0] == "matrix" and (len(path) == 1 or path[1] not in self.session_axes or path[1] in axes):
                    return True
        return False


# ---- pure pieces ---------------------------------------------------------------------------------------


def _ordered(group: Mapping[str, Placed]) -> list[Placed]:
    """Stages of a group with inputs first, written order among equals."""
    order = list(group.values())
    waits = {placed: set(_awaited(placed)) for placed in order}
    followers: dict[Placed, list[int]] = {placed: [] for placed in order}
    for index, placed in enumerate(order):
        for before in waits[placed]:
            followers[before].append(index)
    missing = [len(waits[placed]) for placed in order]
    ready = [index for index, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        placed = order[heapq.heappop(ready)]
        found.append(placed)
        for index in followers[placed]:
            missing[index] -= 1
            if missing[index] == 0:
                heapq.heappush(ready, index)
    return found


def _awaited(placed: Placed) -> Iterator[Placed]:
    for reader in placed.walk():
        names = [use.reference.stage for use in uses_of(reader) if isinstance(use.reference, StageRef)]
        names += reader.stage.needs
        names += values.metric_stages(reader.stage.when) if reader.stage.when is not None else ()
        for name in names:
            target = reader.see(name)
            beside = target.beside(placed) if target is not None else None
            if beside is not None and beside is not placed:
                yield beside


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(cells[0]) if cells else []


def _joined(left: Sequence[Cell], right: Sequence[Cell]) -> list[Cell]:
    """Natural join: cells that agree on the axes both have, left order first."""
    shared = [axis for axis in _names(right) if axis in _names(left)]
    found = [{**a, **b} for a in left for b in right if all(a[axis] == b[axis] for axis in shared)]
    return list({tuple(cell.values()): cell for cell in found}.values())


def _without(cells: Sequence[Cell], axes: Iterable[str]) -> list[Cell]:
    dropped = set(axes)
    kept = [{axis: value for axis, value in cell.items() if axis not in dropped} for cell in cells]
    return list({tuple(cell.values()): cell for cell in kept}.values())


def _span(steps: Steps | values.Expr | None, scope: Mapping[str, object]) -> Span | None:
    if steps is None:
        return None
    if isinstance(steps, values.Expr):
        known = all(path[0] == "params" for path in steps.reads)
        return Span(None, None, values.evaluate(steps, scope) if known else steps)
    return Span(steps.first, steps.last, steps.count)


def _retry(source: schema.Retry | None) -> Retry:
    if source is None:
        return Retry()
    return Retry(int(_real(source.max)), float(_real(source.backoff)), frozenset(source.when))


def _real(value: object) -> int | float:
    return value if isinstance(value, int | float) else 0


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _digests(files: Mapping[str, DeclaredFile]) -> dict[str, canon.Digest]:
    return {name: canon.Digest(file.digest) for name, file in sorted(files.items())}


def _plain(config: Any) -> Any:
    """``with`` with each declared file as its name and digest."""
    if isinstance(config, DeclaredFile):
        return {"file": config.name, "digest": config.digest}
    if isinstance(config, Mapping):
        return {key: _plain(item) for key, item in config.items()}
    if isinstance(config, list | tuple):
        return [_plain(item) for item in config]
    return config
