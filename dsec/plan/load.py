"""From a file to an `ExecutionPlan`, or to every problem in it with its place.

Reading a plan reads what it names and nothing else: spec files, CSV columns, and the digests of declared files.
No code of the plan is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsec.errors import PlanError, Problem, UsageError
from dsec.plan import explain, files, units, yaml12
from dsec.plan.locate import Fault, Sources, Span, did_you_mean, refuse, shown
from dsec.plan.schema import ExecutionPlan, Stage
from dsec.plan.yaml12 import Node

__all__ = ["MAX_STAGES", "Document", "Where", "load_plan", "parse_size", "parse_value", "project_root", "read"]

MAX_STAGES = 10_000
"""Stages written in one plan; a matrix and a loop make more of them."""

Where = tuple[str | int, ...]
"""Keys and indices from the root of a plan."""

_SPECS = ("agent", "env", "reward")


@dataclass(frozen=True, slots=True)
class Document:
    """A plan file as read, with the places of its keys and values."""

    path: str
    """The file, as the user named it."""
    root: Node
    sources: Sources = field(default_factory=Sources)
    """Texts of the plan and of its spec files."""

    @property
    def tree(self) -> Any:
        """Plain values: dicts, lists, scalars, and an `Expr` for each ``${{ }}``."""
        return self.root.value

    def value(self, path: Where) -> Span:
        """Place of a value; of what is absent, of the nearest value around it."""
        return self._walk(path)[1]

    def key(self, path: Where) -> Span:
        """Place of the key that a path ends in; of what is absent, of the nearest key around it."""
        return self._walk(path)[0]

    def problem(self, path: Where, code: str, message: str, hint: str = "", *, key: bool = False) -> Problem:
        """A problem at a value, or at a key."""
        return self.sources.problem(self.key(path) if key else self.value(path), code, message, hint)

    def fault(self, fault: Fault, path: Where = ()) -> Problem:
        """A fault, found in the value at ``path``, as a problem at its place."""
        return self.problem((*path, *fault.at), fault.code, fault.message, fault.hint, key=fault.key)

    def _walk(self, path: Where) -> tuple[Span, Span]:
        node, key = self.root, self.root.span
        for part in path:
            child = node.child(part)
            # A short form has no node for a part that the schema names: `agent: a:B` stands for its `uses`.
            if child is None:
                continue
            key = node.keys[part] if node.keys is not None and isinstance(part, str) else child.span
            node = child
        return key, node.span


def read(path: str | Path, text: str | None = None) -> Document:
    """A plan file as plain values with places; ``text`` stands for its content.

    Raises
    ------
    PlanError
        If it can't be read, or is not YAML that a plan can be.
    """
    sources = Sources()
    file = str(path)
    raw = files.content(file, sources) if text is None else text.encode("utf-8", "surrogatepass")
    root = yaml12.compose(yaml12.decode(raw, file, sources), file, sources)
    document = Document(file, root, sources)
    if not isinstance(root.items, dict):
        message = f"a plan is a mapping, not {shown(root.value)}"
        raise refuse([document.problem((), "wrong-type", message, "a plan begins with 'dsec: 1'")])
    return document


def load_plan(
    path: str | Path, text: str | None = None, *, overrides: Sequence[str] = ()
) -> tuple[ExecutionPlan, Document]:
    """A plan, and the document that knows its places.

    Parameters
    ----------
    text
        Content, where it is not that of the file.
    overrides
        ``name=value`` for params, values as YAML.

    Raises
    ------
    PlanError
        With every problem of the file.
    UsageError
        If an override names no param.
    """
    document = read(path, text)
    _override(document, overrides)
    problems = list(_unreadable(document.root))
    problems += _splice(document)
    problems += files.declare(document.root, document.sources)
    unseen = 0
    try:
        plan = ExecutionPlan.model_validate(document.tree)
    except ValidationError as error:
        faults = explain.faults(error, ExecutionPlan)
        problems += [document.fault(fault) for fault in faults]
        unseen = max(0, error.error_count() - explain.MANY)
    else:
        problems += _too_many(plan, document)
    if problems:
        raise refuse(problems, unseen)
    return plan, document


def _too_many(plan: ExecutionPlan, document: Document) -> Iterator[Problem]:
    stack: list[tuple[Where, Mapping[str, Stage]]] = [(("stages",), plan.stages)]
    total = 0
    while stack:
        where, stages = stack.pop()
        total += len(stages)
        stack += [((*where, name, "stages"), stage.stages) for name, stage in stages.items() if stage.stages]
    if total > MAX_STAGES:
        message = f"{total} stages are written; {MAX_STAGES} is the most"
        yield document.problem(("stages",), "too-many-stages", message, "use a matrix or a loop", key=True)


def parse_size(text: str) -> int:
    """Bytes of ``512MiB``, as plans write sizes.

    Raises
    ------
    UsageError
        If the text is no size.
    """
    try:
        return units.size(text)
    except Fault as fault:
        raise UsageError(fault.message, hint=fault.hint) from None


def parse_value(text: str) -> Any:
    """A value as YAML has it, for the command line: ``60``, ``[0, 1]``, ``true``.

    Raises
    ------
    PlanError
        If the text is not one YAML value.
    """
    sources = Sources()
    file = "value"
    return yaml12.compose(yaml12.decode(text.encode("utf-8", "replace"), file, sources), file, sources).value


def project_root(path: str | Path) -> Path:
    """Nearest folder around a plan that has pyproject.toml or .git, else the plan's own."""
    folder = Path(path).resolve().parent
    for candidate in (folder, *folder.parents):
        if (candidate / "pyproject.toml").exists() or (candidate / ".git").exists():
            return candidate
    return folder


