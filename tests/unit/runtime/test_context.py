from __future__ import annotations

import datetime
import logging
from dataclasses import replace

import numpy as np
import pytest

from dsec.core import seeds
from dsec.core.stage import ActionKey, StageCall
from dsec.errors import AbsentError, StageError, UsageError
from dsec.runtime.context import Scope, StageContext
from dsec.runtime.facts import WorkerFacts
from dsec.store import root
from tests.unit.runtime.serial import Serial


class Clock:
    """Real seconds, as a test wants them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def context(run: Serial, call: StageCall, clock: Clock | None = None) -> StageContext:
    recipe = root.get_recipe(run.store, call.recipe)
    return StageContext(Scope(call, recipe, ActionKey("a" * 64), run.store, WorkerFacts(), clock or Clock()))


def test_streams_are_found_by_name_below_the_calls_own(bare: Serial) -> None:
    ctx = context(bare, bare.call("train.fit", "one", stream="stage/train.fit/17/seed=0"))
    drawn = ctx.rng("shuffle").random(3)
    expected = seeds.generator(3, "stage/train.fit/17/seed=0/shuffle").random(3)
    assert (drawn == expected).all()
    assert (ctx.rng().random(3) == seeds.generator(3, "stage/train.fit/17/seed=0").random(3)).all()


def test_a_stream_asked_for_again_goes_on_where_it_is(bare: Serial) -> None:
    ctx = context(bare, bare.call("fit", "one"))
    assert ctx.rng("x") is ctx.rng("x")
    assert ctx.torch_generator("x") is ctx.torch_generator("x")
    assert ctx.torch_generator("x") is not ctx.torch_generator("y")


def test_another_stage_draws_other_numbers(bare: Serial) -> None:
    trees = [bare.tree(bare.made(stage, "draws"), "numbers") for stage in ("one", "two")]
    assert not (trees[0] == trees[1]).any()


def test_all_that_a_body_can_ask_for_is_the_same_at_every_run(bare: Serial) -> None:
    call = bare.call("stage", "draws")
    first = bare.run(call)
    assert bare.run(call, refresh=True).same(first)
    assert not np.array_equal(bare.tree(call, "other"), bare.tree(call, "numbers"))
    ids = [bare.tree(call, "id"), *bare.tree(call, "ids")]
    assert len(set(ids)) == 3


def test_the_clock_is_a_fixed_day_and_one_second_for_each_step(bare: Serial) -> None:
    ctx = context(bare, bare.call("fit", "one", steps=(100, 200)))
    day = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    assert ctx.now() == day + datetime.timedelta(seconds=100)
    ctx.progress(3600)
    assert ctx.now() == day + datetime.timedelta(hours=1)


def test_cells_of_what_is_no_gather_are_an_error(bare: Serial) -> None:
    with pytest.raises(UsageError, match="'numbers' is no gathered input"):
        context(bare, bare.call("fit", "one")).cells("numbers")


def test_a_tree_is_anchored_and_loaded_again(bare: Serial) -> None:
    ctx = context(bare, bare.call("fit", "one"))
    anchor_id = ctx.anchor({"memory": [1, 2]}, tags=["decision"])
    assert ctx.load_state(anchor_id) == {"memory": [1, 2]}
    assert ctx.sizes[anchor_id] > 0


def test_an_anchor_that_is_not_there_is_counted_and_logged_at_once(
    bare: Serial, caplog: pytest.LogCaptureFixture
) -> None:
    ctx = context(bare, bare.call("fit", "one"))
    with caplog.at_level(logging.WARNING), pytest.raises(AbsentError, match="there is no anchor eeee"):
        ctx.load_state("e" * 64)
    assert ctx.anchor_misses == 1
    assert "is not in the store" in caplog.text


@pytest.mark.parametrize("value", [[1], {"a": 1}, np.zeros(2), object()])
def test_a_stat_that_is_no_scalar_is_refused(bare: Serial, value: object) -> None:
    with pytest.raises(StageError, match="the stat 'loss' is a "):
        context(bare, bare.call("fit", "one")).log(loss=value)


def test_numbers_of_numpy_become_plain_stats(bare: Serial) -> None:
    ctx = context(bare, bare.call("fit", "one"))
    ctx.log("half way", loss=np.float32(0.5), steps=np.int64(3), done=np.True_, name="x", missing=None)
    assert ctx.stats == {"loss": 0.5, "steps": 3, "done": True, "name": "x", "missing": None}
    assert [type(value) for value in ctx.stats.values()] == [float, int, bool, str, type(None)]


def test_recovery_points_are_kept_when_the_last_one_is_old_enough(bare: Serial) -> None:
    clock = Clock()
    ctx = context(bare, bare.call("fit", "one"), clock)
    ctx.save({"at": 1})
    assert ctx.recover() is None
    clock.seconds = 10.0
    ctx.save({"at": 2})
    clock.seconds = 19.0
    ctx.save({"at": 3})
    assert ctx.recover() == {"at": 2}


def test_a_body_that_was_cut_short_goes_on_with_its_streams_ids_and_stats(bare: Serial) -> None:
    whole = bare.run(bare.call("climbs", "climbs", config={"steps": 6}))
    other = Serial(bare.store, replace(bare.facts, recovery_seconds=0.0), bare.session)
    with pytest.raises(StageError, match=r"at step 4: .*power cut"):
        other.run(other.call("climbs", "climbs", config={"steps": 6, "die_at": 4}))
    # The same call without its accident has another key, so its recovery point is moved under that one.
    cut = next(iter(other.store.blobs.names("partial/")))
    target = f"partial/{whole.action_key[:2]}/{whole.action_key}"
    other.store.blobs.replace(target, [other.store.blobs.get(cut)])
    resumed = other.run(other.call("climbs", "climbs", config={"steps": 6}), refresh=True)
    assert resumed.cost["resumed_from_step"] == 3
    assert resumed.same(whole)
