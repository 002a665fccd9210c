"""The index over the objects: sessions, runs, calls, plans, actions, tags, claims in one SQLite file.

Drivers write it, workers never open it. It may lag behind the objects, and it may be deleted: `reindex` makes it anew.
Every transaction begins with ``BEGIN IMMEDIATE``, so that two drivers wait for each other instead of failing half-way.
Reading without SQLAlchemy is `dsec.store.hits`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from dsec.core import canon, failpoint
from dsec.core.session import Session
from dsec.core.stage import AnchorId, StageCall, StageResult
from dsec.errors import StoreError, StoreFull
from dsec.store import actions, system, tables
from dsec.store.actions import ActionEntry
from dsec.store.runs import Call, Run
from dsec.store.tags import Tagged

__all__ = ["Catalog", "Recorded"]

_PATIENCE = 30.0
"""Seconds a transaction waits for another driver's."""
_REBUILD = "delete catalog.db: it is an index, and the objects beside it are all there"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call of a run with what came out, as the driver saw it."""

    call: StageCall
    """With anchor ids as inputs where they are known."""
    status: str
    """``hit``, ``ran``, ``failed`` or ``skipped``."""
    result: StageResult | None = None
    seconds: float = 0.0
    error: Mapping[str, Any] | None = None
    """``code``, ``message`` and whatever else is worth keeping of a failure."""

    def brief(self) -> Call:
        """The part that a run's own list of calls keeps."""
        key = self.result.action_key if self.result else None
        error = None if self.error is None else str(self.error.get("message", ""))
        call = self.call
        return Call(call.instance, call.stage, self.status, call.plan_key, key, self.seconds, error)


class Catalog:
    """An open catalog; close it, or use it as a context.

    Parameters
    ----------
    path
        The SQLite file, made if there is none.
    filesystem
        Tells the type of a path's file system; WAL is refused on `system.NETWORK_FILESYSTEMS`.

    Raises
    ------
    StoreError
        If it can't be opened, is damaged, or was made by a newer DSec.
    """

    def __init__(self, path: Path, *, filesystem: Callable[[Path], str] = system.filesystem) -> None:
        self.path = path
        kind = filesystem(path)
        self._wal = kind not in system.NETWORK_FILESYSTEMS
        self.notice = "" if self._wal else f"{path} lies on {kind}: one lock at a time instead of WAL, which is slower"
        """What a person should know about where it lies, or empty."""
        url = sa.URL.create("sqlite", database=str(path))
        options = {"timeout": _PATIENCE}
        self._engine = sa.create_engine(url, connect_args=options, poolclass=sa.pool.QueuePool, pool_size=1)
        sa.event.listen(self._engine, "connect", self._prepare)
        sa.event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        try:
            with self.transaction() as connection:
                tables.migrate(connection)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end, rolled back by an exception."""
        try:
            with self._engine.connect() as connection:
                yield connection
                failpoint.reached("store.catalog.before-commit")
                connection.commit()
            failpoint.reached("store.catalog.after-commit")
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise self._explained(error) from error

    def record_calls(self, run_id: str, rows: Sequence[Recorded]) -> None:
        """Add calls of a run, and what their keys were made of, in one transaction.

        The objects they name must have been synced before (`BlobStore.sync`).
        """
        with self.transaction() as connection:
            _upsert(connection, tables.calls, [_call_row(run_id, row) for row in rows])
            known = [actions.entry_of(row.call, row.result) for row in rows if row.result and not row.call.edges()]
            add_entries(connection, known)

    def record_entries(self, entries: Sequence[ActionEntry]) -> None:
        """Add action entries found in the store to the tables that hits are looked up in."""
        with self.transaction() as connection:
            add_entries(connection, entries)

    def record_run(self, run: Run) -> None:
        """Add a run, or bring it up to date; its end too once it has one."""
        with self.transaction() as connection:
            add_runs(connection, [run])

    def record_sessions(self, found: Iterable[tuple[canon.Digest, Session]]) -> None:
        """Add sessions with the identity each is found by."""
        with self.transaction() as connection:
            add_sessions(connection, found)

    def record_tags(self, tagged: Iterable[Tagged]) -> None:
        """Add tags; their objects (`dsec.store.tags.put_tag`) are the truth."""
        with self.transaction() as connection:
            add_tags(connection, tagged)

    def tagged(
        self,
        tags: Sequence[str] = (),
        *,
        session: str | None = None,
        stage: str | None = None,
        step: tuple[int, int] | None = None,
    ) -> list[Tagged]:
        """Anchors with any of these tags, of this session and stage, at a step within the inclusive range."""
        table = tables.tags
        query = sa.select(table).order_by(table.c.session_id, table.c.step, table.c.anchor_id, table.c.tag)
        if tags:
            query = query.where(table.c.tag.in_(list(tags)))
        if session is not None:
            query = query.where(table.c.session_id == session)
        if stage is not None:
            query = query.where(table.c.stage == stage)
        if step is not None:
            query = query.where(table.c.step.between(*step))
        with self.transaction() as connection:
            rows = connection.execute(query).all()
        return [
            Tagged(AnchorId(r.anchor_id), r.tag, r.session_id or None, r.stage or None, None if r.step < 0 else r.step)
            for r in rows
        ]

    def _prepare(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # so that BEGIN IMMEDIATE is ours to say
        wanted = "wal" if self._wal else "delete"
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != wanted:
            connection.execute(f"PRAGMA journal_mode={wanted}")
        connection.execute(f"PRAGMA synchronous={'NORMAL' if self._wal else 'FULL'}")

    def _explained(self, error: Exception) -> StoreError:
        text = str(getattr(error, "orig", error))
        where = str(self.path)
        if "full" in text:
            return StoreFull(f"no space for the catalog: {text}", where=where, hint="free space and run it again")
        if "locked" in text or "busy" in text:
            hint = "another process holds it; stop that one and run this again"
            return StoreError(f"the catalog stayed locked for {_PATIENCE:.0f} s", where=where, hint=hint)
        if "readonly" in text or "unable to open" in text:
            return StoreError(f"can't write the catalog: {text}", where=where, hint="its folder must be writable")
        return StoreError(f"the catalog can't be used: {text}", where=where, hint=_REBUILD)


def add_entries(connection: sa.Connection, entries: Sequence[ActionEntry]) -> None:
    """Rows of actions and plans for action entries."""
    _upsert(connection, tables.actions, [_action_row(entry.result) for entry in entries])
    _upsert(connection, tables.plans, [plan_row(entry.plan_key, entry) for entry in entries])


def add_runs(connection: sa.Connection, found: Iterable[Run]) -> None:
    """Rows of runs."""
    _upsert(connection, tables.runs, [_run_row(run) for run in found])


def add_sessions(connection: sa.Connection, found: Iterable[tuple[canon.Digest, Session]]) -> None:
    """Rows of sessions."""
    rows = [{"found_by": found_by, **session.to_json(), "seed": str(session.seed)} for found_by, session in found]
    _upsert(connection, tables.sessions, rows)


def add_tags(connection: sa.Connection, tagged: Iterable[Tagged]) -> None:
    """Rows of tags. Absent fields are stored as empty text and -1, since they are part of the primary key."""
    rows = [
        {
            "anchor_id": one.anchor_id,
            "tag": one.tag,
            "session_id": one.session_id or "",
            "stage": one.stage or "",
            "step": -1 if one.step is None else one.step,
        }
        for one in tagged
    ]
    _upsert(connection, tables.tags, rows)


def add_brief_calls(connection: sa.Connection, run_id: str, made: Iterable[Call]) -> None:
    """Rows of calls from a run's own list, without outputs and stats, which the action entries have."""
    _upsert(connection, tables.calls, [_brief_row(run_id, call) for call in made])


