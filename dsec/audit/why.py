"""Why a call has a result or not: the parts of its key beside those of the last result of the same instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dsec.audit import report
from dsec.core.stage import Edge, Recipe, StageCall
from dsec.errors import AbsentError, CorruptObject
from dsec.store import actions, root
from dsec.store import runs as records
from dsec.store.actions import ActionEntry
from dsec.store.root import Store

__all__ = ["CodeChanges", "last_entry", "reasons"]

CodeChanges = Callable[[str, str], list[str]]
"""Two fingerprints by digest -> what changed, as ``helpers/gae.py:LAMBDA changed``."""


def last_entry(store: Store, instance: str) -> ActionEntry | None:
    """The newest result of an instance of this name, by the runs of the store."""
    for run in reversed(records.all_runs(store)):
        for call in report.calls_of(store, run):
            if call.instance == instance and call.action_key is not None:
                return actions.read(store.blobs, call.action_key)
    return None


def reasons(
    store: Store, call: StageCall, recipe: Recipe, last: ActionEntry | None, code: CodeChanges
) -> tuple[str, ...]:
    """What differs between a call that would run and the last result of its instance."""
    if last is None:
        return ("no result of this instance is in the store yet",)
    try:
        before = root.get_recipe(store, last.recipe)
    except (AbsentError, CorruptObject):
        return ("the parts of the last result's key are gone from the store",)
    found = list(_recipes(before, recipe, code))
    if last.steps != call.steps:
        found.append(f"steps: {_range(last.steps)} -> {_range(call.steps)}")
    if (last.stream, last.restream) != (call.stream, call.restream):
        found.append(f"random stream: {last.stream or 'lane'} -> {call.stream or 'lane'}")
    found.extend(_inputs(call, last))
    return tuple(found) or ("its result is no longer in the store",)


def _recipes(old: Recipe, new: Recipe, code: CodeChanges) -> Iterator[str]:
    if old.uses != new.uses:
        yield f"uses: {old.uses} -> {new.uses}"
    elif old.code != new.code:
        yield from _code(old.code, new.code, code)
    yield from _mappings("with", old.config, new.config)
    yield from _mappings("files", old.files, new.files)
    for name in ("agent", "env", "reward"):
        yield from _specs(name, getattr(old, name), getattr(new, name), code)
    for name in ("seed", "numerics", "class_id", "cache_version"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield f"{_WORDS.get(name, name)}: {_short(before)} -> {_short(after)}"
    if old.outputs != new.outputs:
        yield "the declared outputs differ"
    if old.salt != new.salt:
        yield "cache: off, so it belongs to one run"


_WORDS = {"class_id": "runtime class", "cache_version": "cache.version"}


def _specs(name: str, old: Any, new: Any, code: CodeChanges) -> Iterator[str]:
    if old == new:
        return
    if old is None or new is None:
        yield f"session.{name} was {'added' if old is None else 'left out'}"
        return
    if old.code.uses != new.code.uses:
        yield f"{name}.uses: {old.code.uses} -> {new.code.uses}"
    elif old.code.fingerprint != new.code.fingerprint:
        yield from _code(old.code.fingerprint, new.code.fingerprint, code)
    yield from _mappings(f"{name}.with", old.config, new.config)
    yield from _mappings(f"{name}.files", old.files, new.files)
    for key, before in old:
        if key not in ("code", "config", "files") and before != getattr(new, key):
            yield f"{name}.{key}: {before} -> {getattr(new, key)}"


def _code(old: str, new: str, code: CodeChanges) -> Iterator[str]:
    yield from (f"code: {text}" for text in code(old, new) or ["the semantics of the body were raised"])


def _mappings(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        if key not in old or key not in new or old[key] != new[key] or type(old[key]) is not type(new[key]):
            yield f"{name}.{key}: {_short(old.get(key, 'absent'))} -> {_short(new.get(key, 'absent'))}"


def _inputs(call: StageCall, last: ActionEntry) -> Iterator[str]:
    for name, source in call.inputs.items():
        if name not in last.inputs:
            yield f"input {name} is new"
        elif any(isinstance(item, Edge) for item in source.sources):
            yield f"input {name}: what makes it would run first"
        elif list(last.inputs[name]) != [str(item) for item in source.sources]:
            yield f"input {name} differs"
    yield from (f"input {name} was left out" for name in last.inputs if name not in call.inputs)


def _range(steps: tuple[int, int] | None) -> str:
    return "none" if steps is None else f"{steps[0]}-{steps[1]}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
