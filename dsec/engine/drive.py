"""Driving a plan to its end: take calls, look them up, send what has to run, deal with what comes back.

One loop on one thread. `Progress` knows the calls, `Window` decides what goes when, `Dispatch` talks to the cluster.
No Dask is imported here: a run that finds all its results never starts a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsec.engine import events, moves
from dsec.engine.borders import Cluster, Frontier, Site
from dsec.engine.dispatch import Dispatch, Limits
from dsec.engine.ledger import Ledger
from dsec.engine.progress import Progress
from dsec.engine.window import Window
from dsec.errors import DsecError, Interrupted, Stalled
from dsec.store.root import Store
from dsec.store.runs import Call

__all__ = ["Clocks", "Limits", "Options", "Outcome", "drive"]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The driver's clocks; tests bring their own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # noqa: TID251 - claims of different hosts are compared
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is driven; nothing here changes what comes out."""

    window: moves.Settings = field(default_factory=moves.Settings)
    limits: Limits = field(default_factory=Limits)
    clocks: Clocks = field(default_factory=Clocks)
    fail_fast: bool = False
    """Whether nothing new starts after the first failure."""
    durability: str = "group"
    """Of what workers write."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    calls: int
    """Distinct calls: hits + ran + failed + skipped, and those that were open when it stopped."""
    hits: int
    ran: int
    failed: int
    skipped: int
    seconds: float
    errors: tuple[DsecError, ...]
    """Of failed calls, in the order in which they failed."""
    stopped: DsecError | None
    """What ended the run early: a full disk, no workers, the user; None if all was done that could be."""
    cluster: bool
    """Whether there was a cluster."""
    rows: Sequence[Call] = field(repr=False, default=())
    """What happened to each call, in the order in which it was known."""


def drive(
    frontier: Frontier,
    store: Store,
    *,
    cluster: Callable[[], Cluster],
    root: Path,
    run_id: str,
    report: events.Report = events.ignore,
    options: Options | None = None,
) -> Outcome:
    """Run a plan to its end, or as far as it goes.

    Parameters
    ----------
    frontier
        The plan.
    store
        Where results are and go.
    cluster
        Starts the cluster; called when the first call has to run. Whoever made it closes it.
    root
        Project root.
    run_id
        Names the run in the catalog.
    report
        Hears every event.
    options
        Everything that has a default.

    Returns
    -------
    Outcome
        Also of a run that stopped early; only a fault of DSec itself is raised.
    """
    options = options or Options()
    site = Site(str(store.path), str(root), options.durability, run_id)
    clocks = options.clocks
    opened = _Opened(store, run_id)
    gate = Window(options.window)
    progress = Progress(frontier, store, gate, ledger=opened.ledger, report=report, clock=clocks.monotonic)
    dispatch = Dispatch(
        progress,
        gate,
        store=store,
        site=site,
        start=cluster,
        ledger=opened.ledger,
        limits=options.limits,
        report=report,
    )
    began = clocks.monotonic()
    stopped: DsecError | None = None
    try:
        _Loop(frontier, progress, dispatch, gate, opened, clocks).run(options.fail_fast)
    except KeyboardInterrupt:
        stopped = Interrupted("stopped by the user", hint="what is done is kept; run the same command to go on")
    except DsecError as error:
        stopped = error
    trouble = _end(dispatch, opened)
    return _outcome(progress, clocks.monotonic() - began, stopped or trouble, dispatch.started)


def _end(dispatch: Dispatch, opened: _Opened) -> DsecError | None:
    """Let go of everything; what went wrong over that."""
    dispatch.close()
    try:
        opened.close()
    except DsecError as error:
        return error
    return None


def _outcome(progress: Progress, seconds: float, stopped: DsecError | None, cluster: bool) -> Outcome:
    n = progress.counts
    return Outcome(
        n["calls"],
        n["hit"],
        n["ran"],
        n["failed"],
        n["skipped"],
        seconds,
        tuple(progress.errors),
        stopped,
        cluster,
        progress.rows,
    )


class _Opened:
    """The catalog, opened by whoever first has something to write."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._ledger: Ledger | None = None

    def ledger(self) -> Ledger:
        """The catalog for writing."""
        if self._ledger is None:
            self._ledger = Ledger(self._store, self._run_id)
        return self._ledger

    def tend(self, now: float, wall: float) -> None:
        """Write what is due."""
        if self._ledger is not None:
            self._ledger.tend(now, wall)

    def close(self) -> None:
        """Write the rest."""
        if self._ledger is not None:
            self._ledger.close()


@dataclass(frozen=True, slots=True)
class _Loop:
    """The one loop."""

    frontier: Frontier
    progress: Progress
    dispatch: Dispatch
    window: Window
    opened: _Opened
    clocks: Clocks

    def run(self, fail_fast: bool) -> None:
        """Until nothing is left to do."""
        while True:
            stopping = fail_fast and bool(self.progress.errors)
            fed = not stopping and self.progress.feed()
            if not stopping:
                self.dispatch.send(self.clocks.monotonic(), self.clocks.wall())
            if self.window.flying or (self.dispatch.waits and not stopping):
                self._listen(busy=fed)
            elif stopping or not (fed or self.window.wants):
                break
            self.opened.tend(self.clocks.monotonic(), self.clocks.wall())
        if not stopping and (self.window.held or not (self.frontier.exhausted or self.progress.errors)):
            raise Stalled("the plan waits for results that no call makes", hint="this is a fault of DSec; report it")

    def _listen(self, *, busy: bool) -> None:
        self.dispatch.listen(self.clocks.monotonic(), self.clocks.sleep, busy=busy)
        now, wall = self.clocks.monotonic(), self.clocks.wall()
        self.dispatch.digest(now)
        self.dispatch.look_around(now, wall)
