from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from dsec.errors import ClassMismatch
from dsec.runtime import host, numerics

ROOT = Path(__file__).parents[3]


def python(code: str, **variables: str) -> str:
    named = {**{k: v for k, v in os.environ.items() if k not in numerics.VARIABLES}, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**named, **variables}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_started_with_the_pinned_variables_passes_and_keeps_its_class() -> None:
    code = (
        "import json; from dsec.runtime import numerics; numerics.verify();"
        "print(json.dumps(numerics.class_record().to_json()))"
    )
    first, second = (python(code, **numerics.VARIABLES, TZ=zone) for zone in ("UTC", "Asia/Tokyo"))
    assert first == second
    record = numerics.ClassRecord.from_json(json.loads(first))
    assert record.device == "cpu"
    assert set(numerics.VARIABLES) <= set(record.variables)
    assert numerics.ClassRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_process_without_them_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(ClassMismatch, match=r"MKL_CBWR is unset, expected AUTO.*OMP_NUM_THREADS is 2, expected 1"):
        numerics.verify()


def test_variables_and_fingerprint_are_read_without_numpy_or_torch() -> None:
    code = (
        "import sys; from dsec.runtime import host, numerics; host.host_fingerprint(numerics.VARIABLES);"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    )
    assert python(code) == "[]"


def test_the_fingerprint_follows_what_changes_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = host.host_fingerprint(numerics.VARIABLES)
    assert host.host_fingerprint(numerics.VARIABLES) == before
    assert host.host_fingerprint({**numerics.VARIABLES, "MKL_CBWR": "AVX2"}) != before
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    assert host.host_fingerprint(numerics.VARIABLES) != before


def test_the_probe_is_16_bytes_that_repeat_and_leaves_generators_alone() -> None:
    state = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    first = numerics.probe()
    assert len(first) == 16
    assert numerics.probe() == first
    assert (np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()) == state


def test_the_probe_sees_other_kernels() -> None:
    code = "from dsec.runtime import numerics; print(numerics.probe().hex())"
    ours = python(code, **numerics.VARIABLES)
    assert python(code, **numerics.VARIABLES, ATEN_CPU_CAPABILITY="default", ONEDNN_MAX_CPU_ISA="SSE41") != ours


def test_inside_a_stage_torch_is_pinned_and_afterwards_as_before() -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with numerics.pinned():
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (1, True)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_global_generators_are_seeded_by_the_stream_and_put_back() -> None:
    state = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    with numerics.isolated(1, "a") as watch:
        first = draw()
    assert watch.touched == ["random", "numpy.random", "torch"]
    assert (np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()) == state
    with numerics.isolated(1, "a"):
        assert draw() == first
    with numerics.isolated(1, "b"):
        assert draw() != first


@pytest.mark.parametrize(
    ("name", "touch"),
    [
        ("random", lambda: random.shuffle([1, 2, 3])),
        ("numpy.random", np.random.normal),
        ("torch", lambda: torch.nn.Linear(2, 2)),
    ],
)
def test_each_generator_that_is_touched_is_named(name: str, touch: object) -> None:
    with numerics.isolated(1, "a") as watch:
        touch()  # type: ignore[operator]
    assert watch.touched == [name]


def test_another_threads_draws_are_not_taken_for_the_stages() -> None:
    with numerics.isolated(1, "a") as watch:
        other = threading.Thread(target=random.random)
        other.start()
        other.join()
    assert watch.touched == []


def test_a_constructor_may_draw_without_being_reported() -> None:
    with numerics.isolated(1, "a") as watch:
        with numerics.constructing(1, "agent/init"):
            first = torch.nn.Linear(2, 2).weight
        with numerics.constructing(1, "agent/init"):
            assert torch.equal(torch.nn.Linear(2, 2).weight, first)
    assert watch.touched == []
