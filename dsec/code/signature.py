"""Parameters and outputs of users' functions and classes, as their source says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsec.code.parse import Module, Unit
from dsec.code.resolve import Found, Reader
from dsec.code.scope import chain_of

__all__ = ["Parameter", "Signature", "read_signature", "unknown_signature"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter."""

    name: str
    required: bool
    """Whether a call must give it."""
    keyword_only: bool = False

    @property
    def has_default(self) -> bool:
        """Whether it may be left out."""
        return not self.required


@dataclass(frozen=True, slots=True)
class Signature:
    """How users' code is called, and what it says it returns."""

    kind: str
    """``function`` or ``class``."""
    parameters: tuple[Parameter, ...]
    """In order; of a class those of its ``__init__`` without ``self``."""
    accepts_any: bool
    """Whether it takes any keyword, or nobody can tell which."""
    outputs: tuple[str, ...] | None = None
    """Keys of a TypedDict that it is annotated to return, in order."""
    file: Path = Path()
    """Source file; empty for third-party code."""
    line: int = 0
    """1-based line where it begins."""
    module: str = ""
    """First-party module that defines it."""

    def plain(self) -> dict[str, Any]:
        """As JSON; the file is left to whoever finds the module."""
        parameters = [[one.name, one.required, one.keyword_only] for one in self.parameters]
        outputs = list(self.outputs) if self.outputs is not None else None
        return {
            "kind": self.kind,
            "parameters": parameters,
            "accepts_any": self.accepts_any,
            "outputs": outputs,
            "line": self.line,
            "module": self.module,
            "file": "",
        }

    @classmethod
    def of(cls, plain: dict[str, Any], file: Path) -> Signature:
        """The inverse of `plain`."""
        outputs = tuple(plain["outputs"]) if plain["outputs"] is not None else None
        parameters = tuple(Parameter(*one) for one in plain["parameters"])
        return cls(
            plain["kind"], parameters, plain["accepts_any"], outputs, file, plain["line"], plain["module"]
        )  # fmt: skip


def unknown_signature(name: str) -> Signature:
    """Signature of code that is not the project's: a class if it is spelled like one, and it takes anything."""
    kind = "class" if name[:1].isupper() else "function"
    return Signature(kind, () if kind == "class" else (Parameter("ctx", required=False),), accepts_any=True)


def read_signature(reader: Reader, found: Found | None, name: str) -> Signature:
    """Signature of what a name leads to; one that takes anything where the source doesn't say."""
    if found is None or found.module is None or found.unit is None:
        return unknown_signature(name)
    place = replace(unknown_signature(name), module=found.module.name, line=found.unit.line)
    unit = found.unit
    if found.rest:
        member = next((one for one in unit.members if one.name == f"{unit.name}.{found.rest[0]}"), None)
        if member is None or len(found.rest) > 1:
            return place
        unit, place = member, replace(place, line=member.line)
    if unit.kind == "function":
        node = _definition(found.module, unit)
        return _of_function(reader, found.module, node, place, method=bool(found.rest)) if node else place
    if unit.kind == "class":
        node = _definition(found.module, unit)
        return _of_class(reader, found.module, unit, place) if node else place
    return _of_value(reader, found.module, unit, place)


def _definition(module: Module, unit: Unit) -> Any:
    """Node of a function or class: the one of that name on that line."""
    name = unit.name.rpartition(".")[2]
    for node in ast.walk(module.tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if node.name == name and node.lineno == unit.line:
            return node
    return None


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    plain = [*arguments.posonlyargs, *arguments.args]
    free = len(plain) - len(arguments.defaults)
    for index, argument in enumerate(plain):
        yield Parameter(argument.arg, required=index < free)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield Parameter(argument.arg, required=default is None, keyword_only=True)


def _of_function(
    reader: Reader, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Signature, *, method: bool
) -> Signature:
    parameters = tuple(_parameters(node.args))
    static = any(_name(mark) == "staticmethod" for mark in node.decorator_list)
    return replace(
        place,
        kind="function",
        parameters=parameters[1:] if method and not static else parameters,
        accepts_any=node.args.kwarg is not None,
        outputs=_outputs(reader, module, node.returns),
    )


def _of_class(reader: Reader, module: Module, unit: Unit, place: Signature) -> Signature:
    """Parameters of the first ``__init__`` among a class and its first-party bases, or the fields of a dataclass."""
    place = replace(place, kind="class", parameters=(), accepts_any=False)
    for owner, one in reader.lineage(module, unit):
        node = _definition(owner, one)
        init = next((inner for inner in node.body if _is_function(inner, ("__init__", "__new__"))), None)
        if init is not None:
            found = tuple(_parameters(init.args))[1:]
            return replace(place, parameters=found, accepts_any=init.args.kwarg is not None)
        if _has_fields(node):
            fields = _fields(reader, owner, one)
            return replace(place, parameters=tuple(fields.values()))
        if any(base is None or base.unit is None for base in reader.bases(owner, one) if not _is_plain_base(base)):
            return replace(place, accepts_any=True)
    return place


def _is_plain_base(base: Found | None) -> bool:
    """Bases that add no parameter."""
    return base is not None and base.external in ("abc", "typing", "typing_extensions") and base.rest[:1] != (
        "NamedTuple",
    )  # fmt: skip


def _is_function(node: ast.stmt, names: tuple[str, ...]) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in names


def _has_fields(node: ast.ClassDef) -> bool:
    """Whether annotated names of a class are parameters: a dataclass, a NamedTuple."""
    marked = any(_name(mark) in ("dataclass", "define", "frozen", "attrs") for mark in node.decorator_list)
    return marked or any(_name(base) == "NamedTuple" for base in node.bases)


def _fields(reader: Reader, module: Module, unit: Unit) -> dict[str, Parameter]:
    """Fields of a dataclass, those of its bases first."""
    found: dict[str, Parameter] = {}
    for owner, one in reversed(list(reader.lineage(module, unit))):
        node = _definition(owner, one)
        if not _has_fields(node):
            continue
        keyword_only = _says(node.decorator_list, "kw_only")
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            kind = _name(statement.annotation)
            if kind == "KW_ONLY":
                keyword_only = True
            elif kind != "ClassVar" and not _says([statement.value], "init", False):
                name = statement.target.id
                found[name] = Parameter(name, not _has_default(statement.value), keyword_only)
    return found


def _says(nodes: list[Any], name: str, value: bool = True) -> bool:
    """Whether a call among some expressions has a keyword of that value."""
    keywords = [keyword for node in nodes if isinstance(node, ast.Call) for keyword in node.keywords]
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is value
        for keyword in keywords
    )


