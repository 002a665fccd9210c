"""References: what an input, a carry or an order is taken from.

======================== ==========================================================
``stage``                the stage: its only output, or its ``state``
``stage.output``         an output of a stage, of the cell the reader is in
``stage[*].output``      a list over every axis, in matrix order
``stage[seed=*].output`` a list over one axis (several: ``[seed=*, shard=*]``)
``stage.state@25``       a declared output after step 25
``train.agent``          of a loop: its last carry of that name
``carry.name``           inside a loop: the current value
``init.agent``           the session's beginning: ``init.agent`` or ``init.env``
``anchor:<64 hex>``      something stored
======================== ==========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsec.core.stage import AnchorId
from dsec.plan.locate import Fault, did_you_mean, shown

__all__ = [
    "EVERY",
    "NAME",
    "RESERVED",
    "CarryRef",
    "InitRef",
    "Reference",
    "ReferenceFault",
    "StageRef",
    "StoredRef",
    "parse",
]

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Names of stages, axes, carries and outputs."""
RESERVED = ("anchor", "carry", "init")
"""Names that a stage can't have, because references begin with them."""
EVERY: tuple[str, ...] = ("*",)
"""`StageRef.gather` of ``[*]``."""


class ReferenceFault(Fault):
    """A text that is no reference; ``hint`` says what was likely meant."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, code="bad-reference")


@dataclass(frozen=True, slots=True)
class StageRef:
    """An output of a stage, or of a loop."""

    stage: str
    """Name in the reader's own group of stages or in one around it."""
    output: str | None = None
    """None where only the stage is named."""
    gather: tuple[str, ...] | None = None
    """Axes to gather, `EVERY` for all; None takes the reader's own cell."""
    at: int | None = None
    """The step after which it was declared, ``state@25``."""

    def __str__(self) -> str:
        axes = ", ".join(axis if axis == "*" else f"{axis}=*" for axis in self.gather or ())
        gather = f"[{axes}]" if self.gather is not None else ""
        output = f".{self.output}" if self.output is not None else ""
        return f"{self.stage}{gather}{output}{'' if self.at is None else f'@{self.at}'}"

    @property
    def name(self) -> str | None:
        """Name of the output as results have it: ``state@25``."""
        return self.output if self.at is None else f"{self.output}@{self.at}"


@dataclass(frozen=True, slots=True)
class CarryRef:
    """The current value of a carry of the loop around the reader."""

    name: str

    def __str__(self) -> str:
        return f"carry.{self.name}"


@dataclass(frozen=True, slots=True)
class InitRef:
    """The session's beginning."""

    what: str
    """``agent`` or ``env``."""

    def __str__(self) -> str:
        return f"init.{self.what}"


@dataclass(frozen=True, slots=True)
class StoredRef:
    """An anchor by its id."""

    anchor_id: AnchorId
    reseed: bool = False
    """Whether its random streams begin anew instead of going on as stored."""

    def __str__(self) -> str:
        return f"anchor:{self.anchor_id}"


Reference = StageRef | CarryRef | InitRef | StoredRef
"""Any reference, parsed."""

_STAGE = re.compile(
    r"(?P<stage>[^.\[\]@\s]+)\s*(?:\[(?P<axes>[^\[\]]*)\])?(?:\.(?P<output>[^.\[\]@\s]+))?(?:@(?P<at>[0-9]{1,18}))?"
)
_HEX = re.compile("[0-9a-f]{64}")
_FORMS = "stage, stage.output, stage[*].output, stage[seed=*].output, carry.name, init.agent or anchor:<id>"


def parse(text: str) -> Reference:
    """Read a reference.

    Raises
    ------
    ReferenceFault
        If the text has none of the forms above.
    """
    source = text.strip()
    head, _, rest = source.partition(".")
    if source.startswith("anchor:"):
        return _stored(source.removeprefix("anchor:"))
    if head == "carry":
        return CarryRef(_name(rest, "a carry", "carry.agent"))
    if head == "init":
        if rest not in ("agent", "env"):
            raise ReferenceFault(f"{shown(text)} is not the beginning of a session", "init.agent or init.env")
        return InitRef(rest)
    return _stage(source)


def _stored(name: str) -> StoredRef:
    if not _HEX.fullmatch(name):
        raise ReferenceFault(f"{shown(name)} is not an anchor id", "anchor: is followed by 64 characters 0-9 a-f")
    return StoredRef(AnchorId(name))


def _stage(source: str) -> StageRef:
    found = _STAGE.fullmatch(source)
    if not found:
        raise _no_reference(source)
    output, at = found["output"], found["at"]
    stage = _name(found["stage"], "a stage", "collect.batch")
    if output is not None:
        _name(output, "an output", "collect.batch")
    if at is not None and output is None:
        raise ReferenceFault(f"{shown(source)} names a step of no output", f"write {stage}.state@{at}")
    gather = None if found["axes"] is None else _axes(found["axes"], source)
    return StageRef(stage, output, gather, None if at is None else int(at))


def _no_reference(source: str) -> ReferenceFault:
    if source.count(".") > 1:
        hint = "a stage inside a loop is seen from outside through the loop's carry alone: train.agent"
        return ReferenceFault(f"{shown(source)} refers into a loop", hint)
    return ReferenceFault(f"{shown(source)} is not a reference", f"write {_FORMS}")


def _axes(text: str, source: str) -> tuple[str, ...]:
    if text.strip() == "*":
        return EVERY
    axes = []
    for part in text.split(","):
        axis, equals, star = (word.strip() for word in part.partition("="))
        if not equals or star != "*" or not NAME.fullmatch(axis):
            raise ReferenceFault(f"{shown(source)} gathers no axis", "write [*] for every axis or [seed=*] for one")
        axes.append(axis)
    if len(set(axes)) < len(axes):
        raise ReferenceFault(f"{shown(source)} names an axis twice", "name each axis once")
    return tuple(axes)


def _name(text: str, what: str, example: str) -> str:
    if NAME.fullmatch(text):
        return text
    folded = text.lower().replace("-", "_")
    hint = did_you_mean(text, [folded]) if NAME.fullmatch(folded) else f"for example {example}"
    raise ReferenceFault(f"{shown(text)} is not the name of {what}: lower-case letters, digits and _", hint)
