"""Promise 1: a run killed at any instant and run again gives the same anchors as one left alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from projects import SMALL, Project


def slow(point: str) -> Any:
    return pytest.param(point, marks=pytest.mark.slow)


WORKERS_DIE_AT = (
    slow("init.body"),
    "rollout.mid",
    slow("stage.after-blobs"),
    "store.actions.after-entry",
    slow("store.anchors.put.after-chunks:2"),
)
DRIVER_DIES_AT = (
    slow("store.runs.after-start"),
    slow("store.blobs.put.after-temp:3"),
    "store.catalog.before-commit:2",
    slow("store.catalog.after-commit:2"),
)


@pytest.mark.parametrize("point", WORKERS_DIE_AT)
def test_a_worker_dies_at_a_named_point(
    project: Project, undisturbed: dict[str, Any], tmp_path: Path, point: str
) -> None:
    died = tmp_path / "died"
    made = project.run(*SMALL, DSEC_FAILPOINT=point, DSEC_FAILPOINT_ONCE=str(died), DSEC_RECOVERY_SECONDS="0")
    assert died.exists(), "the point was not reached"
    assert made["failed"] == 0
    found = project.instances(made["run"])
    assert {name: instance["outputs"] for name, instance in found.items()} == undisturbed


@pytest.mark.parametrize("point", DRIVER_DIES_AT)
def test_the_driver_dies_at_a_named_point(project: Project, undisturbed: dict[str, Any], point: str) -> None:
    killed = project.dsec("run", project.plan, *SMALL, DSEC_FAILPOINT=point)
    assert killed.returncode == -signal.SIGKILL
    assert project.outputs() == undisturbed


def test_the_driver_is_killed_mid_rollout_and_the_rollout_goes_on(project: Project) -> None:
    words = ("-p", "iterations=1", "-p", "steps=80000", "-p", "seeds=[0]")
    process = project.start("run", project.plan, *words, "--workers", "cpu=1", DSEC_RECOVERY_SECONDS="0.5")
    wait_for(lambda: any((project.store / "partial").rglob("*")) and _files(project.store / "partial"))
    workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(psutil.pid_exists(pid) and _alive(pid) for pid in workers))
    made = project.instances(project.run(*words, "--workers", "cpu=1")["run"])
    assert made["train@seed=0#0/collect"]["cost"]["resumed_from_step"] > 0
    alone = project.at("alone").instances(project.at("alone").run(*words)["run"])
    assert {n: i["outputs"] for n, i in made.items()} == {n: i["outputs"] for n, i in alone.items()}


def test_all_workers_are_killed_and_the_run_goes_on(project: Project, undisturbed: dict[str, Any]) -> None:
    process = project.start("run", project.plan, *SMALL, "--json")
    wait_for(lambda: _files(project.store / "actions"))
    for pid in _workers(process.pid):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert project.outputs() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["driver", "worker", "workers"])
@pytest.mark.parametrize("number", range(20))
def test_whoever_is_killed_at_any_time(project: Project, undisturbed: dict[str, Any], victim: str, number: int) -> None:
    process = project.start("run", project.plan, *SMALL, "--json")
    time.sleep(0.3 + 0.37 * number)  # the offset is the point of this test
    if victim == "driver":
        process.send_signal(signal.SIGKILL)
    else:
        for pid in _workers(process.pid)[: 1 if victim == "worker" else None]:
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert victim == "driver" or process.returncode == 0, err
    filed = sum(path.is_file() for path in (project.store / "actions").rglob("*"))
    made = project.run(*SMALL)
    assert made["hits"] >= filed, "a call that was done ran again"
    found = project.instances(made["run"])
    assert {name: instance["outputs"] for name, instance in found.items()} == undisturbed


def wait_for(happened: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)  # another process is awaited, which sends no signal


def _workers(driver: int) -> list[int]:
    """Processes that a driver started for calls; its probe and its imports are others."""
    try:
        children = psutil.Process(driver).children(recursive=True)
        return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def _files(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
