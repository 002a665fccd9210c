"""What goes wrong is one named error with its place, never a hang; siblings go on, and the same command continues."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from projects import SMALL, Project

from dsec import api
from dsec.cli.main import main
from dsec.errors import ClusterError

MISHAPS = '''
import os, re, sys, threading, time
import numpy as np

class Locked:
    def __init__(self, session_config):
        self.inner = {"lock": threading.Lock()}
    def step(self, observation):
        return {"action": 0}
    def on_reward(self, reward, done, info):
        pass

class Turned(Locked):
    """Its state can be saved until it steps."""
    def __init__(self, session_config):
        self.seen = []
    def step(self, observation):
        self.seen.append(lambda: observation)
        return {"action": 0}

def gives_lambda(ctx):
    return {"out": {"deep": [1, lambda: None]}}

def raises(ctx):
    return {"out": look_up({})}

def look_up(table):
    return table["missing"]

def eats(ctx):
    held = []
    while True:
        held.append(np.ones(1 << 21))

def hangs(ctx):
    time.sleep(3600)

def spins(ctx):
    re.match("(a+)+$", "a" * 60 + "b")  # holds Python's lock: its worker can't even say that it lives

def leaves(ctx):
    os._exit(3)

def exits(ctx):
    sys.exit("bye")

def fine(ctx, *, n):
    return {"out": n}

def total(ctx, *, xs):
    return {"out": sum(xs)}
'''
MENDED = """
class Turned:
    def __init__(self, session_config):
        self.seen = []
    def step(self, observation):
        return {"action": 0}
    def on_reward(self, reward, done, info):
        pass
""" + "".join(
    f"\ndef {name}(ctx):\n    return {{'out': [1]}}\n"
    for name in ("gives_lambda", "raises", "eats", "hangs", "spins", "leaves", "exits")
)
PLAN = """
dsec: 1
name: mishaps
session: {agent: "agents.mishaps:Turned", env: gymnasium/CartPole-v1, seed: 1}
defaults: {retry: {max: 0}}
stages:
  gives: {uses: "agents.mishaps:gives_lambda"}
  raises: {uses: "agents.mishaps:raises"}
  hangs: {uses: "agents.mishaps:hangs", timeout: 1s}
  spins: {uses: "agents.mishaps:spins", timeout: 2s}
  prompt: {uses: "agents.steady:total", with: {xs: [1, 2]}, timeout: 2s}
  leaves: {uses: "agents.mishaps:leaves"}
  exits: {uses: "agents.mishaps:exits"}
  eats: {uses: "agents.mishaps:eats"}
  rolls: {uses: "dsec.stages:rollout", steps: 9}
  fine: {uses: "agents.steady:fine", matrix: {n: [1, 2, 3, 4]}, with: {n: "${{ matrix.n }}"}}
  sum: {uses: "agents.steady:total", inputs: {xs: "fine[*].out"}}
  after: {uses: "agents.steady:total", inputs: {xs: raises.out}}
