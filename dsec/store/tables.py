"""Tables of the catalog, and the numbered steps that lead to them.

A step, once released, is never edited: a change of the schema is a new step. The number of steps taken stands in
``PRAGMA user_version``.
"""

from __future__ import annotations

import sqlalchemy as sa

from dsec.errors import StoreError

__all__ = ["MIGRATIONS", "actions", "calls", "claims", "metadata", "migrate", "plans", "runs", "sessions", "tags"]

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            session_id TEXT NOT NULL PRIMARY KEY, found_by TEXT NOT NULL, agent_spec TEXT, env_spec TEXT,
            reward_fn_hash TEXT, seed TEXT NOT NULL, max_steps BIGINT, creation_timestamp TEXT NOT NULL)""",
        """CREATE TABLE runs (
            run_id TEXT NOT NULL PRIMARY KEY, identity TEXT NOT NULL, plan TEXT NOT NULL, started TEXT NOT NULL,
            facts TEXT NOT NULL, status TEXT, ended TEXT, seconds DOUBLE PRECISION, counts TEXT NOT NULL,
            error TEXT)""",
        """CREATE TABLE calls (
            run_id TEXT NOT NULL, instance TEXT NOT NULL, stage TEXT NOT NULL, plan_key TEXT NOT NULL, action_key TEXT,
            status TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL, outputs TEXT NOT NULL, stats TEXT NOT NULL,
            cost TEXT NOT NULL, error TEXT, PRIMARY KEY (run_id, instance))""",
        """CREATE TABLE plans (
            plan_key TEXT NOT NULL PRIMARY KEY, inputs_digest TEXT NOT NULL, action_key TEXT NOT NULL,
            recipe TEXT NOT NULL, steps TEXT, stream TEXT NOT NULL, inputs TEXT NOT NULL)""",
        "CREATE TABLE actions (action_key TEXT NOT NULL PRIMARY KEY, result TEXT NOT NULL)",
        """CREATE TABLE tags (
            anchor_id TEXT NOT NULL, tag TEXT NOT NULL, session_id TEXT NOT NULL, stage TEXT NOT NULL,
            step BIGINT NOT NULL, PRIMARY KEY (anchor_id, tag, session_id, stage, step))""",
        "CREATE INDEX tags_by_tag ON tags (tag, session_id, step)",
        """CREATE TABLE claims (
            claimed TEXT NOT NULL PRIMARY KEY, run_id TEXT NOT NULL, host TEXT NOT NULL, pid BIGINT NOT NULL,
            process_started BIGINT NOT NULL, heartbeat DOUBLE PRECISION NOT NULL)""",
        "CREATE INDEX claims_by_run ON claims (run_id)",
    ),
)
"""Statements of each step; SQLite and PostgreSQL take them alike."""

metadata = sa.MetaData()


def _text(name: str, *, key: bool = False, optional: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=optional)


def _whole(name: str, *, key: bool = False, optional: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=optional, autoincrement=False)


def _real(name: str, *, optional: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=optional)


sessions = sa.Table(
    "sessions",
    metadata,
    _text("session_id", key=True),
    _text("found_by"),
    _text("agent_spec", optional=True),
    _text("env_spec", optional=True),
    _text("reward_fn_hash", optional=True),
    _text("seed"),
    _whole("max_steps", optional=True),
    _text("creation_timestamp"),
)
"""One row per session, the seven fields and the identity it is found by; a seed may exceed 64 bits, so it is text."""

runs = sa.Table(
    "runs",
    metadata,
    _text("run_id", key=True),
    _text("identity"),
    _text("plan"),
    _text("started"),
    _text("facts"),
    _text("status", optional=True),
    _text("ended", optional=True),
    _real("seconds", optional=True),
    _text("counts"),
    _text("error", optional=True),
)
"""One row per run; status, ended and seconds are null until its end."""

calls = sa.Table(
    "calls",
    metadata,
    _text("run_id", key=True),
    _text("instance", key=True),
    _text("stage"),
    _text("plan_key"),
    _text("action_key", optional=True),
    _text("status"),
    _real("seconds"),
    _text("outputs"),
    _text("stats"),
    _text("cost"),
    _text("error", optional=True),
)
"""One row per call of a run."""

plans = sa.Table(
    "plans",
    metadata,
    _text("plan_key", key=True),
    _text("inputs_digest"),
    _text("action_key"),
    _text("recipe"),
    _text("steps", optional=True),
    _text("stream"),
    _text("inputs"),
)
"""What each plan_key led to last, and the parts of its key."""

actions = sa.Table("actions", metadata, _text("action_key", key=True), _text("result"))
"""Results as JSON, mirrored from ``actions/``."""

tags = sa.Table(
    "tags",
    metadata,
    _text("anchor_id", key=True),
    _text("tag", key=True),
    _text("session_id", key=True),
    _text("stage", key=True),
    _whole("step", key=True),
)
"""Tags of anchors, mirrored from ``tags/``."""

claims = sa.Table(
    "claims",
    metadata,
    _text("claimed", key=True),
    _text("run_id"),
    _text("host"),
    _whole("pid"),
    _whole("process_started"),
    _real("heartbeat"),
)
"""Which run computes which key just now; the one table that is not mirrored from objects."""


def migrate(connection: sa.Connection) -> None:
    """Take the steps that this catalog has not taken yet.

    Raises
    ------
    StoreError
        If it has taken steps that this DSec does not know.
    """
    taken = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if taken > len(MIGRATIONS):
        where = connection.engine.url.database or ""
        hint = "upgrade DSec, or delete catalog.db, which is an index"
        raise StoreError(f"the catalog has schema {taken}, this DSec knows {len(MIGRATIONS)}", hint=hint, where=where)
    for step in MIGRATIONS[taken:]:
        for statement in step:
            connection.exec_driver_sql(statement)
    if taken < len(MIGRATIONS):
        connection.exec_driver_sql(f"PRAGMA user_version = {len(MIGRATIONS)}")
