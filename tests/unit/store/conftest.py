import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from dsec.core import canon
from dsec.core.stage import ActionKey, AnchorId, Input, PlanKey, StageCall, StageResult
from dsec.store import root


class Python(Protocol):
    def __call__(self, code: str, *argv: object, **environment: str) -> "subprocess.CompletedProcess[str]": ...


@pytest.fixture
def store(tmp_path: Path) -> root.Store:
    return root.open_store(tmp_path / "store")


@pytest.fixture
def python() -> Python:
    """Runs code in a fresh process, as a driver or worker would be."""

    def run(code: str, *argv: object, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", code, *map(str, argv)]
        return subprocess.run(command, env=_environment(environment), capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    point = tmp_path / "small"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(point)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs takes root")
    yield point
    subprocess.run(["umount", str(point)], check=True)


class Make:
    """Calls and results by number."""

    @staticmethod
    def digest(*parts: object) -> canon.Digest:
        return canon.digest("test", list(parts))

    def call(self, number: int, stage: str = "train.learn") -> StageCall:
        return StageCall(
            instance=f"train@seed=0#{number}/learn",
            stage=stage,
            plan_key=PlanKey(self.digest("plan", number)),
            recipe=self.digest("recipe"),
            inputs={
                "agent": Input((AnchorId(self.digest("agent", number)),)),
                "batch": Input(
                    tuple(AnchorId(self.digest("batch", number, s)) for s in range(2)), ("shard=0", "shard=1")
                ),
            },
            steps=(number * 10, number * 10 + 9),
            stream=f"stage/train.learn/{number}",
        )

    def result(self, number: int, loss: float = 0.5) -> StageResult:
        return StageResult(
            ActionKey(self.digest("action", number)),
            outputs={"agent": AnchorId(self.digest("output", number))},
            stats={"loss": loss},
            cost={"seconds": 1.5},
            sizes={"agent": 100},
        )


@pytest.fixture
def make() -> Make:
    return Make()


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    project = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": project, **extra}
