"""The one door: load a plan, check it, see what would run, run it, and ask what happened.

The command line and notebooks call nothing else. Imports of what is heavy are local, so that a run whose results are
all there needs neither numpy nor Dask.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsec.audit import report as reporting
from dsec.audit import why as explaining
from dsec.code import Fingerprint, bundle, changes
from dsec.code.readings import Readings
from dsec.core import canon, keys
from dsec.core.answers import Preview, PreviewRow, RunRow, RunSummary, Table, Why, Workers
from dsec.core.session import new_session
from dsec.core.stage import AnchorId
from dsec.engine import classes, events
from dsec.errors import AbsentError, Interrupted, PlanError, Problem, UsageError
from dsec.plan import check as checking
from dsec.plan import compile as compiling
from dsec.plan import load, select, template
from dsec.plan import schema as plans
from dsec.plan.kinds import Axis, DeclaredFile
from dsec.plan.locate import did_you_mean
from dsec.plan.nodes import AnchorHeader, StageGraph
from dsec.plan.placed import place
from dsec.plan.values import Expr
from dsec.store import root as stores
from dsec.store import runs as records
from dsec.store.root import Store

if TYPE_CHECKING:
    from dsec.engine.borders import Cluster
    from dsec.engine.drive import Outcome
    from dsec.engine.resolve import Verdict

__all__ = [
    "Plan",
    "Preview",
    "PreviewRow",
    "RunRow",
    "RunSummary",
    "Table",
    "Why",
    "Workers",
    "default_store",
    "init",
    "load_plan",
    "parse_size",
    "parse_value",
    "project_root",
    "run",
    "runs",
    "schema",
    "show",
    "why",
    "worker",
]

parse_value = load.parse_value
parse_size = load.parse_size
project_root = load.project_root


@dataclass(slots=True)
class Plan:
    """A plan that was read; nothing of it has been imported or run."""

    path: Path
    root: Path
    """Project root: on the import path wherever the plan runs."""
    written: plans.ExecutionPlan
    document: load.Document
    params: Mapping[str, object] = field(default_factory=dict)
    """Overrides, as ``-p`` gave them."""
    _readings: dict[Path | None, Readings] = field(default_factory=dict, repr=False)
    _graphs: dict[Path | None, StageGraph] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.written.name

    def check(self, imports: bool = True, store: Path | None = None) -> tuple[Problem, ...]:
        """Every problem that can be found without running: statically, then by importing in a process of its own.

        Parameters
        ----------
        store
            A store whose memory of parsed sources may be used, if it is there.
        """
        opened = _existing(store) if store is not None else None
        found = checking.check(self.written, self.document, self.readings(opened).project)
        if not found:
            found = list(self._expanded(opened))
        if not found and imports:
            found = checking.check_imports(self.written, self.document, self.root)
        return tuple(found)

    def preview(self, store: Path | None = None, select: Sequence[str] = ()) -> Preview:
        """What a run would do; starts nothing and writes nothing."""
        place = store or default_store(self.root)
        _raise(self.check(imports=False, store=place))
        opened = _existing(place)
        known = classes.known(opened, None) if opened else dict.fromkeys(classes.KINDS)
        graph = self.compiled(known, opened)
        counts: dict[str, list[Any]] = {}
        for stage, runs_too, reason in _surveyed(_frontier(graph, select), opened):
            row = counts.setdefault(stage, [0, 0, ""])
            row[runs_too] += 1
            row[2] = row[2] or reason
        notes = () if any(known.values()) else ("runtime class unknown: no run in this store yet, so all is to run",)
        rows = tuple(PreviewRow(stage, hit + run, hit, run, reason) for stage, (hit, run, reason) in counts.items())
        hits = sum(row.cached for row in rows)
        calls = sum(row.instances for row in rows)
        return Preview(self.name, rows, calls, hits, calls - hits, notes)

    def graph(self, format: str = "text") -> str:
        """Its stages drawn as ``text`` or ``mermaid``."""
        from dsec.plan import graph

        drawn = {"text": graph.text, "mermaid": graph.mermaid}
        if format not in drawn:
            raise UsageError(f"there is no format {format!r}", hint=f"one of {', '.join(drawn)}")
        return drawn[format](self.compiled(dict.fromkeys(classes.KINDS), None))

    def compiled(self, known: Mapping[str, str | None], store: Store | None) -> StageGraph:
        """Its stages and sessions with their specs hashed."""
        place = store.path if store is not None else None
        if place not in self._graphs:
            self._graphs[place] = self._compiled(known, store)
        return replace(self._graphs[place], classes=known)

    def _compiled(self, known: Mapping[str, str | None], store: Store | None) -> StageGraph:
        read = self.readings(store)
        sourcing = compiling.Sourcing(read.fingerprint, read.outputs, read.takes, read.bundle)
        headers = {anchor: _header(store, anchor) for anchor in compiling.anchors_of(self.written)}
        return compiling.compile_plan(self.written, self.document, sourcing, classes=known, anchors=headers)

    def readings(self, store: Store | None) -> Readings:
        """Its code, read from sources; what was parsed is remembered in the store, if there is one."""
        cache = store.path / "cache" if store is not None else None
        if cache not in self._readings:
            self._readings[cache] = Readings(self.root, cache, self._versioned)
        return self._readings[cache]

    def files(self) -> list[DeclaredFile]:
        """Every declared file."""
        found: list[DeclaredFile] = []
        _collect(self.document.tree, found)
        return found

    def identity(self, select: Sequence[str]) -> canon.Digest:
        """Digest by which an unfinished run of it is found again."""
        return keys.run_identity(_identified(self.document.tree), _identified(dict(self.params)), tuple(select))

    def _versioned(self, uses: str) -> bool:
        """Whether a cache version answers for what can't be seen in this code: its stage's, or the defaults' one."""
        defaults = self.written.defaults.cache
        if defaults is not None and defaults.version is not None:
            return True
        stages = (placed.stage for top in place(self.written).values() for placed in top.walk())
        return any(str(s.uses) == uses and s.cache is not None and s.cache.version is not None for s in stages)

    def _expanded(self, store: Store | None) -> Sequence[Problem]:
        """Problems that only the expansion shows: step ranges, expressions, code that can't be fingerprinted."""
        try:
            frontier = _frontier(self.compiled(dict.fromkeys(classes.KINDS), store), ())
            taken = 0
            while taken + len(frontier.aliases) < _MAX_CHECKED and (calls := frontier.take(1000)):
                taken += len(calls)
                for call in calls:
                    frontier.done(call.plan_key, None)
        except PlanError as error:
            return error.problems
        return ()


