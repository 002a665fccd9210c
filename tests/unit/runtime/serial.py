"""Calls in a row through run_stage, without a plan or a cluster; as a script, a small session that can be killed.

``python -m tests.unit.runtime.serial STORE AGENT`` prints outputs, traces and stats of all calls as one JSON line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsec.core import bodies, keys
from dsec.core.specs import AgentSpec, CodeRef, EnvSpec, RewardSpec
from dsec.core.stage import Edge, Input, Recipe, StageCall, StageResult
from dsec.runtime import tensors
from dsec.runtime.facts import WorkerFacts
from dsec.runtime.stage import run_stage
from dsec.store import anchors, root
from dsec.store.root import Store

NO_CODE = "0" * 64
LAB = "tests.unit.runtime.lab"


def agent(name: str, **config: Any) -> AgentSpec:
    return AgentSpec(code=CodeRef(uses=name if ":" in name else f"{LAB}:{name}", fingerprint=NO_CODE), config=config)


def env(name: str = "gymnasium/CartPole-v1", num_envs: int | None = None, **config: Any) -> EnvSpec:
    return EnvSpec(code=CodeRef(uses=name, fingerprint=NO_CODE), config=config, num_envs=num_envs)


def reward(name: str, **config: Any) -> RewardSpec:
    return RewardSpec(code=CodeRef(uses=f"{LAB}:{name}", fingerprint=NO_CODE), config=config)


@dataclass
class Serial:
    """Runs each call when it is added, in this process."""

    store: Store
    facts: WorkerFacts = field(default_factory=WorkerFacts)
    session: dict[str, Any] = field(default_factory=dict)
    """Fields of every recipe: agent, env, reward, seed."""
    results: dict[str, StageResult] = field(default_factory=dict)
    """By plan_key."""

    def call(
        self,
        stage: str,
        uses: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        steps: tuple[int, int] | None = None,
        stream: str | None = None,
        restream: bool = False,
        config: Mapping[str, Any] | None = None,
        **recipe: Any,
    ) -> StageCall:
        """A call whose inputs are edges, or lists of (label, edge)."""
        name = f"dsec.stages:{uses}" if f"dsec.stages:{uses}" in bodies.BODIES else f"{LAB}:{uses}"
        made = Recipe(uses=name, code=NO_CODE, config=config or {}, **{**self.session, **recipe})
        digest = root.put_recipe(self.store, made)
        body = bodies.BODIES.get(name)
        if stream is None:
            stream = f"stage/{stage}/" if body is None or body.named_stream else ""
        sources = {argument: _input(source) for argument, source in sorted((inputs or {}).items())}
        key = keys.plan_key(digest, sources, steps=steps, stream=stream, restream=restream)
        return StageCall(stage, stage, key, digest, sources, steps, stream, restream)

    def run(self, call: StageCall, **options: Any) -> StageResult:
        """Run it, as it would come over Dask."""
        upstream = {edge.plan_key: self.results[edge.plan_key] for edge in call.edges()}
        travelled = StageCall.from_json(call.to_json())
        found = run_stage(travelled, upstream, self.store, self.facts, **options)
        self.results[call.plan_key] = StageResult.from_json(found.to_json())
        return found

    def made(self, stage: str, uses: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> StageCall:
        """A call that was run."""
        call = self.call(stage, uses, inputs, **options)
        self.run(call)
        return call

    def result(self, call: StageCall) -> StageResult:
        return self.results[call.plan_key]

    def tree(self, call: StageCall, output: str) -> Any:
        return tensors.restored(anchors.load(self.store.blobs, self.result(call).outputs[output]))


def out(call: StageCall, output: str) -> Edge:
    return Edge(call.plan_key, output)


def _input(source: Edge | Sequence[tuple[str, Edge]] | Input) -> Input:
    if isinstance(source, Input):
        return source
    if isinstance(source, Edge):
        return Input((source,))
    return Input(tuple(edge for _, edge in source), tuple(label for label, _ in source))


def small_session(run: Serial, iterations: int = 2, steps: int = 300) -> list[StageCall]:
    """Collect and learn in turn, evaluate, and a table."""
    agent_call, env_call = run.made("init.agent", "init_agent"), run.made("init.env", "init_env", stream="")
    calls = [agent_call, env_call]
    state, place = out(agent_call, "agent"), out(env_call, "env")
    for k in range(iterations):
        given = {"agent": state, "env": place}
        steps_of = (k * steps, (k + 1) * steps - 1)
        collect = run.made("collect", "rollout", given, steps=steps_of, outputs=(("state", 100),))
        learn = run.made("learn", "learn", {"agent": out(collect, "agent"), "batch": out(collect, "batch")})
        state, place = out(learn, "agent"), out(collect, "env")
        calls += [collect, learn]
    score = run.made("eval", "evaluate", {"agent": state}, config={"episodes": 3})
    table = run.made("table", "table", {"scores": [("seed=0", out(score, "score"))]})
    return [*calls, score, table]


def shown(run: Serial, calls: Sequence[StageCall]) -> str:
    """Everything that decides whether two runs are equal."""
    results = [run.result(call) for call in calls]
    return json.dumps([[r.outputs, r.trace, r.stats, r.index] for r in results], sort_keys=True)


def main(store: str, agent_name: str) -> None:
    facts = replace(WorkerFacts(), recovery_seconds=0.0)
    run = Serial(root.open_store(Path(store)), facts, {"agent": agent(agent_name), "env": env(), "seed": 3})
    calls = small_session(run)
    resumed = [run.result(call).cost.get("resumed_from_step") for call in calls]
    print(json.dumps({"shown": shown(run, calls), "resumed": resumed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
