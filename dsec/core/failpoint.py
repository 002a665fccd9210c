"""Named points at which a test can kill the process.

``DSEC_FAILPOINT="store.blobs.put.after-temp:3"`` kills the process (SIGKILL, no clean-up) when it comes to that point
for the third time. With ``DSEC_FAILPOINT_ONCE=<file>`` it happens once among all processes that share the file: whoever
creates it dies. The point is armed when DSec is imported, so a process can't arm itself half-way.
"""

from __future__ import annotations

import itertools
import os
import signal

__all__ = ["reached"]

_name, _, _nth = os.environ.get("DSEC_FAILPOINT", "").partition(":")
_armed = _name
_passes = itertools.count(1)


def reached(name: str) -> None:
    """Die here if this point is armed; else cost one check."""
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    if name == _armed and next(_passes) == int(_nth or 1) and _first():
        os.kill(os.getpid(), signal.SIGKILL)


def _first() -> bool:
    path = os.environ.get("DSEC_FAILPOINT_ONCE")
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
