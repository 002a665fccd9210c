"""Expansion: which calls a plan has, in which order, at which steps, and what their keys depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dsec.core import canon
from dsec.core.stage import ActionKey, Edge, StageCall, StageResult
from dsec.errors import PlanError, UsageError
from dsec.plan import compile as compiling
from dsec.plan import load, select
from dsec.plan.frontier import Frontier
from dsec.plan.nodes import StageGraph

SOURCING = compiling.Sourcing(lambda uses: canon.digest("test", uses), lambda _: ("out",), lambda _a, _b: False)
PPO = """
dsec: 1
name: ppo
params: {iterations: 2, steps: 100, seeds: [0, 1], lr: 0.1}
session:
  agent: {uses: "m:A", with: {lr: "${{ params.lr }}"}}
  env: gymnasium/CartPole-v1
  seed: ${{ matrix.seed }}
  max_steps: ${{ params.iterations * params.steps }}
matrix: {seed: "${{ params.seeds }}"}
stages:
  train:
    iterate:
      times: ${{ params.iterations }}
      carry: {agent: {from: init.agent, next: learn.agent}, env: {from: init.env, next: collect.env}}
    stages:
      collect: {uses: "dsec.stages:rollout", steps: "${{ params.steps }}", inputs: {agent: carry.agent, env: carry.env}}
      learn: {uses: "dsec.stages:learn", inputs: {agent: collect.agent, batch: collect.batch}}
  eval: {uses: "dsec.stages:evaluate", inputs: {agent: train.agent}, with: {episodes: 3}}
  table: {uses: "dsec.stages:table", inputs: {scores: "eval[*].score"}}
"""


def graph(text: str, overrides: Sequence[str] = (), worker: str = "c") -> StageGraph:
    plan, document = load.load_plan("plan.yaml", text, overrides=overrides)
    return compiling.compile_plan(plan, document, SOURCING, classes={"cpu": "c", "gpu": worker})


def expanded(
    text: str, overrides: Sequence[str] = (), stats: dict[str, dict[str, float]] | None = None
) -> list[StageCall]:
    return drained(Frontier(graph(text, overrides)), stats)


def drained(frontier: Frontier, stats: dict[str, dict[str, float]] | None = None) -> list[StageCall]:
    found: list[StageCall] = []
    while calls := frontier.take(7):
        for call in calls:
            made = (stats or {}).get(call.instance, {})
            frontier.done(call.plan_key, StageResult(ActionKey("0" * 64), stats=made))
        found.extend(calls)
    assert frontier.exhausted
    return found


def by_name(calls: list[StageCall]) -> dict[str, StageCall]:
    return {call.instance: call for call in calls}


def test_a_call_comes_after_those_it_needs() -> None:
    seen: set[str] = set()
    for call in expanded(PPO):
        assert {edge.plan_key for edge in call.edges()} <= seen
        seen.add(call.plan_key)


def test_names_steps_and_gathers() -> None:
    calls = by_name(expanded(PPO))
    assert len(calls) == 2 * (2 + 4 + 1) + 1
    assert calls["train@seed=1#1/collect"].steps == (100, 199)
    assert calls["table"].inputs["scores"].labels == ("seed=0", "seed=1")
    source = calls["eval@seed=0"].inputs["agent"].sources[0]
    assert source == Edge(calls["train@seed=0#1/learn"].plan_key, "agent")


def test_more_iterations_add_calls_and_change_none() -> None:
    few, many = by_name(expanded(PPO)), by_name(expanded(PPO, ["iterations=4"]))
    loop = [name for name in few if name.startswith(("train", "init"))]
    assert all(few[name].plan_key == many[name].plan_key for name in loop)
    assert few["eval@seed=0"].plan_key != many["eval@seed=0"].plan_key


def test_one_parameter_changes_the_lanes_that_have_it() -> None:
    base, changed = by_name(expanded(PPO)), by_name(expanded(PPO, ["seeds=[0, 2]"]))
    assert base["eval@seed=0"].plan_key == changed["eval@seed=0"].plan_key
    assert not {call.plan_key for call in base.values() if "seed=1" in call.instance} & {
        call.plan_key for call in changed.values()
    }


def test_where_a_stage_runs_is_in_no_key_within_one_class() -> None:
    moved = PPO.replace("batch: collect.batch}}", "batch: collect.batch}, resources: {worker: gpu}, priority: 3}")
    keys = {call.plan_key for call in expanded(PPO)}
    assert {call.plan_key for call in expanded(moved)} == keys
    other = drained(Frontier(graph(moved, worker="other")))
    assert {call.plan_key for call in other} != keys


RANGES = """
dsec: 1
name: ranges
session: {agent: "m:A", env: gymnasium/CartPole-v1, max_steps: 1000}
stages:
  simulate: {uses: "dsec.stages:rollout", steps: 0-100, outputs: {state: {every: 25}}}
  encode: {uses: "dsec.stages:rollout", steps: 101-500, needs: simulate}
  settle: {uses: "dsec.stages:rollout", steps: 501-, needs: encode}
