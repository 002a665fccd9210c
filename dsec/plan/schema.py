"""The execution plan as people write it: one frozen class per part, and the JSON Schema made from them.

Wherever a scalar stands, a ``${{ }}`` may stand; it is kept as an `Expr` and the type is checked once it has a
value (`settle`). Units are seconds and bytes here. Nothing in this module reads a file or knows a position.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from dsec.plan import explain, reference, values
from dsec.plan.kinds import (
    AXIS_JSON,
    AnyAxis,
    Axis,
    AxisName,
    Bytes,
    CarryName,
    CodeName,
    Condition,
    Config,
    DeclaredFile,
    EnvName,
    Files,
    Numerics,
    OneOrMore,
    OrExpr,
    OutputName,
    Positive,
    Ref,
    Seconds,
    Short,
    StageName,
    StepRange,
    words,
)
from dsec.plan.locate import NOWHERE, Fault, shown
from dsec.plan.units import Steps
from dsec.plan.values import Expr

__all__ = [
    "FORMAT",
    "AgentSource",
    "Axis",
    "Cache",
    "Carry",
    "Curriculum",
    "DeclaredFile",
    "Defaults",
    "EnvSource",
    "Excluded",
    "ExecutionPlan",
    "Iterate",
    "Level",
    "Matrix",
    "OnSlow",
    "OrExpr",
    "Output",
    "Resources",
    "Retry",
    "RewardSource",
    "Scheduler",
    "Service",
    "SessionLifecycle",
    "SessionSource",
    "Stage",
    "Steps",
    "Tool",
    "expressions_of",
    "json_schema",
    "parameters",
    "settle",
]

FORMAT = 1
"""The plan format that this DSec reads."""

Part = TypeVar("Part", bound="_Part")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Resources(_Part):
    """A resource profile: what a call asks of a worker and of its host; in no key."""

    worker: OrExpr[Literal["cpu", "gpu"]] = "cpu"
    """Kind of worker."""
    cpu: OrExpr[Annotated[float, Field(gt=0, le=1e6)]] = 1.0
    """Cores of the host."""
    gpu: OrExpr[Annotated[float, Field(ge=0, le=1e6)]] | None = None
    """Devices; None is 1 for a gpu worker, else 0."""
    memory: OrExpr[Bytes] = 0
    """Bytes of the host, ``4GiB``; 0 asks for none."""
    vram: OrExpr[Bytes] = 0
    """Bytes of the device; an emulated gpu ignores it."""
    labels: OneOrMore = ()
    """Labels that a worker must have."""


def _profile(value: object) -> object:
    if isinstance(value, str | Mapping | Resources):
        return value
    raise Fault(f"resources are the name of a profile or a mapping, not {shown(value)}", code="wrong-type")


class _Profile:
    """A profile by name or in place, told apart by type so that errors speak of one form only."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        part = handler(Resources)

        def check(value: Any, inner: Any) -> Any:
            _profile(value)
            return value if isinstance(value, str) else inner(value)

        return core_schema.no_info_wrap_validator_function(check, part)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


Profile = Annotated[str | Resources, _Profile()]


class Retry(_Part):
    """How often a failed call is tried again; in no key."""

    max: OrExpr[Annotated[int, Field(ge=0, le=1000)]]
    """Tries after the first."""
    backoff: OrExpr[Seconds] = 1.0
    """Seconds before the first retry, doubled each time."""
    when: Annotated[
        tuple[Literal["worker-lost", "timeout", "oom", "error"], ...], Field(strict=False), BeforeValidator(words)
    ] = ("worker-lost", "timeout", "oom")
    """The kinds of failure that are tried again."""


class Cache(_Part):
    """Whether results are looked up and kept; ``version`` is in the key."""

    mode: Literal["use", "refresh", "off"] = "use"
    version: OrExpr[str] | None = None
    """Changed by hand where the code alone does not say that results changed."""


def _cache(value: object) -> object:
    if isinstance(value, bool):
        return {"mode": "use" if value else "off"}
    if isinstance(value, Mapping | Cache):
        return value
    raise Fault(f"cache is true, false or {{mode, version}}, not {shown(value)}", code="wrong-type")


