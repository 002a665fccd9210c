from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsec.core.leaves import AnchorRef
from dsec.core.stage import AnchorId, Edge, Input, StageCall
from dsec.errors import (
    AbsentError,
    ClassMismatch,
    CodeMismatch,
    CorruptObject,
    NondeterminismError,
    StageError,
    StateError,
    UsageError,
)
from dsec.runtime import files, inputs
from dsec.runtime.facts import WorkerFacts
from dsec.runtime.stage import run_stage
from dsec.store import actions, anchors, layout, partial, root
from tests.unit.runtime.serial import LAB, Serial, agent, out, shown, small_session

ROOT = Path(__file__).parents[3]


def session_in_a_process(store: Path, seed: str = "0", **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "tests.unit.runtime.serial", str(store), "Drifter"]
    named = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, env=named, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = session_in_a_process(tmp_path_factory.mktemp("undisturbed"))
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["shown"])


# ---- the same at every run ---------------------------------------------------------------------------------


def test_a_session_is_equal_in_another_process_with_another_hash_seed(undisturbed: str, tmp_path: Path) -> None:
    done = session_in_a_process(tmp_path, seed="77", TZ="Asia/Tokyo")
    assert json.loads(done.stdout)["shown"] == undisturbed


KILLED_AT = ["rollout.mid:3", "stage.before-action:3"]
KILLED_AT_SLOW = [
    "stage.start:3",
    "init.body:1",
    "init.body:2",
    "rollout.mid:1",
    "rollout.mid:9",
    "stage.after-recovery-point:1",
    "stage.after-recovery-point:4",
    "stage.after-blobs:4",
    "stage.after-action:3",
    "evaluate.mid:2",
    "stage.before-action:8",
]


@pytest.mark.parametrize("point", [*KILLED_AT, *(pytest.param(p, marks=pytest.mark.slow) for p in KILLED_AT_SLOW)])
def test_a_session_that_was_killed_ends_as_one_left_alone(undisturbed: str, tmp_path: Path, point: str) -> None:
    killed = session_in_a_process(tmp_path, DSEC_FAILPOINT=point)
    assert killed.returncode == -signal.SIGKILL
    resumed = json.loads(session_in_a_process(tmp_path, seed="5").stdout)
    assert resumed["shown"] == undisturbed
    if point == "rollout.mid:3":
        assert any(step is not None and step > 0 for step in resumed["resumed"])


@pytest.mark.parametrize("name", ["Drifter", "Owner", "Net"])
def test_a_range_split_over_calls_gives_what_one_call_gives(run: Serial, name: str) -> None:
    run.session["agent"] = agent(name)
    begun = run.made("init.agent", "init_agent"), run.made("init.env", "init_env", stream="")
    given = {"agent": out(begun[0], "agent"), "env": out(begun[1], "env")}
    whole = run.made("whole", "rollout", given, steps=(0, 399))
    first = run.made("first", "rollout", given, steps=(0, 136))
    second = run.made("second", "rollout", {"state": out(first, "state")}, steps=(137, 399))
    for output in ("agent", "env", "state"):
        assert run.result(second).outputs[output] == run.result(whole).outputs[output]
    hashes = run.tree(whole, "trace")["hash"]
    assert (run.tree(second, "trace")["hash"] == hashes[137:]).all()


def test_a_state_kept_on_the_way_is_where_another_call_goes_on(run: Serial) -> None:
    run.session["agent"] = agent("Drifter")
    whole = run.made("whole", "rollout", steps=(0, 199), outputs=(("env", 50), ("state", 75)))
    names = set(run.result(whole).outputs)
    assert {name for name in names if "@" in name} == {
        *("state@75", "state@150", "state@199"),
        *("env@50", "env@100", "env@150", "env@199"),
    }
    rest = run.made("rest", "rollout", {"state": out(whole, "state@75")}, steps=(76, 199))
    assert run.result(rest).outputs["state"] == run.result(whole).outputs["state"]
    assert run.tree(whole, "state@75")["step"] == 76


# ---- hits --------------------------------------------------------------------------------------------------


def test_a_call_whose_inputs_are_the_same_again_is_a_cutoff(bare: Serial) -> None:
    one, same = bare.made("one", "one", config={"value": 2}), bare.made("same", "one", config={"value": 2})
    first = bare.run(bare.call("add", "add", {"left": out(one, "number")}))
    second = bare.run(bare.call("add", "add", {"left": out(same, "number")}))
    assert "cutoff" not in first.cost
    assert second.cost["cutoff"] is True
    assert second.same(first) and second.action_key == first.action_key


