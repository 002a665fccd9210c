"""table: gathered scores as the rows of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsec.errors import StageError
from dsec.runtime.context import StageContext

__all__ = ["table"]


def table(ctx: StageContext, **gathered: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row for each score: its cell, then mean, standard deviation, least, greatest return and number of episodes.

    Returns
    -------
    dict
        ``table``: ``columns`` list of str, ``rows`` list of lists of plain values.
    """
    several = len(gathered) > 1
    axes: list[str] = []
    for argument in gathered:
        for label in ctx.cells(argument):
            axes.extend(name for name, _ in _parts(label) if name not in axes)
    rows = []
    for argument, scores in sorted(gathered.items()):
        for label, score in zip(ctx.cells(argument), scores, strict=True):
            cell = dict(_parts(label))
            rows.append(
                [*([argument] if several else []), *(cell.get(axis, "") for axis in axes), *_row(score, argument)]
            )
    head = [*(["score"] if several else []), *axes, "return", "std", "min", "max", "episodes"]
    means = [row[-5] for row in rows]
    ctx.stats.update({"rows": len(rows), "return_mean": float(np.mean(means)) if means else None})
    return {"table": {"kind": "table", "columns": head, "rows": rows}}


def _parts(label: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (part.partition("=") for part in label.split(",") if part)]


def _row(score: Mapping[str, Any], argument: str) -> list[float | int]:
    if not isinstance(score, Mapping) or "returns" not in score:
        raise StageError(f"{argument} holds no scores", hint="gather the output of `evaluate`: eval[*].score")
    returns = np.asarray(score["returns"], np.float64)
    return [float(returns.mean()), float(returns.std()), float(returns.min()), float(returns.max()), len(returns)]
