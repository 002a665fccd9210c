from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_simulator import Cluster, capacity, chain, fan, offer

from dsec.core.stage import PlanKey
from dsec.engine import moves
from dsec.engine.window import Window


def test_three_calls_per_slot_until_their_pace_is_known() -> None:
    window = Window()
    offer(window, *fan(1000))
    window.on(moves.Resized(capacity(2)))
    assert sum(len(batch.keys) for batch in window.admit()) == 6
    assert window.admit() == []


def test_short_calls_fill_the_window_with_a_fifth_of_a_second_of_work() -> None:
    window = Window()
    links = offer(window, *fan(2000))
    cluster = Cluster(window, capacity(2), links, lambda link: 0.01)
    cluster.run()
    assert len(cluster.ended) == 2000
    assert 35 <= cluster.most_flying <= 45


def test_trivial_calls_are_bounded_by_number() -> None:
    window = Window()
    cluster = Cluster(window, capacity(2), offer(window, *fan(5000)), lambda link: 0.0001)
    cluster.run()
    assert cluster.most_flying == 256
    assert cluster.admissions < 100


def test_a_chain_goes_in_batches_of_many_links_and_on_before_they_end() -> None:
    window = Window()
    cluster = Cluster(window, capacity(2), offer(window, *chain("a", 1000)), lambda link: 0.002)
    cluster.run()
    assert cluster.ended == [PlanKey(f"a/{i}") for i in range(1000)]
    assert max(map(len, cluster.batches)) >= 64
    assert len(cluster.batches) < 40


def test_long_links_are_sent_a_few_at_a_time() -> None:
    window = Window()
    cluster = Cluster(window, capacity(2), offer(window, *chain("a", 30)), lambda link: 60.0)
    cluster.run()
    assert max(map(len, cluster.batches)) == 3


def test_every_slot_gets_a_lane() -> None:
    window = Window()
    lanes = [chain(f"lane-{lane}", 20) for lane in range(8)]
    links = [link for turn in zip(*lanes, strict=True) for link in turn]
    cluster = Cluster(window, capacity(4), offer(window, *links), lambda link: 1.0)
    cluster.run()
    assert cluster.now == pytest.approx(8 * 20 / 4, rel=0.1)


def test_lanes_share_a_slot_so_that_it_runs_one_while_another_is_on_its_way() -> None:
    window = Window()
    lanes = [chain(f"lane-{lane}", 200) for lane in range(10)]
    links = [link for turn in zip(*lanes, strict=True) for link in turn]
    cluster = Cluster(window, capacity(2), offer(window, *links), lambda link: 0.001)
    cluster.run()
    longest = max(map(len, cluster.batches))
    assert 30 <= longest <= 43


def test_parts_of_a_fan_out_wait_for_their_parent_and_go_to_all_slots() -> None:
    window = Window()
    begin = moves.Link(PlanKey("begin"), "begin", "a", "cpu")
    links = offer(window, begin, *fan(8, frozenset({begin.key}), lane="a"))
    cluster = Cluster(window, capacity(4), links, lambda link: 0.1)
    cluster.run()
    assert cluster.batches[0] == ("begin",)
    assert all(len(batch) == 1 for batch in cluster.batches)
    assert cluster.now == pytest.approx(0.3)


def test_collect_and_learn_alternate_in_one_batch() -> None:
    window = Window()
    made: list[moves.Link] = []
    for i in range(40):
        before = frozenset(link.key for link in made[-2:])
        made.append(moves.Link(PlanKey(f"collect/{i}"), "collect", "a", "cpu", before))
        made.append(moves.Link(PlanKey(f"learn/{i}"), "learn", "a", "gpu", frozenset({made[-1].key})))
    cluster = Cluster(window, capacity(2, gpu=1), offer(window, *made), lambda link: 0.004)
    cluster.run()
    assert cluster.ended == [link.key for link in made]
    assert len(cluster.batches) < 12


def test_higher_priority_goes_first() -> None:
    window = Window()
    low, high = fan(20), [moves.Link(PlanKey("high"), "x", "b", "cpu", priority=5)]
    offer(window, *low, *high)
    window.on(moves.Resized(capacity(2)))
    assert window.admit()[0].keys == ("high",)


