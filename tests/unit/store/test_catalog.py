import datetime
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from dsec.core import session as sessions
from dsec.core.stage import Edge, Input
from dsec.errors import StoreError, StoreFull
from dsec.store import actions, hits, root, runs, tables, tags
from dsec.store.catalog import Catalog, Recorded
from dsec.store.reindex import reindex

NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as found:
        return sorted(found.execute(f"SELECT * FROM {table}").fetchall(), key=repr)


def recorded(make, *numbers: int) -> list[Recorded]:
    return [Recorded(make.call(number), "ran", make.result(number), 1.0) for number in numbers]


def test_the_steps_of_migration_make_the_tables_that_are_used(store: root.Store) -> None:
    Catalog(store.catalog).close()
    engine = sa.create_engine(f"sqlite:///{store.catalog}")
    found = sa.MetaData()
    found.reflect(engine)
    engine.dispose()
    assert {name: _columns(table) for name, table in found.tables.items()} == {
        name: _columns(table) for name, table in tables.metadata.tables.items()
    }


def _columns(table: sa.Table) -> list[tuple[str, bool, bool, str]]:
    dialect = sa.create_engine("sqlite://").dialect
    return [
        (c.name, c.primary_key, bool(c.nullable), c.type.compile(dialect).replace("REAL", "DOUBLE"))
        for c in table.columns
    ]


def test_a_catalog_of_a_newer_schema_is_refused(store: root.Store) -> None:
    with closing(sqlite3.connect(store.catalog)) as made:
        made.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"catalog\.db: .*schema 99.*delete catalog\.db"):
        Catalog(store.catalog)


def test_a_damaged_catalog_is_named_with_the_way_out(store: root.Store) -> None:
    store.catalog.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"catalog\.db.*not a database.*delete catalog\.db"):
        Catalog(store.catalog)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="none/catalog"):
        Catalog(tmp_path / "none" / "catalog.db")


def test_recording_twice_changes_nothing(store: root.Store, make) -> None:
    with Catalog(store.catalog) as catalog:
        catalog.record_calls("run", recorded(make, 1, 2))
        before = {name: rows(store.catalog, name) for name in tables.metadata.tables}
        catalog.record_calls("run", recorded(make, 2, 1))
        catalog.record_calls("run", [])
    assert {name: rows(store.catalog, name) for name in tables.metadata.tables} == before


def test_a_call_without_known_inputs_is_recorded_without_key_parts(store: root.Store, make) -> None:
    call = replace(make.call(1), inputs={"agent": Input((Edge(make.call(0).plan_key, "agent"),))})
    with Catalog(store.catalog) as catalog:
        catalog.record_calls("run", [Recorded(call, "skipped")])
    assert [row.status for row in hits.run_calls(store.catalog, "run")] == ["skipped"]
    assert hits.key_parts(store.catalog, [call.plan_key]) == {}


def test_a_refreshed_plan_key_leads_to_its_last_inputs(store: root.Store, make) -> None:
    call, result = make.call(1), make.result(1)
    fresh = replace(call, inputs={"agent": Input((make.digest("other"),))})
    with Catalog(store.catalog) as catalog:
        catalog.record_calls("one", [Recorded(call, "ran", result)])
        catalog.record_calls("two", [Recorded(fresh, "ran", make.result(2))])
    found = hits.lookup(store.catalog, [call.plan_key])[call.plan_key]
    assert found == (actions.inputs_digest({"agent": [make.digest("other")]}), make.result(2).to_json())


def test_an_error_inside_a_transaction_takes_all_of_it_back(store: root.Store, make) -> None:
    with Catalog(store.catalog) as catalog:
        with pytest.raises(RuntimeError), catalog.transaction() as connection:
            connection.execute(sa.insert(tables.actions), [{"action_key": "a", "result": "{}"}])
            raise RuntimeError
        assert rows(store.catalog, "actions") == []
        catalog.record_calls("run", recorded(make, 1))
    assert len(rows(store.catalog, "actions")) == 1


def test_drivers_that_open_a_new_catalog_together_all_get_it(tmp_path: Path, make) -> None:
    def drive(number: int) -> None:
        with Catalog(tmp_path / "catalog.db") as catalog:
            for turn in range(10):
                catalog.record_calls(f"run {number}", recorded(make, number * 100 + turn))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(drive, range(6)))
    assert len(rows(tmp_path / "catalog.db", "calls")) == 60
    assert len(rows(tmp_path / "catalog.db", "plans")) == 60


