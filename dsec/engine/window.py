"""Which calls are at the cluster: a state machine with events in and commands out; no clock, no Dask, no I/O.

Dask can't change its mind about a call it was given, and blames every call assigned to a worker for that worker's
death. So the Window keeps about `Settings.seconds` of work per slot at the cluster and chooses at each admission.

A link is in one of five states::

    waits ── its last need has a result ──> ready ── admit ──> flying ── Ended ──> (gone)
      ^                                       ^  ^               │ │ │
      └── Recall (a link before it failed) ───┼──┼───────────────┘ │ │
                                              │  └── Due ── resting ┘ Failure
                                              └──── Freed ── elsewhere  Withheld

A *batch* is what goes to the cluster as one graph: links of one lane of which each needs an earlier one. A link that
waits may be admitted behind links that fly, if those are all it waits for.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dsec.core.stage import PlanKey
from dsec.engine.borders import Capacity
from dsec.engine.moves import (
    Admitted,
    Bind,
    Command,
    Detained,
    Drop,
    Due,
    Ended,
    Event,
    Failure,
    Freed,
    GiveUp,
    Link,
    Offered,
    Recall,
    Resized,
    Retry,
    Settings,
    Withheld,
)
from dsec.engine.policy import Rank

__all__ = ["Window"]

_WAITS, _READY, _FLYING, _RESTING, _ELSEWHERE = range(5)
_PARDONS = 3  # after so many deaths that were another's fault, a call is watched; after one more, run by itself
_NONE = Capacity((), {}, {}, 0.0, 0, 0.0, 0)


@dataclass(slots=True)
class _Entry:
    """A link and where it is."""

    link: Link
    number: int
    missing: set[PlanKey]
    state: int = _WAITS
    tried: int = 0
    pardons: int = 0
    suspect: bool = False
    isolated: bool = False
    seconds: float = 0.0
    pool: str = ""
    heavy: bool = False
    alone: bool = False


@dataclass(slots=True)
class _Load:
    """What flies in one pool."""

    calls: int = 0
    seconds: float = 0.0
    runnable: int = 0
    """Calls that wait for no other: what can run side by side."""
    isolated: int = 0
    """Calls that run by themselves, at most one."""


class Window:
    """Events in, commands out.

    Parameters
    ----------
    settings
        Sizes and the policy.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._capacity = _NONE
        self._entries: dict[PlanKey, _Entry] = {}
        self._users: defaultdict[PlanKey, list[PlanKey]] = defaultdict(list)
        self._lanes: defaultdict[str, dict[PlanKey, None]] = defaultdict(dict)  # what flies, oldest first
        self._batches: dict[str, int] = {}  # links in a lane's last batch
        self._heaps: defaultdict[str, list[tuple[Rank, PlanKey]]] = defaultdict(list)  # by kind
        self._load: defaultdict[str, _Load] = defaultdict(_Load)
        self._paces: dict[str, float] = {}
        self._suspects: set[PlanKey] = set()
        self._heavy = _Heavy()
        self._flying = 0
        self._numbers = 0
        self._on: dict[type, Callable[..., list[Command]]] = {
            Offered: self._offered,
            Resized: self._resized,
            Ended: self._ended,
            Failure: self._failed,
            Due: self._due,
            Freed: self._due,
            Withheld: self._withheld,
            Detained: self._detained,
            Drop: self._drop,
        }

    @property
    def flying(self) -> int:
        """Calls at the cluster."""
        return self._flying

    @property
    def held(self) -> int:
        """Calls that have no result yet, flying ones too."""
        return len(self._entries)

    @property
    def wants(self) -> bool:
        """Whether something could be admitted if there were slots."""
        return any(self._top(kind) is not None for kind in list(self._heaps))

    def flies(self, key: PlanKey) -> bool:
        """Whether a call is at the cluster."""
        entry = self._entries.get(key)
        return entry is not None and entry.state == _FLYING

    def on(self, event: Event) -> list[Command]:
        """Take an event; the commands that follow from it at once."""
        return self._on[type(event)](event)

    def admit(self) -> list[Admitted]:
        """Batches to send now, best rank first within each pool."""
        admitted: list[Admitted] = []
        for pool in sorted(self._capacity.pools):
            kinds = sorted(kind for kind, found in self._capacity.kinds.items() if found == pool)
            if self._room(pool, low=True):
                admitted += self._admit(pool, kinds)
        return admitted

    # Events -----------------------------------------------------------------------------------------------------------

    def _offered(self, event: Offered) -> list[Command]:
        link = event.link
        entry = _Entry(link, self._numbers, set(link.needs), alone=link.alone)
        self._numbers += 1
        self._entries[link.key] = entry
        for need in link.needs:
            self._users[need].append(link.key)
        if not entry.missing:
            self._make_ready(entry)
        else:
            self._continue(entry)
        return []

    def _resized(self, event: Resized) -> list[Command]:
        self._capacity = event.capacity
        return []

    def _ended(self, event: Ended) -> list[Command]:
        entry = self._entries.get(event.key)
        if entry is not None:
            self._forget(entry)
            if event.seconds is not None:
                self._learn(entry.link.stage, event.seconds)
        commands: list[Command] = []
        for user in self._users.pop(event.key, ()):
            commands += self._supplied(user, event.key)
        if entry is not None:
            self._refill_lane(entry.link.lane)
        return commands

    def _failed(self, event: Failure) -> list[Command]:
        entry = self._entries.get(event.key)
        if entry is None or entry.state != _FLYING:
            return []
        self._land(entry)
        commands = self._recall_behind(event.key)
        if event.cause == "input":
            self._wait_for(entry, event.needs)
        elif event.cause == "innocent":
            self._pardon(entry)
        elif event.cause == "worker-lost" and not event.certain and not entry.isolated:
            # Watched, it may still share a worker with another suspect; by itself, whatever ends its worker is its own.
            entry.isolated = entry.pardons >= _PARDONS
            self._suspect(entry)
            self._pardon(entry)
        else:
            commands.append(self._try_again(entry, event.cause))
        return commands

    def _due(self, event: Due | Freed) -> list[Command]:
        entry = self._entries.get(event.key)
        if entry is not None and entry.state in (_RESTING, _ELSEWHERE):
            self._put_back(entry)
        return []

    def _withheld(self, event: Withheld) -> list[Command]:
        entry = self._entries.get(event.key)
        if entry is None or entry.state != _FLYING:
            return []
        self._land(entry)
        entry.state = _ELSEWHERE
        return self._recall_behind(event.key)

    def _detained(self, event: Detained) -> list[Command]:
        entry = self._entries.get(event.key)
        if entry is not None and entry.state in (_READY, _WAITS):
            self._wait_for(entry, event.needs)
        return []

    def _drop(self, event: Drop) -> list[Command]:
        entry = self._entries.get(event.key)
        if entry is None:
            return []
        self._forget(entry)
        commands = self._recall_behind(event.key)
        self._users.pop(event.key, None)
        return commands

    # What events do to a link -----------------------------------------------------------------------------------------

    def _forget(self, entry: _Entry) -> None:
        self._land(entry)
        self._entries.pop(entry.link.key)
        self._suspects.discard(entry.link.key)

    def _supplied(self, user: PlanKey, key: PlanKey) -> list[Command]:
        entry = self._entries.get(user)
        if entry is None or key not in entry.missing:
            return []
        entry.missing.discard(key)
        if entry.missing:
            return []
        if entry.state == _FLYING:
            self._load[entry.pool].runnable += 1
        if entry.state != _WAITS:
            return []
        self._make_ready(entry)
        return [Bind(user)]

    def _make_ready(self, entry: _Entry) -> None:
        entry.state = _READY
        self._push(entry)

    def _put_back(self, entry: _Entry) -> None:
        entry.state = _WAITS
        if not entry.missing:
            self._make_ready(entry)

    def _wait_for(self, entry: _Entry, needs: frozenset[PlanKey]) -> None:
        entry.alone = True  # it names what these make by its id, so it can't take it from them as they make it
        for need in needs - entry.missing:
            entry.missing.add(need)
            self._users[need].append(entry.link.key)
        self._put_back(entry)

    def _pardon(self, entry: _Entry) -> None:
        entry.pardons += 1
        if entry.pardons >= _PARDONS:
            self._suspect(entry)
        self._put_back(entry)

    def _suspect(self, entry: _Entry) -> None:
        entry.suspect = True
        self._suspects.add(entry.link.key)

    def _try_again(self, entry: _Entry, cause: str) -> Command:
        entry.tried += 1
        if entry.tried > entry.link.tries.get(cause, 0):
            self._forget(entry)
            return GiveUp(entry.link.key, cause, entry.tried)
        entry.state = _RESTING
        return Retry(entry.link.key, cause, entry.tried, entry.link.backoff * 2 ** (entry.tried - 1))

    def _recall_behind(self, key: PlanKey) -> list[Command]:
        """Links that fly and need this one, directly or not, wait again."""
        found: list[PlanKey] = []
        front = [key]
        while front:
            for user in self._users.get(front.pop(), ()):
                entry = self._entries.get(user)
                if entry is not None and entry.state == _FLYING:
                    self._land(entry)
                    self._put_back(entry)
                    found.append(user)
                    front.append(user)
        return [Recall(tuple(found))] if found else []

    def _land(self, entry: _Entry) -> None:
        """Count a link out of what flies, if it does."""
        if entry.state != _FLYING:
            return
        self._count(entry, -1)
        lane = self._lanes[entry.link.lane]
        lane.pop(entry.link.key)
        if not lane:
            del self._lanes[entry.link.lane]
        entry.state = _WAITS

    def _fly(self, entry: _Entry) -> None:
        entry.state = _FLYING
        entry.pool = self._capacity.kinds[entry.link.kind]
        entry.seconds = self._pace(entry.link.stage)
        entry.heavy = self._is_heavy(entry.link)
        self._count(entry, 1)
        self._lanes[entry.link.lane][entry.link.key] = None

    def _count(self, entry: _Entry, sign: int) -> None:
        load = self._load[entry.pool]
        load.calls += sign
        load.seconds += sign * entry.seconds
        load.runnable += 0 if entry.missing else sign
        load.isolated += sign if entry.isolated else 0
        self._flying += sign
        if entry.heavy:
            self._heavy.add(entry.link, sign)

    def _learn(self, stage: str, seconds: float) -> None:
        before = self._paces.get(stage)
        self._paces[stage] = seconds if before is None else 0.7 * before + 0.3 * seconds

    # Admission --------------------------------------------------------------------------------------------------------

    def _admit(self, pool: str, kinds: list[str]) -> Iterator[Admitted]:
        while self._room(pool):
            tops = [(top, kind) for kind in kinds if (top := self._top(kind)) is not None]
            if not tops:
                return
            (_, key), kind = min(tops)
            entry = self._entries[key]
            if not self._fits(entry) or (entry.isolated and self._load[pool].calls):
                return  # none overtakes it, or it would wait for ever
            heapq.heappop(self._heaps[kind])
            yield Admitted(self._batch(entry))

    def _push(self, entry: _Entry) -> None:
        rank = self._settings.policy(entry.link.priority, entry.number)
        heapq.heappush(self._heaps[entry.link.kind], (rank, entry.link.key))

    def _top(self, kind: str) -> tuple[Rank, PlanKey] | None:
        heap = self._heaps[kind]
        while heap and not self._admissible(heap[0][1]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _admissible(self, key: PlanKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and (entry.state == _READY or self._may_follow(entry))

    def _may_follow(self, entry: _Entry) -> bool:
        """Whether flying links of its lane are all it waits for."""
        if entry.state != _WAITS or entry.alone or self._suspects:
            return False
        return entry.missing.issubset(self._lanes.get(entry.link.lane, ()))

    def _room(self, pool: str, *, low: bool = False) -> bool:
        """Whether a pool takes more; at low water, whether it is time to send more."""
        slots = self._capacity.pools[pool]
        slots = max(1, slots - self._heavy.extra) if slots else 0
        load, settings = self._load[pool], self._settings
        if load.isolated:
            return False
        if load.runnable < slots:
            return True
        if self._suspects:
            return False
        share = slots * (0.5 if low else 1.0)
        if load.calls < settings.fewest * share:
            return True
        return load.calls < settings.most * share and load.seconds < settings.seconds * share

    def _is_heavy(self, link: Link) -> bool:
        """Whether so many of its kind as there are slots would not fit the hosts."""
        slots = sum(self._capacity.pools.values())
        return link.cpu * slots > self._capacity.cpus or link.memory * slots > self._capacity.memory

    def _fits(self, entry: _Entry) -> bool:
        link, heavy = entry.link, self._heavy
        if not heavy.calls or not self._is_heavy(link):
            return True
        return heavy.cpu + link.cpu <= self._capacity.cpus and heavy.memory + link.memory <= self._capacity.memory

    def _batch(self, first: _Entry) -> tuple[PlanKey, ...]:
        """A link and those that can follow it on the same worker, as long as they fill the window of one slot."""
        share = self._share(first)
        self._fly(first)
        batch, followers, seconds = [first], self._following(first), first.seconds
        single = self._suspects or first.heavy
        while not single and (entry := self._choose(followers)) is not None:
            if not self._extends(len(batch) * share, seconds * share, entry):
                break
            self._fly(entry)
            batch.append(entry)
            seconds += entry.seconds
            followers = {e.number: e for e in followers.values() if e is not entry} | self._following(entry)
        self._batches[first.link.lane] = len(batch)
        return tuple(entry.link.key for entry in batch)

    def _share(self, first: _Entry) -> int:
        """Lanes that share a slot's window: while one's link is on its way, the slot runs another's."""
        slots = self._capacity.pools[self._capacity.kinds[first.link.kind]]
        others = len(self._heaps[first.link.kind])
        return min(self._settings.fewest, 1 + others // max(1, slots))

    def _extends(self, links: int, seconds: float, entry: _Entry) -> bool:
        settings = self._settings
        if links >= settings.most or self._is_heavy(entry.link):
            return False
        return links < settings.fewest or seconds + self._pace(entry.link.stage) <= settings.seconds

    def _following(self, entry: _Entry) -> dict[int, _Entry]:
        """Links of the lane that wait for this one, and for flying ones besides, by number."""
        users = (self._entries.get(user) for user in self._users.get(entry.link.key, ()))
        same = (user for user in users if user is not None and user.link.lane == entry.link.lane)
        return {user.number: user for user in same if self._may_follow(user)}

    def _choose(self, followers: Mapping[int, _Entry]) -> _Entry | None:
        """The first of them; None at a fan-out, whose parts belong on all workers (distributed#8177)."""
        if not followers or len(followers) > 2:
            return None
        if len(followers) == 2 and any(
            self._pace(entry.link.stage) > self._settings.siblings for entry in followers.values()
        ):
            return None
        return followers[min(followers)]

    def _pace(self, stage: str) -> float:
        """Seconds one call of a stage takes; until one has ended, as much as fills a slot's window."""
        return max(self._paces.get(stage, self._settings.seconds), 0.001)

    # Lanes whose links fly and that have more -------------------------------------------------------------------------

    def _refill_lane(self, lane: str) -> None:
        """Let a lane go on behind its own flying links once half of its last batch has ended."""
        flying = self._lanes.get(lane)
        if not flying or len(flying) > self._batches.get(lane, 1) // 2:
            return
        found: dict[int, _Entry] = {}
        for key in flying:
            found |= self._following(self._entries[key])
        entry = self._choose(found)
        if entry is not None and self._capacity.kinds:
            self._push(entry)

    def _continue(self, entry: _Entry) -> None:
        """A new link that waits for flying ones may go on behind them at once, if these are few."""
        if self._may_follow(entry):
            self._refill_lane(entry.link.lane)


@dataclass(slots=True)
class _Heavy:
    """Calls that fly and need more of a host than one slot's share."""

    calls: int = 0
    cpu: float = 0.0
    memory: int = 0

    @property
    def extra(self) -> int:
        """Slots that must stay idle, since their cores are taken."""
        return int(self.cpu - self.calls)

    def add(self, link: Link, sign: int) -> None:
        """Count a call in or out."""
        self.calls += sign
        self.cpu += sign * link.cpu
        self.memory += sign * link.memory
