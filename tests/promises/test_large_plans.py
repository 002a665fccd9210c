"""A chain of 5,000 stages and a plan of 344,400 calls: planned without recursion, begun at once, in little memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import large
import psutil
import pytest
from projects import SOURCES, Project

from dsec import api
from dsec.engine import classes
from dsec.plan import select
from dsec.plan.frontier import MAX_OUTSTANDING, Frontier

GIB = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large.project(tmp_path_factory.mktemp("large") / "project")


def frontier(folder: Path, plan: str) -> Frontier:
    loaded = api.load_plan(folder / "plans" / plan)
    return select.frontier(loaded.compiled(dict.fromkeys(classes.KINDS), None), ())


def test_a_chain_of_5000_stages_is_planned(folder: Path, tmp_path: Path) -> None:
    preview = api.load_plan(folder / "plans" / "chain.yaml").preview(tmp_path / "none")
    assert (preview.calls, preview.to_run, len(preview.rows)) == (5000, 5000, 5000)


def test_a_chain_is_known_in_full_before_anything_ran(folder: Path) -> None:
    plan = frontier(folder, "chain.yaml")
    taken = [call for _ in range(100) for call in plan.take(1000)]
    assert len({call.plan_key for call in taken}) == 5000
    assert plan.exhausted


def test_a_large_plan_is_taken_a_bounded_way_ahead(folder: Path) -> None:
    plan = frontier(folder, "grid.yaml")
    taken = [call for _ in range(1000) for call in plan.take(1000)]
    assert 1000 <= len(taken) <= MAX_OUTSTANDING
    assert not plan.exhausted
    for call in taken[:100]:
        plan.done(call.plan_key, None)
    assert plan.take(1000)


def test_a_plan_whose_axis_is_a_column_of_a_file_is_found_again(folder: Path) -> None:
    one = api.load_plan(folder / "plans" / "grid.yaml")
    assert one.identity(()) == api.load_plan(folder / "plans" / "grid.yaml").identity(())
    assert one.identity(()) != api.load_plan(folder / "plans" / "grid.yaml", params={"steps": 9}).identity(())


def test_a_thousand_readers_of_a_thousand_cells_take_no_million_steps(folder: Path) -> None:
    text = large.CELLS + '  next: {uses: "bodies:bump", inputs: {x: cell.x}}\n'
    (folder / "plans" / "pairs.yaml").write_text(text)
    began = time.process_time()
    plan, taken = frontier(folder, "pairs.yaml"), 0
    while calls := plan.take(1000):
        taken += len(calls)
        for call in calls:
            plan.done(call.plan_key, None)
    assert taken == 2000
    assert time.process_time() - began < 2


@pytest.mark.slow
def test_all_344400_calls_are_planned(folder: Path, tmp_path: Path) -> None:
    preview = api.load_plan(folder / "plans" / "grid.yaml").preview(tmp_path / "none")
    assert preview.calls == large.GRID_CALLS + large.BEGINNINGS
    assert psutil.Process().memory_info().rss < GIB


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["grid", "chain"])
def test_a_large_plan_runs_at_once_in_little_memory_and_ends_when_told(folder: Path, tmp_path: Path, plan: str) -> None:
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # others may have the machine
    seen = _watched(Project(folder, tmp_path / "store", f"plans/{plan}.yaml"), seconds=60)
    assert seen["submitted"] < 10 * busy, seen
    assert seen["rss"] < GIB
    assert seen["finished"]
    assert seen["code"] in (0, 130)  # an idle machine is through with the chain within the minute
    assert seen["last"]["event"] == "run-finished"
    assert seen["ended"] < 15


def _watched(project: Project, *, seconds: float) -> dict[str, Any]:
    """Run a plan for some seconds, interrupt it, and give what was seen of it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-m", "dsec", "run", project.plan, "--json", "--store", str(project.store)]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    seen: dict[str, Any] = {"rss": 0}
    reader = threading.Thread(target=_read, args=(process, began, seen))
    reader.start()
    driver = psutil.Process(process.pid)
    while time.monotonic() - began < seconds and process.poll() is None:
        seen["rss"] = max(seen["rss"], driver.memory_info().rss)
        reader.join(0.2)
    told = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        seen["code"] = process.wait(60)
    finally:
        process.kill()
        reader.join()
    return {**seen, "ended": time.monotonic() - told}


def _read(process: subprocess.Popen[str], began: float, seen: dict[str, Any]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            event = json.loads(line)
            seen.setdefault(event["event"], time.monotonic() - began)
            seen["last"] = event
