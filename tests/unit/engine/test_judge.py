from __future__ import annotations

from dataclasses import replace

import pytest

from dsec.core.stage import Edge, Input, Placement, PlanKey, StageCall
from dsec.engine import judge
from dsec.engine.borders import Erred, Killed
from dsec.errors import (
    AbsentError,
    ClassMismatch,
    CorruptObject,
    NondeterminismError,
    OutOfMemory,
    StageError,
    StageTimeout,
    StoreFull,
    WorkerLost,
)
from dsec.plan.nodes import CallFacts, Retry

KEY, OTHER = PlanKey("k"), PlanKey("o")
CALL = StageCall("train@seed=0#1/learn", "train.learn", KEY, "r", timeout=2.0)  # type: ignore[arg-type]


def verdict(erred: Erred, *flying: PlanKey, overdue: bool = False) -> tuple[str, type, bool]:
    found = judge.verdict(erred, CALL, frozenset(flying), overdue=overdue)
    return found.cause, type(found.error), found.certain


def death(**fields: object) -> Erred:
    return Erred(KEY, RuntimeError(), Killed("tcp://w", frozenset(), **fields))  # type: ignore[arg-type]


def test_a_death_is_certainly_a_calls_fault_if_its_worker_was_running_it() -> None:
    assert verdict(death(), KEY) == ("worker-lost", WorkerLost, True)
    assert verdict(death(), OTHER) == ("innocent", WorkerLost, True)
    assert verdict(death()) == ("worker-lost", WorkerLost, False)


def test_a_call_that_was_alone_at_its_worker_is_certainly_to_blame() -> None:
    assert verdict(death(sole=True)) == ("worker-lost", WorkerLost, True)


def test_a_worker_that_the_driver_ended_was_over_its_time_or_is_nobodys_fault() -> None:
    assert verdict(death(ours=True), overdue=True) == ("timeout", StageTimeout, True)
    assert verdict(death(ours=True)) == ("innocent", WorkerLost, True)


def test_a_death_for_memory_names_stage_size_and_limit() -> None:
    assert verdict(death(rss=3 << 30, limit=2 << 30), KEY) == ("oom", OutOfMemory, True)
    assert verdict(death(rss=3 << 30, limit=2 << 30)) == ("worker-lost", OutOfMemory, False)
    message = str(judge.verdict(death(rss=3 << 30, limit=2 << 30), CALL, frozenset({KEY}), overdue=False).error)
    assert "stage train.learn held 3GiB" in message
    assert "limit is 2GiB" in message


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StoreFull("x"), "fatal"),
        (ClassMismatch("x"), "fatal"),
        (CorruptObject("x"), "input"),
        (AbsentError("x"), "input"),
        (NondeterminismError("x"), "final"),
        (OutOfMemory("x"), "oom"),
        (StageTimeout("x"), "timeout"),
        (StageError("x"), "error"),
    ],
)
def test_what_a_body_raises_is_judged_by_its_kind(error: Exception, cause: str) -> None:
    assert verdict(Erred(KEY, error)) == (cause, type(error), True)


def test_an_exception_of_dask_or_a_user_is_a_stage_error() -> None:
    assert verdict(Erred(KEY, ZeroDivisionError("division by zero"))) == ("error", StageError, True)
    assert verdict(Erred(KEY, RuntimeError("lost"), cancelled=True)) == ("innocent", WorkerLost, True)


def test_retries_are_the_plans() -> None:
    assert judge.tries(Retry()) == {"worker-lost": 3}
    assert judge.tries(Retry(2, 1.0, frozenset({"oom", "error"}))) == {"error": 2, "oom": 2}


def test_a_call_with_a_long_gather_or_a_refresh_is_sent_alone() -> None:
    facts = CallFacts(Placement(), Retry(), 0, "seed=0", True, "use", None)
    gather = Input(tuple(Edge(PlanKey(f"{i}"), "out") for i in range(17)), tuple("abcdefghijklmnopq"))
    assert not judge.link(CALL, facts, frozenset()).alone
    assert judge.link(replace(CALL, inputs={"x": gather}), facts, frozenset()).alone
    assert judge.link(CALL, replace(facts, cache="refresh"), frozenset()).alone


def test_the_last_word_tells_how_often_it_was_tried() -> None:
    once = judge.final(StageError("it fails", instance="a"), "error", 1)
    assert str(once) == "a: it fails"
    assert "tried 3 times" in str(judge.final(StageError("it fails", instance="a"), "error", 3))
    assert "died 4 times" in str(judge.final(WorkerLost("its worker died", instance="a"), "worker-lost", 4))
