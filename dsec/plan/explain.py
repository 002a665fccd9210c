"""What pydantic found, in the words of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from dsec.plan.locate import Fault, did_you_mean, nearest, shown

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

__all__ = ["FOREIGN", "MANY", "dotted", "faults", "keys_at", "unknown_key"]

FOREIGN: Mapping[str, str] = {
    "depends_on": "needs",
    "depends": "needs",
    "after": "needs",
    "cmd": "uses",
    "run": "uses",
    "task": "uses",
    "command": "uses",
    "script": "uses",
    "image": "uses",
    "params": "with",
    "args": "with",
    "arguments": "with",
    "kwargs": "with",
    "config": "with",
    "vars": "with",
    "deps": "inputs",
    "outs": "outputs",
    "artifacts": "outputs",
    "loop": "iterate",
    "repeat": "iterate",
    "for": "iterate",
    "foreach": "matrix",
    "strategy": "matrix",
    "if": "when",
    "runs-on": "resources.worker",
    "runs_on": "resources.worker",
    "retries": "retry",
    "timeout-minutes": "timeout",
    "jobs": "stages",
    "steps": "stages",
    "tasks": "stages",
    "pipeline": "stages",
    "version": "dsec",
    "variables": "params",
    "environment": "env",
}
"""Words of other tools, and ours."""

MANY = 200
"""Faults that are explained."""
_KINDS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "list": "a list",
    "tuple": "a list",
    "int_from_float": "a whole number",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_BOOLS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def faults(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """Faults of a validation of ``model``, each with its path from the root of what was validated.

    Of very many only the first are explained; `ValidationError.error_count` knows them all.
    """
    details = error.errors(include_url=False, include_input=True)[:MANY]
    found = [_fault(each, model) for each in details]
    meant = {(fault.at[:-1], fault.hint) for fault in found if fault.code == "unknown-key"}
    # A misspelled key is one problem, not an unknown key and a missing one.
    return [fault for fault in found if (fault.at, f"did you mean '{fault.hint[4:-3]}'?") not in meant]


def keys_at(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that a plan may have at a path below ``model``."""
    kinds = _models(model)
    for part in path:
        kinds = [inner for kind in kinds for inner in _below(kind, part)]
    fields = [item for kind in kinds if _is_model(kind) for item in kind.model_fields.items()]
    return tuple(field.alias or name for name, field in fields)


def _below(kind: Any, part: str | int) -> list[Any]:
    """What may stand below a model or a collection, at one key or index."""
    if not _is_model(kind):
        return _models(get_args(kind)[0 if isinstance(part, int) else 1])
    for name, field in kind.model_fields.items():
        if part in (name, field.alias):
            return _models(field.annotation)
    return []


def _models(annotation: Any) -> list[Any]:
    """Models and collections in an annotation, unions and metadata taken off."""
    if _is_model(annotation):
        return [annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _models(inner[0])
    if get_origin(annotation) in (Mapping, tuple):
        return [annotation]
    return [model for item in inner for model in _models(item)]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def dotted(path: tuple[str | int, ...]) -> str:
    """``stages.encode.needs[0]``."""
    text = ""
    for part in path:
        name = f"[{part}]" if isinstance(part, int) else part if len(part) <= 60 else part[:59] + "…"
        text += name if isinstance(part, int) or not text else f".{name}"
    return text


def unknown_key(key: str, words: tuple[str, ...], at: tuple[str | int, ...]) -> Fault:
    """The fault of a key that is none of ``words``."""
    place = f" in {dotted(at)}" if at else ""
    ours = FOREIGN.get(key, "")
    if ours.split(".")[0] in words:
        hint = f"did you mean '{ours}'?"
    elif nearest(key, words) or len(words) <= 12:
        hint = did_you_mean(key, words)
    else:
        hint = ""
    if "with" in words and not hint.startswith("did"):
        hint = f"an argument stands under 'with': {{{key[:40]}: …}}"
    return Fault(f"unknown key {_quoted(key)}{place}", hint, code="unknown-key", at=(*at, key), key=True)


def _quoted(key: str) -> str:
    return f"'{key}'" if key.isprintable() and len(key) <= 60 else shown(key)


def _fault(details: ErrorDetails, model: type[BaseModel]) -> Fault:
    at, key = _path(details["loc"])
    kind = details["type"]
    context: Mapping[str, Any] = details.get("ctx", {})
    error = context.get("error")
    if isinstance(error, Fault):
        return Fault(error.message, error.hint, code=error.code, at=at + error.at, key=key or error.key)
    if kind == "extra_forbidden":
        return unknown_key(str(at[-1]), keys_at(model, at[:-1]), at[:-1])
    if kind in _EXPLAINERS:
        return _EXPLAINERS[kind](at, details["input"], context)
    return _typed(kind, at, details)


def _path(loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], bool]:
    """The path as the person wrote it, and whether its last key is meant."""
    key = bool(loc) and loc[-1] == "[key]"
    return tuple(part for part in loc if part != "[key]"), key


