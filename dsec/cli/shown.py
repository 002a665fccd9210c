"""What the reading verbs show, as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from dsec.cli import output
from dsec.cli.options import CheckFormat
from dsec.errors import Problem

if TYPE_CHECKING:
    from dsec import api

__all__ = [
    "preview_json",
    "preview_text",
    "problem",
    "run_row_json",
    "run_text",
    "runs_text",
    "stage_of",
    "why_json",
]


def problem(found: Problem, layout: CheckFormat) -> None:
    """Print one problem: on stderr for people, on stdout for editors and CI."""
    if layout is CheckFormat.json:
        output.json_line(
            {
                "event": "problem",
                "path": found.path,
                "line": found.line,
                "column": found.column,
                "code": found.code,
                "message": found.message,
                "hint": found.hint,
            }
        )
    elif layout is CheckFormat.github:
        output.line(_annotation(found))
    else:
        output.note(str(found))


def _annotation(found: Problem) -> str:
    """A workflow command of GitHub Actions; its own signs are percent-escaped."""
    message = f"{found.message}{': ' + found.hint if found.hint else ''}"
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    file = found.path.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::error file={file},line={max(1, found.line)},col={max(1, found.column)},title={found.code}::{escaped}"


def preview_json(preview: api.Preview) -> dict[str, object]:
    """A dry run as one object."""
    return {
        "plan": preview.plan,
        "calls": preview.calls,
        "hits": preview.hits,
        "to_run": preview.to_run,
        "stages": [
            {
                "stage": row.stage,
                "instances": row.instances,
                "cached": row.cached,
                "to_run": row.to_run,
                "reason": row.reason,
            }
            for row in preview.rows
        ],
        "notes": list(preview.notes),
    }


def preview_text(preview: api.Preview) -> str:
    """A dry run as a table and its sum."""
    rows = [(row.stage, row.instances, row.cached, row.to_run, row.reason) for row in preview.rows]
    laid = output.table(("stage", "instances", "cached", "to run", "reason"), rows, limit=output.width())
    total = f"{output.counted(preview.calls, 'call')}: {preview.hits:,} cached, {preview.to_run:,} to run"
    notes = "".join(f"\nnote: {text}" for text in preview.notes)
    return f"plan {preview.plan}\n\n{laid}\n\n{total}{notes}"


def why_json(answer: api.Why) -> dict[str, object]:
    """An explanation as one object."""
    return {
        "instance": answer.instance,
        "status": answer.status,
        "reasons": list(answer.reasons),
        "plan_key": answer.plan_key,
    }


def run_row_json(row: api.RunRow) -> dict[str, object]:
    """A line of ``dsec runs --json``."""
    return {
        "run": row.run_id,
        "plan": row.plan,
        "status": row.status,
        "created": row.created,
        "calls": row.calls,
        "hits": row.hits,
        "ran": row.ran,
        "failed": row.failed,
        "seconds": row.seconds,
    }


def runs_text(rows: Sequence[api.RunRow]) -> str:
    """The runs of a store as a table."""
    columns = ("run", "plan", "status", "calls", "ran", "failed", "time")
    listed = [
        (
            row.run_id,
            row.plan,
            row.status,
            row.calls,
            row.ran,
            row.failed,
            "-" if row.seconds is None else output.duration(row.seconds),
        )
        for row in rows
    ]
    return output.table(columns, listed, limit=output.width(), more="dsec runs --json")


def run_text(details: Mapping[str, Any], instances: str | None) -> str:
    """One run: head, sessions, counts by stage, what failed, and the instances that match a glob."""
    everything: Mapping[str, Mapping[str, Any]] = details["instances"]
    parts = [_head(details), _sessions(details["sessions"]), _stages(everything)]
    parts.append(_listed("failed", {k: v for k, v in everything.items() if v["status"] == "failed"}))
    if instances is not None:
        parts.append(_listed("instances", {k: v for k, v in everything.items() if fnmatchcase(k, instances)}))
    return "\n\n".join(part for part in parts if part)


def stage_of(instance: str) -> str:
    """Path of the stage of an instance: ``train@seed=0#29/learn`` is of ``train.learn``."""
    return ".".join(part.partition("#")[0].partition("@")[0] for part in instance.split("/"))


def when(stamp: str | None) -> str:
    """An ISO 8601 time for people: UTC, to the second."""
    return stamp[:19].replace("T", " ") if stamp else "-"


def _head(details: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{number:,} {name}" for name, number in details.get("counts", {}).items())
    rows = [
        ("run", details["run"]),
        ("plan", details["plan"]),
        ("status", details.get("status", "-")),
        ("created", when(details.get("created"))),
        ("counts", counts or "-"),
    ]
    return "\n".join(f"{name:<8} {value}" for name, value in rows)


def _sessions(sessions: Sequence[Mapping[str, Any]]) -> str:
    rows = [(s["session_id"], s["seed"], s["max_steps"], when(s["creation_timestamp"])) for s in sessions]
    if not rows:
        return ""
    return output.table(("session", "seed", "max steps", "created (UTC)"), rows, limit=output.width())


def _stages(instances: Mapping[str, Mapping[str, Any]]) -> str:
    by_stage: dict[str, dict[str, int]] = {}
    for name, details in instances.items():
        counts = by_stage.setdefault(stage_of(name), {})
        counts[details["status"]] = counts.get(details["status"], 0) + 1
    statuses = sorted({status for counts in by_stage.values() for status in counts})
    rows = [(stage, *(counts.get(status, 0) for status in statuses)) for stage, counts in by_stage.items()]
    return output.table(("stage", *statuses), rows, limit=output.width()) if rows else ""


def _listed(title: str, chosen: Mapping[str, Mapping[str, Any]]) -> str:
    """Instances with their stats, or their error."""
    if not chosen:
        return ""
    rows = [(name, details["status"], _remark(details)) for name, details in chosen.items()]
    return output.table((title, "status", "stats"), rows, limit=output.width(), more="dsec show RUN --json")


def _remark(details: Mapping[str, Any]) -> str:
    error = details.get("error")
    if error:
        return str(error)
    stats: Mapping[str, Any] = details.get("stats") or {}
    return " ".join(
        f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}" for name, value in stats.items()
    )
