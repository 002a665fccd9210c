"""Whether bodies, agents, environments and rewards take what the plan gives them; read from sources, never imported."""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dsec.core.bodies import BODIES, Body
from dsec.errors import DsecError, Problem
from dsec.plan.load import Document, Where
from dsec.plan.locate import did_you_mean, nearest, shown
from dsec.plan.placed import Placed
from dsec.plan.schema import Cache, ExecutionPlan
from dsec.plan.values import Expr
from dsec.plan.wiring import Outputs

__all__ = ["Parameter", "Signature", "Sources", "Usage"]

_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


class Parameter(Protocol):
    """One parameter of users' code."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""


class Signature(Protocol):
    """What the sources say of a function or a class, as `dsec.code` reads it."""

    @property
    def kind(self) -> str:
        """``function`` or ``class``."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """In order; of a class those of its ``__init__`` without ``self``."""

    @property
    def accepts_any(self) -> bool:
        """Whether it has ``**kwargs``."""

    @property
    def outputs(self) -> tuple[str, ...] | None:
        """Keys of a TypedDict that it is annotated to return."""

    @property
    def file(self) -> Any:
        """Source file."""

    @property
    def line(self) -> int:
        """Where it begins."""


class Sources(Protocol):
    """`dsec.code.Project`, as far as it is asked here."""

    def signature(self, name: str) -> Signature:
        """Signature of ``package.module:name``; a `DsecError` with a ``kind`` if there is none."""

    def fingerprint(self, name: str, *, allow_dynamic: bool = False) -> object:
        """Fingerprint of all the code it reaches; a `DsecError` with a ``kind`` if it can't be told."""


