"""What agents say about tasks, as commands: an assignment, and how the work goes.

A TASK_UPDATE can say more than the document's fields: `step` {number, name, total?}, `thinking`, `tool_use` {id, name,
input}, `tool_result` {id, output, is_error}. A TASK_COMPLETE may have `output`, the text of the result, beside a
structured one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from dragoman.core.commands import (
    Cancel,
    Command,
    Finish,
    Lineage,
    ReportFault,
    ReportProgress,
    Routing,
    Submit,
    Timing,
)
from dragoman.core.ids import SECOND, TaskId, instant
from dragoman.core.model.deliveries import Backoff
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.agentmsg import mapping
from dragoman.protocols.agentmsg.records import Priority as Urgency
from dragoman.protocols.agentmsg.types import MAX_RETRIES, TaskAssignment, TaskComplete, TaskFailed, TaskUpdate
from dragoman.server.agentmsg.exchange import PRIORITIES, Said, effective
from dragoman.server.agentmsg.failures import fault_in
from dragoman.server.agentmsg.names import PROTOCOL, name_to_keep, somebody, task_id
from dragoman.server.agentmsg.views import NUMBERS, REQUIREMENTS

CANCELLED = "cancelled on request"

_canonical = msgspec.json.Encoder(order="deterministic").encode


def submit(said: Said, assignment: TaskAssignment) -> tuple[Command, ...]:
    task, context, constraints = assignment.task, assignment.task.context, assignment.task.constraints
    given: dict[str, Any] = said.payload["task"]
    limits: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    if context is not None:
        metadata = context.metadata
    if constraints is not None:
        limits = {name: value for name in NUMBERS if (value := getattr(constraints, name)) is not None}
    limits |= {name: metadata[name] for name in REQUIREMENTS if metadata.get(name) is not None}
    deadline = None if constraints is None or constraints.deadline is None else instant(constraints.deadline)
    parent = metadata.get("parent_task_id")
    own = said.message.metadata.priority
    # an assignment is urgent by itself (D3): of its own priority only `critical` says more than the context does
    priority = own if context is None or own is Urgency.CRITICAL else context.priority
    return (
        Submit(
            principal=said.agent.id,
            protocol=PROTOCOL,
            request_id=said.message.id,
            digest=said.digest,
            type=task.task_type,
            task_id=task_id(task.task_id),
            called=name_to_keep(task.task_id),
            content=messages.Request(
                input=given.get("input", {}),
                context=None if context is None else messages.fitting(messages.Context, given["context"]),
            ),
            raw=said.data,
            name=_text(metadata.get("name")),
            description=task.description or None,
            priority=PRIORITIES[priority],
            constraints=limits,
            routing=Routing(
                pinned=somebody(said.message.to),
                required_capabilities=() if constraints is None else constraints.required_capabilities,
            ),
            timing=Timing(
                deadline=deadline,
                firm=deadline is not None,
                total_seconds=None if deadline is None else max(0.0, (deadline - said.now) / SECOND),
                retry=order_retry(said),
                expires_at=said.expires_at,
            ),
            lineage=Lineage(
                dependencies=() if context is None else tuple(map(task_id, context.dependencies)),
                called_dependencies=() if context is None else context.dependencies,
                trace_id=said.trace_id,
                parent=task_id(parent) if type(parent) is str and parent else None,
                thread=_text(metadata.get("thread")),
            ),
        ),
    )


def order_retry(said: Said) -> Backoff | None:
    """How the work order that an assignment becomes is sent again: as the assignment says. Three retries are what
    everybody says who means nothing by it (D7): then the policy decides how many."""
    own, retries = said.retry, said.message.metadata.max_retries
    if retries == MAX_RETRIES:
        return own
    return msgspec.structs.replace(own or Backoff(), attempts=retries + 1)


def update(said: Said, update: TaskUpdate, id: TaskId) -> Command:
    """How the sender says that its task stands."""
    if update.status == "completed":
        text = update.output if update.output is not None else update.message or ""
        return _finish(said, id, messages.Result(output=text or None), text)
    if update.status == "failed":
        return _fault(said, id, Fault(kind=Kind.WORK_FAILED, message=update.message or "the work failed"))
    if update.status == "cancelled":
        return _fault(said, id, Fault(kind=Kind.CANCELLED, message=update.message or "its agent gave it up"))
    content = mapping.progress_in(update, said.payload)
    step = content.named_step
    return ReportProgress(
        principal=said.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        message_id=said.message.id,
        content=content,
        raw=said.data,
        percent=content.percent,
        step=None if step is None else _text(step.name),
        output=update.output or "",
        paused=update.status == "paused",
        priority=effective(said.message),
    )


def cancel(said: Said, update: TaskUpdate, id: TaskId) -> Cancel:
    """Whoever asked for the task does not want it any more (B4)."""
    return Cancel(
        principal=said.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        reason=update.message or CANCELLED,
        message_id=said.message.id,
        digest=said.digest,
    )


def complete(said: Said, done: TaskComplete) -> tuple[Command, ...]:
    content = mapping.result_in(done, said.payload)
    return (_finish(said, task_id(done.task_id), content, content.output or ""),)


def failed(said: Said, failure: TaskFailed) -> tuple[Command, ...]:
    payload = said.payload
    fault, usage = fault_in(failure.error, payload["error"]), None if failure.usage is None else payload["usage"]
    return (_fault(said, task_id(failure.task_id), fault, report=payload["error"], usage=usage),)


def _finish(said: Said, id: TaskId, content: messages.Result, text: str) -> Finish:
    return Finish(
        principal=said.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        digest=hashlib.sha256(_canonical((said.message.type.value, said.payload))).hexdigest(),
        message_id=said.message.id,
        content=content,
        raw=said.data,
        output=text,
    )


def _fault(
    said: Said, id: TaskId, fault: Fault, report: messages.Json | None = None, usage: messages.Json | None = None
) -> ReportFault:
    return ReportFault(
        principal=said.agent.id,
        protocol=PROTOCOL,
        fault=fault,
        task_id=id,
        message_id=said.message.id,
        digest=said.digest,
        content=messages.Failure(fault=fault, report=report, usage=usage),
        raw=said.data,
    )


def _text(value: object) -> str | None:
    return value[:200] if type(value) is str and value else None
