"""Kinds of values in a plan: expressions in place of scalars, names, units, references, axes, declared files.

Each kind checks itself and says what was expected; `schema` puts them together.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from dsec.plan import reference, units, values
from dsec.plan.locate import NOWHERE, Fault, did_you_mean, shown
from dsec.plan.reference import Reference
from dsec.plan.units import Steps
from dsec.plan.values import Expr

__all__ = [
    "AXIS_JSON",
    "EXPR_JSON",
    "MAX_CELLS",
    "AnyAxis",
    "Axis",
    "AxisName",
    "Bytes",
    "CarryName",
    "CodeName",
    "Condition",
    "Config",
    "DeclaredFile",
    "EnvName",
    "Files",
    "Numerics",
    "OneOrMore",
    "OrExpr",
    "OutputName",
    "Positive",
    "Ref",
    "Seconds",
    "Short",
    "StageName",
    "StepRange",
    "with_digests",
    "words",
]

T = TypeVar("T")

MAX_CELLS = 100_000
"""Values of one axis."""

EXPR_JSON = {"type": "string", "pattern": r"^\s*\$\{\{[\s\S]*\}\}\s*$", "description": "a value: ${{ expression }}"}


class _Expression:
    """Lets an `Expr` through in place of the value it will have."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = [kind for kind in get_args(source) if kind is not Expr]
        inner = handler(kinds[0] if len(kinds) == 1 else _union(kinds))
        return core_schema.no_info_wrap_validator_function(_keep_expression, inner)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), EXPR_JSON]}


def _union(kinds: Sequence[Any]) -> Any:
    joined = kinds[0]
    for kind in kinds[1:]:
        joined = joined | kind
    return joined


def _keep_expression(value: Any, handler: Any) -> Any:
    return value if isinstance(value, Expr) else handler(value)


OrExpr = Annotated[T | Expr, _Expression()]
"""A value, or the expression that gives it."""


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """A file that a plan names: hashed when the plan is loaded."""

    name: str
    """As written: what ``ctx.file`` is asked for."""
    path: Path
    """Where it is."""
    digest: str
    """Digest of its content."""
    size: int
    """Bytes."""

    def to_json(self) -> dict[str, str]:
        """How it stands in a configuration, and so in keys: by name and content, never by path."""
        return {"file": self.name, "digest": self.digest}


