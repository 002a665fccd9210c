"""A project as `dsec init` makes it, and the outputs of its small plan when nothing disturbs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from projects import Project

from dsec import api


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    api.init(folder, "first")
    return Project(folder, tmp_path / "store")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Outputs of the small plan, run once without disturbance."""
    place = tmp_path_factory.mktemp("undisturbed")
    api.init(place / "project", "first")
    return Project(place / "project", place / "store").outputs()
