"""Texts of the command line, turned into values; a wrong one is a UsageError that says what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from dsec.errors import PlanError, UsageError

__all__ = ["memory", "params", "store_of", "workers"]

KINDS = ("cpu", "gpu")
"""Kinds of worker that `--workers` counts."""
LEAST_MEMORY = 512 << 20
"""Bytes below which a worker could not even import what it needs."""


def params(pairs: Iterable[str] | None) -> dict[str, object]:
    """Read ``-p name=value`` options; values are YAML 1.2, ``-p seeds=[0,1]``.

    Raises
    ------
    UsageError
        For a pair without ``=``, an empty name, a name given twice or a value that is no YAML.
    """
    values: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"-p {pair!r} is not a pair", hint="write -p name=value, for example -p iterations=60")
        if name in values:
            raise UsageError(f"-p {name} is given twice", hint="keep one of them")
        values[name] = _value(name, text)
    return values


def _value(name: str, text: str) -> object:
    from dsec import api

    if not text.strip():
        return ""
    try:
        return api.parse_value(text)
    except PlanError as error:
        found = error.problems[0]
        raise UsageError(f"-p {name}={text}: {found.message}", hint=found.hint) from None


def workers(text: str | None) -> dict[str, int]:
    """Read ``--workers cpu=2,gpu=1`` into counts by kind; an empty mapping where the option is not given.

    Raises
    ------
    UsageError
        For an unknown kind, a kind given twice, a count that is no whole number, or no worker at all.
    """
    counts: dict[str, int] = {}
    for part in text.split(",") if text is not None else ():
        kind, _, count = part.strip().partition("=")
        _check_worker(kind, count, counts)
        counts[kind] = int(count)
    if text is not None and not sum(counts.values()):
        raise UsageError(f"--workers {text!r} asks for no worker", hint="write for example --workers cpu=2,gpu=1")
    return counts


def _check_worker(kind: str, count: str, earlier: dict[str, int]) -> None:
    if kind.isdecimal() and not count:
        raise UsageError(f"--workers {kind!r} names no kind", hint=f"write --workers cpu={kind}")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "known kinds are cpu and gpu"
        raise UsageError(f"--workers names an unknown kind {kind!r}", hint=hint)
    if kind in earlier:
        raise UsageError(f"--workers counts {kind} twice", hint="keep one of them")
    if not (count.isascii() and count.isdecimal()):
        raise UsageError(f"--workers {kind}={count} is not a count", hint=f"write for example {kind}=2")


def memory(text: str | None) -> int | None:
    """Read ``--memory 4GiB`` into bytes; None where the option is not given.

    Raises
    ------
    UsageError
        If it is no size, or too small for any worker.
    """
    from dsec import api

    if text is None:
        return None
    try:
        size = api.parse_size(text)
    except UsageError as error:
        raise UsageError(f"--memory {text}: {error.message}", hint=error.hint) from None
    if size < LEAST_MEMORY:
        raise UsageError(
            f"--memory {text} is too little", hint="a worker alone takes about 350MiB; write for example --memory 2GiB"
        )
    return size


def store_of(option: Path | None) -> Path:
    """Store that a verb without a plan reads: the option, else the default one of the current project.

    Raises
    ------
    UsageError
        If there is no such folder: nothing ran there yet.
    """
    from dsec import api

    store = option if option is not None else api.default_store(api.project_root(Path.cwd() / "plan.yaml"))
    if not store.is_dir():
        raise UsageError(
            f"there is no store at {store}",
            hint="run a plan first, or name a store with --store DIR or DSEC_STORE",
        )
    return store
