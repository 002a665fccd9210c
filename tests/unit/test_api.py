"""The one door: load, check, look ahead, run, ask. Calls run in this process, one after another, through run_stage."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from serial_cluster import Serial

from dsec import api
from dsec.core.stage import StageCall, StageResult
from dsec.engine import classes, cluster, trampoline
from dsec.errors import PlanError, UsageError
from dsec.runtime.facts import WorkerFacts
from dsec.runtime.stage import run_stage
from dsec.store import root, runs, system

CLASS = "c" * 64
SMALL = {"iterations": 2, "steps": 60}
CALLS = 2 * (2 + 2 * 2 + 1) + 1


def run_here(call_json: str, errand_json: str, *upstream_json: str) -> str:
    """What a worker does, without its process: no probe, no pinned variables, no watch over what is imported."""
    call, errand = replace(StageCall.from_json(call_json), bundle=None), json.loads(errand_json)
    names = list(dict.fromkeys(edge.plan_key for edge in call.edges()))
    upstream = {key: StageResult.from_json(json.loads(text)[0]) for key, text in zip(names, upstream_json, strict=True)}
    store = root.open_store(errand["store"], create=False)
    facts = WorkerFacts(kind=errand["kind"], class_id=CLASS, run_id=errand["run_id"])
    return trampoline.reply_of(run_stage(call, upstream, store, facts).to_json(), True, 0.25)


class Here(Serial):
    """A local cluster of this process."""

    def __init__(self, *_: Any) -> None:
        super().__init__(run_here)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def here() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "LocalCluster", Here)
        yield


def prepared(store: Path) -> Path:
    """A store that knows the runtime class of this host, so that nobody probes."""
    opened = root.open_store(store)
    classes.remember(opened, None, {kind: {"class_id": CLASS} for kind in classes.KINDS})
    return store


@pytest.fixture(scope="module")
def finished(here: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, api.RunSummary, list[str]]:
    """A new project whose plan has run, what the run said, and the names of its events."""
    folder = tmp_path_factory.mktemp("api")
    api.init(folder / "project", "first")
    heard: list[Any] = []
    plan = api.load_plan(folder / "project/plans/first.yaml", params=SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "project")
        summary = api.run(plan, store=prepared(folder / "store"), report=heard.append)
    for name in [name for name in sys.modules if name.partition(".")[0] == "agents"]:
        del sys.modules[name]  # those of other tests are other ones
    return folder, summary, [type(event).__name__ for event in heard]


@pytest.fixture
def place(finished: Any, tmp_path: Path) -> Path:
    """A copy of the project and its store, to be changed."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def plan_of(place: Path, **params: Any) -> api.Plan:
    return api.load_plan(place / "project/plans/first.yaml", params={**SMALL, **params})


def edit(place: Path, file: str, old: str, new: str) -> None:
    path = place / "project" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_run_says_how_it_ended(finished: Any) -> None:
    folder, summary, heard = finished
    assert (summary.status, summary.plan, summary.store) == ("done", "first", folder / "store")
    assert (summary.calls, summary.hits, summary.ran, summary.failed, summary.skipped) == (CALLS, 0, CALLS, 0, 0)
    assert summary.cluster
    assert summary.errors == ()
    assert heard
    (table,) = summary.tables
    assert (table.instance, table.columns[:2]) == ("table", ("seed", "mean"))
    assert [row[0] for row in table.rows] == [0, 1]


def test_the_same_run_again_is_read_from_the_store(place: Path) -> None:
    again = api.run(plan_of(place), store=place / "store")
    assert (again.calls, again.hits, again.ran, again.cluster) == (CALLS, CALLS, 0, False)
    assert again.tables


def test_load_plan_reads_and_imports_nothing(place: Path) -> None:
    edit(place, "agents/scoring.py", "SPREAD = 1.0", "raise RuntimeError")
    plan = plan_of(place)
    assert (plan.name, plan.root) == ("first", place / "project")
    assert plan.written.params["iterations"] == 2


def test_a_param_that_the_plan_does_not_have(place: Path) -> None:
    with pytest.raises(UsageError, match="iteration"):
        plan_of(place, iteration=3)


def test_a_wrong_plan_is_refused_with_all_its_problems(place: Path) -> None:
    edit(place, "plans/first.yaml", "agent: carry.agent", "agent: carry.agnt")
    edit(place, "plans/first.yaml", "agent: train.agent", "agent: trian.agent")
    problems = plan_of(place).check(imports=False)
    assert [problem.code for problem in problems] == ["unknown-carry", "unknown-stage"]
    for doing in (api.run, api.Plan.preview):
        with pytest.raises(PlanError) as caught:
            doing(plan_of(place), store=place / "new")
        assert len(caught.value.problems) == 2
    assert not (place / "new").exists(), "a wrong plan leaves no store"


def test_check_says_nothing_of_a_right_plan(place: Path) -> None:
    assert plan_of(place).check() == ()
    assert plan_of(place).check(store=place / "store") == ()


