"""What this host has: cores, memory, GPUs, as far as this process may use them. Imports neither Dask nor torch."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Device", "cores", "devices", "memory"]

_CGROUP = Path("/sys/fs/cgroup")
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU."""

    index: str
    """What CUDA_VISIBLE_DEVICES calls it."""
    vram: int
    """Bytes; 0 if the driver does not say."""


def cores() -> int:
    """Cores this process may use: its affinity, and the quota of its control group."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        affinity = min(affinity, max(1, int(quota) // int(period)))
    return affinity


def memory() -> int:
    """Bytes this process may use: the host's, or the limit of its control group."""
    import psutil  # type: ignore[import-untyped]

    total = int(psutil.virtual_memory().total)
    limit = _read(_CGROUP / "memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def devices() -> tuple[Device, ...]:
    """GPUs that torch could use here; none if torch was built for the CPU alone."""
    if not _GPUS.is_dir() or _torch_is_for_cpu():
        return ()
    found = _vram()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(found) if visible is None else [name for name in visible.split(",") if name.strip()]
    return tuple(Device(name.strip(), found.get(name.strip(), 0)) for name in names)


def _torch_is_for_cpu() -> bool:
    try:
        return "+cpu" in importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return True


def _vram() -> dict[str, int]:
    query = ["nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {str(i): 0 for i, _ in enumerate(sorted(_GPUS.iterdir()))}
    rows = (line.split(",") for line in told.splitlines() if "," in line)
    return {index.strip(): int(size) << 20 for index, size in rows}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
