"""DSec: reinforcement-learning experiments as deterministic dataflow on Dask.

The folders are the story of a run: `plan` compiles what a person wrote, `code` fingerprints what it names, `engine`
drives a Dask cluster, `runtime` runs one stage on a worker, `store` keeps every state as an anchor, and `api` is
the one door to all of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsec.runtime.agent_base import Agent

__all__ = ["Agent"]

_HOMES = {"Agent": "dsec.runtime.agent_base"}
"""Public name -> its module, imported when the name is first used: `dsec --help` must be quick."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dsec' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