"""


def test_needs_passes_the_state_on_and_open_ranges_end_at_the_horizon() -> None:
    calls = by_name(expanded(RANGES))
    assert calls["settle"].steps == (501, 999)
    assert calls["encode"].inputs["state"].sources == (Edge(calls["simulate"].plan_key, "state"),)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("101-500", "103-500", "steps-gap"),
        ("101-500", "99-500", "steps-overlap"),
        ("501-,", "501-1000,", "steps-overrun"),
    ],
)
def test_ranges_that_do_not_meet_name_the_line(old: str, new: str, code: str) -> None:
    with pytest.raises(PlanError) as caught:
        expanded(RANGES.replace(old, new))
    assert [problem.code for problem in caught.value.problems] == [code]
    assert caught.value.problems[0].line in (7, 8)


SHARDS = """
dsec: 1
name: shards
session: {agent: "m:A", env: gymnasium/CartPole-v1}
stages:
  train:
    iterate: {times: 2, carry: {agent: {from: init.agent, next: learn.agent}, env: {from: init.env, next: collect.env}}}
    stages:
      collect:
        uses: "dsec.stages:rollout"
        steps: 10
        inputs: {agent: carry.agent, env: carry.env}
        matrix: {shard: {range: 3}}
      learn: {uses: "dsec.stages:learn", inputs: {agent: carry.agent, batch: "collect[shard=*].batch"}}
"""


def test_shards_have_streams_of_their_own_and_are_gathered_in_order() -> None:
    calls = by_name(expanded(SHARDS))
    assert {name for name in calls if name.startswith("init.env")} == {f"init.env@shard={i}" for i in range(3)}
    collect = calls["train#1/collect@shard=2"]
    assert (collect.stream, collect.restream, collect.steps) == ("shard=2", True, (10, 19))
    assert calls["train#1/learn"].inputs["batch"].labels == ("shard=0", "shard=1", "shard=2")


def test_until_ends_a_loop_by_a_stat() -> None:
    text = PPO.replace(
        "times: ${{ params.iterations }}",
        "times: ${{ params.iterations }}\n      until: ${{ metrics.learn.loss < 0.5 }}",
    )
    stats = {f"train@seed={s}#{i}/learn": {"loss": 1.0 - i * 0.3 * (s + 1)} for s in (0, 1) for i in range(6)}
    calls = by_name(expanded(text, ["iterations=6"], stats))
    assert "train@seed=0#2/learn" in calls and "train@seed=0#3/learn" not in calls
    assert "train@seed=1#1/learn" in calls and "train@seed=1#2/learn" not in calls


def test_a_false_when_skips_its_consumers_and_is_left_out_of_gathers() -> None:
    text = PPO.replace("with: {episodes: 3}", 'with: {episodes: 3}, when: "${{ matrix.seed == 1 }}"')
    calls = by_name(expanded(text))
    assert "eval@seed=0" not in calls
    assert calls["table"].inputs["scores"].labels == ("seed=1",)


def test_equal_calls_of_two_sessions_are_one() -> None:
    text = PPO.replace("matrix: {seed: ", "matrix: {twin: [a, b], seed: ")
    frontier = Frontier(graph(text))
    calls = drained(frontier)
    assert len(calls) == 2 * 7 + 1
    assert ("eval@twin=b,seed=0") in {name for name, _ in frontier.aliases}


def test_select_takes_what_is_named_and_what_it_needs() -> None:
    chosen = {call.instance for call in drained(select.frontier(graph(PPO), ["train@seed=0#0/*"]))}
    assert chosen == {"init.agent@seed=0", "init.env@seed=0", "train@seed=0#0/collect", "train@seed=0#0/learn"}
    with pytest.raises(UsageError, match="chooses no instance"):
        select.frontier(graph(PPO), ["tran@*"])


def test_a_failed_call_stops_its_lane_alone() -> None:
    frontier = Frontier(graph(PPO))
    found = []
    while calls := frontier.take(1):
        for call in calls:
            if call.instance == "train@seed=0#1/learn":
                frontier.failed(call.plan_key)
            else:
                found.append(call.instance)
                frontier.done(call.plan_key, StageResult(ActionKey("0" * 64)))
    assert "eval@seed=1" in found and "table" not in found
    assert frontier.exhausted and "table" in frontier.skipped


def test_a_long_chain_does_not_recurse(tmp_path: Path) -> None:
    stages = [f"  s{i}: {{uses: 'm:f'{f', inputs: {{x: s{i - 1}.out}}' if i else ''}}}" for i in range(5000)]
    calls = expanded("dsec: 1\nname: chain\nstages:\n" + "\n".join(stages))
    assert [call.instance for call in calls[:2]] == ["s0", "s1"]
    assert len(calls) == 5000
