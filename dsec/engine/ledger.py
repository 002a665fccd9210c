"""What a run writes into the catalog: rows of its calls, and claims on the keys it computes.

Opened by the first call that has to run, so that a run that finds everything never imports SQLAlchemy. Rows go in
batches, each after one sync of the store, in a thread of their own: a slow disk delays the catalog, not the cluster.
The catalog may lag and may be lost; the action entries are the truth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsec.core.stage import PlanKey
from dsec.store.root import Store

if TYPE_CHECKING:
    from dsec.store.catalog import Recorded

__all__ = ["Ledger"]

ROWS = 100
"""Rows written at once."""
EVERY = 1.0
"""Seconds a row waits for others."""
BEAT = 30.0
"""Seconds between two signs of life to other hosts."""


class Ledger:
    """The catalog as one run writes it.

    Parameters
    ----------
    store
        Whose catalog.
    run_id
        The run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        from dsec.store.catalog import Catalog
        from dsec.store.claims import Claims

        self._store = store
        self._run_id = run_id
        self._catalog = Catalog(store.catalog)
        self._claims = Claims(self._catalog, run_id)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dsec-ledger")
        self._writing: Future[None] | None = None
        self._rows: list[Recorded] = []
        self._since = 0.0
        self._beat = 0.0
        self.written = 0
        """Rows given to the catalog."""

    def claim(self, keys: Iterable[PlanKey], wall: float) -> set[str]:
        """Those of these calls that nobody else computes; they are this run's now."""
        return self._claims.claim_many(keys, wall)

    def add(self, row: Recorded, now: float) -> None:
        """Add a row; it is written with the next ones."""
        if not self._rows:
            self._since = now
        self._rows.append(row)

    def tend(self, now: float, wall: float) -> None:
        """Write what is due. ``now`` is monotonic, ``wall`` seconds of the epoch.

        Raises
        ------
        StoreError
            If writing failed; StoreFull if there is no space.
        """
        if self._writing is not None and self._writing.done():
            finished, self._writing = self._writing, None
            finished.result()
        if now - self._beat >= BEAT:
            self._beat = now
            self._claims.heartbeat(wall)
        due = len(self._rows) >= ROWS or (self._rows and now - self._since >= EVERY)
        if due and self._writing is None:
            rows, self._rows = self._rows, []
            self._writing = self._writer.submit(self._write, rows)

    def close(self) -> None:
        """Write the rest, give up all claims.

        Raises
        ------
        StoreError
            If writing failed; claims are given up all the same.
        """
        with contextlib.ExitStack() as ending:
            ending.callback(self._catalog.close)
            ending.callback(self._claims.release_all)
            ending.callback(self._writer.shutdown)
            if self._writing is not None:
                self._writing.result()
            if self._rows:
                self._write(self._rows)
                self._rows = []

    def _write(self, rows: Sequence[Recorded]) -> None:
        self._store.blobs.sync()
        self._catalog.record_calls(self._run_id, rows)
        self._claims.release(row.call.plan_key for row in rows)
        self.written += len(rows)
