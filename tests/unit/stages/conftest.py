from __future__ import annotations

from pathlib import Path

import pytest

from dsec.store import root
from tests.unit.runtime.serial import Serial, agent, env


@pytest.fixture
def run(tmp_path: Path) -> Serial:
    """Calls of a session in a store of their own."""
    return Serial(root.open_store(tmp_path / "store"), session={"agent": agent("Drifter"), "env": env(), "seed": 3})


@pytest.fixture
def bare(tmp_path: Path) -> Serial:
    """Calls without a session."""
    return Serial(root.open_store(tmp_path / "store"), session={"seed": 3})
