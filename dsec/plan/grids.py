"""What the graph knows of values before they exist: who makes them, under which axes, at which step.

A *grid* is one value for each cell of some axes. A *scope* holds the names that a stage can refer to. What is made for
every call is a named tuple: a frozen dataclass takes twice the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from dsec.core.stage import AnchorId, Edge, PlanKey
from dsec.plan.nodes import Cell, Lane, Node, Position, label_of

__all__ = ["UNKNOWN", "Grid", "Made", "Pending", "Ref", "Scope", "Strand", "named"]


UNKNOWN: Mapping[str, Any] = {}
"""Stats of a call that a dry run would run: this very object, not any empty mapping."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing more can be said until these calls are finished."""

    keys: tuple[PlanKey, ...]


class Ref(NamedTuple):
    """One value as the graph knows it."""

    source: Edge | AnchorId
    label: str = ""
    """Stage axes it was made under."""
    next_step: int | None = None
    reseed: bool = False
    made_at: Position | None = None


class Grid(NamedTuple):
    """A value for each cell of some axes; None where its maker was skipped."""

    axes: tuple[str, ...] = ()
    refs: Mapping[tuple[Any, ...], Ref | None] = MappingProxyType({})
    init: str = ""
    """``agent`` or ``env``: the beginning of the session, made on demand."""

    def keys(self) -> Iterator[PlanKey]:
        """Calls that made the values."""
        yield from (ref.source.plan_key for ref in self.refs.values() if ref and isinstance(ref.source, Edge))

    def at(self, cell: Cell) -> Ref | None:
        """The value for a cell that has at least these axes."""
        return self.refs[tuple(cell[axis] for axis in self.axes)]


@dataclass(slots=True)
class Made:
    """What the instances of one stage made, as far as the graph can know."""

    axes: tuple[str, ...]
    calls: dict[tuple[Any, ...], tuple[PlanKey, str, int | None] | None] = field(default_factory=dict)
    """Cell -> plan_key, label, next step; None where it was skipped."""
    carries: Mapping[str, Grid] | None = None
    """For a loop: its last carry, by name."""
    position: Position | None = None
    _grids: dict[str, Grid] = field(default_factory=dict)
    """What was asked for before, since each of a thousand readers of a thousand cells asks again."""

    def grid(self, output: str) -> Grid:
        """One output over all cells."""
        if self.carries is not None:
            return self.carries[output]
        found = self._grids.get(output)
        if found is None or len(found.refs) != len(self.calls):
            steps_follow = output in ("env", "state")
            refs = {cell: call and self._ref(call, output, steps_follow) for cell, call in self.calls.items()}
            found = self._grids[output] = Grid(self.axes, refs)
        return found

    def _ref(self, call: tuple[PlanKey, str, int | None], output: str, steps_follow: bool) -> Ref:
        plan_key, label, next_step = call
        if not steps_follow and output.startswith("state@"):
            next_step, steps_follow = int(output[6:]) + 1, True
        return Ref(Edge(plan_key, output), label, next_step if steps_follow else None, False, self.position)


@dataclass(slots=True)
class Scope:
    """Names that a stage can refer to."""

    prefix: str = ""
    cell: Cell = field(default_factory=dict)
    """Axes of the loops around."""
    iteration: tuple[int, ...] = ()
    made: dict[str, Made] = field(default_factory=dict)
    carries: Mapping[str, Grid] = field(default_factory=dict)
    parent: Scope | None = None

    def out(self, frames: int) -> Scope:
        """The scope that many loops further out."""
        scope = self
        for _ in range(frames):
            if scope.parent is None:
                raise LookupError("no scope that far out")
            scope = scope.parent
        return scope


@dataclass(slots=True)
class Strand:
    """One top-level stage of one group of sessions."""

    node: Node
    group: Cell
    """Values of the session axes it has."""
    lane: Lane | None
    """Its session, if it is in one."""
    number: int
    """Place in plan order."""

    @property
    def name(self) -> str:
        """Name of its instances up to loops and stage axes: ``train@seed=0``."""
        return named(self.node.name, self.group)


def named(name: str, cell: Cell) -> str:
    """``train@seed=0``; the bare name for no axes."""
    return f"{name}@{label_of(cell)}" if cell else name
