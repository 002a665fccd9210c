"""The project that `dsec init` makes is whole, runs as it is read, and overwrites nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dsec.errors import UsageError
from dsec.plan import load, template


def test_a_project_is_made_with_its_plan(tmp_path: Path) -> None:
    made = template.create(tmp_path / "first", "My First!")
    assert all(path.is_file() for path in made)
    assert tomllib.loads((tmp_path / "first/pyproject.toml").read_text())["project"]["name"] == "my-first"
    plan, _ = load.load_plan(tmp_path / "first/plans/first.yaml")
    assert plan.name == "my-first"


def test_its_modules_are_python() -> None:
    for path, text in template.files("first").items():
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/climber.py").write_text("mine")
    with pytest.raises(UsageError, match="there already"):
        template.create(tmp_path, "first")
    assert [path.name for path in tmp_path.iterdir()] == ["agents"]
    assert (tmp_path / "agents/climber.py").read_text() == "mine"


def test_a_name_needs_a_letter_or_digit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no letter"):
        template.create(tmp_path / "first", "§!")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="can't be written"):
        template.create(tmp_path / "file", "first")
