from dataclasses import replace
from pathlib import Path

import pytest

from dsec.core.stage import StageResult
from dsec.store import actions, hits, root
from dsec.store.catalog import Catalog, Recorded


@pytest.fixture
def path(store: root.Store, make) -> Path:
    rows = [Recorded(make.call(number), "ran", make.result(number), 1.5) for number in range(3)]
    rows.append(Recorded(make.call(3), "failed", None, 0.5, {"code": "stage", "message": "it broke"}))
    with Catalog(store.catalog) as catalog:
        catalog.record_calls("run", rows)
    return store.catalog


def test_known_plan_keys_give_inputs_digest_and_result(path: Path, make) -> None:
    asked = [make.call(number).plan_key for number in (2, 0, 3, 9)]
    found = hits.lookup(path, asked)
    assert set(found) == {make.call(0).plan_key, make.call(2).plan_key}
    digest, text = found[make.call(2).plan_key]
    assert digest == actions.inputs_digest(actions.input_ids(make.call(2)))
    assert StageResult.from_json(text) == make.result(2)


def test_nothing_asked_is_nothing_found(path: Path) -> None:
    assert hits.lookup(path, []) == {}


def test_a_large_batch_is_one_query(path: Path, make) -> None:
    asked = [make.digest("none", number) for number in range(40_000)]
    assert set(hits.lookup(path, [*asked, make.call(1).plan_key])) == {make.call(1).plan_key}


def test_a_missing_catalog_knows_nothing_and_is_not_made(tmp_path: Path, make) -> None:
    path = tmp_path / "catalog.db"
    assert hits.lookup(path, ["x"]) == {}
    assert hits.run_calls(path, "run") == []
    assert hits.key_parts(path, ["x"]) == {}
    assert not path.exists()


def test_an_empty_or_damaged_catalog_knows_nothing(tmp_path: Path) -> None:
    for content in (b"", b"no database at all" * 100):
        path = tmp_path / "catalog.db"
        path.write_bytes(content)
        assert hits.lookup(path, ["x"]) == {}


def test_a_catalog_being_written_can_be_read(path: Path, make) -> None:
    with Catalog(path) as catalog, catalog.transaction():
        assert hits.lookup(path, [make.call(1).plan_key])


def test_key_parts_come_back(path: Path, make) -> None:
    call = make.call(1)
    (parts,) = hits.key_parts(path, [call.plan_key, "none"]).values()
    assert parts == hits.Parts(
        call.plan_key,
        actions.inputs_digest(actions.input_ids(call)),
        make.result(1).action_key,
        call.recipe,
        (10, 19),
        call.stream,
        actions.input_ids(call),
    )


def test_key_parts_without_steps(store: root.Store, make) -> None:
    with Catalog(store.catalog) as catalog:
        catalog.record_calls("run", [Recorded(replace(make.call(1), steps=None), "ran", make.result(1))])
    (parts,) = hits.key_parts(store.catalog, [make.call(1).plan_key]).values()
    assert parts.steps is None


def test_calls_of_a_run_come_back(path: Path, make) -> None:
    ran, *_, failed = hits.run_calls(path, "run")
    assert (ran.instance, ran.status, ran.seconds) == ("train@seed=0#0/learn", "ran", 1.5)
    assert (ran.outputs, ran.stats, ran.cost) == (make.result(0).outputs, {"loss": 0.5}, {"seconds": 1.5})
    assert failed.error == {"code": "stage", "message": "it broke"}
    assert failed.action_key is None
    assert hits.run_calls(path, "other") == []


def test_a_path_with_odd_characters_is_opened(tmp_path: Path, make) -> None:
    folder = tmp_path / "100% odd?#ü"
    folder.mkdir()
    with Catalog(folder / "catalog.db") as catalog:
        catalog.record_calls("run", [Recorded(make.call(1), "ran", make.result(1))])
    assert hits.lookup(folder / "catalog.db", [make.call(1).plan_key])


def test_the_hot_path_imports_nothing_heavy(python) -> None:
    code = """
import sys
from dsec.store import actions, blobs, hits, root, runs, system, tags
print(sorted({"numpy", "sqlalchemy", "torch", "zarr", "psutil", "rich", "dask"} & set(sys.modules)))
"""
    assert python(code).stdout == "[]\n"
