"""A small project in a folder, and its fingerprints."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dsec.code import Fingerprint, Project

Files = Mapping[str, str]


def written(root: Path, files: Files) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(textwrap.dedent(text).encode())
    return root


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Files], Path]:
    """Writes files under a fresh folder."""
    return lambda files: written(tmp_path / "project", files)


@pytest.fixture
def taken(write: Callable[[Files], Path]) -> Callable[..., Fingerprint]:
    """Fingerprint of a name in a project made of these files."""
    return lambda files, name="agent:Agent", **options: Project(write(files)).fingerprint(name, **options)
