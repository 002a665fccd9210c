"""Makes the reference pages of commands and errors out of the code, so that they can't go stale.

Run ``python -m dsec.cli.reference docs/reference`` to write them; a test compares.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo

from dsec import errors
from dsec.cli import output
from dsec.cli.main import VERBS

__all__ = ["command_line_page", "errors_page", "main", "pages"]

MADE = "<!-- Made by `python -m dsec.cli.reference docs/reference`; edit the code it describes instead. -->"

RULES = """\
## Rules that hold for every command

- **stdout** holds the answer, **stderr** what is said on the way: progress, notes, errors. `--json` prints one JSON
  object per line on stdout and nothing else there.
- **A failure** is one named error on stderr without a traceback, and ends with the command that continues.
- **The store** is `--store DIR`, else the environment variable `DSEC_STORE`, else `.dsec` in the project's root: the
  nearest folder above the plan with `pyproject.toml` or `.git` (above the current folder, for commands without a plan).
- **Params** are given as `-p name=value`, once for each. The value is YAML 1.2: `-p lr=1e-4`, `-p seeds=[0,1,2]`.
- **Nothing is imported in vain.** Help imports no library but typer; a run whose results are all in the store starts no
  cluster and imports neither Dask nor torch.

## Exit status

| status | meaning |
|---|---|
| 0 | ok |
| 1 | a stage failed, the store can't be used, or DSec itself has a fault (the message names a file to report) |
| 2 | the plan or the call is wrong |
| 3 | determinism or integrity was violated |
| 4 | the cluster can't serve the plan |
| 130 | interrupted; the same command goes on |

## What `dsec run --json` prints

An object for each event of the run, its kind in `event`, then one of kind `error` for each error (`code`, `message`,
`hint`, `where`, for a stage also `instance` and `step`). The last line of a run that came to its end, failed stages
included, has these fields:

```json
{"event": "run-finished", "run": "ID", "calls": 126, "hits": 0, "ran": 126, "failed": 0, "seconds": 9.5, "cluster": true}
```

`calls` are the distinct calls demanded; `hits` of them were in the store, `ran` were executed, `failed` ended with an
error; the rest was skipped because of those. `cluster` says whether one was started. A run that could not be carried out
at all has no such line, and the status says why.

## What `dsec show RUN --json` prints

One line, with these fields:

```json
{"run": "ID", "plan": "NAME", "status": "done", "created": "TIME", "seconds": 9.5, "counts": {"calls": 126},
 "sessions": [{"session_id": "ID", "agent_spec": "HASH", "env_spec": "HASH", "reward_fn_hash": null, "seed": 0,
               "max_steps": 30720, "creation_timestamp": "TIME"}],
 "instances": {"train@seed=0#29/learn": {"status": "ran", "plan_key": "KEY", "action_key": "KEY",
               "outputs": {"agent": "ANCHOR"}, "stats": {}, "cost": {}}}}
```

`status` of a run is `done`, `failed`, `running`, or `unfinished` where the same command goes on; that of an instance
`hit`, `ran`, `failed` (then with `error`) or `skipped`. `outputs` are anchor ids by name, `stats` follow from the result
alone, `cost` says what it took.
"""  # noqa: E501 - the example is one line because the output is

ERRORS_HEAD = """\
Every error that DSec raises on purpose has a code, which stays the same from version to version, and an exit status. On
the command line it prints as `error[code]: place: what is wrong`, then what to do. In Python all of them are in
`dsec.errors`, and each pickles.

| error | code | exit | meaning |
|---|---|---|---|"""

ERRORS_TAIL = """\
A fault of DSec itself prints as `error[internal]` with the name of a file that holds the traceback, and exits with 1.

## Problems of a plan

A wrong plan prints each of its problems as `path:line:column: error[code]: what is wrong`, with the line, a mark under
the place and, where there is one, a hint; at most 20 at a time, sorted by file and line. `dsec check --format json`
prints them as objects with the fields `path`, `line`, `column`, `code`, `message` and `hint`."""


def command_line_page() -> str:
    """Text of ``docs/reference/command-line.md``."""
    verbs = [_verb(verb) for verb in VERBS]
    head = (
        f"# The command line\n\n{MADE}\n\n`dsec --help` lists the commands, `dsec COMMAND --help` the options of one."
    )
    return "\n\n".join([head, RULES.rstrip(), "## Commands", *verbs]) + "\n"


def errors_page() -> str:
    """Text of ``docs/reference/errors.md``."""
    rows = [
        f"| {'&nbsp;&nbsp;' * depth}`{kind.__name__}` | `{kind.code}` | {kind.exit_code} | {_first_line(kind)} |"
        for depth, kind in _tree(errors.DsecError)
    ]
    return "\n".join([f"# Errors\n\n{MADE}\n", ERRORS_HEAD, *rows, "", ERRORS_TAIL, ""])


def pages() -> dict[str, str]:
    """Texts by file name."""
    return {"command-line.md": command_line_page(), "errors.md": errors_page()}


def main(argv: Sequence[str] | None = None) -> None:
    """Write the pages into the folder that is named."""
    (folder,) = sys.argv[1:] if argv is None else argv
    for name, text in pages().items():
        path = Path(folder, name)
        path.write_text(text, "utf-8")
        output.line(str(path))


def _verb(verb: Callable[..., None]) -> str:
    known = [_described(*item) for item in _declared(verb)]
    arguments = [spelling for spelling, _, is_option in known if not is_option]
    usage = " ".join(["dsec", verb.__name__, *arguments, *(["[OPTIONS]"] if len(known) > len(arguments) else [])])
    parts = [f"### `dsec {verb.__name__}`", f"```\n{usage}\n```", inspect.getdoc(verb) or ""]
    if known:
        rows = [f"| `{spelling}` | {meaning} |" for spelling, meaning, _ in known]
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _declared(verb: Callable[..., None]) -> Iterator[tuple[object, object, Any]]:
    """Type, default and typer's description of each parameter."""
    hints = get_type_hints(verb, include_extras=True)
    for name, parameter in inspect.signature(verb).parameters.items():
        if get_origin(hints[name]) is Annotated:
            kind, info = get_args(hints[name])
            yield kind, parameter.default, info


def _described(kind: object, default: object, info: Any) -> tuple[str, str, bool]:
    """Spelling, meaning, and whether it is an option."""
    if isinstance(info, ArgumentInfo):
        needed = default is inspect.Parameter.empty
        many = "..." if get_origin(kind) is list else ""
        return (f"{info.metavar}{many}" if needed else f"[{info.metavar}]"), info.help or "", False
    choices = "|".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""
    value = info.metavar or choices
    # Within Annotated, typer takes the first spelling for a default until it builds the command.
    names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    spelling = ", ".join(names) + (f" {value}" if value else "")
    said = f" Default: {default}." if isinstance(default, StrEnum) else ""
    return spelling.replace("|", "\\|"), f"{info.help or ''}{said}", True


def _tree(kind: type[errors.DsecError], depth: int = 0) -> Iterator[tuple[int, type[errors.DsecError]]]:
    yield depth, kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child, depth + 1)


def _first_line(kind: type[errors.DsecError]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0].rstrip(".")


if __name__ == "__main__":
    main()
