import math

import numpy as np
import pytest

from dsec.core import state
from dsec.core.records import TRACE_COLUMNS
from dsec.runtime import chain, environments, rollout, trace
from dsec.store import anchors, view
from dsec.testing.blobs import MemoryBlobs
from dsec.testing.environments import Wanderer, round_trip, spec_of


def rolled(uses="gymnasium/CartPole-v1", steps=100, **more):
    env = environments.open_env(spec_of(uses, **more), root=1)
    env.start()
    agent = Wanderer(getattr(env.simulators[0].environment, "action_space", None), more.get("num_envs"))
    return rollout.rollout(agent, env, 0, steps - 1)


def test_a_trace_has_its_columns_as_plain_arrays():
    made = rolled().trace
    assert set(TRACE_COLUMNS) <= set(made)
    assert all(made[name].shape[0] == 100 for name in TRACE_COLUMNS)
    assert made["hash"].shape == (100, 16) and made["hash"].dtype == np.uint8
    assert made["step"].tolist() == list(range(100))


def test_a_batch_and_its_trace_tell_the_same():
    result = rolled()
    batch, made = result.batch, result.trace
    assert batch["actions"].tolist() == made["action"].tolist()
    assert batch["rewards"].tolist() == made["reward"].tolist()
    assert batch["observations"].shape == (100, 4) and batch["observations"].dtype == np.float32
    assert batch["rewards"].dtype == np.float64
    assert batch["terminated"].dtype == np.bool_
    assert batch["extras"]["heard"].dtype == np.float32


def test_arrays_of_a_batch_can_be_written_to():
    for steps in (5, 300):
        batch = rolled(steps=steps).batch
        assert all(batch[name].flags.writeable for name in ("observations", "actions", "rewards", "terminated"))


def test_episodes_count_up_after_each_end():
    made = rolled().trace
    ended = made["terminated"] | made["truncated"]
    assert ended.sum() > 2
    assert made["episode"].tolist() == [0, *np.cumsum(ended)[:-1].tolist()]


def test_final_observations_stand_with_the_rows_where_episodes_ended():
    result = rolled(num_envs=3)
    final = result.batch["final_observations"]
    rows, envs = np.nonzero(result.trace["terminated"] | result.trace["truncated"])
    assert final["row"].tolist() == rows.tolist()
    assert final["env"].tolist() == envs.tolist()
    assert final["observation"].shape == (len(rows), 4)
    angles = np.abs(final["observation"][:, 2])
    assert (angles > 0.2).all()


def test_no_end_gives_empty_final_observations_of_the_right_shape():
    final = rolled(steps=3).batch["final_observations"]
    assert final["observation"].shape == (0, 4)
    assert "env" not in final


@pytest.mark.parametrize("num_envs", [None, 2])
def test_the_chain_is_that_of_the_definition(num_envs):
    result = rolled("gymnasium/FrozenLake-v1", steps=200, num_envs=num_envs)
    batch, made = result.batch, result.trace
    final = batch["final_observations"]
    ends = {
        (row, env): seen
        for row, env, seen in zip(
            final["row"], final.get("env", np.zeros_like(final["row"])), final["observation"], strict=True
        )
    }
    for env in range(num_envs or 1):
        link = chain.START
        for row in range(200):
            at = (row, env) if num_envs else row
            flags = made["terminated"][at] + 2 * made["truncated"][at]
            content = np.int64(batch["observations"][at]).tobytes() + np.int64(batch["actions"][at]).tobytes()
            content += np.float64(batch["rewards"][at]).tobytes() + bytes([flags])
            if (row, env) in ends:
                content += np.int64(ends[row, env]).tobytes()
            link = chain.link(link, content)
            assert made["hash"][at].tobytes() == link


def test_observations_of_mixed_kinds_keep_their_structure():
    batch = round_trip(rolled("dsec.testing.environments:Corridor", num_envs=2, steps=20).batch)
    seen = batch["observations"]
    assert seen["position"].shape == (20, 2)
    assert seen["view"].shape == (20, 2, 2) and seen["view"].dtype == np.int16
    assert seen["sign"] == [["walk on"] * 2] * 20
    assert batch["last_observation"]["view"].shape == (2, 2)


def test_tuples_stay_tuples():
    batch = rolled("gymnasium/Blackjack-v1", steps=20).batch
    assert [column.shape for column in batch["observations"]] == [(20,)] * 3


def test_stats_are_those_of_episodes_that_ended():
    result = rolled()
    ended = np.nonzero(result.trace["terminated"])[0]
    lengths = np.diff([-1, *ended])
    stats = result.stats
    assert (stats["steps"], stats["episodes"]) == (100, len(ended))
    assert stats["return_mean"] == lengths.mean() == stats["length_mean"]
    assert (stats["return_min"], stats["return_max"]) == (lengths.min(), lengths.max())
    assert stats["return_last"] == lengths[-1]
    assert stats["reward_sum"] == 100


def test_stats_without_an_end_have_none():
    stats = rolled(steps=2).stats
    assert stats["episodes"] == 0 and stats["return_mean"] is None and stats["return_last"] is None
    assert stats["reward_sum"] == 2


def test_sums_are_exact_whatever_their_order():
    values = [0.1, 1e16, -1e16, 0.3]
    assert trace.exact_sum(values) == math.fsum(reversed(values))
    assert trace.exact_sum([1e308, 1e308]) == math.inf
    assert trace.exact_sum([1e308, 1e308, -1e308]) == 1e308


def test_columns_come_back_from_a_recovery_tree():
    env = environments.open_env(spec_of("dsec.testing.environments:Corridor"), root=1)
    env.start()
    columns = trace.Columns(0, 1, False)
    columns.observation_layout = env.observation_layout
    loop = rollout._loop(Wanderer(None), env, columns, None)
    loop.block(60)
    loop.flush()
    other = trace.Columns(0, 1, False)
    other.observation_layout = env.observation_layout
    other.load(round_trip(columns.tree()))
    assert state.equal(other.batch(1), columns.batch(1))
    assert other.stats() == columns.stats()


def test_zarr_reads_a_trace_by_its_columns():
    zarr = pytest.importorskip("zarr")
    made = rolled(num_envs=2).trace
    blobs = MemoryBlobs()
    group = zarr.open_group(view.zarr_store(blobs, anchors.put(blobs, made).anchor_id), mode="r")
    assert {name for name, _ in group.arrays()} == set(TRACE_COLUMNS)
    assert all(np.array_equal(group[name][:], made[name]) for name in TRACE_COLUMNS)


@pytest.mark.parametrize(
    ("num_envs", "link"),
    [
        (None, "7b636c7d2945a9505b74a169d9f03c63"),
        (2, "b2cfa08411c2dfdab46500814c5ed51d7288c2f3f3edb9d4f1c49ad03ebb0819"),
    ],
)
def test_the_chain_of_format_1_stays(num_envs, link):
    """If this must change, so must `dsec.core.bodies.RUNTIME_SEMANTICS`: every stored result would differ."""
    made = rolled("dsec.testing.environments:Corridor", steps=300, num_envs=num_envs).trace
    assert made["hash"][-1].tobytes().hex() == link
