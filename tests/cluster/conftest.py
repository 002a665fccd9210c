from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import listed_plan as fakes
import pytest
from listed_plan import Run, local

from dsec.engine import drive, events
from dsec.engine.cluster import LocalCluster
from dsec.engine.dispatch import Limits
from dsec.engine.shape import ClusterShape
from dsec.store import root
from dsec.store.root import Store


@pytest.fixture(scope="module")
def two() -> Iterator[LocalCluster]:
    with local(ClusterShape()) as cluster:
        yield cluster


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return root.open_store(tmp_path / "store")


@pytest.fixture
def heard() -> list[events.Event]:
    return []


@pytest.fixture
def run(store: Store, tmp_path: Path, heard: list[events.Event]) -> Run:
    def run(plan: fakes.Plan, cluster: LocalCluster, **options: object) -> drive.Outcome:
        options.setdefault("limits", Limits(stalled=30, remake=3, poll=0.2))
        return drive.drive(
            plan,
            store,
            cluster=lambda: cluster,
            root=tmp_path,
            run_id=f"run-{id(plan)}",
            report=heard.append,
            options=drive.Options(**options),  # type: ignore[arg-type]
        )

    return run
