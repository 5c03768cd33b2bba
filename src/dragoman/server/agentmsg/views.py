"""A task of the hub in agentmsg's terms: its status, its context, its constraints, its history, its error (all-D8).

    hub          TASK_UPDATE       TaskState (`core.model.shared_tasks`)
    -----------  ----------------  --------------------------------
    queued       pending           pending
    assigned     in_progress       in_progress
    running      in_progress       in_progress
    waiting      in_progress       in_progress
    completed    (TASK_COMPLETE)   completed
    failed       (TASK_FAILED)     failed
    cancelled    cancelled         cancelled

A task that waits is `pending` while it has no owner, and `paused` in an update while its agent or a person paused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from dragoman.core.budgets import budget
from dragoman.core.ids import AgentId, Instant, rfc3339
from dragoman.core.model.shared_tasks import SHOWN, shown_status
from dragoman.core.model.tasks import Status, Task, Waiting
from dragoman.messages.faults import Fault
from dragoman.messages.tasks import Handoff, Json, Request
from dragoman.protocols.agentmsg import mapping
from dragoman.protocols.agentmsg.errors import NUMBERS
from dragoman.protocols.agentmsg.records import TaskContext, TaskEvent
from dragoman.protocols.agentmsg.types import HUB
from dragoman.server.agentmsg.answers import error_report
from dragoman.server.agentmsg.ids import agent_or_person, derived_v4, task_name
from dragoman.server.content import HUB_METADATA

UpdateStatus = Literal["pending", "in_progress", "paused", "completed", "failed", "cancelled"]

_PAUSED = frozenset({Waiting.AGENT, Waiting.HELD})
_CONTEXT = frozenset(TaskContext.__struct_fields__)
_HAS_OWN_PLACE = frozenset({"metadata", "dependencies", "history", "story", "constraints", "fault"})
"""Fields of a handover that a task has other places for; and `fault`, which is the hub's view of `error`."""
_canonical = msgspec.json.Encoder(order="deterministic").encode


def update_status(task: Task) -> UpdateStatus:
    """A task's status in a TASK_UPDATE, which has one more than the shared state: `paused`."""
    if task.status is Status.WAITING and task.waiting in _PAUSED:
        return "paused"
    return cast(UpdateStatus, shown_status(task))


def task_error(task: Task, fault: Fault, agent: AgentId | None) -> Json:
    """Why a task failed, as its TaskState has it: the report that its caller gets. `agent` reported it."""
    error_id = derived_v4(f"{task.id}/{task.outcome.event or task.seq}")
    return error_report(fault, error_id=error_id, task=task_name(task), agent_id=agent_or_person(agent or HUB))


def context_of(task: Task, *given: Mapping[str, Any]) -> Json:
    """The TaskContext: what callers and owners wrote, and what the hub knows itself."""
    metadata: Json = {}
    history: list[Json] = []
    dependencies: list[str] = []
    for context in given:
        metadata |= context["metadata"] if type(context.get("metadata")) is dict else {}
        history += _history(context.get("history") or ())
        dependencies += (str(name) for name in context.get("dependencies") or ())
    if task.metadata is not None:
        metadata = dict(task.metadata)  # agents changed it since
    for name, value in zip(HUB_METADATA, (task.name, task.lineage.thread, task.lineage.parent), strict=True):
        if value is not None:
            metadata.setdefault(name, value)
    unknown = {name: value for context in given for name, value in context.items() if name not in _CONTEXT}
    return {
        **unknown,
        "task_id": task_name(task),
        "task_type": task.type,
        "priority": task.priority.value,
        "metadata": metadata,
        "dependencies": list(dict.fromkeys(dependencies)) or list(task.lineage.dependencies),
        "history": _without_repetition(history),
    }


def handoff_context(handoff: Handoff | None) -> Json:
    """What the last owner wrote of a task that was handed over, and what the hub recorded, as a context."""
    if handoff is None:
        return {}
    given = {"metadata": handoff.metadata, "dependencies": handoff.dependencies}
    context = {name: value for name, value in given.items() if value}
    return {**context, "history": [*(handoff.history or ()), *(handoff.hub_history or ())]}


def constraints_of(task: Task, *given: Mapping[str, Any]) -> Json:
    """The TaskConstraints in force: the deadline is the hub's."""
    found: Json = {}
    for constraints in given:
        found |= constraints
    needs = (
        budget.needs(task.agreement.constraints) if task.spending.reserved is None else task.spending.reserved.amounts
    )
    found |= {budget.KINDS[kind][0]: amount for kind, amount in needs.items() if kind in budget.USED_UP}
    for name in NUMBERS:
        if name in task.agreement.constraints:
            found[name] = task.agreement.constraints[name]
    found["required_capabilities"] = (
        list(task.routing.required_capabilities) or found.get("required_capabilities") or []
    )
    found["deadline"] = rfc3339(task.timing.deadline)
    return found


def task_history(request: Request, recorded: list[Json]) -> list[Json]:
    """The history of a TaskContext: what the caller and the owners wrote, and what the hub recorded until now."""
    written = () if request.context is None else request.context.history
    handed_over = handoff_context(request.handover).get("history") or ()
    return _without_repetition(_history([*written, *handed_over, *recorded]))


def _history(events: Iterable[Any]) -> list[Json]:  # Any: agents wrote them
    """Events as TaskEvents: an agent's own unchanged, the hub's (`core.model.shared_tasks`) renamed."""
    return [found for event in events if (found := _task_event(event)) is not None]


def _task_event(event: Any) -> Json | None:
    if type(event) is not dict:
        return None
    if "event_type" not in event:
        at, kind, agent = event.get("at"), event.get("kind"), event.get("agent")
        if not isinstance(kind, str) or not isinstance(at, int | str):
            return None
        details = event.get("details", event.get("body"))
        event = {
            "timestamp": rfc3339(Instant(at)) if isinstance(at, int) else at,
            "event_type": kind,
            "details": details if type(details) is dict else {} if details is None else {"value": details},
            **({"agent_id": agent} if agent else {}),
        }
    return event if mapping.fits(event, TaskEvent) else None


def _without_repetition(history: Sequence[Json]) -> list[Json]:
    """A history that passed several owners has the same events several times; in the order of their times."""
    seen: dict[bytes, Json] = {}
    for event in history:
        seen.setdefault(_canonical(event), event)
    return sorted(seen.values(), key=lambda event: msgspec.convert(event["timestamp"], datetime))


def handover_of(handoff: Handoff) -> Json:
    fields = {name: value for name, value in msgspec.to_builtins(handoff).items() if name not in _HAS_OWN_PLACE}
    fields["reason"] = (handoff.reason or "").upper()
    if handoff.parts:
        fields["parts"] = [_part(part) for part in handoff.parts]
    return fields


def _part(part: Json) -> Json:
    """A subtask of a former owner, with the names that a TaskState has."""
    agent = part["agent"]
    status = SHOWN.get(part["status"], "in_progress" if agent else "pending")
    view = {"task_id": part["called"], "task_type": part["type"], "assigned_by": part["from"], "status": status}
    return {**view, "assigned_agent": agent} if agent else view
