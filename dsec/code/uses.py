"""What a piece of code refers to: names, modules, attributes, and what no reader can tell before it runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dsec.code.scope import Bound, Scope, chain_of, classify, collect, imported, look_up

__all__ = ["Dynamic", "Import", "Use", "Uses", "analyse"]

_METHODS = frozenset(
    name for kind in (str, bytes, list, tuple, dict, set, frozenset, int, float, complex, range) for name in dir(kind)
)
"""Attributes of builtin types: on a literal they are no one else's."""

_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""A text that names code, for example an entry point in a registry of environments."""

_RUNS_TEXT = frozenset({"eval", "exec", "globals"})
_BY_NAME = frozenset({"getattr", "attrgetter", "methodcaller", "import_module", "__import__"})
_LOADERS = frozenset(
    {"spec_from_file_location", "SourceFileLoader", "run_path", "run_module", "resolve_name", "locate"}
)
"""Names of functions of Python that load code; whose they are is asked in `resolve`."""
_BUILTIN = _RUNS_TEXT | {"getattr", "__import__"}


class Use(NamedTuple):
    """One reference."""

    kind: str
    """One of:

    ``name`` of the module; ``module`` by absolute name; ``entry``, a module named in a text; ``own`` module as a value;
    ``self`` or ``super``, an attribute of an instance; ``any`` attribute of one; ``made`` by a builtin; ``attribute``.
    """
    head: str
    """The name, the module, the class (qualified within its file), the builtin, or the attribute."""
    chain: tuple[str, ...] = ()
    """Attributes read from it."""


class Import(NamedTuple):
    """A module that is imported when the code runs."""

    module: str
    name: str = ""
    """What ``from module import name`` names: maybe a submodule."""


class Dynamic(NamedTuple):
    """Code that picks other code when it runs."""

    line: int
    what: str
    """As the user wrote it, shortened."""
    base: tuple[Use, ...] = ()
    """What the attribute is read from; harmless if all of it is third-party code."""
    loads: bool = False
    """Whether ``base`` is a function called, harmful only if it is one of Python's that load code."""
    builtin: str = ""
    """The builtin it is about, harmless if the module has a function of that name."""


@dataclass(slots=True)
class Uses:
    """References of one piece of code, in order and without doubles."""

    uses: dict[Use, None] = field(default_factory=dict)
    imports: dict[Import, None] = field(default_factory=dict)
    dynamic: list[Dynamic] = field(default_factory=list)


def analyse(
    nodes: Sequence[ast.AST], package: str, *, scope: Scope | None = None, owner: str = "", harmless: Iterable[str] = ()
) -> Uses:
    """References made by some statements or expressions of a module.

    Parameters
    ----------
    package
        Package that relative imports start from.
    owner
        Class that the nodes are the body of, qualified within its file.
    harmless
        Decorators after which annotations are still nothing but annotations.
    """
    walk = _Walk(package, frozenset(harmless))
    walk.run(nodes, scope, owner)
    return walk.found


