"""What is printed on stdout: JSON lines, tables that fit a terminal, durations and counts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["counted", "duration", "json_line", "line", "note", "table", "width"]

MAX_ROWS = 60
"""Rows of a table that are printed; the rest is counted and left to ``dsec show RUN --json``."""
MIN_CELL = 8
"""Characters that a text keeps at least; columns that do not fit then go into a further block."""
MAX_NAME = 20
"""Characters of a column's name that are kept at least."""


def json_line(value: Mapping[str, object]) -> None:
    """Print one JSON object on its own line of stdout, and flush it: a reader follows the run as it goes."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def line(text: str = "") -> None:
    """Print a line on stdout."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a line on stderr, for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def width() -> int:
    """Columns to print for: the terminal's, between 60 and 160, and 80 where stdout is none."""
    if not sys.stdout.isatty():
        return 80
    return min(160, max(60, shutil.get_terminal_size((80, 24)).columns))


def duration(seconds: float) -> str:
    """A duration as people write it: ``0.4 s``, ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 call``, ``344,400 calls``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, limit: int, more: str = "") -> str:
    """Lay out a table in plain text, at most `limit` characters wide.

    Numbers stand right, texts left. Long texts are cut with ``…``; columns that still do not fit go into further
    blocks that repeat the first column.

    Parameters
    ----------
    more
        Where the rows beyond the printed ones can be seen.
    """
    listed = [list(row) for row in rows]
    hidden = len(listed) - MAX_ROWS
    shown = listed[:MAX_ROWS] if hidden > 0 else listed
    cells = [[_cell(value) for value in row] for row in shown]
    right = [all(_is_number(row[i]) for row in shown) and bool(shown) for i in range(len(columns))]
    sizes = [max(len(text) for text in (name, *(row[i] for row in cells))) for i, name in enumerate(columns)]
    # A number is never cut: what is left of it would be another number.
    least = [
        size if numeric else min(size, max(MIN_CELL, min(len(name), MAX_NAME)))
        for size, numeric, name in zip(sizes, right, columns, strict=True)
    ]
    # The first column names the row, and is what people copy.
    least[:1] = [min(size, max(least[0], limit // 2)) for size in sizes[:1]]
    blocks = [_block(columns, cells, _shrunk(sizes, least, chosen, limit), right) for chosen in _fitting(least, limit)]
    if hidden > 0:
        blocks.append(f"… and {counted(hidden, 'more row')}{': ' + more if more else ''}")
    return "\n\n".join(blocks)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return " ".join(str(value).split())


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _fitting(least: Sequence[int], limit: int) -> list[list[int]]:
    """Columns of each block: as many as fit when texts are cut, the first one in every block."""
    blocks = [[0]] if least else []
    for column in range(1, len(least)):
        needed = sum(least[i] + 2 for i in [*blocks[-1], column]) - 2
        if needed > limit and len(blocks[-1]) > 1:
            blocks.append([0, column])
        else:
            blocks[-1].append(column)
    return blocks


def _shrunk(sizes: Sequence[int], least: Sequence[int], chosen: Sequence[int], limit: int) -> dict[int, int]:
    """Width of each chosen column; the widest texts give way until the block fits."""
    widths = {column: sizes[column] for column in chosen}
    while sum(widths.values()) + 2 * (len(widths) - 1) > limit:
        can_give = [column for column in chosen if widths[column] > least[column]]
        if not can_give:
            break
        widths[max(can_give, key=lambda column: widths[column])] -= 1
    return widths


def _block(
    columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Mapping[int, int], right: Sequence[bool]
) -> str:
    def printed(texts: Sequence[str]) -> str:
        parts = (_fit(texts[column], size, right=right[column]) for column, size in widths.items())
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * size for size in widths.values())
    return "\n".join([printed(columns), rule, *(printed(row) for row in cells)])


def _fit(text: str, size: int, *, right: bool) -> str:
    cut = text if len(text) <= size else text[: size - 1] + "…"
    return cut.rjust(size) if right else cut.ljust(size)
