"""Verbs around a project and its cluster: init, worker, version."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from dsec.cli import arguments, output
from dsec.cli.options import Json, Kind, Memory

__all__ = ["init", "version", "worker"]

SHOWN = ("dask", "distributed", "torch", "gymnasium", "zarr", "numpy", "pydantic")
"""Distributions whose versions are worth a line in a bug report."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to make the project; made if missing.", show_default=False)
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the project. Default: the folder's.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Make a small project that runs.

    It has a plan, an agent and a helper module, and is meant to be changed.
    """
    from dsec import api

    made = api.init(folder, name if name is not None else folder.resolve().name)
    if json:
        output.json_line({"folder": str(folder), "files": [str(path) for path in made]})
        return
    for path in made:
        output.line(str(path))
    output.line(f"next: cd {folder} && dsec run plans/first.yaml")


def worker(
    address: Annotated[
        str, typer.Argument(metavar="ADDR", help="Scheduler, for example tcp://127.0.0.1:8786.", show_default=False)
    ],
    *,
    kind: Annotated[Kind, typer.Option("--kind", help="What the worker is for.")] = Kind.cpu,
    memory: Memory = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="NAME", help="What stages may ask for with `labels`. Repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """Start one worker of a running cluster.

    It has the resources and variables that DSec needs. Ctrl-C ends it.
    """
    from dsec import api

    limit = arguments.memory(memory)
    raise typer.Exit(api.worker(address, kind=kind.value, memory=limit, labels=tuple(label or ())))


def version(*, json: Json = False) -> None:
    """Show the versions a bug report needs."""
    versions = {"dsec": _version("dsec"), "python": platform.python_version()}
    versions |= {name: _version(name) for name in SHOWN}
    if json:
        output.json_line(versions)
        return
    for name, found in versions.items():
        output.line(f"{name:<12} {found}")
    output.line(f"{'system':<12} {platform.system()} {platform.machine()}, {os.cpu_count()} cores")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
