"""How far a plan has come: calls taken, looked up, settled, failed, skipped; and what each of that leads to.

The Book remembers, the Window holds what has to run, the frontier hears of every end. Nothing recurses: commands of
the Window go through one queue, so a chain of a hundred thousand hits needs no deeper stack than one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dsec.core.stage import AnchorId, Edge, PlanKey, StageCall, StageResult
from dsec.engine import events, judge, moves, resolve
from dsec.engine.book import Book
from dsec.engine.borders import Frontier
from dsec.engine.ledger import Ledger
from dsec.engine.window import Window
from dsec.errors import DsecError
from dsec.store import layout
from dsec.store.root import Store
from dsec.store.runs import Call

__all__ = ["Progress"]

MOST_HELD = 5000
"""Calls without a result that are taken from the plan at once."""


@dataclass(slots=True)
class _End:
    """How a call ended, for its row."""

    status: str
    result: StageResult | None = None
    seconds: float = 0.0
    error: DsecError | None = None
    recorded: bool = False
    """Whether the catalog has nothing to learn from it."""


class Progress:
    """The state of a plan while it runs.

    Parameters
    ----------
    frontier
        The plan.
    store
        Where results are.
    window
        Takes what has to run.
    ledger
        Opens the catalog for writing, when first called.
    report
        Hears events.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        store: Store,
        window: Window,
        *,
        ledger: Callable[[], Ledger],
        report: events.Report,
        clock: Callable[[], float],
    ) -> None:
        self.book = Book()
        """What is remembered of calls."""
        self.counts: Counter[str] = Counter()
        """``calls``, ``hit``, ``ran``, ``failed``, ``skipped``."""
        self.rows: list[Call] = []
        """What happened to each call."""
        self.errors: list[DsecError] = []
        """Of failed calls."""
        self.others: list[moves.Recall | moves.Retry] = []
        """Commands of the Window for whoever talks to the cluster."""
        self._frontier = frontier
        self._store = store
        self._window = window
        self._ledger = ledger
        self._report = report
        self._clock = clock
        self._resolver = resolve.Resolver(store)
        self._commands: deque[moves.Command] = deque()
        self._obeying = False
        self._reasons: dict[PlanKey, DsecError] = {}

    # Taking calls -----------------------------------------------------------------------------------------------------

    def feed(self) -> bool:
        """Take the next calls and look them up, unless enough are held; whether there were any."""
        calls = self._frontier.take(resolve.BATCH) if self._window.held < MOST_HELD else ()
        if calls:
            self._take(calls)
        self.book.retire(self._frontier.retired())
        return bool(calls)

    def _take(self, calls: Sequence[StageCall]) -> None:
        self.counts["calls"] += len(calls)
        self._report(events.Resolved(dict(Counter(call.stage for call in calls))))
        self._resolver.prepare(calls)
        found = []
        for call in calls:
            self.book.open(call, self._frontier.facts(call.plan_key))
            hit = self._look_up(call)
            if hit is not None:
                found.append(hit)
        self._report_hits(found)

    def _look_up(self, call: StageCall) -> resolve.Hit | None:
        """Settle a call if its result is there, else offer it to the Window."""
        because = self.book.cause_of_death(edge.plan_key for edge in call.edges())
        if because is not None:
            self._skip(call.plan_key, because)
            return None
        found = self._resolved(call)
        if isinstance(found, resolve.Hit):
            self._settle_hit(found)
            return found
        if found is not None:
            needs = found.needs if isinstance(found, resolve.Waits) else self._demand(found.call)
            self._offer(call, needs)
        return None

    def look_again(self, key: PlanKey) -> bool:
        """Whether a call that has not ended has its result by now; it is settled then."""
        page = self.book[key]
        if not page.open or page.remade:
            return not page.open
        found = self._resolved(page.call)
        if isinstance(found, resolve.Hit):
            self._report_hits([found])
            self._settle_hit(found)
        elif isinstance(found, resolve.Miss) and (needs := self._demand(found.call)):
            self.tell(moves.Detained(key, needs))
        return not self.book.is_open(key)

    def _resolved(self, call: StageCall) -> resolve.Resolution | None:
        """None if it failed over that."""
        facts = self.book[call.plan_key].facts
        refresh = facts.cache == "refresh"
        try:
            found = self._resolver.resolve(call, self.book.results, target=facts.target, refresh=refresh)
        except DsecError as error:
            self.fail(call.plan_key, error)
            return None
        if isinstance(found, resolve.Miss) and found.filed:
            self.book[call.plan_key].again = True
        return found

    def _report_hits(self, found: Sequence[resolve.Hit]) -> None:
        if found:
            by_stage = Counter(hit.call.stage for hit in found)
            self._report(events.HitsFound(dict(by_stage), sum(not hit.recorded for hit in found)))

    def _offer(self, call: StageCall, needs: frozenset[PlanKey]) -> None:
        remade = any(need in self.book.results for need in needs)
        self.tell(moves.Offered(judge.link(call, self.book[call.plan_key].facts, needs, alone=remade)))

    # Results that are gone --------------------------------------------------------------------------------------------

    def _demand(self, bound: StageCall) -> frozenset[PlanKey]:
        """Calls that have to make inputs of this one again, since they are gone; they are offered anew."""
        needs = self.book.gone(_anchors(bound))
        for key, anchor in needs.items():
            self._remake(key, anchor)
        return frozenset(needs)

    def lose_inputs(self, bound: StageCall) -> frozenset[PlanKey]:
        """Calls that make inputs again which turned out to be gone; empty if none can be made again."""
        lost = [anchor for anchor in _anchors(bound) if not layout.present(self._store.blobs, anchor)]
        makers = [self.book.lose(anchor) for anchor in lost]
        if not makers or any(maker is None or self.book[maker].remade for maker in makers):
            return frozenset()
        return self._demand(bound)

    def _remake(self, key: PlanKey, anchor: AnchorId) -> None:
        """Run a call again whose outputs are gone, and before it those that make its own inputs again."""
        stack, again = [(key, anchor)], []
        while stack:
            key, anchor = stack.pop()
            if self.book.is_open(key):
                continue
            page = self.book.reopen(key)
            self._report(events.Remade(page.call.instance, page.call.stage, self.book.output_name(key, anchor)))
            self.counts[page.status] -= 1
            again.append(page.call)
            stack += self.book.gone(_anchors(page.call)).items()
        for call in again:
            needs = frozenset(self.book.gone(_anchors(call)))
            for need in needs:
                self.book.need(call.plan_key, need)
            self._offer(call, needs)

    # Ends of calls ----------------------------------------------------------------------------------------------------

    def settle(self, bound: StageCall, result: StageResult, *, ran: bool, seconds: float) -> None:
        """A call gave its result on a worker."""
        self._report(events.Finished(bound.instance, bound.stage, result, seconds, ran))
        self._close(bound, _End("ran" if ran else "hit", result, seconds))
        self.tell(moves.Ended(bound.plan_key, seconds or None))

    def _settle_hit(self, hit: resolve.Hit) -> None:
        self._close(hit.call, _End("hit", hit.result, recorded=hit.recorded), hit.absent)
        self.tell(moves.Ended(hit.call.plan_key))

    def _close(self, bound: StageCall, end: _End, absent: Iterable[str] = ()) -> None:
        key = bound.plan_key
        page = self.book[key]
        assert end.result is not None
        self._write(bound, end)
        page.status = end.status
        told, page.told = page.told, True
        self.book.close(bound, end.result, absent)
        if not told:
            self._frontier.done(key, end.result)

    def blame(self, key: PlanKey, error: DsecError) -> None:
        """Remember what a call is said to have failed of, should it not be tried again."""
        self._reasons[key] = error

    def reason(self, key: PlanKey) -> str:
        """What a call failed of last."""
        return self._reasons[key].message

    def fail(self, key: PlanKey, error: DsecError) -> None:
        """A call failed for good; those that need it are skipped."""
        call = self.book[key].call
        error.where = error.where or call.instance
        self.errors.append(error)
        self._report(events.Failed(call.instance, call.stage, error))
        self._bury(key, _End("failed", error=error), call.instance)
        front = deque(self.book.users(key))
        while front:
            user = front.popleft()
            if self.book.is_open(user):
                front += self.book.users(user)
                self._skip(user, call.instance)

    def _skip(self, key: PlanKey, because: str) -> None:
        call = self.book[key].call
        self._report(events.Skipped(call.instance, call.stage, because))
        self._bury(key, _End("skipped"), because)

    def _bury(self, key: PlanKey, end: _End, because: str) -> None:
        page = self.book[key]
        self._write(page.call, end)
        told, page.told = page.told, True
        self.book.bury(key, because)
        if not told:
            self._frontier.failed(key)
        self.tell(moves.Drop(key))

    def _write(self, call: StageCall, end: _End) -> None:
        self.counts[end.status] += 1
        self._reasons.pop(call.plan_key, None)
        action_key = end.result.action_key if end.result is not None else None
        message = end.error.message if end.error is not None else None
        self.rows.append(Call(call.instance, call.stage, end.status, call.plan_key, action_key, end.seconds, message))
        if end.recorded:
            return
        from dsec.store.catalog import Recorded

        told = None if end.error is None else {"code": end.error.code, "message": str(end.error)}
        self._ledger().add(Recorded(call, end.status, end.result, end.seconds, told), self._clock())

    # The Window -------------------------------------------------------------------------------------------------------

    def tell(self, event: moves.Event) -> None:
        """Tell the Window, and obey what it says; what only the cluster's side can obey is left in `others`."""
        self._commands += self._window.on(event)
        if self._obeying:
            return
        self._obeying = True
        try:
            while self._commands:
                self._obey(self._commands.popleft())
        finally:
            self._obeying = False

    def _obey(self, command: moves.Command) -> None:
        match command:
            case moves.Bind(key):
                self.look_again(key)
            case moves.GiveUp(key, cause, attempts):
                self.fail(key, judge.final(self._reasons[key], cause, attempts))
            case moves.Recall() | moves.Retry():
                self.others.append(command)


def _anchors(call: StageCall) -> list[AnchorId]:
    return [item for source in call.inputs.values() for item in source.sources if not isinstance(item, Edge)]
