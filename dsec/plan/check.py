"""Everything that can be said of a plan before it runs: statically, and by importing in a subprocess."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from dsec.errors import Problem
from dsec.plan.load import Document
from dsec.plan.locate import MAX_PROBLEMS
from dsec.plan.placed import place
from dsec.plan.rules import rules
from dsec.plan.schema import ExecutionPlan
from dsec.plan.scopes import scopes
from dsec.plan.usage import Sources, Usage
from dsec.plan.wiring import wiring

__all__ = ["check", "check_imports"]


def check_imports(plan: ExecutionPlan, document: Document, root: Path, *, deadline: float = 60.0) -> list[Problem]:
    """Problems of importing what the plan names, in a subprocess, in written order.

    Parameters
    ----------
    root
        Folder that is on the import path.
    deadline
        Seconds for all imports together.
    """
    from dsec.plan import imports  # a run does not need it, and must start fast

    return imports.check_imports(plan, document, root, deadline=deadline)


def check(plan: ExecutionPlan, document: Document, project: Sources | None = None) -> list[Problem]:
    """Problems that sources alone show, sorted by place: names, references, cycles, expressions, signatures.

    Parameters
    ----------
    project
        `dsec.code.Project` that reads users' sources; None leaves them out.
    """
    found = _problems(plan, document, project)
    return sorted(found, key=lambda problem: (problem.path, problem.line, problem.column, problem.code))


def _problems(plan: ExecutionPlan, document: Document, project: Sources | None) -> Iterator[Problem]:
    stages = place(plan)
    usage = Usage(plan, document, project)
    families = (
        rules(plan, document, stages.values()),
        scopes(plan, document, stages),
        wiring(plan, document, stages, usage.outputs(stages.values())),
        usage.problems(stages.values()),
    )
    # A hint costs more than a check, and only the first problems are shown.
    for family in families:
        yield from itertools.islice(family, 5 * MAX_PROBLEMS)