def _existing(place: Path) -> Store | None:
    """The store at a place, None where there is none yet."""
    return stores.open_store(place, create=False) if (place / "format.json").exists() else None


def _surveyed(frontier: Any, store: Store | None) -> Iterator[tuple[str, bool, str]]:
    """Stage, whether it would run, and why, of each call."""
    from dsec.engine import resolve

    if store is not None:
        yield from ((verdict.call.stage, verdict.runs, verdict.reason) for verdict in resolve.survey(frontier, store))
        return
    while calls := frontier.take(resolve.BATCH):
        for call in calls:
            frontier.done(call.plan_key, None)
            yield call.stage, True, "no result yet"
        frontier.retired()


_MAX_CHECKED = 20_000


def load_plan(path: str | Path, *, params: Mapping[str, object] | None = None) -> Plan:
    """Read a plan and all it names, importing nothing.

    Raises
    ------
    PlanError
        With every problem of the file.
    UsageError
        If a param is given that the plan does not have.
    """
    overrides = [f"{name}={json.dumps(value)}" for name, value in (params or {}).items()]
    written, document = load.load_plan(path, overrides=overrides)
    return Plan(Path(path), load.project_root(path), written, document, dict(params or {}))


def default_store(root: Path) -> Path:
    """Where results of a project go: ``.dsec`` beside its files."""
    return root / ".dsec"


