"""What an agent asks for and reports about tasks: Submit, ReportProgress, Finish, ReportFault, Cancel."""

from __future__ import annotations

import hashlib

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
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Failure, Json, Result
from dragoman.protocols.agentmsg import mapping, records
from dragoman.protocols.agentmsg.errors import NUMBERS, REQUIREMENTS, fault_in
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.types import (
    MAX_RETRIES,
    TaskAssignment,
    TaskComplete,
    TaskFailed,
    TaskUpdate,
)
from dragoman.server.agentmsg.ids import agent_named, own_name, task_id
from dragoman.server.agentmsg.inbound.message import PRIORITIES, Inbound

CANCELLED = "cancelled on request"


_canonical = msgspec.json.Encoder(order="deterministic").encode


def submit(inbound: Inbound, assignment: TaskAssignment) -> Command:
    task, context, constraints = assignment.task, assignment.task.context, assignment.task.constraints
    metadata = {} if context is None else context.metadata
    limits: Json = {}
    if constraints is not None:
        limits = {name: value for name in NUMBERS if (value := getattr(constraints, name)) is not None}
    limits |= {name: metadata[name] for name in REQUIREMENTS if metadata.get(name) is not None}
    deadline = None if constraints is None or constraints.deadline is None else instant(constraints.deadline)
    parent = metadata.get("parent_task_id")
    own = inbound.message.metadata.priority
    # an assignment is urgent by itself (D3): of its own priority only `critical` says more than the context does
    priority = own if context is None or own is records.Priority.CRITICAL else context.priority
    return Submit(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        request_id=inbound.message.id,
        digest=inbound.digest,
        type=task.task_type,
        task_id=task_id(task.task_id),
        called=own_name(task.task_id),
        content=mapping.request_in(task, inbound.payload["task"]),
        raw=inbound.data,
        name=_text(metadata.get("name")),
        description=task.description or None,
        priority=PRIORITIES[priority],
        constraints=limits,
        routing=Routing(
            pinned=agent_named(inbound.message.to),
            required_capabilities=() if constraints is None else constraints.required_capabilities,
        ),
        timing=Timing(
            deadline=deadline,
            firm=deadline is not None,
            total_seconds=None if deadline is None else max(0.0, (deadline - inbound.now) / SECOND),
            retry=_retry(inbound),
            expires_at=inbound.expires_at,
        ),
        lineage=Lineage(
            dependencies=() if context is None else tuple(map(task_id, context.dependencies)),
            called_dependencies=() if context is None else context.dependencies,
            trace_id=inbound.trace_id,
            parent=task_id(parent) if type(parent) is str and parent else None,
            thread=_text(metadata.get("thread")),
        ),
    )


def _retry(inbound: Inbound) -> Backoff | None:
    """How the assignment is sent again to the agent. Three retries are what every message says by default (D7): then
    the policy decides how many."""
    own, retries = inbound.retry, inbound.message.metadata.max_retries
    if retries == MAX_RETRIES:
        return own
    return msgspec.structs.replace(own or Backoff(), attempts=retries + 1)


def update(inbound: Inbound, update: TaskUpdate) -> Command:
    id = task_id(update.task_id)
    mine = None if inbound.holds is None else inbound.holds(id)
    if not mine:
        if update.status == "cancelled":
            return Cancel(  # the caller does not want it any more (B4)
                principal=inbound.agent.id,
                protocol=PROTOCOL,
                task_id=id,
                reason=update.message or CANCELLED,
                message_id=inbound.message.id,
                digest=inbound.digest,
            )
        to = None if mine is None else agent_named(inbound.message.to)
        if to is not None:
            progress = update.progress is not None or update.output is not None
            return inbound.forward(to, reports=update.status is not None, progress=progress)
    return _report(inbound, update, id)


def _report(inbound: Inbound, update: TaskUpdate, id: TaskId) -> Command:
    """How the owner of a task says that it goes, or how it ended."""
    if update.status == "completed":
        text = update.output if update.output is not None else update.message or ""
        return _finish(inbound, id, Result(output=text or None), text)
    if update.status == "failed":
        return _fault(inbound, id, Fault(kind=Kind.WORK_FAILED, message=update.message or "the work failed"))
    if update.status == "cancelled":
        return _fault(inbound, id, Fault(kind=Kind.CANCELLED, message=update.message or "its agent gave it up"))
    content = mapping.progress_in(update, inbound.payload)
    step = content.named_step
    return ReportProgress(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        message_id=inbound.message.id,
        content=content,
        raw=inbound.data,
        percent=content.percent,
        step=None if step is None else _text(step.name),
        output=update.output or "",
        paused=update.status == "paused",
        priority=inbound.priority,
    )


def complete(inbound: Inbound, done: TaskComplete) -> Command:
    content = mapping.result_in(done, inbound.payload)
    return _finish(inbound, task_id(done.task_id), content, content.output or "")


def failed(inbound: Inbound, failure: TaskFailed) -> Command:
    payload = inbound.payload
    report, usage = payload["error"], None if failure.usage is None else payload["usage"]
    return _fault(inbound, task_id(failure.task_id), fault_in(failure.error, report), report=report, usage=usage)


def _finish(inbound: Inbound, id: TaskId, content: Result, text: str) -> Finish:
    return Finish(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        digest=hashlib.sha256(_canonical((inbound.message.type.value, inbound.payload))).hexdigest(),
        message_id=inbound.message.id,
        content=content,
        raw=inbound.data,
        output=text,
    )


def _fault(
    inbound: Inbound, id: TaskId, fault: Fault, report: Json | None = None, usage: Json | None = None
) -> ReportFault:
    return ReportFault(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        fault=fault,
        task_id=id,
        message_id=inbound.message.id,
        digest=inbound.digest,
        content=Failure(fault=fault, report=report, usage=usage),
        raw=inbound.data,
    )


def _text(value: object) -> str | None:
    return value[:200] if type(value) is str and value else None
