"""``${{ }}``: values computed from params, the matrix, the session, the iteration and metrics.

A small part of Python's expressions, parsed when the plan is loaded and evaluated by this module itself: no
environment, no attributes of objects, no calls but a few of numbers and text. Every result is bounded, so that
no plan can hang the driver or fill its memory.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsec.errors import DsecError
from dsec.plan.locate import NOWHERE, Span, did_you_mean, shown

__all__ = [
    "FUNCTIONS",
    "MAX_ITEMS",
    "NAMES",
    "Expr",
    "ExprError",
    "count",
    "evaluate",
    "evaluated",
    "expressions",
    "is_expression",
    "metric_stages",
    "parse",
]

NAMES = ("params", "matrix", "session", "item", "iteration", "metrics")
"""The names that an expression can read."""
FUNCTIONS = ("len", "range", "min", "max", "int", "float", "str")
"""The functions that an expression can call."""

MAX_SOURCE = 1000
MAX_DEPTH = 64
MAX_BITS = 1024
MAX_TEXT = 10_000
MAX_ITEMS = 10_000
"""Items of all lists that one expression makes or looks through."""


class ExprError(DsecError):
    """An expression that can't be read or has no value; ``span`` is its place."""

    code = "bad-expression"
    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", span: Span = NOWHERE) -> None:
        where = f"{span.file}:{span.line}:{span.column}" if span.line else ""
        super().__init__(message, hint=hint, where=where)
        self.span = span


@dataclass(frozen=True, slots=True)
class Expr:
    """One ``${{ }}``, equal to another by its text."""

    text: str
    """The expression, without the braces."""
    span: Span = field(default=NOWHERE, compare=False)
    """Where it stands."""
    tree: ast.expr = field(default_factory=lambda: ast.Constant(None), compare=False, repr=False)
    """Python's syntax tree, only of kinds that `evaluate` knows."""
    reads: frozenset[tuple[str, ...]] = field(default=frozenset(), compare=False, repr=False)
    """What it reads, ``("params", "steps")``; a name that is read as a whole stands alone."""

    def __str__(self) -> str:
        return f"${{{{ {self.text} }}}}"

    def uses(self, name: str) -> bool:
        """Whether it reads ``name``, one of `NAMES`."""
        return any(path[0] == name for path in self.reads)


def is_expression(text: str) -> bool:
    """Whether a scalar has a ``${{`` in it, and so must be one whole expression."""
    return "${{" in text


def parse(text: str, span: Span = NOWHERE) -> Expr:
    """Read a whole scalar ``${{ expr }}``.

    Raises
    ------
    ExprError
        If something stands outside the braces, or the expression is not in the whitelist.
    """
    body = text.strip()
    if not (body.startswith("${{") and body.endswith("}}")) or "${{" in body[3:]:
        hint = "write ${{ str(…) + '…' }}, or split the value"
        raise ExprError(f"${{{{ }}}} must be the whole value, not a part of {shown(text)}", hint=hint, span=span)
    source = " ".join(body[3:-2].split("\n")).strip()
    if not source:
        raise ExprError("nothing stands between ${{ and }}", span=span)
    if len(source) > MAX_SOURCE:
        raise ExprError(f"an expression of {len(source)} characters; {MAX_SOURCE} is the most", span=span)
    tree = _python(source, span)
    _admit(tree, span)
    return Expr(source, span, tree, frozenset(_reads(tree)))


def _python(source: str, span: Span) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        near = f" at character {error.offset}" if error.offset else ""
        raise ExprError(f"not an expression{near}: {error.msg}", span=span) from None
    except (ValueError, RecursionError, MemoryError, Warning) as error:
        raise ExprError(f"not an expression: {str(error)[:80] or 'nested too deep'}", span=span) from None


_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.AST], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARE: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_SYNTAX = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.And, ast.Or, ast.IfExp, ast.List, ast.Tuple, ast.Load)
_READING = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_NODES: tuple[type[ast.AST], ...] = (*_SYNTAX, *_READING, *_BINARY, *_UNARY, *_COMPARE)


def _admit(tree: ast.expr, span: Span) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        for node in level:
            _admit_node(node, span)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise ExprError(f"an expression nested deeper than {MAX_DEPTH}", span=span)


def _admit_node(node: ast.AST, span: Span) -> None:
    if not isinstance(node, _NODES):
        hint = "values, arithmetic, comparisons, and/or/not, a if b else c, lists, and " + " ".join(FUNCTIONS)
        raise ExprError(f"{_called(node)} can't stand in ${{{{ }}}}", hint=hint, span=span)
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | None):
        raise ExprError(f"a constant of type {type(node.value).__name__} can't stand in ${{{{ }}}}", span=span)
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            name = ast.unparse(node.func)[:40]
            raise ExprError(f"'{name}' can't be called here", hint="callable: " + " ".join(FUNCTIONS), span=span)
        if node.keywords:
            raise ExprError(f"{node.func.id}() takes no named arguments here", span=span)
    if isinstance(node, ast.Name) and node.id not in NAMES and node.id not in FUNCTIONS:
        raise ExprError(f"unknown name '{node.id[:40]}'", hint=did_you_mean(node.id, NAMES), span=span)


