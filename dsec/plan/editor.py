"""The JSON Schema of a plan, for editors: made from the classes, with their docstrings as hover texts."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsec.plan import reference

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["json_schema"]

_NAMED = ("stages", "carry", "outputs")
"""Mappings whose keys are names of the plan."""


def json_schema(plan: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a plan file."""
    made = plan.model_json_schema(by_alias=True)
    documented = _attribute_texts(plan)
    for title, part in [*made["$defs"].items(), (plan.__name__, made)]:
        for name, field in part.get("properties", {}).items():
            text = documented.get((title, name))
            if text is not None:
                field.setdefault("description", text)
            if name in _NAMED:
                for mapping in _mappings(field):
                    mapping["propertyNames"] = {"pattern": f"^{reference.NAME.pattern}$"}
    _untitled(made)
    made["patternProperties"] = {"^x-": {}}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "DSec execution plan, format 1",
    }
    return {**head, **{key: value for key, value in made.items() if key not in head}}


def _mappings(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (part for part in (field, *field.get("anyOf", ())) if part.get("type") == "object")


def _untitled(node: Any) -> None:
    """Take off titles that only repeat a name."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for inner in node.values():
            _untitled(inner)
    elif isinstance(node, list):
        for inner in node:
            _untitled(inner)


def _attribute_texts(plan: type[BaseModel]) -> dict[tuple[str, str], str]:
    """Docstrings under fields, by class and key."""
    module = inspect.getmodule(plan)
    if module is None:
        return {}
    texts = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(below):
                text = ast.literal_eval(below.value)  # type: ignore[attr-defined]
                texts[node.name, field.target.id.rstrip("_")] = " ".join(text.split())
    return texts


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