def _override(document: Document, overrides: Sequence[str]) -> None:
    if not overrides:
        return
    params = document.root.child("params")
    known = params.items if params is not None and isinstance(params.items, dict) else {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise UsageError(f"-p {override}: expected name=value", hint="for example -p iterations=60")
        if params is None or name not in known:
            hint = did_you_mean(name, known) or "the plan has no such param"
            raise UsageError(f"-p {override}: unknown param '{name}'", hint=hint)
        try:
            value = parse_value(text) if text.strip() else ""
        except PlanError as error:
            raise UsageError(f"-p {override}: {error.problems[0].message}", hint=error.problems[0].hint) from None
        files.put(params, name, Node(known[name].span, value))


def _unreadable(root: Node) -> Iterator[Problem]:
    """Expressions that can't be read, those under ``x-*`` left out."""
    children = root.items.items() if isinstance(root.items, dict) else ()
    stack = [node for name, node in children if not name.startswith("x-")]
    while stack:
        node = stack.pop()
        if node.fault is None:
            continue
        if node.items is None:
            yield node.fault
        else:
            stack.extend(node.items.values() if isinstance(node.items, dict) else node.items)


def _splice(document: Document) -> list[Problem]:
    """Put the content of spec files where the plan names them."""
    session = document.root.child("session")
    problems: list[Problem] = []
    for name in _SPECS:
        named = session.child(name) if session is not None else None
        if session is None or named is None or not _is_spec_path(named.value):
            continue
        if not named.value.endswith(f".{name}.yaml"):
            message, hint = f"{shown(named.value)} is not a spec file", f"its name ends in .{name}.yaml"
            problems.append(document.sources.problem(named.span, "wrong-value", message, hint))
            files.put(session, name, Node(named.span))
            continue
        try:
            files.put(session, name, _spec(named, name, document.sources))
        except PlanError as error:
            files.put(session, name, Node(named.span))
            problems += error.problems
    return problems


def _is_spec_path(value: object) -> bool:
    return isinstance(value, str) and value.endswith((".yaml", ".yml"))


def _spec(named: Node, name: str, sources: Sources) -> Node:
    """Root of a spec file, read as if it stood in the plan."""
    path = files.beside(named.span, named.value)
    raw = files.content(str(path), sources, named)
    root = yaml12.compose(yaml12.decode(raw, str(path), sources), str(path), sources)
    if not isinstance(root.items, dict):
        message = f"a spec file of {'an' if name != 'reward' else 'a'} {name} is a mapping, not {shown(root.value)}"
        raise refuse([sources.problem(root.span, "wrong-type", message, "it begins with 'uses: package.module:name'")])
    faulty = list(_unreadable(root))
    if faulty:
        raise refuse(faulty)
    return root
