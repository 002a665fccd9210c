"""A cluster without processes: slots that take links for as long as a test says, driven by a Window alone."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsec.core.stage import PlanKey
from dsec.engine import moves
from dsec.engine.borders import Capacity, Offer
from dsec.engine.window import Window


def capacity(slots: int = 2, *, gpu: int | None = None, cpus: float | None = None, memory: int = 1 << 40) -> Capacity:
    cores = cpus if cpus is not None else float(slots + (gpu or 0))
    if gpu is None:
        offers = (Offer("cpu", slots), Offer("gpu", slots, emulated=True))
        return Capacity(offers, {"any": slots}, {"cpu": "any", "gpu": "any"}, cores, memory, cores, memory)
    offers = (Offer("cpu", slots), Offer("gpu", gpu))
    return Capacity(offers, {"cpu": slots, "gpu": gpu}, {"cpu": "cpu", "gpu": "gpu"}, cores, memory, cores, memory)


@dataclass
class Cluster:
    """Runs what a Window admits: a link once its needs have ended, on any free slot of its pool, oldest first."""

    window: Window
    capacity: Capacity
    links: Mapping[PlanKey, moves.Link]
    seconds: Callable[[moves.Link], float]
    fails: Callable[[moves.Link], str | None] = lambda link: None
    random: random.Random = field(default_factory=lambda: random.Random(0))
    now: float = 0.0
    ended: list[PlanKey] = field(default_factory=list)
    given_up: list[PlanKey] = field(default_factory=list)
    most_flying: int = 0
    admissions: int = 0
    batches: list[tuple[PlanKey, ...]] = field(default_factory=list)
    starts: Counter[PlanKey] = field(default_factory=Counter)
    _queue: dict[str, deque[PlanKey]] = field(default_factory=dict)
    _waiting: dict[PlanKey, None] = field(default_factory=dict)
    _running: list[tuple[float, int, PlanKey]] = field(default_factory=list)
    _busy: Counter[str] = field(default_factory=Counter)
    _alive: Counter[PlanKey] = field(default_factory=Counter)
    _done: set[PlanKey] = field(default_factory=set)
    _resting: list[tuple[float, PlanKey]] = field(default_factory=list)

    def run(self) -> None:
        self.window.on(moves.Resized(self.capacity))
        self._queue = {pool: deque() for pool in self.capacity.pools}
        while True:
            self._admit()
            if self._running:
                self._end_next()
            elif self._resting:
                self._wake()
            else:
                return

    def _admit(self) -> None:
        admitted = self.window.admit()
        self.admissions += bool(admitted)
        for batch in admitted:
            self.batches.append(batch.keys)
            for key in batch.keys:
                self._alive[key] += 1
                self._waiting[key] = None
        self.most_flying = max(self.most_flying, self.window.flying)
        self._start()

    def _start(self) -> None:
        for key in list(self._waiting):
            if self.links[key].needs <= self._done:
                del self._waiting[key]
                self._queue[self.capacity.kinds[self.links[key].kind]].append(key)
        for pool, queue in self._queue.items():
            while queue and self._busy[pool] < self.capacity.pools[pool]:
                key = queue.popleft()
                self._busy[pool] += 1
                self.starts[key] += 1
                heapq.heappush(self._running, (self.now + self.seconds(self.links[key]), self.starts[key], key))

    def _end_next(self) -> None:
        self.now, _, key = heapq.heappop(self._running)
        link = self.links[key]
        self._busy[self.capacity.kinds[link.kind]] -= 1
        cause = self.fails(link)
        if cause is None:
            self._done.add(key)
            self.ended.append(key)
            self._obey(self.window.on(moves.Ended(key, self.seconds(link))))
        else:
            self._obey(self.window.on(moves.Failure(key, cause)))

    def _obey(self, commands: list[moves.Command]) -> None:
        for command in commands:
            match command:
                case moves.Recall(keys):
                    for key in keys:
                        assert key in self._waiting, "a link that ran was recalled"
                        del self._waiting[key]
                case moves.Retry(key, _, _, wait):
                    heapq.heappush(self._resting, (self.now + wait, key))
                case moves.GiveUp(key):
                    self.given_up.append(key)
                    self._drop_users(key)

    def _drop_users(self, key: PlanKey) -> None:
        for user in [link.key for link in self.links.values() if key in link.needs]:
            if user not in self.given_up:
                self.given_up.append(user)
                self._obey(self.window.on(moves.Drop(user)))
                self._drop_users(user)

    def _wake(self) -> None:
        self.now, key = heapq.heappop(self._resting)
        self.window.on(moves.Due(key))


def offer(window: Window, *links: moves.Link) -> dict[PlanKey, moves.Link]:
    for link in links:
        window.on(moves.Offered(link))
    return {link.key: link for link in links}


def chain(lane: str, length: int, **fields: object) -> list[moves.Link]:
    made: list[moves.Link] = []
    for i in range(length):
        needs = frozenset({made[-1].key}) if made else frozenset()
        made.append(moves.Link(PlanKey(f"{lane}/{i}"), "link", lane, "cpu", needs, **fields))  # type: ignore[arg-type]
    return made


def fan(count: int, needs: frozenset[PlanKey] = frozenset(), **fields: object) -> list[moves.Link]:
    lane = str(fields.pop("lane", ""))
    return [moves.Link(PlanKey(f"fan/{i}"), "fan", lane, "cpu", needs, **fields) for i in range(count)]  # type: ignore[arg-type]
