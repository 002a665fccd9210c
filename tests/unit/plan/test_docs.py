"""Plans in the docs are plans, and the reference names every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsec.plan import schema
from dsec.plan.check import check
from dsec.plan.load import load_plan

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference" / "plan.md"
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```yaml plan\n(.*?)^```", page.read_text(), re.S | re.M))
]
PARTS = [value for name, value in vars(schema).items() if name in schema.__all__ and hasattr(value, "model_fields")]


@pytest.mark.parametrize("block", BLOCKS)
def test_plans_in_the_docs_are_right(block: str) -> None:
    plan, document = load_plan(ROOT / "plans" / "block.yaml", block)
    assert [str(problem) for problem in check(plan, document)] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_the_reference_names_every_key(part: type[schema.ExecutionPlan]) -> None:
    text = REFERENCE.read_text()
    keys = [field.alias or name for name, field in part.model_fields.items()]
    assert [key for key in keys if part is not schema.Matrix and not re.search(rf"[`{{ ,]{key}[`}}:,]", text)] == []


def test_the_reference_names_every_code() -> None:
    wrong = Path(__file__).parent / "wrong"
    codes = {
        match for path in wrong.glob("*.yaml") for match in re.findall(r"^# \d+:\d+ ([\w-]+)", path.read_text(), re.M)
    }
    text = REFERENCE.read_text()
    assert sorted(code for code in codes if f"`{code}`" not in text and code != "no-module") == []
