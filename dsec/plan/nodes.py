"""The compiled form of a plan: stages as nodes with their axes known, sessions as lanes.

A node is a stage as written, resolved: what it runs, where its inputs come from, which axes its instances have.
Nothing here is expanded; `expand` turns nodes into calls, lane by lane, when they are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec.core.session import Deciding
from dsec.core.specs import AgentSpec, EnvSpec, RewardSpec
from dsec.core.stage import AnchorId, Placement
from dsec.plan.values import Expr

__all__ = [
    "AnchorHeader",
    "CallFacts",
    "Cell",
    "Lane",
    "Loop",
    "Node",
    "Position",
    "Retry",
    "Source",
    "Span",
    "StageGraph",
    "label_of",
]

Cell = Mapping[str, Any]
"""Axis name -> value, in declared order."""
Position = tuple[str, int, int, str]
"""File, line, column and the line's text: where a problem of this node is shown."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an input comes from: a reference with its names looked up."""

    kind: str
    """``stage``, ``carry``, ``init`` or ``anchor``."""
    name: str
    """Name of the stage or carry, ``agent`` or ``env`` of the beginning, or an anchor id."""
    output: str = ""
    """Output of the stage, as it is addressed: ``state@25``; for a loop the carry's name."""
    gather: tuple[str, ...] | None = None
    """Axes gathered, None for a single source."""
    reseed: bool = False
    """Whether an anchor's agent gets a stream of this session instead of going on with its own."""
    frame: int = 0
    """How many loops out the name is found; 0 is the stage's own scope."""


@dataclass(frozen=True, slots=True)
class Span:
    """``steps`` of a stage: an absolute range, its end open where ``last`` is None, or a count."""

    first: int | None
    last: int | None
    count: int | Expr | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed call is tried again; in no key."""

    max: int = 3
    backoff: float = 1.0
    """Seconds before the first retry, doubled each time."""
    when: frozenset[str] = frozenset({"worker-lost"})


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What the engine knows of a call beside its key: all of it may change without changing a result."""

    placement: Placement
    retry: Retry
    priority: int
    lane: str
    """Cell of the session, ``seed=0``; empty for a call of no session."""
    target: bool
    """Whether its outputs must exist when the run is over."""
    cache: str
    """``use``, ``refresh`` or ``off``."""
    recipe: Any
    """`dsec.core.stage.Recipe`, to be stored before the call is sent."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The ``iterate`` of a node."""

    times: int | Expr
    carry: Mapping[str, tuple[Source, Source]]
    """Name -> where it starts, which nested output follows it."""
    until: Expr | None
    nodes: tuple[Node, ...]
    """Nested stages in an order in which inputs come first."""


@dataclass(frozen=True, slots=True)
class Node:
    """One stage, compiled."""

    name: str
    path: str
    """Dotted path from the top, ``train.learn``."""
    uses: str
    """Body; empty for a loop."""
    code: str
    """Digest of the body's code."""
    specs: tuple[str, ...] = ()
    named_stream: bool = True
    is_rollout: bool = False
    config: Any = None
    """``with`` as written, values not yet evaluated."""
    config_varies: bool = False
    """Whether ``with`` reads ``item``, ``iteration`` or a stage axis, so that it differs between instances."""
    files: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Source] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    """Names in the same scope that must have ended before it starts: order only."""
    steps: Span | None = None
    outputs: tuple[tuple[str, int | None], ...] = ()
    """Declared outputs and their ``every``."""
    makes: tuple[str, ...] | None = None
    """Output names where they are known before it runs."""
    cells: tuple[Cell, ...] = ({},)
    """Its instances within one session and one iteration, in order; axes of enclosing loops are not in them."""
    session_axes: tuple[str, ...] = ()
    """Session axes of its instances; all of them where ``in_session``."""
    in_session: bool = False
    loop: Loop | None = None
    placement: Placement = field(default_factory=Placement)
    retry: Retry = Retry()
    timeout: float | None = None
    priority: int = 0
    when: Expr | None = None
    cache: str = "use"
    cache_version: str | None = None
    position: Position = ("", 0, 0, "")


@dataclass(frozen=True, slots=True)
class Lane:
    """One session, compiled."""

    index: int
    cell: Cell
    agent: AgentSpec | None
    env: EnvSpec | None
    reward: RewardSpec | None
    deciding: Deciding
    """The five fields of the session that decide its results."""
    found_by: str
    """Digest by which the session is found again."""


@dataclass(frozen=True, slots=True)
class AnchorHeader:
    """What a plan may know of an anchor that it starts from, read without its arrays."""

    kind: str
    """``agent``, ``env``, ``state`` or another."""
    next_step: int | None
    label: str = ""


@dataclass(frozen=True, slots=True)
class StageGraph:
    """A compiled plan."""

    plan: str
    nodes: tuple[Node, ...]
    """Top-level stages in an order in which inputs come first, the plan's own order among equals."""
    lanes: tuple[Lane, ...]
    """Sessions in matrix order."""
    session_axes: tuple[str, ...]
    params: Mapping[str, Any]
    classes: Mapping[str, str | None]
    """Runtime class by kind of worker; None where it is not known yet."""
    anchors: Mapping[AnchorId, AnchorHeader] = field(default_factory=dict)
    bundle: str | None = None
    salt: str = ""
    """Identity of the run, for stages that are not cached."""


_ESCAPES = str.maketrans({c: f"%{ord(c):02X}" for c in "%/@#=,*[]?"})


def label_of(cell: Cell) -> str:
    """``segment=s01,seed=0``, with the characters that mean something in names percent-escaped."""
    return ",".join([f"{name}={str(value).translate(_ESCAPES)}" for name, value in cell.items()]) if cell else ""