def with_digests(tree: Any) -> Any:
    """A copy of plain values in which every declared file stands by name and digest."""
    if isinstance(tree, DeclaredFile):
        return tree.to_json()
    if isinstance(tree, Mapping):
        return {key: with_digests(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [with_digests(item) for item in tree]
    return tree


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of one axis of a matrix, in one of three forms."""

    values: tuple[Any, ...] | Expr | None = None
    """The values (a list as written, or a column of a CSV file), or the expression that gives the list."""
    range: int | Expr | None = None
    """The values 0 to n-1."""
    file: str | None = None
    """The CSV file that the values were read from, as written."""
    column: str | None = None

    def cells(self, scope: Mapping[str, object]) -> tuple[Any, ...]:
        """The values, expressions evaluated.

        Raises
        ------
        values.ExprError
            If an expression has no value, or gives something that is no list of numbers and texts.
        """
        if self.range is not None:
            return self._counted(scope)
        source = self.values
        found = values.evaluated(list(source) if isinstance(source, tuple) else source, scope)
        span = source.span if isinstance(source, Expr) else NOWHERE
        if not isinstance(found, list):
            raise values.ExprError(f"an axis is a list, not {shown(found)}", span=span)
        try:
            return tuple(_axis_value(value, index) for index, value in enumerate(found))
        except Fault as fault:
            raise values.ExprError(fault.message, hint=fault.hint, span=span) from None

    def _counted(self, scope: Mapping[str, object]) -> tuple[int, ...]:
        if isinstance(self.range, Expr):
            try:
                return tuple(range(_range_bound(values.evaluate(self.range, scope))))
            except Fault as fault:
                raise values.ExprError(fault.message, hint=fault.hint, span=self.range.span) from None
        return tuple(range(self.range or 0))


def _axis(value: object) -> Axis:
    if isinstance(value, Axis):
        return value
    if isinstance(value, Expr):
        return Axis(values=value)
    if isinstance(value, list):
        return Axis(values=tuple(_axis_value(item, index) for index, item in enumerate(value)))
    if not isinstance(value, Mapping):
        forms = "write a list, {range: n}, or {file: data.csv, column: name}"
        raise Fault(f"an axis is a list of values, not {shown(value)}", forms, code="wrong-type")
    for key in value:
        if key not in ("range", "file", "column"):
            hint = did_you_mean(key, ("range", "file", "column"))
            raise Fault(f"unknown key '{key}' in an axis", hint, code="unknown-key", at=(key,), key=True)
    if set(value) != {"range"}:
        hint = "write {range: n}, or {file: data.csv, column: name}"
        raise Fault("an axis has either range, or file and column", hint, code="missing-key")
    bound = value["range"]
    return Axis(range=bound if isinstance(bound, Expr) else _range_bound(bound, at=("range",)))


def _range_bound(value: object, at: tuple[str | int, ...] = ()) -> int:
    if type(value) is not int or not 0 < value <= MAX_CELLS:
        code = "wrong-value" if type(value) is int else "wrong-type"
        raise Fault(f"range is a whole number from 1 to {MAX_CELLS}, not {shown(value)}", at=at, code=code)
    return value


def _axis_value(value: object, index: int) -> object:
    if not isinstance(value, str | int | float | Expr):
        message = f"a value of an axis is a number, a text, true or false, not {shown(value)}"
        raise Fault(message, code="wrong-type", at=(index,))
    return value


def _named(what: str) -> AfterValidator:
    def check(name: str) -> str:
        if name in reference.RESERVED:
            raise Fault(f"{what} can't be called '{name}'", "references begin with this word", code="bad-name")
        if not reference.NAME.fullmatch(name) or len(name) > 100:
            hint = "lower-case letters, digits and _, a letter first"
            raise Fault(f"{shown(name)} can't be the name of {what}", hint, code="bad-name")
        return name

    return AfterValidator(check)


_NAME_JSON = WithJsonSchema({"type": "string", "pattern": f"^{reference.NAME.pattern}$"})
StageName = Annotated[str, _named("a stage"), _NAME_JSON]
AxisName = Annotated[str, _named("an axis"), _NAME_JSON]
CarryName = Annotated[str, _named("a carry"), _NAME_JSON]
OutputName = Annotated[str, _named("an output"), _NAME_JSON]

_MODULE = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_CODE = re.compile(rf"{_MODULE}:{_MODULE}")
# A registered id may have slashes and dashes: `gymnasium/ALE/Pong-v5`, `minigrid:MiniGrid-Empty-5x5-v0`.
_ENV = re.compile(rf"gymnasium/(?:{_MODULE}:)?[\w./-]+|{_MODULE}:[^\W\d][\w./-]*")


def _code_name(text: str) -> str:
    if _CODE.fullmatch(text):
        return text
    hint = _colon(text) or "for example examples.ppo:PPO"
    if text.endswith(".py"):
        hint = "name the module, not the file: package.module:name"
    raise Fault(f"{shown(text)} is not package.module:name", hint)


def _colon(text: str) -> str:
    head, _, tail = text.rpartition(".")
    return f"did you mean '{head}:{tail}'?" if _CODE.fullmatch(f"{head}:{tail}") else ""


def _env_name(text: str) -> str:
    if _ENV.fullmatch(text):
        return text
    if re.fullmatch(r"[A-Za-z][\w-]*-v\d+|ALE/[\w-]+", text):
        raise Fault(f"{shown(text)} is not an environment", f"did you mean 'gymnasium/{text}'?")
    hint = "for example gymnasium/CartPole-v1 or dsec_envs.pixel_shop:PixelShop"
    raise Fault(f"{shown(text)} is not package.module:name, nor gymnasium/<id>", _colon(text) or hint)


CodeName = Annotated[str, AfterValidator(_code_name)]
EnvName = Annotated[str, AfterValidator(_env_name)]
Seconds = Annotated[float, BeforeValidator(units.seconds), WithJsonSchema({"type": ["string", "number"]})]
Bytes = Annotated[int, BeforeValidator(units.size), WithJsonSchema({"type": ["string", "integer"]})]
Positive = Annotated[int, Field(ge=1, le=units.MAX_STEP)]
Share = Annotated[float, Field(ge=0)]
_STEPS_JSON = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\s*\d+\s*-\s*\d*\s*$"}]}
StepRange = Annotated[Steps, PlainValidator(units.steps), WithJsonSchema(_STEPS_JSON)]


def words(value: object) -> object:
    """One word where a list of words may stand."""
    return [value] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], Field(strict=False)]
_ONE_OR_MORE = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
OneOrMore = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(words), WithJsonSchema(_ONE_OR_MORE)]


def _numerics(text: str) -> str:
    levels = ("recorded", "strict", "class", "portable", "tolerance(x)")
    if text in levels[:-1] or re.fullmatch(r"tolerance\([0-9.]{1,20}(?:e-?[0-9]{1,3})?\)", text):
        return text
    raise Fault(f"unknown numerics {shown(text)}", did_you_mean(text, levels))


Numerics = Annotated[str, AfterValidator(_numerics)]


def _reference(value: object) -> Reference:
    if isinstance(value, reference.StageRef | reference.CarryRef | reference.InitRef | reference.StoredRef):
        return value
    if isinstance(value, str):
        return reference.parse(value)
    if isinstance(value, Mapping):
        return _reseeded(value)
    hint = "write stage.output, carry.name, init.agent or anchor:<id>"
    if isinstance(value, Expr):
        hint = "${{ }} takes values only; write the reference out"
    raise Fault(f"{shown(value)} is not a reference", hint, code="bad-reference")


def _reseeded(value: Mapping[str, object]) -> Reference:
    for key in value:
        if key not in ("from", "reseed"):
            hint = did_you_mean(key, ("from", "reseed"))
            raise Fault(f"unknown key '{key}' in a reference", hint, code="unknown-key", at=(key,), key=True)
    source, reseed = value.get("from"), value.get("reseed", False)
    if not isinstance(source, str):
        raise Fault(
            "a reference as a mapping has 'from'", "write {from: anchor:<id>, reseed: true}", code="missing-key"
        )
    try:
        found = reference.parse(source)
    except Fault as fault:
        raise Fault(fault.message, fault.hint, code=fault.code, at=("from",)) from None
    if not isinstance(reseed, bool):
        raise Fault(f"reseed is true or false, not {shown(reseed)}", code="wrong-type", at=("reseed",))
    if not isinstance(found, reference.StoredRef):
        hint = f"write the reference alone: {source}"
        raise Fault("only an anchor can be reseeded", hint, code="bad-reference", at=("from",))
    return reference.StoredRef(found.anchor_id, reseed)


_REFERENCE_JSON = {
    "anyOf": [
        {"type": "string", "examples": ["train.agent", "eval[*].score", "carry.agent", "init.env"]},
        {
            "type": "object",
            "properties": {"from": {"type": "string"}, "reseed": {"type": "boolean"}},
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}
Ref = Annotated[Reference, PlainValidator(_reference), WithJsonSchema(_REFERENCE_JSON)]


def _declared(value: object) -> DeclaredFile:
    if isinstance(value, DeclaredFile):
        return value
    raise Fault(f"{shown(value)} is not the path of a file", "a path, relative to this file", code="wrong-type")


_FILES_JSON = {
    "anyOf": [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ]
}
File = Annotated[DeclaredFile, PlainValidator(_declared), WithJsonSchema({"type": "string"})]
Files = Annotated[Mapping[str, File], WithJsonSchema(_FILES_JSON)]
Config = Mapping[str, Any]


AXIS_JSON = {
    "anyOf": [
        {"type": "array"},
        {
            "type": "object",
            "properties": {"range": {"anyOf": [{"type": "integer", "minimum": 1}, EXPR_JSON]}},
            "required": ["range"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"file": {"type": "string"}, "column": {"type": "string"}},
            "required": ["file", "column"],
            "additionalProperties": False,
        },
        EXPR_JSON,
    ]
}
AnyAxis = Annotated[Axis, PlainValidator(_axis), WithJsonSchema(AXIS_JSON)]


def _condition(value: object) -> Expr:
    if isinstance(value, Expr):
        return value
    hint = "write ${{ metrics.stage.name > 1 }}"
    if isinstance(value, str):
        with contextlib.suppress(values.ExprError):
            hint = f"did you mean '{values.parse(f'${{{{ {value} }}}}')}'?"
    raise Fault(f"a condition is an expression, not {shown(value)}", hint, code="wrong-type")


Condition = Annotated[Expr, PlainValidator(_condition), WithJsonSchema(EXPR_JSON)]


class Short:
    """A part that has a short form, told apart by type."""

    def __init__(self, expand: Any, json: Mapping[str, Any]) -> None:
        self.expand = expand
        self.json = json

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [dict(self.json), handler(schema)]}
