"""The verb `run`, which is also resume: the same command goes on where the last one stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli import arguments, failure, output, progress
from dsec.cli.options import Durability, Json, Memory, Params, PlanPath, Select, StorePath
from dsec.errors import DsecError, StageError, StateError, UsageError

if TYPE_CHECKING:
    from dsec import api

__all__ = ["run"]

MAX_ERRORS = 10
"""Failed instances that are printed; the others are counted."""


def run(  # noqa: PLR0913 - the options of a verb are its parameters
    context: typer.Context,
    plan: PlanPath,
    *,
    param: Params = None,
    select: Select = None,
    store: StorePath = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="COUNTS",
            help="Workers of the local cluster, for example cpu=2,gpu=1. Default: one process per core.",
            show_default=False,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", metavar="ADDR", help="Use this running cluster instead of a local one.", show_default=False
        ),
    ] = None,
    memory: Memory = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Start nothing new after the first failed instance.")
    ] = False,
    durability: Annotated[
        Durability,
        typer.Option("--durability", help="What results survive: group is process death, strict is power loss."),
    ] = Durability.group,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")] = False,
) -> None:
    """Run a plan, or go on with it.

    What is in the store already is not run again, so the same command continues after an interruption or a failure.
    """
    from dsec import api

    shape = _shape(workers, scheduler, memory)
    loaded = api.load_plan(plan, params=arguments.params(param))
    with progress.display(json=json, quiet=quiet) as report:
        try:
            summary = api.run(
                loaded,
                store=store,
                shape=shape,
                select=tuple(select or ()),
                fail_fast=fail_fast,
                durability=durability.value,
                report=report,
            )
        except DsecError as error:
            if json:
                output.json_line(failure.as_json(error))
            raise
    if json:
        _finish_json(summary)
    else:
        _finish_text(summary, quiet=quiet)
        if not quiet:
            _look_next(summary, context.obj, plan, param or ())
    # Not typer.Exit: its 130 is taken for an interruption that nobody has told of yet.
    raise SystemExit(_failed(summary, context.obj))


def _shape(workers: str | None, scheduler: str | None, memory: str | None) -> api.Workers:
    from dsec import api

    for option, value in (("--workers", workers), ("--memory", memory)):
        if value is not None and scheduler is not None:
            raise UsageError(
                f"{option} and --scheduler exclude each other",
                hint="workers of an existing cluster are started with: dsec worker ADDR",
            )
    counts, limit = arguments.workers(workers), arguments.memory(memory)
    return api.Workers(cpu=counts.get("cpu"), gpu=counts.get("gpu"), scheduler=scheduler, memory=limit)


def _finish_json(summary: api.RunSummary) -> None:
    for error in summary.errors:
        output.json_line(failure.as_json(error))
    output.json_line(
        {
            "event": "run-finished",
            "run": summary.run_id,
            "calls": summary.calls,
            "hits": summary.hits,
            "ran": summary.ran,
            "failed": summary.failed,
            "seconds": round(summary.seconds, 3),
            "cluster": summary.cluster,
        }
    )


def _finish_text(summary: api.RunSummary, *, quiet: bool) -> None:
    """Tables on stdout, then one line of counts on stderr."""
    limit = output.width()
    for table in summary.tables:
        output.line(table.instance)
        output.line(output.table(table.columns, table.rows, limit=limit, more=f"dsec show {summary.run_id} --json"))
        output.line()
    if not quiet:
        output.note(_counts(summary))


def _look_next(summary: api.RunSummary, argv: Sequence[str], plan: Path, pairs: Sequence[str]) -> None:
    """Commands that show more, with the options that they need to find this run again."""
    place = ["--store", str(summary.store)] if any(word.split("=")[0] == "--store" for word in argv) else []
    params = [word for pair in pairs for word in ("-p", pair)]
    output.note(f"  this run       {failure.command(['show', summary.run_id, *place])}")
    if instance := _interesting(summary):
        output.note(f"  one instance   {failure.command(['why', instance, str(plan), *params, *place])}")
    output.note(f"  all results    {summary.store}")


def _interesting(summary: api.RunSummary) -> str:
    """An instance worth asking about: the first that failed, else the first that made a table; empty if none."""
    failed = [
        error.instance for error in summary.errors if isinstance(error, StageError | StateError) and error.instance
    ]
    return next(iter([*failed, *(table.instance for table in summary.tables)]), "")


def _counts(summary: api.RunSummary) -> str:
    parts = [f"{summary.ran:,} ran", f"{summary.hits:,} cached"]
    parts += [f"{summary.failed:,} failed"] if summary.failed else []
    parts += [f"{summary.skipped:,} skipped"] if summary.skipped else []
    calls = output.counted(summary.calls, "call")
    return f"{summary.plan}: {summary.status} in {output.duration(summary.seconds)}; {calls}: {', '.join(parts)}"


def _failed(summary: api.RunSummary, argv: Sequence[str]) -> int:
    """Exit status of a run; where something failed, what and how to go on is said last."""
    if not summary.failed and not summary.errors:
        return 0
    for error in summary.errors[:MAX_ERRORS]:
        output.note(failure.text(error))
    hidden = max(summary.failed, len(summary.errors)) - min(len(summary.errors), MAX_ERRORS)
    if hidden > 0:
        output.note(f"… and {output.counted(hidden, 'more failed instance')}: dsec show {summary.run_id}")
    output.note(f"to continue: {failure.command(argv)}")
    return failure.exit_code(summary.errors)
