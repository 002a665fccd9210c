"""What of this host can change numbers: its processor and the versions of numerical libraries. Imports neither.

A stored `ClassRecord` says which runtime class the workers of this host have; the fingerprint says, in a few
milliseconds and without torch, whether the record is still theirs.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dsec.core import canon

__all__ = ["INHERITED", "cpu_flags", "host_fingerprint", "processor"]

INHERITED = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
"""Variables that workers inherit from whoever starts them; another value is another runtime class."""

_CPUINFO = Path("/proc/cpuinfo")
_DEVICES = Path("/proc/driver/nvidia/gpus")
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|abm|popcnt|movbe|pclmul|vpclmul|vaes|aes|sha_|gfni|adx)\w*"
    r"|(asimd|neon|sve|sme(?!p)|bf16|i8mm)\w*|fp|fphp"
)
_LIBRARIES = re.compile(r"(numpy|torch|mkl|intel_openmp|scipy_openblas\w*|nvidia_\w+)-.+\.dist-info", re.IGNORECASE)


def host_fingerprint(variables: Mapping[str, str] | None = None) -> canon.Digest:
    """Digest of the processor, Python, and numerical libraries as installed, and of pinned variables.

    Parameters
    ----------
    variables
        What workers are started with, `dsec.runtime.numerics.VARIABLES`.
    """
    devices = sorted(entry.name for entry in os.scandir(_DEVICES)) if _DEVICES.is_dir() else []
    named = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(variables or {})
    facts = [processor(), list(cpu_flags()), _python(), _libraries(), devices, named]
    return canon.digest("dsec/host/1", facts)


def processor() -> list[str]:
    """Architecture, maker, family and model, as the kernel says them; kind and number of cores are left out."""
    entry = _cpuinfo()
    return [platform.machine(), *(entry.get(name, "") for name in ("vendor_id", "cpu family", "model", "CPU part"))]


def cpu_flags() -> tuple[str, ...]:
    """Instruction sets that libraries choose their kernels by, sorted; kernel and hypervisor flags are left out."""
    entry = _cpuinfo()
    flags = (entry.get("flags") or entry.get("Features") or "").split()
    return tuple(sorted({flag for flag in flags if _INSTRUCTIONS.fullmatch(flag)}))


def _cpuinfo() -> dict[str, str]:
    """Entry of the first core: reading all of them takes milliseconds on large hosts."""
    entry: dict[str, str] = {}
    try:
        with _CPUINFO.open() as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                entry[name.strip()] = value.strip()
    except OSError:
        return {}
    return entry


def _python() -> list[str]:
    return [platform.python_implementation(), platform.python_version(), *platform.libc_ver()]


def _libraries() -> list[str]:
    """Installed distributions by the names of their folders: reading metadata takes longer than all the rest."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = [entry.name for entry in os.scandir(folder or ".") if _LIBRARIES.fullmatch(entry.name)]
        except OSError:
            continue
        for name in names:
            found.setdefault(name.partition("-")[0].lower(), name)
    return sorted(found.values())
