"""A plan on real worker processes: what runs, what hits, what Dask is told."""

from __future__ import annotations

import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client
from listed_plan import Plan, Run, body, chain, environment, local, out

from dsec.core.stage import Placement
from dsec.engine import borders, events, lower, resolve
from dsec.engine.cluster import LocalCluster
from dsec.engine.shape import ClusterShape
from dsec.errors import StageError, Unsatisfiable
from dsec.store.root import Store


def test_a_fan_out_and_chains_run_once_and_then_hit(two: LocalCluster, run: Run, heard: list[events.Event]) -> None:
    plan = Plan()
    begin = plan.add("begin")
    for _ in range(40):
        plan.add("fan", inputs={"x": out(begin)})
    ends = [chain(plan, 50, f"seed={seed}")[-1] for seed in range(3)]
    plan.add("table", inputs={"scores": [out(end) for end in ends]})
    first = run(plan, two)
    assert (first.calls, first.ran, first.hits, first.stopped) == (192, 192, 0, None)
    assert Counter(row.status for row in first.rows) == {"ran": 192}
    assert all(plan.results.values())

    again = Plan(calls=plan.calls, told=plan.told)
    second = run(again, two)
    assert (second.ran, second.hits, second.cluster) == (0, 192, False)
    assert {key: result.outputs for key, result in again.results.items() if result} == {
        key: result.outputs for key, result in plan.results.items() if result
    }


