"""Clusters: a local one on the loopback, and connections to those that run elsewhere.

Everything binds to 127.0.0.1 by name; Dask's own default is every interface. State lives in the store, so no worker
holds anything that can't be lost, and ending one abruptly is always safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import multiprocessing
import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import dask
from distributed import Client, Scheduler, SpecCluster

from dsec.engine import host, lower, plugins, trampoline
from dsec.engine.borders import Capacity, Offer, Site
from dsec.engine.shape import ClusterShape, Process
from dsec.engine.submit import DaskExecutor
from dsec.errors import ClassMismatch, ClusterError, UsageError
from dsec.store.root import Store

__all__ = ["CONFIG", "LocalCluster", "RemoteCluster", "connect", "run_worker"]

START_ATTEMPTS = 3
"""Times that a local cluster is tried to be started: a worker may be killed while it starts."""
LOOPBACK = "127.0.0.1"
DASHBOARD_PORT = 8787
"""Where people look for Dask's dashboard; another port is taken if this one is in use."""

CONFIG: Mapping[str, Any] = {
    # Each death is the Window's to judge; Dask would hand the queue of a dead worker to the next one to be killed.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-ttl": "15 minutes",
    "distributed.scheduler.no-workers-timeout": None,  # the driver has its own, which ends in a resumable state
    "distributed.deploy.lost-worker-timeout": "24 hours",  # at 15 s, repeated kills lose all nannies for good
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 1.0,
    "distributed.comm.timeouts.connect": "5s",  # to ask a worker that died for a result must not take 30 s
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "optimization.fuse.active": False,
}
"""Dask's settings under DSec."""


class LocalCluster:
    """Scheduler and worker processes of this machine, on the loopback; a context that ends them.

    Parameters
    ----------
    shape
        Counts and limits.
    root
        Project root, on the import path of every worker.
    variables
        Environment of the workers before they import anything, `dsec.runtime.numerics.VARIABLES`.
    run
        What a worker calls.
    """

    def __init__(
        self,
        shape: ClusterShape,
        root: Path,
        variables: Mapping[str, str],
        run: Callable[..., str] = trampoline.run_call,
    ) -> None:
        _refuse_while_importing()
        self.shape = shape
        self.capacity: Capacity = shape.capacity()
        """What it can hold."""
        self._root = root
        self._variables = variables
        self._run = run
        self._limit = shape.worker_memory()
        self._scratch = Path(tempfile.mkdtemp(prefix="dsec-"))
        self._environment = dict(os.environ)  # Dask sets the workers' variables in this process, too
        self._executors: list[DaskExecutor] = []
        self._config = dask.config.set(dict(CONFIG))
        _quiet()
        self._dask = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Of the scheduler."""
        return str(self._dask.scheduler_address)

    @property
    def dashboard(self) -> str:
        """Address of the dashboard's first page."""
        port = self._dask.scheduler.services["dashboard"].port if self._dask.scheduler.services else 0
        return f"http://{LOOPBACK}:{port}/status" if port else ""

    @property
    def pids(self) -> tuple[int, ...]:
        """Worker processes."""
        return tuple(nanny.pid for nanny in self._dask.workers.values() if nanny.pid is not None)

    def allow(self, memory: int) -> None:
        """Let a worker hold as many bytes as one call asks for; the Window keeps the sum below the host's."""
        if self.shape.memory is None and memory > self._limit:
            self._limit = memory
            for nanny in self._dask.workers.values():
                nanny.memory_manager.memory_limit = memory

    def executor(self, store: Store, site: Site) -> DaskExecutor:
        """A way to run calls on it."""
        emulated = all(offer.emulated for offer in self.capacity.offers if offer.kind == "gpu")
        self._executors.append(DaskExecutor(self.address, store, site, emulated=emulated, run=self._run))
        return self._executors[-1]

    def remake(self) -> bool:
        """Make scheduler and workers anew."""
        self._end(at_once=True)
        self._dask = self._start()
        return True

    def close(self) -> None:
        """End all processes, at once if what they run was given up: what they wrote is whole in any case."""
        self._end(at_once=any(executor.gave_up for executor in self._executors))
        _restore(self._environment)
        self._config.__exit__(None, None, None)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self) -> SpecCluster:
        plugins.spare_main()
        failed: Exception | None = None
        for _ in range(START_ATTEMPTS):
            try:
                return self._attempt()
            except (RuntimeError, OSError) as error:
                failed = error
        told = f"{(failed and failed.__cause__) or failed}"
        raise ClusterError(f"the local cluster did not start: {told}", hint="its workers say why above") from failed

    def _attempt(self) -> SpecCluster:
        """A scheduler and workers; whatever was started is ended if one of them fails."""
        workers = {
            process.name: {"cls": plugins.Host, "options": self._options(process)} for process in self.shape.processes()
        }
        scheduler = {"cls": Scheduler, "options": _scheduler_options()}
        return SpecCluster(scheduler=scheduler, workers=workers, silence_logs=False)

    def _options(self, process: Process) -> dict[str, Any]:
        return worker_options(
            process,
            root=self._root,
            variables=self._variables,
            labels=self.shape.labels,
            memory=self._limit,
            scratch=self._scratch,
        )

    def _end(self, at_once: bool) -> None:
        if at_once:
            for nanny in list(self._dask.workers.values()):
                nanny.end_at_once()
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            self._dask.close(timeout=10)


