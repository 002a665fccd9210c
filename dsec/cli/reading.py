"""Verbs that only read: check, plan, why, graph, runs, show, schema."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dsec.cli import arguments, failure, output, shown
from dsec.cli.options import CheckFormat, GraphFormat, Json, Params, PlanPath, Select, StorePath
from dsec.errors import PlanError, Problem, UsageError

__all__ = ["check", "graph", "plan", "runs", "schema", "show", "why"]


def check(
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN", help="Plans, YAML files.", show_default=False)],
    *,
    param: Params = None,
    static: Annotated[
        bool, typer.Option("--static", help="Import no code of the project; read it statically only.")
    ] = False,
    layout: Annotated[
        CheckFormat, typer.Option("--format", help="text for people, json for editors, github for annotations in CI.")
    ] = CheckFormat.text,
    json: Json = False,
) -> None:
    """Find what is wrong with plans; run nothing.

    All problems are reported at once, each with its line.
    """
    layout = CheckFormat.json if json else layout
    values = arguments.params(param)
    found = [problem for path in plans for problem in _checked(path, values, layout, imports=not static)]
    if found:
        raise typer.Exit(PlanError.exit_code)


def _checked(path: Path, values: dict[str, object], layout: CheckFormat, *, imports: bool) -> Sequence[Problem]:
    from dsec import api

    try:
        problems = api.load_plan(path, params=values).check(imports=imports)
    except PlanError as error:
        problems = error.problems
    for problem in problems:
        shown.problem(problem, layout)
    if layout is CheckFormat.json:
        output.json_line({"event": "check-finished", "plan": str(path), "problems": len(problems)})
    elif not problems:
        output.line(f"{path}: ok")
    elif layout is CheckFormat.text:
        output.note(f"{output.counted(len(problems), 'problem')}; when corrected: dsec check {path}")
    return problems


def plan(
    context: typer.Context,
    plan: PlanPath,
    *,
    param: Params = None,
    select: Select = None,
    store: StorePath = None,
    json: Json = False,
) -> None:
    """Show what a run would do.

    For each stage: its instances, how many are cached, how many would run, and why.
    """
    from dsec import api

    preview = api.load_plan(plan, params=arguments.params(param)).preview(store=store, select=tuple(select or ()))
    if json:
        output.json_line(shown.preview_json(preview))
    else:
        output.line(shown.preview_text(preview))
        # Every option of `plan` is one of `run`.
        output.line(f"next: {failure.command(['run', *context.obj[1:]])}")


def why(
    instance: Annotated[
        str, typer.Argument(metavar="INSTANCE", help="For example 'train@seed=0#17/learn'.", show_default=False)
    ],
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="Default: the plan of the newest run.", show_default=False),
    ] = None,
    *,
    param: Params = None,
    store: StorePath = None,
    json: Json = False,
) -> None:
    """Tell why an instance is cached or would run.

    Names what changed since the last result of its like: code, a parameter, an input.
    """
    from dsec import api

    chosen, params = (plan, {}) if plan is not None else newest_plan(arguments.store_of(store))
    loaded = api.load_plan(chosen, params={**params, **arguments.params(param)})
    answer = api.why(loaded, instance, store=store)
    if json:
        output.json_line(shown.why_json(answer))
        return
    output.line(f"{answer.instance}: {answer.status}")
    for reason in answer.reasons:
        output.line(f"  {reason}")


def newest_plan(store: Path) -> tuple[Path, dict[str, object]]:
    """Plan file of the store's newest run, and the params it was started with.

    Raises
    ------
    UsageError
        If nothing ran yet, or the file is gone.
    """
    from dsec import api

    rows = api.runs(store)
    if not rows:
        raise UsageError(f"no run is in {store}", hint="name the plan: dsec why INSTANCE PLAN")
    path = Path(rows[0].path)
    if not path.is_file():
        raise UsageError(f"the plan of the newest run, {path}, is gone", hint="name the plan: dsec why INSTANCE PLAN")
    return path, dict(rows[0].params)


def graph(
    plan: PlanPath,
    *,
    param: Params = None,
    layout: Annotated[GraphFormat, typer.Option("--format", help="How to draw.")] = GraphFormat.text,
    json: Json = False,
) -> None:
    """Draw the stages of a plan.

    Shows what flows between them.
    """
    from dsec import api

    loaded = api.load_plan(plan, params=arguments.params(param))
    drawing = loaded.graph(layout.value)
    if json:
        output.json_line({"plan": loaded.name, "format": layout.value, "graph": drawing})
    else:
        output.line(drawing.rstrip("\n"))


def runs(*, store: StorePath = None, json: Json = False) -> None:
    """List the runs of a store, the newest first."""
    from dsec import api

    place = arguments.store_of(store)
    rows = api.runs(place)
    if json:
        for row in rows:
            output.json_line(shown.run_row_json(row))
        return
    output.line(shown.runs_text(rows) if rows else f"no run is in {place}; start one with: dsec run PLAN")


def show(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of a run, or the beginning of one.", show_default=False)
    ],
    *,
    instances: Annotated[
        str | None,
        typer.Option("--instances", metavar="GLOB", help="List these instances too, for example 'eval*'."),
    ] = None,
    store: StorePath = None,
    json: Json = False,
) -> None:
    """Show one run.

    Its sessions, its stages and what failed; with --json also every instance with anchors, stats and cost.
    """
    from dsec import api

    details = api.show(arguments.store_of(store), run)
    if json:
        output.json_line(details)
    else:
        output.line(shown.run_text(details, instances))
        output.line(f"\nall of it: {failure.command([*context.obj, '--json'])}")


def schema(*, json: Json = False) -> None:
    """Print the JSON Schema of plans.

    Editors complete and check plans with it.
    """
    from dsec import api

    if json:
        output.json_line(api.schema())
    else:
        output.line(json_module.dumps(api.schema(), indent=2))
