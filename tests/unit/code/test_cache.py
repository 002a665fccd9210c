"""The cache on disk: believed while every file it was read from is the same, and never otherwise."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.code import CodeProblem, Fingerprint, Project
from dsec.code.distributions import Distributions

FILES = {
    "agent.py": "import numpy\nfrom helpers import gae\nfrom helpers.gae import f\n"
    "class Agent:\n    def __init__(self, size=1): ...\n    def act(self):\n        return f(), gae.more\n",
    "helpers/__init__.py": "",
    "helpers/gae.py": "RATE = 1\ndef f():\n    return RATE\n",
    "unrelated.py": "",
}
Write = Callable[..., Path]
NAME = "agent:Agent"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_second_process_parses_nothing(write: Write, cache: Path) -> None:
    root = write(FILES)
    first, signature = Project(root, cache).fingerprint(NAME), Project(root, cache).signature(NAME)
    project = Project(root, cache)
    assert project.fingerprint(NAME) == first
    assert project.signature(NAME) == signature
    assert project._parsed == {}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("helpers/gae.py", "RATE = 2\ndef f():\n    return RATE\n"),
        ("helpers/__init__.py", "import logging\nlogging.basicConfig()\n"),
        ("agent.py", FILES["agent.py"] + "print(1)\n"),
        ("helpers/gae/__init__.py", "def f():\n    return 3\n"),
        ("helpers.py", ""),
        ("numpy.py", ""),
        ("agent/__init__.py", "Agent = 3\n"),
    ],
)
def test_what_is_kept_equals_what_is_found(file: str, text: str, write: Write, cache: Path) -> None:
    Project(write(FILES), cache).fingerprint(NAME)
    root = write({**FILES, file: text})

    def ask(project: Project) -> Fingerprint | str:
        try:
            return project.fingerprint(NAME)
        except CodeProblem as problem:
            return str(problem)

    assert ask(Project(root, cache)) == ask(Project(root))


def test_a_name_that_led_to_nothing_is_looked_for_again(write: Write, cache: Path) -> None:
    files = {
        "agent.py": "try:\n    from helpers import extra\nexcept ImportError:\n    extra = 0\nX = extra\n",
        "helpers/__init__.py": "",
    }
    before = Project(write(files), cache).fingerprint("agent:X")
    after = Project(write({**files, "helpers/extra.py": "print(1)\n"}), cache).fingerprint("agent:X")
    assert "helpers.extra" in after.modules
    assert before.digest != after.digest


def test_a_text_that_comes_to_name_code_counts(write: Write, cache: Path) -> None:
    files = {"agent.py": "X = 'later:f'\n"}
    Project(write(files), cache).fingerprint("agent:X")
    assert (
        "later:f" in Project(write({**files, "later.py": "def f(): ...\n"}), cache).fingerprint("agent:X").definitions
    )


def test_a_comment_is_looked_at_once(write: Write, cache: Path) -> None:
    first = Project(write(FILES), cache).fingerprint(NAME)
    root = write({**FILES, "helpers/gae.py": FILES["helpers/gae.py"] + "# more\n"})
    second = Project(root, cache).fingerprint(NAME)
    assert (second.digest, second.modules == first.modules) == (first.digest, False)
    third = Project(root, cache)
    assert third.fingerprint(NAME) == second
    assert third._parsed == {}


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff", b'{"body": {}, "digest": "x"}', "flip", "swap"])
def test_a_damaged_cache_is_made_anew(damage: bytes | str, write: Write, cache: Path) -> None:
    root = write(FILES)
    first = Project(root, cache).fingerprint(NAME)
    other = Project(root, cache).fingerprint("helpers.gae:f")
    for path in sorted(cache.iterdir()):
        content = path.read_bytes()
        if damage == "flip":
            content = content.replace(first.digest.encode(), other.digest.encode())
        elif damage == "swap":
            content = next(p for p in sorted(cache.iterdir()) if p != path).read_bytes()
        path.write_bytes(content if isinstance(damage, str) else damage)
    assert Project(root, cache).fingerprint(NAME) == first
    assert Project(root, cache).fingerprint("helpers.gae:f") == other


def test_a_cache_that_cannot_be_written_is_no_error(write: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = write(FILES)
    assert Project(root, tmp_path / "file").fingerprint(NAME) == Project(root).fingerprint(NAME)


def test_a_cache_serves_another_checkout(write: Write, cache: Path, tmp_path: Path) -> None:
    root = write(FILES)
    first = Project(root, cache).fingerprint(NAME)
    shutil.copytree(root, tmp_path / "moved")
    moved = Project(tmp_path / "moved", cache)
    assert moved.fingerprint(NAME) == first
    assert moved._parsed == {}
    assert Path(moved.signature(NAME).file) == tmp_path / "moved" / "agent.py"


def test_what_is_dynamic_is_kept_apart(write: Write, cache: Path) -> None:
    root = write({"agent.py": "def f(x, n):\n    return getattr(x, n)\n"})
    assert Project(root, cache).fingerprint("agent:f", allow_dynamic=True)
    with pytest.raises(CodeProblem):
        Project(root, cache).fingerprint("agent:f")


def test_no_temporary_file_stays(write: Write, cache: Path) -> None:
    Project(write(FILES), cache).fingerprint(NAME)
    assert {path.suffix for path in cache.iterdir()} == {".json"}


def test_a_cached_answer_takes_milliseconds(write: Write, cache: Path) -> None:
    root = write(FILES)
    Project(root, cache).fingerprint(NAME)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        Project(root, cache).fingerprint(NAME)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.005


# ---- distributions -----------------------------------------------------------------------------------------


def installed(folder: Path, name: str, record: str, *, top: str = "", direct: object = None) -> None:
    entry = folder / f"{name}.dist-info"
    entry.mkdir(parents=True)
    (entry / "RECORD").write_text(record)
    if top:
        (entry / "top_level.txt").write_text(top)
    if direct is not None:
        (entry / "direct_url.json").write_text(json.dumps(direct))


def test_distributions_by_module(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    installed(folder, "Stable_Baselines3-2.3.0", "stable_baselines3/__init__.py,,\n", top="stable_baselines3\n")
    installed(folder, "six-1.0", "six.py,,\nsix-1.0.dist-info/RECORD,,\n__pycache__/six.pyc,,\n../../bin/six,,\n")
    installed(folder, "fast-2", "_fast.cpython-311-x86_64-linux-gnu.so,,\n")
    installed(folder, "google_a-1", "google/a/x.py,,\n")
    installed(folder, "google_b-2", "google/b/x.py,,\n")
    installed(folder, "local-1", "local.py,sha256=x,\n", direct={"url": "file:///x", "dir_info": {}})
    installed(folder, "edit-1", "edit.pth,,\n", top="edit\n", direct={"dir_info": {"editable": True}})
    found = Distributions(path=(str(folder),))

    def of(module: str) -> list[tuple[str, str]]:
        return [(one.name, one.version) for one in found.of(module)]

    assert of("stable_baselines3.ppo") == [("stable-baselines3", "2.3.0")]
    assert of("six") == [("six", "1.0")]
    assert of("_fast") == [("fast", "2")]
    assert of("google.b.x") == [("google-b", "2")]
    assert of("google") == [("google-a", "1"), ("google-b", "2")]
    assert of("local")[0][1].startswith("1 (RECORD ")
    assert of("edit") == []
    assert found.named("stable.baselines3") == found.of("stable_baselines3")[0]


def test_the_table_is_renewed_when_something_is_installed(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    installed(folder, "six-1.0", "six.py,,\n")
    cache = tmp_path / "cache"
    assert [one.version for one in Distributions(cache, (str(folder),)).of("six")] == ["1.0"]
    shutil.rmtree(folder / "six-1.0.dist-info")
    installed(folder, "six-1.1", "six.py,,\n")
    assert [one.version for one in Distributions(cache, (str(folder),)).of("six")] == ["1.1"]
