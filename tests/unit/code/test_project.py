"""What a project is made of: whose module is whose, and errors that say what was meant."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dsec
from dsec.code import CodeProblem, Fingerprint, Project, changes

SMALL = {
    "agent.py": "import numpy\nfrom helpers.gae import f\nclass Agent:\n    def act(self):\n        return f()\n",
    "helpers/gae.py": "RATE = 1\ndef f():\n    return RATE\n",
}
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("name", "kind", "meant", "file", "line"),
    [
        ("agnet:Agent", "no-module", "agent", "", 0),
        ("helpers.gea:f", "no-module", "helpers.gae", "", 0),
        ("helprs.gae:f", "no-module", "helpers.gae", "", 0),
        ("agent:Agnet", "no-name", "Agent", "agent.py", 0),
        ("agent:Agent.atc", "no-name", "Agent.act", "agent.py", 0),
        ("nowhere:x", "no-module", None, "", 0),
        ("nowhere/x", "no-module", None, "", 0),
        ("broken:f", "syntax", None, "broken.py", 2),
        ("nul:f", "syntax", None, "nul.py", 1),
        ("imports_broken:f", "syntax", None, "broken.py", 2),
        ("__main__:f", "main", None, "", 0),
        ("json:loads", "not-first-party", None, "", 0),
        ("sys:exit", "not-first-party", None, "", 0),
        ("agent", "bad-name", None, "", 0),
        ("agent:", "bad-name", None, "", 0),
        (":Agent", "bad-name", None, "", 0),
        ("../agent:Agent", "bad-name", None, "", 0),
        ("", "bad-name", None, "", 0),
    ],
)
def test_errors_say_where_and_what_was_meant(
    name: str, kind: str, meant: str | None, file: str, line: int, write: Write
) -> None:
    broken = {"broken.py": "x = 1\ndef f(:\n", "nul.py": "x = '\0'\n", "imports_broken.py": "import broken\nf = 1\n"}
    project = Project(write({**SMALL, **broken}))
    with pytest.raises(CodeProblem) as caught:
        project.fingerprint(name)
    problem = caught.value
    assert (problem.kind, problem.candidates[:1], problem.file, problem.line) == (
        kind,
        (meant,) if meant else (),
        file,
        line,
    )
    assert problem.exit_code == 2
    if meant:
        assert meant in problem.hint


def test_changes_are_told_in_words(write: Write) -> None:
    before = Project(write(SMALL)).fingerprint("agent:Agent")
    edited = "LIMIT = 3\ndef f():\n    return LIMIT\n"
    after = Project(write({**SMALL, "helpers/gae.py": edited})).fingerprint("agent:Agent")
    assert changes(before, after) == [
        "helpers/gae.py:LIMIT added",
        "helpers/gae.py:RATE removed",
        "helpers/gae.py:f changed",
    ]
    other = Fingerprint(**{**{name: getattr(after, name) for name in after.__slots__}, "distributions": {"numpy": "9"}})
    assert changes(after, other) == [f"numpy {after.distributions['numpy']} -> 9"]


def test_a_moved_checkout_and_another_folder_hit(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(SMALL)
    before = Project(root).fingerprint("agent:Agent")
    moved = tmp_path / "some where" / "else"
    shutil.copytree(root, moved)
    monkeypatch.chdir(moved / "helpers")
    assert Project(moved).fingerprint("agent:Agent") == before
    assert Project(Path("..")).fingerprint("agent:Agent") == before


def test_the_hash_seed_does_not_matter(write: Write) -> None:
    root = write({**SMALL, "agent.py": SMALL["agent.py"] + "NAMES = {'a', 'b', 'c'}\nimport os, sys, torch\n"})
    script = (
        "import sys, pathlib; from dsec.code import Project;"
        "f = Project(pathlib.Path(sys.argv[1])).fingerprint('agent:Agent');"
        "print(f.digest, list(f.definitions), list(f.modules), list(f.distributions))"
    )
    path = str(Path(dsec.__file__).parents[1])
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", script, str(root)]
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert len(outputs) == 1


def test_nothing_heavy_and_nothing_of_the_users_is_imported(write: Write) -> None:
    root = write({**SMALL, "helpers/__init__.py": "raise SystemExit('imported')\n"})
    script = (
        "import sys, pathlib; from dsec.code import Project, bundle;"
        "p = Project(pathlib.Path(sys.argv[1])); p.fingerprint('agent:Agent'); p.signature('agent:Agent');"
        "bad = {'numpy', 'torch', 'agent', 'helpers', 'pydantic', 'zarr', 'yaml', 'sqlalchemy', 'dask'};"
        "print(sorted(bad & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(dsec.__file__).parents[1])}
    command = [sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_installed_code_counts_by_version_alone(write: Write) -> None:
    project = Project(write(SMALL))
    found = project.fingerprint("agent:Agent")
    assert list(found.distributions) == ["numpy"]
    environment = project.fingerprint("gymnasium/CartPole-v1")
    assert list(environment.distributions) == ["gymnasium"]
    assert environment.digest != project.fingerprint("gymnasium/Pendulum-v1").digest
    assert list(project.fingerprint("gymnasium.envs.classic_control:CartPoleEnv").distributions) == ["gymnasium"]
    assert list(project.fingerprint("zarr:Some-v0").distributions) == ["zarr"]


def test_a_registered_id_of_the_projects_own_counts_the_whole_module(write: Write) -> None:
    plugin = "import gymnasium\nENTRY = 'world:World'\ngymnasium.register(id='W-v0', entry_point=ENTRY)\n"
    world = "SIZE = 1\nclass World:\n    def step(self):\n        return SIZE\n"
    found = Project(write({"plugin.py": plugin, "world.py": world})).fingerprint("plugin:W-v0")
    assert {"plugin:ENTRY", "plugin:<module>", "world:World", "world:SIZE"} <= set(found.definitions)


def test_virtual_environments_and_installed_folders_are_no_one_s(write: Write) -> None:
    files = {
        "agent.py": "import venv_like.x\nimport inner.y\nclass Agent:\n    pass\n",
        "venv_like/pyvenv.cfg": "",
        "venv_like/x.py": "1 / 0\n",
        "inner/__init__.py": "",
        "inner/site-packages/y.py": "",
    }
    found = Project(write(files)).fingerprint("agent:Agent")
    assert sorted(found.modules) == ["agent", "inner"]
    assert found.distributions == {"venv_like": "absent"}


def test_dsec_counts_as_one_number_and_its_environments_as_users_code(write: Write) -> None:
    agent = "import dsec\nimport dsec_envs\nclass Agent(dsec.Agent):\n    pass\n"
    found = Project(write({"agent.py": agent})).fingerprint("agent:Agent")
    assert list(found.distributions) == ["dsec"]
    assert sorted(found.modules) == ["agent", "dsec_envs"]
    assert found.files["dsec_envs"] == "dsec_envs/__init__.py"


def test_a_folder_of_the_project_does_not_hide_a_library(write: Write) -> None:
    found = Project(write({**SMALL, "numpy/readme.txt": "data"})).fingerprint("agent:Agent")
    assert list(found.distributions) == ["numpy"]


def test_a_module_of_the_project_hides_a_library_as_python_has_it(write: Write) -> None:
    found = Project(write({**SMALL, "numpy.py": "", "json.py": ""})).fingerprint("agent:Agent")
    assert found.distributions == {}
    assert "numpy" in found.modules


def test_a_missing_optional_library_counts(write: Write) -> None:
    agent = "try:\n    import not_there\nexcept ImportError:\n    not_there = None\nclass Agent:\n    pass\n"
    assert Project(write({"agent.py": agent})).fingerprint("agent:Agent").distributions == {"not_there": "absent"}


def test_imports_in_a_circle_end(write: Write) -> None:
    files = {
        "a.py": "from b import *\nfrom b import g\ndef f():\n    return g()\n",
        "b.py": "from a import *\nfrom a import f\ndef g():\n    return f() + x\n",
        "pkg/__init__.py": "from pkg import part\nfrom pkg.part import thing\n",
        "pkg/part.py": "from pkg import thing\nfrom . import part\n",
    }
    project = Project(write(files))
    assert set(project.fingerprint("a:f").definitions) >= {"a:f", "b:g"}
    with pytest.raises(CodeProblem):
        project.fingerprint("pkg:thing")
    # Each of two functions that call each other has its own fingerprint, though they reach the same.
    assert project.fingerprint("a:f").digest != project.fingerprint("b:g").digest


def test_long_chains_of_imports_and_long_sums_do(write: Write) -> None:
    files = {f"m{index}.py": f"import m{index + 1}\n" for index in range(1500)}
    files |= {"m1500.py": "", "agent.py": "import m0\ndef f():\n    return " + " + ".join(["1"] * 700) + "\n"}
    assert len(Project(write(files)).fingerprint("agent:f").modules) == 1502


def test_names_that_modules_make_up_reach_their_getattr(write: Write) -> None:
    files = {
        "lazy.py": "def __getattr__(name):\n    return 1\n",
        "agent.py": "import lazy\ndef f():\n    return lazy.x\n",
    }
    project = Project(write(files))
    assert "lazy:__getattr__" in project.fingerprint("agent:f").definitions
    assert "lazy:__getattr__" in project.fingerprint("lazy:anything").definitions


def test_sources_in_other_encodings_are_read(write: Write) -> None:
    root = write({"plain.py": "NAME = 'é'\ndef f():\n    return NAME\n"})
    before = Project(root).fingerprint("plain:f").digest
    (root / "plain.py").write_bytes("# coding: latin-1\nNAME = 'é'\ndef f():\n    return NAME\n".encode("latin-1"))
    assert Project(root).fingerprint("plain:f").digest == before


def test_odd_texts_have_a_digest(write: Write) -> None:
    body = "def f():\n    return '\\ud800', 1j, ..., 10**400, -0.0, float('nan'), b'x', {**{}}, 'é'\n"
    assert Project(write({"agent.py": body})).fingerprint("agent:f").digest


def test_a_doubtful_escape_is_no_error(write: Write) -> None:
    assert Project(write({"agent.py": "def f():\n    return '\\d'\n"})).fingerprint("agent:f").digest


def test_a_compiled_module_counts_by_its_bytes(write: Write) -> None:
    root = write({"agent.py": "import fast\ndef f():\n    return fast.x()\n"})
    (root / "fast.abi3.so").write_bytes(b"\x7fELF1")
    before = Project(root).fingerprint("agent:f")
    assert "fast" in before.modules
    (root / "fast.abi3.so").write_bytes(b"\x7fELF2")
    assert changes(before, Project(root).fingerprint("agent:f")) == ["fast.abi3.so:<module> changed"]
