"""The JSON Schema that editors read is in step with the classes, and an independent reader agrees with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsec.plan.load import read
from dsec.plan.schema import json_schema

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docs" / "reference" / "plan-1.schema.json"
GOOD = Path(__file__).parent / "good"


def as_written(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: as_written(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [as_written(item) for item in tree]
    return tree if isinstance(tree, str | int | float | bool) or tree is None else str(tree)


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(FILE.read_text()))


def test_the_file_is_in_step_with_the_classes() -> None:
    made = json.dumps(json_schema(), indent=1) + "\n"
    assert FILE.read_text() == made, f"write it anew: python -m dsec.plan.schema > {FILE.relative_to(ROOT)}"


def test_it_is_a_schema_of_draft_2020_12() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", ["cartpole", "vision", "coupons"])
def test_good_plans_fit(name: str) -> None:
    validator().validate(as_written(read(GOOD / f"{name}.yaml").tree))


@pytest.mark.parametrize(
    "change",
    [
        {"dsec": 2},
        {"stages": {}},
        {"stages": {"A": {"uses": "a.b:c"}}},
        {"stages": {"a": {"uses": "a.b:c", "need": "b"}}},
        {"stages": {"a": {"uses": "a.b:c", "resources": {"worker": "tpu"}}}},
        {"stages": {"a": {"uses": "a.b:c", "steps": "x"}}},
        {"matrix": {"a": 3}},
        {"matrix": {"A": [3]}},
        {"session": {"seed": "three"}},
        {"job": {}},
    ],
    ids=str,
)
def test_wrong_plans_do_not_fit(change: dict[str, Any]) -> None:
    plan = {"dsec": 1, "name": "x", "x-free": 1, "stages": {"a": {"uses": "a.b:c"}}}
    validator().validate(plan)
    assert list(validator().iter_errors({**plan, **change}))


def test_expressions_may_stand_for_scalars() -> None:
    stage = {"uses": "${{ params.u }}", "steps": "${{ 3 }}", "timeout": "${{ 3 }}", "resources": {"cpu": "${{ 3 }}"}}
    plan = {"dsec": 1, "name": "x", "stages": {"a": stage}, "matrix": {"m": "${{ params.x }}"}}
    validator().validate(plan)
