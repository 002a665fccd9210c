"""Reasons name what differs between a call and the last result of its instance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsec.audit import why
from dsec.core import canon, keys
from dsec.core.specs import CodeRef, RewardSpec
from dsec.core.stage import Edge, Input, PlanKey, Recipe, StageCall
from dsec.store import actions

OTHER = canon.digest("test", "other")


def edits(old: str, new: str) -> list[str]:
    return ["agents/learn.py:RATE changed"]


def reasons(history: Any, call: StageCall, recipe: Recipe) -> tuple[str, ...]:
    """Why `call` would run, given that one of the first recipe did."""
    history.run([history.file(history.call())])
    return why.reasons(history.store, call, recipe, why.last_entry(history.store, call.instance), edits)


def test_an_instance_that_never_ran(history: Any) -> None:
    assert why.last_entry(history.store, "learn@seed=0") is None
    found = why.reasons(history.store, history.call(), history.recipe, None, edits)
    assert found == ("no result of this instance is in the store yet",)


def test_the_last_result_is_that_of_the_newest_run(history: Any) -> None:
    old, new = history.call(), history.call(recipe=history.changed(seed=5))
    history.run([history.file(new)], minutes=1)
    history.run([history.file(old)], minutes=0)
    entry = why.last_entry(history.store, "learn@seed=0")
    assert entry is not None
    assert entry.recipe == new.recipe


def changes(history: Any) -> dict[str, tuple[dict[str, Any], str]]:
    agent, env = history.recipe.agent, history.recipe.env
    edited = agent.model_copy(update={"code": CodeRef(uses="agents:A", fingerprint=OTHER)})
    moved = agent.model_copy(update={"code": CodeRef(uses="agents:B", fingerprint=OTHER)})
    return {
        "body": ({"uses": "agents.other:body"}, "uses: agents.learn:body -> agents.other:body"),
        "code": ({"code": OTHER}, "code: agents/learn.py:RATE changed"),
        "with": ({"config": {"rate": 0.2}}, "with.rate: 0.1 -> 0.2"),
        "type": ({"config": {"rate": "0.1"}}, "with.rate: 0.1 -> 0.1"),
        "new with": ({"config": {"rate": 0.1, "more": 1}}, "with.more: absent -> 1"),
        "file": ({"files": {"p.csv": OTHER}}, f"files.p.csv: absent -> {OTHER[:12]}…"),
        "agent's code": ({"agent": edited}, "code: agents/learn.py:RATE changed"),
        "agent": ({"agent": moved}, "agent.uses: agents:A -> agents:B"),
        "agent's with": ({"agent": agent.model_copy(update={"config": {"lr": 1}})}, "agent.with.lr: 0.001 -> 1"),
        "env": ({"env": env.model_copy(update={"num_envs": 4})}, "env.num_envs: None -> 4"),
        "no env": ({"env": None}, "session.env was left out"),
        "reward": (
            {"reward": RewardSpec(code=CodeRef(uses="r:f", fingerprint=OTHER))},
            "session.reward was added",
        ),
        "seed": ({"seed": 9}, "seed: 0 -> 9"),
        "class": ({"class_id": "d" * 64}, f"runtime class: {'c' * 12}… -> {'d' * 12}…"),
        "version": ({"cache_version": "2"}, "cache.version: None -> 2"),
        "outputs": ({"outputs": (("agent", 25),)}, "the declared outputs differ"),
        "salt": ({"salt": "run"}, "cache: off, so it belongs to one run"),
    }


@pytest.mark.parametrize("what", [
    "body", "code", "with", "type", "new with", "file", "agent's code", "agent", "agent's with", "env", "no env",
    "reward", "seed", "class", "version", "outputs", "salt",
])  # fmt: skip
def test_one_part_of_the_recipe_that_differs_is_named(history: Any, what: str) -> None:
    fields, expected = changes(history)[what]
    recipe = history.changed(**fields)
    assert reasons(history, history.call(recipe=recipe), recipe) == (expected,)


def test_code_without_an_edit_was_raised_by_dsec(history: Any) -> None:
    recipe = history.changed(code=OTHER)
    call = history.call(recipe=recipe)
    history.run([history.file(history.call())])
    last = why.last_entry(history.store, call.instance)
    found = why.reasons(history.store, call, recipe, last, lambda old, new: [])
    assert found == ("code: the semantics of the body were raised",)


def test_steps_and_stream_are_named(history: Any) -> None:
    call = history.call(steps=(0, 9), stream="shard=1")
    assert reasons(history, call, history.recipe) == ("steps: none -> 0-9", "random stream: lane -> shard=1")


def test_inputs_are_named(history: Any) -> None:
    call = history.call()
    other, edge = history.anchor({"rewards": [3]}), Edge(PlanKey("a" * 64), "batch")
    inputs = {"batch": Input((other,)), "extra": Input((other,))}
    assert reasons(history, replace(call, inputs=inputs), history.recipe) == (
        "input batch differs",
        "input extra is new",
    )
    waiting = reasons(history, replace(call, inputs={"batch": Input((edge,))}), history.recipe)
    assert waiting == ("input batch: what makes it would run first",)
    assert reasons(history, replace(call, inputs={}), history.recipe) == ("input batch was left out",)


def test_a_result_that_is_gone_and_a_recipe_that_is_gone(history: Any) -> None:
    call = history.call()
    assert reasons(history, call, history.recipe) == ("its result is no longer in the store",)
    entry = replace(actions.read(history.store.blobs, keys.action_key(call)), recipe=OTHER)
    found = why.reasons(history.store, call, history.recipe, entry, edits)
    assert found == ("the parts of the last result's key are gone from the store",)
