"""What the engine costs beyond Dask: ``python bench/engine.py``.

Trivial calls, two worker processes. A fan-out of 1,000 against ``client.map`` and gather, and a chain of 200 against
the same chain as one plain graph; the best of three each, in one process, so that ratios can be compared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "support")]

import listed_plan  # noqa: E402

from dsec.engine import drive  # noqa: E402
from dsec.engine.shape import ClusterShape  # noqa: E402
from dsec.store import root  # noqa: E402

CALLS, LINKS, TRIES = 1000, 200, 3


def best(run: Callable[[], float]) -> float:
    return min(run() for _ in range(TRIES))


def driven(cluster: object, fill: Callable[[listed_plan.Plan], None]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = root.open_store(Path(folder) / "store")
        plan = listed_plan.Plan()
        fill(plan)
        began = time.perf_counter()
        outcome = drive.drive(plan, store, cluster=lambda: cluster, root=Path(folder), run_id="bench")
        seconds = time.perf_counter() - began
        assert outcome.ran == len(plan.calls), outcome
        return seconds


def fan(plan: listed_plan.Plan) -> None:
    for _ in range(CALLS):
        plan.add("fan")


def chain(plan: listed_plan.Plan) -> None:
    listed_plan.chain(plan, LINKS, "a")


def lanes(plan: listed_plan.Plan) -> None:
    for lane in range(10):
        listed_plan.chain(plan, LINKS // 2, f"lane={lane}")


def mapped(client: object) -> float:
    began = time.perf_counter()
    futures = client.map(str, [f"{began}/{i}" for i in range(CALLS)], pure=False)
    client.gather(futures)
    return time.perf_counter() - began


def plain_chain(client: object, chains: int, links: int) -> float:
    from dask.task_spec import Task, TaskRef

    began = time.perf_counter()
    graph = {}
    for lane in range(chains):
        for i in range(links):
            before = [TaskRef(f"p{lane}-{began}-{i - 1}")] if i else ["x"]
            graph[f"p{lane}-{began}-{i}"] = Task(f"p{lane}-{began}-{i}", str, *before)
    client.get(graph, list(graph), sync=True)
    return time.perf_counter() - began


def main() -> None:
    from distributed import Client

    with (
        listed_plan.local(ClusterShape(), run=listed_plan.quick) as cluster,
        Client(cluster.address, set_as_default=False) as client,
    ):
        driven(cluster, fan)
        mapped(client)
        ours, theirs = best(lambda: driven(cluster, fan)), best(lambda: mapped(client))
        print(f"fan-out of {CALLS}: {ours:.3f} s, client.map and gather {theirs:.3f} s, ratio {ours / theirs:.2f}")
        ours, theirs = best(lambda: driven(cluster, chain)), best(lambda: plain_chain(client, 1, LINKS))
        print(f"chain of {LINKS}: {ours:.3f} s, one plain graph {theirs:.3f} s, ratio {ours / theirs:.2f}")
        ours, theirs = best(lambda: driven(cluster, lanes)), best(lambda: plain_chain(client, 10, LINKS // 2))
        print(f"10 lanes of {LINKS // 2}: {ours:.3f} s, one plain graph {theirs:.3f} s, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
