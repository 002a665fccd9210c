"""Which calls have their result already: looked up in the driver, before anything is sent anywhere.

The catalog is asked once for a thousand calls. What it says counts only if the result is that of the inputs as they
are now, which its action_key tells; the action entry of the inputs as they are now counts in any case. So a lagging
or deleted catalog costs time, never a result, and a call whose upstream ran again and made the same is found too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dsec.core import keys
from dsec.core.stage import AnchorId, Edge, Input, PlanKey, Recipe, StageCall, StageResult, replace
from dsec.engine.borders import Frontier
from dsec.errors import StageError
from dsec.store import actions, hits, layout
from dsec.store.root import Store

__all__ = ["BATCH", "Hit", "Miss", "Resolution", "Resolver", "Verdict", "Waits", "absent", "bind", "survey"]

BATCH = 1000
"""Calls looked up at once."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The result is there."""

    call: StageCall
    """With its inputs as anchors."""
    result: StageResult
    recorded: bool
    """Whether the catalog leads from this plan_key to this result already."""
    absent: tuple[str, ...] = ()
    """Outputs that are no longer in the store; nobody demands them yet."""


@dataclass(frozen=True, slots=True)
class Miss:
    """It has to run, and could at once."""

    call: StageCall
    """With its inputs as anchors."""
    reason: str
    filed: bool = False
    """Whether its action entry is there, though not all that the entry names."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Calls upstream have to run first; then it may still be a hit."""

    call: StageCall
    needs: frozenset[PlanKey]


Resolution: TypeAlias = Hit | Miss | Waits


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run would do with a call."""

    call: StageCall
    runs: bool
    reason: str
    """Why it runs; empty for a hit."""
    recipe: Recipe


class Resolver:
    """Looks calls up in one store.

    Parameters
    ----------
    store
        Where results are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorded: dict[PlanKey, str] = {}

    def prepare(self, calls: Sequence[StageCall]) -> None:
        """Ask the catalog for all of these at once; `resolve` uses what it said."""
        for start in range(0, len(calls), BATCH):
            wanted = [call.plan_key for call in calls[start : start + BATCH]]
            found = hits.lookup(self._store.catalog, wanted)
            self._recorded.update((PlanKey(key), result) for key, (_, result) in found.items())

    def resolve(
        self, call: StageCall, results: Mapping[PlanKey, StageResult], *, target: bool, refresh: bool = False
    ) -> Resolution:
        """Hit, miss, or not to be known yet.

        Parameters
        ----------
        call
            A call, its inputs perhaps as edges.
        results
            Results of calls upstream, as far as there are any.
        target
            Whether all of its outputs are demanded.
        refresh
            Whether it runs although there is a result.
        """
        needs = frozenset(edge.plan_key for edge in call.edges() if edge.plan_key not in results)
        if needs:
            return Waits(call, needs)
        bound = bind(call, results, self._store)
        said = self._recorded.pop(call.plan_key, None)
        if refresh:
            return Miss(bound, "refresh")
        return self._look_up(bound, said, target)

    def _look_up(self, bound: StageCall, said: str | None, target: bool) -> Resolution:
        wanted = keys.action_key(bound)
        result = StageResult.from_json(said) if said is not None else None
        recorded = result is not None and result.action_key == wanted
        if not recorded:
            result = actions.load(self._store.blobs, wanted)
        if result is None:
            return Miss(bound, "its inputs differ from last time" if said is not None else "no result yet")
        gone = absent(self._store, result)
        if target and gone:
            return Miss(bound, f"its output {gone[0]!r} is no longer in the store", filed=True)
        return Hit(bound, result, recorded, gone)


def bind(call: StageCall, results: Mapping[PlanKey, StageResult], store: Store) -> StageCall:
    """The call with anchors in place of those edges whose results are known.

    Raises
    ------
    StageError
        If a call upstream did not make the output that is asked for.
    """
    if not call.edges():
        return call
    inputs = {name: _bound_input(call, source, results, store) for name, source in call.inputs.items()}
    return replace(call, inputs=inputs)


def _bound_input(call: StageCall, source: Input, results: Mapping[PlanKey, StageResult], store: Store) -> Input:
    sources = tuple(
        _made(call, item, results[item.plan_key], store)
        if isinstance(item, Edge) and item.plan_key in results
        else item
        for item in source.sources
    )
    return replace(source, sources=sources)


def _made(call: StageCall, edge: Edge, result: StageResult, store: Store) -> AnchorId:
    outputs = all_outputs(store, result)
    if edge.output in outputs:
        return outputs[edge.output]
    made = ", ".join(sorted(outputs)) or "nothing"
    raise StageError(
        f"it takes the output {edge.output!r} of a call that made {made}",
        instance=call.instance,
        hint="name one of these, or let the upstream body return it",
    )


def all_outputs(store: Store, result: StageResult) -> Mapping[str, AnchorId]:
    """Outputs of a result, read from its index where they were too long to travel."""
    if result.index is None:
        return result.outputs
    from dsec.store import anchors

    listed: Mapping[str, AnchorId] = {
        name: ref.anchor_id for name, ref in anchors.get(store.blobs, result.index)["outputs"].items()
    }
    return listed


def absent(store: Store, result: StageResult) -> tuple[str, ...]:
    """Outputs of a result that the store can't give, by existence and size."""
    return tuple(
        name
        for name, anchor_id in all_outputs(store, result).items()
        if not layout.present(store.blobs, anchor_id, result.sizes.get(name))
    )


def survey(frontier: Frontier, store: Store) -> Iterator[Verdict]:
    """What a run would do, call by call in plan order, without doing it.

    A call behind one that would run is said to run too, though it may turn out a hit once its inputs are there.
    """
    resolver = Resolver(store)
    results: dict[PlanKey, StageResult] = {}
    while calls := frontier.take(BATCH):
        resolver.prepare(calls)
        for call in calls:
            facts = frontier.facts(call.plan_key)
            found = resolver.resolve(call, results, target=facts.target, refresh=facts.cache == "refresh")
            if isinstance(found, Hit):
                results[call.plan_key] = found.result
            frontier.done(call.plan_key, found.result if isinstance(found, Hit) else None)
            yield _verdict(found, facts.recipe)
        for key in frontier.retired():
            results.pop(key, None)


def _verdict(found: Resolution, recipe: Recipe) -> Verdict:
    match found:
        case Hit(call):
            return Verdict(call, False, "", recipe)
        case Miss(call, reason):
            return Verdict(call, True, reason, recipe)
        case Waits(call, needs):
            return Verdict(call, True, f"{len(needs)} of the calls it needs would run", recipe)
