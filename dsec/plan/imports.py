"""Importing what a plan names, in a process of its own and with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsec.core.bodies import BODIES
from dsec.errors import Problem
from dsec.plan.load import Document, Where
from dsec.plan.placed import place
from dsec.plan.schema import ExecutionPlan
from dsec.plan.values import Expr

__all__ = ["check_imports"]

_MAX_OUTPUT = 1 << 20

# Runs alone in the subprocess: it gets names on stdin and says one JSON line for each, on a descriptor of its own,
# so that what users' code prints is not taken for an answer.
_PROGRAM = """
import json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
root = sys.argv[1]
sys.path.insert(0, root)
def where(error):
    if isinstance(error, SyntaxError) and error.filename:
        return [error.filename, error.lineno]
    own = [f for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename).startswith(root + os.sep)
           and "site-packages" not in f.filename]
    return [own[-1].filename, own[-1].lineno] if own else None
def say(**answer):
    answers.write(json.dumps(answer) + "\\n"); answers.flush()
for name in json.load(sys.stdin):
    say(begin=name)
    module, _, path = name.partition(":")
    try:
        if name.startswith("gymnasium/"):
            import gymnasium
            gymnasium.spec(name.partition("/")[2])
            say(done=name, callable=True)
            continue
        found = __import__("importlib").import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        say(done=name, callable=callable(found))
    except BaseException as error:
        message = (str(error).splitlines() or [""])[0][:200]
        say(done=name, error=type(error).__name__, message=message, where=where(error))
os._exit(0)
"""


def check_imports(plan: ExecutionPlan, document: Document, root: Path, *, deadline: float = 60.0) -> list[Problem]:
    """Problems of importing what the plan names, in written order.

    Parameters
    ----------
    root
        Folder that is on the import path.
    deadline
        Seconds for all imports together.
    """
    named = dict(_named(plan))
    if not named:
        return []
    answers = _ask(list(named), root, deadline)
    found = []
    begun = None
    for answer in answers:
        begun = answer.get("begin", begun)
        if "done" in answer:
            begun = None
            problem = _problem(answer, root)
            if problem is not None:
                found.append(document.problem(named[answer["done"]], "import", *problem))
    if begun is not None:
        message = f"importing {begun} did not end within {deadline:g} s, or ended Python itself"
        hint = "a module should do nothing when it is imported"
        found.append(document.problem(named[begun], "import", message, hint))
    return found


def _named(plan: ExecutionPlan) -> Iterator[tuple[str, Where]]:
    """Users' code by name, each with the place that names it last."""
    session = plan.session
    for part in ("agent", "env", "reward"):
        spec = getattr(session, part) if session is not None else None
        if spec is not None and not isinstance(spec.uses, Expr) and (_python(spec.uses) or _registered(spec.uses)):
            yield spec.uses, ("session", part, "uses")
    for top in place(plan).values():
        for placed in top.walk():
            uses = placed.stage.uses
            if isinstance(uses, str) and uses not in BODIES:
                yield uses, (*placed.where, "uses")


def _python(uses: str) -> bool:
    module, colon, name = uses.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _registered(uses: str) -> bool:
    """Whether Gymnasium's registry has to know it; its own errors name the nearest."""
    return uses.startswith("gymnasium/")


def _ask(names: list[str], root: Path, deadline: float) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", _PROGRAM, str(root.resolve())]
    # A session of its own, so that what an import starts ends with it.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(json.dumps(names).encode(), timeout=deadline)
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = output[:_MAX_OUTPUT].split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _problem(answer: dict[str, Any], root: Path) -> tuple[str, str] | None:
    if "error" not in answer:
        return None if answer["callable"] else (f"{answer['done']} can't be called", "name a function or a class")
    place = answer.get("where")
    at = ""
    if place is not None:
        file = Path(place[0])
        at = f" at {file.relative_to(root.resolve()) if file.is_relative_to(root.resolve()) else file}:{place[1]}"
    if _registered(answer["done"]):
        return f"there is no {answer['done']}: {answer['message']}", ""
    module = answer["done"].partition(":")[0]
    hint = f"try it by hand: python -c 'import {module}'"
    return f"importing {answer['done']} raises {answer['error']}: {answer['message']}{at}", hint
