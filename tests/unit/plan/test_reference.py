"""References are read into what they name, and written back."""

from __future__ import annotations

import pytest

from dsec.core.stage import AnchorId
from dsec.plan.reference import EVERY, CarryRef, InitRef, Reference, ReferenceFault, StageRef, StoredRef, parse

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("eval", StageRef("eval")),
        ("eval.score", StageRef("eval", "score")),
        ("eval[*].score", StageRef("eval", "score", EVERY)),
        ("eval[*]", StageRef("eval", None, EVERY)),
        ("eval[seed=*].score", StageRef("eval", "score", ("seed",))),
        ("eval[seed=*, shard=*].score", StageRef("eval", "score", ("seed", "shard"))),
        ("go.state@25", StageRef("go", "state", None, 25)),
        ("go[shard=*].state@25", StageRef("go", "state", ("shard",), 25)),
        ("carry.agent", CarryRef("agent")),
        ("init.env", InitRef("env")),
        (f"anchor:{ID}", StoredRef(AnchorId(ID))),
    ],
)
def test_forms(text: str, found: Reference) -> None:
    assert parse(text) == found
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a.", ".a", "a..b", "a.b.c", "A.b", "a.B", "a b", "a[0].b", "a[].b", "a[x=1].b", "a[x=*,x=*].b"),
        *("a@3", "a.b@x", "a.b@-1", "carry", "carry.", "carry.A", "init", "init.x", "anchor:", "anchor:12"),
        *(f"anchor:{ID.upper()}", "a[*]b", "[*].a", "a[*][*].b", "é.b", "a.b@" + "9" * 40),
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ReferenceFault):
        parse(text)
