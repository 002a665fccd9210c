import datetime
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dsec.core import session as sessions
from dsec.errors import CorruptObject, UsageError
from dsec.store import root, runs, tags
from dsec.store.runs import Call, End

NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
PLAN = "a1" * 32
DONE = End("done", "2026-01-31T12:00:09.000Z", 8.75, {"calls": 2, "hits": 1, "ran": 1})
CALLS = [
    Call("train@seed=0#0/learn", "train.learn", "ran", "p" * 64, "k" * 64, 1.25),
    Call("eval@seed=0", "eval", "failed", "q" * 64, None, 0.5, "line one\nline two, ü"),
]


def later(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def test_a_run_is_read_as_it_was_written(store: root.Store) -> None:
    run = runs.start_run(store, PLAN, NOON, plan="ppo", facts={"params": {"n": 1}, "path": "plans/ppo.yaml"})
    assert run.run_id.startswith("20260131-120000-")
    assert run.started == "2026-01-31T12:00:00.250Z"
    assert runs.get_run(store, run.run_id) == run
    assert runs.calls(store, run) is None
    ended = runs.finish_run(store, run, DONE, CALLS)
    assert ended == replace(run, end=DONE)
    assert runs.get_run(store, run.run_id) == ended
    assert runs.calls(store, run) == CALLS


def test_a_run_of_no_calls_has_an_empty_list(store: root.Store) -> None:
    run = runs.start_run(store, PLAN, NOON)
    runs.finish_run(store, run, DONE)
    assert runs.calls(store, run) == []


def test_times_are_written_in_utc(store: root.Store) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    run = runs.start_run(store, PLAN, NOON.astimezone(zone))
    assert run.started == "2026-01-31T12:00:00.250Z"


def test_the_first_end_of_a_run_stays(store: root.Store) -> None:
    run = runs.start_run(store, PLAN, NOON)
    runs.finish_run(store, run, DONE)
    assert runs.finish_run(store, run, replace(DONE, status="failed")).end == DONE


def test_runs_are_listed_oldest_first(store: root.Store) -> None:
    made = [runs.start_run(store, identity * 32, later(s)) for identity, s in (("c3", 2), ("a1", 3), ("b2", 1))]
    assert runs.all_runs(store) == [made[2], made[0], made[1]]


START = """
import datetime, sys
from dsec.store import root, runs
noon = datetime.datetime.fromisoformat(sys.argv[2])
print(runs.start_run(root.open_store(sys.argv[1]), sys.argv[3], noon).run_id, end="")
"""


def test_the_newest_run_without_an_end_and_without_a_living_driver_is_found(store: root.Store, python) -> None:
    for seconds in (1, 2, 3):
        abandoned = python(START, store.path, later(seconds).isoformat(), PLAN).stdout
        if seconds == 2:
            newest = abandoned
    runs.finish_run(store, runs.get_run(store, abandoned), DONE)
    runs.start_run(store, PLAN, later(9))  # this process drives it
    python(START, store.path, later(8).isoformat(), PLAN[:16] + "0" * 48)  # another plan with the same folder
    found = runs.unfinished(store, PLAN)
    assert found is not None
    assert found.run_id == newest
    resumed = runs.resume_run(store, found)
    assert runs.get_run(store, newest) == resumed
    assert runs.unfinished(store, PLAN) != resumed


def test_no_run_at_all_is_none(store: root.Store) -> None:
    assert runs.unfinished(store, PLAN) is None
    assert runs.all_runs(store) == []


FINISH = (
    START
    + """
store = root.open_store(sys.argv[1])
run = runs.all_runs(store)[-1]
call = runs.Call("i", "s", "hit", "p" * 64, "k" * 64)
runs.finish_run(store, run, runs.End("done", "", 1.0), [call])
"""
)


@pytest.mark.parametrize("point", ["store.runs.after-start", "store.runs.before-end", "store.blobs.put.after-temp:3"])
def test_a_kill_before_the_end_leaves_a_run_that_can_go_on(store: root.Store, python, point: str) -> None:
    killed = python(FINISH, store.path, NOON.isoformat(), PLAN, DSEC_FAILPOINT=point)
    assert killed.returncode == -signal.SIGKILL
    run = runs.unfinished(store, PLAN)
    assert run is not None
    assert runs.finish_run(store, runs.resume_run(store, run), DONE, CALLS).end == DONE
    assert runs.calls(store, run) == CALLS


def test_a_run_is_found_by_the_beginning_of_its_id_or_of_its_last_part(store: root.Store) -> None:
    first, second = (runs.start_run(store, PLAN, later(s)) for s in (0, 61))
    assert runs.get_run(store, "20260131-1200") == first
    assert runs.get_run(store, second.run_id[-6:]) == second
    with pytest.raises(UsageError, match=r"2 runs begin with '2026'.*give more"):
        runs.get_run(store, "2026")
    for prefix in ("none", ""):
        with pytest.raises(UsageError, match="no run begins with"):
            runs.get_run(store, prefix)


def test_a_damaged_run_does_not_hide_the_others(store: root.Store) -> None:
    bad, good = (runs.start_run(store, PLAN, later(s)) for s in (0, 1))
    store.blobs.replace(f"runs/{PLAN[:16]}/{bad.run_id}.json", [b"{}"])
    assert runs.all_runs(store) == [good]
    with pytest.raises(UsageError):
        runs.get_run(store, bad.run_id)


@pytest.mark.parametrize("keep", [0, 30, 65, 70, -1])
def test_a_damaged_list_of_calls_is_an_error_once(store: root.Store, keep: int) -> None:
    run = runs.start_run(store, PLAN, NOON)
    runs.finish_run(store, run, DONE, CALLS)
    name = f"runs/{PLAN[:16]}/{run.run_id}.calls"
    store.blobs.replace(name, [store.blobs.get(name)[:keep]])
    with pytest.raises(CorruptObject, match=run.run_id):
        runs.calls(store, run)
    assert runs.calls(store, run) is None


def test_a_long_list_of_calls_is_small(store: root.Store, make) -> None:
    made = [
        Call(f"train@seed=0#{n}/learn", "train.learn", "hit", make.digest("p", n), make.digest("k", n))
        for n in range(1000)
    ]
    run = runs.start_run(store, PLAN, NOON)
    runs.finish_run(store, run, DONE, iter(made))
    assert runs.calls(store, run) == made
    size = store.blobs.size(f"runs/{PLAN[:16]}/{run.run_id}.calls")
    assert size is not None
    assert size < 100 * len(made)


def test_the_same_session_is_found_again(store: root.Store) -> None:
    deciding = sessions.Deciding("agent", "env", None, 7, 100)
    found_by = sessions.identity(deciding, "ppo", {"seed": 7})
    assert runs.get_session(store, found_by) is None
    first = runs.put_session(store, found_by, sessions.new_session(found_by, NOON, deciding))
    again = runs.put_session(store, found_by, sessions.new_session(found_by, later(60), deciding))
    assert again == first == runs.get_session(store, found_by)
    assert list(runs.all_sessions(store)) == [(found_by, first)]


def test_drivers_that_make_a_session_together_agree(store: root.Store) -> None:
    deciding = sessions.Deciding("agent", "env", None, 7, 100)

    def make_one(number: int) -> sessions.Session:
        return runs.put_session(store, PLAN, sessions.new_session(PLAN, later(number), deciding))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make_one, range(8)))) == 1


def test_tags_are_kept_once_each(store: root.Store) -> None:
    given = [tags.Tagged("aa11", "best", "s", "eval", 3), tags.Tagged("aa11", "kept"), tags.Tagged("bb22", "best")]
    for tag in [*given, *given]:
        tags.put_tag(store.blobs, tag)
    assert sorted(tags.all_tags(store), key=repr) == sorted(given, key=repr)
