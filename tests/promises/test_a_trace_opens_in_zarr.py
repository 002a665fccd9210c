"""A trace is read with zarr and pandas alone: no code of DSec but the view, none of the project."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from projects import Project

from dsec.core.records import TRACE_COLUMNS
from dsec.store import anchors, root
from dsec.store.view import zarr_store

STEPS = 60


@pytest.fixture(scope="module")
def group(finished: Project, undisturbed: dict[str, Any]) -> Any:
    """The trace of the second iteration of one session, as Zarr shows it."""
    blobs = root.open_store(finished.store).blobs
    return zarr.open_group(zarr_store(blobs, undisturbed["train@seed=0#1/collect"]["trace"]), mode="r")


def test_the_columns_of_a_trace_are_arrays(group: Any) -> None:
    assert {name for name, _ in group.members()} == set(TRACE_COLUMNS)
    assert {group[name].shape[0] for name in TRACE_COLUMNS} == {STEPS}
    assert group["hash"].shape == (STEPS, 16)
    assert dict(group.attrs) == {"kind": "trace", "first": STEPS}


def test_a_trace_is_a_data_frame(group: Any) -> None:
    frame = pd.DataFrame({name: group[name][:] for name in TRACE_COLUMNS if group[name].ndim == 1}).set_index("step")
    assert frame.index.tolist() == list(range(STEPS, 2 * STEPS))
    assert frame["reward"].dtype == np.float64
    lengths = frame.groupby("episode").size()
    ended = frame[frame["terminated"] | frame["truncated"]]
    assert ended["episode"].tolist() == lengths.index[: len(ended)].tolist(), "each episode but the last one ends once"
    assert frame.groupby("episode")["reward"].sum().equals(lengths.astype(float)), "CartPole gives 1 for each step"


def test_the_view_shows_what_the_store_holds(group: Any, finished: Project, undisturbed: dict[str, Any]) -> None:
    blobs = root.open_store(finished.store).blobs
    trace = anchors.get(blobs, undisturbed["train@seed=0#1/collect"]["trace"])
    for name in TRACE_COLUMNS:
        assert np.array_equal(group[name][:], trace[name])
