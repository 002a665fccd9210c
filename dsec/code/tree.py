"""DSec's own serialisation of syntax trees: equal code gives equal tokens under every version of Python.

`ast.dump` differs between versions. Here fields are sorted by name, empty ones are left out (newer versions add such
fields), and so is all that can't change a result: positions, comments, docstrings, statements without effect.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from dsec.core import canon

__all__ = ["digest_of", "meaningful", "tokens"]

_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_BODIES = frozenset({"body", "orelse", "finalbody"})


def digest_of(*nodes: ast.AST) -> canon.Digest:
    """Digest of the meaning of some statements or expressions, in order."""
    return canon.digest("dsec/code-tree/1", [tokens(node) for node in nodes])


def meaningful(statements: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Statements without docstrings, bare constants and `pass`."""
    return [statement for statement in statements if not _idle(statement)]


def _idle(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass)


class _Token:
    """What is written as it is, where a node would be taken apart."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def tokens(node: ast.AST) -> list[object]:
    """The tree in prefix order: class name, count of fields, then each field's name and value.

    A list is its length in a tuple, then its items. Trees of any depth do, since nothing recurses.
    """
    out: list[object] = []
    stack: list[object] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, _Token):
            out.append(item.value)
        elif isinstance(item, ast.AST):
            fields = _fields(item)
            out += (type(item).__name__, len(fields))
            for name, value in reversed(fields):
                stack += (value, _Token(name))
        elif isinstance(item, list):
            out.append((len(item),))
            stack.extend(reversed(item))
        else:
            out.append(_constant(item))
    return out


def _fields(node: ast.AST) -> list[tuple[str, object]]:
    if isinstance(node, ast.JoinedStr):
        return [("values", _joined(node.values))]
    found = []
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if name in _BODIES and isinstance(value, list):
            value = meaningful(value)
        if name in _LEFT_OUT or value == [] or (value is None and not isinstance(node, ast.Constant)):
            continue
        found.append((name, value))
    return found


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string, neighbouring texts made one and empty ones dropped: that depends on the version."""
    out: list[ast.expr] = []
    for value in values:
        last = out[-1] if out else None
        if isinstance(value, ast.Constant) and value.value == "":
            continue
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            out[-1] = ast.Constant(str(last.value) + str(value.value))
        else:
            out.append(value)
    return out


def _constant(value: object) -> object:
    if value is Ellipsis:
        return ("...",)
    if isinstance(value, complex):
        return ("complex", value.real, value.imag)
    if isinstance(value, str) and not value.isascii():
        return ("text", value.encode("utf-8", "surrogatepass"))
    return value