def _missing(at: tuple[str | int, ...], _found: object, _context: Mapping[str, Any]) -> Fault:
    place = dotted(at[:-1]) or "the plan"
    return Fault(f"'{at[-1]}' is missing in {place}", f"add {at[-1]}: …", code="missing-key", at=at[:-1], key=True)


def _literal(at: tuple[str | int, ...], found: object, context: Mapping[str, Any]) -> Fault:
    expected = str(context["expected"])
    words = re.findall(r"'([^']*)'", expected)
    hint = did_you_mean(found, words) if isinstance(found, str) and words else ""
    near = hint.startswith("did you mean")
    return Fault(f"{dotted(at)} is {shown(found)}, expected {expected}", hint if near else "", at=at)


def _bound(word: str, name: str) -> Callable[[tuple[str | int, ...], object, Mapping[str, Any]], Fault]:
    def explain(at: tuple[str | int, ...], found: object, context: Mapping[str, Any]) -> Fault:
        return Fault(f"{dotted(at)} is {shown(found)}, expected {word} {context[name]:g}", at=at)

    return explain


def _short(at: tuple[str | int, ...], _found: object, _context: Mapping[str, Any]) -> Fault:
    return Fault(f"{dotted(at)} is empty, expected at least one", at=at)


def _long(at: tuple[str | int, ...], _found: object, context: Mapping[str, Any]) -> Fault:
    return Fault(f"{dotted(at)} is longer than {context['max_length']}", at=at)


_EXPLAINERS: Mapping[str, Callable[[tuple[str | int, ...], Any, Mapping[str, Any]], Fault]] = {
    "missing": _missing,
    "literal_error": _literal,
    **{kind: _bound(*words) for kind, words in _BOUNDS.items()},
    "too_short": _short,
    "string_too_short": _short,
    "too_long": _long,
    "string_too_long": _long,
}


def _typed(kind: str, at: tuple[str | int, ...], details: ErrorDetails) -> Fault:
    found = details["input"]
    expected = _KINDS.get(kind.removesuffix("_type").removesuffix("_attributes"))
    if expected is None:
        return Fault(f"{dotted(at)}: {details['msg'].lower()}", at=at)
    place = dotted(at) or "a plan"
    return Fault(f"{place} is {shown(found)}, expected {expected}", _hint(found, expected), code="wrong-type", at=at)


def _hint(found: object, expected: str) -> str:
    if found is None:
        return "a value is missing here"
    if expected == "text" and isinstance(found, int | float):
        return "put it in quotes"
    if isinstance(found, str):
        return _text_hint(found, expected)
    return ""


def _text_hint(found: str, expected: str) -> str:
    if expected == "true or false" and found.lower() in _BOOLS:
        return f"YAML 1.2 has true and false: write {_BOOLS[found.lower()]}"
    if "number" in expected and re.fullmatch(r"[+-]?[0-9][0-9_]*", found):
        plain = found.replace("_", "")
        return f"write {plain} without quotes" if plain == found else f"write {plain}"
    if expected == "a list":
        return f"write [{found}]" if re.fullmatch(r"[\w.-]{1,40}", found) else ""
    return ""
