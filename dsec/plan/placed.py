"""Stages in their groups: who stands where, and which names each one sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dsec.plan.load import Where
from dsec.plan.schema import ExecutionPlan, Stage

__all__ = ["Placed", "place"]


@dataclass(slots=True, eq=False)
class Placed:
    """A stage with its place in the plan."""

    name: str
    stage: Stage
    where: Where
    """Path of the stage in the file."""
    outer: Placed | None
    """The loop around it."""
    inner: dict[str, Placed] = field(default_factory=dict)
    """Nested stages, in written order."""
    group: dict[str, Placed] = field(default_factory=dict)
    """All stages beside it, itself among them."""

    @property
    def path(self) -> str:
        """Dotted path of names, ``train.learn``."""
        return f"{self.outer.path}.{self.name}" if self.outer is not None else self.name

    def loops(self) -> Iterator[Placed]:
        """The loops around it, the nearest first."""
        loop = self.outer
        while loop is not None:
            yield loop
            loop = loop.outer

    def see(self, name: str) -> Placed | None:
        """The stage that a name means here: beside it, or in a group around it."""
        for group in (self.group, *(loop.group for loop in self.loops())):
            if name in group:
                return group[name]
        return None

    def names(self) -> list[str]:
        """Every name that it sees, its own and those of its loops left out."""
        hidden = {self, *self.loops()}
        groups = (self.group, *(loop.group for loop in self.loops()))
        return [name for group in groups for name, placed in group.items() if placed not in hidden]

    def walk(self) -> Iterator[Placed]:
        """It and everything inside it."""
        yield self
        for placed in self.inner.values():
            yield from placed.walk()

    def beside(self, other: Placed) -> Placed | None:
        """The stage in the group of ``other`` that is this one or holds it, if any."""
        for placed in (self, *self.loops()):
            if placed.group is other.group:
                return placed
        return None


def place(plan: ExecutionPlan) -> dict[str, Placed]:
    """The top-level stages of a plan, each with what is inside it."""
    return _group(plan.stages, ("stages",), None)


def _group(stages: Mapping[str, Stage], where: Where, outer: Placed | None) -> dict[str, Placed]:
    group: dict[str, Placed] = {}
    for name, stage in stages.items():
        placed = Placed(name, stage, (*where, name), outer, group=group)
        placed.inner = _group(stage.stages or {}, (*placed.where, "stages"), placed)
        group[name] = placed
    return group