"""
NAMED = {
    "gives": ("state", "gives: out.deep[1]", "function can't be kept"),
    "raises": ("stage", "raises", "KeyError: 'missing'"),
    "hangs": ("timeout", "hangs", "within 1 s"),
    "spins": ("timeout", "spins", "within 2 s"),
    "leaves": ("worker-lost", "leaves", "its worker died"),
    "exits": ("stage", "exits", "SystemExit: bye"),
    "eats": ("oom", "eats", "its worker's limit is 0.5GiB"),
    "rolls": ("state", "rolls at step 9: agent.seen[0]", "function can't be kept"),
}


@pytest.fixture
def mishaps(project: Project) -> Project:
    (project.folder / "agents/mishaps.py").write_text(MISHAPS)
    (project.folder / "agents/steady.py").write_text(MISHAPS)
    (project.folder / "plans/mishaps.yaml").write_text(PLAN)
    return Project(project.folder, project.store, "plans/mishaps.yaml")


def test_every_failure_is_named_siblings_go_on_and_the_same_command_continues(mishaps: Project) -> None:
    words = ("run", mishaps.plan, "--memory", "512MiB", "--json")
    failed = mishaps.dsec(*words)
    said = [json.loads(line) for line in failed.stdout.splitlines()]
    errors = {event["instance"]: event for event in said if event["event"] == "error"}
    assert failed.returncode == 1, failed.stderr
    assert {name: event["code"] for name, event in errors.items()} == {name: of[0] for name, of in NAMED.items()}
    for name, (_, place, message) in NAMED.items():
        assert errors[name]["where"] == place
        assert message in errors[name]["message"]
    assert errors["rolls"]["step"] == 9
    assert 'return table["missing"]' in failed.stderr, "the user's own traceback is shown"
    assert "dsec/runtime" not in failed.stderr
    assert failed.stderr.splitlines()[-1] == continues(mishaps, *words)
    assert _counts(said[-1]) == (17, 8, 8), "all siblings ran"
    (mishaps.folder / "agents/mishaps.py").write_text(MENDED)
    again = mishaps.run("--memory", "512MiB")
    assert (again["failed"], again["hits"]) == (0, 7), (
        "init.env, the prompt one, the fine ones and their sum were done again"
    )


@pytest.mark.slow
def test_an_agent_that_cant_be_saved_is_named_with_the_attribute(mishaps: Project) -> None:
    mishaps.edit(mishaps.plan, "mishaps:Turned", "mishaps:Locked")
    failed = mishaps.dsec("run", mishaps.plan, "--select", "rolls", "--workers", "cpu=1")
    assert failed.returncode == 1
    assert "error[state]: init.agent: agent.inner.lock: _thread.lock can't be kept" in failed.stderr


# Wrong plans ----------------------------------------------------------------------------------------------------------

WRONG = sorted((Path(__file__).parents[1] / "unit/plan/wrong").glob("*.yaml"))
BEGIN = 'dsec: 1\nname: w\nsession: {{agent: "{}", env: gymnasium/{}, seed: 1, max_steps: 99}}\nstages:\n'
STAGE = '  go: {{uses: "{}", steps: {}}}\n'
ODD = {
    "empty": b"",
    "latin-1": b"dsec: 1\nname: caf\xe9\n",
    "2MiB": b"dsec: 1\nname: " + b"x" * (2 << 20),
    "deep": b"dsec: 1\nname: x\nx-deep: " + b"[" * 5000,
    "nul": b"dsec: 1\nname: \x00\n",
}


def wrong(agent: str = "agents.climber:Climber", env: str = "CartPole-v1", steps: str = "9", more: str = "") -> bytes:
    return (BEGIN.format(agent, env) + STAGE.format("dsec.stages:rollout", steps) + more).encode()


ODD |= {
    "module": wrong("agents.climbr:Climber"),
    "class": wrong("agents.climber:Climbr"),
    "gap": wrong(steps="0-9", more='  on: {uses: "dsec.stages:rollout", steps: 12-20, needs: go}\n'),
    "body": wrong(more='  more: {uses: "dsec.stages:rolout"}\n'),
}
HINTS = {"module": "did you mean 'agents.climber'?", "class": "did you mean 'Climber'?", "gap": "10-11 are missing"}


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_wrong_plan_is_refused_with_its_place_and_leaves_nothing(
    project: Project, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    texts = {path.stem: path.read_bytes() for path in WRONG} | ODD
    for name, text in texts.items():
        Path("plans/wrong.yaml").write_bytes(text)
        err = refused(["plans/wrong.yaml"], project, verb, capsys)
        assert err.startswith("plans/wrong.yaml:"), name
        assert "error[" in err.splitlines()[0], name
        assert HINTS.get(name, "") in err, name
        assert err.splitlines()[-1].endswith(f"when corrected: dsec {verb} plans/wrong.yaml{_store(project, verb)}")


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("broken", "import numpy\nnumpy.zeros(3)[7]\n", "IndexError: index 7 is out of bounds"),
        ("needy", "import tensorflow_of_nobody\n", "No module named 'tensorflow_of_nobody' at agents/needy.py:1"),
    ],
)
def test_an_import_that_raises_is_found_before_anything_is_written(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    text: str,
    said: str,
) -> None:
    monkeypatch.chdir(project.folder)
    Path(f"agents/{module}.py").write_text(text + "from agents.climber import Climber\n")
    Path("plans/wrong.yaml").write_bytes(wrong(f"agents.{module}:Climber"))
    err = refused(["plans/wrong.yaml"], project, "run", capsys)
    assert err.startswith("plans/wrong.yaml:3:18: error[import]: ")
    assert said in err


def test_an_environment_that_nobody_registered_is_found_by_check(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    Path("plans/wrong.yaml").write_bytes(wrong(env="CartPol-v1"))
    assert "Did you mean: `CartPole`?" in refused(["plans/wrong.yaml"], project, "check", capsys)


def refused(words: list[str], project: Project, verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said on stderr of a plan that is refused."""
    with pytest.raises(SystemExit) as ended:
        main([verb, *words, *shlex.split(_store(project, verb))])
    err = capsys.readouterr().err
    assert ended.value.code == 2, err
    assert "Traceback" not in err
    assert not project.store.exists()
    return err


