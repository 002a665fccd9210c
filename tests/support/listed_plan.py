"""A plan and a body without the plan and runtime layers: a list of calls, and a trampoline that obeys the stream."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsec.core import keys
from dsec.core.stage import Edge, Input, Placement, PlanKey, Recipe, StageCall, StageResult
from dsec.plan.nodes import CallFacts, Retry

if TYPE_CHECKING:
    from dsec.engine.cluster import LocalCluster
    from dsec.engine.drive import Outcome
    from dsec.engine.shape import ClusterShape

HERE = Path(__file__).parent
Run = Callable[..., "Outcome"]

_CPU = Placement()
_PATIENT = Retry()


def local(shape: ClusterShape, run: Callable[..., str] | None = None) -> LocalCluster:
    from dsec.engine.cluster import LocalCluster
    from dsec.runtime.numerics import VARIABLES

    return LocalCluster(shape, HERE, VARIABLES, run=run or body)


@dataclass
class Plan:
    """Calls in plan order, all taken as fast as the engine asks."""

    calls: list[StageCall] = field(default_factory=list)
    told: dict[PlanKey, CallFacts] = field(default_factory=dict)
    results: dict[PlanKey, StageResult | None] = field(default_factory=dict)
    failures: list[PlanKey] = field(default_factory=list)
    taken: int = 0
    retire: bool = True
    _users: dict[PlanKey, set[PlanKey]] = field(default_factory=dict)
    _retired: list[PlanKey] = field(default_factory=list)

    def add(
        self,
        stage: str,
        *,
        inputs: dict[str, Sequence[Edge] | Edge] | None = None,
        does: str = "",
        lane: str = "",
        placement: Placement = _CPU,
        retry: Retry = _PATIENT,
        timeout: float | None = None,
        target: bool = True,
        cache: str = "use",
        seed: int = 0,
        priority: int = 0,
    ) -> PlanKey:
        recipe = Recipe(uses="tests:body", code="0" * 64, seed=seed)
        sources = {
            name: Input((edge,))
            if isinstance(edge, Edge)
            else Input(tuple(edge), tuple(str(i) for i in range(len(edge))))
            for name, edge in sorted((inputs or {}).items())
        }
        stream = f"{stage}/{len(self.calls)}/{does}"
        key = keys.plan_key(recipe.digest(), sources, stream=stream)
        call = StageCall(
            f"{stage}#{len(self.calls)}", stage, key, recipe.digest(), sources, stream=stream, timeout=timeout
        )
        self.calls.append(call)
        self.told[key] = CallFacts(placement, retry, priority, lane, target, cache, recipe)
        for edge in call.edges():
            self._users.setdefault(edge.plan_key, set()).add(key)
        return key

    @property
    def exhausted(self) -> bool:
        return self.taken == len(self.calls)

    def take(self, n: int) -> list[StageCall]:
        found = self.calls[self.taken : self.taken + n]
        self.taken += len(found)
        return found

    def done(self, plan_key: PlanKey, result: StageResult | None) -> None:
        assert plan_key not in self.results
        self.results[plan_key] = result
        self._settle(plan_key)

    def failed(self, plan_key: PlanKey) -> None:
        assert plan_key not in self.failures
        self.failures.append(plan_key)

    def retired(self) -> list[PlanKey]:
        found, self._retired = self._retired, []
        return found

    def facts(self, plan_key: PlanKey) -> CallFacts:
        return self.told[plan_key]

    def _settle(self, key: PlanKey) -> None:
        if self.retire and self.exhausted and not self._users.get(key):
            self._retired.append(key)


def out(key: PlanKey) -> Edge:
    return Edge(key, "out")


def chain(plan: Plan, links: int, lane: str, does: str = "", stage: str = "link") -> list[PlanKey]:
    made: list[PlanKey] = []
    for _ in range(links):
        inputs = {"x": out(made[-1])} if made else None
        made.append(plan.add(stage, inputs=inputs, lane=lane, does=does))
    return made


def body(call_json: str, errand_json: str, *upstream_json: str) -> str:
    """What workers run in these tests: does what the last part of the stream says, then files a result."""
    from dsec.engine import resolve, trampoline
    from dsec.store import actions, anchors, root

    call = StageCall.from_json(call_json)
    errand = json.loads(errand_json)
    names = list(dict.fromkeys(edge.plan_key for edge in call.edges()))
    upstream = {k: StageResult.from_json(json.loads(t)[0]) for k, t in zip(names, upstream_json, strict=True)}
    store = root.open_store(errand["store"], create=False)
    call = resolve.bind(call, upstream, store)
    call = _expanded(call, store)
    key = keys.action_key(call)
    found = actions.read(store.blobs, key)
    if found is not None and not errand["refresh"]:
        return trampoline.reply_of(found.result.to_json(), found.produced_by["run"] == errand["run_id"], 0.0)
    began = time.perf_counter()
    for source in call.inputs.values():
        for anchor in source.sources:
            anchors.get(store.blobs, anchor)
    _obey(call.stream.split("/", 2)[2], Path(errand["root"]), call)
    stored = anchors.put(store.blobs, {"stream": call.stream})
    result = StageResult(key, {"out": stored.anchor_id}, sizes={"out": stored.size}, cost={"pid": os.getpid()})
    commit = actions.supersede if errand["refresh"] else actions.commit
    result = commit(store.blobs, actions.entry_of(call, result, {"run": errand["run_id"]}))
    return trampoline.reply_of(result.to_json(), True, time.perf_counter() - began)


def _expanded(call: StageCall, store: object) -> StageCall:
    from dsec.core.stage import replace
    from dsec.store import anchors

    def whole(source: Input) -> Input:
        if source.index is None:
            return source
        tree = anchors.get(store.blobs, source.index)
        return Input(tuple(ref.anchor_id for ref in tree["sources"]), tuple(tree["labels"]))

    return replace(call, inputs={name: whole(source) for name, source in call.inputs.items()})


def _obey(does: str, root: Path, call: StageCall) -> None:
    verb, _, argument = does.partition(":")
    mark = root / f"{call.plan_key[:16]}.{verb}"
    match verb:
        case "sleep":
            time.sleep(float(argument))
        case "fail":
            from dsec.errors import StageError

            raise StageError("it fails", instance=call.instance)
        case "odd":
            raise ZeroDivisionError("a bare one")
        case "fail-once" if not mark.exists():
            mark.touch()
            raise ValueError("only once")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die-once" if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(3600)
        case "hang-once" if not mark.exists():
            mark.touch()
            time.sleep(3600)
        case "eat":
            held = []
            while True:
                held.append(bytearray(os.urandom(1 << 20)) * 16)
                time.sleep(0.01)
        case "touch":
            (root / argument).touch()
            time.sleep(3600)
        case _:
            pass


def quick(call_json: str, errand_json: str, *upstream_json: str) -> str:
    """The least a call can do: no store, no result to speak of."""
    call = StageCall.from_json(call_json)
    result = StageResult(call.plan_key, {"out": "0" * 64})  # type: ignore[arg-type]
    return json.dumps([result.to_json(), True, 0.0001])


def environment() -> dict[str, str | None]:
    names = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "DSEC_WORKER", "DSEC_DEVICE", "PYTHONPATH")
    return {name: os.environ.get(name) for name in names} | {
        "hash": str(hash("dsec")),
        "flags": str(sys.flags.hash_randomization),
    }
