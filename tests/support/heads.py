"""Heads of tasks for tests, by field names alone: a test need not say in which part of a `Task` a field lies."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.model.tasks import (
    Attempt,
    Task,
    TaskAgreement,
    TaskLineage,
    TaskOutcome,
    TaskOutput,
    TaskRouting,
    TaskSpending,
    TaskTiming,
)

PARTS: dict[str, Any] = {
    "routing": TaskRouting,
    "timing": TaskTiming,
    "attempt": Attempt,
    "output": TaskOutput,
    "outcome": TaskOutcome,
    "lineage": TaskLineage,
    "agreement": TaskAgreement,
    "spending": TaskSpending,
}
FIELDS = {field: (part, field) for part, kind in PARTS.items() for field in kind.__struct_fields__} | {
    "attempts": ("attempt", "count"),
    "attempted_at": ("attempt", "at"),
    "output_bytes": ("output", "bytes"),
    "result_digest": ("outcome", "digest"),
    "outcome_event": ("outcome", "event"),
}


def _apart(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    own: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        if name in Task.__struct_fields__:
            own[name] = value
        else:
            part, field = FIELDS[name]
            parts.setdefault(part, {})[field] = value
    return own, parts


def task_head(**fields: Any) -> Task:
    own, parts = _apart(fields)
    return Task(**own, **{part: PARTS[part](**values) for part, values in parts.items()})


def changed(task: Task, **fields: Any) -> Task:
    own, parts = _apart(fields)
    own |= {part: msgspec.structs.replace(getattr(task, part), **values) for part, values in parts.items()}
    return msgspec.structs.replace(task, **own)