def _store(project: Project, verb: str) -> str:
    return f" --store {project.store}" if verb == "run" else ""


# Clusters that can't serve a plan -------------------------------------------------------------------------------------

ASKS = """
dsec: 1
name: asks
stages:
  small: {{uses: "agents.steady:fine", with: {{n: 1}}}}
  big: {{uses: "agents.steady:fine", with: {{n: 2}}, resources: {{{}}}}}
"""


@pytest.mark.parametrize(
    ("asked", "lacks"),
    [
        ("cpu: 512", "cpu: 512"),
        pytest.param("memory: 10TiB", "memory: 10TiB", marks=pytest.mark.slow),
        pytest.param("labels: [nope]", "labels: nope", marks=pytest.mark.slow),
        pytest.param("worker: gpu, gpu: 9", "gpu: 9", marks=pytest.mark.slow),
    ],
)
def test_what_no_worker_has_is_refused_before_anything_runs(mishaps: Project, asked: str, lacks: str) -> None:
    (mishaps.folder / mishaps.plan).write_text(ASKS.format(asked))
    failed = mishaps.dsec("run", mishaps.plan, "--json")
    assert failed.returncode == 4, failed.stderr
    error, finished = [json.loads(line) for line in failed.stdout.splitlines()][-2:]
    assert (error["code"], error["where"]) == ("unsatisfiable", "big")
    assert error["message"] == f"no worker has {lacks}"
    assert "there is 2 cpu" in error["hint"] or " cpu, " in error["hint"]
    assert finished["ran"] == 0
    assert failed.stderr.splitlines()[-1] == continues(mishaps, "run", mishaps.plan, "--json")


