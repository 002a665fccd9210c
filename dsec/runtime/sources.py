"""Whether this process has loaded the sources that a call was keyed with."""

from __future__ import annotations

import functools

from dsec.code import bundle
from dsec.core.stage import StageCall
from dsec.errors import CodeMismatch
from dsec.store import root
from dsec.store.root import Store

__all__ = ["check"]


def check(call: StageCall, store: Store) -> None:
    """Compare what is loaded with the call's bundle, `dsec.code.bundle.bundle` as the driver stored it.

    The worker has called `dsec.code.bundle.watch_imports` before it imported users' code.

    Raises
    ------
    CodeMismatch
        If a module of the bundle is loaded from another source; names it.
    """
    if call.bundle is None:
        return
    differing = bundle.loaded_differs(_digests(store, call.bundle))
    if differing:
        others = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise CodeMismatch(
            f"this worker has loaded another version of {differing[0]}{others} than the run began with",
            where=call.instance,
            hint="run the command again: new workers load what is there now",
        )


@functools.lru_cache(maxsize=16)
def _digests(store: Store, bundle: str) -> dict[str, str]:
    found: dict[str, str] = root.get_json(store, f"code/bundles/{bundle}")["digests"]
    return found
