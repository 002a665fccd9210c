"""What runs did, out of the store's own objects; the catalog helps only where a run was killed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dsec.core import canon, decode
from dsec.core.session import Session
from dsec.core.stage import AnchorId
from dsec.errors import CorruptObject
from dsec.store import actions, hits, layout
from dsec.store import runs as records
from dsec.store.root import Store
from dsec.store.runs import Call, Run

__all__ = ["calls_of", "details", "status_of", "tables"]


def status_of(run: Run) -> str:
    """``done``, ``failed``, ``running``, or ``unfinished`` where the same command goes on."""
    if run.end is not None:
        return run.end.status
    return "unfinished" if run.abandoned else "running"


def calls_of(store: Store, run: Run) -> list[Call]:
    """Calls of a run, also of one that was killed as far as its catalog rows came."""
    try:
        made = records.calls(store, run)
    except CorruptObject:
        made = None
    if made is not None:
        return made
    return [
        Call(row.instance, row.stage, row.status, row.plan_key, row.action_key, row.seconds)  # type: ignore[arg-type]
        for row in hits.run_calls(store.catalog, run.run_id)
    ]


def details(store: Store, run: Run) -> dict[str, Any]:
    """A run with its sessions and instances, as ``dsec show RUN --json`` prints it."""
    counts = dict(run.end.counts) if run.end is not None else {}
    return {
        "run": run.run_id,
        "plan": run.plan,
        "status": status_of(run),
        "created": run.started,
        "seconds": run.end.seconds if run.end is not None else None,
        "counts": counts,
        "sessions": [session.to_json() for session in _sessions(store, run)],
        "instances": {call.instance: _instance(store, call) for call in calls_of(store, run)},
    }


def tables(store: Store, made: Iterable[Call]) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Instance, columns and rows of every output called ``table``; read without an array library."""
    for call in made:
        # Stages of a loop are many, and what they make on the way is not shown.
        shown = "." not in call.stage and call.action_key is not None and call.status in ("hit", "ran")
        entry = actions.load(store.blobs, call.action_key) if shown and call.action_key else None
        if entry is not None and "table" in entry.outputs:
            tree = plain(store, entry.outputs["table"])
            if isinstance(tree, dict) and {"columns", "rows"} <= tree.keys():
                yield call.instance, tree["columns"], tree["rows"]


def plain(store: Store, anchor_id: AnchorId) -> Any:
    """The tree of an anchor without arrays.

    Raises
    ------
    CorruptObject
        If it is damaged, or holds more than plain values.
    """
    name = layout.anchor_name(anchor_id)
    record = layout.parse(store.blobs.get(name), name, anchor_id)
    return decode.decode(record.manifest.structure, name)


def _instance(store: Store, call: Call) -> dict[str, Any]:
    found = actions.load(store.blobs, call.action_key) if call.action_key is not None else None
    shown: dict[str, Any] = {
        "status": call.status,
        "plan_key": call.plan_key,
        "action_key": call.action_key,
        "outputs": dict(found.outputs) if found else {},
        "stats": dict(found.stats) if found else {},
        "cost": dict(found.cost) if found else {},
    }
    if call.error is not None:
        shown["error"] = call.error
    return shown


def _sessions(store: Store, run: Run) -> Sequence[Session]:
    named = run.facts.get("sessions", [])
    found = (records.get_session(store, canon.Digest(name)) for name in named)
    return [session for session in found if session is not None]