def test_one_catalog_serves_several_threads(store: root.Store, make) -> None:
    with Catalog(store.catalog) as catalog, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: catalog.record_calls("run", recorded(make, n)), range(20)))
    assert len(rows(store.catalog, "calls")) == 20


def test_a_local_catalog_uses_wal_and_says_nothing(store: root.Store) -> None:
    with Catalog(store.catalog) as catalog, catalog.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert catalog.notice == ""


def test_on_a_network_file_system_wal_is_refused_and_said(store: root.Store, make) -> None:
    Catalog(store.catalog).close()
    with Catalog(store.catalog, filesystem=lambda path: "nfs4") as catalog:
        with catalog.transaction() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "delete"
        assert "nfs4" in catalog.notice
        catalog.record_calls("run", recorded(make, 1))
    assert hits.lookup(store.catalog, [make.call(1).plan_key])


def test_a_full_disk_is_named(small_disk: Path, make) -> None:
    with Catalog(small_disk / "catalog.db") as catalog:
        with pytest.raises(StoreFull, match=r"catalog\.db.*full"):
            catalog.record_calls("run", recorded(make, *range(1000)))
        (small_disk / "catalog.db-wal").stat()
        assert hits.lookup(small_disk / "catalog.db", [make.call(1).plan_key]) == {}


def test_a_session_with_a_huge_seed_is_recorded(store: root.Store) -> None:
    session = sessions.new_session("f" * 64, NOON, sessions.Deciding("a", None, None, 2**100, None))
    with Catalog(store.catalog) as catalog:
        catalog.record_sessions([("f" * 64, session)])
    ((session_id, found_by, *_, seed, _, stamp),) = rows(store.catalog, "sessions")
    assert (session_id, found_by, seed) == (session.session_id, "f" * 64, str(2**100))
    assert stamp == session.creation_timestamp


def test_tags_are_found_by_session_stage_and_step(store: root.Store) -> None:
    given = [tags.Tagged(f"id{n}", tag, "s1", "simulate", n) for n in range(6) for tag in ("kept", f"n{n}")]
    given.append(tags.Tagged("free", "kept"))
    with Catalog(store.catalog) as catalog:
        catalog.record_tags(given)
        catalog.record_tags(given)
        assert catalog.tagged() == sorted(given, key=lambda t: (t.session_id or "", t.step or 0, t.anchor_id, t.tag))
        found = catalog.tagged(["kept", "other"], session="s1", stage="simulate", step=(2, 4))
        assert [one.anchor_id for one in found] == ["id2", "id3", "id4"]
        assert catalog.tagged(["kept"], session="s2") == []


def test_reindex_makes_the_same_catalog_anew(store: root.Store, make) -> None:
    session = sessions.new_session("f" * 64, NOON, sessions.Deciding("a", "e", None, 0, 10))
    runs.put_session(store, "f" * 64, session)
    run = runs.start_run(store, "1" * 64, NOON, plan="ppo", facts={"params": {"n": 1}})
    made = recorded(make, *range(5))
    for row in made:
        actions.commit(store.blobs, actions.entry_of(row.call, row.result, {"run": run.run_id}))
    cutoff = Recorded(replace(made[0].call, plan_key=make.digest("another"), instance="x"), "hit", made[0].result)
    run = runs.finish_run(
        store, run, runs.End("done", "now", 3.5, {"calls": 6}), [row.brief() for row in [*made, cutoff]]
    )
    tag = tags.Tagged("id", "best", session.session_id, "eval", 9)
    tags.put_tag(store.blobs, tag)
    with Catalog(store.catalog) as catalog:
        catalog.record_sessions([("f" * 64, session)])
        catalog.record_calls(run.run_id, [*made, cutoff])
        catalog.record_run(run)
        catalog.record_tags([tag])
    essential = ["sessions", "runs", "plans", "actions", "tags"]
    before = {name: rows(store.catalog, name) for name in essential}
    for file in store.path.glob("catalog.db*"):
        file.unlink()
    with Catalog(store.catalog) as catalog:
        assert reindex(store, catalog) == (1, 1, 5, 1)
        assert reindex(store, catalog) == (1, 1, 5, 1)
    assert {name: rows(store.catalog, name) for name in essential} == before
    assert [row.status for row in hits.run_calls(store.catalog, run.run_id)] == ["ran"] * 5 + ["hit"]


def test_reindex_forgets_what_the_store_does_not_have(store: root.Store, make) -> None:
    with Catalog(store.catalog) as catalog:
        catalog.record_calls("run", recorded(make, 1))
        reindex(store, catalog)
    assert hits.lookup(store.catalog, [make.call(1).plan_key]) == {}