CacheRule = Annotated[Cache, Short(_cache, {"type": "boolean"})]


def _uses_alone(value: object) -> object:
    if isinstance(value, str | Expr):
        return {"uses": value}
    if isinstance(value, Mapping | _Part):
        return value
    raise Fault(f"expected package.module:name, a spec file or a mapping, not {shown(value)}", code="wrong-type")


_USES_SHORT = Short(_uses_alone, {"type": "string"})


class Tool(_Part):
    """A tool that an agent may call."""

    uses: OrExpr[CodeName]
    with_: Config = Field(default={}, alias="with")
    blocking: bool = True
    """Whether the step waits for the answer."""
    timeout: OrExpr[Seconds] | None = None


class AgentSource(_Part):
    """What builds an agent: inline, or in a file ``*.agent.yaml``."""

    uses: OrExpr[CodeName]
    """``package.module:name``."""
    with_: Config = Field(default={}, alias="with")
    """Arguments, JSON-able."""
    files: Files = {}
    """Files it may read, by the name it asks for."""
    vectorized: bool | None = None
    """Whether one call steps ``num_envs`` environments."""
    deterministic_mode: bool | None = None
    provenance: Literal["required", "optional"] | None = None
    resource_profile: Profile | None = None
    """Resources of stages that run this agent and name none."""
    tools: Mapping[str, Tool] | None = None


class EnvSource(_Part):
    """What builds an environment: inline, or in a file ``*.env.yaml``."""

    uses: OrExpr[EnvName]
    """``package.module:name`` or ``gymnasium/<id>``."""
    with_: Config = Field(default={}, alias="with")
    num_envs: OrExpr[Annotated[int, Field(ge=1, le=1_000_000)]] | None = None
    """Environments stepped together; None is one without a leading axis."""
    files: Files = {}


class RewardSource(_Part):
    """A pure reward function."""

    uses: OrExpr[CodeName]
    with_: Config = Field(default={}, alias="with")
    services: OneOrMore = ()
    """Services it asks."""
    files: Files = {}


class SessionSource(_Part):
    """What the agent interacts with, and from which seed."""

    agent: Annotated[AgentSource, _USES_SHORT] | None = None
    env: Annotated[EnvSource, _USES_SHORT] | None = None
    reward: Annotated[RewardSource, _USES_SHORT] | None = None
    """None is the environment's own reward."""
    seed: OrExpr[Annotated[int, Field(ge=0, lt=2**63)]] = 0
    """Root of all random streams."""
    max_steps: OrExpr[Positive] | None = None
    """Steps are 0 to max_steps - 1; None sets no horizon."""


Cells = Annotated[tuple[Mapping[str, Any], ...], Field(strict=False)]


class Matrix(_Part):
    """Axes by name in declared order; the last one is the fastest."""

    axes: Mapping[AxisName, AnyAxis] = {}
    include: Cells = ()
    """Whole cells, appended last."""
    exclude: Cells = ()
    """Cells that match all the named values are dropped."""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        axes = {name: axis for name, axis in raw.items() if name not in ("include", "exclude")}
        return {"axes": axes, **{name: raw[name] for name in ("include", "exclude") if name in raw}}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        cells = {"type": "array", "items": {"type": "object"}}
        return {
            "type": "object",
            "description": "Axes by name in declared order; the last one is the fastest.",
            "properties": {"include": cells, "exclude": cells},
            "patternProperties": {f"^{reference.NAME.pattern}$": AXIS_JSON},
            "additionalProperties": False,
        }


class Excluded:
    """Cells that ``exclude`` drops; a cell is looked up once for each set of axes that is named, not for each entry."""

    def __init__(self, drops: Iterable[Mapping[str, Any]]) -> None:
        self.drops: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for drop in drops:
            names = tuple(sorted(drop))
            self.drops.setdefault(names, set()).add(tuple(str(drop[name]) for name in names))

    def __contains__(self, cell: Mapping[str, Any]) -> bool:
        return any(
            all(name in cell for name in names) and tuple(str(cell[name]) for name in names) in dropped
            for names, dropped in self.drops.items()
        )


