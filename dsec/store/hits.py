"""Reading the catalog without SQLAlchemy: what a cached rerun and `show` ask of it.

Read-only, by the standard library's sqlite3. The catalog is an index that may lag, be deleted or be unreadable, so
every function answers "nothing known" then; the objects decide.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CallRow", "Parts", "key_parts", "lookup", "run_calls"]


class Parts(NamedTuple):
    """What a plan_key was made of when it last ran."""

    plan_key: str
    inputs_digest: str
    action_key: str
    recipe: str
    steps: tuple[int, int] | None
    stream: str
    inputs: dict[str, list[str]]
    """Anchor ids by argument."""


class CallRow(NamedTuple):
    """One call of a run, as the catalog has it."""

    instance: str
    stage: str
    status: str
    plan_key: str
    action_key: str | None
    seconds: float
    outputs: dict[str, str]
    stats: dict[str, Any]
    cost: dict[str, Any]
    error: dict[str, Any] | None


def lookup(path: Path, plan_keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """What the catalog knows of these plan_keys: digest of the inputs they were made from, and the result as JSON.

    A plan_key it does not know is left out, which is no miss yet: the catalog lags behind ``actions/``.
    """
    query = (
        "SELECT plans.plan_key, plans.inputs_digest, actions.result FROM json_each(?) AS asked"
        " JOIN plans ON plans.plan_key = asked.value JOIN actions ON actions.action_key = plans.action_key"
    )
    return {key: (inputs, result) for key, inputs, result in _rows(path, query, json.dumps(list(plan_keys)))}


def key_parts(path: Path, plan_keys: Sequence[str]) -> dict[str, Parts]:
    """What these plan_keys were made of, as far as the catalog knows."""
    query = (
        "SELECT plans.plan_key, inputs_digest, action_key, recipe, steps, stream, inputs FROM json_each(?) AS asked"
        " JOIN plans ON plans.plan_key = asked.value"
    )
    rows = _rows(path, query, json.dumps(list(plan_keys)))
    return {row[0]: Parts._make([*row[:4], _steps(row[4]), row[5], json.loads(row[6])]) for row in rows}


def run_calls(path: Path, run_id: str) -> list[CallRow]:
    """Calls that the catalog has of a run, in the order of their names; all there is of a run that was killed."""
    query = (
        "SELECT instance, stage, status, plan_key, action_key, seconds, outputs, stats, cost, error"
        " FROM calls WHERE run_id = ? ORDER BY instance"
    )
    return [
        CallRow._make([*row[:6], *(json.loads(text) for text in row[6:9]), row[9] and json.loads(row[9])])
        for row in _rows(path, query, run_id)
    ]


def _rows(path: Path, query: str, argument: str) -> Iterator[tuple[Any, ...]]:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as found:
            yield from found.execute(query, (argument,)).fetchall()
    except sqlite3.Error:
        return


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, last = json.loads(text)
    return first, last
