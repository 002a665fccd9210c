"""The one function that crosses to workers. The scheduler unpickles it, so at its top it imports next to nothing.

It takes text and gives text: a call, where it runs, and the results of the calls before it; nothing else crosses Dask.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsec.core.stage import StageCall, StageResult
    from dsec.runtime.facts import WorkerFacts
    from dsec.store.root import Store

__all__ = ["WORKER_DEVICE", "WORKER_NAME", "reply_of", "run_call", "warm_up"]

WORKER_NAME = "DSEC_WORKER"
"""Variable that holds a worker's name; its nanny sets it."""
WORKER_DEVICE = "DSEC_DEVICE"
"""Variable that holds the device of a worker's gpu slot, ``cpu`` where it is emulated."""
RECOVERY = "DSEC_RECOVERY_SECONDS"
"""Variable that says how old a recovery point may get; where they are cut never shows in a result."""


def run_call(call_json: str, errand_json: str, *upstream_json: str) -> str:
    """Run one call in this process.

    Parameters
    ----------
    call_json
        A `StageCall`.
    errand_json
        `dsec.engine.lower.errand`: store, project root, kind of slot.
    upstream_json
        What this function gave for the calls of `StageCall.edges`, each once.

    Returns
    -------
    str
        See `reply_of`.

    Raises
    ------
    DsecError
        Whatever goes wrong, users' exceptions too, so that nothing has to be unpickled that the driver can't import.
    """
    from dsec.core.stage import StageCall
    from dsec.errors import DsecError, StageError

    call = StageCall.from_json(call_json)
    try:
        return _run(call, json.loads(errand_json), upstream_json)
    except DsecError:
        raise
    except (Exception, SystemExit) as error:
        raise _wrapped(call, error, StageError) from None


def warm_up() -> None:
    """Import what every call needs and find out this process' class, so that no call's deadline counts that.

    What fails here fails again in the first call, and is told with its place.
    """
    with contextlib.suppress(Exception):
        from dsec.runtime import stage  # noqa: F401

        _class_id(os.environ.get(WORKER_DEVICE, "cpu"))


def reply_of(result_json: str, ran: bool, seconds: float) -> str:
    """What a call gives: its result, whether its body ran, and seconds on the worker."""
    return json.dumps([result_json, ran, seconds], separators=(",", ":"))


def _run(call: StageCall, errand: dict[str, Any], upstream_json: tuple[str, ...]) -> str:
    if errand["root"] not in sys.path:
        sys.path.insert(0, errand["root"])
    from dsec.core.stage import StageResult
    from dsec.runtime import stage

    began = time.perf_counter()
    names = list(dict.fromkeys(edge.plan_key for edge in call.edges()))
    texts = (json.loads(text)[0] for text in upstream_json)
    upstream = {str(key): StageResult.from_json(text) for key, text in zip(names, texts, strict=True)}
    store = _store(errand["store"], errand["durability"])
    facts = _facts(errand["kind"], errand["run_id"])
    result = stage.run_stage(call, upstream, store, facts, refresh=errand["refresh"])
    result, ran = _told_apart(result, store, errand["run_id"])
    return reply_of(result.to_json(), ran, time.perf_counter() - began)


def _told_apart(result: StageResult, store: Store, run_id: str) -> tuple[StageResult, bool]:
    """The result as filed, and whether this run made it: also if its first answer was lost with its worker."""
    if "cutoff" not in result.cost:
        return result, True
    from dsec.core.stage import replace
    from dsec.store import actions

    entry = actions.read(store.blobs, result.action_key)
    ours = entry is not None and bool(run_id) and entry.produced_by.get("run") == run_id
    return replace(result, cost={name: value for name, value in result.cost.items() if name != "cutoff"}), ours


@functools.lru_cache(maxsize=4)
def _store(path: str, durability: str) -> Store:
    from typing import cast

    from dsec.store import root
    from dsec.store.blobs import Durability

    return root.open_store(path, create=False, durability=cast(Durability, durability))


@functools.lru_cache(maxsize=8)
def _facts(kind: str, run_id: str) -> WorkerFacts:
    from dsec.runtime.facts import RECOVERY_SECONDS, WorkerFacts

    device = _device(kind)
    name = os.environ.get(WORKER_NAME, f"process-{os.getpid()}")
    every = float(os.environ.get(RECOVERY, RECOVERY_SECONDS))
    return WorkerFacts(kind, device, name, _class_id(device), run_id, every)


def _device(kind: str) -> str:
    return os.environ.get(WORKER_DEVICE, "cpu") if kind == "gpu" else "cpu"


@functools.lru_cache(maxsize=2)
def _class_id(device: str) -> str:
    """The class of this process, probed once; refuses a process that was not started as level strict asks."""
    from dsec.runtime import numerics

    numerics.verify()
    return numerics.class_record(device).class_id


def _wrapped(call: StageCall, error: BaseException, kind: type) -> Exception:
    import traceback

    story = "".join(traceback.format_exception(error))
    wrapped: Exception = kind(f"{type(error).__name__}: {error}", instance=call.instance, story=story)
    return wrapped