class RemoteCluster:
    """A scheduler that somebody else started, with workers started by `dsec worker`.

    Parameters
    ----------
    address
        ``tcp://127.0.0.1:8786``.
    run
        What a worker calls.

    Raises
    ------
    ClusterError
        If it does not answer, has no workers, or would be talked to in the clear beyond this host.
    """

    def __init__(self, address: str, run: Callable[..., str] = trampoline.run_call) -> None:
        _refuse_clear_text(address)
        self.address = address
        self._run = run
        self._client = _connected(address)
        self.capacity: Capacity = _capacity(self._client.scheduler_info(n_workers=-1)["workers"])
        """What it can hold."""
        if not self.capacity.offers:
            self.close()
            raise ClusterError(f"{address} has no workers of DSec", hint=f"start some: dsec worker {address}")

    @property
    def dashboard(self) -> str:
        """Address of the dashboard, or empty."""
        return str(self._client.dashboard_link or "")

    def allow(self, memory: int) -> None:
        """Its workers' limits are those they were started with."""

    def executor(self, store: Store, site: Site) -> DaskExecutor:
        """A way to run calls on it."""
        emulated = all(offer.emulated for offer in self.capacity.offers if offer.kind == "gpu")
        return DaskExecutor(self.address, store, site, emulated=emulated, run=self._run)

    def remake(self) -> bool:
        """Its workers are not ours to make."""
        return False

    def class_records(self) -> dict[str, dict[str, Any]]:
        """Record of the runtime class by kind of worker, as JSON; asks one worker per kind and device.

        Raises
        ------
        ClassMismatch
            If workers of one kind are of different classes.
        """
        return class_records(self._client)

    def close(self) -> None:
        """Leave it; it goes on."""
        self._client.close(timeout=2)


def class_records(client: Client) -> dict[str, dict[str, Any]]:
    """Record of the runtime class by kind of worker, as its workers say it."""
    said: dict[str, dict[str, dict[str, Any]]] = {}
    for worker, answer in client.run(plugins.class_records).items():
        for kind, record in answer.items():
            said.setdefault(kind, {})[worker] = record
    for kind, records in said.items():
        ids = sorted({record["class_id"] for record in records.values()})
        if len(ids) > 1:
            raise ClassMismatch(
                f"its {kind} workers are of {len(ids)} runtime classes, {', '.join(i[:12] for i in ids)}",
                hint="a run needs one class per kind: use workers on equal processors with equal versions",
            )
    return {kind: next(iter(records.values())) for kind, records in sorted(said.items())}


def connect(address: str) -> RemoteCluster:
    """A cluster that runs already."""
    return RemoteCluster(address)


def run_worker(
    address: str,
    kind: str,
    *,
    root: Path,
    variables: Mapping[str, str],
    labels: tuple[str, ...] = (),
    memory: int | None = None,
) -> None:
    """Be a worker of a running scheduler until it or this process ends.

    Parameters
    ----------
    address
        Of the scheduler.
    kind
        ``cpu`` or ``gpu``.
    root
        Project root.
    variables
        Environment of the worker's process.
    labels
        What calls may ask for.
    memory
        Bytes it may hold; None is all of the host's.

    Raises
    ------
    ClusterError
        If the scheduler does not answer, or lies beyond this host.
    UsageError
        If there is no such kind.
    """
    if kind not in ("cpu", "gpu"):
        raise UsageError(f"a worker's kind is cpu or gpu, not {kind!r}", where="--kind")
    _refuse_clear_text(address)
    _connected(address).close()
    shape = ClusterShape(cpu=1) if kind == "cpu" else ClusterShape(gpu=1)
    process = shape.processes()[0]
    named = Process(f"{socket.gethostname()}-{os.getpid()}", process.kinds, process.device, process.visible)
    with dask.config.set(dict(CONFIG)), tempfile.TemporaryDirectory(prefix="dsec-") as scratch:
        options = worker_options(
            named,
            root=root,
            variables=variables,
            labels=labels,
            memory=memory or host.memory(),
            scratch=Path(scratch),
        )
        asyncio.run(_serve(address, options))


