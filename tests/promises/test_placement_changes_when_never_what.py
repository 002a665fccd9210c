"""Promise 13: workers, order, hash seed and folders change when things happen, never what comes out."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from projects import SMALL, Project


@pytest.mark.parametrize("workers", ["cpu=1,gpu=1", pytest.param("cpu=4", marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_anchors(
    project: Project, undisturbed: dict[str, Any], workers: str
) -> None:
    assert project.outputs((*SMALL, "--workers", workers)) == undisturbed


def test_another_checkout_folder_and_hash_seed_gives_the_same_keys(
    project: Project, undisturbed: dict[str, Any]
) -> None:
    moved = project.folder.with_name("somewhere-else")
    shutil.move(project.folder, moved)
    (moved / "deep").mkdir()
    other = Project(moved / "deep", project.store, "../plans/first.yaml", {"PYTHONHASHSEED": "17", "TZ": "Asia/Tokyo"})
    assert other.outputs() == undisturbed


def test_where_and_how_soon_a_stage_runs_reruns_nothing(done: Project) -> None:
    done.edit(
        "plans/first.yaml",
        "inputs: {agent: collect.agent, batch: collect.batch}",
        "inputs: {agent: collect.agent, batch: collect.batch}\n        resources: {worker: gpu, memory: 1MiB}\n"
        "        priority: 5\n        timeout: 10min",
    )
    again = done.run(*SMALL)
    assert (again["ran"], again["hits"], again["cluster"]) == (0, 15, False)


def test_one_sessions_parameter_reruns_that_lane_alone(done: Project) -> None:
    changed = done.run("-p", "iterations=2", "-p", "steps=60", "-p", "seeds=[0, 7]")
    assert (changed["hits"], changed["ran"]) == (7, 8)


def test_more_iterations_run_only_those(done: Project) -> None:
    made = done.run("-p", "iterations=4", "-p", "steps=60")
    assert made["hits"] == 2 * (2 + 4)
    ran = [n for n, i in done.instances(made["run"]).items() if i["status"] == "ran"]
    assert sorted(n for n in ran if "#" in n) == sorted(
        f"train@seed={seed}#{i}/{stage}" for seed in (0, 1) for i in (2, 3) for stage in ("collect", "learn")
    )


BRANCH = """
dsec: 1
name: branch
session: {{agent: {{uses: "agents.climber:Climber", with: {{patience: 0.5}}}}, env: gymnasium/CartPole-v1, seed: 9}}
stages:
  more: {{uses: "dsec.stages:rollout", steps: 40, inputs: {{agent: "anchor:{agent}", env: "anchor:{env}"}}}}
  eval: {{uses: "dsec.stages:evaluate", inputs: {{agent: more.agent}}, with: {{episodes: 2}}}}
"""


def test_a_plan_branches_from_an_anchor_of_another_session(done: Project) -> None:
    made = done.instances(done.run(*SMALL)["run"])
    agent = made["train@seed=0#1/learn"]["outputs"]["agent"]
    env = made["train@seed=0#1/collect"]["outputs"]["env"]
    (done.folder / "plans/branch.yaml").write_text(BRANCH.format(agent=agent, env=env))
    branch = Project(done.folder, done.store, "plans/branch.yaml")
    ran = branch.run()
    assert (ran["calls"], ran["ran"]) == (2, 2)
    assert branch.instances(ran["run"])["more"]["stats"]["steps"] == 40
    assert (branch.run()["ran"], branch.run()["cluster"]) == (0, False)
