"""Files that a plan names: spec files, CSV columns, and declared files with their digests."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from pathlib import Path

from dsec.core import canon
from dsec.errors import Problem
from dsec.plan import yaml12
from dsec.plan.kinds import MAX_CELLS, Axis, DeclaredFile
from dsec.plan.locate import Fault, Sources, Span, did_you_mean, refuse, shown
from dsec.plan.values import Expr
from dsec.plan.yaml12 import Node

__all__ = ["beside", "content", "declare", "put"]

_MAX_CSV = 16 << 20
_SPECS = ("agent", "env", "reward")


def beside(span: Span, written: str) -> Path:
    """A path, relative to the file it is written in."""
    return Path(span.file).parent / written


def put(parent: Node, part: str | int, node: Node) -> None:
    """Put a node in place of a child."""
    parent.items[part] = node  # type: ignore[index]
    parent.value[part] = node.value
    if parent.keys is not None and isinstance(part, str):
        parent.keys.setdefault(part, node.span)


def content(file: str, sources: Sources, named: Node | None = None) -> bytes:
    """Bytes of a YAML file, one more than allowed at most; ``named`` is where another file names it.

    Raises
    ------
    PlanError
        If it can't be read.
    """
    span = named.span if named is not None else Span(file, 0, 0)
    try:
        with Path(file).open("rb") as stream:
            return stream.read(yaml12.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise refuse([_unreadable(Path(file), span, error, sources)]) from None


def _unreadable(path: Path, span: Span, error: Exception, sources: Sources) -> Problem:
    if isinstance(error, FileNotFoundError):
        hint = did_you_mean(path.name, _names(path.parent), else_list=False)
        return sources.problem(span, "no-such-file", f"there is no file {shown(str(path), 300)}", hint)
    reason = getattr(error, "strerror", None) or str(error)
    return sources.problem(span, "no-such-file", f"{shown(str(path), 300)} can't be read: {reason}")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def declare(root: Node, sources: Sources) -> list[Problem]:
    """Read what a plan declares: files under ``files`` and ``with``, and columns of axes, each put in its place."""
    problems: list[Problem] = []
    for part in _parts(root):
        for work in (_files, _config):
            problems += work(part, sources)
    for matrix in _matrices(root):
        problems += _columns(matrix, sources)
    return problems


def _children(node: Node | None, name: str) -> Iterator[Node]:
    """Children of the collection at a key."""
    held = node.child(name) if node is not None else None
    if held is not None and held.items is not None:
        yield from list(held.items.values() if isinstance(held.items, dict) else held.items)


def _stages(root: Node) -> Iterator[Node]:
    stack = list(_children(root, "stages"))
    while stack:
        stage = stack.pop()
        yield stage
        stack.extend(_children(stage, "stages"))


def _parts(root: Node) -> Iterator[Node]:
    """Everything that has ``with`` or ``files``."""
    session = root.child("session")
    for name in _SPECS:
        spec = session.child(name) if session is not None else None
        if spec is not None:
            yield spec
            yield from _children(spec, "tools")
    yield from _stages(root)
    yield from _children(root, "services")
    yield from _children(root.child("curriculum"), "levels")


def _matrices(root: Node) -> Iterator[Node]:
    for holder in (root, *_stages(root)):
        matrix = holder.child("matrix")
        if matrix is not None and isinstance(matrix.items, dict):
            yield matrix


def _files(part: Node, sources: Sources) -> list[Problem]:
    """``files``, a list of paths or a mapping of names to paths, becomes names with digests."""
    held = part.child("files")
    if held is None:
        return []
    if isinstance(held.value, str):
        held = Node(held.span, [held.value], [held])
    if held.items is None:
        hint = "write [prices.csv], or {prices: data/prices.csv}"
        message = f"files is {shown(held.value)}, expected a list of paths"
        put(part, "files", Node(held.span, {}, {}, {}))
        return [sources.problem(held.span, "wrong-type", message, hint)]
    # Built anew: an alias may share the nodes with a place where they mean something else.
    made = Node(held.span, {}, {}, dict(held.keys or {}))
    named = held.items.items() if isinstance(held.items, dict) else ((str(node.value), node) for node in held.items)
    problems: list[Problem] = []
    for name, node in named:
        put(made, name, Node(node.span, _declared(node, sources, problems, name)))
    put(part, "files", made)
    return problems


def _config(part: Node, sources: Sources) -> list[Problem]:
    """Every ``{file: path}`` in ``with`` becomes the file."""
    held = part.child("with")
    if held is None or held.items is None:
        return []
    problems: list[Problem] = []
    stack = [held]
    while stack:
        node = stack.pop()
        for name, child in _named(node):
            if isinstance(child.items, dict) and set(child.items) == {"file"}:
                put(node, name, Node(child.span, _declared(child.items["file"], sources, problems)))
            elif child.items is not None:
                stack.append(child)
    return problems


def _named(node: Node) -> list[tuple[str | int, Node]]:
    if isinstance(node.items, dict):
        return list(node.items.items())
    return list(enumerate(node.items or ()))


def _declared(node: Node, sources: Sources, problems: list[Problem], name: str | None = None) -> DeclaredFile:
    """The file that a node names; one that can't be read stands without a digest, beside its problem."""
    written = node.value
    if isinstance(written, DeclaredFile):
        return written
    if not isinstance(written, str) or not written:
        hint = "the path is written out; ${{ }} can't give it" if isinstance(written, Expr) else "relative to this file"
        message = f"expected the path of a file, not {shown(written)}"
        problems.append(sources.problem(node.span, "wrong-type", message, hint))
        return DeclaredFile(name or "", Path(), "", 0)
    path = beside(node.span, written)
    try:
        return _hashed(name or written, path)
    except (OSError, ValueError) as error:
        problems.append(_unreadable(path, node.span, error, sources))
        return DeclaredFile(name or written, path, "", 0)