# ---- running -------------------------------------------------------------------------------------------


def run(
    plan: Plan,
    *,
    store: Path | None = None,
    shape: Workers | None = None,
    select: Sequence[str] = (),
    fail_fast: bool = False,
    durability: str = "group",
    report: events.Report = events.ignore,
) -> RunSummary:
    """Run a plan, or go on with its newest unfinished run.

    Raises
    ------
    PlanError
        If something is wrong with the plan.
    ClusterError
        If the cluster can't serve it.
    """
    from dsec.engine import drive

    place = store or default_store(plan.root)
    _raise(plan.check(imports=False, store=place))
    shape = shape or Workers()
    looked = _first_look(plan, shape) if _existing(place) is None else None
    opened = stores.open_store(place, durability=durability)  # type: ignore[arg-type]
    opened.blobs.sweep()  # type: ignore[attr-defined]
    with ExitStack() as stack:
        clusters = _Clusters(plan, shape, opened, stack, looked)
        known = clusters.classes()
        identity = plan.identity(select)
        began = records.unfinished(opened, identity)
        graph = plan.compiled(known, opened)
        this = records.resume_run(opened, began) if began else _start(opened, graph, plan, select)
        frontier = _frontier(replace(graph, salt=this.run_id), select)
        _file_sessions(opened, graph)
        _file_sources(opened, plan)
        options = drive.Options(fail_fast=fail_fast, durability=durability)
        outcome = drive.drive(
            frontier, opened, cluster=clusters.start, root=plan.root, run_id=this.run_id, report=report, options=options
        )
    if isinstance(outcome.stopped, PlanError):
        raise outcome.stopped
    return _summary(plan, opened, this, outcome)


