"""The entry point: the verbs, put together, and the exit status."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import typer

from dsec.cli import failure, project, reading, run

__all__ = ["VERBS", "app", "main"]

VERBS = (
    project.init,
    reading.check,
    reading.plan,
    run.run,
    reading.why,
    reading.graph,
    reading.runs,
    reading.show,
    reading.schema,
    project.worker,
    project.version,
)
"""Commands, in the order of help and reference: each is a function whose name is the verb."""

app = typer.Typer(
    name="dsec",
    help="Reinforcement-learning experiments as deterministic dataflow on Dask: cached, resumable, bit-exact.",
    epilog="Start with: dsec init first && cd first && dsec run plans/first.yaml",
    add_completion=False,
    # Plain help and no pretty tracebacks: rich is imported only to draw progress.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in VERBS:
    app.command()(verb)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status.

    Parameters
    ----------
    argv
        Words after ``dsec``; those of the process by default.
    """
    # A plan is half a million small values without cycles: looking for some after every 700 takes a third of the time.
    gc.set_threshold(50_000)
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    sys.exit(failure.guarded(lambda: app(words, prog_name="dsec", standalone_mode=False, obj=tuple(words)), words))
