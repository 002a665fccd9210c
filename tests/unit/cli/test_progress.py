"""Events are counted and told: bars on a terminal, few lines elsewhere, nothing where nothing runs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from dsec.cli import bars, happened, progress
from dsec.cli.tally import Tally
from dsec.core.stage import ActionKey, AnchorId, StageResult
from dsec.engine import events
from dsec.errors import StageError

RESULT = StageResult(ActionKey("a" * 64), {"agent": AnchorId("b" * 64)}, stats={"loss": 0.5})


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def finished(number: int, *, ran: bool = True) -> events.Finished:
    return events.Finished(f"train#{number}/learn", "train.learn", RESULT, 1.0, ran)


def test_events_add_up_by_stage() -> None:
    tally = Tally()
    told: list[events.Event] = [
        events.Resolved({"train.learn": 10, "eval": 2}),
        events.HitsFound({"train.learn": 4}, 1),
        events.Submitted({"train.learn": 3}),
        finished(4),
        finished(5, ran=False),
        events.Failed("train#6/learn", "train.learn", StageError("no")),
        events.Skipped("eval", "eval", "train#6/learn"),
        events.Retried("train#7/learn", "train.learn", "oom", 1, 2.0, "too large"),
        events.Remade("train#0/learn", "train.learn", "agent"),
    ]
    for event in told:
        happened.count(tally, event, 5.0)
    learn = tally.stage("train.learn")
    assert (learn.planned, learn.hits, learn.ran, learn.failed, learn.retried) == (10, 4, 1, 1, 1)
    assert tally.stage("eval").skipped == 1
    assert tally.total().total == 12
    assert tally.began == 5.0


def test_a_remaining_time_is_told_after_a_few_calls() -> None:
    tally = Tally()
    happened.count(tally, events.Resolved({"train.learn": 10}), 0.0)
    happened.count(tally, events.Submitted({"train.learn": 10}), 0.0)
    assert tally.remaining(4.0, tally.total()) is None
    for number in range(4):
        happened.count(tally, finished(number), 4.0)
    assert tally.began == 0.0
    assert tally.remaining(12.0, tally.total()) == pytest.approx(12.0)


def test_lines_are_throttled() -> None:
    clock, lines = Clock(), list[str]()
    shown = progress.Progress(lambda: progress.Lines(lines.append, every=5.0), clock)
    shown.report(events.Resolved({"train.learn": 100}))
    shown.report(events.Submitted({"train.learn": 100}))
    for number in range(100):
        clock.now += 0.2
        shown.report(finished(number))
    shown.close()
    assert 3 <= len(lines) <= 5
    assert "of 100 calls" in lines[0]
    assert "train.learn" in lines[0]
    assert "left" in lines[0]


def test_nothing_is_drawn_where_everything_is_cached() -> None:
    def draw() -> progress.Drawing:
        raise AssertionError("drawn")

    shown = progress.Progress(draw, Clock())
    shown.report(events.Resolved({"train.learn": 100}))
    shown.report(events.HitsFound({"train.learn": 100}, 0))
    shown.close()
    assert shown.tally.total().hits == 100


def test_the_cluster_is_announced_with_its_dashboard_and_the_emulation() -> None:
    lines: list[str] = []
    shown = progress.Progress(lambda: progress.Lines(lines.append), Clock())
    shown.report(events.ClusterUp("http://127.0.0.1:8787/status", {"cpu": 2, "gpu": 1}, emulated=True))
    assert lines == [
        "workers: 2 cpu, 1 gpu; no CUDA here, so gpu is emulated on the CPU; dashboard http://127.0.0.1:8787/status"
    ]


def test_remarks_of_one_kind_are_bounded() -> None:
    lines: list[str] = []
    shown = progress.Progress(lambda: progress.Lines(lines.append), Clock())
    shown.report(events.Submitted({"eval": 1000}))
    for number in range(1000):
        shown.report(events.Failed(f"eval@seed={number}", "eval", StageError("no")))
    assert len(lines) == progress.MAX_REMARKS + 1
    assert shown.tally.stage("eval").failed == 1000


def test_every_event_has_a_line_of_json() -> None:
    told: dict[str, events.Event] = {
        "resolved": events.Resolved({"eval": 1}),
        "hits-found": events.HitsFound({"eval": 1}, 0),
        "submitted": events.Submitted({"eval": 1}),
        "finished": finished(0),
        "failed": events.Failed("eval", "eval", StageError("no", instance="eval", step=3)),
        "skipped": events.Skipped("eval", "eval", "train"),
        "retried": events.Retried("eval", "eval", "oom", 1, 2.0, "too large"),
        "remade": events.Remade("eval", "eval", "score"),
        "elsewhere": events.Elsewhere("eval", "eval"),
        "cluster-up": events.ClusterUp("", {"cpu": 2}, emulated=False),
        "recovering": events.Recovering(3),
    }
    assert {kind: happened.as_json(event)["event"] for kind, event in told.items()} == {kind: kind for kind in told}
    for event in told.values():
        json.dumps(happened.as_json(event))
    assert happened.as_json(told["failed"])["step"] == 3
    assert happened.as_json(told["finished"])["outputs"] == {"agent": "b" * 64}


def test_bars_show_counts_and_lines_above_them() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    clock = Clock()
    shown = progress.Progress(lambda: bars.Bars(console), clock)
    shown.report(events.Resolved({"train.learn": 10}))
    shown.report(events.HitsFound({"train.learn": 4}, 0))
    shown.report(events.ClusterUp("http://127.0.0.1:8787/status", {"cpu": 2}, emulated=False))
    for number in range(4):
        clock.now += 1
        shown.report(finished(number))
    shown.close()
    drawn = stream.getvalue()
    assert "dashboard http://127.0.0.1:8787/status" in drawn
    assert "train.learn" in drawn
    assert "8/10" in drawn
    assert "4 cached" in drawn
    assert all(len(row) <= 80 + 20 for row in drawn.splitlines())
