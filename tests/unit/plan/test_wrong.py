"""Every wrong plan in ``wrong/`` gets its problems, each at its exact place, and no others.

A plan ends with the line ``# expected:`` and one line for each problem: ``# line:column code | text | text``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsec.errors import DsecError, PlanError, Problem
from dsec.plan.check import check
from dsec.plan.load import load_plan

WRONG = sorted((Path(__file__).parent / "wrong").glob("*.yaml"))


@dataclass
class FakeParameter:
    name: str
    required: bool = True


@dataclass
class FakeSignature:
    kind: str
    parameters: list[FakeParameter]
    accepts_any: bool = False
    outputs: tuple[str, ...] | None = None
    file: str = "a/b.py"
    line: int = 7


class FakeCodeProblem(DsecError):
    def __init__(self, message: str, *, hint: str = "", kind: str = "no-module") -> None:
        super().__init__(message, hint=hint, where="a/b.py:9")
        self.kind = kind


@dataclass
class FakeProject:
    """Sources of a module ``a.b``."""

    known: dict[str, FakeSignature] = field(
        default_factory=lambda: {
            "a.b:body": FakeSignature("function", [FakeParameter("ctx")], accepts_any=True),
            "a.b:other": FakeSignature("function", [FakeParameter("ctx")], accepts_any=True),
            "a.b:dynamic": FakeSignature("function", [FakeParameter("ctx")]),
            "a.b:tuned": FakeSignature(
                "function", [FakeParameter("ctx"), FakeParameter("lr"), FakeParameter("decay", False)], outputs=("x",)
            ),
            "a.b:Agent": FakeSignature("class", [FakeParameter("session_config")]),
            "a.b:Shop": FakeSignature("class", [FakeParameter("size", False)]),
            "a.b:reward": FakeSignature("function", [FakeParameter("step")]),
        }
    )

    def fingerprint(self, name: str, *, allow_dynamic: bool = False) -> str:
        if name == "a.b:dynamic" and not allow_dynamic:
            raise FakeCodeProblem("getattr() with a computed name", kind="dynamic")
        return "0" * 64

    def signature(self, name: str) -> FakeSignature:
        if name not in self.known:
            raise FakeCodeProblem(f"there is no {name}", hint="look at the spelling")
        return self.known[name]


def problems_of(path: Path, text: str) -> list[Problem]:
    try:
        plan, document = load_plan(path, text)
    except PlanError as error:
        return list(error.problems)
    return check(plan, document, FakeProject())


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_plan_is_refused_at_the_exact_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    text, _, expected = path.read_text().partition("# expected:\n")
    lines = [line.removeprefix("# ").split(" | ") for line in expected.splitlines()]
    found = problems_of(Path(path.name), text)
    assert [f"{p.line}:{p.column} {p.code}" for p in found] == [line[0] for line in lines]
    for problem, (_, *fragments) in zip(found, lines, strict=True):
        for fragment in fragments:
            assert fragment in f"{problem.message} {problem.hint}"


def test_there_are_enough_wrong_plans() -> None:
    assert len(WRONG) >= 45
