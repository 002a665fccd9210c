"""What a worker process does before its first call; named in the options of every worker that DSec starts.

It checks that the process is one that results may come from: its variables were set before the interpreter began, so
numerics are the ones that keys name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dsec.code import bundle
from dsec.engine.trampoline import WORKER_NAME

__all__ = ["dask_setup"]


def dask_setup(worker: Any) -> None:
    """Called by Dask when a worker process has begun."""
    os.environ.setdefault(WORKER_NAME, str(worker.name))
    root = os.environ.get("DSEC_ROOT")
    if root and root not in sys.path:
        sys.path.insert(0, root)
    # Wherever they lie: modules of the project, and others that are installed editable or stand on the import path.
    bundle.watch_imports([Path(Path.cwd().anchor)])
