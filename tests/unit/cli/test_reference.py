"""The reference pages say what the code does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from dsec.cli import reference
from dsec.cli.main import VERBS

FOLDER = Path(__file__).parents[3] / "docs/reference"


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_pages_are_in_step(name: str) -> None:
    written = (FOLDER / name).read_text("utf-8")
    assert written == reference.pages()[name], "write it anew: python -m dsec.cli.reference docs/reference"


def test_every_verb_is_described() -> None:
    page = reference.command_line_page()
    assert [verb.__name__ for verb in VERBS if f"### `dsec {verb.__name__}`" not in page] == []


README = (FOLDER.parents[1] / "README.md").read_text("utf-8")


def test_the_readme_has_the_two_commands_for_a_fresh_machine() -> None:
    assert "\npip install -e . && dsec run plans/cartpole_ppo.yaml\n" in README
    assert "\npip install -e '.[test]' && pytest\n" in README


def test_ci_runs_the_commands_of_the_readme() -> None:
    script = (FOLDER.parents[1] / ".ci/run").read_text("utf-8")
    for command in ("-e '.[test]'", "pytest", "dsec run plans/cartpole_ppo.yaml", "lint-imports", "mypy", "ruff check"):
        assert command in script
    compile_check = subprocess.run(["bash", "-n", FOLDER.parents[1] / ".ci/run"], check=False, timeout=60)
    assert compile_check.returncode == 0


def test_every_verb_of_the_tour_is_one() -> None:
    verbs = {verb.__name__ for verb in VERBS}
    named = set(re.findall(r"^dsec (\w+)", README, re.MULTILINE))
    assert named <= verbs
    assert {"init", "check", "plan", "run", "why"} <= named
