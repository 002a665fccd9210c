"""A store with one recipe and results filed by hand: no plan, no runtime, no cluster."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dsec.core import canon, keys
from dsec.core.specs import AgentSpec, CodeRef, EnvSpec
from dsec.core.stage import AnchorId, Input, Recipe, StageCall, StageResult, replace
from dsec.store import actions, anchors, root, runs
from dsec.store.root import Store
from dsec.store.runs import Call, End, Run

START = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@dataclass
class History:
    """What runs left behind."""

    store: Store
    recipe: Recipe = field(
        default_factory=lambda: Recipe(
            "agents.learn:body",
            canon.digest("test", "code"),
            {"rate": 0.1},
            agent=AgentSpec(code=CodeRef(uses="agents:A", fingerprint=canon.digest("test", "A")), config={"lr": 1e-3}),
            env=EnvSpec(code=CodeRef(uses="gymnasium/CartPole-v1", fingerprint=canon.digest("test", "env"))),
            class_id="c" * 64,
        )
    )

    def anchor(self, tree: object) -> AnchorId:
        return anchors.put(self.store.blobs, tree).anchor_id

    def call(self, instance: str = "learn@seed=0", recipe: Recipe | None = None, **position: Any) -> StageCall:
        """A call with one input, an anchor that is filed."""
        digest = root.put_recipe(self.store, recipe or self.recipe)
        inputs = {"batch": Input((self.anchor({"rewards": [1, 2]}),))}
        key = keys.plan_key(digest, inputs, **position)
        return StageCall(instance, instance.partition("@")[0], key, digest, inputs, **position)

    def file(self, call: StageCall, outputs: dict[str, object] | None = None) -> Call:
        """File a result of a call; gives its row in a run."""
        ids = {name: self.anchor(tree) for name, tree in (outputs or {"agent": {"w": 1}}).items()}
        result = StageResult(keys.action_key(call), ids, stats={"loss": 0.5}, cost={"seconds": 1.5})
        actions.commit(self.store.blobs, actions.entry_of(call, result))
        return Call(call.instance, call.stage, "ran", call.plan_key, result.action_key, 1.5)

    def run(self, rows: Iterable[Call] | None, *, minutes: int = 0, **facts: Any) -> Run:
        """A run with these calls; None is one that was left without an end."""
        began = START + datetime.timedelta(minutes=minutes)
        run = runs.start_run(self.store, canon.digest("test", ["run", minutes]), began, plan="tiny", facts=facts)
        if rows is None:
            return run
        return runs.finish_run(self.store, run, End("done", "2026-01-31T13:00:00Z", 2.5, {"calls": 1, "ran": 1}), rows)

    def changed(self, **fields: Any) -> Recipe:
        return replace(self.recipe, **fields)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(root.open_store(tmp_path / "store"))
