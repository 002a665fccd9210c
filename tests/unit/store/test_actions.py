import math
import signal
from dataclasses import replace

import pytest

from dsec.core import keys
from dsec.core.stage import Edge, Input, StageCall
from dsec.errors import NondeterminismError
from dsec.store import actions, hits, root


def test_what_is_committed_is_loaded(store: root.Store, make) -> None:
    entry = actions.entry_of(make.call(1), make.result(1), {"host": "here"})
    assert actions.load(store.blobs, entry.result.action_key) is None
    assert actions.commit(store.blobs, entry) == entry.result
    assert actions.load(store.blobs, entry.result.action_key) == entry.result
    assert actions.read(store.blobs, entry.result.action_key) == replace(
        entry,
        inputs={name: list(ids) for name, ids in entry.inputs.items()},
        labels={"agent": None, "batch": ["shard=0", "shard=1"]},
    )


def test_an_entry_holds_all_that_its_key_is_made_of(store: root.Store, make) -> None:
    call = replace(make.call(1), restream=True)
    key = keys.action_key(call)
    actions.commit(store.blobs, actions.entry_of(call, replace(make.result(1), action_key=key)))
    found = actions.read(store.blobs, key)
    assert found is not None
    inputs = {
        name: Input(tuple(ids), None if found.labels[name] is None else tuple(found.labels[name]))
        for name, ids in found.inputs.items()
    }
    again = StageCall("x", "x", found.plan_key, found.recipe, inputs, found.steps, found.stream, found.restream)
    assert keys.action_key(again) == key


def test_a_second_equal_result_is_the_first(store: root.Store, make) -> None:
    first = make.result(1)
    second = replace(first, cost={"seconds": 9.0}, sizes={"agent": 7})
    actions.commit(store.blobs, actions.entry_of(make.call(1), first))
    assert actions.commit(store.blobs, actions.entry_of(make.call(1), second)) == first


def test_a_second_different_result_is_an_alarm_that_names_all(store: root.Store, make) -> None:
    first = make.result(1)
    second = replace(make.result(1, loss=0.75), outputs={"agent": make.digest("x"), "extra": make.digest("y")})
    actions.commit(store.blobs, actions.entry_of(make.call(1), first))
    with pytest.raises(NondeterminismError) as caught:
        actions.commit(store.blobs, actions.entry_of(make.call(1), second))
    text = str(caught.value)
    for part in (first.action_key, "train.learn", "train@seed=0#1/learn", "output agent", "output extra: first absent"):
        assert part in text
    assert "stat loss: first 0.5, now 0.75" in text
    assert actions.load(store.blobs, first.action_key) == first


def test_a_stat_that_is_no_number_equals_itself(store: root.Store, make) -> None:
    result = replace(make.result(1), stats={"loss": -math.nan, "shape": (1, 2)})
    actions.commit(store.blobs, actions.entry_of(make.call(1), result))
    actions.commit(store.blobs, actions.entry_of(make.call(1), result))


def test_an_integer_and_a_float_differ(store: root.Store, make) -> None:
    first, second = (replace(make.result(1), stats={"n": number}) for number in (1, 1.0))
    assert actions.differences(first, second) == ["stat n: first 1, now 1.0"]


def test_results_with_other_answers_from_outside_are_not_compared(store: root.Store, make) -> None:
    first = replace(make.result(1), journal=make.digest("one"))
    second = replace(make.result(1, loss=0.75), journal=make.digest("two"))
    assert actions.differences(first, second) == []
    assert actions.differences(first, replace(second, journal=first.journal)) != []


@pytest.mark.parametrize("keep", [0, 10, 80, 200, -1])
def test_a_torn_entry_is_a_miss_and_is_replaced(store: root.Store, make, keep: int) -> None:
    entry = actions.entry_of(make.call(1), make.result(1))
    actions.commit(store.blobs, entry)
    name = f"actions/{entry.result.action_key[:2]}/{entry.result.action_key}"
    store.blobs.replace(name, [store.blobs.get(name)[:keep]])
    assert actions.commit(store.blobs, entry) == entry.result
    assert actions.load(store.blobs, entry.result.action_key) == entry.result
    assert store.blobs.size(f"quarantine/{name}.0") is not None


def test_an_entry_under_another_key_is_a_miss(store: root.Store, make) -> None:
    actions.commit(store.blobs, actions.entry_of(make.call(1), make.result(1)))
    one, two = (f"actions/{key[:2]}/{key}" for key in (make.result(1).action_key, make.result(2).action_key))
    store.blobs.put(two, [store.blobs.get(one)])
    assert actions.load(store.blobs, make.result(2).action_key) is None
    body = actions.entry_of(make.call(1), make.result(1)).to_json()
    store.blobs.put(two, [root.seal(two, body)])
    assert actions.load(store.blobs, make.result(2).action_key) is None
    assert actions.load(store.blobs, make.result(1).action_key) is not None


