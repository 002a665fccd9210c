"""A stand-in for `dsec.api`: answers at once from what a test put into it, and remembers what was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dsec.errors import DsecError, PlanError, Problem, UsageError
from dsec.plan import load

PROBLEM = Problem("p.yaml", 3, 5, "unknown-key", "unknown key 'need'", "did you mean 'needs'?", 4, "    need: [a]")

PREVIEW = SimpleNamespace(
    plan="ppo",
    rows=(
        SimpleNamespace(stage="train.learn", instances=60, cached=30, to_run=30, reason="with.lr: 3e-4 -> 1e-3"),
        SimpleNamespace(stage="eval", instances=2, cached=0, to_run=2, reason="input agent differs"),
    ),
    calls=62,
    hits=30,
    to_run=32,
    notes=("class unknown, all to run",),
)

DETAILS: dict[str, Any] = {
    "run": "20260131-120000-7f3a9c",
    "plan": "ppo",
    "status": "failed",
    "created": "2026-01-31T12:00:00.123Z",
    "counts": {"calls": 2, "hits": 0, "ran": 1, "failed": 1, "skipped": 0},
    "sessions": [
        {
            "session_id": "0198-1",
            "agent_spec": "a",
            "env_spec": "e",
            "reward_fn_hash": None,
            "seed": 0,
            "max_steps": 100,
            "creation_timestamp": "2026-01-31T12:00:00.123Z",
        }
    ],
    "instances": {
        "train@seed=0#29/learn": {
            "status": "ran",
            "plan_key": "k",
            "action_key": "a",
            "outputs": {"agent": "x"},
            "stats": {"loss": 0.123456},
            "cost": {"seconds": 1.0},
        },
        "eval@seed=0": {
            "status": "failed",
            "plan_key": "k2",
            "action_key": None,
            "outputs": {},
            "stats": {},
            "cost": {},
            "error": "ValueError: no",
        },
    },
}


@dataclass
class Plan:
    """A loaded plan."""

    path: Path
    api: FakeApi
    name: str = "ppo"

    def check(self, *, imports: bool = True) -> tuple[Problem, ...]:
        self.api.asked.append(("check", self.path.name, imports))
        return self.api.problems

    def preview(self, store: Path | None = None, select: tuple[str, ...] = ()) -> Any:
        self.api.asked.append(("preview", store, select))
        return PREVIEW

    def graph(self, format: str) -> str:
        return f"{format}: collect -> learn\n"


@dataclass
class FakeApi:
    """What the command line asks for."""

    problems: tuple[Problem, ...] = ()
    load_error: DsecError | None = None
    run_error: BaseException | None = None
    events: tuple[Any, ...] = ()
    summary: Any = None
    rows: tuple[Any, ...] = ()
    asked: list[Any] = field(default_factory=list)

    @staticmethod
    def Workers(
        cpu: int | None = None, gpu: int | None = None, scheduler: str | None = None, memory: int | None = None
    ) -> Any:
        return SimpleNamespace(cpu=cpu, gpu=gpu, scheduler=scheduler, memory=memory)

    @staticmethod
    def parse_size(text: str) -> int:
        return int(text.removesuffix("MiB")) << 20

    project_root = staticmethod(load.project_root)

    @staticmethod
    def parse_value(text: str) -> object:
        if text == "[1":
            raise PlanError([Problem("value", 1, 3, "syntax", "a list was opened and never closed", "add ]")])
        return int(text) if text.isdecimal() else text

    def load_plan(self, path: Path, *, params: dict[str, object] | None = None) -> Plan:
        self.asked.append(("load", path.name, params))
        if self.load_error is not None:
            raise self.load_error
        return Plan(path, self)

    def run(self, plan: Plan, *, report: Any, **options: Any) -> Any:
        self.asked.append(("run", plan.path.name, options))
        for event in self.events:
            report(event)
        if self.run_error is not None:
            raise self.run_error
        return self.summary

    def why(self, plan: Plan, instance: str, store: Path | None = None) -> Any:
        self.asked.append(("why", plan.path.name, instance, store))
        reasons = ("code: helpers/gae.py:LAMBDA changed", "with.lr: 3e-4 -> 1e-3")
        return SimpleNamespace(instance=instance, status="to run", reasons=reasons, plan_key="k" * 64)

    def runs(self, store: Path) -> tuple[Any, ...]:
        self.asked.append(("runs", store))
        return self.rows

    @staticmethod
    def show(store: Path, run: str) -> dict[str, Any]:
        if not DETAILS["run"].startswith(run):
            raise UsageError(f"no run {run!r} in {store}")
        return DETAILS

    @staticmethod
    def schema() -> dict[str, Any]:
        return {"title": "plan"}

    @staticmethod
    def init(folder: Path, name: str) -> list[Path]:
        return [folder / "pyproject.toml", folder / f"{name}.txt"]

    @staticmethod
    def default_store(root: Path) -> Path:
        return root / ".dsec"

    def worker(self, address: str, *, kind: str, memory: int | None = None, labels: tuple[str, ...] = ()) -> int:
        self.asked.append(("worker", address, kind))
        return 0


def summary(**changes: Any) -> Any:
    """A run that ended well, or with changes."""
    table = SimpleNamespace(instance="table", columns=("seed", "mean"), rows=((0, 487.25), (1, 500.0)))
    fields: dict[str, Any] = {
        "run_id": "20260131-120000-7f3a9c",
        "plan": "ppo",
        "status": "done",
        "calls": 126,
        "hits": 0,
        "ran": 126,
        "failed": 0,
        "skipped": 0,
        "seconds": 98.23456,
        "cluster": True,
        "tables": (table,),
        "errors": (),
        "store": Path("/tmp/store"),
    }
    return SimpleNamespace(**fields | changes)


def run_row(**changes: Any) -> Any:
    """A line of `runs`."""
    fields: dict[str, Any] = {
        "run_id": "20260131-120000-7f3a9c",
        "plan": "ppo",
        "status": "done",
        "created": "2026-01-31T12:00:00.123Z",
        "calls": 126,
        "hits": 0,
        "ran": 126,
        "failed": 0,
        "seconds": 98.2,
    }
    return SimpleNamespace(**fields | changes)
