"""Between the Window and a cluster: sends what is admitted, hears what happened, keeps deadlines and claims.

What is heard of a link before the links it needs is kept until these have their results, or are recalled together
with it: Dask says of all links behind a failed one that they failed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsec.core.stage import PlanKey, replace
from dsec.engine import events, judge, moves, resolve, shape
from dsec.engine.borders import Cluster, Done, Erred, Executor, Job, Outcry, Site
from dsec.engine.ledger import Ledger
from dsec.engine.progress import Progress
from dsec.engine.timers import Timers
from dsec.engine.window import Window
from dsec.errors import DsecError, StageError, Stalled
from dsec.store import root as store_root
from dsec.store.root import Store

__all__ = ["Dispatch", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is waited for what, in seconds."""

    stalled: float = 120.0
    """Without progress and without workers, until the run stops."""
    remake: float = 20.0
    """Without workers, until a local cluster is made anew."""
    poll: float = 1.0
    """Between two looks at deadlines, claims of others, and workers."""


class Dispatch:
    """Calls on their way to a cluster and back.

    Parameters
    ----------
    progress
        What the calls are, and what their ends lead to.
    window
        What may go.
    store
        Where recipes go.
    site
        Where workers find things.
    start
        Starts the cluster.
    ledger
        Opens the catalog, when first called.
    limits
        Patience.
    report
        Hears events.
    """

    def __init__(
        self,
        progress: Progress,
        window: Window,
        *,
        store: Store,
        site: Site,
        start: Callable[[], Cluster],
        ledger: Callable[[], Ledger],
        limits: Limits,
        report: events.Report,
    ) -> None:
        self._progress = progress
        self._book = progress.book
        self._window = window
        self._store = store
        self._site = site
        self._start = start
        self._ledger = ledger
        self._limits = limits
        self._report = report
        self._cluster: Cluster | None = None
        self._executor: Executor | None = None
        self._timers = Timers()
        self._early: dict[PlanKey, Outcry] = {}
        self._deadlines: dict[PlanKey, float] = {}
        self._overdue: set[PlanKey] = set()
        self._elsewhere: dict[PlanKey, None] = {}
        self._recipes: set[str] = set()
        self._heard = self._looked = 0.0
        self._deserted: float | None = None
        self._remade: float | None = None

    @property
    def started(self) -> bool:
        """Whether there is a cluster."""
        return self._executor is not None

    @property
    def waits(self) -> bool:
        """Whether something will happen without anything being sent."""
        return bool(self._window.flying or self._timers or self._elsewhere)

    # Sending ----------------------------------------------------------------------------------------------------------

    def send(self, now: float, wall: float) -> None:
        """Send what the Window admits; the first time this starts the cluster."""
        if not self._window.wants:
            return
        executor = self._started(now)
        admitted = self._window.admit()
        keys = [key for batch in admitted for key in batch.keys]
        if not keys:
            return
        self._withhold(keys, self._ledger().claim(keys, wall))
        jobs = {key: job for key in keys if self._window.flies(key) and (job := self._job(key)) is not None}
        self.obey(now)
        batches = [[jobs[key] for key in batch.keys if key in jobs and self._window.flies(key)] for batch in admitted]
        executor.submit([batch for batch in batches if batch])
        sent = [job.call for batch in batches for job in batch]
        if sent:
            self._report(events.Submitted(dict(Counter(call.stage for call in sent))))

    def _started(self, now: float) -> Executor:
        if self._executor is None:
            self._cluster = self._start()
            self._check()
            self._executor = self._cluster.executor(self._store, self._site)
            self._heard = now
            self._window.on(moves.Resized(self._cluster.capacity))
            self._report(_up(self._cluster))
        return self._executor

    def _check(self) -> None:
        assert self._cluster is not None
        pages = [self._book[key] for key in self._book if self._book.is_open(key)]
        placements = {page.facts.placement: page.call.stage for page in reversed(pages)}
        for placement, stage in placements.items():
            shape.check([placement], self._cluster.capacity, where=stage)
        self._cluster.allow(max((placement.memory for placement in placements), default=0))

    def _withhold(self, keys: Sequence[PlanKey], granted: set[str]) -> None:
        for key in keys:
            if key not in granted and self._window.flies(key):
                call = self._book[key].call
                self._elsewhere[key] = None
                self._report(events.Elsewhere(call.instance, call.stage))
                self._progress.tell(moves.Withheld(key))

    def _job(self, key: PlanKey) -> Job | None:
        """A call as it travels; None if it failed before it could."""
        page = self._book[key]
        assert self._cluster is not None
        try:
            shape.check([page.facts.placement], self._cluster.capacity, where=page.call.stage)
            bound = resolve.bind(page.call, self._book.results, self._store)
        except StageError as error:
            self._progress.fail(key, error)
            return None
        if bound.recipe not in self._recipes:
            store_root.put_recipe(self._store, page.facts.recipe)
            self._recipes.add(bound.recipe)
        bound = replace(bound, attempt=page.sent)
        page.sent += 1
        if bound.timeout is not None:
            self._deadlines[key] = bound.timeout
        upstream = tuple(dict.fromkeys(edge.plan_key for edge in bound.edges()))
        facts = page.facts
        refresh = facts.cache == "refresh" or page.again
        return Job(bound, upstream, facts.placement, facts.priority, refresh)

    # Hearing ----------------------------------------------------------------------------------------------------------

    def listen(self, now: float, sleep: Callable[[float], None], *, busy: bool) -> None:
        """Wait until something happens, at most until the next look around; not at all if the driver is ``busy``."""
        wait = 0.0 if busy else self._timers.wait(now, self._limits.poll)
        if self._executor is None:
            sleep(wait)
            return
        for outcry in self._executor.wait(wait):
            self._early[outcry.key] = outcry

    def digest(self, now: float) -> None:
        """Draw the consequences of what was heard."""
        progressed = True
        while progressed:
            progressed = False
            for key in list(self._early):
                if key in self._early and self._is_next(key):
                    self._take_in(self._early.pop(key))
                    self.obey(now)
                    self._heard = now
                    progressed = True
        for key in self._timers.due(now):
            self._progress.tell(moves.Due(key))
        self.obey(now)

    def _is_next(self, key: PlanKey) -> bool:
        """Whether all that a call takes has a result, so that what is heard of it is its own."""
        return not self._book.is_open(key) or all(
            edge.plan_key in self._book.results for edge in self._book[key].call.edges()
        )

    def _take_in(self, outcry: Outcry) -> None:
        key = outcry.key
        self._deadlines.pop(key, None)
        overdue = key in self._overdue
        self._overdue.discard(key)
        if not self._book.is_open(key) or not self._window.flies(key):
            return
        if isinstance(outcry, Done):
            bound = resolve.bind(self._book[key].call, self._book.results, self._store)
            self._progress.settle(bound, outcry.result, ran=outcry.ran, seconds=outcry.seconds)
        else:
            self._judge(outcry, overdue)

    def _judge(self, erred: Erred, overdue: bool) -> None:
        key = erred.key
        call = self._book[key].call
        executing = erred.killed.executing if erred.killed else frozenset()
        flying = frozenset(other for other in executing if self._window.flies(other))
        found = judge.verdict(erred, call, flying, overdue=overdue)
        self._progress.blame(key, found.error)
        if found.cause == "fatal":
            raise found.error
        needs: frozenset[PlanKey] = frozenset()
        if found.cause == "input":
            needs = self._progress.lose_inputs(resolve.bind(call, self._book.results, self._store))
        if found.cause == "final" or (found.cause == "input" and not needs):
            self._progress.fail(key, found.error)
        else:
            self._progress.tell(moves.Failure(key, found.cause, found.certain, needs))

    def obey(self, now: float) -> None:
        """Do what the Window asked for."""
        others, self._progress.others = self._progress.others, []
        for command in others:
            match command:
                case moves.Recall(keys):
                    self._recall(keys)
                case moves.Retry(key, cause, attempt, wait):
                    call = self._book[key].call
                    why = self._progress.reason(key)
                    self._report(events.Retried(call.instance, call.stage, cause, attempt, wait, why))
                    self._timers.set(key, now + wait)

    def _recall(self, keys: Sequence[PlanKey]) -> None:
        for key in keys:
            self._early.pop(key, None)
            self._deadlines.pop(key, None)
        if self._executor is not None:
            self._executor.recall(keys)

    # Looking around ---------------------------------------------------------------------------------------------------

    def look_around(self, now: float, wall: float) -> None:
        """Keep deadlines, ask after calls that others compute, and see that there are workers; now and then.

        Raises
        ------
        Stalled
            If there have been no workers and no progress for too long.
        """
        if now - self._looked < self._limits.poll:
            return
        self._looked = now
        if self._deadlines:
            self._end_overdue()
        if self._elsewhere:
            self._ask_elsewhere(wall)
        if self._window.flying and now - self._heard > 2 * self._limits.poll:
            self._supervise(now)

    def _end_overdue(self) -> None:
        assert self._executor is not None
        for key, seconds in self._executor.running().items():
            if seconds > self._deadlines.get(key, seconds):
                self._overdue.add(key)
                self._executor.restart_worker(key)

    def _ask_elsewhere(self, wall: float) -> None:
        for key in [key for key in self._elsewhere if not self._book.is_open(key) or self._progress.look_again(key)]:
            self._elsewhere.pop(key)
        for granted in self._ledger().claim(self._elsewhere, wall):
            self._elsewhere.pop(PlanKey(granted))
            self._progress.tell(moves.Freed(PlanKey(granted)))

    def _supervise(self, now: float) -> None:
        assert self._executor is not None and self._cluster is not None
        if self._executor.workers():
            self._deserted = None
            return
        self._deserted = now if self._deserted is None else self._deserted
        if now - max(self._deserted, self._heard) > self._limits.stalled:
            raise Stalled(
                f"no workers and no progress for {self._limits.stalled:g} s",
                hint="what is done is kept; start workers and run the same command to go on",
            )
        if now - max(self._deserted, self._remade or 0.0) > self._limits.remake:
            self._remade = now
            self._remake(self._cluster)

    def _remake(self, cluster: Cluster) -> None:
        assert self._executor is not None
        if not cluster.remake():
            return
        flying = [key for key in self._book if self._window.flies(key)]
        self._report(events.Recovering(len(flying)))
        self._executor.close()
        self._executor = cluster.executor(self._store, self._site)
        self._early.clear()
        self._deadlines.clear()
        for key in flying:
            self._progress.tell(moves.Failure(key, "innocent"))
        self._progress.others.clear()

    def close(self) -> None:
        """Forget what is at the cluster."""
        if self._executor is not None:
            with contextlib.suppress(DsecError):
                self._executor.close()


def _up(cluster: Cluster) -> events.ClusterUp:
    offers = cluster.capacity.offers
    workers: Counter[str] = Counter()
    for offer in offers:
        workers[offer.kind] += offer.slots
    return events.ClusterUp(cluster.dashboard, workers, any(offer.emulated for offer in offers))