def test_an_entry_with_unknown_fields_is_a_miss(store: root.Store, make) -> None:
    key = make.result(1).action_key
    name = f"actions/{key[:2]}/{key}"
    for body in ({}, [], None, {**actions.entry_of(make.call(1), make.result(1)).to_json(), "more": 1}):
        store.blobs.put(name, [root.seal(name, body)])
        assert actions.load(store.blobs, key) is None


def test_a_refresh_supersedes_and_keeps_both(store: root.Store, make) -> None:
    first, second, third = (actions.entry_of(make.call(1), make.result(1, loss=loss)) for loss in (0.5, 0.75, 0.875))
    for entry in (first, second, second, third):
        assert actions.supersede(store.blobs, entry) == entry.result
    assert actions.load(store.blobs, first.result.action_key) == third.result
    assert len(list(store.blobs.names("superseded/"))) == 2


def test_entries_are_read_in_order_of_their_keys(store: root.Store, make) -> None:
    for number in range(5):
        actions.commit(store.blobs, actions.entry_of(make.call(number), make.result(number)))
    found = [entry.result.action_key for entry in actions.entries(store.blobs)]
    assert found == sorted(make.result(number).action_key for number in range(5))


def test_the_inputs_digest_depends_on_arguments_ids_and_order(make) -> None:
    digests = {
        actions.inputs_digest(inputs)
        for inputs in ({"a": ["x", "y"]}, {"a": ["y", "x"]}, {"b": ["x", "y"]}, {"a": ["x"], "b": ["y"]}, {})
    }
    assert len(digests) == 5
    assert actions.inputs_digest({"b": ("y",), "a": ("x",)}) == actions.inputs_digest({"a": ["x"], "b": ["y"]})


def test_an_unresolved_input_has_no_ids(make) -> None:
    call = replace(make.call(1), inputs={"agent": Input((Edge(make.call(0).plan_key, "agent"),))})
    with pytest.raises(ValueError, match="not resolved"):
        actions.input_ids(call)


COMMIT = """
import sys
from dsec.core.stage import ActionKey, StageCall, StageResult
from dsec.store import actions, root
from dsec.store.catalog import Catalog, Recorded
store = root.open_store(sys.argv[1])
store.blobs.put("anchors/aa/output", [b"output"])
call = StageCall("i", "s", "p" * 64, "r" * 64)
result = StageResult(ActionKey("a" * 64), {"agent": "output"})
actions.commit(store.blobs, actions.entry_of(call, result))
store.blobs.sync()
with Catalog(store.catalog) as catalog:
    catalog.record_calls("run", [Recorded(call, "ran", result)])
"""

POINTS = {
    "store.blobs.put.before-write:2": (False, False),
    "store.actions.before-entry": (False, False),
    "store.blobs.put.after-temp:2": (False, False),
    "store.blobs.put.after-rename:2": (True, False),
    "store.actions.after-entry": (True, False),
    "store.catalog.before-commit:2": (True, False),
    "store.catalog.after-commit:2": (True, True),
}


def dangling(store: root.Store) -> bool:
    """Whether an entry names an output that is not there."""
    return any(store.blobs.size("anchors/aa/output") is None for _ in actions.entries(store.blobs))


def test_the_kill_test_would_notice_an_entry_before_its_outputs(store: root.Store, python) -> None:
    put = 'store.blobs.put("anchors/aa/output", [b"output"])\n'
    assert python(COMMIT.replace(put, "") + put, store.path).returncode == 0
    assert not dangling(store)
    for name in list(store.blobs.names("a")):
        store.blobs.remove(name)
    killed = python(COMMIT.replace(put, "") + put, store.path, DSEC_FAILPOINT="store.actions.after-entry")
    assert killed.returncode == -signal.SIGKILL
    assert dangling(store)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_the_steps_of_a_commit_is_repaired_by_the_next_try(store, python, point: str) -> None:
    filed, indexed = POINTS[point]
    assert python(COMMIT, store.path, DSEC_FAILPOINT=point).returncode == -signal.SIGKILL
    found = actions.load(store.blobs, "a" * 64)
    assert (found is not None) == filed
    assert not dangling(store)
    assert bool(hits.lookup(store.catalog, ["p" * 64])) == indexed
    done = python(COMMIT, store.path)
    assert done.returncode == 0, done.stderr
    assert actions.load(store.blobs, "a" * 64) is not None
    assert hits.lookup(store.catalog, ["p" * 64])
