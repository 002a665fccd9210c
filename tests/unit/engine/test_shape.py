from __future__ import annotations

from pathlib import Path

import pytest

from dsec.core.stage import Placement
from dsec.engine import host, shape
from dsec.engine.policy import policy
from dsec.engine.shape import ClusterShape, Process
from dsec.errors import Unsatisfiable, UsageError

GIB = 1 << 30
EMULATED = shape.capacity_of([Process(f"w{i}", ("cpu", "gpu")) for i in range(4)], ("fast",), 4.0, 8 * GIB)
REAL = shape.capacity_of([Process("c", ("cpu",)), Process("g", ("gpu",), "cuda", "0", 24 * GIB)], (), 16.0, 64 * GIB)


def test_processes_that_take_both_kinds_are_one_pool() -> None:
    assert EMULATED.pools == {"cpu+gpu": 4}
    assert EMULATED.kinds == {"cpu": "cpu+gpu", "gpu": "cpu+gpu"}
    assert [(o.kind, o.slots, o.emulated) for o in EMULATED.offers] == [("cpu", 4, False), ("gpu", 4, True)]


def test_counted_processes_are_a_pool_per_kind() -> None:
    capacity = ClusterShape(cpu=3, gpu=1).capacity()
    assert capacity.pools == {"cpu": 3, "gpu": 1}
    assert capacity.cpus >= 4


def test_a_cluster_without_workers_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a worker"):
        ClusterShape(cpu=0, gpu=0).processes()


def test_memory_is_shared_evenly_unless_it_is_said() -> None:
    assert ClusterShape(cpu=2).worker_memory() == host.memory() // 2
    assert ClusterShape(cpu=2, memory=GIB).worker_memory() == GIB


@pytest.mark.parametrize(
    ("asked", "lacks"),
    [
        (Placement(cpu=8), "cpu: 8"),
        (Placement(memory=9 * GIB), "memory: 9GiB"),
        (Placement(labels=("big", "fast")), "labels: big, fast"),
        (Placement("gpu", gpu=2), "gpu: 2"),
        (Placement("tpu"), "worker: tpu"),
    ],
)
def test_what_can_never_run_is_refused_with_what_there_is(asked: Placement, lacks: str) -> None:
    with pytest.raises(Unsatisfiable, match=f"no worker has {lacks}") as raised:
        shape.check([asked], EMULATED)
    assert "4 gpu (emulated) with labels fast on hosts of up to 4 cores and 8GiB" in raised.value.hint


def test_an_emulated_gpu_ignores_vram_and_a_real_one_does_not() -> None:
    asked = Placement("gpu", gpu=1, vram=40 * GIB)
    shape.check([asked], EMULATED)
    with pytest.raises(Unsatisfiable, match="vram: 40GiB"):
        shape.check([asked], REAL)
    shape.check([Placement("gpu", gpu=1, vram=24 * GIB), Placement(cpu=16)], REAL)


def test_this_host_has_cores_and_memory() -> None:
    assert host.cores() >= 1
    assert host.memory() > 1 << 28


def test_a_control_group_limits_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    assert (host.cores(), host.memory()) == (1, GIB)


def test_a_policy_that_does_not_exist_is_named() -> None:
    assert policy("fifo")(5, 2) == (-5, 2)
    with pytest.raises(UsageError, match="did you mean 'fifo'"):
        policy("fiffo")
