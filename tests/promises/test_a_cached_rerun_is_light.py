"""A run that finds all its results starts no cluster, imports nothing heavy, and is over in a second."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import large
import pytest
from projects import SMALL, SOURCES, Project

HEAVY = (
    "numpy", "torch", "dask", "distributed", "zarr", "numcodecs", "sqlalchemy", "networkx", "rich", "psutil",
    "gymnasium", "xxhash", "bokeh", "pandas",
)  # fmt: skip
INSIDE = """
import sys
from dsec.cli import main
try:
    main.main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def rerun(project: Project, *words: str) -> tuple[set[str], str]:
    """Packages that a run imported, and what it wrote."""
    command = [sys.executable, "-c", INSIDE, "run", project.plan, *words, "--store", str(project.store)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split()), done.stdout


def test_a_cached_rerun_imports_nothing_heavy(project: Project) -> None:
    first = project.run(*SMALL)
    assert first["cluster"]
    found, out = rerun(project, *SMALL, "--json")
    last = json.loads(out.splitlines()[-1])
    assert (last["hits"], last["ran"], last["cluster"]) == (first["calls"], 0, False)
    assert not found & set(HEAVY)
    found, out = rerun(project, *SMALL)
    assert "table" in out
    assert not found & set(HEAVY)


@pytest.mark.slow
def test_a_thousand_cached_calls_take_less_than_a_second(tmp_path: Path) -> None:
    project = Project(large.project(tmp_path / "project"), tmp_path / "store", "plans/cells.yaml")
    assert project.run()["ran"] == 1000
    project.run()  # compiles what is imported
    last, busy, seconds = _timed(project)
    assert (last["calls"], last["hits"], last["ran"], last["cluster"]) == (1000, 1000, 0, False)
    assert busy < 0.9
    assert seconds < 1 or seconds > 1.2 * busy, "the machine was idle, and yet it took a second"


def _timed(project: Project) -> tuple[dict[str, Any], float, float]:
    """The last line of a run, its seconds of processor, and of clock."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    last = project.run()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return last, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, seconds
