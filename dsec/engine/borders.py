"""What the driver meets: the plan's frontier before it, a cluster behind it; and the values that cross there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dsec.core.stage import Placement, PlanKey, StageCall, StageResult

if TYPE_CHECKING:
    from dsec.plan.nodes import CallFacts
    from dsec.store.root import Store

__all__ = [
    "Capacity",
    "Cluster",
    "Done",
    "Erred",
    "Executor",
    "Frontier",
    "Job",
    "Killed",
    "Offer",
    "Outcry",
    "Site",
    "site_of",
]


class Frontier(Protocol):
    """The plan, expanded as far as it may be; `dsec.plan.frontier` is the real one."""

    @property
    def exhausted(self) -> bool:
        """Whether all calls were taken and none can follow."""

    def take(self, n: int) -> Sequence[StageCall]:
        """Up to ``n`` next calls in plan order, a call never before those it needs; empty while results are awaited."""

    def done(self, plan_key: PlanKey, result: StageResult | None) -> None:
        """A call has its result; None in a dry run, where it would be computed."""

    def failed(self, plan_key: PlanKey) -> None:
        """A call failed for good; calls that depend on it and weren't taken never will be."""

    def retired(self) -> Sequence[PlanKey]:
        """Calls whose results nobody can refer to any more, each named once."""

    def facts(self, plan_key: PlanKey) -> CallFacts:
        """What is not in the key of a taken call: placement, retries, priority, lane."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Equal workers of a cluster."""

    kind: str
    """``cpu`` or ``gpu``."""
    slots: int
    """Calls they can run at once, all together."""
    gpu: float = 1.0
    """Devices of one worker."""
    vram: int = 0
    """Bytes of one device; 0 if it is emulated."""
    labels: tuple[str, ...] = ()
    emulated: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a cluster can hold at once."""

    offers: tuple[Offer, ...]
    pools: Mapping[str, int]
    """Slots by pool: kinds that share processes share a pool."""
    kinds: Mapping[str, str]
    """Pool by kind."""
    cpus: float
    """Cores, never fewer than processes."""
    memory: int
    """Bytes."""
    host_cpus: float
    """Cores of the largest host."""
    host_memory: int
    """Bytes that one call may hold at most: the largest host's, or a worker's limit."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker finds what a call names; the same for all calls of a run."""

    store: str
    """Directory of the store."""
    root: str
    """Project root."""
    durability: str = "group"
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A call on its way to the cluster."""

    call: StageCall
    """Inputs that are known stand as anchors; the others come from ``upstream``."""
    upstream: tuple[PlanKey, ...]
    """Calls at the cluster whose results it takes, in order of `StageCall.edges`, each once."""
    placement: Placement
    priority: int = 0
    refresh: bool = False
    """Whether it runs although there is a result."""


@dataclass(frozen=True, slots=True)
class Done:
    """A call gave its result."""

    key: PlanKey
    result: StageResult
    ran: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Killed:
    """How a worker died."""

    worker: str
    executing: frozenset[PlanKey]
    """Calls it was last heard to run; empty if it wasn't heard in time."""
    ours: bool = False
    """Whether the driver ended it."""
    sole: bool = False
    """Whether no other call was at that worker."""
    rss: int = 0
    """Bytes it held when its nanny ended it for its memory; 0 for other deaths."""
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Erred:
    """A call gave an error."""

    key: PlanKey
    error: BaseException
    """What its body raised, or what Dask says."""
    killed: Killed | None = None
    """The death of its worker, if that is what it was."""
    cancelled: bool = False
    """Whether the cluster forgot it, so that it was nobody's fault."""


Outcry: TypeAlias = Done | Erred


class Executor(Protocol):
    """A running cluster as the driver uses it."""

    def submit(self, batches: Sequence[Sequence[Job]]) -> None:
        """Send batches of links; calls of one batch may use each other's results."""

    def recall(self, keys: Iterable[PlanKey]) -> None:
        """Forget these calls; nothing more is heard of them."""

    def wait(self, timeout: float) -> list[Outcry]:
        """What happened, at the latest after ``timeout`` seconds; empty then."""

    def running(self) -> Mapping[PlanKey, float]:
        """Seconds that calls have been running for, as far as it was heard (to about a second)."""

    def restart_worker(self, key: PlanKey) -> None:
        """End the worker that runs this call, and let another take its place."""

    def workers(self) -> int:
        """Workers that are there now."""

    def close(self) -> None:
        """Forget all calls."""


class Cluster(Protocol):
    """Where calls run; `dsec.engine.cluster` makes them. Whoever made it closes it."""

    @property
    def capacity(self) -> Capacity:
        """What it can hold."""

    @property
    def dashboard(self) -> str:
        """Address of its pages, or empty."""

    def allow(self, memory: int) -> None:
        """Let one worker hold this many bytes, as far as the cluster can decide that."""

    def executor(self, store: Store, site: Site) -> Executor:
        """A way to run calls on it."""

    def remake(self) -> bool:
        """Make its workers anew, after all of them went away; False if that is not ours to do."""


def site_of(store: Store, root: Path, durability: str, run_id: str) -> Site:
    """The site of a run."""
    return Site(str(store.path), str(root), durability, run_id)
