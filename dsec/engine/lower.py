"""Calls as Dask graphs.

One layer holds the calls of a stage that ask for the same slot, since annotations belong to layers; Dask keeps keys
and annotations then, and fuses nothing. Calls of a batch take each other's results along Dask edges, also from earlier
graphs; all that was known when they were admitted stands in the call itself, so restricted siblings of one parent do
not pile up on one worker (distributed#8177).
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Task, TaskRef

from dsec.core import keys
from dsec.core.leaves import AnchorRef
from dsec.core.stage import Edge, Input, Placement, PlanKey, StageCall, replace
from dsec.engine.borders import Job, Site
from dsec.store.root import Store

__all__ = ["LABEL", "MOST_SOURCES", "compact", "errand", "graph", "resources"]

LABEL = "label:"
"""Prefix of the worker resource that stands for a label."""
MOST_SOURCES = 16
"""Sources of one input that travel in a call; more stand in an anchor, so that a call stays under 4 KiB."""


def graph(
    jobs: Sequence[Job], names: Mapping[PlanKey, str], site: Site, run: Callable[..., str], *, emulated: bool
) -> HighLevelGraph:
    """The graph of these jobs.

    Parameters
    ----------
    jobs
        In an order in which needs come first.
    names
        Dask keys of the jobs and of the calls at the cluster that they need.
    site
        Where workers find the store and the project.
    run
        What a worker calls.
    emulated
        Whether gpu slots have no device.
    """
    layers: defaultdict[str, dict[str, Task]] = defaultdict(dict)
    annotations: dict[str, dict[str, Any]] = {}
    for job in jobs:
        wanted = {"resources": resources(job.placement, emulated=emulated), "priority": job.priority}
        layer = f"{job.call.stage} {json.dumps(wanted, sort_keys=True)}"
        annotations[layer] = wanted
        name = names[job.call.plan_key]
        layers[layer][name] = _task(job, name, names, site, run)
    return HighLevelGraph(
        {name: MaterializedLayer(tasks, annotations=annotations[name]) for name, tasks in layers.items()},
        {name: set() for name in layers},
    )


def _task(job: Job, name: str, names: Mapping[PlanKey, str], site: Site, run: Callable[..., str]) -> Task:
    upstream = [TaskRef(names[key]) for key in job.upstream]
    return Task(name, run, job.call.to_json(), errand(site, job.placement.worker, job.refresh), *upstream)


@functools.lru_cache(maxsize=16)
def errand(site: Site, kind: str, refresh: bool) -> str:
    """What a worker is told beside the call."""
    return json.dumps({**asdict(site), "kind": kind, "refresh": refresh}, separators=(",", ":"), sort_keys=True)


def resources(placement: Placement, *, emulated: bool) -> dict[str, float]:
    """What a call takes of one worker while it runs; cores and memory are the hosts', and the Window's to count."""
    wanted: dict[str, float] = {placement.worker: max(1.0, placement.gpu) if placement.worker == "gpu" else 1.0}
    if placement.vram and placement.worker == "gpu" and not emulated:
        wanted["vram"] = float(placement.vram)
    return wanted | {LABEL + label: 1.0 for label in placement.labels}


def dask_key(store: Store, call: StageCall) -> str:
    """The call's name on the scheduler."""
    return keys.dask_key(call.stage, store.store_id, call)


def compact(store: Store, call: StageCall) -> StageCall:
    """The call with long gathers as anchors of their lists; `StageCall.inputs` of such a call names no sources."""
    inputs = {name: _compact_input(store, source) for name, source in call.inputs.items()}
    return replace(call, inputs=inputs) if inputs != call.inputs else call


def _compact_input(store: Store, source: Input) -> Input:
    if len(source.sources) <= MOST_SOURCES or any(isinstance(item, Edge) for item in source.sources):
        return source
    from dsec.store import anchors

    refs = [AnchorRef(str(item)) for item in source.sources]
    labels = None if source.labels is None else list(source.labels)
    stored = anchors.put(store.blobs, {"sources": refs, "labels": labels})
    return Input((), None, stored.anchor_id)