def _hashed(name: str, path: Path) -> DeclaredFile:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(0, "not a regular file")
    with path.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        if not size:
            return DeclaredFile(name, path, canon.blob_digest(b""), 0)
        import mmap  # most plans declare no file

        with mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            return DeclaredFile(name, path, canon.blob_digest(view), size)


def _columns(matrix: Node, sources: Sources) -> list[Problem]:
    """Every ``{file, column}`` of a matrix becomes an axis with its values."""
    problems = []
    for name, node in list(matrix.items.items() if isinstance(matrix.items, dict) else ()):
        if name in ("include", "exclude") or not isinstance(node.items, dict) or set(node.items) != {"file", "column"}:
            continue
        file, column = node.items["file"], node.items["column"]
        wrong = next((part for part in (file, column) if not isinstance(part.value, str)), None)
        if wrong is not None:
            message = f"the file and the column of an axis are text, not {shown(wrong.value)}"
            problems.append(sources.problem(wrong.span, "wrong-type", message, "${{ }} can't give them"))
            continue
        path = beside(file.span, file.value)
        found: tuple[str, ...] = ("",)
        try:
            found = _column(path, column.value)
        except Fault as fault:
            at = column if fault.at == ("column",) else file
            problems.append(sources.problem(at.span, fault.code, fault.message, fault.hint))
        except (OSError, ValueError) as error:
            problems.append(_unreadable(path, file.span, error, sources))
        put(matrix, name, Node(node.span, Axis(values=found, file=file.value, column=column.value)))
    return problems


def _column(path: Path, column: str) -> tuple[str, ...]:
    """Values of one column of a CSV file with a header, as texts."""
    with path.open("rb") as stream:
        raw = stream.read(_MAX_CSV + 1)
    if len(raw) > _MAX_CSV:
        raise Fault(f"{shown(str(path), 300)} has more than {_MAX_CSV} bytes", code="too-large")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Fault(f"{path}:{line} is not UTF-8", "save the file as UTF-8", code="not-utf8") from None
    import csv  # most plans read none

    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return _values(reader, path, column)
    except csv.Error as error:
        raise Fault(f"{path}:{reader.line_num} is not CSV: {error}", code="bad-csv") from None


def _values(reader: Iterator[list[str]], path: Path, column: str) -> tuple[str, ...]:
    header = next(reader, [])
    if column not in header:
        hint = did_you_mean(column, header)
        raise Fault(f"{path} has no column {shown(column)}", hint, code="no-such-column", at=("column",))
    index = header.index(column)
    lines: dict[str, int] = {}
    for row in reader:
        if not row:
            continue
        line: int = reader.line_num  # type: ignore[attr-defined]
        value = row[index] if index < len(row) else ""
        if not value:
            raise Fault(f"{path}:{line} has nothing in column {shown(column)}", code="bad-csv")
        if value in lines:
            message = f"{path}:{line} has {shown(value)} again; first at line {lines[value]}"
            raise Fault(message, "each value is one cell", code="duplicate-cell")
        lines[value] = line
        if len(lines) > MAX_CELLS:
            raise Fault(f"{path} has more than {MAX_CELLS} rows", code="too-large")
    if not lines:
        raise Fault(f"{path} has no rows", code="bad-csv")
    return tuple(lines)
