"""Cluster and executor without Dask: each link runs at once, in order, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from window_simulator import capacity

from dsec.core.stage import PlanKey, StageResult
from dsec.engine.borders import Capacity, Done, Erred, Job, Outcry, Site
from dsec.engine.lower import compact, errand
from dsec.store.root import Store


@dataclass
class Serial:
    """A cluster of one process; counts what it is asked."""

    run: Callable[..., str]
    capacity: Capacity = field(default_factory=capacity)
    dashboard: str = ""
    started: int = 0
    remade: int = 0
    allowed: int = 0
    sent: list[Job] = field(default_factory=list)
    made: list[Execution] = field(default_factory=list)
    missing: bool = False

    def allow(self, memory: int) -> None:
        self.allowed = max(self.allowed, memory)

    def executor(self, store: Store, site: Site) -> Execution:
        self.started += 1
        self.made.append(Execution(self, store, site))
        return self.made[-1]

    def remake(self) -> bool:
        self.remade += 1
        return True


@dataclass
class Execution:
    cluster: Serial
    store: Store
    site: Site
    texts: dict[PlanKey, str] = field(default_factory=dict)
    heard: list[Outcry] = field(default_factory=list)
    recalled: list[PlanKey] = field(default_factory=list)
    closed: bool = False

    def submit(self, batches: Sequence[Sequence[Job]]) -> None:
        for job in (job for batch in batches for job in batch):
            self.cluster.sent.append(job)
            if not self.cluster.missing:
                self.heard.append(self._run(job))

    def _run(self, job: Job) -> Outcry:
        call = compact(self.store, job.call)
        try:
            upstream = [self.texts[key] for key in job.upstream]
            text = self.cluster.run(call.to_json(), errand(self.site, job.placement.worker, job.refresh), *upstream)
        except KeyError as error:
            return Erred(call.plan_key, error)
        except Exception as error:
            return Erred(call.plan_key, error)
        self.texts[call.plan_key] = text
        result, ran, seconds = json.loads(text)
        return Done(call.plan_key, StageResult.from_json(result), ran, seconds)

    def recall(self, keys: Iterable[PlanKey]) -> None:
        gone = set(keys)
        self.recalled += gone
        self.heard = [outcry for outcry in self.heard if outcry.key not in gone]

    def wait(self, timeout: float) -> list[Outcry]:
        heard, self.heard = self.heard, []
        return heard

    def running(self) -> Mapping[PlanKey, float]:
        return {}

    def restart_worker(self, key: PlanKey) -> None:
        raise AssertionError("nothing runs")

    def workers(self) -> int:
        return 0 if self.cluster.missing else 1

    def close(self) -> None:
        self.closed = True
