"""A task of the hub in agentmsg's words: its status, its context, its constraints, its history (all-D8).

    hub          TASK_UPDATE       TaskState (`core.model.shared_tasks`)
    -----------  ----------------  --------------------------------
    queued       pending           pending
    assigned     in_progress       in_progress
    running      in_progress       in_progress
    waiting      in_progress       in_progress
    completed    (TASK_COMPLETE)   completed
    failed       (TASK_FAILED)     failed
    cancelled    cancelled         cancelled

A task that waits is `pending` where nobody has it, and `paused` in an update where somebody paused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from dragoman.core.budgets import budget
from dragoman.core.ids import Instant, rfc3339
from dragoman.core.model.shared_tasks import shown_status
from dragoman.core.model.tasks import Event, Status, Task, Waiting
from dragoman.messages.tasks import Handoff, Request
from dragoman.protocols.agentmsg.records import TaskEvent
from dragoman.server.agentmsg.names import called
from dragoman.server.content import HUB_METADATA

UpdateStatus = Literal["pending", "in_progress", "paused", "completed", "failed", "cancelled"]
PAUSED = frozenset({Waiting.AGENT, Waiting.HELD})

NUMBERS = ("max_tokens", "budget_usd", "quality_threshold")
"""Constraints that are numbers in both tongues."""
REQUIREMENTS = ("chain", "risk", "cpu", "memory")
"""Fields of a context's metadata that the hub obeys as constraints."""


def update_status(task: Task) -> UpdateStatus:
    """A task's status in the words of a TASK_UPDATE, which has one more than the shared state
    (`core.model.shared_tasks`)."""
    if task.status is Status.WAITING and task.waiting in PAUSED:
        return "paused"
    return cast(UpdateStatus, shown_status(task))


def context_of(task: Task, *said: Mapping[str, Any]) -> dict[str, Any]:
    """The TaskContext: what callers and owners `said` of the task, and what the hub knows itself."""
    metadata: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    dependencies: list[str] = []
    for context in said:
        metadata |= _object(context.get("metadata"))
        history += history_of(context.get("history") or ())
        dependencies += (str(name) for name in context.get("dependencies") or ())
    if task.metadata is not None:
        metadata = dict(task.metadata)  # what agents made of it since
    # what the hub knows and agentmsg has no field for is in the metadata, both ways
    for name, value in zip(HUB_METADATA, (task.name, task.thread, task.parent), strict=True):
        if value is not None:
            metadata.setdefault(name, value)
    unknown = {name: value for context in said for name, value in context.items() if name not in _CONTEXT}
    return {
        **unknown,
        "task_id": called(task),
        "task_type": task.type,
        "priority": task.priority.value,
        "metadata": metadata,
        "dependencies": list(dict.fromkeys(dependencies)) or list(task.dependencies),
        "history": _without_repetition(history),
    }


def story_of(handoff: Handoff | None) -> dict[str, Any]:
    """What the last owner said of a task that was handed over, and what the hub saw, as a context."""
    if handoff is None:
        return {}
    said = {"metadata": handoff.metadata, "dependencies": handoff.dependencies}
    told = {name: value for name, value in said.items() if value}
    return {**told, "history": [*(handoff.history or ()), *(handoff.story or ())]}


def recounted(source: Request, story: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history of a TaskContext: what its caller and its owners said, and what the hub saw until now."""
    told = () if source.context is None else source.context.history
    said = [*told, *(story_of(source.handover).get("history") or ())]
    return _without_repetition(history_of([*said, *story]))


def constraints_of(task: Task, *said: Mapping[str, Any]) -> dict[str, Any]:
    """The TaskConstraints in force: the deadline is the hub's."""
    found: dict[str, Any] = {}
    for constraints in said:
        found |= constraints
    asked = budget.needs(task.constraints) if task.reserved is None else task.reserved.amounts
    found |= {budget.KINDS[kind][0]: amount for kind, amount in asked.items() if kind in budget.USED_UP}
    for name in NUMBERS:
        if name in task.constraints:
            found[name] = task.constraints[name]
    found["required_capabilities"] = list(task.required_capabilities) or found.get("required_capabilities") or []
    found["deadline"] = rfc3339(task.deadline)
    return found


def history_of(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Events as TaskEvents: an agent's own as they are, the hub's (rows, or what was told of them) in other words."""
    return [told for event in events if (told := _task_event(event)) is not None]


def _task_event(event: Any) -> dict[str, Any] | None:
    if isinstance(event, Event):
        return _hub_event(event.at, event.kind.value, event.agent, msgspec.json.decode(event.body))
    if type(event) is not dict:
        return None
    if "event_type" in event:
        return event if _fits(event) else None
    at, kind = event.get("at"), event.get("kind")
    if not isinstance(kind, str) or not isinstance(at, int | str):
        return None
    details = event.get("details", event.get("body"))
    return _hub_event(at, kind, event.get("agent"), details)


def _hub_event(at: int | str, kind: str, agent: str | None, details: Any) -> dict[str, Any] | None:
    told: dict[str, Any] = {
        "timestamp": rfc3339(Instant(at)) if isinstance(at, int) else at,
        "event_type": kind,
        "details": details if type(details) is dict else {} if details is None else {"value": details},
    }
    if agent:
        told["agent_id"] = agent
    return told if _fits(told) else None


def _fits(event: dict[str, Any]) -> bool:
    try:
        msgspec.convert(event, TaskEvent)
    except msgspec.ValidationError:
        return False
    return True


def _without_repetition(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history that went through several hands holds the same events again and again; in the order of their times."""
    seen: dict[bytes, dict[str, Any]] = {}
    for event in history:
        seen.setdefault(_canonical(event), event)
    return sorted(seen.values(), key=lambda event: msgspec.convert(event["timestamp"], datetime))


def _object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


_CONTEXT = frozenset({"task_id", "task_type", "priority", "metadata", "dependencies", "history"})
_canonical = msgspec.json.Encoder(order="deterministic").encode