class OnSlow(_Part):
    """What to do when a service's smoothed latency is above a bound."""

    above: OrExpr[Seconds]
    then: Literal["deferred"] = "deferred"


class Service(_Part):
    """Something outside that stages or rewards ask: budgeted, journaled, replayed."""

    uses: OrExpr[CodeName]
    with_: Config = Field(default={}, alias="with")
    qps_budget: OrExpr[Annotated[float, Field(gt=0, le=1e9)]] | None = None
    """Requests a second over the whole cluster."""
    timeout: OrExpr[Seconds] | None = None
    on_slow: OnSlow | None = None
    files: Files = {}


class Level(_Part):
    """One level of a curriculum."""

    name: OrExpr[str]
    with_: Config = Field(default={}, alias="with")


class Curriculum(_Part):
    """Levels, promotion at a success rate over a window, demotion while rewards lag."""

    levels: Annotated[tuple[Level, ...], Field(strict=False, min_length=1)]
    promote_at: OrExpr[Annotated[float, Field(ge=0, le=1)]]
    """Success rate over ``window`` episodes."""
    window: OrExpr[Positive]
    """Episodes."""
    demote_when_reward_lag: OrExpr[Positive] | None = None
    """Steps."""


class SessionLifecycle(_Part):
    """Bounds of what the engine does to keep a session going."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3


class Scheduler(_Part):
    """When and where calls run; never what they give."""

    scheduling_policy: Literal["fifo", "round_robin", "reward_variance_aware"] = "fifo"
    reward_variance_window: Positive = 100
    """Episodes."""
    curriculum_aware_placement: bool = True
    curriculum_transition_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    anchor_sync_timeout_ms: Positive = 1000
    anchor_retry_count: Annotated[int, Field(ge=0, le=1000)] = 3
    session_lifecycle: SessionLifecycle = SessionLifecycle()
    resource_overcommit_ratio: Annotated[float, Field(ge=1, le=100)] = 1.2
    stuck_after: Seconds | None = None
    window_per_slot: Positive | None = None


class Defaults(_Part):
    """What stages have that say nothing else."""

    resources: Profile | None = None
    retry: Retry | None = None
    timeout: OrExpr[Seconds] | None = None
    cache: CacheRule | None = None
    numerics: OrExpr[Numerics] | None = None


class Output(_Part):
    """An output of a stage, and which of its states can be referred to."""

    every: OrExpr[Positive] | None = None
    """``stage.state@25`` after each step index above 0 that it divides, and at the end."""
    keep: OrExpr[Positive] | None = None
    """How many of them are retained."""
    tags: OneOrMore = ()
    at: Annotated[
        tuple[Literal["episode-start", "tool-return", "feedback"], ...], Field(strict=False), BeforeValidator(words)
    ] = ()
    """Events after which it can be referred to."""


def _output(value: object) -> object:
    return {} if value is None else value


class Carry(_Part):
    """What an iteration hands to the next one."""

    from_: Ref = Field(alias="from")
    """The value before the first iteration."""
    next: Ref
    """The output of a nested stage that follows it."""


class Iterate(_Part):
    """A loop around nested stages."""

    times: OrExpr[Positive]
    carry: Mapping[CarryName, Carry] = {}
    until: Condition | None = None
    """Ends the loop after the first iteration for which it is true."""


class Stage(_Part):
    """One stage: a body, or a loop around nested stages."""

    uses: OrExpr[CodeName] | None = None
    """Body, ``package.module:function``."""
    with_: Config = Field(default={}, alias="with")
    """Static arguments, JSON-able."""
    needs: OneOrMore = ()
    """Stages that must have ended before: order only."""
    inputs: Mapping[str, Ref] = {}
    """Argument name -> reference."""
    outputs: Mapping[OutputName, Annotated[Output, Short(_output, {"type": "null"})]] = {}
    steps: OrExpr[StepRange] | None = None
    """``0-100``, ``501-``, or a count that continues the lane."""
    matrix: Matrix | None = None
    """Axes added inside the session."""
    iterate: Iterate | None = None
    stages: Mapping[StageName, Stage] | None = None
    """Nested stages of ``iterate``."""
    resources: Profile | None = None
    numerics: OrExpr[Numerics] | None = None
    services: OneOrMore = ()
    """Top-level services that it may ask."""
    cache: CacheRule | None = None
    retry: Retry | None = None
    timeout: OrExpr[Seconds] | None = None
    """Seconds until a call counts as hung."""
    priority: OrExpr[Annotated[int, Field(ge=-1000, le=1000)]] = 0
    """Higher goes first."""
    when: Condition | None = None
    """A call whose condition is false is skipped."""
    files: Files = {}
    """Files it may read, by the name it asks for."""


class ExecutionPlan(_Part):
    """A plan as written. Keys ``x-*`` are free and left out here."""

    dsec: Literal[1]
    """Number of the format."""
    name: str = Field(min_length=1, max_length=200)
    description: str = ""
    params: Config = {}
    """Values that ``-p name=value`` can override; each may read those above it."""
    session: SessionSource | None = None
    matrix: Matrix | None = None
    """One session per cell."""
    services: Mapping[str, Service] = {}
    curriculum: Curriculum | None = None
    resources: Mapping[str, Resources] = {}
    """Resource profiles by name."""
    scheduler: Scheduler | None = None
    defaults: Defaults = Defaults()
    stages: Annotated[Mapping[StageName, Stage], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _leave_free_keys(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        return {key: value for key, value in raw.items() if not (isinstance(key, str) and key.startswith("x-"))}


def settle(part: Part, scope: Mapping[str, object], fields: Collection[str] | None = None) -> Part:
    """The same part with the expressions in ``fields`` evaluated and their types checked.

    Parameters
    ----------
    fields
        Attribute names, ``with_`` for ``with``; None for all of them.

    Raises
    ------
    values.ExprError
        If an expression has no value, or a value that can't stand there; ``span`` is the expression's place.
    """
    cls = type(part)
    raw, places = _raw(part), {}
    for name in part.model_fields_set:
        if name in _LATE or (fields is not None and name not in fields):
            continue
        value = getattr(part, name)
        first = next(expressions_of(value), None)
        if first is not None:
            alias = cls.model_fields[name].alias or name
            raw[alias], places[alias] = _settled(value, scope), first.span
    if not places:
        return part
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        fault = explain.faults(error, cls)[0]
        span = places.get(str(fault.at[0]), NOWHERE) if fault.at else NOWHERE
        raise values.ExprError(fault.message, hint=fault.hint, span=span) from None


_MAX_MADE = 100_000
_LATE = ("until", "when", "stages", "matrix")
"""Fields whose expressions have no value before a stage is reached, or a value of their own for each cell."""


def _raw(part: _Part) -> dict[str, Any]:
    fields = type(part).model_fields
    return {fields[name].alias or name: getattr(part, name) for name in fields if name in part.model_fields_set}


def expressions_of(value: object) -> Iterator[Expr]:
    """Every expression in a part or in plain values; conditions, matrices and nested stages are left out."""
    if isinstance(value, _Part):
        for name in value.model_fields_set.difference(_LATE):
            yield from expressions_of(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from expressions_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from expressions_of(item)
    elif isinstance(value, Expr):
        yield value


def _settled(value: Any, scope: Mapping[str, object]) -> Any:
    if isinstance(value, _Part):
        return settle(value, scope)
    if isinstance(value, Mapping):
        return {key: _settled(item, scope) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_settled(item, scope) for item in value]
    return values.evaluate(value, scope) if isinstance(value, Expr) else value


def parameters(plan: ExecutionPlan) -> dict[str, Any]:
    """The plan's params, each evaluated with those above it.

    Raises
    ------
    values.ExprError
        If an expression in a param has no value.
    """
    params: dict[str, Any] = {}
    made = 0
    for name, value in plan.params.items():
        params[name] = values.evaluated(value, {"params": params})
        first = next(values.expressions(value), None)
        made += values.count(params[name]) if first is not None else 0
        if first is not None and made > _MAX_MADE:
            raise values.ExprError(f"expressions of params give more than {_MAX_MADE} values", span=first.span)
    return params


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a plan file, for editors."""
    from dsec.plan import editor

    return editor.json_schema(ExecutionPlan)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")
