"""Numerics: what has to be pinned so that equal calls give equal bits, and the class of processes in which they do.

At level ``strict`` a result is equal in all processes of one runtime class: one thread, deterministic algorithms, no
reduced precision, and a fixed set of environment variables that libraries read when they are imported. The class is
found by a probe of 20 ms, whose 16 bytes differ as soon as one of the usual kernels computes otherwise.

Torch and numpy are imported by functions only, so that a driver can read `VARIABLES` without them.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from dsec.core import canon, seeds
from dsec.errors import ClassMismatch
from dsec.runtime import chance, host

__all__ = [
    "LEVELS",
    "VARIABLES",
    "ClassRecord",
    "Watch",
    "class_record",
    "constructing",
    "isolated",
    "pinned",
    "probe",
    "verify",
]

LEVELS = ("strict",)
"""Levels of numerics that this version can run."""

VARIABLES: Mapping[str, str] = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "MKL_CBWR": "AUTO",  # without it MKL's matrix-vector product depends on where in memory its arguments lie
    "MKL_DYNAMIC": "FALSE",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_DYNAMIC": "FALSE",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""Environment of every worker at level strict, set before its interpreter starts."""

_NAMES = sorted([*VARIABLES, *host.INHERITED])
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ClassRecord:
    """A runtime class: processes whose records have one id give equal results."""

    class_id: canon.Digest
    """Digest of all the rest."""
    probe: str
    """Numeric probe, 32 hexadecimal characters."""
    device: str
    """``cpu``, or the name of the GPU."""
    cpu_flags: tuple[str, ...]
    """Instruction sets, sorted."""
    versions: Mapping[str, str]
    """Python, libc, numpy, torch and their BLAS."""
    variables: Mapping[str, str]
    """Environment variables that change numbers, as this process has them."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return {**asdict(self), "cpu_flags": list(self.cpu_flags)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ClassRecord:
        """Inverse of `to_json`."""
        return cls(**{**raw, "cpu_flags": tuple(raw["cpu_flags"])})


def class_record(device: str = "cpu") -> ClassRecord:
    """The class of this process on a device (``cpu``, ``cuda``); takes a probe."""
    parts: dict[str, Any] = {
        "probe": probe(device).hex(),
        "device": _device_name(device),
        "cpu_flags": host.cpu_flags(),
        "versions": _versions(),
        "variables": {name: os.environ[name] for name in _NAMES if name in os.environ},
    }
    return ClassRecord(canon.digest("dsec/class/1", parts), **parts)


def verify() -> None:
    """Check that this process was started with `VARIABLES`, and computes with one thread.

    Raises
    ------
    ClassMismatch
        If not; names what was found and what was expected.
    """
    wrong = [
        f"{name} is {os.environ.get(name, 'unset')}, expected {value}"
        for name, value in VARIABLES.items()
        if os.environ.get(name) != value
    ]
    if sys.flags.hash_randomization:
        wrong.append("PYTHONHASHSEED was set after Python had started")
    if wrong:
        raise ClassMismatch(
            f"this process can't give strict results: {'; '.join(wrong)}",
            hint="let DSec start the workers (`dsec run`, `dsec worker`): it sets these before anything is imported",
        )


def probe(device: str = "cpu") -> bytes:
    """16 bytes that depend on how this process multiplies, convolves, exponentiates, reduces and draws.

    Global generators are left as they are.
    """
    import numpy as np
    import torch

    with pinned(), torch.no_grad():
        numbers = np.random.Generator(np.random.Philox(key=7)).standard_normal((96, 96))
        drawn = torch.randn(8, 3, 24, 24, generator=torch.Generator().manual_seed(7)).to(device)
        square = torch.tensor(numbers, dtype=torch.float32, device=device)
        weight = square[:27, :16].T.reshape(16, 3, 3, 3).contiguous()
        found = [
            square @ square,
            square @ square[0],
            torch.addmm(square[1], square[:32], square),
            torch.nn.functional.conv2d(drawn, weight),
            torch.exp(square),
            torch.tanh(square),
            torch.softmax(square, 1),
            torch.logsumexp(square, 0),
            square.sum(),
            drawn.var(0),
            torch.randn(64, device=device, generator=torch.Generator(device).manual_seed(7)),
        ]
        plain = [numbers @ numbers, np.exp(numbers), numbers.sum(0), np.tanh(numbers).mean(1), np.log1p(numbers**2)]
        content = [item.cpu().numpy().tobytes() for item in found] + [item.tobytes() for item in plain]
    return bytes.fromhex(canon.digest("dsec/probe/1", content))[:16]


@contextmanager
def pinned() -> Iterator[None]:
    """One thread, deterministic algorithms, full precision, float32 by default; what was set before is put back.

    Threads are a setting of the calling thread, so this is entered where the work is done.
    """
    import torch

    before = _settings(torch)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    cudnn = torch.backends.cudnn
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, False
    try:
        yield
    finally:
        _restore(torch, before)


def _settings(torch: Any) -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.get_num_threads(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32),
    )


def _restore(torch: Any, before: tuple[Any, ...]) -> None:
    threads, (deterministic, warn_only), precision, dtype, grad, cudnn = before
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    backend = torch.backends.cudnn
    backend.deterministic, backend.benchmark, backend.allow_tf32 = cudnn


@dataclass(slots=True)
class Watch:
    """Which global generators a stage drew from."""

    touched: list[str] = field(default_factory=list)
    """``random``, ``numpy.random``, ``torch``; known when the stage is over."""


@contextmanager
def isolated(root: seeds.Root, path: str) -> Iterator[Watch]:
    """Global generators seeded from a stream, watched, and put back afterwards.

    A stage should draw from its own streams. One that draws from a global generator gets the same numbers each time
    all the same, but `Watch.touched` names the generator: split otherwise, its range of steps would draw others.
    """
    watch = Watch()
    with _seeded(root, path) as (seeded, drawn):
        yield watch
        watch.touched += [*(["random"] if drawn.any else []), *_changed(seeded, _global_states())]


@contextmanager
def constructing(root: seeds.Root, path: str) -> Iterator[None]:
    """Global generators seeded from a stream around a constructor: torch's layers draw their weights from them."""
    with _seeded(root, path):
        yield