def test_a_gather_of_many_travels_as_an_anchor(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    parts = [plan.add("part") for _ in range(40)]
    plan.add("table", inputs={"parts": [out(part) for part in parts]})
    outcome = run(plan, two)
    assert (outcome.ran, outcome.errors) == (41, ())


def test_a_failure_skips_what_needs_it_and_nothing_else(two: LocalCluster, run: Run, heard: list[events.Event]) -> None:
    plan = Plan()
    good = chain(plan, 5, "seed=0")
    bad = plan.add("link", does="fail", lane="seed=1")
    after = plan.add("link", inputs={"x": out(bad)}, lane="seed=1")
    table = plan.add("table", inputs={"scores": [out(good[-1]), out(after)]})
    outcome = run(plan, two)
    assert (outcome.ran, outcome.failed, outcome.skipped) == (5, 1, 2)
    assert [type(error) for error in outcome.errors] == [StageError]
    assert plan.failures == [bad, after, table]
    assert {e.because for e in heard if isinstance(e, events.Skipped)} == {"link#5"}


def test_a_bare_exception_is_a_stage_error_with_its_story(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    plan.add("odd", does="odd")
    (error,) = run(plan, two).errors
    assert isinstance(error, StageError)
    assert error.message == "ZeroDivisionError: a bare one"
    assert error.where == "odd#0"


def test_an_error_is_tried_again_only_if_the_plan_says_so(
    two: LocalCluster, run: Run, heard: list[events.Event]
) -> None:
    from dsec.plan.nodes import Retry

    plan = Plan()
    plan.add("a", does="fail-once", retry=Retry(max=1, backoff=0.01, when=frozenset({"error"})))
    plan.add("b", does="fail-once", retry=Retry(max=1, backoff=0.01, when=frozenset({"timeout"})))
    outcome = run(plan, two)
    assert (outcome.ran, outcome.failed) == (1, 1)
    assert [(e.instance, e.cause, e.attempt) for e in heard if isinstance(e, events.Retried)] == [("a#0", "error", 1)]


def test_fail_fast_starts_nothing_after_a_failure(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    plan.add("bad", does="fail", priority=1)
    for i in range(200):
        plan.add("slow", does=f"sleep:{0.05 + i * 1e-6}")
    outcome = run(plan, two, fail_fast=True)
    assert outcome.failed == 1
    assert outcome.ran < 20


def test_what_no_worker_has_is_refused_with_what_there_is(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    plan.add("big", placement=Placement(cpu=4096))
    outcome = run(plan, two)
    assert isinstance(outcome.stopped, Unsatisfiable)
    assert "cpu: 4096" in str(outcome.stopped)
    assert "gpu (emulated)" in str(outcome.stopped)


def test_refresh_runs_although_there_is_a_result(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    key = plan.add("a")
    run(plan, two)
    fresh = Plan(
        calls=plan.calls,
        told={key: plan.told[key].__class__(*[*_fields(plan.told[key])[:5], "refresh", plan.told[key].recipe])},
    )
    assert run(fresh, two).ran == 1


def _fields(facts: Any) -> list[Any]:
    return [getattr(facts, name) for name in facts.__slots__]


def test_an_output_that_is_gone_is_made_again_for_whoever_needs_it(
    two: LocalCluster, run: Run, store: Store, heard: list[events.Event]
) -> None:
    plan = Plan()
    links = chain(plan, 4, "seed=0")
    for key in links[:3]:
        plan.told[key] = plan.told[key].__class__(*[*_fields(plan.told[key])[:4], False, "use", plan.told[key].recipe])
    run(plan, two)
    for key in links[1:3]:
        result = plan.results[key]
        assert result is not None
        store.blobs.remove(f"anchors/{result.outputs['out'][:2]}/{result.outputs['out']}")
    longer = Plan(calls=list(plan.calls), told=dict(plan.told))
    longer.add("link", inputs={"x": out(links[2])}, lane="seed=0", does="more")
    heard.clear()
    outcome = run(longer, two)
    assert (outcome.hits, outcome.ran, outcome.errors) == (2, 3, ())
    assert {e.instance for e in heard if isinstance(e, events.Remade)} == {"link#1", "link#2"}


def test_a_damaged_input_makes_its_producer_run_again(
    two: LocalCluster, run: Run, store: Store, heard: list[events.Event]
) -> None:
    plan = Plan()
    first = plan.add("first")
    run(plan, two)
    result = plan.results[first]
    assert result is not None
    path = store.path / f"anchors/{result.outputs['out'][:2]}/{result.outputs['out']}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    longer = Plan(calls=list(plan.calls), told=dict(plan.told))
    longer.add("second", inputs={"x": out(first)})
    outcome = run(longer, two)
    assert (outcome.ran, outcome.hits, outcome.errors) == (2, 0, ())
    assert [e.instance for e in heard if isinstance(e, events.Remade)] == ["first#0"]


def test_explicit_counts_make_separate_processes(run: Run, heard: list[events.Event]) -> None:
    with local(ClusterShape(cpu=2, gpu=1)) as cluster:
        plan = Plan()
        for lane in range(4):
            previous = plan.add("collect", lane=f"seed={lane}")
            learnt = plan.add("learn", inputs={"x": out(previous)}, lane=f"seed={lane}", placement=Placement("gpu"))
            plan.add("collect", inputs={"x": out(learnt)}, lane=f"seed={lane}")
        outcome = run(plan, cluster)
        assert outcome.ran == 12
        pids = {
            stage: {plan.results[c.plan_key].cost["pid"] for c in plan.calls if c.stage == stage}  # type: ignore[union-attr]
            for stage in ("collect", "learn")
        }
        assert len(pids["learn"]) == 1
        assert not pids["learn"] & pids["collect"]
    assert [dict(e.workers) for e in heard if isinstance(e, events.ClusterUp)] == [{"cpu": 2, "gpu": 1}]


def test_the_scheduler_keeps_keys_annotations_and_groups(two: LocalCluster, store: Store, tmp_path: Path) -> None:
    """Pins what DSec relies on in Dask: keys by stage, resources, priority, edges to earlier graphs."""
    plan = Plan()
    first = plan.add("train.collect", does="sleep:0.01", lane="a", priority=3)
    second = plan.add("train.learn", inputs={"x": out(first)}, lane="a", placement=Placement("gpu"))
    third = plan.add("train.learn", inputs={"x": out(second)}, does="hang", lane="a")
    site = borders.Site(str(store.path), str(tmp_path))
    jobs = [
        borders.Job(
            c, tuple(e.plan_key for e in c.edges()), plan.told[c.plan_key].placement, plan.told[c.plan_key].priority
        )
        for c in plan.calls
    ]
    names = {c.plan_key: lower.dask_key(store, c) for c in plan.calls}
    with Client(two.address, set_as_default=False) as client:
        futures = []
        for part in (jobs[:2], jobs[2:]):
            graph = lower.graph(part, names, site, body, emulated=True)
            futures += client.get(graph, [names[j.call.plan_key] for j in part], sync=False, fifo_timeout="0s")
        futures[1].result(timeout=20)
        told = client.run_on_scheduler(_tasks)
        client.cancel(futures, force=True)
        client.restart_workers(list(client.scheduler_info(n_workers=-1)["workers"]))
    assert told[names[first]] == ("train.collect", {"cpu": 1.0}, -3, [])
    assert told[names[second]] == ("train.learn", {"gpu": 1.0}, 0, [names[first]])
    assert told[names[third]] == ("train.learn", {"cpu": 1.0}, 0, [names[second]])
    assert names[second].startswith("train.learn-")


def _tasks(dask_scheduler: Any) -> dict[str, Any]:
    return {
        key: (ts.group.name, dict(ts.resource_restrictions or {}), ts.priority[0], [d.key for d in ts.dependencies])
        for key, ts in dask_scheduler.tasks.items()
        if ts.prefix.name == ts.group.name
    }


@pytest.mark.parametrize("page", ["status", "graph", "individual-graph", "individual-progress", "individual-workers"])
def test_the_dashboard_serves_its_pages(two: LocalCluster, page: str) -> None:
    with urllib.request.urlopen(two.dashboard.replace("/status", f"/{page}"), timeout=30) as answer:
        assert answer.status == 200


def test_everything_listens_on_the_loopback_alone(two: LocalCluster) -> None:
    family = psutil.Process().children(recursive=True)
    listening = [
        connection.laddr
        for process in [psutil.Process(), *family]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 4
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_workers_have_their_variables_before_their_interpreter_starts(two: LocalCluster) -> None:
    with Client(two.address, set_as_default=False) as client:
        found = list(client.run(environment).values())
    assert len({told["hash"] for told in found}) == 1
    assert {told["flags"] for told in found} == {"0"}
    assert {told["OMP_NUM_THREADS"] for told in found} == {"1"}
    assert {told["DSEC_WORKER"] for told in found} == {f"worker-{i}" for i in range(len(found))}


def test_a_dry_run_says_what_would_run(two: LocalCluster, run: Run, store: Store) -> None:
    plan = Plan()
    links = chain(plan, 3, "seed=0")
    run(plan, two)
    longer = Plan(calls=list(plan.calls), told=dict(plan.told))
    more = longer.add("link", inputs={"x": out(links[-1])})
    longer.add("link", inputs={"x": out(more)})
    verdicts = list(resolve.survey(longer, store))
    assert [verdict.runs for verdict in verdicts] == [False, False, False, True, True]
    assert [verdict.reason for verdict in verdicts[3:]] == ["no result yet", "1 of the calls it needs would run"]


def test_a_port_that_is_taken_is_no_trouble() -> None:
    with socket.create_server(("127.0.0.1", 0)), local(ClusterShape(cpu=1)) as cluster:
        assert cluster.dashboard.startswith("http://127.0.0.1:")
