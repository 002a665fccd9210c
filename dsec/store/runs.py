"""Runs and sessions as objects: what happened is read from here, with no database.

::

    sessions/<aa>/<session identity>.json        the seven fields
    runs/<identity, 16 hex>/<run_id>.json        start: create-only
    runs/<identity, 16 hex>/<run_id>.owner.json  the process that goes on with it, if not the first
    runs/<identity, 16 hex>/<run_id>.calls       its calls, written just before the end
    runs/<identity, 16 hex>/<run_id>.end.json    end: create-only; a run without one can go on

A run id is its start and six random characters, ``20260131-120000-7f3a9c``, so ids sort by time.
"""

from __future__ import annotations

import datetime
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dsec.core import canon, failpoint
from dsec.core.session import Session
from dsec.core.stage import ActionKey, PlanKey
from dsec.errors import AbsentError, CorruptObject, UsageError
from dsec.store import root, system
from dsec.store.root import Store

__all__ = [
    "Call",
    "End",
    "Run",
    "all_runs",
    "all_sessions",
    "calls",
    "finish_run",
    "get_run",
    "get_session",
    "put_session",
    "resume_run",
    "start_run",
    "unfinished",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a run, as little as `show` needs."""

    instance: str
    """Name a person sees, ``train@seed=0#17/learn``."""
    stage: str
    status: str
    """``hit``, ``ran``, ``failed`` or ``skipped``."""
    plan_key: PlanKey
    action_key: ActionKey | None = None
    """None where there is no result."""
    seconds: float = 0.0
    """Time its body took; 0 for a hit."""
    error: str | None = None
    """One line, for a failed call."""


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended."""

    status: str
    """``done``, ``failed`` or another word of the one who ran it."""
    ended: str
    """UTC, ISO 8601."""
    seconds: float
    """Time over all its processes."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """``calls``, ``hits``, ``ran``, ``failed``, ``skipped``."""
    error: str | None = None
    """One line, if it failed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a plan."""

    run_id: str
    identity: canon.Digest
    """Digest of expanded plan, parameters and selection (`keys.run_identity`)."""
    started: str
    """UTC, ISO 8601, milliseconds."""
    plan: str
    """Name of the plan."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth knowing later: path, parameters, selection, command line."""
    owner: system.Process | None = None
    """Process that drives it, or drove it last."""
    end: End | None = None
    """None while it runs, and for ever after a kill."""

    @property
    def abandoned(self) -> bool:
        """Whether it has no end and no living process of this host drives it."""
        return self.end is None and not (self.owner and system.is_alive(self.owner))


def start_run(
    store: Store,
    identity: canon.Digest,
    started: datetime.datetime,
    *,
    plan: str = "",
    facts: Mapping[str, Any] | None = None,
) -> Run:
    """Record that this process begins a run at ``started`` (aware)."""
    utc = started.astimezone(datetime.UTC)
    stamp = utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    while True:
        run_id = f"{utc:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"
        run = Run(run_id, identity, stamp, plan, facts or {}, system.this_process())
        if root.put_new_json(store, _name(run, ".json"), _start_fields(run)):
            failpoint.reached("store.runs.after-start")
            return run


def resume_run(store: Store, run: Run) -> Run:
    """Record that this process goes on with an unfinished run."""
    me = system.this_process()
    root.replace_json(store, _name(run, ".owner.json"), asdict(me))
    return replace(run, owner=me)


def finish_run(store: Store, run: Run, end: End, made: Iterable[Call] = ()) -> Run:
    """Record the calls of a run, then its end. An end that is there already stays, and is returned."""
    store.blobs.replace(_name(run, ".calls"), [_pack(_name(run, ".calls"), made)])
    failpoint.reached("store.runs.before-end")
    if root.put_new_json(store, _name(run, ".end.json"), asdict(end)):
        return replace(run, end=end)
    return replace(run, end=End(**root.get_json(store, _name(run, ".end.json"))))


def unfinished(store: Store, identity: canon.Digest) -> Run | None:
    """The newest run of this identity that was left without an end and that nobody on this host drives."""
    found = [run for run in _runs(store, f"runs/{identity[:16]}/") if run.identity == identity and run.abandoned]
    return max(found, key=_age, default=None)


def all_runs(store: Store) -> list[Run]:
    """Every run, oldest first; one whose start is damaged is in quarantine afterwards, and left out."""
    return sorted(_runs(store, "runs/"), key=_age)


def get_run(store: Store, prefix: str) -> Run:
    """The one run whose id, or whose id's last part, begins with ``prefix``.

    Raises
    ------
    UsageError
        If there is none, or more than one.
    """
    ids = {run_id: folder for folder, run_id in _run_ids(store, "runs/") if prefix and _matches(run_id, prefix)}
    if len(ids) == 1:
        ((run_id, folder),) = ids.items()
        return _read(store, folder, run_id)
    if not ids:
        raise UsageError(f"no run begins with {prefix!r}", hint="`dsec runs` lists them", where=str(store.path))
    shown = ", ".join(sorted(ids)[-5:])
    raise UsageError(f"{len(ids)} runs begin with {prefix!r}: {shown}", hint="give more of the id")


def calls(store: Store, run: Run) -> list[Call] | None:
    """Calls of a finished run, None for one that has not come to its end.

    Raises
    ------
    CorruptObject
        If the list is damaged; it is then in quarantine. The catalog's rows still tell.
    """
    name = _name(run, ".calls")
    try:
        return _unpack(name, store.blobs.get(name))
    except AbsentError:
        return None
    except CorruptObject:
        root.set_aside(store.blobs, name)
        raise


def put_session(store: Store, found_by: canon.Digest, session: Session) -> Session:
    """File a session under its identity; returns the one that is filed there, which the first writer made."""
    root.put_new_json(store, _session_name(found_by), session.to_json())
    return Session(**root.get_json(store, _session_name(found_by)))


def get_session(store: Store, found_by: canon.Digest) -> Session | None:
    """The session of an identity, None if it is new."""
    try:
        return Session(**root.get_json(store, _session_name(found_by)))
    except AbsentError:
        return None


def all_sessions(store: Store) -> Iterator[tuple[canon.Digest, Session]]:
    """Every session with the identity it is found by, sorted by that."""
    for name in store.blobs.names("sessions/"):
        found_by = canon.Digest(name.rpartition("/")[2].removesuffix(".json"))
        try:
            yield found_by, Session(**root.get_json(store, name))
        except CorruptObject:
            continue


def _name(run: Run, suffix: str) -> str:
    return f"runs/{run.identity[:16]}/{run.run_id}{suffix}"


def _session_name(found_by: canon.Digest) -> str:
    return f"sessions/{found_by[:2]}/{found_by}.json"


def _age(run: Run) -> tuple[str, str]:
    return run.started, run.run_id


def _matches(run_id: str, prefix: str) -> bool:
    return run_id.startswith(prefix) or run_id.rpartition("-")[2].startswith(prefix)


def _start_fields(run: Run) -> dict[str, Any]:
    return {name: value for name, value in asdict(run).items() if name != "end"}


def _run_ids(store: Store, prefix: str) -> Iterator[tuple[str, str]]:
    """Folder and id of each run."""
    for name in store.blobs.names(prefix):
        folder, _, file = name.rpartition("/")
        run_id = file.removesuffix(".json")
        if run_id != file and "." not in run_id:
            yield folder, run_id


def _runs(store: Store, prefix: str) -> Iterator[Run]:
    for folder, run_id in _run_ids(store, prefix):
        try:
            yield _read(store, folder, run_id)
        except (CorruptObject, AbsentError):  # the damaged object is in quarantine now, the other runs still show
            continue


def _read(store: Store, folder: str, run_id: str) -> Run:
    start = root.get_json(store, f"{folder}/{run_id}.json")
    owner = _maybe(store, f"{folder}/{run_id}.owner.json") or start["owner"]
    end = _maybe(store, f"{folder}/{run_id}.end.json")
    return Run(**{**start, "owner": owner and system.Process(**owner), "end": end and End(**end)})


def _maybe(store: Store, name: str) -> Any:
    try:
        return root.get_json(store, name)
    except AbsentError:
        return None


def _pack(name: str, made: Iterable[Call]) -> bytes:
    lines = "\n".join(json.dumps(_row(call), separators=(",", ":")) for call in made)
    packed = zlib.compress(lines.encode(), 1)
    return _calls_digest(name, packed) + b"\n" + packed


def _row(call: Call) -> list[Any]:
    return [call.instance, call.stage, call.status, call.plan_key, call.action_key, call.seconds, call.error]


def _unpack(name: str, raw: bytes) -> list[Call]:
    packed = raw[65:]
    if raw[:65] != _calls_digest(name, packed) + b"\n":
        raise CorruptObject(f"{name} is damaged: its bytes differ from its digest")
    lines = zlib.decompress(packed).decode()
    return [Call(*json.loads(line)) for line in lines.split("\n") if line]


def _calls_digest(name: str, packed: bytes) -> bytes:
    return canon.digest("dsec/calls/1", [name, packed]).encode()
