"""A scheduler that somebody else started, and workers that join it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from listed_plan import HERE, Plan, body, chain

from dsec.engine import cluster, drive
from dsec.errors import ClusterError, UsageError
from dsec.runtime.numerics import VARIABLES
from dsec.store.root import Store

SCHEDULER = """
import asyncio, dask
from distributed import Scheduler
from dsec.engine.cluster import CONFIG
async def serve():
    async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
dask.config.set(dict(CONFIG))
asyncio.run(serve())
"""
WORKER = """
import sys
from pathlib import Path
if __name__ == "__main__":
    from dsec.engine import cluster
    from dsec.runtime.numerics import VARIABLES
    cluster.run_worker(sys.argv[1], sys.argv[2], root=Path(sys.argv[3]), variables=VARIABLES, labels=("fast",))
"""


def _ended(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": path}
    scheduler = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert scheduler.stdout is not None
    found = scheduler.stdout.readline().strip()
    script = tmp_path_factory.mktemp("worker") / "worker.py"
    script.write_text(WORKER)
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), found, kind, str(HERE)],
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for kind in ("cpu", "gpu")
    ]
    try:
        from distributed import Client

        with Client(found, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield found
    finally:
        for process in (*workers, scheduler):
            _ended(process)


def test_a_plan_runs_on_workers_that_joined_a_scheduler(address: str, store: Store, tmp_path: Path) -> None:
    from dsec.core.stage import Placement

    made = cluster.RemoteCluster(address, run=body)
    plan = Plan()
    chain(plan, 10, "a")
    plan.add("learn", placement=Placement("gpu", labels=("fast",)))
    plan.add("never", placement=Placement("gpu", labels=("slow",)))
    try:
        assert {offer.kind: (offer.slots, offer.labels) for offer in made.capacity.offers} == {
            "cpu": (1, ("fast",)),
            "gpu": (1, ("fast",)),
        }
        refused = drive.drive(plan, store, cluster=lambda: made, root=tmp_path, run_id="r")
        assert "labels: slow" in str(refused.stopped)
        plan = Plan(plan.calls[:-1], plan.told)
        outcome = drive.drive(plan, store, cluster=lambda: made, root=tmp_path, run_id="r")
        assert (outcome.ran, outcome.stopped) == (11, None)
    finally:
        made.close()


def test_its_workers_say_their_runtime_class(address: str) -> None:
    made = cluster.connect(address)
    try:
        records = made.class_records()
    finally:
        made.close()
    assert sorted(records) == ["cpu", "gpu"]
    assert records["cpu"]["class_id"] == records["gpu"]["class_id"]
    assert records["cpu"]["variables"]["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("far", ["tcp://10.0.0.7:8786", "scheduler.example:8786", "tls://127.0.0.1:8786"])
def test_nothing_is_sent_beyond_this_host(far: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="TLS"):
        cluster.connect(far)
    with pytest.raises(ClusterError, match="TLS"):
        cluster.run_worker(far, "cpu", root=tmp_path, variables=VARIABLES)


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    with pytest.raises(ClusterError, match="no scheduler answers"):
        cluster.connect("tcp://127.0.0.1:1")


def test_a_kind_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cpu or gpu"):
        cluster.run_worker("tcp://127.0.0.1:1", "tpu", root=tmp_path, variables=VARIABLES)