def _first_look(plan: Plan, shape: Workers) -> Mapping[str, Mapping[str, Any]]:
    """Records of the runtime classes, for a run that makes its store: a plan that can't be imported must leave none."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        imports = pool.submit(_imports, plan)
        found = pool.submit(_class_records, shape)
        # A new store has no result, so a cluster follows; its second of imports passes while other processes work.
        importlib.import_module("dsec.engine.cluster")
        _raise(imports.result())
        return found.result()


def _imports(plan: Plan) -> Sequence[Problem]:
    return checking.check_imports(plan.written, plan.document, plan.root)


def _class_records(shape: Workers) -> Mapping[str, Mapping[str, Any]]:
    """Records of the runtime class by kind, as the workers of a cluster or processes of this host say them."""
    if shape.scheduler is None:
        from dsec.engine import host

        return classes.probe({"cpu": "cpu", "gpu": "cuda" if host.devices() else "cpu"})
    from dsec.engine import cluster

    asked = cluster.connect(shape.scheduler)
    try:
        return asked.class_records()
    finally:
        asked.close()


@dataclass(slots=True)
class _Clusters:
    """The cluster of one run, started when the first call has to run."""

    plan: Plan
    shape: Workers
    store: Store
    stack: ExitStack
    looked: Mapping[str, Mapping[str, Any]] | None = None
    """What `_first_look` found; None where there was a store already."""

    def classes(self) -> dict[str, str | None]:
        """Runtime class by kind; probes once where no record holds."""
        known = classes.known(self.store, self.shape.scheduler)
        if all(known.values()):
            return known
        found = _class_records(self.shape) if self.looked is None else self.looked
        return classes.remember(self.store, self.shape.scheduler, found)

    def start(self) -> Cluster:
        """Start it, and meanwhile import what the plan names, so that a broken import is found with its line."""
        from dsec.engine import cluster
        from dsec.engine.shape import ClusterShape
        from dsec.runtime.numerics import VARIABLES

        plan = self.plan
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            imports = pool.submit(_imports, plan) if self.looked is None else None
            if self.shape.scheduler is not None:
                made: Any = cluster.connect(self.shape.scheduler)
            else:
                shape = ClusterShape(self.shape.cpu, self.shape.gpu, memory=self.shape.memory)
                made = cluster.LocalCluster(shape, plan.root, VARIABLES)
            self.stack.callback(made.close)
            _raise(imports.result() if imports is not None else ())
        running: Cluster = made
        return running


def worker(address: str, *, kind: str, memory: int | None = None, labels: Sequence[str] = ()) -> int:
    """Be a worker of a running cluster until it ends; ``memory`` are the bytes it may hold."""
    from dsec.engine import cluster
    from dsec.runtime.numerics import VARIABLES

    root = load.project_root(Path.cwd() / "plan")
    cluster.run_worker(address, kind, root=root, variables=VARIABLES, labels=tuple(labels), memory=memory)
    return 0


def _raise(problems: Sequence[Problem]) -> None:
    if problems:
        raise PlanError(problems)


def _frontier(graph: StageGraph, chosen: Sequence[str]) -> Any:
    return select.frontier(graph, chosen)


def _start(store: Store, graph: StageGraph, plan: Plan, chosen: Sequence[str]) -> records.Run:
    identity = plan.identity(chosen)
    facts: dict[str, Any] = {
        "path": str(plan.path.resolve()),
        "params": _identified(dict(plan.params)),
        "select": list(chosen),
    }
    facts["root"] = str(plan.root)
    facts["sessions"] = [lane.found_by for lane in graph.lanes if lane.agent is not None or lane.env is not None]
    return records.start_run(store, identity, _now(), plan=plan.name, facts=facts)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 - the driver's one clock


def _file_sessions(store: Store, graph: StageGraph) -> None:
    now = _now()
    for lane in graph.lanes:
        if lane.agent is None and lane.env is None:
            continue
        found_by = canon.Digest(lane.found_by)
        if records.get_session(store, found_by) is None:
            records.put_session(store, found_by, new_session(found_by, now, lane.deciding))


def _file_sources(store: Store, plan: Plan) -> None:
    """What `why` and replays will need: fingerprints, and the content of declared files."""
    read = plan.readings(store)
    for found in read.found.values():
        _put_once(store, f"code/fingerprints/{found.digest}", functools.partial(dataclasses.asdict, found))
    if digest := read.bundle():
        _put_once(store, f"code/bundles/{digest}", lambda: bundle.to_json(read.sources()))
    for file in plan.files():
        name = f"code/{file.digest[:2]}/{file.digest}"
        if store.blobs.size(name) is None:
            store.blobs.put(name, [file.path.read_bytes()])


def _put_once(store: Store, name: str, value: Callable[[], Any]) -> None:
    if store.blobs.size(name) is None:
        stores.put_json(store, name, value())


def _summary(plan: Plan, store: Store, this: records.Run, outcome: Outcome) -> RunSummary:
    errors = (*outcome.errors, *([outcome.stopped] if outcome.stopped else []))
    status = "stopped" if outcome.stopped else "failed" if outcome.failed else "done"
    counts = {name: getattr(outcome, name) for name in ("calls", "hits", "ran", "failed", "skipped")}
    if not isinstance(outcome.stopped, Interrupted) and outcome.stopped is None:
        message = errors[0].message if errors else None
        stamp = _now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        records.finish_run(store, this, records.End(status, stamp, outcome.seconds, counts, message), outcome.rows)
    return RunSummary(
        this.run_id,
        plan.name,
        status,
        **counts,
        seconds=outcome.seconds,
        cluster=outcome.cluster,
        tables=_tables(store, outcome),
        errors=errors,
        store=store.path,
    )


def _tables(store: Store, outcome: Outcome) -> tuple[Table, ...]:
    found = reporting.tables(store, outcome.rows)
    return tuple(Table(instance, tuple(head), tuple(tuple(row) for row in rows)) for instance, head, rows in found)


# ---- reading -------------------------------------------------------------------------------------------


def runs(store: Path) -> tuple[RunRow, ...]:
    """Runs of a store, the newest first; empty where there is no store."""
    opened = _existing(store)
    return tuple(_row(run) for run in reversed(records.all_runs(opened))) if opened is not None else ()


def _row(run: records.Run) -> RunRow:
    counts = run.end.counts if run.end is not None else {}
    calls, hits, ran, failed = (counts.get(name, 0) for name in ("calls", "hits", "ran", "failed"))
    seconds = run.end.seconds if run.end is not None else None
    path, params = str(run.facts.get("path", "")), run.facts.get("params", {})
    status = reporting.status_of(run)
    return RunRow(run.run_id, run.plan, status, run.started, calls, hits, ran, failed, seconds, path, params)


def show(store: Path, run_id: str) -> dict[str, Any]:
    """A run with its sessions and instances; ``run_id`` may be the beginning of an id.

    Raises
    ------
    UsageError
        If there is no such run, or more than one.
    """
    opened = stores.open_store(store, create=False)
    return reporting.details(opened, records.get_run(opened, run_id))


def why(plan: Plan, instance: str, store: Path | None = None) -> Why:
    """Why an instance is cached or would run.

    Raises
    ------
    UsageError
        If the plan has no such instance; names the nearest.
    """
    from dsec.engine import resolve

    place = store or default_store(plan.root)
    opened = stores.open_store(place, create=False)
    graph = plan.compiled(classes.known(opened, None), opened)
    frontier, names = _frontier(graph, ()), []
    for verdict in resolve.survey(frontier, opened):
        names.append(verdict.call.instance)
        if verdict.call.instance == instance:
            return _explained(plan, opened, verdict)
        for alias, key in frontier.aliases:
            if alias == instance:
                return Why(instance, "shared", ("it is the same call as one of another instance",), key)
    raise UsageError(f"the plan has no instance {instance!r}", hint=did_you_mean(instance, names))


def _explained(plan: Plan, store: Store, verdict: Verdict) -> Why:
    call, recipe = verdict.call, verdict.recipe
    if not verdict.runs:
        return Why(call.instance, "cached", ("its result is in the store",), call.plan_key)
    last = explaining.last_entry(store, call.instance)
    found = explaining.reasons(store, call, recipe, last, lambda old, new: _code_changes(store, plan, old, new))
    return Why(call.instance, "to run", found, call.plan_key)


def _code_changes(store: Store, plan: Plan, old: str, new: str) -> list[str]:
    try:
        before = Fingerprint(**stores.get_json(store, f"code/fingerprints/{old}"))
    except AbsentError:
        return ["the sources of the last result are not in the store"]
    after = next((found for found in plan.readings(store).found.values() if found.digest == new), None)
    return changes(before, after) if after is not None else []


def schema() -> dict[str, Any]:
    """JSON Schema of plan files."""
    return plans.json_schema()


def init(folder: Path, name: str) -> list[Path]:
    """Write a small project that runs; gives the files it wrote.

    Raises
    ------
    UsageError
        If one of them is there already.
    """
    return template.create(folder, name)


def _header(store: Store | None, anchor: AnchorId) -> AnchorHeader:
    """What a plan may know of an anchor that it starts from."""
    if store is None:
        return AnchorHeader("", None)
    from dsec.store import anchors

    tree = anchors.manifest(store.blobs, anchor)
    if not isinstance(tree, dict):
        return AnchorHeader("", None)
    step, label = tree.get("step"), tree.get("label", "")
    return AnchorHeader(str(tree.get("kind", "")), step if isinstance(step, int) else None, str(label))


def _collect(tree: Any, found: list[DeclaredFile]) -> None:
    if isinstance(tree, DeclaredFile):
        found.append(tree)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            _collect(item, found)
    elif isinstance(tree, list | tuple):
        for item in tree:
            _collect(item, found)


def _identified(tree: Any) -> Any:
    """Plain values of a plan's tree: expressions as text, files as digests, columns of files as their values."""
    if isinstance(tree, Expr):
        return str(tree)
    if isinstance(tree, DeclaredFile):
        return tree.digest
    if isinstance(tree, Axis):
        return _identified([tree.values, tree.range])
    if isinstance(tree, Mapping):
        return {key: _identified(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [_identified(item) for item in tree]
    return tree
