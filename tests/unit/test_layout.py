"""The shape of the source tree: folders, sizes of files and functions, names, docstrings of packages, tests beside."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dsec"

TOP_FOLDERS = {"bench", "docs", "dsec", "envs", "examples", "plans", "tests"}
"""Folders of the project; another one is a decision, to be made here and in the architecture notes."""
MADE_FOLDERS = {"__pycache__", "build", "dist", "node_modules", "shared"}
"""Folders that tools or the workplace put beside them."""
TESTED_ELSEWHERE = {"testing": "its contracts are run by tests/contracts"}
"""Layer -> where its tests are, if not in tests/unit."""
TEST_FOLDERS = {"cluster", "contracts", "docs", "golden", "promises", "properties", "support", "unit"}

FILE_LINES = 600
BODY_LINES = 50
POSITIONAL = 5
FORBIDDEN = {
    *("base", "bases", "common", "globals", "handler", "handlers", "helper", "helpers", "hook", "hooks"),
    *("manager", "managers", "misc", "registry", "settings", "tools", "util", "utils"),
}

LONG_FILES: dict[str, str] = {}
"""File -> why it may be longer than `FILE_LINES`."""
LONG_BODIES: dict[str, str] = {
    "dsec/runtime/rollout.py:_Single.block": "the loop of steps: a call within it would be paid for at each step",
}
"""``file:Class.function`` -> why its body may be longer than `BODY_LINES`."""
MANY_POSITIONAL: dict[str, str] = {}
"""``file:Class.function`` -> why it may take more positional parameters than `POSITIONAL`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    """Python files that ship."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions() -> Iterator[tuple[str, Function]]:
    """Every function that ships, as ``file:Class.name``."""
    for path in sources():
        yield from _within(ast.parse(path.read_text("utf-8")), f"{relative(path)}:")


def _within(node: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}{child.name}", child
        inner = f"{name}{child.name}." if isinstance(child, ast.ClassDef | ast.FunctionDef) else name
        yield from _within(child, inner)


def body_lines(node: Function) -> int:
    """Lines of a body, its docstring apart."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def positional(node: Function) -> int:
    """Parameters a caller can pass by position."""
    names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]]
    return len(names) - (1 if names[:1] in (["self"], ["cls"]) else 0)


def packages(folder: Path) -> list[Path]:
    """Folders with Python files, `folder` included."""
    return sorted({path.parent for path in folder.rglob("*.py") if "__pycache__" not in path.parts})


def test_top_level_folders_are_the_agreed_ones() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_dir()}
    visible = {name for name in found if not name.startswith(".") and not name.endswith(".egg-info")}
    assert visible - MADE_FOLDERS <= TOP_FOLDERS


def test_files_are_short() -> None:
    long = {relative(path): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {name: lines for name, lines in long.items() if lines > FILE_LINES and name not in LONG_FILES} == {}


def test_function_bodies_are_short() -> None:
    long = {name: body_lines(node) for name, node in functions() if body_lines(node) > BODY_LINES}
    assert {name: lines for name, lines in long.items() if name not in LONG_BODIES} == {}


def test_functions_take_few_positional_parameters() -> None:
    many = {name: positional(node) for name, node in functions() if positional(node) > POSITIONAL}
    assert {name: count for name, count in many.items() if name not in MANY_POSITIONAL} == {}


def test_no_exception_is_left_over() -> None:
    files = {relative(path) for path in sources()}
    names = {name for name, _ in functions()}
    assert set(LONG_FILES) <= files
    assert {*LONG_BODIES, *MANY_POSITIONAL} <= names


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [relative(path) for path in sources() if path.stem in FORBIDDEN] == []
    assert [relative(folder) for folder in packages(PACKAGE) if folder.name in FORBIDDEN] == []


@pytest.mark.parametrize("top", ["dsec", "envs"])
def test_every_package_says_what_belongs_into_it(top: str) -> None:
    silent = []
    for folder in packages(ROOT / top):
        text = (folder / "__init__.py").read_text("utf-8") if (folder / "__init__.py").is_file() else ""
        if not ast.get_docstring(ast.parse(text)):
            silent.append(relative(folder))
    assert silent == []


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    ours = [folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in packages(PACKAGE)]
    theirs = [
        folder.relative_to(ROOT).as_posix().replace("/", ".").replace("envs", "dsec_envs", 1)
        for folder in packages(ROOT / "envs")
    ]
    assert settings["packages"] == sorted([*ours, *theirs])


def test_tests_mirror_the_package() -> None:
    layers = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    unit = {folder.name for folder in (ROOT / "tests/unit").iterdir() if folder.is_dir()} - MADE_FOLDERS
    assert unit <= layers, "a folder of unit tests without a layer"
    assert layers - unit - set(TESTED_ELSEWHERE) == set(), "a layer without unit tests"


def test_folders_of_tests_are_the_agreed_ones() -> None:
    found = {folder.name for folder in (ROOT / "tests").iterdir() if folder.is_dir()} - MADE_FOLDERS
    assert found <= TEST_FOLDERS
