"""Code that others wrote, read as if it were the user's: no crash, no false alarm."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
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


TRACE = """
import sys
root, imports, run = sys.argv[1:]
sys.path.insert(0, root)
seen = set()
def note(frame, event, _):
    code = frame.f_code
    if code.co_flags & 1 and code.co_filename.startswith(root):
        seen.add(code.co_filename[len(root) + 1 :] + ":" + code.co_qualname.split(".<")[0])
exec(imports)
sys.setprofile(note)
exec(run)
sys.setprofile(None)
print(*sorted(seen), sep="\\n")
"""


@pytest.mark.parametrize(
    ("package", "name", "imports", "run"),
    [
        (
            "gymnasium/envs/classic_control",
            "classic_control.cartpole:CartPoleEnv",
            "from classic_control.cartpole import CartPoleEnv",
            "e = CartPoleEnv(); e.reset(seed=1); e.step(1); e.close()",
        ),
        (
            "networkx",
            "networkx.algorithms.shortest_paths.generic:shortest_path",
            "import networkx; graph = networkx.path_graph(5)",
            "networkx.shortest_path(graph, 0, 4); networkx.shortest_path(graph, 0, 4, 'weight')",
        ),
        (
            "rich",
            "rich.panel:Panel",
            "from rich.console import Console; from rich.panel import Panel; console = Console()",
            "console.print(Panel('x'))",
        ),
        ("click", "click:Command", "import click", "click.Command('x', callback=int).main([], standalone_mode=False)"),
    ],
)
def test_every_function_that_runs_is_in_the_fingerprint(
    package: str, name: str, imports: str, run: str, tmp_path: Path
) -> None:
    top = package.rpartition("/")[2]
    shutil.copytree(PACKAGES / package, tmp_path / top)
    command = [sys.executable, "-c", TRACE, str(tmp_path), imports, run]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ran = {line for line in done.stdout.splitlines() if line.startswith(f"{top}/")}
    assert ran
    found = Project(tmp_path).fingerprint(name, allow_dynamic=True)
    counted = {f"{found.files[key.partition(':')[0]]}:{key.partition(':')[2]}" for key in found.definitions}
    assert {line for line in ran if ":<" not in line} - counted == set()


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "examples").glob("[a-z]*.py")))
def test_examples_can_be_fingerprinted(file: str) -> None:
    project = Project(ROOT)
    module = project.module(f"examples.{Path(file).stem}")
    assert module is not None
    for unit in module.units:
        if unit.kind in ("function", "class"):
            assert project.fingerprint(f"{module.name}:{unit.name}").digest
            assert project.signature(f"{module.name}:{unit.name}").kind == unit.kind
