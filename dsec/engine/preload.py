"""What a worker process does before its first call; named in the options of every worker that DSec starts.

It checks that the process is one that results may come from: its variables were set before the interpreter began, so
numerics are the ones that keys name.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dsec.code import bundle
from dsec.engine import trampoline

__all__ = ["dask_setup"]

_PR_SET_PDEATHSIG = 1


def dask_setup(worker: Any) -> None:
    """Called by Dask when a worker process has begun."""
    os.environ.setdefault(trampoline.WORKER_NAME, str(worker.name))
    root = os.environ.get("DSEC_ROOT")
    if root and root not in sys.path:
        sys.path.insert(0, root)
    # Wherever they lie: modules of the project, and others that are installed editable or stand on the import path.
    bundle.watch_imports([Path(Path.cwd().anchor)])
    _die_with_parent()
    trampoline.warm_up()


def _die_with_parent() -> None:
    """Have the kernel end this process with its nanny: Python's own watch can't while a call holds Python's lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
