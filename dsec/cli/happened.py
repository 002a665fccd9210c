"""Events of a run, counted, put into words and into JSON. Imported when a run begins, not before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from dsec.cli import output
from dsec.cli.failure import as_json as error_json
from dsec.cli.tally import Tally
from dsec.engine import events

__all__ = ["as_json", "begins_work", "count", "remark"]


def count(tally: Tally, event: events.Event, now: float) -> None:
    """Add an event to the counts; `now` is in seconds of the tally's clock."""
    match event:
        case events.Resolved(calls):
            for stage, number in calls.items():
                tally.stage(stage).planned += number
        case events.HitsFound(hits):
            for stage, number in hits.items():
                tally.stage(stage).hits += number
        case events.Submitted() if tally.began is None:
            tally.began = now
        case events.Finished(stage=stage, ran=ran):
            tally.stage(stage).ran += ran
            tally.stage(stage).hits += not ran
            tally.settled = now if tally.settled is None else tally.settled
        case events.Failed(stage=stage):
            tally.stage(stage).failed += 1
        case events.Skipped(stage=stage):
            tally.stage(stage).skipped += 1
        case events.Retried(stage=stage):
            tally.stage(stage).retried += 1
        case events.Remade(stage=stage):
            tally.stage(stage).hits -= 1
        case _:
            pass


def begins_work(event: events.Event) -> bool:
    """Whether the run has now more to do than to read the store."""
    return isinstance(event, events.ClusterUp | events.Submitted | events.Elsewhere)


def remark(event: events.Event) -> str | None:
    """What a person is told at once, in a line; None for what the counts tell."""
    text: str | None = None
    match event:
        case events.ClusterUp():
            text = _cluster(event)
        case events.Failed(instance, _, error):
            place = error.where if error.where.startswith(instance) else instance
            text = f"failed: {place}: {error.message}"
        case events.Retried(instance, _, cause, attempt, wait, message):
            pause = f" in {output.duration(wait)}" if wait else ""
            text = f"retry {attempt}{pause}: {instance}: {cause}: {message}"
        case events.Remade(instance, _, name):
            text = f"again: {instance}: its output {name!r} is absent from the store or damaged"
        case events.Elsewhere(instance):
            text = f"waiting: {instance} is being run by another process"
        case events.Recovering(lost):
            text = f"all workers are gone, with {output.counted(lost, 'call')}; making them anew"
        case _:
            pass
    return text


def _cluster(event: events.ClusterUp) -> str:
    counts = ", ".join(f"{number} {kind}" for kind, number in event.workers.items())
    emulated = "; no CUDA here, so gpu is emulated on the CPU" if event.emulated else ""
    dashboard = f"; dashboard {event.dashboard}" if event.dashboard else ""
    return f"workers: {counts}{emulated}{dashboard}"


def as_json(event: events.Event) -> dict[str, object]:
    """An event as a line of ``--json``; its kind is the name of its class, ``hits-found``."""
    kind = "".join(f"-{c.lower()}" if c.isupper() else c for c in type(event).__name__).lstrip("-")
    shown: dict[str, object] = {"event": kind}
    match event:
        case events.Finished(instance, stage, result, seconds, ran):
            shown |= {"instance": instance, "stage": stage, "ran": ran, "seconds": seconds}
            shown |= {"action_key": result.action_key, "outputs": dict(result.outputs), "stats": dict(result.stats)}
        case events.Failed(instance, stage, error):
            shown |= error_json(error) | {"event": kind, "instance": instance, "stage": stage}
        case _:
            shown |= {field.name: _plain(getattr(event, field.name)) for field in fields(event)}
    return shown


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value
