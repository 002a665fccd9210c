"""Every plan in plans/ runs, shortened; one session's steps over three machines are those of one unsplit rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from projects import SOURCES, Project

from dsec import api
from dsec.store import anchors, root

PLANS = sorted(path.name for path in (SOURCES / "plans").glob("*.yaml"))
SHORT = ("-p", "iterations=2", "-p", "steps=64")
STEPS = 600
PARTS = ("simulate", "encode", "settle")
UNSPLIT = '\n  whole: {uses: "dsec.stages:rollout", steps: 0-}\n'


def test_no_plan_is_left_out() -> None:
    assert PLANS == ["cartpole_ppo.yaml", "step_ranges.yaml", "sweep.yaml"]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_right_as_it_stands(name: str) -> None:
    assert [str(problem) for problem in api.load_plan(SOURCES / "plans" / name).check(imports=False)] == []


def test_ppo_trains_both_seeds_and_costs_nothing_again(tmp_path: Path) -> None:
    project = Project(SOURCES, tmp_path / "store", "plans/cartpole_ppo.yaml")
    made = project.run(*SHORT, "--workers", "cpu=2,gpu=1")
    assert (made["calls"], made["ran"], made["failed"], made["cluster"]) == (15, 15, 0, True)
    found = project.instances(made["run"])
    assert found["train@seed=1#1/learn"]["cost"]["kind"] == "gpu"
    assert found["train@seed=1#1/collect"]["cost"]["kind"] == "cpu"
    assert found["eval@seed=0"]["stats"]["episodes"] == 20
    again = project.run(*SHORT)
    assert (again["hits"], again["ran"], again["cluster"]) == (15, 0, False)


def test_the_sweep_has_twelve_sessions(tmp_path: Path) -> None:
    project = Project(SOURCES, tmp_path / "store", "plans/sweep.yaml")
    made = project.run("-p", "iterations=1", "-p", "steps=32")
    assert (made["ran"], made["failed"]) == (12 * 3 + 3 + 12 + 1, 0), "init.env is one call for each seed"
    shown = json.loads(project.dsec("show", made["run"], "--json").stdout)
    assert len({session["session_id"] for session in shown["sessions"]}) == 12
    table = shown["instances"]["table"]["outputs"]["table"]
    rows = anchors.get(root.open_store(project.store).blobs, table)["rows"]
    rates = ("0.0003", "0.001", "0.002", "0.004")
    assert [row[:2] for row in rows] == [[rate, seed] for rate in rates for seed in range(3)]


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, Any]]:
    """The plan of step ranges with one more stage, all steps in one: its project, and its instances after a run."""
    folder = tmp_path_factory.mktemp("ranges")
    text = (SOURCES / "plans/step_ranges.yaml").read_text()
    (folder / "plan.yaml").write_text(text.rstrip() + UNSPLIT)
    project = Project(folder, folder / "store", "plan.yaml")
    made = project.run("-p", f"steps={STEPS}", "--workers", "cpu=1,gpu=1")
    assert made["failed"] == 0
    return project, project.instances(made["run"])


def test_split_and_unsplit_end_in_the_same_state(ranges: tuple[Project, dict[str, Any]]) -> None:
    _, found = ranges
    assert [found[part]["cost"]["kind"] for part in PARTS] == ["cpu", "gpu", "cpu"]
    last, whole = found["settle"]["outputs"], found["whole"]["outputs"]
    assert {name: last[name] for name in ("state", "agent", "env")} == {
        name: whole[name] for name in ("state", "agent", "env")
    }
    assert {"state@25", "state@50", "state@75", "state@100"} <= found["simulate"]["outputs"].keys()


def test_split_and_unsplit_take_the_same_steps(ranges: tuple[Project, dict[str, Any]]) -> None:
    project, found = ranges
    blobs = root.open_store(project.store).blobs
    whole, *parts = (anchors.get(blobs, found[name]["outputs"]["trace"]) for name in ("whole", *PARTS))
    assert whole["step"].tolist() == list(range(STEPS))
    for column in whole.keys() - {"kind", "first"}:
        assert np.array_equal(np.concatenate([part[column] for part in parts]), whole[column]), column


def test_the_plan_as_it_ships_finds_these_results(ranges: tuple[Project, dict[str, Any]]) -> None:
    project, _ = ranges
    made = Project(SOURCES, project.store, "plans/step_ranges.yaml").run("-p", f"steps={STEPS}")
    assert (made["ran"], made["cluster"]) == (0, False)
