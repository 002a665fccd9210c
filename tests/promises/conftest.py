"""A project as `dsec init` makes it, and the outputs of its small plan when nothing disturbs it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from projects import SMALL, Project

from dsec import api


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    api.init(folder, "first")
    return Project(folder, tmp_path / "store")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose small plan was run once without disturbance; tests take copies of it."""
    place = tmp_path_factory.mktemp("finished")
    api.init(place / "project", "first")
    made = Project(place / "project", place / "store")
    made.run(*SMALL)
    return made


@pytest.fixture
def done(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project and of its store, in another folder."""
    shutil.copytree(finished.folder, tmp_path / "project")
    shutil.copytree(finished.store, tmp_path / "store")
    return Project(tmp_path / "project", tmp_path / "store")


@pytest.fixture(scope="session")
def undisturbed(finished: Project) -> dict[str, Any]:
    """Outputs of the small plan when nothing disturbs it."""
    return finished.outputs()