@contextmanager
def _seeded(root: seeds.Root, path: str) -> Iterator[tuple[dict[str, Any], chance.Drawn]]:
    import numpy as np
    import torch

    before = _global_states()
    key = seeds.stream_key(root, path)
    np.random.seed([key >> shift & _MASK for shift in (0, 32, 64, 96)])
    _seed_torch(key & (1 << 63) - 1)
    try:
        with chance.of_this_thread(key) as drawn:
            yield _global_states(), drawn
    finally:
        np.random.set_state(before["numpy.random"])
        torch.set_rng_state(before["torch"])
        if before["torch.cuda"] is not None:
            torch.cuda.set_rng_state_all(before["torch.cuda"])


def _seed_torch(seed: int) -> None:
    """As torch.manual_seed, which formats a stack (0.6 ms) and remembers it where CUDA was not used so far."""
    import torch

    cuda: Any = torch.cuda
    torch.default_generator.manual_seed(seed)
    if cuda.is_initialized():
        cuda.manual_seed_all(seed)


def _global_states() -> dict[str, Any]:
    import numpy as np
    import torch

    cuda: Any = torch.cuda
    return {
        "numpy.random": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "torch.cuda": cuda.get_rng_state_all() if cuda.is_initialized() else None,
    }


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name in before if before[name] is not None and _bits(before[name]) != _bits(after[name])]


def _bits(state: Any) -> Any:
    if isinstance(state, list | tuple):
        return tuple(_bits(part) for part in state) if len(state) < 16 else state
    if hasattr(state, "numpy"):
        state = state.numpy()
    return state.tobytes() if hasattr(state, "tobytes") else state


def _device_name(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name(device))


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    cudnn: Any = torch.backends.cudnn
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "python": platform.python_version(),
        "libc": "-".join(platform.libc_ver()),
        "numpy": np.__version__,
        "numpy.blas": f"{blas['name']} {blas.get('version', '')}",
        "torch": str(torch.__version__),
        "torch.build": canon.blob_digest(torch.__config__.show().encode())[:16],
        "cuda": str(torch.version.cuda),
        "cudnn": str(cudnn.version()),
    }