def test_a_broken_import_is_found_before_a_store_is_made(place: Path) -> None:
    edit(place, "agents/scoring.py", "SPREAD = 1.0", "SPREAD = 1.0 / 0")
    assert plan_of(place).check(imports=False) == ()
    (problem,) = plan_of(place).check()
    assert "ZeroDivisionError" in problem.message


def test_preview_without_a_store_knows_no_class(place: Path) -> None:
    found = plan_of(place).preview(store=place / "none")
    assert (found.calls, found.hits, found.to_run) == (CALLS, 0, CALLS)
    assert "runtime class unknown" in found.notes[0]
    assert not (place / "none").exists()


def test_preview_counts_by_stage(place: Path) -> None:
    found = plan_of(place).preview(store=place / "store")
    assert (found.plan, found.calls, found.hits, found.to_run, found.notes) == ("first", CALLS, CALLS, 0, ())
    more = plan_of(place, iterations=3).preview(store=place / "store")
    rows = {row.stage: (row.instances, row.cached, row.to_run) for row in more.rows}
    assert rows["train.collect"] == rows["train.learn"] == (6, 4, 2)
    assert rows["eval"] == (2, 0, 2)
    assert next(row for row in more.rows if row.stage == "eval").reason


def test_preview_of_a_selection(place: Path) -> None:
    found = plan_of(place).preview(store=place / "store", select=("train@seed=0*",))
    assert found.calls == 2 + 2 * 2


def test_the_graph_is_drawn_as_text_and_for_mermaid(place: Path) -> None:
    plan = plan_of(place)
    for stage in ("collect", "learn", "eval", "table"):
        assert stage in plan.graph()
        assert stage in plan.graph("mermaid")
    assert plan.graph("mermaid").startswith(("flowchart", "graph"))
    with pytest.raises(UsageError, match="dot"):
        plan.graph("dot")


def test_runs_are_listed_newest_first(place: Path) -> None:
    again = api.run(plan_of(place), store=place / "store")
    newest, first = api.runs(place / "store")
    assert newest.run_id == again.run_id
    assert (first.plan, first.status, first.calls, first.ran) == ("first", "done", CALLS, CALLS)
    assert Path(first.path).name == "first.yaml"
    assert first.params == SMALL
    assert api.runs(place / "none") == ()


def test_show_tells_sessions_and_instances(finished: Any) -> None:
    folder, summary, _ = finished
    told = api.show(folder / "store", summary.run_id[-6:])
    assert (told["run"], told["status"]) == (summary.run_id, "done")
    assert [session["seed"] for session in told["sessions"]] == [0, 1]
    assert all(len(session) == 7 for session in told["sessions"])
    assert len(told["instances"]) == CALLS
    learn = told["instances"]["train@seed=0#1/learn"]
    assert set(learn) == {"status", "plan_key", "action_key", "outputs", "stats", "cost"}
    assert set(learn["outputs"]) == {"agent", "metrics"}
    assert json.loads(json.dumps(told)) == told
    with pytest.raises(UsageError, match="no run begins"):
        api.show(folder / "store", "nope")


def test_why_of_a_cached_instance(place: Path) -> None:
    told = api.why(plan_of(place), "train@seed=0#1/learn", place / "store")
    assert (told.status, told.reasons) == ("cached", ("its result is in the store",))


def test_why_names_the_edited_constant(place: Path) -> None:
    edit(place, "agents/scoring.py", "SPREAD = 1.0", "SPREAD = 0.5")
    told = api.why(plan_of(place), "init.agent@seed=0", place / "store")
    assert told.status == "to run"
    assert "agents/scoring.py:SPREAD" in told.reasons[0]
    later = api.why(plan_of(place), "train@seed=0#1/collect", place / "store")
    assert any("agents/scoring.py:SPREAD" in reason for reason in later.reasons)
    assert api.why(plan_of(place), "init.env@seed=0", place / "store").status == "cached"


def test_why_names_a_param(place: Path) -> None:
    edit(place, "plans/first.yaml", "patience: 0.95", "patience: 0.9")
    told = api.why(plan_of(place), "init.agent@seed=1", place / "store")
    assert told.reasons == ("agent.with.patience: 0.95 -> 0.9",)


def test_why_of_a_name_that_is_not_there_suggests_one(place: Path) -> None:
    with pytest.raises(UsageError, match="learn") as caught:
        api.why(plan_of(place), "train@seed=0#1/lern", place / "store")
    assert "train@seed=0#1/learn" in str(caught.value)


def test_an_unfinished_run_is_gone_on_with(place: Path) -> None:
    opened, plan = root.open_store(place / "store"), plan_of(place)
    begun = runs.start_run(opened, plan.identity(()), datetime.datetime.now(datetime.UTC), plan="first")
    dead = replace(system.this_process(), started=1)
    root.replace_json(opened, f"runs/{begun.identity[:16]}/{begun.run_id}.owner.json", asdict(dead))
    assert next(row for row in api.runs(place / "store") if row.run_id == begun.run_id).status == "unfinished"
    assert api.run(plan, store=place / "store").run_id == begun.run_id
    assert [row.status for row in api.runs(place / "store")] == ["done", "done"]


def test_the_schema_is_one_of_json_schema() -> None:
    assert api.schema()["$schema"].startswith("https://json-schema.org/")
