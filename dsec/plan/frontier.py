"""The frontier of a plan: the next calls, taken strand by strand, a bounded way ahead of what is done.

Only strands that can go on are expanded, so a plan of 344,400 calls holds a few thousand of them at a time. Strands
take turns, so every session gets going; within a turn each gives a few calls, as many as fill the look-ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsec.core.stage import PlanKey, StageCall, StageResult
from dsec.plan import values
from dsec.plan.expand import Expander
from dsec.plan.grids import UNKNOWN, Pending, Strand
from dsec.plan.nodes import CallFacts, Node, StageGraph

__all__ = ["Frontier"]

MAX_OUTSTANDING = 8192
"""Calls taken and not done, over all strands."""
MIN_AHEAD, MAX_AHEAD = 16, 256
"""Calls that one strand may be ahead of what is done."""


@dataclass(slots=True)
class _Progress:
    """How far one strand is."""

    strand: Strand
    calls: Iterator[StageCall | Pending] | None = None
    waits_known: int = 0
    """Strands upstream that are not expanded to their end."""
    waits_ended: int = 0
    """Strands upstream that are not over."""
    outstanding: int = 0
    expanded: bool = False
    blocked_on: set[PlanKey] = field(default_factory=set)
    dead: bool = False

    @property
    def over(self) -> bool:
        """Whether all of its calls are done."""
        return self.expanded and self.outstanding == 0


class Frontier:
    """The calls of a graph in an order in which they can run.

    Parameters
    ----------
    graph
        The compiled plan.
    wanted
        Numbers of the strands to expand, all if None; what they need must be among them.
    only
        Calls of those strands to give out, all if None.
    """

    def __init__(
        self, graph: StageGraph, wanted: set[int] | None = None, only: frozenset[PlanKey] | None = None
    ) -> None:
        self._expander = Expander(graph, self._stats_of, self._retire)
        self._only = only
        self._watched = _watched(graph.nodes)
        self._stats: dict[PlanKey, Mapping[str, Any]] = {}
        self._seen: set[bytes] = set()
        self._facts: dict[PlanKey, CallFacts] = {}
        self._owners: dict[PlanKey, list[int]] = {}
        self._stages: dict[PlanKey, str] = {}
        self._retired: list[PlanKey] = []
        self._progress = {
            s.number: _Progress(s) for s in self._expander.strands if wanted is None or s.number in wanted
        }
        self._known_after: dict[int, list[int]] = {}
        self._ended_after: dict[int, list[int]] = {}
        self._turn: deque[int] = deque()
        self._queued: set[int] = set()
        self.aliases: list[tuple[str, PlanKey]] = []
        """Instances that turned out to be the same call as an earlier one."""
        self.skipped: list[str] = []
        """Names of strands that can't go on, since something they need failed."""
        self._wire()

    def _wire(self) -> None:
        for number, progress in self._progress.items():
            known, ended = self._expander.upstream(progress.strand)
            for before in {s.number for s in known} & self._progress.keys():
                progress.waits_known += 1
                self._known_after.setdefault(before, []).append(number)
            for before in {s.number for s in ended} & self._progress.keys():
                progress.waits_ended += 1
                self._ended_after.setdefault(before, []).append(number)
        for number, progress in self._progress.items():
            self._start(number, progress)

    # ---- what the engine asks --------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether all calls were taken and none can follow."""
        return all(p.expanded or p.dead for p in self._progress.values())

    def take(self, n: int) -> list[StageCall]:
        """Up to ``n`` next calls in plan order; empty while results are awaited."""
        found: list[StageCall] = []
        room = min(n, MAX_OUTSTANDING - len(self._owners))
        resting: list[int] = []
        ahead = max(MIN_AHEAD, min(MAX_AHEAD, MAX_OUTSTANDING // 2 // max(1, len(self._turn))))
        enough = len(self.aliases) + 4 * n  # a thousand equal sessions are looked through bit by bit
        while self._turn and len(found) < room and not (found and len(self.aliases) > enough):
            number = self._turn.popleft()
            self._queued.discard(number)
            if self._advance(self._progress[number], min(ahead, room - len(found)), ahead, found):
                resting.append(number)
        self._queued.update(resting)
        self._turn.extend(resting)
        return found

    def done(self, plan_key: PlanKey, result: StageResult | None) -> None:
        """A call has its result; None in a dry run."""
        if self._stages.pop(plan_key, "") in self._watched:
            self._stats[plan_key] = result.stats if result is not None else UNKNOWN
        self._facts.pop(plan_key, None)
        for number in self._owners.pop(plan_key, ()):
            progress = self._progress[number]
            progress.outstanding -= 1
            if not progress.blocked_on and not progress.expanded and progress.calls is not None:
                self._wake(number)
            self._settle(progress)
        for number, progress in list(self._blocked(plan_key)):
            progress.blocked_on.discard(plan_key)
            if not progress.blocked_on:
                self._wake(number)

    def failed(self, plan_key: PlanKey) -> None:
        """A call failed for good; calls that depend on it and weren't taken never will be."""
        self._facts.pop(plan_key, None)
        self._stages.pop(plan_key, None)
        dying = deque(self._owners.pop(plan_key, ()))
        for number in dying:
            self._progress[number].outstanding -= 1
        while dying:
            number = dying.popleft()
            progress = self._progress[number]
            if progress.dead:
                continue
            progress.dead = True
            progress.calls = None
            if not progress.expanded:
                self.skipped.append(progress.strand.name)
            dying.extend(self._known_after.get(number, ()))
            dying.extend(self._ended_after.get(number, ()))

    def retired(self) -> list[PlanKey]:
        """Calls whose results nobody can refer to any more, each named once."""
        found, self._retired = self._retired, []
        return found

    def facts(self, plan_key: PlanKey) -> CallFacts:
        """What is not in the key of a call that was taken and is not done."""
        return self._facts[plan_key]

    # ---- one strand ------------------------------------------------------------------------------------

    def _advance(self, progress: _Progress, most: int, ahead: int, found: list[StageCall]) -> bool:
        """Expand a strand by up to ``most`` calls; whether it could go on at once."""
        if progress.dead or progress.expanded:
            return False
        if progress.calls is None:
            progress.calls = self._expander.calls(progress.strand)
        for _ in range(most):
            if progress.outstanding >= ahead:
                return False
            item = next(progress.calls, None)
            if item is None:
                progress.expanded, progress.calls = True, None
                self._expanded(progress)
                return False
            if isinstance(item, Pending):
                progress.blocked_on = {key for key in item.keys if key not in self._stats}
                if progress.blocked_on:
                    return False
                continue
            self._emit(progress, item, found)
        return True

    def _emit(self, progress: _Progress, call: StageCall, found: list[StageCall]) -> None:
        key = call.plan_key
        facts = self._expander.facts.pop(key)
        number = progress.strand.number
        raw = bytes.fromhex(key)
        if raw in self._seen:
            self.aliases.append((call.instance, key))
            if key in self._owners:
                self._owners[key].append(number)
                progress.outstanding += 1
            return
        if self._only is not None and key not in self._only:
            return
        self._seen.add(raw)
        self._facts[key] = facts
        self._stages[key] = call.stage
        self._owners[key] = [number]
        progress.outstanding += 1
        found.append(call)

    def _expanded(self, progress: _Progress) -> None:
        for number in self._known_after.pop(progress.strand.number, ()):
            after = self._progress[number]
            after.waits_known -= 1
            self._start(number, after)
        self._settle(progress)

    def _settle(self, progress: _Progress) -> None:
        if not progress.over or progress.dead:
            return
        for number in self._ended_after.pop(progress.strand.number, ()):
            after = self._progress[number]
            after.waits_ended -= 1
            self._start(number, after)

    def _start(self, number: int, progress: _Progress) -> None:
        if not (progress.waits_known or progress.waits_ended or progress.dead):
            self._wake(number)

    def _wake(self, number: int) -> None:
        if number not in self._queued:
            self._queued.add(number)
            self._turn.append(number)

    def _blocked(self, plan_key: PlanKey) -> Iterator[tuple[int, _Progress]]:
        if plan_key in self._stats:
            yield from ((n, p) for n, p in self._progress.items() if plan_key in p.blocked_on)

    def _stats_of(self, plan_key: PlanKey) -> Mapping[str, Any] | None:
        return self._stats.get(plan_key)

    def _retire(self, keys: Sequence[PlanKey]) -> None:
        self._retired.extend(keys)
        for key in keys:
            self._stats.pop(key, None)


def _read_by(condition: values.Expr | None) -> tuple[str, ...]:
    return values.metric_stages(condition) if condition is not None else ()


def _watched(nodes: Sequence[Node]) -> frozenset[str]:
    """Paths of stages whose ends or stats are asked for before the graph can go on."""
    found: set[str] = set()
    stack: list[tuple[tuple[Node, ...], tuple[Mapping[str, Node], ...]]] = [(tuple(nodes), ())]
    while stack:
        group, around = stack.pop()
        scopes = ({node.name: node for node in group}, *around)
        for node in group:
            for name in (*_read_by(node.when), *node.after):
                found.update(scope[name].path for scope in scopes if name in scope)
            if node.loop is not None:
                names_inside = set(_read_by(node.loop.until))
                found.update(inner.path for inner in node.loop.nodes if inner.name in names_inside)
                stack.append((node.loop.nodes, scopes))
    return frozenset(found)
