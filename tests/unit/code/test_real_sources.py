"""Code that others wrote, read as if it were the user's: no crash, no false alarm."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from dsec.code import CodeProblem, Project

PACKAGES = Path(str(importlib.metadata.distribution("gymnasium").locate_file("")))
ROOT = Path(__file__).parents[3]
ENVIRONMENTS = [
    "cartpole:CartPoleEnv",
    "cartpole:CartPoleVectorEnv",
    "acrobot:AcrobotEnv",
    "mountain_car:MountainCarEnv",
    "pendulum:PendulumEnv",
    "continuous_mountain_car:Continuous_MountainCarEnv",
]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_of_gymnasium_as_users_code(name: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGES / "gymnasium" / "envs" / "classic_control", tmp_path / "classic_control")
    project = Project(tmp_path)
    found = project.fingerprint(f"classic_control.{name}")
    assert {"gymnasium", "numpy"} <= set(found.distributions)
    assert f"classic_control.{name}.step" in found.definitions
    signature = project.signature(f"classic_control.{name}")
    assert signature.kind == "class"
    assert "render_mode" in {parameter.name for parameter in signature.parameters}


def test_all_of_gymnasium_can_be_read(tmp_path: Path) -> None:
    shutil.copytree(PACKAGES / "gymnasium", tmp_path / "gymnasium")
    project = Project(tmp_path)
    name = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    with pytest.raises(CodeProblem, match="getattr") as caught:
        project.fingerprint(name)
    assert caught.value.kind == "dynamic"
    assert len(project.fingerprint(name, allow_dynamic=True).modules) > 50


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "examples").glob("[a-z]*.py")))
def test_examples_can_be_fingerprinted(file: str) -> None:
    project = Project(ROOT)
    module = project.module(f"examples.{Path(file).stem}")
    assert module is not None
    for unit in module.units:
        if unit.kind in ("function", "class"):
            assert project.fingerprint(f"{module.name}:{unit.name}").digest
            assert project.signature(f"{module.name}:{unit.name}").kind == unit.kind
