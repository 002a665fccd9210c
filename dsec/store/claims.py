"""Single flight: a key is computed by one run at a time.

A claim is a row of the catalog. A claim whose process is gone breaks at once on the same host, and elsewhere once its
heartbeat is old. A claim broken too early costs work done twice, never a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from dsec.store import system, tables
from dsec.store.catalog import Catalog
from dsec.store.system import Process

__all__ = ["STALE_AFTER", "Claims", "Holder"]

STALE_AFTER = 120.0
"""Seconds without a heartbeat after which a claim of another host breaks. Beat every 30 s or less."""

_BATCH = 500


class Holder(NamedTuple):
    """Who computes a key."""

    run_id: str
    process: Process
    heartbeat: float
    """Seconds of the epoch, by the holder's clock."""


class Claims:
    """Claims of one run in this process.

    Parameters
    ----------
    catalog
        Where they are kept.
    run_id
        The run they are held for.
    process
        Who holds them; this process unless a test says otherwise.
    """

    def __init__(self, catalog: Catalog, run_id: str, process: Process | None = None) -> None:
        self._catalog = catalog
        self._run_id = run_id
        self._process = process or system.this_process()

    def claim(self, key: str, now: float) -> bool:
        """Whether this run may compute the key; ``now`` is seconds of the epoch."""
        return bool(self.claim_many([key], now))

    def claim_many(self, keys: Iterable[str], now: float) -> set[str]:
        """Those of the keys that this run may compute: free ones, its own, and ones whose holder is gone."""
        asked = sorted(set(keys))
        with self._catalog.transaction() as connection:
            taken = _taken(connection, asked, self._mine, now)
            won = [key for key in asked if key not in taken]
            _delete(connection, won)
            if won:
                connection.execute(sa.insert(tables.claims), [self._row(key, now) for key in won])
        return set(won)

    def holders(self, keys: Iterable[str]) -> dict[str, Holder]:
        """Who computes these keys, for those that are claimed at all."""
        with self._catalog.transaction() as connection:
            return dict(_holders(connection, sorted(set(keys))))

    def release(self, keys: Iterable[str]) -> None:
        """Give up these keys, as far as they are this run's."""
        with self._catalog.transaction() as connection:
            found = _holders(connection, sorted(set(keys)))
            _delete(connection, [key for key, holder in found if self._mine(holder)])

    def release_all(self) -> None:
        """Give up every key of this run in this process; do so however the run ends."""
        with self._catalog.transaction() as connection:
            connection.execute(sa.delete(tables.claims).where(*self._own()))

    def heartbeat(self, now: float) -> None:
        """Say to other hosts that this process still lives."""
        with self._catalog.transaction() as connection:
            connection.execute(sa.update(tables.claims).where(*self._own()).values(heartbeat=now))

    def _mine(self, holder: Holder) -> bool:
        return holder.run_id == self._run_id and holder.process == self._process

    def _own(self) -> Sequence[sa.ColumnElement[bool]]:
        columns, me = tables.claims.c, self._process
        return (
            columns.run_id == self._run_id,
            columns.host == me.host,
            columns.pid == me.pid,
            columns.process_started == me.started,
        )

    def _row(self, key: str, now: float) -> Mapping[str, object]:
        me = self._process
        return {
            "claimed": key,
            "run_id": self._run_id,
            "host": me.host,
            "pid": me.pid,
            "process_started": me.started,
            "heartbeat": now,
        }


def _taken(connection: sa.Connection, keys: list[str], mine: Callable[[Holder], bool], now: float) -> set[str]:
    alive: dict[Process, bool | None] = {}
    taken = set()
    for key, holder in _holders(connection, keys):
        if holder.process not in alive:
            alive[holder.process] = system.is_alive(holder.process)
        if not mine(holder) and _holds(holder, alive[holder.process], now):
            taken.add(key)
    return taken


def _holds(holder: Holder, alive: bool | None, now: float) -> bool:
    return now - holder.heartbeat < STALE_AFTER if alive is None else alive


def _holders(connection: sa.Connection, keys: list[str]) -> Iterator[tuple[str, Holder]]:
    for batch in _batches(keys):
        for row in connection.execute(sa.select(tables.claims).where(tables.claims.c.claimed.in_(batch))).all():
            yield row.claimed, Holder(row.run_id, Process(row.host, row.pid, row.process_started), row.heartbeat)


def _delete(connection: sa.Connection, keys: list[str]) -> None:
    for batch in _batches(keys):
        connection.execute(sa.delete(tables.claims).where(tables.claims.c.claimed.in_(batch)))


def _batches(keys: list[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while batch := list(islice(rest, _BATCH)):
        yield batch