def test_refresh_runs_again_and_replaces_the_result(bare: Serial) -> None:
    call = bare.made("one", "one")
    again = bare.run(call, refresh=True)
    assert "cutoff" not in again.cost


def test_two_results_of_one_key_are_an_error_that_names_what_differs(bare: Serial) -> None:
    call = bare.call("one", "one")
    ours = bare.run(call)
    bound = inputs.resolved(call, {}, bare.store.blobs)
    other = replace(ours, stats={"x": 1})
    with pytest.raises(NondeterminismError, match="stat x"):
        actions.commit(bare.store.blobs, actions.entry_of(bound, other))


def test_the_recovery_point_goes_with_the_commit(run: Serial) -> None:
    run.facts = replace(run.facts, recovery_seconds=0.0)
    run.made("collect", "rollout", steps=(0, 63))
    assert list(run.store.blobs.names("partial/")) == []


# ---- what travels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 20, 400])
def test_results_stay_below_4_kib_whatever_a_body_makes(bare: Serial, count: int) -> None:
    call = bare.made("many", "many", config={"count": count})
    travelled = bare.result(call)
    assert len(travelled.to_json()) < 4096
    whole = inputs.full(travelled, bare.store.blobs)
    assert (travelled.index is None) == (count < 30)
    assert len(whole.outputs) == len(whole.stats) == count
    assert set(whole.sizes) == set(whole.outputs)
    if count:
        add = bare.made("add", "add", {"left": out(call, f"output_{count - 1}")})
        assert bare.tree(add, "sum") == count


def test_a_gather_comes_as_a_list_with_its_cells(bare: Serial) -> None:
    ones = [bare.made(f"one{k}", "one", config={"value": k}) for k in range(3)]
    cells = [(f"shard={k}", out(one, "number")) for k, one in enumerate(ones)]
    call = bare.made("gather", "gather", {"numbers": cells})
    assert bare.tree(call, "numbers") == [0, 1, 2]
    assert bare.tree(call, "cells") == ["shard=0", "shard=1", "shard=2"]


def test_a_long_gather_is_read_from_its_index(bare: Serial) -> None:
    ids = [anchors.put(bare.store.blobs, k).anchor_id for k in range(40)]
    labels = [f"shard={k}" for k in range(40)]
    listed = {"sources": [AnchorRef(one) for one in ids], "labels": labels}
    index = anchors.put(bare.store.blobs, listed).anchor_id
    whole = bare.made("gather", "gather", {"numbers": Input(tuple(ids), tuple(labels))})
    short = bare.call("gather", "gather", {"numbers": Input((), None, index)})
    found = bare.run(short)
    assert found.cost.get("cutoff") is True
    assert bare.tree(whole, "numbers") == list(range(40))


def test_torch_values_come_back_as_they_were(bare: Serial) -> None:
    call = bare.made("keeps", "keeps_all")
    types = bare.tree(bare.made("types", "shows_types", {"tree": out(call, "tree")}), "types")
    assert types == {
        "tensor": "Tensor",
        "again": "Tensor",
        "half": "Tensor",
        "parameter": "Parameter",
        "array": "ndarray",
        "mood": "Mood",
        "memory": "Memory",
        "net": "dict",
        "stream": "Generator",
        "torch_stream": "Generator",
    }
    tree = bare.tree(call, "tree")
    assert tree["tensor"] is tree["again"]
    assert str(tree["half"].dtype) == "torch.bfloat16"


# ---- users' mistakes ---------------------------------------------------------------------------------------


def test_a_failing_body_is_named_with_its_step_and_the_users_own_traceback(bare: Serial) -> None:
    with pytest.raises(StageError) as caught:
        bare.made("train@seed=0/fails", "fails", config={"at": 17})
    error = caught.value
    assert (error.instance, error.step) == ("train@seed=0/fails", 17)
    assert str(error) == f"train@seed=0/fails at step 17: body {LAB}:fails raised ValueError: bad lr"
    assert 'raise ValueError("bad lr")' in error.story
    assert "dsec/runtime" not in error.story


def test_a_failing_agent_is_named_with_the_step_it_failed_at(run: Serial) -> None:
    run.session["agent"] = agent("Stumbler")
    with pytest.raises(StageError, match=r"^collect at step 40: agent.step raised ValueError: bad lr$") as caught:
        run.made("collect", "rollout", steps=(0, 99))
    assert "lab.py" in caught.value.story


