"""Keys, seeds, sessions and canonical bytes: what they depend on, and what they don't."""

from __future__ import annotations

import datetime
import math
import pickle
import struct
import uuid

import pytest

from dsec.core import canon, keys, seeds, session
from dsec.core.stage import AnchorId, Edge, Input, PlanKey, Recipe, StageCall, StageResult
from dsec.errors import StateError

A, B = PlanKey("a" * 64), PlanKey("b" * 64)


def call(**changes: object) -> StageCall:
    inputs = {"agent": Input((AnchorId("1" * 64),)), "env": Input((Edge(B, "env"),))}
    recipe = canon.digest("test", "recipe")
    fields = {"instance": "x", "stage": "x", "plan_key": A, "recipe": recipe, "inputs": inputs, **changes}
    return StageCall(**fields)  # type: ignore[arg-type]


def test_values_of_different_kinds_have_different_bytes() -> None:
    found = [canon.encode(value) for value in (1, 1.0, True, "1", b"1", [1], (1,), {"1": 1}, {1: 1}, None, -0.0, 0.0)]
    assert len(set(found)) == len(found)


def test_mappings_are_equal_whatever_their_order() -> None:
    assert canon.encode({"a": 1, "b": 2}) == canon.encode({"b": 2, "a": 1})


def test_nan_payloads_are_kept() -> None:
    other = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    assert canon.encode(other) != canon.encode(math.nan)


def test_ints_have_no_bound() -> None:
    assert canon.encode(10**5000) != canon.encode(10**5000 + 1)


@pytest.mark.parametrize(("value", "where"), [({"a": [1, {2}]}, "$.a[1]"), ({(1,): 1}, "$"), (["\ud800"], "$[0]")])
def test_what_has_no_form_is_named_by_its_path(value: object, where: str) -> None:
    with pytest.raises(StateError) as caught:
        canon.encode(value)
    assert caught.value.where == where


def test_a_call_survives_its_journey() -> None:
    one = call(steps=(3, 9), stream="shard=1", restream=True, timeout=2.5)
    assert StageCall.from_json(one.to_json()) == one
    assert len(pickle.dumps(one.to_json())) < 4096
    result = StageResult(
        keys.ActionKey("c" * 64), {"state@25": AnchorId("d" * 64)}, stats={"x": 1.5}, sizes={"state@25": 9}
    )
    assert StageResult.from_json(result.to_json()) == result


def test_the_action_key_needs_all_inputs() -> None:
    with pytest.raises(ValueError, match="not resolved"):
        keys.action_key(call())


def test_names_and_retries_are_in_no_key() -> None:
    inputs = {"agent": Input((AnchorId("1" * 64),))}
    base = call(inputs=inputs)
    for other in (call(inputs=inputs, instance="y"), call(inputs=inputs, attempt=3), call(inputs=inputs, timeout=9.0)):
        assert keys.action_key(other) == keys.action_key(base)
    for other in (
        call(inputs=inputs, steps=(0, 1)),
        call(inputs=inputs, stream="s"),
        call(inputs=inputs, restream=True),
    ):
        assert keys.action_key(other) != keys.action_key(base)


def test_a_gather_of_one_differs_from_a_single_input() -> None:
    recipe = canon.digest("test", "recipe")
    single, gathered = Input((Edge(B, "x"),)), Input((Edge(B, "x"),), ("",))
    assert keys.plan_key(recipe, {"x": single}) != keys.plan_key(recipe, {"x": gathered})


def test_dask_keys_group_by_stage_and_differ_between_stores_and_attempts() -> None:
    one = keys.dask_key("train.learn", "store", call())
    assert one.startswith("train.learn-")
    assert len(one.rpartition("-")[2]) == 64
    assert one != keys.dask_key("train.learn", "other", call())
    assert one != keys.dask_key("train.learn", "store", call(attempt=1))


def test_a_recipe_survives_json() -> None:
    recipe = Recipe("m:f", canon.digest("test", 1), {"x": [1, 2.5]}, outputs=(("state", 25), ("y", None)))
    assert Recipe.from_json(recipe.to_json()).digest() == recipe.digest()


def test_streams_are_found_by_name() -> None:
    first = seeds.generator(7, "env/0/episode/0").integers(0, 1 << 30, 4).tolist()
    assert first == seeds.generator(7, "env/0/episode/0").integers(0, 1 << 30, 4).tolist()
    assert first != seeds.generator(7, "env/0/episode/1").integers(0, 1 << 30, 4).tolist()
    assert first != seeds.generator(8, "env/0/episode/0").integers(0, 1 << 30, 4).tolist()
    assert seeds.episode_path("shard=3", 2, 5) == "env/shard=3/2/episode/5"


def test_a_session_has_seven_fields_and_an_id_of_its_time() -> None:
    deciding = session.Deciding("a" * 64, "b" * 64, None, 3, 100)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
    found_by = session.identity(deciding, "plan", {"seed": 3})
    made = session.new_session(found_by, when, deciding)
    fields = "session_id agent_spec env_spec reward_fn_hash seed max_steps creation_timestamp"
    assert list(made.to_json()) == fields.split()
    parsed = uuid.UUID(made.session_id)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == int(when.timestamp() * 1000)
    assert made == session.new_session(found_by, when, deciding)
    assert (
        made.session_id != session.new_session(session.identity(deciding, "q", {"seed": 3}), when, deciding).session_id
    )


@pytest.mark.parametrize("stream", ["", "stage/train.learn/17/shard=3", "stage/ü/0/größe=3"])
@pytest.mark.parametrize("steps", [None, (0, 99), (-1, 10**20)])
@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"env": Input((Edge(B, "env"),)), "agent": Input((AnchorId("1" * 64),))},
        {"scores": Input((Edge(A, "maß"), Edge(B, "x")), ("größe=1", "größe=2")), "none": Input((), ())},
    ],
)
def test_keys_are_written_as_canonical_bytes(
    stream: str, steps: tuple[int, int] | None, inputs: dict[str, Input]
) -> None:
    recipe = canon.digest("test", "recipe")
    named = [
        [
            name,
            None if inputs[name].labels is None else list(inputs[name].labels or ()),
            [[s.plan_key, s.output] if isinstance(s, Edge) else s for s in inputs[name].sources],
        ]
        for name in sorted(inputs)
    ]
    expected = canon.digest("dsec/plan-key/1", [recipe, steps, stream, True, named])
    assert keys.plan_key(recipe, inputs, steps=steps, stream=stream, restream=True) == expected


def test_a_name_with_a_lone_surrogate_has_no_key() -> None:
    with pytest.raises(StateError):
        keys.plan_key(canon.digest("test", "recipe"), {}, stream="\ud800")
