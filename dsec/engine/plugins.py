"""What DSec runs inside Dask's own processes: functions for the scheduler, and the nanny that starts its workers."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from multiprocessing import spawn
from typing import Any

from distributed import Nanny
from distributed.core import rpc
from distributed.metrics import time
from distributed.scheduler import heartbeat_interval

__all__ = ["OUT_OF_MEMORY", "Host", "class_records", "end_worker", "executing", "spare_main", "worker_count"]

OUT_OF_MEMORY = "worker-restart-memory"
"""Topic on which a nanny says that it ended its worker for its memory: worker, pid, rss."""


_WORKER_PROCESS = "Dask Worker process"
_SLOW = 0.5  # seconds by which a busy worker's heartbeat may be late


def executing(dask_scheduler: Any) -> dict[str, tuple[str, float]]:
    """Dask key -> worker and seconds, of all that runs, by the workers' last heartbeats and the time since then.

    A call that holds Python's lock keeps its worker from saying anything. So what a silent worker runs is what it ran
    when it was heard last, or else the first call that waits there.
    """
    every = heartbeat_interval(len(dask_scheduler.workers))
    found: dict[str, tuple[str, float]] = {}
    for ws in dask_scheduler.workers.values():
        silent = time() - ws.last_seen
        running = {ts: seconds for ts, seconds in ws.executing.items() if ts in ws.processing}
        if silent > 2 * every + _SLOW:
            first = {min(ws.processing, key=_rank): -every} if ws.processing else {}
            running = {ts: seconds + silent for ts, seconds in (running or first).items()}
        found |= {ts.key: (ws.address, float(seconds)) for ts, seconds in running.items()}
    return found


def _rank(ts: Any) -> Any:
    return ts.priority


def class_records(dask_worker: Any) -> dict[str, dict[str, Any]]:
    """Record of the runtime class of a worker of DSec by kind; empty for other workers."""
    from dsec.engine import trampoline
    from dsec.runtime import numerics

    kinds = [kind for kind in ("cpu", "gpu") if kind in dask_worker.state.total_resources]
    gpu = os.environ.get(trampoline.WORKER_DEVICE, "cpu")
    devices = {kind: gpu if kind == "gpu" else "cpu" for kind in kinds}
    if kinds:
        numerics.verify()
    return {kind: numerics.class_record(device).to_json() for kind, device in devices.items()}


async def end_worker(dask_scheduler: Any, worker: str) -> None:
    """End a worker by its nanny, which starts another; a hung one gets half a second to leave by itself."""
    nanny = dask_scheduler.workers[worker].nanny
    async with rpc(nanny, connection_args=dask_scheduler.connection_args) as remote:
        await remote.kill(timeout=0.5, reason="deadline")


def worker_count(dask_scheduler: Any) -> int:
    """Workers that are connected."""
    return len(dask_scheduler.workers)


def spare_main() -> None:
    """Let worker processes start without running the script that started the cluster.

    Python would run it again in each of them: a script without a guard would start clusters in its workers, and one
    that imports much would import it everywhere. Workers never need it, since bodies live in modules.
    """
    plain = spawn.get_preparation_data
    if getattr(plain, "spares_main", False):
        return

    @functools.wraps(plain)
    def prepared(name: str) -> dict[str, Any]:
        found = dict(plain(name))
        if name.startswith(_WORKER_PROCESS):
            for key in ("init_main_from_name", "init_main_from_path"):
                found.pop(key, None)
        return found

    prepared.spares_main = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = prepared


class Host(Nanny):  # type: ignore[misc]
    """A nanny whose worker has its variables before its interpreter starts.

    Dask would set PYTHONHASHSEED to a number of its own where 0 is asked for, and the variables of numerics only after
    modules were imported.

    Parameters
    ----------
    variables
        Set before the worker's process starts, the same for all workers of a cluster: Dask sets them in its own
        process, where nannies start theirs side by side.
    own
        Set by the process itself before it imports anything of ours.
    """

    def __init__(self, *args: Any, variables: Mapping[str, str], own: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.pre_spawn_env = self.pre_spawn_env | dict(variables)  # type: ignore[has-type]
        self.env = self.env | self.pre_spawn_env | dict(own)  # type: ignore[has-type]

    def end_at_once(self) -> None:
        """Kill the worker without asking; what it wrote is whole, since every write of the store is."""
        self.auto_restart = False
        if self.process is not None and self.process.pid is not None:
            try:
                os.kill(self.process.pid, 9)
            except ProcessLookupError:
                return
