"""Names that a function binds, and to what, as far as its source alone says."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Bound", "Chain", "Scope", "absolute", "chain_of", "classify", "collect", "imported", "look_up", "scope_of"]

Chain = tuple[str, tuple[str, ...]]
"""A name and the attributes read from it: ``a.b.c`` is ``("a", ("b", "c"))``."""

_LITERALS = (
    ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set,
    ast.ListComp, ast.SetComp, ast.DictComp,
)  # fmt: skip
_MAKERS = frozenset({"dict", "list", "set", "frozenset", "tuple", "str", "bytes", "bytearray", "int", "float", "bool",
                     "complex", "sorted", "range", "len", "repr", "enumerate", "zip"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    """One binding of a local name."""

    kind: str
    """``module``, ``alias``, ``self``, ``literal``, ``asked`` or ``unknown``."""
    module: str = ""
    """Of ``module``: what is imported; of ``self``: the class, qualified within its file."""
    chain: tuple[str, ...] = ()
    """Of ``module``: attributes of it; of ``alias``: the name and its attributes."""
    maker: str = ""
    """Of ``literal``: the builtin that is called to make it, which a module may hide."""
    strings: tuple[str, ...] | None = None
    """The texts that the name can be, where all are written out."""


UNKNOWN = Bound("unknown")


class Scope:
    """Bindings of one function, lambda, comprehension or class body."""

    __slots__ = ("bound", "is_class", "outside", "parent")

    def __init__(self, parent: Scope | None, *, is_class: bool = False) -> None:
        self.parent = parent
        self.is_class = is_class
        self.bound: dict[str, list[Bound]] = {}
        self.outside: set[str] = set()

    def add(self, name: str, bound: Bound = UNKNOWN) -> None:
        """Note one more binding of a name."""
        self.bound.setdefault(name, []).append(bound)


def look_up(scope: Scope | None, name: str) -> tuple[Scope, list[Bound]] | None:
    """Scope that binds a name, and its bindings; None where it is the module's.

    What a class body binds hides nothing, since the module's name may be read before it is bound; imports are told.
    """
    inner = scope
    while scope is not None:
        if name in scope.outside:
            return None
        found = scope.bound.get(name)
        if found and (not scope.is_class or (scope is inner and any(bound.kind == "module" for bound in found))):
            return scope, found
        scope = scope.parent
    return None


def chain_of(node: ast.expr) -> Chain | None:
    """Name and attributes of ``a.b.c``; None for any other expression."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, tuple(reversed(attributes))) if isinstance(node, ast.Name) else None


def imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What an import statement binds: local name, absolute module, attributes of that module.

    A star import binds ``*``. A relative import that leaves the top package names the module ``.``.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname, alias.name, ()) if alias.asname else (top, top, ())
        return
    base = absolute(node, package)
    for alias in node.names:
        yield alias.asname or alias.name, base, (alias.name,)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Absolute name of the module that ``from … import`` names."""
    if not node.level:
        return node.module or "."
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return "."
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def scope_of(nodes: Sequence[ast.AST], parent: Scope | None, package: str) -> Scope:
    """Bindings made by a function's body, nested functions and classes left out."""
    scope = Scope(parent)
    collect(nodes, scope, package)
    return scope


def collect(nodes: Sequence[ast.AST], scope: Scope, package: str) -> None:
    """Add to a scope what some statements bind."""
    stack: list[ast.AST] = list(reversed(nodes))
    while stack:
        node = stack.pop()
        rule = _RULES.get(type(node))
        children = rule(node, scope, package) if rule else list(ast.iter_child_nodes(node))
        stack.extend(reversed(children))
    for name in scope.outside:
        scope.bound.pop(name, None)


def classify(value: ast.expr | None) -> Bound:
    """What a name is bound to by ``name = value``."""
    if value is None:
        return UNKNOWN
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return Bound("literal", strings=(value.value,))
    if isinstance(value, _LITERALS):
        return Bound("literal")
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _MAKERS:
        return Bound("literal", maker=value.func.id)
    chain = chain_of(value)
    return Bound("alias", chain=(chain[0], *chain[1])) if chain else UNKNOWN


def _strings(value: ast.expr) -> tuple[str, ...] | None:
    """Texts of a tuple, list or set of texts."""
    if not isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return None
    found = [item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return tuple(found) if len(found) == len(value.elts) else None


# ---- one rule a class of node: bind, and say which children to go on with ------------------------------


def _definition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope, _: str) -> list[ast.AST]:
    scope.add(node.name)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Nonlocal):
            for name in inner.names:
                # Assigned in there too, so what is assigned out here doesn't tell all.
                scope.add(name)
    return []


def _lambda(_node: ast.AST, _scope: Scope, _: str) -> list[ast.AST]:
    return []


def _assign(node: ast.Assign, scope: Scope, _: str) -> list[ast.AST]:
    rest: list[ast.AST] = [node.value]
    for target in node.targets:
        if isinstance(target, ast.Name):
            scope.add(target.id, classify(node.value))
        else:
            rest.append(target)
    return rest


def _annotated(node: ast.AnnAssign, scope: Scope, _: str) -> list[ast.AST]:
    if not isinstance(node.target, ast.Name):
        return [node.target, *([node.value] if node.value else [])]
    if node.value is None:
        scope.bound.setdefault(node.target.id, [])
        return []
    scope.add(node.target.id, classify(node.value))
    return [node.value]


def _walrus(node: ast.NamedExpr, scope: Scope, _: str) -> list[ast.AST]:
    scope.add(node.target.id, classify(node.value))
    return [node.value]


def _loop(node: ast.For | ast.AsyncFor, scope: Scope, _: str) -> list[ast.AST]:
    texts = _strings(node.iter)
    if isinstance(node.target, ast.Name) and texts is not None:
        scope.add(node.target.id, Bound("literal", strings=texts))
        return [node.iter, *node.body, *node.orelse]
    return list(ast.iter_child_nodes(node))


def _comprehension(node: ast.AST, _scope: Scope, _: str) -> list[ast.AST]:
    """Only a walrus inside one binds a name of the function."""
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)]


def _name(node: ast.Name, scope: Scope, _: str) -> list[ast.AST]:
    if not isinstance(node.ctx, ast.Load):
        scope.add(node.id)
    return []


def _import(node: ast.Import | ast.ImportFrom, scope: Scope, package: str) -> list[ast.AST]:
    for name, module, chain in imported(node, package):
        scope.add(name, Bound("module", module, chain))
    return []


def _outside(node: ast.Global, scope: Scope, _: str) -> list[ast.AST]:
    scope.outside.update(node.names)
    return []


def _named(node: ast.AST, scope: Scope, _: str) -> list[ast.AST]:
    """Handlers and patterns, whose names are plain strings."""
    name = getattr(node, "name", None) or getattr(node, "rest", None)
    if name:
        scope.add(name)
    return list(ast.iter_child_nodes(node))


_RULES: dict[type[ast.AST], Callable[..., list[ast.AST]]] = {
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.ClassDef: _definition,
    ast.Lambda: _lambda,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.NamedExpr: _walrus,
    ast.For: _loop,
    ast.AsyncFor: _loop,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.Name: _name,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Global: _outside,
    ast.ExceptHandler: _named,
    ast.MatchAs: _named,
    ast.MatchStar: _named,
    ast.MatchMapping: _named,
}
