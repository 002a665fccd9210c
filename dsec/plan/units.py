"""Units at the edge: seconds, bytes and step ranges as people write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dsec.plan.locate import Fault, did_you_mean, shown
from dsec.plan.values import Expr

__all__ = ["MAX_STEP", "Steps", "seconds", "size", "steps"]

MAX_STEP = 2**53
"""Bound of steps and counts."""

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,10})")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_BYTES |= {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_RANGE = re.compile(r"([0-9]{1,17})\s*-\s*([0-9]{1,17})?")


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a stage as written: a range, an open range, or a count that continues the lane."""

    first: int | None = None
    """First absolute step; None for a count."""
    last: int | None = None
    """Last absolute step, inclusive; None for an open range and for a count."""
    count: int | Expr | None = None
    """How many steps from where the lane is; None for a range."""

    def __str__(self) -> str:
        if self.count is not None:
            return str(self.count)
        return f"{self.first}-{'' if self.last is None else self.last}"


def seconds(value: object) -> float:
    """Seconds of ``200ms``, ``2s``, ``5min``, ``1h``, ``1d`` or a bare number.

    Raises
    ------
    Fault
        If the value is no duration, or is negative.
    """
    amount, unit = _quantity(value, "a duration", "200ms, 2s, 5min, 1h")
    if not unit:
        return amount
    if unit not in _SECONDS:
        raise Fault(f"{shown(value)} has an unknown unit '{unit}'", _unit_hint(unit, _SECONDS))
    return amount * _SECONDS[unit]


def size(value: object) -> int:
    """Bytes of ``4GiB``, ``512MiB``, ``1GB`` or a bare whole number.

    Raises
    ------
    Fault
        If the value is no size, or not a whole number of bytes.
    """
    amount, unit = _quantity(value, "a size", "4GiB, 512MiB")
    if unit and unit not in _BYTES:
        raise Fault(f"{shown(value)} has an unknown unit '{unit}'", _unit_hint(unit, _BYTES))
    total = amount * _BYTES[unit or "B"]
    if total != int(total):
        raise Fault(f"{shown(value)} is not a whole number of bytes")
    return int(total)


def _unit_hint(unit: str, units: dict[str, float] | dict[str, int]) -> str:
    binary = {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}.get(unit.lower().removesuffix("i"))
    if binary in units:
        return f"did you mean '{binary}'?"
    long = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "hour": "h", "hours": "h", "minutes": "min"}
    if unit.lower() in long and "s" in units:
        return f"did you mean '{long[unit.lower()]}'?"
    return did_you_mean(unit, units)


def _quantity(value: object, what: str, examples: str) -> tuple[float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or not 0 <= value < 10**18:
            raise Fault(f"{shown(value)} is not {what}: it must be 0 or more", f"for example {examples}")
        return value, ""
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise Fault(f"{shown(value)} is not {what}", f"for example {examples}", code=_code(value))
    number = found[1]
    return (float(number) if "." in number else int(number)), found[2]


def _code(value: object) -> str:
    return "wrong-value" if isinstance(value, str) else "wrong-type"


def steps(value: object) -> Steps:
    """Steps of ``0-100``, ``501-``, or a count such as ``1024``.

    Raises
    ------
    Fault
        If the value is neither, ends before it begins, or counts nothing.
    """
    if isinstance(value, Steps):
        return value
    if type(value) is int:
        if not 0 < value < MAX_STEP:
            raise Fault(f"{value if abs(value) < MAX_STEP else 'this number'} is not a count of steps: 1 or more")
        return Steps(count=value)
    found = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        forms = "a range 0-100 (both ends included), an open range 501-, or a count 1024"
        raise Fault(f"{shown(value)} is not steps", f"write {forms}", code=_code(value))
    first, last = int(found[1]), None if found[2] is None else int(found[2])
    if last is not None and last < first:
        raise Fault(f"steps {shown(value)} end before they begin", f"did you mean {last}-{first}?")
    return Steps(first, last)