def test_a_full_pool_does_not_hold_up_another() -> None:
    window = Window()
    gpu = [moves.Link(PlanKey(f"g{i}"), "g", f"g{i}", "gpu") for i in range(50)]
    offer(window, *gpu, *fan(3))
    window.on(moves.Resized(capacity(2, gpu=1)))
    kinds = Counter(key[0] for batch in window.admit() for key in batch.keys)
    assert kinds == {"g": 3, "f": 3}


def test_calls_that_need_many_cores_run_as_the_host_allows() -> None:
    window = Window()
    window.on(moves.Resized(capacity(16, cpus=16)))
    offer(window, *fan(10, cpu=8.0))
    assert len(window.admit()) == 2
    assert window.admit() == []
    window.on(moves.Ended(PlanKey("fan/0"), 1.0))
    assert [batch.keys for batch in window.admit()] == [("fan/2",)]


def test_calls_that_need_much_memory_run_as_the_host_allows() -> None:
    window = Window()
    window.on(moves.Resized(capacity(4, memory=100)))
    offer(window, *fan(10, memory=40))
    assert len(window.admit()) == 2


def test_a_failed_link_takes_back_those_behind_it() -> None:
    window = Window()
    window.on(moves.Resized(capacity(1)))
    offer(window, *chain("a", 5, tries={"error": 1}))
    (batch,) = window.admit()
    assert batch.keys == ("a/0", "a/1", "a/2")
    assert window.on(moves.Ended(PlanKey("a/0"), 1.0)) == []
    said = window.on(moves.Failure(PlanKey("a/1"), "error"))
    assert said == [moves.Recall((PlanKey("a/2"),)), moves.Retry(PlanKey("a/1"), "error", 1, 1.0)]
    assert window.flying == 0
    window.on(moves.Due(PlanKey("a/1")))
    assert window.admit()[0].keys[:2] == ("a/1", "a/2")
    assert moves.GiveUp(PlanKey("a/1"), "error", 2) in window.on(moves.Failure(PlanKey("a/1"), "error"))


def test_whoever_was_queued_with_a_dead_call_is_sent_alone_and_not_counted() -> None:
    window = Window()
    window.on(moves.Resized(capacity(2)))
    offer(window, *fan(30, tries={"worker-lost": 1}))
    flying = [key for batch in window.admit() for key in batch.keys]
    assert len(flying) == 6
    for key in flying[:3]:
        assert window.on(moves.Failure(key, "worker-lost", certain=False)) == []
    assert window.admit() == []  # three still fly: nobody would be alone
    for key in flying[3:]:
        window.on(moves.Ended(key, 1.0))
    assert [batch.keys for batch in window.admit()] == [(flying[0],), (flying[1],)]
    assert window.on(moves.Failure(flying[0], "worker-lost")) == [moves.Retry(flying[0], "worker-lost", 1, 1.0)]


def test_a_call_is_not_pardoned_for_ever() -> None:
    window = Window()
    window.on(moves.Resized(capacity(1)))
    offer(window, moves.Link(PlanKey("x"), "x", "a", "cpu"))
    for _ in range(4):
        assert [batch.keys for batch in window.admit()] == [("x",)]
        assert window.on(moves.Failure(PlanKey("x"), "worker-lost", certain=False)) == []
    window.admit()
    assert window.on(moves.Failure(PlanKey("x"), "worker-lost", certain=False)) == [
        moves.GiveUp(PlanKey("x"), "worker-lost", 1)
    ]


def test_a_call_is_blamed_without_proof_only_after_it_ran_by_itself() -> None:
    window = Window()
    window.on(moves.Resized(capacity(4)))
    offer(window, *fan(3))
    for _ in range(4):
        assert [batch.keys for batch in window.admit()][:1] == [("fan/0",)]
        assert window.on(moves.Failure(PlanKey("fan/0"), "worker-lost", certain=False)) == []
    assert window.flying == 2
    assert window.admit() == []  # the two others must end first
    window.on(moves.Ended(PlanKey("fan/1"), 1.0))
    window.on(moves.Ended(PlanKey("fan/2"), 1.0))
    offer(window, *fan(9)[3:])
    assert [batch.keys for batch in window.admit()] == [("fan/0",)]
    assert window.admit() == []  # and nobody may join it
    window.on(moves.Ended(PlanKey("fan/0"), 1.0))
    assert window.admit()[0].keys == ("fan/3",)