def add_plans(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows made by `plan_row`."""
    _upsert(connection, tables.plans, rows)


def plan_row(plan_key: str, entry: ActionEntry) -> dict[str, Any]:
    """What a plan_key was made of: the entry it led to."""
    return {
        "plan_key": plan_key,
        "inputs_digest": actions.inputs_digest(entry.inputs),
        "action_key": entry.result.action_key,
        "recipe": entry.recipe,
        "steps": None if entry.steps is None else _json(list(entry.steps)),
        "stream": entry.stream,
        "inputs": _json(dict(entry.inputs)),
    }


def _upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    insert = sqlite.insert(table)
    keys = [column.name for column in table.primary_key.columns]
    fresh = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys}
    statement = (
        insert.on_conflict_do_update(index_elements=keys, set_=fresh)
        if fresh
        else insert.on_conflict_do_nothing(index_elements=keys)
    )
    connection.execute(statement, rows)


def _call_row(run_id: str, row: Recorded) -> dict[str, Any]:
    result = row.result
    return {
        **_brief_row(run_id, row.brief()),
        "outputs": _json(dict(result.outputs) if result else {}),
        "stats": _json(dict(result.stats) if result else {}),
        "cost": _json(dict(result.cost) if result else {}),
        "error": None if row.error is None else _json(dict(row.error)),
    }


def _brief_row(run_id: str, call: Call) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "instance": call.instance,
        "stage": call.stage,
        "plan_key": call.plan_key,
        "action_key": call.action_key,
        "status": call.status,
        "seconds": call.seconds,
        "outputs": "{}",
        "stats": "{}",
        "cost": "{}",
        "error": None if call.error is None else _json({"message": call.error}),
    }


def _action_row(result: StageResult) -> dict[str, Any]:
    return {"action_key": result.action_key, "result": result.to_json()}


def _run_row(run: Run) -> dict[str, Any]:
    end = run.end
    return {
        "run_id": run.run_id,
        "identity": run.identity,
        "plan": run.plan,
        "started": run.started,
        "facts": _json(dict(run.facts)),
        "status": end.status if end else None,
        "ended": end.ended if end else None,
        "seconds": end.seconds if end else None,
        "counts": _json(dict(end.counts) if end else {}),
        "error": end.error if end else None,
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
