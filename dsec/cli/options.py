"""Options that several verbs share, each declared once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "CheckFormat",
    "Durability",
    "GraphFormat",
    "Json",
    "Kind",
    "Memory",
    "Params",
    "PlanPath",
    "Select",
    "StorePath",
]


class CheckFormat(StrEnum):
    """How `dsec check` prints what it found."""

    text = "text"
    json = "json"
    github = "github"


class GraphFormat(StrEnum):
    """How `dsec graph` draws."""

    text = "text"
    mermaid = "mermaid"


class Durability(StrEnum):
    """What an acknowledged result survives: the death of the process, or of the machine."""

    group = "group"
    strict = "strict"


class Kind(StrEnum):
    """Kind of a worker."""

    cpu = "cpu"
    gpu = "gpu"


PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a YAML file.", show_default=False)]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--param",
        metavar="NAME=VALUE",
        help="Override a param of the plan; the value is YAML. Repeatable.",
        show_default=False,
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="GLOB",
        help="Only these instances and what they need, for example 'train@seed=0*'. Repeatable.",
        show_default=False,
    ),
]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="DSEC_STORE",
        help="Where results are kept. Default: .dsec in the project's root.",
        show_default=False,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="What each worker may hold before it is ended, for example 2GiB. Default: an even share of the host's.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line on stdout, nothing else there.")]