def test_an_output_that_cant_be_stored_is_named_by_stage_output_and_path(run: Serial) -> None:
    run.session["agent"] = agent("Caller")
    begun = run.made("init.agent", "init_agent")
    batch = run.made("collect", "rollout", {"agent": out(begun, "agent")}, steps=(0, 15))
    given = {"agent": out(begun, "agent"), "batch": out(batch, "batch")}
    with pytest.raises(StateError, match=r"^train@seed=0/learn: agent\.callback: function can't be kept"):
        run.made("train@seed=0/learn", "learn", given)


def test_a_state_that_cant_be_kept_after_a_rollout_is_named_the_same_way(run: Serial) -> None:
    run.session["agent"] = agent("Hoarder")
    with pytest.raises(StateError, match=r"^collect at step 16: agent\.seen\[0\]: function can't be kept"):
        run.made("collect", "rollout", steps=(0, 15))


@pytest.mark.parametrize(
    ("body", "config", "outputs", "message"),
    [
        ("gives_list", {}, (), "returned list, expected a dict of outputs"),
        ("gives_nothing", {}, (("model", None),), "did not return|returned NoneType"),
        ("one", {}, (("model", None),), "did not return the output 'model'; it returned number"),
        ("add", {"left": 1}, (("sum", None), ("product", None)), "did not return the output 'product'"),
        ("many", {"count": 2}, (("output_0", None),), "returned 'output_1', which is not declared"),
        ("typed", {"leave_out": True}, (), "did not return the output 'right'"),
        ("typed", {"extra": True}, (), "returned 'middle', which is not declared"),
        ("exits", {}, (), "raised SystemExit: 3"),
        ("asks", {}, (), "is not supported yet"),
        ("nobody", {}, (), "has no 'nobody'"),
        ("one", {"valeu": 2}, (), "unexpected keyword argument 'valeu'"),
    ],
)
def test_a_body_that_gives_what_it_may_not_is_told_so(
    bare: Serial, body: str, config: dict[str, object], outputs: tuple[tuple[str, None], ...], message: str
) -> None:
    with pytest.raises(StageError, match=message) as caught:
        bare.made("stage", body, config=config, outputs=outputs)
    assert caught.value.instance == "stage"


def test_the_path_of_what_cant_be_stored_goes_into_nested_values(bare: Serial) -> None:
    with pytest.raises(StateError) as caught:
        bare.made("stage", "gives_function")
    assert caught.value.where == "stage: model.layers[1].activation"


def test_a_body_may_give_nothing(bare: Serial) -> None:
    assert bare.result(bare.made("stage", "gives_nothing")).outputs == {}


def test_an_output_that_was_not_made_is_named_with_those_that_were(bare: Serial) -> None:
    one = bare.made("one", "one")
    with pytest.raises(StageError, match="it takes the output 'nubmer' of a call that made number"):
        bare.made("add", "add", {"left": out(one, "nubmer")})


def test_an_argument_in_inputs_and_with_is_refused(bare: Serial) -> None:
    one = bare.made("one", "one")
    with pytest.raises(StageError, match="'left' stands in `inputs` and in `with`"):
        bare.made("add", "add", {"left": out(one, "number")}, config={"left": 3})


def test_metrics_are_stats(bare: Serial) -> None:
    call = bare.made("stage", "measures")
    assert bare.result(call).stats == {"loss": 0.5, "name": "x"}


# ---- damage ------------------------------------------------------------------------------------------------


def damaged(run: Serial, anchor_id: AnchorId) -> None:
    path = run.store.path / layout.anchor_name(anchor_id)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


def test_a_damaged_input_names_its_anchor_and_who_can_make_it_again(bare: Serial) -> None:
    one = bare.made("one", "one")
    anchor_id = bare.result(one).outputs["number"]
    damaged(bare, anchor_id)
    call = bare.call("add", "add", {"left": out(one, "number")})
    with pytest.raises(CorruptObject, match=anchor_id) as caught:
        bare.run(call)
    assert caught.value.producer == (one.plan_key, "number")  # type: ignore[attr-defined]
    assert caught.value.anchor_id == anchor_id  # type: ignore[attr-defined]
    with pytest.raises(AbsentError) as gone:  # in quarantine by now
        bare.run(call)
    assert gone.value.argument == "left"  # type: ignore[attr-defined]
    bare.run(one, refresh=True)
    assert bare.tree(bare.made("add", "add", {"left": out(one, "number")}), "sum") == 2


