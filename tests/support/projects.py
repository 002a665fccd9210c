"""A project as `dsec init` makes it, and the command line as a person uses it, each call a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SMALL = ("-p", "iterations=2", "-p", "steps=60")
SOURCES = Path(__file__).parents[2]


@dataclass(frozen=True)
class Project:
    """A folder with a plan, and a store beside it."""

    folder: Path
    store: Path
    plan: str = "plans/first.yaml"
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``dsec`` with these words."""
        variables = {**os.environ, "PYTHONPATH": str(SOURCES), **self.environment, **environment}
        command = [sys.executable, "-m", "dsec", *words, "--store", str(self.store)]
        return subprocess.Popen(
            command, cwd=self.folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def dsec(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``dsec`` to its end."""
        process = self.start(*words, **environment)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def run(self, *words: str, **environment: str) -> dict[str, Any]:
        """Run the plan to its end, and give the last line of ``--json``."""
        done = self.dsec("run", self.plan, *words, "--json", **environment)
        assert done.returncode == 0, done.stderr
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return last

    def instances(self, run_id: str) -> dict[str, Any]:
        """Instances of a run, as ``dsec show`` tells them."""
        done = self.dsec("show", run_id, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["instances"]
        return found

    def outputs(self, words: Sequence[str] = SMALL) -> dict[str, Any]:
        """Outputs of every instance after a run."""
        made = self.instances(self.run(*words)["run"])
        return {name: instance["outputs"] for name, instance in made.items()}

    def at(self, store: str) -> Project:
        """The same project with another store."""
        return Project(self.folder, self.store.with_name(store), self.plan, self.environment)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text in one of its files."""
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
