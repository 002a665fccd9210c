"""What a person asks of a cluster, what that amounts to, and what it can never run. Starts nothing, imports no Dask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dsec.core.stage import Placement
from dsec.engine import host
from dsec.engine.borders import Capacity, Offer
from dsec.errors import Unsatisfiable, UsageError

__all__ = ["ClusterShape", "Process", "capacity_of", "check"]


@dataclass(frozen=True, slots=True)
class Process:
    """One worker process."""

    name: str
    kinds: tuple[str, ...]
    """Kinds of calls it takes, one call at a time."""
    device: str = "cpu"
    """Device of its gpu slot."""
    visible: str = ""
    """The one GPU it may see."""
    vram: int = 0


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """What a person asked for. With neither count, one process per core takes cpu calls.

    Without CUDA these processes take gpu calls too (emulated); with CUDA there is one more process per GPU.
    """

    cpu: int | None = None
    """Processes for cpu calls."""
    gpu: int | None = None
    """Processes for gpu calls."""
    address: str | None = None
    """An existing scheduler, ``tcp://127.0.0.1:8786``; then there are no counts."""
    memory: int | None = None
    """Bytes of one worker; None shares the host's evenly."""
    labels: tuple[str, ...] = ()
    """Labels of all workers."""

    def processes(self) -> tuple[Process, ...]:
        """The processes of a local cluster.

        Raises
        ------
        UsageError
            If there would be none.
        """
        found = host.devices()
        if self.cpu is None and self.gpu is None and not found:
            return tuple(Process(f"worker-{i}", ("cpu", "gpu")) for i in range(host.cores()))
        cpus = host.cores() if self.cpu is None and self.gpu is None else self.cpu or 0
        gpus = len(found) if self.cpu is None and self.gpu is None else self.gpu or 0
        if cpus + gpus < 1:
            raise UsageError("a cluster needs a worker", where="--workers", hint="for example cpu=2,gpu=1")
        cpu = tuple(Process(f"cpu-{i}", ("cpu",)) for i in range(cpus))
        if not found:
            return cpu + tuple(Process(f"gpu-{i}", ("gpu",)) for i in range(gpus))
        chosen = [found[i % len(found)] for i in range(gpus)]
        return cpu + tuple(Process(f"gpu-{i}", ("gpu",), "cuda", d.index, d.vram) for i, d in enumerate(chosen))

    def capacity(self) -> Capacity:
        """What a local cluster of this shape holds."""
        most = capacity_of(self.processes(), self.labels, float(host.cores()), host.memory())
        return most if self.memory is None else replace(most, host_memory=self.memory)

    def worker_memory(self) -> int:
        """Bytes one worker may hold before its nanny ends it."""
        return self.memory or host.memory() // len(self.processes())


def capacity_of(processes: Iterable[Process], labels: tuple[str, ...], cores: float, memory: int) -> Capacity:
    """What processes on one host hold together; kinds that share a process share a pool."""
    processes = tuple(processes)
    kinds = {kind: "+".join(process.kinds) for process in processes for kind in process.kinds}
    pools: dict[str, int] = {}
    for process in processes:
        pool = "+".join(process.kinds)
        pools[pool] = pools.get(pool, 0) + 1
    offers = tuple(_offer(kind, processes, labels) for kind in sorted(kinds))
    return Capacity(offers, pools, kinds, max(cores, float(len(processes))), memory, cores, memory)


def _offer(kind: str, processes: tuple[Process, ...], labels: tuple[str, ...]) -> Offer:
    taking = [process for process in processes if kind in process.kinds]
    emulated = kind == "gpu" and all(process.device == "cpu" for process in taking)
    return Offer(kind, len(taking), 1.0, max(process.vram for process in taking), labels, emulated)


def check(placements: Iterable[Placement], capacity: Capacity, where: str = "") -> None:
    """Refuse what the cluster can never run.

    Parameters
    ----------
    where
        Who asks for it, a stage or an instance.

    Raises
    ------
    Unsatisfiable
        With what was asked for and what there is.
    """
    for placement in placements:
        lacks = _lacking(placement, capacity)
        if lacks:
            hint = f"there is {_shown(capacity)}; change `resources` or the workers"
            raise Unsatisfiable(f"no worker has {lacks}", where=where, hint=hint)


def _lacking(asked: Placement, capacity: Capacity) -> str:
    offers = [offer for offer in capacity.offers if offer.kind == asked.worker]
    if not offers:
        return f"worker: {asked.worker}"
    if asked.cpu > max(capacity.host_cpus, 1.0):
        return f"cpu: {asked.cpu:g}"
    if asked.memory > capacity.host_memory:
        return f"memory: {_gib(asked.memory)}"
    if not any(set(asked.labels) <= set(offer.labels) for offer in offers):
        return f"labels: {', '.join(asked.labels)}"
    if asked.worker == "gpu" and not any(_has_device(asked, offer) for offer in offers):
        return f"gpu: {asked.gpu:g}" + (f" with vram: {_gib(asked.vram)}" if asked.vram else "")
    return ""


def _has_device(asked: Placement, offer: Offer) -> bool:
    return asked.gpu <= offer.gpu and (offer.emulated or asked.vram <= offer.vram)


def _shown(capacity: Capacity) -> str:
    workers = ", ".join(_shown_offer(offer) for offer in capacity.offers) or "no worker"
    return f"{workers} on hosts of up to {capacity.host_cpus:g} cores and {_gib(capacity.host_memory)}"


def _shown_offer(offer: Offer) -> str:
    device = " (emulated)" if offer.emulated else f" of {_gib(offer.vram)}" if offer.vram else ""
    labels = f" with labels {', '.join(offer.labels)}" if offer.labels else ""
    return f"{offer.slots} {offer.kind}{device}{labels}"


def _gib(size: int) -> str:
    return f"{size / 2**40:.3g}TiB" if size >= 1000 << 30 else f"{size / 2**30:.3g}GiB"
