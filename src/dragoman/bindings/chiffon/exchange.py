"""The ids and names that both directions of a chiffon exchange agree on."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID, uuid5

from dragoman.core.ids import TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Task
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.chiffon.types import UUID_PATTERN

PROTOCOL = "chiffon"

HUB_NAME = "orchestrator"
"""What the hub calls itself: towards agents it plays the document's orchestrator, whose word clients know."""

OURS = frozenset({
    "agent_id", "attachments", "attempt", "delivery_id", "dependencies", "files", "parent_task_id", "priority", "token",
    "traceparent",
})  # fmt: skip
"""Custom fields of a request that the hub obeys or writes itself."""

_uuid = re.compile(UUID_PATTERN).match
_NAMESPACE = UUID("6a1d8d0c-7d5c-5b0e-9c4e-0d1a60a4a2c1")


def wire_name(agent: Agent) -> str:
    """What an agent is called in `from_agent` and `to_agent`."""
    return agent.called


def wire_request_id(task: Task) -> str:
    """The request id that an agent sees for this task: the same in every attempt of a round (D7).

    Other protocols' request ids need not be UUIDs; then one is derived, so that it too stays the same.
    """
    request_id = task.request_id
    return request_id if _uuid(request_id) else derived(task.id, "request", task.round)


def derived(*parts: object) -> str:
    """A UUID that follows from its parts."""
    return str(uuid5(_NAMESPACE, "/".join(map(str, parts))))


def receipts(delivery_id: str, count: int) -> tuple[str, ...]:
    """What to acknowledge of a delivery that is so many messages, each by its own id. Only the last has the delivery's:
    whoever acknowledges one before it and dies gets all of them again, for the hub knows no delivery of that name."""
    return (*(derived(delivery_id, "part", index) for index in range(count - 1)), delivery_id)[:count]


def trace_uuid(trace_id: str) -> str:
    """A trace id in chiffon's form, as it came, whatever its bits (all-D7)."""
    return f"{trace_id[:8]}-{trace_id[8:12]}-{trace_id[12:16]}-{trace_id[16:20]}-{trace_id[20:]}"


def traceparent(task: Task, delivery_id: str) -> str:
    """The W3C trace context under which a delivery leaves: the task's trace, and a span of its own."""
    return f"00-{task.trace_id}-{delivery_id.replace('-', '')[16:]}-01"


def task_id_in(fields: dict[str, Any], name: str) -> TaskId | None:
    """The task named by a custom field, if any."""
    value = fields.get(name)
    return None if value is None else _task_id(value, name)


def task_ids_in(fields: dict[str, Any], name: str) -> tuple[TaskId, ...]:
    values = fields.get(name)
    if values is None:
        return ()
    if type(values) is not list:
        raise refuse(Kind.INVALID, "expected a list of task ids", field=f"x_custom_fields.{name}")
    return tuple(_task_id(value, name) for value in values)


def _task_id(value: object, name: str) -> TaskId:
    if type(value) is not str or not _uuid(value):
        raise refuse(Kind.INVALID, "expected the UUID of a task", field=f"x_custom_fields.{name}")
    return TaskId(value.lower())
