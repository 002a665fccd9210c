"""The driver against a serial cluster: what it looks up, sends, counts and writes down."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import listed_plan as fakes
import pytest
from listed_plan import Plan, chain, out
from serial_cluster import Serial

from dsec.core.stage import Placement, StageCall
from dsec.engine import drive, events
from dsec.engine.dispatch import Limits
from dsec.errors import CorruptObject, NondeterminismError, Stalled, StoreFull, Unsatisfiable
from dsec.plan.nodes import Retry
from dsec.store import hits, root
from dsec.store.catalog import Catalog
from dsec.store.claims import Claims
from dsec.store.root import Store
from dsec.store.system import Process


@dataclass
class Time:
    """A clock that moves only when somebody sleeps or looks."""

    now: float = 0.0
    step: float = 0.05

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Bench:
    """One store, a serial cluster, and everything that was heard."""

    store: Store
    root: Path
    heard: list[events.Event] = field(default_factory=list)
    time: Time = field(default_factory=Time)
    runs: Iterator[int] = field(default_factory=itertools.count)

    def run(self, plan: Plan, cluster: Serial | None = None, **options: Any) -> drive.Outcome:
        cluster = cluster or Serial(fakes.body)
        clocks = drive.Clocks(self.time.monotonic, lambda: self.time.now, self.time.sleep)
        chosen = drive.Options(clocks=clocks, **{"limits": Limits(stalled=20, remake=5, poll=0.5), **options})
        self.heard.clear()
        return drive.drive(
            plan,
            self.store,
            cluster=lambda: cluster,
            root=self.root,
            run_id=f"run-{next(self.runs)}",
            report=self.heard.append,
            options=chosen,
        )

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(root.open_store(tmp_path / "store"), tmp_path)


def again(plan: Plan, **changes: Any) -> Plan:
    """The same plan from its beginning, with other facts."""
    told = {key: replace(facts, **changes) for key, facts in plan.told.items()}
    return Plan(calls=list(plan.calls), told=told, _users=plan._users)


def diamond(plan: Plan) -> None:
    first = plan.add("first")
    left, right = (plan.add("middle", inputs={"x": out(first)}) for _ in range(2))
    plan.add("last", inputs={"both": [out(left), out(right)]})


def test_a_plan_runs_once_and_is_then_found_without_a_cluster(bench: Bench) -> None:
    plan = Plan()
    diamond(plan)
    first = bench.run(plan)
    assert (first.calls, first.ran, first.hits, first.cluster) == (4, 4, 0, True)
    cluster = Serial(fakes.body)
    second = bench.run(again(plan), cluster)
    assert (second.calls, second.ran, second.hits, second.cluster) == (4, 0, 4, False)
    assert cluster.started == 0
    assert [e.cutoffs for e in bench.of(events.HitsFound)] == [0]
    assert not bench.of(events.ClusterUp)


def test_without_its_catalog_a_plan_is_found_by_its_action_entries(bench: Bench) -> None:
    plan = Plan()
    diamond(plan)
    bench.run(plan)
    bench.store.catalog.unlink()
    outcome = bench.run(again(plan))
    assert (outcome.hits, outcome.cluster) == (4, False)
    assert [e.cutoffs for e in bench.of(events.HitsFound)] == [4]
    assert len(hits.lookup(bench.store.catalog, [call.plan_key for call in plan.calls])) == 4


def test_a_call_whose_upstream_made_the_same_again_is_cut_off(bench: Bench) -> None:
    plan = Plan()
    first = plan.add("first")
    plan.add("second", inputs={"x": out(first)})
    bench.run(plan)
    edited = again(plan)
    edited.told[first] = replace(edited.told[first], cache="refresh")
    outcome = bench.run(edited)
    assert (outcome.ran, outcome.hits) == (1, 1)


def test_a_thousand_hits_in_one_chain_need_no_deep_stack(bench: Bench) -> None:
    plan = Plan()
    chain(plan, 1500, "a")
    bench.run(plan)
    assert bench.run(again(plan)).hits == 1500


def test_results_are_forgotten_once_nobody_can_refer_to_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsec.engine import progress

    books: list[Any] = []
    plain = progress.Book
    monkeypatch.setattr(progress, "Book", lambda: books.append(plain()) or books[-1])

    class Tail(Plan):
        def _settle(self, key: Any) -> None:
            done = [call.plan_key for call in self.calls if call.plan_key in self.results]
            self._retired += [k for k in done[:-1] if k not in dropped]
            dropped.update(done[:-1])

    dropped: set[Any] = set()

    plan = Tail()
    chain(plan, 50, "a")
    bench.run(plan)
    assert len(books[0]) <= 1


def test_failures_skip_what_needs_them_and_are_counted_apart(bench: Bench) -> None:
    plan = Plan()
    bad = plan.add("bad", does="fail", lane="a")
    plan.add("after", inputs={"x": out(bad)}, lane="a")
    plan.add("other", lane="b")
    outcome = bench.run(plan)
    assert (outcome.calls, outcome.ran, outcome.failed, outcome.skipped) == (3, 1, 1, 1)
    assert [(row.instance, row.status, row.error) for row in outcome.rows if row.status != "ran"] == [
        ("bad#0", "failed", "it fails"),
        ("after#1", "skipped", None),
    ]
    rows = {row.instance: row.status for row in hits.run_calls(bench.store.catalog, "run-0")}
    assert rows == {"bad#0": "failed", "after#1": "skipped", "other#2": "ran"}


def test_a_run_after_a_failure_runs_only_what_is_missing(bench: Bench) -> None:
    plan = Plan()
    links = chain(plan, 3, "a")
    plan.add("bad", inputs={"x": out(links[-1])}, does="fail-once", lane="a")
    assert bench.run(plan).failed == 1
    outcome = bench.run(again(plan))
    assert (outcome.hits, outcome.ran, outcome.failed) == (3, 1, 0)


def test_a_missing_output_of_an_upstream_call_is_named(bench: Bench) -> None:
    from dsec.core.stage import Edge

    plan = Plan()
    first = plan.add("first", lane="a")
    plan.add("second", inputs={"x": Edge(first, "agent")}, lane="b")
    outcome = bench.run(plan)
    assert (outcome.ran, outcome.failed) == (1, 1)
    assert "takes the output 'agent' of a call that made out" in str(outcome.errors[0])


def test_retries_wait_for_their_back_off(bench: Bench) -> None:
    plan = Plan()
    plan.add("a", does="fail", retry=Retry(2, 3.0, frozenset({"error"})))
    outcome = bench.run(plan)
    assert [(e.attempt, e.wait) for e in bench.of(events.Retried)] == [(1, 3.0), (2, 6.0)]
    assert bench.time.now > 9
    assert "tried 3 times" in str(outcome.errors[0])
    assert outcome.calls == 1


def _raising(kind: type[Exception], stage: str) -> Callable[..., str]:
    def run(call_json: str, *rest: str) -> str:
        if StageCall.from_json(call_json).stage == stage:
            raise kind("said so")
        return fakes.body(call_json, *rest)

    return run


def test_a_full_disk_stops_the_run_and_keeps_what_is_done(bench: Bench) -> None:
    plan = Plan()
    good = plan.add("good", lane="a")
    plan.add("full", inputs={"x": out(good)}, lane="a")
    plan.add("later", inputs={"x": out(good)}, lane="b")
    outcome = bench.run(plan, Serial(_raising(StoreFull, "full")))
    assert isinstance(outcome.stopped, StoreFull)
    assert outcome.failed == 0
    assert bench.run(again(plan)).hits >= 1


def test_two_results_of_one_key_fail_the_call_at_once(bench: Bench) -> None:
    plan = Plan()
    plan.add("odd", retry=Retry(5, 0.1, frozenset({"error", "worker-lost"})))
    outcome = bench.run(plan, Serial(_raising(NondeterminismError, "odd")))
    assert isinstance(outcome.errors[0], NondeterminismError)
    assert not bench.of(events.Retried)


def test_damage_that_nobody_can_repair_is_named(bench: Bench) -> None:
    plan = Plan()
    plan.add("reads")
    outcome = bench.run(plan, Serial(_raising(CorruptObject, "reads")))
    assert isinstance(outcome.errors[0], CorruptObject)
    assert outcome.errors[0].where == "reads#0"


def test_a_damaged_input_is_repaired_once(bench: Bench) -> None:
    plan = Plan()
    first = plan.add("first")
    second = plan.add("second", inputs={"x": out(first)})
    bench.run(plan)
    result = plan.results[first]
    assert result is not None
    name = f"anchors/{result.outputs['out'][:2]}/{result.outputs['out']}"
    bench.store.blobs.remove(name)
    edited = again(plan, target=False)
    edited.told[second] = replace(edited.told[second], cache="refresh")
    outcome = bench.run(edited)
    assert (outcome.ran, outcome.hits, outcome.failed) == (2, 0, 0)
    assert [e.output for e in bench.of(events.Remade)] == ["out"]
    assert bench.store.blobs.size(name)


def test_a_target_whose_output_is_gone_runs_again(bench: Bench) -> None:
    plan = Plan()
    key = plan.add("only")
    bench.run(plan)
    result = plan.results[key]
    assert result is not None
    bench.store.blobs.remove(f"anchors/{result.outputs['out'][:2]}/{result.outputs['out']}")
    assert bench.run(again(plan)).ran == 1


def test_an_intermediate_that_is_gone_is_not_missed(bench: Bench) -> None:
    plan = Plan()
    first = plan.add("first", target=False)
    plan.add("second", inputs={"x": out(first)})
    bench.run(plan)
    result = plan.results[first]
    assert result is not None
    bench.store.blobs.remove(f"anchors/{result.outputs['out'][:2]}/{result.outputs['out']}")
    assert bench.run(again(plan)).hits == 2


def test_no_workers_is_said_after_a_while_and_the_cluster_is_made_anew_before(bench: Bench) -> None:
    plan = Plan()
    plan.add("a")
    cluster = Serial(fakes.body, missing=True)
    outcome = bench.run(plan, cluster)
    assert isinstance(outcome.stopped, Stalled)
    assert cluster.remade >= 1
    assert bench.of(events.Recovering)


def test_a_cluster_that_comes_back_goes_on(bench: Bench) -> None:
    plan = Plan()
    diamond(plan)

    class Lame(Serial):
        def remake(self) -> bool:
            self.missing = False
            return super().remake()

    outcome = bench.run(plan, Lame(fakes.body, missing=True))
    assert (outcome.ran, outcome.stopped) == (4, None)


def test_what_can_never_run_stops_before_anything_is_sent(bench: Bench) -> None:
    plan = Plan()
    plan.add("fits")
    plan.add("big", placement=Placement(memory=1 << 50))
    cluster = Serial(fakes.body)
    outcome = bench.run(plan, cluster)
    assert isinstance(outcome.stopped, Unsatisfiable)
    assert cluster.sent == []


def test_a_call_that_another_run_computes_is_waited_for(bench: Bench) -> None:
    plan = Plan()
    first = plan.add("first", lane="a")
    plan.add("second", inputs={"x": out(first)}, lane="a")
    other = Bench(bench.store, bench.root)

    class Sleepy(Time):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if not done:
                done.append(other.run(again(plan)))

    done: list[drive.Outcome] = []
    bench.time = Sleepy()
    with Catalog(bench.store.catalog) as catalog:
        claims = Claims(catalog, "another")
        assert claims.claim(str(first), 0.0)

        class Waiting(Serial):
            def executor(self, store: Store, site: Any) -> Any:
                made = super().executor(store, site)
                plain = made.wait

                def wait(timeout: float) -> Any:
                    if self.sent and not released:
                        raise AssertionError("it was sent")
                    if bench.time.now > 10 and not released:
                        released.append(1)
                        claims.release([str(first)])
                    return plain(timeout)

                made.wait = wait
                return made

        released: list[int] = []
        outcome = bench.run(plan, Waiting(fakes.body))
    assert [e.instance for e in bench.of(events.Elsewhere)] == ["first#0"]
    assert (outcome.ran, outcome.failed) == (2, 0)


def test_a_claim_of_a_process_that_is_gone_holds_nobody_up(bench: Bench) -> None:
    plan = Plan()
    key = plan.add("a")
    from dsec.store import system

    with Catalog(bench.store.catalog) as catalog:
        gone = Process(system.this_process().host, 2**22 - 1, 1)
        Claims(catalog, "dead", gone).claim(str(key), 0.0)
    outcome = bench.run(plan)
    assert (outcome.ran, bench.of(events.Elsewhere)) == (1, [])


def test_a_keyboard_interrupt_ends_the_run_and_keeps_its_rows(bench: Bench) -> None:
    plan = Plan()
    chain(plan, 30, "a")

    def run(call_json: str, *rest: str) -> str:
        if StageCall.from_json(call_json).instance == "link#20":
            raise KeyboardInterrupt
        return fakes.body(call_json, *rest)

    cluster = Serial(run)
    outcome = bench.run(plan, cluster)
    assert outcome.stopped is not None
    assert outcome.stopped.exit_code == 130
    assert cluster.made[-1].closed
    assert bench.run(again(plan)).hits >= 10


def test_a_run_of_hits_imports_nothing_heavy(bench: Bench) -> None:
    plan = Plan()
    diamond(plan)
    bench.run(plan)
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
import listed_plan as fakes
from pathlib import Path
from dsec.engine import drive
from dsec.store import root
plan = fakes.Plan()
first = plan.add("first")
left, right = (plan.add("middle", inputs={{"x": fakes.out(first)}}) for _ in range(2))
plan.add("last", inputs={{"both": [fakes.out(left), fakes.out(right)]}})
store = root.open_store({str(bench.store.path)!r})
outcome = drive.drive(plan, store, cluster=lambda: 1 / 0, root=Path("."), run_id="x")
assert outcome.hits == 4, outcome
print(*(m for m in ("dask", "distributed", "numpy", "torch", "zarr", "sqlalchemy", "networkx", "rich", "psutil")
        if m in sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert found == []