def _has_default(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and _name(value) == "field":
        return any(keyword.arg in ("default", "default_factory", "factory") for keyword in value.keywords)
    return value is not None


def _of_value(reader: Reader, module: Module, unit: Unit, place: Signature) -> Signature:
    """An assigned name: a lambda, another name, or ``partial`` of a function."""
    node = next((one for one in ast.walk(module.tree) if isinstance(one, ast.Assign) and one.lineno == unit.line), None)
    anything = replace(place, kind="function", parameters=(Parameter("args", required=False),), accepts_any=True)
    if node is None or unit.kind != "assign":
        return anything
    value = node.value
    if isinstance(value, ast.Lambda):
        parameters = tuple(_parameters(value.args))
        return replace(anything, parameters=parameters, accepts_any=value.args.kwarg is not None)
    chain = chain_of(value)
    if chain is not None:
        return _elsewhere(reader, module, value, anything)
    if isinstance(value, ast.Call) and _name(value) == "partial" and value.args:
        whole = _elsewhere(reader, module, value.args[0], anything)
        given = {keyword.arg for keyword in value.keywords}
        rest = whole.parameters[len(value.args) - 1 :]
        freed = tuple(replace(one, required=one.required and one.name not in given) for one in rest)
        return replace(whole, parameters=freed)
    return anything


def _elsewhere(reader: Reader, module: Module, node: ast.expr, anything: Signature) -> Signature:
    chain = chain_of(node)
    found = reader.find(module, (chain[0], *chain[1])) if chain else None
    if found is None or found.unit is None or found.unit.kind not in ("function", "class"):
        return anything
    return read_signature(reader, found, found.unit.name)


def _outputs(reader: Reader, module: Module, returns: ast.expr | None) -> tuple[str, ...] | None:
    """Keys of the TypedDict that a return annotation names."""
    if isinstance(returns, ast.Constant) and isinstance(returns.value, str):
        try:
            returns = ast.parse(returns.value.strip(), mode="eval").body
        except SyntaxError:
            return None
    chain = chain_of(returns) if returns is not None else None
    found = reader.find(module, (chain[0], *chain[1])) if chain else None
    if found is None or found.module is None or found.unit is None:
        return None
    if found.unit.kind == "assign":
        return _functional(found.module, found.unit)
    lineage = list(reader.lineage(found.module, found.unit)) if found.unit.kind == "class" else []
    nodes = [_definition(owner, unit) for owner, unit in lineage]
    if not any(_name(base) == "TypedDict" for node in nodes for base in node.bases):
        return None
    names = [
        statement.target.id
        for node in reversed(nodes)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]
    return tuple(dict.fromkeys(names))


def _functional(module: Module, unit: Unit) -> tuple[str, ...] | None:
    """Keys of ``Out = TypedDict("Out", {"a": …})``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and node.lineno == unit.line and isinstance(node.value, ast.Call):
            call = node.value
            if _name(call) == "TypedDict" and len(call.args) > 1 and isinstance(call.args[1], ast.Dict):
                return tuple(str(key.value) for key in call.args[1].keys if isinstance(key, ast.Constant))
    return None


def _name(node: ast.expr) -> str:
    """Last name of an expression, calls and subscripts taken off."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    chain = chain_of(node)
    return (chain[0], *chain[1])[-1] if chain else ""