def _called(node: ast.AST) -> str:
    kinds = {ast.Lambda: "a function", ast.Dict: "a mapping", ast.Slice: "a slice", ast.JoinedStr: "an f-string"}
    kinds |= {ast.ListComp: "a comprehension", ast.GeneratorExp: "a comprehension", ast.NamedExpr: "an assignment"}
    return kinds.get(type(node), f"'{type(node).__name__}'")


def _reads(tree: ast.expr) -> Iterator[tuple[str, ...]]:
    """Longest literal paths from each name, ``params.a[0]`` as ``("params", "a")``."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        path = _path(node)
        if path is not None:
            yield path
        elif isinstance(node, ast.Call):
            stack.extend(node.args)
        else:
            stack.extend(ast.iter_child_nodes(node))


def _path(node: ast.AST) -> tuple[str, ...] | None:
    names: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if isinstance(node.slice.value, str):
                names.append(node.slice.value)
            else:
                names.clear()
        else:
            return None
        node = node.value
    return (node.id, *reversed(names))


def evaluate(expr: Expr, scope: Mapping[str, object]) -> Any:
    """Value of an expression, type kept: None, bool, int, float, str, a list or a mapping out of ``scope``.

    Parameters
    ----------
    scope
        Values by name, of `NAMES`; an absent one is an error that says so.

    Raises
    ------
    ExprError
        If a name or key is missing, types don't fit, or the result is too large, not finite or not a value.
    """
    try:
        return _plain(_Evaluation(scope).value(expr.tree))
    except ExprError as error:
        raise ExprError(error.message, hint=error.hint, span=expr.span) from None
    except ZeroDivisionError:
        raise ExprError(f"{shown(expr.text)} divides by zero", span=expr.span) from None
    except (TypeError, ValueError, OverflowError, IndexError, RecursionError) as error:
        raise ExprError(f"{shown(expr.text)} has no value: {str(error)[:120]}", span=expr.span) from None


def evaluated(tree: Any, scope: Mapping[str, object]) -> Any:
    """A copy of plain values (mappings, lists, tuples) in which every `Expr` is replaced by its value."""
    if isinstance(tree, Expr):
        return evaluate(tree, scope)
    if isinstance(tree, Mapping):
        return {key: evaluated(item, scope) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(evaluated(item, scope) for item in tree)
    return tree


def expressions(tree: Any) -> Iterator[Expr]:
    """Every `Expr` in plain values, in order."""
    if isinstance(tree, Expr):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from expressions(item)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from expressions(item)


def metric_stages(expr: Expr) -> tuple[str, ...]:
    """The stages whose metrics an expression reads, sorted."""
    return tuple(sorted({path[1] for path in expr.reads if path[0] == "metrics" and len(path) > 1}))


def count(value: Any) -> int:
    """Values in plain values: items of lists and mappings, nested ones too, themselves counted; exact up to a bound."""
    total, stack = 1, [value]
    while stack and total <= MAX_ITEMS:
        held = stack.pop()
        if isinstance(held, Mapping):
            held = list(held.values())
        if isinstance(held, list | tuple | range):
            total += len(held)
            stack.extend([item for item in held if type(item) in _NESTING] if type(held) is not range else ())
    return total


_NESTING = (list, tuple, dict, range)


class _Evaluation:
    """One walk over one expression; what it makes and looks through is bounded in all."""

    def __init__(self, scope: Mapping[str, object]) -> None:
        self.scope = scope
        self.left = MAX_ITEMS

    def value(self, node: ast.expr) -> Any:
        return _EVALUATORS[type(node)](self, node)

    def charge(self, value: Any) -> Any:
        """Pay for a list that was made or is looked through."""
        if isinstance(value, list | tuple | range | Mapping):
            self.left -= count(value)
            if self.left < 0:
                raise ExprError(f"more than {MAX_ITEMS} items in one expression", hint="use {range: n} for a long axis")
        return value

    def constant(self, node: ast.Constant) -> Any:
        return _bounded(node.value)

    def name(self, node: ast.Name) -> Any:
        if node.id not in self.scope:
            raise ExprError(f"'{node.id}' has no value here", hint=did_you_mean(node.id, self.scope))
        return self.scope[node.id]

    def attribute(self, node: ast.Attribute) -> Any:
        return _look_up(self.value(node.value), node.attr, node)

    def subscript(self, node: ast.Subscript) -> Any:
        return _look_up(self.value(node.value), self.value(node.slice), node)

    def binary(self, node: ast.BinOp) -> Any:
        left, right = _listed(self.value(node.left)), _listed(self.value(node.right))
        if not (_numbers(left, right) or _joined(node.op, left, right)):
            raise ExprError(f"{shown(left)} and {shown(right)} can't be combined in {shown(ast.unparse(node))}")
        _foresee(node.op, left, right)
        return self.charge(_bounded(_BINARY[type(node.op)](left, right)))

    def unary(self, node: ast.UnaryOp) -> Any:
        return _UNARY[type(node.op)](self.value(node.operand))

    def boolean(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is wanted:
                return value
        return value

    def comparison(self, node: ast.Compare) -> bool:
        left = self.charge(self.value(node.left))
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.charge(self.value(part))
            if not _COMPARE[type(op)](_listed(left), right if isinstance(op, ast.In | ast.NotIn) else _listed(right)):
                return False
            left = right
        return True

    def conditional(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def list(self, node: ast.List | ast.Tuple) -> Any:
        return self.charge([_listed(self.value(item)) for item in node.elts])

    def call(self, node: ast.Call) -> Any:
        arguments = [self.value(argument) for argument in node.args]
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name != "len":
            self.charge(arguments)
        # A range stays one until its items are asked for, so that its length costs nothing.
        made = _bounded(_CALLS[name](*arguments))
        return made if isinstance(made, range) else self.charge(made)


def _look_up(holder: Any, key: Any, node: ast.Attribute | ast.Subscript) -> Any:
    name = ast.unparse(node.value)
    if isinstance(holder, Mapping) and isinstance(key, str):
        if key not in holder:
            raise ExprError(f"{name} has no '{key[:40]}'", hint=did_you_mean(key, map(str, holder)))
        return holder[key]
    if isinstance(holder, Sequence) and type(key) is int:
        return holder[key]
    raise ExprError(f"{name} is {shown(holder)} and has no {shown(key)}")


def _numbers(left: object, right: object) -> bool:
    return isinstance(left, int | float) and isinstance(right, int | float)


def _joined(op: ast.operator, left: object, right: object) -> bool:
    if isinstance(op, ast.Add):
        return type(left) is type(right) and isinstance(left, str | list)
    if isinstance(op, ast.Mult):
        many, times = (left, right) if isinstance(left, str | list) else (right, left)
        return isinstance(many, str | list) and type(times) is int
    return False


def _foresee(op: ast.operator, left: Any, right: Any) -> None:
    """Refuse what would be too large before it is made."""
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * max(right, 1) > MAX_BITS and abs(left) > 1:
            raise ExprError(f"a power of more than {MAX_BITS} bits")
    elif isinstance(op, ast.Mult):
        many, times = (left, right) if isinstance(left, str | list) else (right, left)
        if isinstance(many, str | list) and len(many) * times > MAX_ITEMS:
            raise ExprError(f"a result of more than {MAX_ITEMS} items")


def _bounded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ExprError("the result is not a finite number")
    if isinstance(value, complex):
        raise ExprError("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ExprError(f"a number of more than {MAX_BITS} bits")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ExprError(f"a text of more than {MAX_TEXT} characters")
    return value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, range) else value


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    # len() of a huge range raises OverflowError itself.
    if len(numbers) > MAX_ITEMS:
        raise ExprError(f"a range of more than {MAX_ITEMS} items", hint="use {range: n} for a long axis")
    return numbers


def _str(value: object = "") -> str:
    if isinstance(value, list | range | Mapping):
        raise ExprError("str() takes one number or text")
    return str(value)


def _int(value: Any = 0) -> int:
    if isinstance(value, str) and len(value) > 100:
        raise ExprError("int() takes at most 100 digits")
    return int(value)


_CALLS: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "range": _range,
    "min": min,
    "max": max,
    "int": _int,
    "float": float,
    "str": _str,
}
_EVALUATORS: Mapping[type[ast.AST], Callable[[_Evaluation, Any], Any]] = {
    ast.Constant: _Evaluation.constant,
    ast.Name: _Evaluation.name,
    ast.Attribute: _Evaluation.attribute,
    ast.Subscript: _Evaluation.subscript,
    ast.BinOp: _Evaluation.binary,
    ast.UnaryOp: _Evaluation.unary,
    ast.BoolOp: _Evaluation.boolean,
    ast.Compare: _Evaluation.comparison,
    ast.IfExp: _Evaluation.conditional,
    ast.List: _Evaluation.list,
    ast.Tuple: _Evaluation.list,
    ast.Call: _Evaluation.call,
}


def _plain(value: Any) -> Any:
    """The result as a value; something out of scope that is none is refused."""
    if isinstance(value, list | Mapping | str | int | float | bool) or value is None:
        return value
    if isinstance(value, tuple | range):
        return list(value)
    raise ExprError(f"{type(value).__name__} is not a value")
