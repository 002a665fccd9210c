from __future__ import annotations

from dsec.core.stage import ActionKey, AnchorId, Edge, Input, Placement, PlanKey, StageCall, StageResult
from dsec.engine.book import Book
from dsec.engine.timers import Timers
from dsec.plan.nodes import CallFacts, Retry

FACTS = CallFacts(Placement(), Retry(), 0, "a", True, "use", None)


def call(name: str, *needs: str) -> StageCall:
    sources = {f"x{i}": Input((Edge(PlanKey(need), "out"),)) for i, need in enumerate(needs)}
    return StageCall(name, "stage", PlanKey(name), "r", sources)  # type: ignore[arg-type]


def result(name: str) -> StageResult:
    return StageResult(ActionKey(name), {"out": AnchorId(f"anchor-{name}")})


def filled(*calls: StageCall) -> Book:
    book = Book()
    for one in calls:
        book.open(one, FACTS)
    return book


def test_a_result_is_kept_while_a_taken_call_needs_it() -> None:
    book = filled(call("a"), call("b", "a"))
    book.close(call("a"), result("a"))
    book.retire([PlanKey("a")])
    assert PlanKey("a") in book.results
    book.close(call("b"), result("b"))
    assert PlanKey("a") not in book.results
    assert PlanKey("b") in book.results


def test_a_result_whose_anchors_are_gone_is_kept_although_nobody_needs_it_now() -> None:
    book = filled(call("a"))
    book.close(call("a"), result("a"), absent=["out"])
    book.retire([PlanKey("a")])
    assert book.gone([AnchorId("anchor-a"), AnchorId("other")]) == {PlanKey("a"): "anchor-a"}
    assert book.output_name(PlanKey("a"), AnchorId("anchor-a")) == "out"
    book.reopen(PlanKey("a"))
    book.close(call("a"), result("a"))
    assert book.gone([AnchorId("anchor-a")]) == {}
    assert len(book) == 0


def test_a_lost_anchor_leads_to_the_call_that_made_it() -> None:
    book = filled(call("a"), call("b", "a"))
    book.close(call("a"), result("a"))
    assert book.lose(AnchorId("anchor-a")) == "a"
    assert book.lose(AnchorId("nobody's")) is None


def test_users_are_open_calls_in_plan_order() -> None:
    book = filled(call("a"), call("b", "a"), call("c", "a"), call("d", "a"))
    book.bury(PlanKey("c"), "c")
    assert book.users(PlanKey("a")) == ["b", "d"]
    assert book.cause_of_death([PlanKey("b"), PlanKey("c")]) == "c"


def test_timers_name_what_is_due_once() -> None:
    timers = Timers()
    timers.set(PlanKey("late"), 5.0)
    timers.set(PlanKey("soon"), 1.0)
    assert timers.wait(0.0, 10.0) == 1.0
    assert timers.due(1.0) == ["soon"]
    assert timers.due(1.0) == []
    assert timers.wait(4.5, 10.0) == 0.5
    assert bool(timers)
