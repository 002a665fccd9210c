"""Runs are told from the store's objects; only a run without an end needs the catalog."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsec.audit import report
from dsec.core import canon
from dsec.core.session import Deciding, new_session
from dsec.errors import CorruptObject
from dsec.store import actions, runs, system
from dsec.store.catalog import Catalog, Recorded
from dsec.store.runs import Call, End


def test_a_run_is_told_with_its_sessions_and_instances(history: Any) -> None:
    found_by = canon.digest("test", "session")
    made = new_session(found_by, datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC), Deciding("a", "e", None, 7, 100))
    runs.put_session(history.store, found_by, made)
    row = history.file(history.call())
    run = history.run([row], sessions=[found_by, canon.digest("test", "never filed")])
    told = report.details(history.store, run)
    assert {name: told[name] for name in ("run", "plan", "status", "created", "seconds", "counts")} == {
        "run": run.run_id,
        "plan": "tiny",
        "status": "done",
        "created": "2026-01-31T12:00:00.000Z",
        "seconds": 2.5,
        "counts": {"calls": 1, "ran": 1},
    }
    assert told["sessions"] == [made.to_json()]
    assert len(told["sessions"][0]) == 7
    assert told["instances"] == {
        "learn@seed=0": {
            "status": "ran",
            "plan_key": row.plan_key,
            "action_key": row.action_key,
            "outputs": {"agent": history.anchor({"w": 1})},
            "stats": {"loss": 0.5},
            "cost": {"seconds": 1.5},
        }
    }


def test_a_failed_instance_says_its_error_and_has_no_outputs(history: Any) -> None:
    call = history.call()
    failed = Call(call.instance, call.stage, "failed", call.plan_key, error="stage: it broke")
    told = report.details(history.store, history.run([failed]))["instances"]["learn@seed=0"]
    assert (told["status"], told["error"], told["outputs"]) == ("failed", "stage: it broke", {})


def test_the_status_of_a_run(history: Any) -> None:
    finished, going = history.run([]), history.run(None, minutes=1)
    assert report.status_of(finished) == "done"
    assert report.status_of(replace(finished, end=End("failed", "", 0.0))) == "failed"
    assert report.status_of(going) == "running"
    ended = replace(system.this_process(), started=1)
    assert report.status_of(replace(going, owner=ended)) == "unfinished"


def test_a_killed_run_is_told_as_far_as_the_catalog_came(history: Any) -> None:
    call = history.call()
    row = history.file(call)
    result = actions.load(history.store.blobs, row.action_key)
    run = history.run(None)
    assert report.calls_of(history.store, run) == []
    with Catalog(history.store.catalog) as catalog:
        catalog.record_run(run)
        catalog.record_calls(run.run_id, [Recorded(call, "ran", result, 1.5)])
    assert report.calls_of(history.store, run) == [row]


def test_a_table_is_read_and_one_of_a_loop_is_not(history: Any) -> None:
    table = {"table": {"kind": "table", "columns": ["seed", "mean"], "rows": [[0, 475.5]]}}
    shown = history.file(history.call("table"), table)
    inside = replace(shown, instance="train#0/table", stage="train.table")
    other = history.file(history.call("sums", stream="sums"), {"table": [1, 2]})
    skipped = replace(shown, instance="skipped", status="skipped", action_key=None)
    found = list(report.tables(history.store, [inside, shown, other, skipped]))
    assert found == [("table", ["seed", "mean"], [[0, 475.5]])]


def test_plain_reads_no_arrays(history: Any) -> None:
    assert report.plain(history.store, history.anchor({"a": (1, None)})) == {"a": (1, None)}
    with pytest.raises(CorruptObject):
        report.plain(history.store, history.anchor({"a": np.zeros(3)}))
