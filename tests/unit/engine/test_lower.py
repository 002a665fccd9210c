from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

from dsec.core import keys
from dsec.core.stage import AnchorId, Edge, Input, Placement, PlanKey, StageCall
from dsec.engine import lower, resolve
from dsec.engine.borders import Job, Site
from dsec.engine.trampoline import run_call
from dsec.runtime import inputs
from dsec.store import root

SITE = Site("/store", "/project", "group", "run")
HEX = "a" * 64


def job(name: str, *upstream: str, stage: str = "train.learn", placement: Placement | None = None) -> Job:
    sources = {f"x{i}": Input((Edge(PlanKey(key), "out"),)) for i, key in enumerate(upstream)}
    call = StageCall(f"{stage}#{name}", stage, PlanKey(name), HEX, sources)  # type: ignore[arg-type]
    return Job(call, tuple(PlanKey(key) for key in upstream), placement or Placement())


def test_layers_hold_one_stage_and_one_slot_each() -> None:
    jobs = [job("a", stage="collect"), job("b", "a", placement=Placement("gpu")), job("c", "b", stage="collect")]
    names = {j.call.plan_key: f"{j.call.stage}-{j.call.plan_key}" for j in jobs}
    graph = lower.graph(jobs, names, SITE, run_call, emulated=True)
    layers = sorted((sorted(layer), layer.annotations) for layer in graph.layers.values())
    assert layers == [
        (["collect-a", "collect-c"], {"resources": {"cpu": 1.0}, "priority": 0}),
        (["train.learn-b"], {"resources": {"gpu": 1.0}, "priority": 0}),
    ]
    tasks = graph.to_dict()
    assert set(tasks["collect-c"].dependencies) == {"train.learn-b"}
    assert set(tasks["collect-a"].dependencies) == set()


def test_a_slot_is_asked_for_with_its_labels_and_its_real_device() -> None:
    asked = Placement("gpu", cpu=8, gpu=2, memory=5, vram=7, labels=("fast",))
    assert lower.resources(asked, emulated=True) == {"gpu": 2.0, "label:fast": 1.0}
    assert lower.resources(asked, emulated=False) == {"gpu": 2.0, "vram": 7.0, "label:fast": 1.0}


def test_a_long_gather_travels_as_an_anchor_that_the_runtime_reads(tmp_path: Path) -> None:
    store = root.open_store(tmp_path)
    ids = tuple(AnchorId(f"{i:064x}") for i in range(861))
    gather = Input(ids, tuple(f"seed={i}" for i in range(861)))
    call = StageCall("table", "table", PlanKey(HEX), HEX, {"scores": gather})  # type: ignore[arg-type]
    short = lower.compact(store, call)
    assert len(short.to_json()) < 4096
    assert len(pickle.dumps(short)) < 4096
    read = inputs.resolved(StageCall.from_json(short.to_json()), {}, store.blobs)
    assert read.inputs == {"scores": gather}
    assert keys.action_key(read) == keys.action_key(call)
    assert lower.compact(store, read) == short


def test_a_call_keeps_edges_to_calls_at_the_cluster_alone(tmp_path: Path) -> None:
    from dsec.core.stage import ActionKey, StageResult

    store = root.open_store(tmp_path)
    call = job("c", "a", "b").call
    known = {PlanKey("a"): StageResult(ActionKey("k"), {"out": AnchorId(HEX)})}
    bound = resolve.bind(call, known, store)
    assert bound.inputs["x0"].sources == (HEX,)
    assert bound.edges() == (Edge(PlanKey("b"), "out"),)


def test_what_a_worker_is_told_beside_the_call_is_the_same_for_all_calls_of_a_kind() -> None:
    told = lower.errand(SITE, "gpu", False)
    assert lower.errand(SITE, "gpu", False) is told
    assert json.loads(told) == {
        "store": "/store",
        "root": "/project",
        "durability": "group",
        "run_id": "run",
        "kind": "gpu",
        "refresh": False,
    }


def test_what_a_scheduler_unpickles_imports_next_to_nothing() -> None:
    script = f"""
import pickle, sys
sys.path[:0] = {sys.path!r}
assert pickle.loads({pickle.dumps(run_call)!r}).__name__ == "run_call"
print(*(m for m in ("numpy", "torch", "pydantic", "dask", "zarr", "sqlalchemy", "dsec.core", "dsec.store")
        if m in sys.modules))
"""
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == []
    )