async def _serve(address: str, options: Mapping[str, Any]) -> None:
    async with plugins.Host(address, **options) as nanny:
        await nanny.finished()


def worker_options(
    process: Process,
    *,
    root: Path,
    variables: Mapping[str, str],
    labels: tuple[str, ...],
    memory: int,
    scratch: Path,
) -> dict[str, Any]:
    """Options of the nanny of one worker process."""
    resources = dict.fromkeys(process.kinds, 1.0) | {lower.LABEL + label: 1.0 for label in labels}
    if process.vram:
        resources["vram"] = float(process.vram)
    return {
        "name": process.name,
        "nthreads": 1,
        "host": LOOPBACK,
        "protocol": "tcp://",
        "dashboard": False,
        "dashboard_address": f"{LOOPBACK}:0",
        "resources": resources,
        "memory_limit": memory,
        "local_directory": str(scratch),
        "preload": ["dsec.engine.preload"],
        "variables": _environment(root, variables),
        "own": _own_environment(process),
    }


def _environment(root: Path, variables: Mapping[str, str]) -> dict[str, str]:
    package = str(Path(__file__).parents[2])
    path = [str(root), package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **variables,
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(part for part in path if part)),
        "DSEC_ROOT": str(root),
        "DASK_LOGGING__DISTRIBUTED": "critical",
    }


def _own_environment(process: Process) -> dict[str, str]:
    seen = {"CUDA_VISIBLE_DEVICES": process.visible} if process.visible else {}
    return {**seen, trampoline.WORKER_NAME: process.name, trampoline.WORKER_DEVICE: process.device}


def _restore(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _scheduler_options() -> dict[str, Any]:
    return {
        "host": LOOPBACK,
        "port": 0,
        "protocol": "tcp://",
        "dashboard": True,
        "dashboard_address": f"{LOOPBACK}:{DASHBOARD_PORT if _is_free(DASHBOARD_PORT) else 0}",
    }


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _quiet() -> None:
    """Deaths and failures are told by the driver, once and with their cause; Dask tells each several times."""
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Another cluster took the dashboard's port meanwhile; the address that is printed is the right one.
    warnings.filterwarnings("ignore", r"\s*Port \d+ is already in use", UserWarning)


def _refuse_while_importing() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "this script starts a cluster while a worker imports it",
            hint="put the call under: if __name__ == '__main__':",
        )


def _refuse_clear_text(address: str) -> None:
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme == "tls":
        raise ClusterError("TLS is not supported yet", where=address, hint="use a scheduler on this host")
    if not _is_loopback(parts.hostname or ""):
        raise ClusterError(
            "beyond this host a cluster needs TLS, which is not supported yet",
            where=address,
            hint="use a scheduler at 127.0.0.1, or leave out --scheduler",
        )


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _connected(address: str) -> Client:
    try:
        return Client(address, set_as_default=False, timeout=5, name="dsec")
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no scheduler answers: {error}",
            where=address,
            hint="is it running? `dask scheduler --host 127.0.0.1 --dashboard-address 127.0.0.1:8787`",
        ) from error


def _capacity(workers: Mapping[str, Mapping[str, Any]]) -> Capacity:
    """What the workers of DSec among these hold; others are left out."""
    ours = [worker for worker in workers.values() if {"cpu", "gpu"} & set(worker["resources"])]
    kinds: dict[str, str] = {}
    pools: dict[str, int] = {}
    offers: dict[Offer, int] = {}
    for worker in ours:
        has = worker["resources"]
        taken = [kind for kind in ("cpu", "gpu") if kind in has]
        pool = "+".join(taken)
        pools[pool] = pools.get(pool, 0) + 1
        labels = tuple(sorted(name.removeprefix(lower.LABEL) for name in has if name.startswith(lower.LABEL)))
        for kind in taken:
            kinds[kind] = pool
            vram = int(has.get("vram", 0)) if kind == "gpu" else 0
            offer = Offer(kind, 0, has[kind], vram, labels, kind == "gpu" and not vram)
            offers[offer] = offers.get(offer, 0) + 1
    limits = [int(worker["memory_limit"]) for worker in ours]
    counted = tuple(Offer(o.kind, n, o.gpu, o.vram, o.labels, o.emulated) for o, n in offers.items())
    cores = max(float(host.cores()), float(len(ours)))
    return Capacity(counted, pools, kinds, cores, sum(limits), float(host.cores()), max(limits, default=0))
