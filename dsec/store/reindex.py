"""Making the catalog anew from the objects, which are the truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from dsec.core.stage import ActionKey
from dsec.errors import CorruptObject
from dsec.store import actions, catalog, runs, tables, tags
from dsec.store.actions import ActionEntry
from dsec.store.catalog import Catalog
from dsec.store.root import Store
from dsec.store.runs import Call, Run

__all__ = ["Indexed", "reindex"]

_BATCH = 500
_MIRRORED = (tables.sessions, tables.runs, tables.calls, tables.plans, tables.actions, tables.tags)

T = TypeVar("T")


class Indexed(NamedTuple):
    """How much was found."""

    sessions: int
    runs: int
    actions: int
    tags: int


def reindex(store: Store, index: Catalog) -> Indexed:
    """Empty the catalog and fill it from the store; claims stay. One transaction: readers see the old or the new one.

    Calls of a run that was killed before its end are not told again: its results are, and its next process counts them.
    """
    with index.transaction() as connection:
        for table in _MIRRORED:
            connection.execute(sa.delete(table))
        sessions = list(runs.all_sessions(store))
        catalog.add_sessions(connection, sessions)
        found = sum(_add_entries(connection, batch) for batch in _batches(actions.entries(store.blobs)))
        every = runs.all_runs(store)
        catalog.add_runs(connection, every)
        for run in every:
            _add_calls(connection, store, run)
        tagged = list(tags.all_tags(store))
        catalog.add_tags(connection, tagged)
    return Indexed(len(sessions), len(every), found, len(tagged))


def _add_entries(connection: sa.Connection, batch: Sequence[ActionEntry]) -> int:
    catalog.add_entries(connection, batch)
    return len(batch)


def _add_calls(connection: sa.Connection, store: Store, run: Run) -> None:
    try:
        made = runs.calls(store, run) or []
    except CorruptObject:
        return
    for batch in _batches(made):
        catalog.add_brief_calls(connection, run.run_id, batch)
        _add_other_plans(connection, store, batch)


def _add_other_plans(connection: sa.Connection, store: Store, batch: Sequence[Call]) -> None:
    """Rows for plan_keys that led to an entry made under another plan_key."""
    known = sa.select(tables.plans.c.plan_key).where(tables.plans.c.plan_key.in_([call.plan_key for call in batch]))
    present = set(connection.execute(known).scalars())
    rows = []
    for plan_key, action_key in {call.plan_key: call.action_key for call in batch if call.action_key}.items():
        entry = None if plan_key in present else actions.read(store.blobs, ActionKey(action_key))
        if entry is not None:
            rows.append(catalog.plan_row(plan_key, entry))
    catalog.add_plans(connection, rows)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch
