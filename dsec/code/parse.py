"""One source file taken apart into units: what can count, and what it refers to. No import, no look at other files."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsec.code.problem import CodeProblem
from dsec.code.scope import Scope, chain_of, collect, imported
from dsec.code.tree import digest_of, meaningful
from dsec.code.uses import Dynamic, Import, Use, Uses, analyse
from dsec.core import canon

__all__ = ["HARMLESS", "Module", "Unit", "opaque", "parse"]

HARMLESS = frozenset({"abstractmethod", "classmethod", "property", "setter", "getter", "deleter", "staticmethod",
                      "override", "final", "cached_property", "overload"})  # fmt: skip
"""Decorators that neither look at annotations nor put what they decorate anywhere else."""

_QUIETLY = frozenset((name,) for name in HARMLESS)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_SIMPLE = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.unaryop, ast.expr_context)

_ACTS = (ast.Call, ast.NamedExpr)
"""What makes a condition more than a condition."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A definition, an assignment, an imported name or another statement of a module or class."""

    kind: str
    """``function``, ``class``, ``assign``, ``import``, ``star``, ``statement`` or ``compiled`` (a whole module)."""
    name: str
    """Qualified within the file: ``Agent.act``; of a statement ``<module>``."""
    binds: tuple[str, ...]
    """Names it gives to the module."""
    digest: canon.Digest
    """Of its tree; of a class without its methods, which are members."""
    line: int
    uses: tuple[Use, ...] = ()
    imports: tuple[Import, ...] = ()
    dynamic: tuple[Dynamic, ...] = ()
    members: tuple[Unit, ...] = ()
    """Methods and nested classes of a class."""
    attributes: frozenset[str] = frozenset()
    """Names that a class gives to its instances and itself."""
    constants: frozenset[str] = frozenset()
    """Names that a class body assigns."""
    bases: tuple[tuple[str, ...], ...] = ()
    """Base classes as chains of names."""
    marks: tuple[tuple[str, ...], ...] = ()
    """Decorators and metaclass as chains; an empty one is an expression that is no chain."""
    target: tuple[str, tuple[str, ...]] | None = None
    """Of an import: module and attributes."""
    returns: tuple[Use, ...] = ()
    """What the return annotation of a function refers to."""
    ordered: bool = False
    """Whether its place among the other statements can matter."""
    typing: bool = False
    """Stands under ``if TYPE_CHECKING``: not there when the code runs."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file."""

    name: str
    file: str
    """For people: relative to the root."""
    is_package: bool
    digest: canon.Digest
    """Of the raw bytes."""
    tree: ast.Module
    units: tuple[Unit, ...]
    bound: dict[str, list[Unit]] = field(default_factory=dict)
    """Name -> units that bind it, in order."""

    @property
    def package(self) -> str:
        """Package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def open(self) -> bool:
        """Whether it may have names that its source doesn't show."""
        return (
            "__getattr__" in self.bound
            or any(unit.kind in ("star", "compiled") for unit in self.units)
            or not self.file.endswith(".py")
        )

    def definitions(self) -> Iterator[Unit]:
        """Functions and classes, members after their class."""
        yield from _definitions(self.units)

    def exported(self) -> tuple[str, ...] | None:
        """What ``__all__`` lists, None if there is none or it can't be read."""
        units = self.bound.get("__all__")
        node = next((node for node in self.tree.body if isinstance(node, ast.Assign) and _is_all(node)), None)
        changed = any(use.head == "__all__" for unit in self.units if unit.kind == "statement" for use in unit.uses)
        if not units or len(units) > 1 or changed or node is None or not isinstance(node.value, (ast.List, ast.Tuple)):
            return None
        names = [item.value for item in node.value.elts if isinstance(item, ast.Constant)]
        return tuple(str(name) for name in names) if len(names) == len(node.value.elts) else None


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def _definitions(units: Iterable[Unit]) -> Iterator[Unit]:
    for unit in units:
        if unit.kind in ("function", "class"):
            yield unit
            yield from _definitions(unit.members)


def parse(name: str, source: bytes, *, file: str, is_package: bool) -> Module:
    """Take a source file apart.

    Raises
    ------
    CodeProblem
        ``syntax``, with file and line.
    """
    try:
        with warnings.catch_warnings():
            # A doubtful escape in users' code is theirs to see when it runs.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        raise CodeProblem("syntax", f"{error.msg}", file=file, line=error.lineno or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CodeProblem("syntax", f"can't be parsed: {error}", file=file, line=1) from None
    package = name if is_package else name.rpartition(".")[0]
    units = tuple(_Reader(package).units(tree.body))
    bound: dict[str, list[Unit]] = {}
    for unit in units:
        for binding in unit.binds:
            bound.setdefault(binding, []).append(unit)
    units = tuple(_placed(unit, bound) for unit in units)
    bound = {name: [unit for unit in units if name in unit.binds] for name in bound}
    return Module(name, file, is_package, canon.blob_digest(source), tree, units, bound)


def opaque(name: str, content: bytes, *, file: str, is_package: bool) -> Module:
    """A compiled module: all of it is one statement, which counts by its bytes."""
    digest = canon.blob_digest(content)
    unit = Unit(kind="compiled", name="<module>", binds=(), digest=digest, line=1)
    return Module(name, file, is_package, digest, ast.Module([], []), (unit,))


def _placed(unit: Unit, bound: dict[str, list[Unit]]) -> Unit:
    """A name bound twice depends on which comes first, unless both say the same."""
    again = any(len({other.digest for other in bound[name]}) > 1 for name in unit.binds)
    return replace(unit, ordered=True) if again and unit.kind != "import" else unit


@dataclass(frozen=True, slots=True)
class _Guard:
    """Conditions that a statement stands under: their trees and what they refer to."""

    nodes: tuple[ast.AST, ...] = ()
    typing: bool = False

    def under(self, *nodes: ast.AST, typing: bool = False) -> _Guard:
        return _Guard((*self.nodes, *nodes), self.typing or typing)


class _Reader:
    """Makes the units of one file; ``package`` is where its relative imports start."""

    def __init__(self, package: str) -> None:
        self.package = package

    def units(self, body: Sequence[ast.stmt], guard: _Guard = _Guard()) -> Iterator[Unit]:
        """Units of a module's statements; those of ``if`` and ``try`` are taken out, with their conditions."""
        for node in meaningful(body):
            if isinstance(node, ast.If):
                yield from self._if(node, guard)
            elif isinstance(node, (ast.Try, ast.TryStar)):
                yield from self._try(node, guard)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield self._function(node, "", guard)
            elif isinstance(node, ast.ClassDef):
                yield self._class(node, "", guard)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._imports(node, guard)
            else:
                yield from self._statement(node, guard)

    def _if(self, node: ast.If, guard: _Guard) -> Iterator[Unit]:
        if _is_main(node.test):
            yield from self.units(node.orelse, guard)
        elif _last(node.test) == "TYPE_CHECKING":
            yield from self.units(node.body, guard.under(typing=True))
            yield from self.units(node.orelse, guard)
        else:
            if any(isinstance(part, _ACTS) for part in ast.walk(node.test)):
                yield from self._statement(ast.copy_location(ast.Expr(node.test), node), guard)
            yield from self.units(node.body, guard.under(node.test))
            yield from self.units(node.orelse, guard.under(ast.UnaryOp(op=ast.Not(), operand=node.test)))

    def _try(self, node: ast.Try | ast.TryStar, guard: _Guard) -> Iterator[Unit]:
        yield from self.units(node.body, guard.under(ast.Constant("try")))
        for handler in node.handlers:
            bare = ast.ExceptHandler(type=handler.type, name=handler.name, body=[])
            yield from self.units(handler.body, guard.under(bare))
        yield from self.units(node.orelse, guard.under(ast.Constant("else")))
        yield from self.units(node.finalbody, guard)

    def _make(self, kind: str, name: str, node: ast.stmt, guard: _Guard, owner: str = "") -> Unit:
        found = analyse([*guard.nodes, node], self.package, owner=owner, harmless=HARMLESS)
        return Unit(
            kind=kind,
            name=name,
            binds=() if owner else (name,),
            digest=digest_of(*guard.nodes, node),
            line=node.lineno,
            typing=guard.typing,
            **_listed(found),
        )

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, guard: _Guard) -> Unit:
        name = f"{owner}.{node.name}" if owner else node.name
        unit = self._make("function", name, node, guard, owner)
        returns = analyse([node.returns], self.package).uses if node.returns else ()
        marks = tuple(_chain(mark) for mark in node.decorator_list)
        return replace(unit, marks=marks, returns=tuple(returns), ordered=_computes(node))

    def _class(self, node: ast.ClassDef, owner: str, guard: _Guard) -> Unit:
        name = f"{owner}.{node.name}" if owner else node.name
        members: list[Unit] = []
        rest: list[ast.stmt] = []
        for inner in meaningful(node.body):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                members.append(self._function(inner, name, _Guard()))
            elif isinstance(inner, ast.ClassDef):
                members.append(self._class(inner, name, _Guard()))
            else:
                rest.append(inner)
        header = _header(node, rest)
        outer = [*guard.nodes, *node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
        found = analyse(outer, self.package, harmless=HARMLESS)
        inside = Scope(None, is_class=True)
        collect(rest, inside, self.package)
        within = analyse(rest, self.package, scope=inside, owner=name, harmless=HARMLESS)
        for bound in (bound for bounds in inside.bound.values() for bound in bounds if bound.kind == "module"):
            # Methods read it as ``self.module.name``.
            within.uses[Use("module", bound.module, bound.chain)] = None
        return Unit(
            kind="class",
            name=name,
            binds=() if owner else (name,),
            digest=digest_of(*guard.nodes, header),
            line=node.lineno,
            members=tuple(members),
            attributes=frozenset(_attributes(node)),
            constants=frozenset(inside.bound),
            bases=tuple(_chain(base) for base in node.bases),
            marks=tuple(_chain(mark) for mark in (*node.decorator_list, *_metaclass(node))),
            typing=guard.typing,
            **_listed(found, within),
        )

    def _imports(self, node: ast.Import | ast.ImportFrom, guard: _Guard) -> Iterator[Unit]:
        run = analyse([node, *guard.nodes], self.package)
        for name, module, chain in imported(node, self.package):
            star = name == "*"
            yield Unit(
                kind="star" if star else "import",
                name="<module>" if star else name,
                binds=() if star else (name,),
                digest=canon.digest("dsec/code-import/1", [module, list(chain), digest_of(*guard.nodes)]),
                line=node.lineno,
                target=(module, () if star else chain),
                typing=guard.typing,
                **_listed(run),
            )

    def _statement(self, node: ast.stmt, guard: _Guard) -> Iterator[Unit]:
        binds = _assigned(node)
        is_name = binds is not None and binds != ("_",)
        scope = Scope(None)
        if binds is None:
            collect([node], scope, self.package)
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Import, ast.ImportFrom)) and _outermost(inner, node):
                    yield from self._imports(inner, guard)
            binds = tuple(scope.bound)
        unit = self._make("assign" if is_name else "statement", ", ".join(binds), node, guard)
        ordered = not is_name or not _plain(getattr(node, "value", None))
        yield replace(unit, name=unit.name if is_name else "<module>", binds=binds, ordered=ordered)


def _header(node: ast.ClassDef, rest: list[ast.stmt]) -> ast.ClassDef:
    """A class without its methods, but with their places where these can matter."""
    scope = Scope(None, is_class=True)
    collect(rest, scope, "")
    body = [
        ast.Global(names=[inner.name]) if isinstance(inner, _DEFINITIONS) else inner
        for inner in meaningful(node.body)
        if not isinstance(inner, _DEFINITIONS) or inner.name in scope.bound or _acts(inner)
    ]
    return ast.ClassDef(
        name=node.name, bases=node.bases, keywords=node.keywords, body=body, decorator_list=node.decorator_list
    )


def _acts(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a definition does more than to bind its name: it computes defaults, or is decorated."""
    if any(_chain(mark)[-1:] not in _QUIETLY for mark in node.decorator_list):
        return True
    return not isinstance(node, ast.ClassDef) and _computes(node)


def _computes(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a default is computed when the function is defined."""
    return not all(_plain(default) for default in (*node.args.defaults, *node.args.kw_defaults))


def _listed(*found: Uses) -> dict[str, Any]:
    """References as fields of a unit."""
    return {
        "uses": tuple(dict.fromkeys(use for part in found for use in part.uses)),
        "imports": tuple(dict.fromkeys(item for part in found for item in part.imports)),
        "dynamic": tuple(item for part in found for item in part.dynamic),
    }


def _assigned(node: ast.stmt) -> tuple[str, ...] | None:
    """Names of an assignment to nothing but names; None for any other statement."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    elif type(node).__name__ == "TypeAlias":
        targets = [node.name]  # type: ignore[attr-defined]
    else:
        return None
    names: list[str] = []
    for target in targets:
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            name = part.value if isinstance(part, ast.Starred) else part
            if not isinstance(name, ast.Name):
                return None
            names.append(name.id)
    return tuple(dict.fromkeys(names))


def _outermost(inner: ast.AST, node: ast.stmt) -> bool:
    """Whether an import inside a loop or ``with`` binds a name of the module, not of a function in it."""
    functions = (part for part in ast.walk(node) if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return not any(inner is part for function in functions for part in ast.walk(function))


def _plain(value: ast.expr | None) -> bool:
    """A value that is the same wherever it is computed."""
    return value is None or all(isinstance(part, _SIMPLE) for part in ast.walk(value))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """What a class binds in its body, and what its methods set on ``self``."""
    scope = Scope(None, is_class=True)
    collect(node.body, scope, "")
    yield from scope.bound
    for part in ast.walk(node):
        if not isinstance(part, ast.Attribute) or not isinstance(part.ctx, ast.Store):
            continue
        if isinstance(part.value, ast.Name) and part.value.id in ("self", "cls"):
            yield part.attr


def _chain(node: ast.expr) -> tuple[str, ...]:
    """Names of a decorator or base, calls and subscripts taken off: ``Base[int]`` is ``Base``."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    chain = chain_of(node)
    return (chain[0], *chain[1]) if chain else ()


def _metaclass(node: ast.ClassDef) -> list[ast.expr]:
    return [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]


def _last(node: ast.expr) -> str:
    chain = chain_of(node)
    return (chain[0], *chain[1])[-1] if chain else ""


def _is_main(test: ast.expr) -> bool:
    """``__name__ == "__main__"``: never so where code is imported."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = (test.left, test.comparators[0])
    names = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return names and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