@pytest.mark.parametrize(
    ("address", "said"),
    [("tcp://10.1.2.3:8786", "beyond this host a cluster needs TLS"), ("127.0.0.1:1", "no scheduler answers")],
)
def test_a_scheduler_that_cant_be_used_is_named_and_nothing_is_written(
    project: Project, address: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    with pytest.raises(SystemExit) as ended:
        main(["run", project.plan, "--scheduler", address, "--store", str(project.store)])
    assert ended.value.code == ClusterError.exit_code
    assert f"error[cluster]: {address}: {said}" in capsys.readouterr().err
    assert not project.store.exists()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Address of a scheduler that Dask's own command started."""
    file = tmp_path / "scheduler.json"
    words = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    process = subprocess.Popen(
        [sys.executable, *words, "--scheduler-file", str(file)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        awaited(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        yield json.loads(file.read_text())["address"]
    finally:
        ended(process)


@pytest.mark.slow
def test_workers_of_a_cluster_that_runs_give_the_same_anchors(
    project: Project, undisturbed: dict[str, Any], scheduler: str
) -> None:
    refused = project.dsec("run", project.plan, "--scheduler", scheduler)
    assert refused.returncode == 4
    assert f"start some: dsec worker {scheduler}" in refused.stderr
    command = [sys.executable, "-m", "dsec", "worker", scheduler, "--kind"]
    where = {"cwd": project.folder, "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}}
    workers = [subprocess.Popen([*command, kind], stderr=subprocess.DEVNULL, **where) for kind in ("cpu", "gpu")]
    try:
        awaited(lambda: sum(len(listening(worker.pid)) for worker in workers) >= 6)
        assert all(ip == "127.0.0.1" for worker in workers for ip in listening(worker.pid))
        assert project.outputs((*SMALL, "--scheduler", scheduler)) == undisturbed
    finally:
        for worker in workers:
            ended(worker, signal.SIGINT)


# Runs that meet, and runs that are stopped ----------------------------------------------------------------------------


def test_two_runs_at_once_do_the_work_once(project: Project, undisturbed: dict[str, Any]) -> None:
    runs = [project.start("run", project.plan, *SMALL, "--json") for _ in range(2)]
    ends = [json.loads(run.communicate(timeout=120)[0].splitlines()[-1]) for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum(end["ran"] for end in ends) == 15
    assert [end["ran"] + end["hits"] for end in ends] == [15, 15]
    assert project.instances(ends[0]["run"]).keys() == undisturbed.keys()
    assert project.outputs() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("filed", [1, 6])
def test_one_of_two_runs_is_killed_and_the_other_ends(
    project: Project, undisturbed: dict[str, Any], filed: int
) -> None:
    runs = [project.start("run", project.plan, *SMALL, "--json") for _ in range(2)]
    awaited(lambda: _filed(project) >= filed)
    runs[0].send_signal(signal.SIGKILL)
    runs[0].communicate()
    out, err = runs[1].communicate(timeout=120)
    assert runs[1].returncode == 0, err
    assert json.loads(out.splitlines()[-1])["failed"] == 0
    assert project.outputs() == undisturbed


def test_an_interrupt_ends_a_run_that_listens_on_the_loopback_alone(project: Project) -> None:
    words = ("run", project.plan, "-p", "steps=20000", "-p", "iterations=9")
    process = project.start(*words)
    awaited(lambda: _filed(project) >= 4)
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    assert {ip for pid in family for ip in listening(pid)} == {"127.0.0.1"}
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 10  # 1 s where nothing else runs
    assert process.returncode == 130
    assert "error[interrupted]" in err
    assert err.splitlines()[-1] == continues(project, *words)
    awaited(lambda: not any(_alive(pid) for pid in family), 3)  # Python's tracker of semaphores ends last
    assert api.runs(project.store)[0].status == "unfinished"


# A full disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A small disk of its own at ``tmp_path/disk``; the function gives it another size."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "none", str(place)], check=False)
    if made.returncode:
        pytest.skip("only root may mount")
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["40k", "120k", "200k", "320k"])
def test_a_full_disk_stops_a_run_that_goes_on_later(
    project: Project, undisturbed: dict[str, Any], tmp_path: Path, disk: Callable[[str], None], size: str
) -> None:
    small = Project(project.folder, tmp_path / "disk/store")
    disk(size)
    failed = small.dsec("run", small.plan, *SMALL)
    assert failed.returncode == 1, failed.stdout
    assert "error[store-full]: " in failed.stderr
    assert failed.stderr.splitlines()[-1] == continues(small, "run", small.plan, *SMALL)
    disk("64m")
    assert small.outputs() == undisturbed


def listening(pid: int) -> list[str]:
    """Addresses at which a process and those it started listen."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return [c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []


def awaited(happened: Callable[[], object], seconds: float = 90.0) -> None:
    """Wait for another process, which sends no signal."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def ended(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """End a process that this test started, if need be at once."""
    process.send_signal(how)
    try:
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()


def _filed(project: Project) -> int:
    return sum(path.is_file() for path in (project.store / "actions").rglob("*"))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def continues(project: Project, *words: str) -> str:
    """The last line of a failure."""
    return f"to continue: {shlex.join(['dsec', *words, '--store', str(project.store)])}"


def _counts(finished: dict[str, Any]) -> tuple[int, int, int]:
    return finished["calls"], finished["ran"], finished["failed"]