class _Walk:
    """A walk without recursion; every entry of the stack is a node, its scope, and the class around it."""

    def __init__(self, package: str, harmless: frozenset[str]) -> None:
        self.package = package
        self.harmless = harmless
        self.found = Uses()
        self.stack: list[tuple[ast.AST, Scope | None, str]] = []

    def run(self, nodes: Sequence[ast.AST], scope: Scope | None, owner: str) -> None:
        self.push(nodes, scope, owner)
        while self.stack:
            node, inside, around = self.stack.pop()
            rule = _RULES.get(type(node))
            if rule is None:
                self.push(list(ast.iter_child_nodes(node)), inside, around)
            else:
                rule(self, node, inside, around)

    def push(self, nodes: Iterable[ast.AST | None], scope: Scope | None, owner: str = "") -> None:
        self.stack.extend((node, scope, owner) for node in reversed(list(nodes)) if node is not None)

    def use(self, kind: str, head: str, chain: tuple[str, ...] = ()) -> None:
        self.found.uses[Use(kind, head, chain)] = None

    # ---- functions and classes -------------------------------------------------------------------------

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope | None, owner: str) -> None:
        arguments = node.args
        self.push([*node.decorator_list, *arguments.defaults, *arguments.kw_defaults], scope, owner)
        plain = all(_last(decorator) in self.harmless for decorator in node.decorator_list)
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        extra = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
        if not plain:
            # A decorator may look at annotations; without one they do nothing.
            self.annotations([*(argument.annotation for argument in (*names, *extra)), node.returns], scope)
        inner = Scope(scope)
        static = any(_last(decorator) == "staticmethod" for decorator in node.decorator_list)
        for index, argument in enumerate([*names, *extra]):
            mine = bool(owner) and index == 0 and not static
            asked = index == 1 and node.name in ("__getattr__", "__getattribute__")
            inner.add(argument.arg, Bound("self", owner) if mine else Bound("asked" if asked else "unknown"))
        for parameter in getattr(node, "type_params", ()):
            inner.add(parameter.name)
        collect(node.body, inner, self.package)
        self.push(node.body, inner)

    def lambda_(self, node: ast.Lambda, scope: Scope | None, owner: str) -> None:
        arguments = node.args
        self.push([*arguments.defaults, *arguments.kw_defaults], scope, owner)
        inner = Scope(scope)
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                inner.add(argument.arg)
        collect([node.body], inner, self.package)
        self.push([node.body], inner)

    def class_(self, node: ast.ClassDef, scope: Scope | None, _: str) -> None:
        """A class inside a function; classes of a module are taken apart by `parse`."""
        self.push([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)], scope)
        inner = Scope(scope, is_class=True)
        collect(node.body, inner, self.package)
        self.push(node.body, inner)

    def annotated(self, node: ast.AnnAssign, scope: Scope | None, owner: str) -> None:
        if scope is not None and scope.is_class:
            self.annotations([node.annotation], scope)
        self.push([node.target, node.value], scope, owner)

    def annotations(self, nodes: Iterable[ast.expr | None], scope: Scope | None) -> None:
        for node in nodes:
            if node is None:
                continue
            self.push([node], scope)
            for text in (part.value for part in ast.walk(node) if isinstance(part, ast.Constant)):
                if isinstance(text, str):
                    self.push([_expression(text)], scope)

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope | None, owner: str
    ) -> None:
        inner = Scope(scope)
        for index, part in enumerate(node.generators):
            collect([ast.For(target=part.target, iter=part.iter, body=[], orelse=[])], inner, self.package)
            self.push([part.iter], inner if index else scope, owner if not index else "")
            self.push([part.target, *part.ifs], inner)
        self.push([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], inner)

    # ---- names and attributes --------------------------------------------------------------------------

    def name(self, node: ast.Name, scope: Scope | None, _: str) -> None:
        if node.id in _BUILTIN and look_up(scope, node.id) is None:
            self.found.dynamic.append(Dynamic(node.lineno, node.id, builtin=node.id))
        self.reference(scope, node.id, ())

    def attribute(self, node: ast.Attribute, scope: Scope | None, owner: str) -> None:
        chain = chain_of(node)
        if chain is not None:
            self.reference(scope, *chain)
            return
        attributes: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            attributes.insert(0, base.attr)
            base = base.value
        self.push([base], scope, owner)
        around = _class_around(scope) if _is_super(base) else ""
        if around:
            self.use("super", around, (attributes[0],))
        if around or self.is_literal(classify(base), attributes[0], scope):
            # What is of a base is told apart above; methods of builtins are no one else's.
            attributes = attributes[1:]
        self.attributes(attributes)

    def is_literal(self, bound: Bound, attribute: str, scope: Scope | None) -> bool:
        """Whether an attribute is that of a builtin type, if the maker of the value is the builtin it looks like."""
        if bound.kind != "literal" or attribute not in _METHODS:
            return False
        if bound.maker and look_up(scope, bound.maker) is not None:
            return False
        if bound.maker:
            self.use("made", bound.maker, (attribute,))
        return True

    def attributes(self, names: Iterable[str]) -> None:
        for name in names:
            self.use("attribute", name)

    def reference(self, scope: Scope | None, name: str, chain: tuple[str, ...]) -> None:
        for use in self.resolved(scope, name, chain):
            self.found.uses[use] = None

    def resolved(self, scope: Scope | None, name: str, chain: tuple[str, ...], depth: int = 8) -> list[Use]:
        """A chain as references, local names followed to what they are bound to."""
        found = look_up(scope, name)
        if found is None:
            return [Use("name", name, chain)]
        where, bounds = found
        if len(bounds) == 1 and bounds[0].kind == "alias" and depth and bounds[0].chain[0] != name:
            head, *rest = bounds[0].chain
            return self.resolved(where, head, (*rest, *chain), depth - 1)
        if bounds and chain and all(self.is_literal(bound, chain[0], where) for bound in bounds):
            return [Use("attribute", attribute) for attribute in chain[1:]]
        uses = [Use("module", bound.module, bound.chain + chain) for bound in bounds if bound.kind == "module"]
        if all(bound.kind == "self" for bound in bounds):
            return [Use("self", bounds[0].module, chain)] if chain else []
        if any(bound.kind != "module" for bound in bounds):
            uses += [Use("attribute", attribute) for attribute in chain]
        return uses

    def constant(self, node: ast.Constant, _scope: Scope | None, _: str) -> None:
        if isinstance(node.value, str) and len(node.value) < 200 and _ENTRY.fullmatch(node.value):
            module, _, name = node.value.partition(":")
            self.use("entry", module, tuple(name.split(".")))

    # ---- imports and calls -----------------------------------------------------------------------------

    def import_(self, node: ast.Import | ast.ImportFrom, _scope: Scope | None, _: str) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.found.imports[Import(alias.name)] = None
            return
        for name, module, chain in imported(node, self.package):
            self.found.imports[Import(module, chain[0])] = None
            if chain[0] in _BY_NAME | _BUILTIN and name != chain[0] and module in ("importlib", "operator", "builtins"):
                self.found.dynamic.append(Dynamic(node.lineno, f"{chain[0]} as {name}"))

    def call(self, node: ast.Call, scope: Scope | None, owner: str) -> None:
        chain = chain_of(node.func)
        name = chain[1][-1] if chain and chain[1] else chain[0] if chain else ""
        if chain is not None and name in _LOADERS:
            base = tuple(self.resolved(scope, *chain))
            self.found.dynamic.append(Dynamic(node.lineno, _source(node), base, loads=True))
        builtin = name in _BUILTIN
        meant = chain is not None and (not builtin or not chain[1] or chain == ("builtins", (name,)))
        parts: list[ast.expr] = [node.func, *node.args]
        if name in _BY_NAME and meant and not (builtin and look_up(scope, name)):
            parts = self.by_name(node, name, scope)
        self.push([*parts, *(keyword.value for keyword in node.keywords)], scope, owner)

    def by_name(self, node: ast.Call, name: str, scope: Scope | None) -> list[ast.expr]:
        """A call that picks by a text: note what it picks; returns the arguments that are left to look at."""
        at = 1 if name == "getattr" else 0
        if len(node.args) <= at or any(isinstance(argument, ast.Starred) for argument in node.args[: at + 1]):
            self.dynamic(node, name)
            return node.args
        texts = self.texts(node.args[at], scope)
        if texts is None:
            self.dynamic(node, name, node.args[0] if name == "getattr" else None, scope)
            return node.args
        for text in texts:
            self.picked(node, name, text, scope)
        # What an attribute of known name is read from is no value that is handed on.
        return node.args[1:] if name == "getattr" and chain_of(node.args[0]) else node.args

    def picked(self, node: ast.Call, name: str, text: str, scope: Scope | None) -> None:
        if name in ("import_module", "__import__"):
            relative = text.startswith(".")
            module = _relative(text, self.package) if relative else text
            self.found.imports[Import(module)] = None
            self.use("module", module)
            return
        chain = chain_of(node.args[0]) if name == "getattr" else None
        if chain is None:
            self.attributes(text.split("."))
        else:
            self.reference(scope, chain[0], (*chain[1], text))

    def texts(self, node: ast.expr, scope: Scope | None) -> tuple[str, ...] | None:
        """What a name to be picked can be; empty where whoever asked for it wrote it; None where nobody knows."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return (node.value,)
        if isinstance(node, ast.IfExp):
            parts = [self.texts(part, scope) for part in (node.body, node.orelse)]
            return None if None in parts else tuple(text for part in parts for text in part or ())
        if not isinstance(node, ast.Name) or (found := look_up(scope, node.id)) is None:
            return None
        bounds = found[1]
        if all(bound.kind == "asked" for bound in bounds):
            return ()
        known = [bound.strings for bound in bounds]
        return None if None in known else tuple(text for strings in known for text in strings or ())

    def subscript(self, node: ast.Subscript, scope: Scope | None, owner: str) -> None:
        """``globals()["x"]`` and ``sys.modules["x"]`` with a text are plain names."""
        text = node.slice.value if isinstance(node.slice, ast.Constant) else None
        base = node.value
        if isinstance(base, ast.Call) and chain_of(base.func) == ("globals", ()) and isinstance(text, str):
            self.use("name", text)
        elif chain_of(base) == ("sys", ("modules",)):
            self.module_table(node, text, scope)
        else:
            self.push([base, node.slice], scope, owner)

    def module_table(self, node: ast.Subscript, text: object, scope: Scope | None) -> None:
        self.reference(scope, "sys", ())
        if isinstance(text, str):
            self.use("module", text)
        elif chain_of(node.slice) == ("__name__", ()):
            self.use("own", "")
        else:
            self.dynamic(node)

    def dynamic(self, node: ast.expr, name: str = "", base: ast.expr | None = None, scope: Scope | None = None) -> None:
        chain = chain_of(base) if base is not None else None
        uses = tuple(self.resolved(scope, *chain)) if chain else ()
        self.found.dynamic.append(Dynamic(node.lineno, _source(node), uses, builtin=name if name in _BUILTIN else ""))


def _class_around(scope: Scope | None) -> str:
    """Class whose method a scope is in, qualified within its file."""
    while scope is not None:
        for bound in (bound for bounds in scope.bound.values() for bound in bounds):
            if bound.kind == "self":
                return bound.module
        scope = scope.parent
    return ""


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _last(decorator: ast.expr) -> str:
    """Last name of a decorator: ``functools.cache`` and ``cache(…)`` are ``cache``."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    chain = chain_of(node)
    return (chain[0], *chain[1])[-1] if chain else ""


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None


def _relative(text: str, package: str) -> str:
    name = text.lstrip(".")
    parts = package.split(".")
    base = parts[: len(parts) - (len(text) - len(name)) + 1]
    return ".".join([*base, name] if name else base)


def _source(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}…"


_RULES: dict[type[ast.AST], Callable[..., None]] = {
    ast.FunctionDef: _Walk.function,
    ast.AsyncFunctionDef: _Walk.function,
    ast.Lambda: _Walk.lambda_,
    ast.ClassDef: _Walk.class_,
    ast.AnnAssign: _Walk.annotated,
    ast.ListComp: _Walk.comprehension,
    ast.SetComp: _Walk.comprehension,
    ast.GeneratorExp: _Walk.comprehension,
    ast.DictComp: _Walk.comprehension,
    ast.Name: _Walk.name,
    ast.Attribute: _Walk.attribute,
    ast.Constant: _Walk.constant,
    ast.Import: _Walk.import_,
    ast.ImportFrom: _Walk.import_,
    ast.Call: _Walk.call,
    ast.Subscript: _Walk.subscript,
}
