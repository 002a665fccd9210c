"""Calls at a Dask cluster: sends what the driver says, and hands back what happened.

The driver's thread waits on one queue. Dask's own loop, in its thread, watches futures, gathers results in the batches
in which they arrive, and never blocks the driver: a result whose worker dies before it is gathered is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distributed import Client, Future
from distributed.scheduler import KilledWorker

from dsec.core.stage import PlanKey, StageResult, replace
from dsec.engine import lower, plugins, trampoline
from dsec.engine.borders import Done, Erred, Job, Killed, Outcry, Site
from dsec.store.root import Store

__all__ = ["DaskExecutor"]

_SETTLED = 0.25  # seconds after a death until all its calls are heard of, and its nanny if that ended the worker
_PATIENCE = 5.0  # seconds a busy scheduler may take to answer a question


class DaskExecutor:
    """Runs calls on one cluster, for one store.

    Parameters
    ----------
    address
        Of the scheduler.
    store
        Where results go.
    site
        Where workers find it.
    emulated
        Whether gpu slots have no device.
    run
        What a worker calls.
    """

    def __init__(
        self,
        address: str,
        store: Store,
        site: Site,
        *,
        emulated: bool,
        run: Callable[..., str] = trampoline.run_call,
    ) -> None:
        self.gave_up = False
        """Whether it was closed while calls were at the cluster."""
        self._store = store
        self._site = site
        self._emulated = emulated
        self._run = run
        self._inbox: queue.SimpleQueue[tuple[Any, Outcry]] = queue.SimpleQueue()
        self._futures: dict[PlanKey, Future] = {}
        self._names: dict[PlanKey, str] = {}
        self._keys: dict[str, PlanKey] = {}
        self._places: dict[PlanKey, str] = {}
        self._ended: set[str] = set()
        self._memory: dict[int, int] = {}
        self._casualties: defaultdict[str, set[PlanKey]] = defaultdict(set)  # by worker, whose address is its own
        self._gathering: dict[PlanKey, Future] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = Client(address, set_as_default=False, name="dsec")
        self._client.subscribe_topic(plugins.OUT_OF_MEMORY, self._hear_of_memory)

    def submit(self, batches: Sequence[Sequence[Job]]) -> None:
        """Send batches of links as one graph."""
        jobs = [self._travelling(job) for batch in batches for job in batch]
        if not jobs:
            return
        names = [self._name(job) for job in jobs]
        graph = lower.graph(jobs, self._names, self._site, self._run, emulated=self._emulated)
        futures = self._client.get(graph, names, sync=False, fifo_timeout="0s")
        watched = {job.call.plan_key: future for job, future in zip(jobs, futures, strict=True)}
        self._futures |= watched
        self._client.loop.add_callback(self._watch, watched)

    def recall(self, keys: Iterable[PlanKey]) -> None:
        """Forget these calls; nothing more is heard of them."""
        futures = [future for key in keys if (future := self._forget(key)) is not None]
        if futures:
            self._client.cancel(futures, force=True)

    def wait(self, timeout: float) -> list[Outcry]:
        """What happened, at the latest after ``timeout`` seconds; empty then."""
        heard: list[tuple[Any, Outcry]] = []
        try:
            heard.append(self._inbox.get(timeout=max(timeout, 0.0)))
            while True:
                heard.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        current = [outcry for future, outcry in heard if self._futures.get(outcry.key) is future]
        for outcry in current:
            self._forget(outcry.key)
        return current

    def running(self) -> Mapping[PlanKey, float]:
        """Seconds that calls have been running for, as far as the scheduler heard."""
        told = self._ask(plugins.executing, {})
        found = {self._keys[name]: place for name, place in told.items() if name in self._keys}
        self._places = {key: worker for key, (worker, _) in found.items()}
        return {key: seconds for key, (_, seconds) in found.items()}

    def restart_worker(self, key: PlanKey) -> None:
        """End the worker that was last heard to run this call."""
        worker = self._places.get(key)
        if worker is None or worker in self._ended:
            return
        self._ended.add(worker)
        self._client.loop.add_callback(self._restart, worker)

    def workers(self) -> int:
        """Workers that are connected, 0 if the scheduler does not answer."""
        return int(self._ask(plugins.worker_count, 0))

    def close(self) -> None:
        """Forget all calls and leave the scheduler."""
        self.gave_up = self.gave_up or bool(self._futures)
        with contextlib.suppress(Exception):  # the scheduler may be gone, and with it all there is to forget
            self.recall(list(self._futures))
        self._client.close(timeout=2)

    def _ask(self, question: Callable[..., Any], otherwise: Any) -> Any:
        try:
            return self._client.sync(
                self._client.run_on_scheduler, question, asynchronous=False, callback_timeout=_PATIENCE
            )
        except (TimeoutError, OSError, RuntimeError, ValueError):
            return otherwise

    def _travelling(self, job: Job) -> Job:
        return replace(job, call=lower.compact(self._store, job.call))

    def _name(self, job: Job) -> str:
        key = job.call.plan_key
        name = self._names[key] = lower.dask_key(self._store, job.call)
        self._keys[name] = key
        return name

    def _forget(self, key: PlanKey) -> Future | None:
        self._keys.pop(self._names.pop(key, ""), None)
        return self._futures.pop(key, None)

    # On Dask's loop ---------------------------------------------------------------------------------------------------

    def _watch(self, futures: Mapping[PlanKey, Future]) -> None:
        for key, future in futures.items():
            task = asyncio.ensure_future(self._track(key, future))
            self._tasks.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._tasks.discard)

    async def _track(self, key: PlanKey, future: Future) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await future._state.wait()
        known = self._futures.get(key)
        if known is None or known is not future:
            return
        if future.status != "finished":
            await self._tell_error(key, future)
            return
        if not self._gathering:
            asyncio.get_running_loop().call_soon(self._begin_gathering)
        self._gathering[key] = future

    def _begin_gathering(self) -> None:
        futures, self._gathering = self._gathering, {}
        task = asyncio.ensure_future(self._collect(futures))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, futures: Mapping[PlanKey, Future]) -> None:
        try:
            texts = await self._client.gather(dict(futures), errors="skip", direct=True, asynchronous=True)
        except Exception as error:  # whatever it was, these calls must be heard of
            for key, future in futures.items():
                self._inbox.put((future, Erred(key, error, cancelled=True)))
            return
        for key, text in texts.items():
            if text is None:
                await self._tell_error(key, futures[key])
            else:
                result, ran, seconds = json.loads(text)
                self._inbox.put((futures[key], Done(key, StageResult.from_json(result), ran, seconds)))

    async def _tell_error(self, key: PlanKey, future: Future) -> None:
        error: BaseException | None = future._state.exception
        if isinstance(error, KilledWorker):
            behind = error.task != future.key
            killed = await self._death(key, error, behind=behind)
            self._inbox.put((future, Erred(key, error, killed, cancelled=behind)))
        else:
            cancelled = future.status != "error" or error is None
            error = error or RuntimeError(f"Dask says {future.status}")
            self._inbox.put((future, Erred(key, error, cancelled=cancelled)))

    async def _death(self, key: PlanKey, error: KilledWorker, *, behind: bool) -> Killed:
        worker = error.last_worker
        if not behind:
            self._casualties[worker.address].add(key)
        await asyncio.sleep(_SETTLED)
        executing = frozenset(self._keys[str(name)] for name in worker.executing if str(name) in self._keys)
        return Killed(
            worker.address,
            executing,
            ours=worker.address in self._ended,
            sole=len(self._casualties[worker.address]) == 1,
            rss=self._memory.get(worker.pid, 0),
            limit=int(worker.memory_limit or 0),
        )

    def _hear_of_memory(self, event: tuple[float, Mapping[str, Any]]) -> None:
        self._memory[int(event[1]["pid"])] = int(event[1]["rss"])

    async def _restart(self, worker: str) -> None:
        with contextlib.suppress(Exception):  # a worker that died by itself meanwhile is as good
            await self._client.run_on_scheduler(plugins.end_worker, worker=worker)
