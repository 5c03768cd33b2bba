"""Tasks of the hub in the shared registry: what other agents see of a task, and which of its steps.

`core.work` calls this for every task of every unit of work, so it costs a few comparisons where nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.ids import rfc3339
from dragoman.core.model.state import Entity, Registry
from dragoman.core.model.tasks import Event, EventKind, Priority, Status, Task
from dragoman.core.protocol_capabilities import CONVERSES
from dragoman.messages.tasks import Handoff, Request, read_request

SHOWN = {
    Status.QUEUED: "pending",
    Status.ASSIGNED: "in_progress",
    Status.RUNNING: "in_progress",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


def shown_status(task: Task) -> str:
    """The status in the document's terms. A waiting task is in progress if an agent owns it."""
    status = task.status
    if status is Status.WAITING:
        return "pending" if task.owner is None else "in_progress"
    return SHOWN[status]


def shared_name(task: Task) -> str:
    """The name of a task in the shared state: that of the agents that share it. A caller of another protocol has names
    of its own, which are not unique and do not lead to the task."""
    return (task.origin.protocol in CONVERSES and task.origin.called) or task.id


def shown_agent(task: Task) -> str | None:
    return None if task.status is Status.QUEUED else task.owner


def beginning(task: Task) -> dict[str, Any]:
    """A new task, for its watchers."""
    return {
        "status": shown_status(task),
        "assigned_agent": shown_agent(task),
        "context": {"task_type": task.type, "priority": task.priority},
    }


def step(old: Task, new: Task) -> dict[str, Any] | None:
    """What changed for watchers, as a merge patch; None if nothing did."""
    patch: dict[str, Any] | None = None
    if old.status is not new.status or old.owner != new.owner:
        if (status := shown_status(new)) != shown_status(old):
            patch = {"status": status}
        if (agent := shown_agent(new)) != shown_agent(old):
            patch = patch or {}
            patch["assigned_agent"] = agent
    if old.output.progress != new.output.progress:
        patch = patch or {}
        patch["progress"] = new.output.progress
    if old.waiting is not new.waiting:
        patch = patch or {}
        patch["waiting"] = new.waiting
    if old.priority is not new.priority or old.metadata is not new.metadata:
        patch = patch or {}
        patch["context"] = {"priority": new.priority}
        if old.metadata is not new.metadata and not new.agreement.personal:  # the log of changes is not encrypted
            patch["context"]["metadata"] = new.metadata
    return patch


def given_metadata(source: Request) -> dict[str, Any]:
    """The metadata in a task's request: its caller's, and that of the agent that handed it over."""
    asked = {} if source.context is None else source.context.metadata
    handed = {} if source.handover is None else source.handover.metadata or {}
    return asked | handed


def in_full(entity: Entity) -> Entity:
    """A task that agents keep among themselves, with all that the document requires of a TaskState. They write it bit
    by bit; the hub adds what it knows."""
    if entity.registry is not Registry.TASK or "id" not in entity.value:
        return entity
    context = {
        "task_id": entity.value["id"],
        "task_type": "task",
        "priority": Priority.NORMAL.value,
        "metadata": {},
        "dependencies": [],
        "history": [],
    }
    times = {"created_at": rfc3339(entity.created_at), "updated_at": rfc3339(entity.updated_at)}
    value = {**times, **entity.value, "context": context | entity.value.get("context", {})}
    return replace(entity, value=value)


def task_entity(task: Task, metadata: dict[str, Any] | None = None) -> Entity:
    """A task of the hub as other agents see it, without what is only for its caller and its owner."""
    name = shared_name(task)
    context: dict[str, Any] = {
        "task_id": name,
        "task_type": task.type,
        "priority": task.priority.value,
        "metadata": metadata or {},
        "dependencies": list(task.lineage.called_dependencies or task.lineage.dependencies),
        "history": [],
    }
    value: dict[str, Any] = {
        "id": name,
        "status": shown_status(task),
        "created_at": rfc3339(task.created_at),
        "updated_at": rfc3339(task.updated_at),
        "context": context,
    }
    if (agent := shown_agent(task)) is not None:
        value["assigned_agent"] = agent
    if task.output.progress is not None:
        value["progress"] = task.output.progress
    if task.waiting is not None:
        value["waiting"] = task.waiting.value
    return Entity(
        registry=Registry.TASK,
        name=name,
        version=task.version,
        value=value,
        created_at=task.created_at,
        updated_at=task.updated_at,
        created_by=task.origin.principal,
        updated_by=task.owner or task.origin.principal,
    )


# -- the history of a task, in short -----------------------------------------------------------------------------------

MOST_EVENTS = 200
"""How many of the last events of a task are shown."""

BRIEF = {EventKind.LOG: (), EventKind.HELD_PIECE: (), EventKind.PROGRESS: ("status", "percent", "message", "step")}
"""Which fields are shown of events that may be long and many."""

LONGEST = 4096
"""The content of an event above so many bytes is not shown."""


def in_short(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        {"at": rfc3339(event.at), "kind": event.kind.value, "agent": event.agent, "details": _details(event)}
        for event in events
    ]


def _details(event: Event) -> Any:
    if event.kind is EventKind.HANDED_OVER:  # it has the whole history until then, which the other events have, too
        handoff = read_request(event.body).handover or Handoff()
        return {"from": handoff.source, "to": handoff.to, "reason": handoff.reason}
    if len(memoryview(event.body)) > LONGEST:
        return {}
    body = msgspec.json.decode(event.body)
    parts = BRIEF.get(event.kind)
    return body if parts is None else {name: body[name] for name in parts if name in body}
