"""Workers that die, hang, or eat all memory; a driver that is interrupted or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from listed_plan import HERE, Plan, Run, chain, local, out

from dsec.engine import events
from dsec.engine.cluster import LocalCluster
from dsec.engine.dispatch import Limits
from dsec.engine.shape import ClusterShape
from dsec.errors import Interrupted, OutOfMemory, StageTimeout, WorkerLost
from dsec.plan.nodes import Retry


def test_a_call_whose_worker_dies_is_sent_again_and_its_queue_is_not_blamed(
    two: LocalCluster, run: Run, heard: list[events.Event]
) -> None:
    plan = Plan()
    for _ in range(60):
        plan.add("quick")
    for _ in range(2):
        plan.add("deadly", does="die-once")
    for _ in range(60):
        plan.add("quick")
    outcome = run(plan, two)
    assert (outcome.ran, outcome.failed, outcome.stopped) == (122, 0, None)
    assert {e.stage for e in heard if isinstance(e, events.Retried)} <= {"deadly"}


def test_a_call_that_always_ends_its_worker_fails_alone(two: LocalCluster, run: Run, heard: list[events.Event]) -> None:
    plan = Plan()
    for _ in range(10):
        plan.add("quick")
    plan.add("deadly", does="die", retry=Retry(max=2, backoff=0.01))
    for _ in range(30):
        plan.add("quick")
    outcome = run(plan, two)
    assert (outcome.ran, outcome.failed) == (40, 1)
    (error,) = outcome.errors
    assert isinstance(error, WorkerLost)
    assert "died 3 times" in error.message
    assert [e.attempt for e in heard if isinstance(e, events.Retried)] == [1, 2]


def test_a_chain_goes_on_behind_a_link_whose_worker_died(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    begin = chain(plan, 20, "seed=0")
    killed = plan.add("link", inputs={"x": out(begin[-1])}, does="die-once", lane="seed=0")
    previous = killed
    for _ in range(20):
        previous = plan.add("link", inputs={"x": out(previous)}, lane="seed=0")
    outcome = run(plan, two)
    assert (outcome.ran + outcome.hits, outcome.failed) == (41, 0)


def test_all_workers_killed_at_once_come_back(two: LocalCluster, run: Run, tmp_path: Path) -> None:
    plan = Plan()
    for i in range(60):
        plan.add("slow", does=f"sleep:{0.1 + i * 1e-6}")
    pids = two.pids
    assert len(pids) == 2
    killer = threading.Timer(1.0, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids])
    killer.start()
    outcome = run(plan, two)
    killer.join()
    assert (outcome.ran + outcome.hits, outcome.failed, outcome.stopped) == (60, 0, None)
    assert not set(pids) & set(two.pids)


def test_a_call_over_its_deadline_is_ended_and_named(two: LocalCluster, run: Run, heard: list[events.Event]) -> None:
    plan = Plan()
    plan.add("slow", does="hang", timeout=1.0)
    again = plan.add("slow", does="hang-once", timeout=1.0, retry=Retry(1, 0.01, frozenset({"timeout"})))
    for _ in range(20):
        plan.add("quick")
    outcome = run(plan, two)
    assert (outcome.ran, outcome.failed) == (21, 1)
    (error,) = outcome.errors
    assert isinstance(error, StageTimeout)
    assert "within 1 s" in error.message
    assert plan.results[again]


def test_a_cluster_whose_nannies_are_gone_is_made_anew(run: Run, heard: list[events.Event]) -> None:
    with local(ClusterShape(cpu=2)) as cluster:
        plan = Plan()
        for i in range(60):
            plan.add("slow", does=f"sleep:{0.1 + i * 1e-6}")
        inner = cluster._dask
        ender = threading.Timer(1.0, lambda: [inner.loop.add_callback(n.close) for n in inner.workers.values()])
        ender.start()
        outcome = run(plan, cluster)
        ender.join()
    assert (outcome.ran, outcome.failed, outcome.stopped) == (60, 0, None)
    assert [type(e) for e in heard].count(events.Recovering) == 1


@pytest.fixture
def small() -> Iterator[LocalCluster]:
    with local(ClusterShape(cpu=2, memory=600 << 20)) as cluster:
        yield cluster


def test_a_call_that_eats_all_memory_is_named_with_its_limit(small: LocalCluster, run: Run) -> None:
    plan = Plan()
    for _ in range(5):
        plan.add("quick")
    plan.add("greedy", does="eat", retry=Retry(max=1, backoff=0.01, when=frozenset({"worker-lost"})))
    outcome = run(plan, small)
    assert outcome.ran == 5
    (error,) = outcome.errors
    assert isinstance(error, OutOfMemory)
    assert "greedy" in error.message
    assert "limit is 0.586GiB" in error.message


def test_an_interrupt_ends_a_run_within_two_seconds(run: Run, tmp_path: Path) -> None:
    plan = Plan()
    quick = [out(plan.add("quick")) for _ in range(5)]
    for _ in range(20):
        plan.add("hang", inputs={"x": quick}, does="touch:began")

    def interrupt() -> None:
        while not (tmp_path / "began").exists():
            threading.Event().wait(0.05)
        moments.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    moments: list[float] = []
    cluster = local(ClusterShape(cpu=2))
    thread = threading.Thread(target=interrupt)
    thread.start()
    outcome = run(plan, cluster)
    thread.join()
    cluster.close()
    assert time.monotonic() - moments[0] < 2
    assert isinstance(outcome.stopped, Interrupted)
    assert outcome.ran == 5


DRIVER = """
import sys
sys.path[:0] = [{tests!r}, {project!r}]
if __name__ == "__main__":
    from pathlib import Path
    import listed_plan as fakes
    from dsec.engine import drive
    from dsec.engine.cluster import LocalCluster
    from dsec.engine.shape import ClusterShape
    from dsec.runtime.numerics import VARIABLES
    from dsec.store import root
    here = Path({here!r})
    plan = fakes.Plan()
    for _ in range(8):
        plan.add("hang", does="touch:began")
    with LocalCluster(ClusterShape(cpu=2), Path({tests!r}), VARIABLES, run=fakes.body) as cluster:
        drive.drive(plan, root.open_store(here / "store"), cluster=lambda: cluster, root=here, run_id="r")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(tests=str(HERE), project=str(HERE.parents[1]), here=str(tmp_path)))
    driver = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        threading.Event().wait(0.1)
    family = psutil.Process(driver.pid).children(recursive=True)
    assert len(family) >= 2
    driver.send_signal(how)
    driver.wait(timeout=20)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_a_script_without_a_guard_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    lines = DRIVER.replace('if __name__ == "__main__":', "if True:").replace("touch:began", "sleep:0")
    script = tmp_path / "driver.py"
    script.write_text(lines.format(tests=str(HERE), project=str(HERE.parents[1]), here=str(tmp_path)))
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_workers_killed_again_and_again_change_nothing(two: LocalCluster, run: Run) -> None:
    plan = Plan()
    for seed in range(4):
        chain(plan, 60, f"seed={seed}", does=f"sleep:{0.03}")
    stop = threading.Event()

    def harass() -> None:
        while not stop.wait(2.5):
            for pid in two.pids[:1]:
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=harass)
    thread.start()
    outcome = run(plan, two, limits=Limits(stalled=60, remake=5, poll=0.2))
    stop.set()
    thread.join()
    assert (outcome.ran + outcome.hits, outcome.failed, outcome.stopped) == (240, 0, None)
