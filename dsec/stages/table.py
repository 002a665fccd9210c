"""table: gathered scores as the rows of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from dsec.errors import StageError
from dsec.runtime.context import StageContext

__all__ = ["table"]

_NUMBERS = ("mean", "std", "min", "max", "episodes")


def table(ctx: StageContext, **scores: Any) -> dict[str, Any]:
    """A row for each score: its cell, then mean, standard deviation, least and greatest return, and episodes.

    Parameters
    ----------
    scores
        Scores of `evaluate`, or arrays of numbers; gathered or single. Where there are several arguments, the first
        column says which.

    Returns
    -------
    dict
        ``table``: ``columns`` list of str, ``rows`` list of lists of plain values.
    """
    entries = [entry for argument in sorted(scores) for entry in _entries(ctx, argument, scores[argument])]
    axes = list(dict.fromkeys(axis for _, cell, _ in entries for axis in cell))
    named = ["score"] if len(scores) > 1 else []
    rows = []
    for argument, cell, value in entries:
        place = [argument] if named else []
        rows.append([*place, *(cell.get(axis) for axis in axes), *_numbers(argument, value)])
    ctx.log(rows=len(rows))
    return {"table": {"kind": "table", "columns": [*named, *axes, *_NUMBERS], "rows": rows}}


def _entries(ctx: StageContext, argument: str, value: Any) -> list[tuple[str, dict[str, Any], Any]]:
    if not isinstance(value, list) or ctx.scope.call.inputs[argument].labels is None:
        return [(argument, {}, value)]
    cells = [_cell(label) for label in ctx.cells(argument)]
    return [(argument, cell, one) for cell, one in zip(cells, value, strict=True)]


def _cell(label: str) -> dict[str, Any]:
    """Axes of a cell, ``seed=0,shard=3``; whole numbers as such."""
    parts = (part.partition("=") for part in label.split(",") if part)
    return {unquote(name): _typed(unquote(value)) for name, _, value in parts}


def _typed(text: str) -> Any:
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and str(int(text)) == text else text


def _numbers(argument: str, value: Any) -> list[Any]:
    held = value.get("returns") if isinstance(value, Mapping) else value
    wrong = f"{argument!r} holds a {type(held).__name__}, no scores"
    if not isinstance(held, np.ndarray | int | float | Sequence) or isinstance(held, str | bytes):
        raise StageError(wrong, hint="gather the scores of evaluate: `scores: eval[*].score`")
    try:
        found = np.asarray(held, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise StageError(wrong, hint="gather the scores of evaluate: `scores: eval[*].score`") from None
    if not len(found):
        raise StageError(f"{argument!r} holds a score of no episodes")
    return [float(found.mean()), float(found.std()), float(found.min()), float(found.max()), len(found)]
