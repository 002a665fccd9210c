"""What the driver remembers of calls: taken ones until they end, results until nobody can refer to them any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsec.core.stage import AnchorId, PlanKey, StageCall, StageResult

if TYPE_CHECKING:
    from dsec.plan.nodes import CallFacts

__all__ = ["Book", "Page"]


@dataclass(slots=True)
class Page:
    """One call."""

    call: StageCall
    """As taken; once it has ended, with its inputs as anchors."""
    facts: CallFacts
    open: bool = True
    """Whether it has no result yet, or makes one again."""
    remade: bool = False
    """Whether it was run again for outputs that were gone."""
    status: str = ""
    """``hit`` or ``ran`` once it has a result."""
    again: bool = False
    """Whether it runs although its action entry is there."""
    sent: int = 0
    """How often it went to the cluster."""
    told: bool = False
    """Whether the plan was told of its end."""


class Book:
    """Pages by plan_key, and who needs whom."""

    def __init__(self) -> None:
        self.results: dict[PlanKey, StageResult] = {}
        """Results that may still be referred to."""
        self._pages: dict[PlanKey, Page] = {}
        self._users: defaultdict[PlanKey, dict[PlanKey, None]] = defaultdict(dict)
        self._retired: set[PlanKey] = set()
        self._gone: dict[AnchorId, PlanKey] = {}
        self._dead: dict[PlanKey, str] = {}

    def __getitem__(self, key: PlanKey) -> Page:
        return self._pages[key]

    def __contains__(self, key: PlanKey) -> bool:
        return key in self._pages

    def open(self, call: StageCall, facts: CallFacts) -> Page:
        """Begin the page of a taken call."""
        page = self._pages[call.plan_key] = Page(call, facts)
        for edge in call.edges():
            self._users[edge.plan_key][call.plan_key] = None
        return page

    def close(self, bound: StageCall, result: StageResult, absent: Iterable[str] = ()) -> None:
        """A call, with its inputs as anchors, has its result, of which these outputs are no longer in the store."""
        key = bound.plan_key
        page = self._pages[key]
        page.open = False
        self.results[key] = result
        for output in result.outputs.values():
            self._gone.pop(output, None)
        self._gone.update((result.outputs[name], key) for name in absent if name in result.outputs)
        self._release(page.call)
        page.call = bound
        self._drop_if_free(key)

    def is_open(self, key: PlanKey) -> bool:
        """Whether a call is remembered and has not ended."""
        page = self._pages.get(key)
        return page is not None and page.open

    def reopen(self, key: PlanKey) -> Page:
        """A call runs again, since outputs of it are gone."""
        page = self._pages[key]
        page.open = page.remade = page.again = True
        return page

    def bury(self, key: PlanKey, because: str) -> None:
        """A call has no result and never will; ``because`` names the instance that failed."""
        page = self._pages[key]
        page.open = False
        self._dead[key] = because
        self._release(page.call)

    def cause_of_death(self, keys: Iterable[PlanKey]) -> str | None:
        """The failed instance behind the first of these calls that is dead."""
        return next((self._dead[key] for key in keys if key in self._dead), None)

    def users(self, key: PlanKey) -> list[PlanKey]:
        """Open calls that take a result of this one, in plan order."""
        return [user for user in self._users.get(key, ()) if self.is_open(user)]

    def need(self, user: PlanKey, key: PlanKey) -> None:
        """A call that runs again waits for another one that does."""
        self._users[key][user] = None

    def retire(self, keys: Iterable[PlanKey]) -> None:
        """Nobody who isn't taken yet can refer to these."""
        for key in keys:
            self._retired.add(key)
            self._drop_if_free(key)

    def gone(self, anchors: Iterable[AnchorId]) -> dict[PlanKey, AnchorId]:
        """Calls that made those of these anchors that are known to be gone, with one anchor each."""
        if not self._gone:
            return {}
        return {self._gone[anchor]: anchor for anchor in anchors if anchor in self._gone}

    def lose(self, anchor: AnchorId) -> PlanKey | None:
        """An anchor turned out to be gone; the call that made it, if it is remembered."""
        for key, result in self.results.items():
            if anchor in result.outputs.values():
                self._gone[anchor] = key
                return key
        return None

    def output_name(self, key: PlanKey, anchor: AnchorId) -> str:
        """What a call calls an anchor that it made."""
        outputs: Mapping[str, AnchorId] = self.results[key].outputs
        return next(name for name, made in outputs.items() if made == anchor)

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[PlanKey]:
        return iter(self._pages)

    def _release(self, call: StageCall) -> None:
        """A call takes nothing any more."""
        for edge in call.edges():
            users = self._users.get(edge.plan_key, {})
            users.pop(call.plan_key, None)
            if not users:
                self._users.pop(edge.plan_key, None)
            self._drop_if_free(edge.plan_key)

    def _drop_if_free(self, key: PlanKey) -> None:
        page = self._pages.get(key)
        if page is None or page.open or key not in self._retired or self.users(key):
            return
        result = self.results.get(key)
        if result is not None and any(output in self._gone for output in result.outputs.values()):
            return  # it may have to be made again
        self._retired.discard(key)
        self._pages.pop(key)
        self.results.pop(key, None)
        self._dead.pop(key, None)