class Usage:
    """Checks of what a plan names; remembers what each stage makes (`outputs`)."""

    def __init__(self, plan: ExecutionPlan, document: Document, sources: Sources | None) -> None:
        self.plan = plan
        self.document = document
        self.sources = sources
        self.found: dict[str, Signature | DsecError | None] = {}

    def outputs(self, stages: Iterable[Placed]) -> Outputs:
        """Output names of every stage that has a body, None where they are known only when it ran."""
        return {placed.path: self._outputs(placed) for top in stages for placed in top.walk()}

    def _outputs(self, placed: Placed) -> tuple[str, ...] | None:
        uses = placed.stage.uses
        if not isinstance(uses, str):
            return None
        if uses in BODIES:
            return BODIES[uses].outputs
        if placed.stage.outputs:
            return tuple(placed.stage.outputs)
        signature = self._read(uses)
        return signature.outputs if signature is not None and not isinstance(signature, DsecError) else None

    def problems(self, stages: Iterable[Placed]) -> Iterator[Problem]:
        """Problems of bodies and of what the session is made of."""
        for top in stages:
            for placed in top.walk():
                yield from self._stage(placed)
        yield from self._session()

    def _stage(self, placed: Placed) -> Iterator[Problem]:
        stage = placed.stage
        for name in sorted(set(stage.inputs) & set(stage.with_)):
            message = f"'{name}' stands in 'inputs' and in 'with'"
            yield self.document.problem((*placed.where, "with", name), "bad-argument", message, "keep one", key=True)
        uses = stage.uses
        if not isinstance(uses, str) or placed.stage.iterate is not None:
            return
        if uses in BODIES and "init_" not in uses:
            yield from self._ready_made(placed, BODIES[uses], uses)
        elif uses.partition(":")[0].split(".")[0] == "dsec":
            names = [name for name in BODIES if "init_" not in name]
            message = f"DSec has no stage body {shown(uses)}"
            yield self.document.problem((*placed.where, "uses"), "unknown-body", message, did_you_mean(uses, names))
        else:
            yield from self._own(placed, uses)

    def _ready_made(self, placed: Placed, body: Body, uses: str) -> Iterator[Problem]:
        stage, where = placed.stage, placed.where
        short = uses.partition(":")[2]
        if "**" not in body.inputs:
            yield from self._strange(stage.inputs, body.inputs, (*where, "inputs"), f"input of '{short}'")
        elif not stage.inputs:
            yield self._missing(where, "inputs", short)
        for name in (name for name, required in body.inputs.items() if required and name != "**"):
            if name not in stage.inputs:
                yield self._missing((*where, "inputs"), name, short)
        yield from self._strange(stage.with_, body.config, (*where, "with"), f"argument of '{short}'")
        yield from self._config(stage.with_, body, (*where, "with"))
        yield from self._declared(placed, body, short)
        yield from self._steps(placed, body, short)
        yield from self._needs_session(placed, body, short)

    def _strange(self, names: Iterable[str], known: Iterable[str], where: Where, what: str) -> Iterator[Problem]:
        words = list(known)
        for name in names:
            if name not in words:
                hint = did_you_mean(name, words) or "it takes none"
                yield self.document.problem(
                    (*where, name), "bad-argument", f"{shown(name)} is no {what}", hint, key=True
                )

    def _missing(self, where: Where, name: str, short: str) -> Problem:
        message = f"'{name}' is missing: '{short}' needs it"
        return self.document.problem(where, "missing-key", message, f"add {name}: …", key=True)

    def _config(self, config: Mapping[str, Any], body: Body, where: Where) -> Iterator[Problem]:
        for name, kind in body.config.items():
            value = config.get(name)
            if name not in config or isinstance(value, Expr):
                continue
            if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
                message = f"'{name}' is {shown(value)}, expected {_WORDS[kind]}"
                yield self.document.problem((*where, name), "wrong-type", message)

    def _declared(self, placed: Placed, body: Body, short: str) -> Iterator[Problem]:
        for name, output in placed.stage.outputs.items():
            where = (*placed.where, "outputs", name)
            if name not in body.outputs:
                hint = did_you_mean(name, body.outputs)
                yield self.document.problem(where, "unknown-output", f"'{short}' makes no '{name}'", hint, key=True)
            elif output.every is not None and not (body.steps and name in ("state", "agent", "env")):
                message = f"'{name}' of '{short}' has no steps to be kept"
                hint = "every: goes with state, agent or env of a rollout"
                yield self.document.problem((*where, "every"), "bad-output", message, hint, key=True)

    def _steps(self, placed: Placed, body: Body, short: str) -> Iterator[Problem]:
        if body.steps and placed.stage.steps is None:
            yield self._missing(placed.where, "steps", short)
        elif not body.steps and placed.stage.steps is not None:
            yield self._no_steps(placed, short)
        inputs = placed.stage.inputs
        if body.steps and "state" in inputs and ("agent" in inputs or "env" in inputs):
            message, hint = "'state' is agent and env already", "give 'state', or 'agent' and 'env'"
            yield self.document.problem((*placed.where, "inputs", "state"), "bad-argument", message, hint, key=True)

    def _no_steps(self, placed: Placed, short: str) -> Problem:
        message, hint = f"'{short}' covers no steps", "only dsec.stages:rollout has 'steps'"
        return self.document.problem((*placed.where, "steps"), "bad-steps", message, hint, key=True)

    def _needs_session(self, placed: Placed, body: Body, short: str) -> Iterator[Problem]:
        session = self.plan.session
        # A rollout without a reward has the environment's own; scoring again has nothing else to compute.
        needed = ("reward",) if body.specs == ("reward",) else tuple(n for n in body.specs if n != "reward")
        for name in needed:
            if session is None or getattr(session, name) is None:
                message = f"'{short}' needs a session with '{name}'"
                hint = f"add session: {{{name}: …}}"
                yield self.document.problem((*placed.where, "uses"), "missing-key", message, hint)

    def _own(self, placed: Placed, uses: str) -> Iterator[Problem]:
        """A body of the user's."""
        stage, where = placed.stage, placed.where
        if stage.steps is not None:
            yield self._no_steps(placed, uses.partition(":")[2])
        for name, output in stage.outputs.items():
            if output.every is not None:
                message, hint = f"'{name}' has no steps to be kept", "every: goes with dsec.stages:rollout"
                yield self.document.problem((*where, "outputs", name, "every"), "bad-output", message, hint, key=True)
        found = yield from self._look_up(uses, (*where, "uses"))
        if found is None:
            return
        yield from self._keyed(uses, (*where, "uses"), stage.cache)
        if found.kind != "function" or not found.parameters:
            message = f"{uses} is not a function that takes ctx"
            hint = "a body is def body(ctx, *, …) -> {output: tree}"
            yield self.document.problem((*where, "uses"), "bad-signature", message, hint)
            return
        taken = [parameter.name for parameter in found.parameters[1:]]
        if not found.accepts_any:
            what = f"parameter of {uses}"
            yield from self._strange(stage.inputs, taken, (*where, "inputs"), what)
            yield from self._strange(stage.with_, taken, (*where, "with"), what)
        given = {*stage.inputs, *stage.with_}
        # A misspelled argument is one problem, not an unknown one and a missing one.
        given |= {nearest(name, taken) or name for name in given.difference(taken)}
        for parameter in found.parameters[1:]:
            if parameter.required and parameter.name not in given:
                message = f"{uses} needs '{parameter.name}'"
                hint = f"add it to 'inputs' or 'with'; {_place(found)}"
                yield self.document.problem(where, "bad-argument", message, hint, key=True)

    def _read(self, uses: str) -> Signature | DsecError | None:
        """Signature of users' code, or why there is none; None where sources are left out."""
        if uses not in self.found:
            try:
                self.found[uses] = self.sources.signature(uses) if self.sources is not None else None
            except DsecError as error:
                self.found[uses] = error
        return self.found[uses]

    def _look_up(self, uses: str, where: Where) -> Generator[Problem, None, Signature | None]:
        """Signature of users' code; a problem if there is none."""
        found = self._read(uses)
        if not isinstance(found, DsecError):
            return found
        yield self._of_code(found, where)
        return None

    def _of_code(self, error: DsecError, where: Where) -> Problem:
        message = f"{error.where}: {error.message}" if error.where else error.message
        return self.document.problem(where, str(getattr(error, "kind", "bad-code")), message, error.hint)

    def _keyed(self, uses: str, where: Where, cache: Cache | None) -> Iterator[Problem]:
        """Whether the code can be fingerprinted; what is dynamic in it may be answered for by ``cache.version``."""
        if self.sources is None:
            return
        rule = cache or self.plan.defaults.cache
        try:
            self.sources.fingerprint(uses, allow_dynamic=rule is not None and rule.version is not None)
        except DsecError as error:
            yield self._of_code(error, where)

    def _session(self) -> Iterator[Problem]:
        session = self.plan.session
        if session is None:
            return
        for name in ("agent", "env", "reward"):
            spec = getattr(session, name)
            if spec is None or not isinstance(spec.uses, str) or _registered(spec.uses):
                continue
            where: Where = ("session", name, "uses")
            found = yield from self._look_up(spec.uses, where)
            if found is not None:
                yield from self._keyed(spec.uses, where, None)
            if found is not None and name == "env" and found.kind == "class" and not found.accepts_any:
                taken = [parameter.name for parameter in found.parameters]
                yield from self._strange(spec.with_, taken, ("session", "env", "with"), f"parameter of {spec.uses}")
        yield from self._vectorized()

    def _vectorized(self) -> Iterator[Problem]:
        session = self.plan.session
        if session is None or session.env is None or session.env.num_envs is None or session.agent is None:
            return
        says = session.agent.vectorized
        if says is None and isinstance(session.agent.uses, str):
            says = _class_says(self._read(session.agent.uses), session.agent.uses)
        if says is False:
            message = "num_envs with an agent that is not vectorized"
            hint = "an agent that acts for all environments at once says vectorized = True"
            yield self.document.problem(("session", "env", "num_envs"), "not-vectorized", message, hint)


def _registered(uses: str) -> bool:
    """Whether an environment is named by an id in a registry, and not by a class."""
    return uses.startswith("gymnasium/") or not uses.replace(":", ".").replace(".", "_").isidentifier()


def _place(found: Signature) -> str:
    return f"see {found.file}:{found.line}" if found.line else "see its documentation"


def _class_says(found: Signature | DsecError | None, uses: str) -> bool | None:
    """What a class without bases says of ``vectorized``; None where its source alone can't tell."""
    if found is None or isinstance(found, DsecError) or found.kind != "class":
        return None
    try:
        tree = ast.parse(Path(found.file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    name = uses.rpartition(":")[2].rpartition(".")[2]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name and node.lineno == found.line:
            return _assigned(node)
    return None


def _assigned(node: ast.ClassDef) -> bool | None:
    for inner in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(inner, ast.Assign):
            targets = inner.targets
        elif isinstance(inner, ast.AnnAssign):
            targets = [inner.target]
        if any(getattr(target, "id", getattr(target, "attr", "")) == "vectorized" for target in targets):
            value = getattr(inner, "value", None)
            return value.value if isinstance(value, ast.Constant) and isinstance(value.value, bool) else None
    return None if node.bases or node.keywords or node.decorator_list else False