def test_a_damaged_recovery_point_counts_as_none(bare: Serial) -> None:
    bare.facts = replace(bare.facts, recovery_seconds=0.0)
    call = bare.call("climbs", "climbs")
    key = bare.result(bare.made("climbs", "climbs")).action_key
    partial.save(bare.store.blobs, key, {"tree": 1})
    path = next((bare.store.path / "partial").rglob(key))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-3])
    assert bare.run(call, refresh=True).cost["resumed_from_step"] is None


# ---- the worker --------------------------------------------------------------------------------------------


def test_a_worker_of_another_class_refuses(bare: Serial) -> None:
    call = bare.call("one", "one", class_id="a" * 64)
    with pytest.raises(ClassMismatch, match="one: worker serial is of class unknown, the key names aaaaaaaaaaaa"):
        bare.run(call)
    bare.facts = WorkerFacts(class_id="a" * 64)
    assert bare.run(call).outputs


def test_a_level_of_numerics_that_is_not_there_is_refused(bare: Serial) -> None:
    with pytest.raises(StageError, match="numerics: portable is not supported yet"):
        bare.made("one", "one", numerics="portable")


def test_modules_loaded_from_other_sources_are_refused(bare: Serial) -> None:
    root.put_json(bare.store, "code/bundles/" + "b" * 64, {"digests": {LAB: "f" * 64}})
    call = replace(bare.call("one", "one"), bundle="b" * 64)
    with pytest.raises(CodeMismatch, match=f"one: this worker has loaded another version of {LAB}"):
        bare.run(call)
    root.put_json(bare.store, "code/bundles/" + "c" * 64, {"digests": {"tests.unit.nowhere": "f" * 64}})
    assert bare.run(replace(call, bundle="c" * 64)).outputs


def test_the_cost_says_where_it_ran_and_the_entry_who_made_it(bare: Serial) -> None:
    bare.facts = WorkerFacts("gpu", "cpu", "gpu-1", None, "run-7")
    result = bare.run(bare.call("one", "one"))
    assert {name: result.cost[name] for name in ("kind", "device", "worker", "attempt")} == {
        "kind": "gpu",
        "device": "cpu",
        "worker": "gpu-1",
        "attempt": 0,
    }
    assert result.cost["seconds"] > 0
    entry = actions.read(bare.store.blobs, result.action_key)
    assert entry is not None and entry.produced_by["run"] == "run-7"


def test_a_stage_that_draws_from_global_generators_is_reported_and_equal_all_the_same(bare: Serial) -> None:
    call = bare.call("stage", "draws_globally")
    first = bare.run(call)
    assert first.cost["touched"] == ["random", "numpy.random", "torch"]
    again = bare.run(call, refresh=True)
    assert again.same(first)


def test_a_result_that_was_not_given_is_an_error(bare: Serial) -> None:
    call: StageCall = bare.call("add", "add", {"left": Edge("a" * 64, "number")})
    with pytest.raises(StageError, match="was not given"):
        run_stage(call, {}, bare.store, bare.facts)


# ---- files -------------------------------------------------------------------------------------------------


def test_declared_files_have_the_content_of_their_digest(bare: Serial) -> None:
    digest = files.put(bare.store.blobs, b"one two")
    declared = bare.made("reads", "reads", files={"words.txt": digest})
    assert bare.tree(declared, "text") == "one two"
    with_file = bare.made("reads", "reads", config={"table": {"file": "data/t.csv", "digest": digest}})
    assert bare.tree(with_file, "text") == "one two"
    assert bare.tree(with_file, "name") == "t.csv"


def test_undeclared_files_are_refused(bare: Serial) -> None:
    with pytest.raises(UsageError, match=r"the file 'words.txt' is not declared"):
        bare.made("reads", "reads")


def test_a_file_that_is_not_in_the_store_is_absent(bare: Serial) -> None:
    with pytest.raises(AbsentError):
        bare.made("reads", "reads", files={"words.txt": "e" * 64})


def test_the_small_session_is_equal_in_two_stores(run: Serial, tmp_path: Path) -> None:
    other = Serial(root.open_store(tmp_path / "other"), session=run.session)
    assert shown(run, small_session(run)) == shown(other, small_session(other))
