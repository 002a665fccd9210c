"""Checks against users' sources, read and never imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.code.fingerprint import Project
from dsec.plan.check import check
from dsec.plan.load import load_plan

SOURCE = """
raise SystemExit("imported")

from typing import TypedDict


class Made(TypedDict):
    curve: list
    best: float


def body(ctx, *, agent, lr=0.1) -> Made: ...
def free(ctx, **anything): ...
def reward(step): ...


class Agent:
    def __init__(self, session_config): ...


class Many(Agent):
    vectorized = True


class Shop:
    def __init__(self, size=3): ...
"""
SESSION = 'session: {agent: "own:Agent", env: "own:Shop", reward: "own:reward", max_steps: 100}\n'


def said(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "own.py").write_text(SOURCE)
    plan, document = load_plan(tmp_path / "plan.yaml", f"dsec: 1\nname: x\n{text}")
    found = check(plan, document, Project(tmp_path))
    return [f"{p.line}:{p.column} {p.code}: {p.message} ({p.hint})" for p in found]


def test_a_right_plan(tmp_path: Path) -> None:
    stages = "stages:\n  go: {uses: 'dsec.stages:rollout', steps: 0-9}\n"
    stages += "  fit: {uses: 'own:body', inputs: {agent: go.agent}, with: {lr: 3}}\n"
    stages += "  any: {uses: 'own:free', inputs: {x: fit.curve}, with: {y: 3}}\n"
    assert said(tmp_path, SESSION + stages) == []


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("{uses: 'own:body'}", "4:3 bad-argument: own:body needs 'agent' (add it to 'inputs' or 'with'; see "),
        ("{uses: 'own:bod'}", "4:13 no-name: "),
        ("{uses: 'own:bod'}", "(did you mean "),
        ("{uses: 'onw:body'}", "4:13 no-module: "),
        (
            "{uses: 'own:body', with: {agnet: 1}}",
            "4:32 bad-argument: 'agnet' is no parameter of own:body (did you mean 'a",
        ),
        ("{uses: 'own:Shop'}", "4:13 bad-signature: own:Shop is not a function that takes ctx"),
    ],
)
def test_wrong_bodies(tmp_path: Path, stage: str, expected: str) -> None:
    assert expected in said(tmp_path, f"stages:\n  a: {stage}\n")[0]


def test_outputs_come_from_the_annotation(tmp_path: Path) -> None:
    stages = "stages:\n  a: {uses: 'own:body', with: {agent: 1}}\n  b: {uses: 'own:free', inputs: {x: a.curv}}\n"
    assert said(tmp_path, stages) == ["5:37 unknown-output: the stage 'a' has no output 'curv' (did you mean 'curve'?)"]


def test_arguments_of_an_environment(tmp_path: Path) -> None:
    go = "stages:\n  go: {uses: 'dsec.stages:rollout', steps: 0-9}\n"
    session = 'session: {agent: "own:Agent", env: {uses: "own:Shop", with: {sise: 3}}}\n'
    assert "'sise' is no parameter of own:Shop (did you mean 'size'?)" in said(tmp_path, session + go)[0]


def test_num_envs_needs_a_vectorized_agent(tmp_path: Path) -> None:
    go = "stages:\n  go: {uses: 'dsec.stages:rollout', steps: 0-9}\n"
    session = 'session: {{agent: "own:{}", env: {{uses: "own:Shop", num_envs: 4}}}}\n'
    assert "not-vectorized" in said(tmp_path, session.format("Agent") + go)[0]
    assert said(tmp_path, session.format("Many") + go) == []
