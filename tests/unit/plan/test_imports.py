"""Imports happen in a process of their own, and each failure is one line at the place that names it."""

from __future__ import annotations

from pathlib import Path

from dsec.errors import Problem
from dsec.plan.check import check_imports
from dsec.plan.load import load_plan


def found(tmp_path: Path, source: str, stages: str, deadline: float = 60) -> list[Problem]:
    (tmp_path / "own.py").write_text(source)
    plan, document = load_plan(tmp_path / "plan.yaml", f"dsec: 1\nname: x\nstages:\n{stages}")
    return check_imports(plan, document, tmp_path, deadline=deadline)


ONE = "  a: {uses: 'own:body'}\n"


def test_good_imports_say_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, "print('noise')\ndef body(ctx): ...\nclass A:\n    def b(self): ...\n", ONE) == []


def test_a_raising_module_names_exception_and_line(tmp_path: Path) -> None:
    source = "def f():\n    raise RuntimeError('no\\ngood')\n\nf()\n"
    problem = found(tmp_path, source, ONE)[0]
    assert (problem.line, problem.column, problem.code) == (4, 13, "import")
    assert problem.message == "importing own:body raises RuntimeError: no at own.py:2"


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    assert "SyntaxError" in found(tmp_path, "def body(ctx):\n  return (\n", ONE)[0].message
    assert "at own.py:2" in found(tmp_path, "def body(ctx):\n  return (\n", ONE)[0].message


def test_a_missing_name_and_a_missing_module(tmp_path: Path) -> None:
    problems = found(tmp_path, "x = 3\n", "  a: {uses: 'own:body'}\n  b: {uses: 'gone:body'}\n  c: {uses: 'own:x'}\n")
    assert "AttributeError: module 'own' has no attribute 'body'" in problems[0].message
    assert "ModuleNotFoundError: No module named 'gone'" in problems[1].message
    assert "own:x can't be called" in problems[2].message


def test_a_hang_ends_at_the_deadline(tmp_path: Path) -> None:
    source = "import threading\nthreading.Event().wait()\n"
    problem = found(tmp_path, source, ONE, deadline=1.0)[0]
    assert "did not end within 1 s" in problem.message


def test_a_module_that_ends_python(tmp_path: Path) -> None:
    assert "raises SystemExit" in found(tmp_path, "import sys\nsys.exit(3)\n", ONE)[0].message
    assert "or ended Python itself" in found(tmp_path, "import os\nos._exit(3)\n", ONE)[0].message


def test_what_an_import_prints_is_no_answer(tmp_path: Path) -> None:
    source = 'import os\nos.write(1, b\'{"done": "own:body", "error": "Fake"}\\n\')\ndef body(ctx): ...\n'
    assert found(tmp_path, source, ONE) == []


ENV = "dsec: 1\nname: x\nsession: {{env: gymnasium/{}}}\nstages:\n  a: {{uses: 'dsec.stages:rollout', steps: 1}}\n"


def test_a_registered_environment_is_looked_up_and_ready_made_bodies_are_left_out(tmp_path: Path) -> None:
    plan, document = load_plan(tmp_path / "plan.yaml", ENV.format("CartPole-v1"))
    assert check_imports(plan, document, tmp_path) == []
    plan, document = load_plan(tmp_path / "plan.yaml", ENV.format("CartPol-v1"))
    (problem,) = check_imports(plan, document, tmp_path)
    assert (problem.line, problem.code) == (3, "import")
    assert "there is no gymnasium/CartPol-v1: " in problem.message
    assert "CartPole" in problem.message