def test_a_call_that_others_keep_killing_ends_up_alone() -> None:
    window = Window()
    window.on(moves.Resized(capacity(1)))
    offer(window, moves.Link(PlanKey("x"), "x", "a", "cpu"))
    for _ in range(3):
        assert [batch.keys for batch in window.admit()] == [("x",)]
        assert window.on(moves.Failure(PlanKey("x"), "innocent")) == []
    offer(window, *fan(5))
    assert [batch.keys for batch in window.admit()] == [("x",)]
    assert window.admit() == []


def test_a_call_computed_elsewhere_waits_and_frees_its_followers() -> None:
    window = Window()
    window.on(moves.Resized(capacity(1)))
    offer(window, *chain("a", 3))
    window.admit()
    assert window.on(moves.Withheld(PlanKey("a/1"))) == [moves.Recall((PlanKey("a/2"),))]
    window.on(moves.Ended(PlanKey("a/0"), 0.1))
    assert not window.wants
    assert window.on(moves.Ended(PlanKey("a/1"))) == [moves.Bind(PlanKey("a/2"))]
    assert window.admit()[0].keys == ("a/2",)


def test_a_call_waits_for_inputs_that_are_made_again() -> None:
    window = Window()
    window.on(moves.Resized(capacity(1)))
    offer(window, moves.Link(PlanKey("x"), "x", "a", "cpu"))
    window.admit()
    offer(window, moves.Link(PlanKey("maker"), "m", "a", "cpu"))
    window.on(moves.Failure(PlanKey("x"), "input", needs=frozenset({PlanKey("maker")})))
    assert [batch.keys for batch in window.admit()] == [("maker",)]
    window.on(moves.Ended(PlanKey("maker"), 1.0))
    assert [batch.keys for batch in window.admit()] == [("x",)]


def test_a_hundred_thousand_sessions_are_admitted_in_plan_order() -> None:
    window = Window()
    began = time.perf_counter()
    links = [link for lane in range(100_000) for link in chain(f"{lane}", 2)]
    cluster = Cluster(window, capacity(64), offer(window, *links), lambda link: 0.5)
    cluster.run()
    assert len(cluster.ended) == 200_000
    assert window.held == 0
    assert cluster.now == pytest.approx(200_000 * 0.5 / 64, rel=0.01)
    order = [batch[0] for batch in cluster.batches if batch[0].endswith("/0")]
    assert order == [f"{lane}/0" for lane in range(100_000)]
    assert time.perf_counter() - began < 60


@settings(max_examples=150, deadline=None)
@given(data=st.data(), slots=st.integers(1, 5), gpu=st.none() | st.integers(1, 3))
def test_every_call_ends_once_whatever_fails(data: st.DataObject, slots: int, gpu: int | None) -> None:
    size = data.draw(st.integers(1, 40))
    links: list[moves.Link] = []
    for i in range(size):
        needs = data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        links.append(
            moves.Link(
                PlanKey(f"k{i}"),
                f"stage{i % 3}",
                f"lane{data.draw(st.integers(0, 2))}",
                data.draw(st.sampled_from(["cpu", "gpu"])),
                frozenset(PlanKey(f"k{n}") for n in needs),
                tries={"worker-lost": 2, "error": 0},
                alone=data.draw(st.booleans()),
            )
        )
    fates = {link.key: data.draw(st.sampled_from([None, None, None, "worker-lost", "innocent"])) for link in links}
    left = Counter({key: data.draw(st.integers(1, 4)) for key, fate in fates.items() if fate})

    def fails(link: moves.Link) -> str | None:
        if left[link.key] > 0:
            left[link.key] -= 1
            return fates[link.key]
        return None

    window = Window()
    cluster = Cluster(window, capacity(slots, gpu=gpu), offer(window, *links), lambda link: 0.01, fails)
    cluster.run()
    assert sorted(cluster.ended + cluster.given_up) == sorted(link.key for link in links)
    assert window.held == 0
    assert window.flying == 0
    assert not window.wants
