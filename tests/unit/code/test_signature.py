"""Signatures as sources have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.code import Project, Signature

SOURCE = """
import functools
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypedDict
import gymnasium as gym
from torch import nn
from bases import Base, Out as Renamed
import bases

class Made(TypedDict):
    curve: list
    best: float
class More(Made, total=False):
    extra: int
Functional = TypedDict("Functional", {"a": int, "b": str})

def plain(ctx, a, b=1, /, c=2, *, d, e=3): ...
def anything(ctx, *args, **options): ...
def makes(ctx) -> Made: ...
def makes_more(ctx) -> "More": ...
def makes_functional(ctx) -> Functional: ...
def makes_elsewhere(ctx) -> bases.Out: ...
def makes_renamed(ctx) -> Renamed: ...
def makes_a_dict(ctx) -> dict[str, Any]: ...
@functools.cache
def decorated(ctx, x): ...
async def waits(ctx, x): ...
short = lambda ctx, x=1: x
other = plain
bound = partial(plain, 1, c=3, d=4)
made = functools.reduce(plain, [])
if True:
    def conditional(ctx, y): ...

class Nothing: ...
class Own:
    def __init__(self, x, *, y=1): ...
    def method(self, z): ...
    @staticmethod
    def static(z): ...
class Inherits(Base): ...
class New:
    def __new__(cls, x): ...
class Env(gym.Env): ...
class Net(nn.Module):
    def __init__(self, size): ...
@dataclass(frozen=True)
class Data:
    a: int
    b: int = 1
    c: list = field(default_factory=list)
    d: int = field(init=False)
    e: ClassVar[int] = 3
    f: int = field(repr=False)
    _: KW_ONLY
    g: int = 2
@dataclass
class Child(Data):
    b: str = "x"
    h: int = 5
class Tuple(NamedTuple):
    x: int
    y: int = 2
"""
BASES = """
from typing import TypedDict
class Out(TypedDict):
    z: int
class Base:
    def __init__(self, deep, **rest): ...
"""


@pytest.fixture
def signature(write: Callable[..., Path]) -> Callable[[str], Signature]:
    return Project(write({"own.py": SOURCE, "bases.py": BASES})).signature


def spelled(found: Signature) -> str:
    """As ``a b=? *c ...``: ``=?`` may be left out, ``*`` goes by keyword only, ``...`` takes anything."""
    words = [f"{'*' if p.keyword_only else ''}{p.name}{'' if p.required else '=?'}" for p in found.parameters]
    return " ".join([found.kind[0], *words, *(["..."] if found.accepts_any else [])])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "f ctx a b=? c=? *d *e=?"),
        ("anything", "f ctx ..."),
        ("decorated", "f ctx x"),
        ("waits", "f ctx x"),
        ("short", "f ctx x=?"),
        ("other", "f ctx a b=? c=? *d *e=?"),
        ("bound", "f a b=? c=? *d=? *e=?"),
        ("made", "f args=? ..."),
        ("conditional", "f ctx y"),
        ("Nothing", "c"),
        ("Own", "c x *y=?"),
        ("Own.method", "f z"),
        ("Own.static", "f z"),
        ("Inherits", "c deep ..."),
        ("New", "c x"),
        ("Env", "c ..."),
        ("Net", "c size"),
        ("Data", "c a b=? c=? f *g=?"),
        ("Child", "c a b=? c=? f *g=? h=?"),
        ("Tuple", "c x y=?"),
    ],
)
def test_parameters(name: str, expected: str, signature: Callable[[str], Signature]) -> None:
    assert spelled(signature(f"own:{name}")) == expected


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("makes", ("curve", "best")),
        ("makes_more", ("curve", "best", "extra")),
        ("makes_functional", ("a", "b")),
        ("makes_elsewhere", ("z",)),
        ("makes_renamed", ("z",)),
        ("makes_a_dict", None),
        ("plain", None),
    ],
)
def test_outputs(name: str, outputs: tuple[str, ...] | None, signature: Callable[[str], Signature]) -> None:
    assert signature(f"own:{name}").outputs == outputs


def test_place(signature: Callable[[str], Signature]) -> None:
    found = signature("own:plain")
    lines = Path(found.file).read_text().splitlines()
    assert lines[found.line - 1].startswith("def plain(")
    base = signature("own:Renamed")
    assert Path(base.file).name == "bases.py"


def test_third_party_code_takes_anything(signature: Callable[[str], Signature]) -> None:
    assert spelled(signature("gymnasium:Env")) == "c ..."
    assert spelled(signature("gymnasium:make")) == "f ctx=? ..."


def test_an_output_more_is_another_body(write: Callable[..., Path]) -> None:
    before = Project(write({"own.py": SOURCE, "bases.py": BASES})).fingerprint("own:makes_elsewhere")
    after = Project(write({"own.py": SOURCE, "bases.py": BASES.replace("z: int", "w: int")}))
    assert after.fingerprint("own:makes_elsewhere").digest != before.digest
