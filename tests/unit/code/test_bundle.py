"""Bundles put the same code back anywhere, and a process knows what it has loaded."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.code import CodeProblem, Project
from dsec.code import bundle as bundles

FILES = {
    "dsecbundled/__init__.py": "",
    "dsecbundled/agent.py": "from dsecbundled.deep.er import f\nfrom dsecspace.free import g\nX = f() + g()\n",
    "dsecbundled/deep/__init__.py": "# nothing\r\n",
    "dsecbundled/deep/er.py": "def f():\n    return 40\n",
    "dsecspace/free.py": "def g():\n    return 2\n",
    "dsecbundled/unused.py": "",
}
NAME = "dsecbundled.agent:X"
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Leaves the imports of this process as they were."""
    path, finders = list(sys.path), list(sys.meta_path)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    bundles._RECORD.roots.clear()
    bundles._RECORD.digests.clear()
    for name in [name for name in sys.modules if name.startswith(("dsecbundled", "dsecspace"))]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_a_bundle_is_the_code(write: Write, tmp_path: Path) -> None:
    project = Project(write(FILES))
    found = project.fingerprint(NAME)
    sources = bundles.bundle([found, project.fingerprint("dsecbundled.deep.er:f")], project)
    assert list(sources["modules"]) == [
        "dsecbundled",
        "dsecbundled.agent",
        "dsecbundled.deep",
        "dsecbundled.deep.er",
        "dsecspace.free",
    ]
    assert sources["modules"]["dsecbundled.deep"] == "# nothing\r\n"
    folder = bundles.unpack(sources, tmp_path / "unpacked")
    command = [sys.executable, "-c", "import dsecbundled.agent; print(dsecbundled.agent.X)"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"
    assert Project(folder).fingerprint(NAME) == found
    again = bundles.bundle([Project(folder).fingerprint(NAME)], Project(folder))
    assert bundles.bundle_digest(again) == bundles.bundle_digest(sources)


def test_a_file_edited_meanwhile_is_told(write: Write) -> None:
    found = Project(write(FILES)).fingerprint(NAME)
    root = write({**FILES, "dsecbundled/deep/er.py": "def f():\n    return 41\n"})
    with pytest.raises(CodeProblem, match="was edited while it was read"):
        bundles.bundle([found], Project(root))


def test_sources_that_are_no_utf8_keep_their_bytes(write: Write, tmp_path: Path) -> None:
    root = write({"odd.py": ""})
    content = "# coding: latin-1\nX = 'é'\n".encode("latin-1")
    (root / "odd.py").write_bytes(content)
    sources = bundles.bundle([Project(root).fingerprint("odd:X")], Project(root))
    folder = bundles.unpack(sources, tmp_path / "unpacked")
    assert (folder / "odd.py").read_bytes() == content


def test_a_bundle_cannot_leave_its_folder(tmp_path: Path) -> None:
    with pytest.raises(CodeProblem):
        bundles.unpack({"modules": {"../evil": ""}, "packages": []}, tmp_path)


def test_what_is_loaded_is_compared_with_what_was_compiled(write: Write) -> None:
    root = write(FILES)
    modules = Project(root).fingerprint(NAME).modules
    sys.path.insert(0, str(root))
    bundles.watch_imports([root])
    bundles.watch_imports([root])
    assert bundles.loaded_differs(modules) == []
    importlib.invalidate_caches()
    importlib.import_module("dsecbundled.agent")
    assert bundles.loaded_differs(modules) == []
    assert bundles.loaded() == dict(modules)
    write({"dsecbundled/deep/er.py": "def f():\n    return 99\n"})
    edited = Project(root).fingerprint(NAME).modules
    assert bundles.loaded_differs(edited) == ["dsecbundled.deep.er"]


def test_compiled_files_are_never_believed(write: Write) -> None:
    root = write({"dsecbundled.py": "X = 1\n"})
    command = [sys.executable, "-c", "import dsecbundled"]
    subprocess.run(command, cwd=root, check=True)
    stale = (root / "dsecbundled.py").stat()
    (root / "dsecbundled.py").write_text("X = 2\n")

    os.utime(root / "dsecbundled.py", ns=(stale.st_atime_ns, stale.st_mtime_ns))
    sys.path.insert(0, str(root))
    bundles.watch_imports([root])
    importlib.invalidate_caches()
    assert importlib.import_module("dsecbundled").X == 2
    assert bundles.loaded_differs(Project(root).fingerprint("dsecbundled:X").modules) == []


def test_what_was_loaded_before_the_watch_is_not_trusted(write: Write) -> None:
    root = write({"dsecbundled.py": "X = 1\n"})
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    importlib.import_module("dsecbundled")
    bundles.watch_imports([root])
    assert bundles.loaded_differs(Project(root).fingerprint("dsecbundled:X").modules) == ["dsecbundled"]


def test_users_code_is_watched_wherever_it_lies(write: Write) -> None:
    root = write({"dsecbundled.py": "X = 1\n"})
    elsewhere = write({"site-packages/dsecspace.py": "X = 1\n"}) / "site-packages"
    sys.path[:0] = [str(root), str(elsewhere)]
    bundles.watch_imports([Path(root.anchor)])
    importlib.invalidate_caches()
    sys.modules.pop("colorsys", None)
    for name in ("dsecbundled", "dsecspace", "colorsys"):
        importlib.import_module(name)
    assert list(bundles.loaded()) == ["dsecbundled"], "installed modules and Python's are no one's to edit"
