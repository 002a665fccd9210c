"""``--select``: globs over instance names, and what the chosen instances need."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsec.core.stage import Edge, PlanKey
from dsec.errors import UsageError
from dsec.plan.expand import Expander
from dsec.plan.frontier import Frontier
from dsec.plan.grids import UNKNOWN, Pending, Strand
from dsec.plan.locate import did_you_mean
from dsec.plan.nodes import StageGraph

__all__ = ["frontier"]


def frontier(graph: StageGraph, select: Sequence[str]) -> Frontier:
    """The frontier of a graph, or of the chosen instances and of all they need.

    Raises
    ------
    UsageError
        If a glob chooses nothing.
    """
    if not select:
        return Frontier(graph)
    patterns = [_pattern(glob) for glob in select]
    keys, strands, unmatched = _chosen(graph, patterns)
    if unmatched:
        glob = select[unmatched[0]]
        names = [strand.name for strand in Expander(graph, lambda _: None).strands]
        raise UsageError(f"--select {glob!r} chooses no instance", hint=did_you_mean(glob, names[:200]))
    return Frontier(graph, strands, keys)


def _chosen(graph: StageGraph, patterns: Sequence[re.Pattern[str]]) -> tuple[frozenset[PlanKey], set[int], list[int]]:
    """Calls that are chosen or needed, the strands they are in, and the patterns that chose nothing."""
    sources: dict[PlanKey, tuple[PlanKey, ...]] = {}
    numbers: dict[PlanKey, int] = {}
    chosen: list[PlanKey] = []
    missing = set(range(len(patterns)))
    expander = Expander(graph, lambda _: UNKNOWN)
    for strand in _in_order(expander):
        for item in expander.calls(strand):
            if isinstance(item, Pending):
                break
            sources[item.plan_key] = tuple(
                s.plan_key for i in item.inputs.values() for s in i.sources if isinstance(s, Edge)
            )
            numbers.setdefault(item.plan_key, strand.number)
            found = {index for index, pattern in enumerate(patterns) if pattern.fullmatch(item.instance)}
            if found:
                chosen.append(item.plan_key)
                missing -= found
    needed: set[PlanKey] = set()
    stack = chosen
    while stack:
        key = stack.pop()
        if key not in needed:
            needed.add(key)
            stack.extend(sources[key])
    return frozenset(needed), _with_upstream(expander, {numbers[key] for key in needed}), sorted(missing)


def _in_order(expander: Expander) -> list[Strand]:
    """Strands as they stand: stages come in an order in which inputs are first."""
    return expander.strands


def _with_upstream(expander: Expander, wanted: set[int]) -> set[int]:
    """Strands and those whose calls must be known before, though they may give out none."""
    found: set[int] = set()
    stack = sorted(wanted)
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(strand.number for strand in expander.upstream(expander.strands[number])[0])
    return found


def _pattern(glob: str) -> re.Pattern[str]:
    """``*`` is any text, ``?`` one character; brackets and the rest stand for themselves, since names have them."""
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(char, re.escape(char)) for char in glob))
