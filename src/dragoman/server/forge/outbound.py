"""An outgoing message becomes the forge messages for its receiver; tasks and agents become what forge shows of them.

    kind       message                                                  receiver
    ---------  -------------------------------------------------------  ----------------------
    work       notify:task-assigned, with the task if it is small       the agent
    progress   notify:task-updated                                      the submitter
    result     notify:task-updated, final                               the submitter
    failure    notify:task-updated, final, with the error               the submitter
    cancel     notify:task-cancelled                                    the agent
    pause      notify:task-paused                                       the agent
    resume     notify:task-resumed                                      the agent
    answer     response:success or :error to the ask-user that waits,   the agent that asked
               else notify:question-answered

A message has the delivery's id as its own, so a receiver recognises a redelivery. A final output too long for one
message goes in parts, the last of them with the outcome; `_meta.part` is [first byte, end, total] of each. An output
without it is a piece reported on the way, or, in a final message, all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.core.ids import EPOCH, Instant, TaskId, rfc3339
from dragoman.core.model.agents import Agent, BreakerState
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Question, QuestionStatus, Status, Task, Waiting
from dragoman.core.queries.transcript import Account
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import read_request, read_result
from dragoman.protocols.forge import codec, mapping
from dragoman.protocols.forge.errors import Code, error_out
from dragoman.protocols.forge.mapping import PRIORITIES, PROTOCOL
from dragoman.protocols.forge.types import (
    AgentStatus,
    AgentView,
    AnyMessage,
    ErrorBody,
    Payload,
    QuestionAnswered,
    Stamp,
    SubmitTask,
    TaskAssigned,
    TaskCancelled,
    TaskPaused,
    TaskResumed,
    TaskStatus,
    TaskUpdated,
    TaskView,
)
from dragoman.server.content import (
    reported_fault,
    reported_progress,
    reported_question,
    resource_limits,
    task_context,
    traceparent,
)

ASSIGNED_MESSAGE = "Task assigned. Use TaskGet to view details."
"""The document's sentence."""
LONGEST_PIECE = 150_000
"""Characters of output in one message: JSON may write each of them as six bytes, and a line has a mebibyte."""
SMALL_TASK = 4096
"""Bytes of a task that travels with its assignment."""
RESULT_STREAM = "result"
"""The stream of a final output that its agent sent in pieces."""

STATUSES: Mapping[Status, TaskStatus] = {
    Status.QUEUED: "queued",  # or `retrying`, once an attempt has failed
    Status.ASSIGNED: "assigned",
    Status.RUNNING: "running",
    Status.WAITING: "running",  # or `pending`, before an agent has begun it
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
LIMITS = {
    "max_memory_mb": "maxMemoryMb",
    "max_gpu_vram_mb": "maxGpuVramMb",
    "quality_threshold": "qualityThreshold",
}
"""Limits of other protocols' callers, as forge would write them."""

_PASSED_ON = frozenset({"context", "handover", "limits", "outputTruncated"})
_KNOWN_FIELDS = frozenset(
    {field.encode_name for form in (SubmitTask, TaskView) for field in msgspec.structs.fields(form)} - _PASSED_ON
    | {"traceId"}
)
"""Fields of submit-task that are not passed on word for word: the hub writes them itself, or they would look so."""
_ENDINGS = frozenset({MessageKind.RESULT, MessageKind.FAILURE})

_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


# --- messages ---


def messages_of(
    outgoing: Outgoing, now: Instant, whole: str | None = None, *, whole_tasks: bool = False
) -> tuple[AnyMessage, ...]:
    """The messages of an outgoing message, in order; nearly always one. `whole` is the output of one that is
    `in_pieces`. With `whole_tasks`, a task goes along with its assignment however large it is."""
    task_id = "" if outgoing.about_task is None else outgoing.about_task.id
    match outgoing.delivery.kind:
        case MessageKind.WORK | MessageKind.HANDOFF as kind:
            return _assignment(outgoing, now, whole=whole_tasks and kind is MessageKind.WORK)
        case MessageKind.PROGRESS:
            return _progress(outgoing, now)
        case MessageKind.RESULT | MessageKind.FAILURE:
            return _result(outgoing, now, whole)
        case MessageKind.CANCEL:
            reason = reported_fault(outgoing.task, outgoing.event).message
            return (_message(TaskCancelled(task_id=task_id, reason=reason), outgoing, now),)
        case MessageKind.PAUSE:
            return (_message(TaskPaused(task_id=task_id, reason="paused by a person"), outgoing, now),)
        case MessageKind.RESUME:
            return (_message(TaskResumed(task_id=task_id), outgoing, now),)
        case MessageKind.ANSWER:
            return _answer(outgoing.question, stamp(outgoing.delivery.id, now))
        case kind:
            raise AssertionError(f"forge has no message for {kind}")


def in_pieces(outgoing: Outgoing) -> bool:
    """Whether a repeated ending has only the last piece of its output. The first time, the hub sent each piece as it
    came, in the commit of its event; a caller that asks again may have none of them."""
    delivery = outgoing.delivery
    if delivery.kind not in _ENDINGS:
        return False
    event = outgoing.event
    if delivery.created_at == event.at or b'"chunk"' not in bytes(event.body):
        return False
    place = read_result(event.body).chunk
    return place is not None and place[0] > 0


def stamp(id: str, now: Instant) -> Stamp:
    return Stamp(id, EPOCH + timedelta(microseconds=now))


def _assignment(outgoing: Outgoing, now: Instant, *, whole: bool) -> tuple[AnyMessage, ...]:
    """The task goes along if it is small; else the agent asks for it with get-task (D14)."""
    view = order_view(outgoing.task, outgoing.event)
    fits = whole or len(_write(view)) <= SMALL_TASK
    assigned = TaskAssigned(task_id=outgoing.task.id, message=ASSIGNED_MESSAGE, task=view if fits else None)
    return (_message(assigned, outgoing, now),)


def _progress(outgoing: Outgoing, now: Instant) -> tuple[AnyMessage, ...]:
    task: Task = outgoing.task
    report, asked = reported_progress(outgoing.event), reported_question(outgoing.event)
    waits = None if asked is None else f"Waiting for an answer: {asked.question}"
    status = "running" if outgoing.event.kind is EventKind.PROGRESS else status_of(task)
    place = report.chunk if report.stream == RESULT_STREAM else None
    update = mapping.update_out(task.id, status, report, waits)
    return _with_output(update, report.output or "", outgoing, now, place)


def _result(outgoing: Outgoing, now: Instant, whole: str | None) -> tuple[AnyMessage, ...]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    done = read_result(event.body)
    failed = event.kind is not EventKind.COMPLETED
    update = TaskUpdated(
        task_id=task.id,
        status="cancelled" if event.kind is EventKind.CANCELLED else "failed" if failed else "completed",
        final=True,
        progress=None if failed else 1.0,
        result=done.result,
        error=msgspec.to_builtins(error_out(reported_fault(task, event))) if failed else None,
    )
    output, place = done.output or "", done.chunk
    if whole is not None:
        output, place = whole, None
    if place is None and len(output) > LONGEST_PIECE:
        size = len(output.encode())
        place = (0, size, size)
    return _with_output(update, output, outgoing, now, place)


def _with_output(
    update: TaskUpdated, output: str, outgoing: Outgoing, now: Instant, place: Sequence[int | None] | None
) -> tuple[AnyMessage, ...]:
    """The update with an output of any length: what does not fit goes before it, in pieces.

    `place` (first byte, end, total) is where `output` stands in the final one, if it is a part of that: pieces that an
    agent reported on the way and parts of its final output would look the same without it.
    """
    pieces = [output[start : start + LONGEST_PIECE] for start in range(0, len(output), LONGEST_PIECE)] or [""]
    part = TaskUpdated(task_id=update.task_id, status="running", final=False)
    messages = []
    start, total = (place[0] or 0, place[2]) if place is not None else (0, None)
    for index, piece in enumerate(pieces, 1):
        last = index == len(pieces)
        meta: dict[str, Any] = {}
        if place is not None:
            end = start + len(piece.encode())
            start, meta["part"] = end, [start, end, total]
        payload = replace(update if last else part, output=piece or None)
        messages.append(_message(payload, outgoing, now, 0 if last else index, **meta))
    return tuple(messages)


def _answer(question: Question, mark: Stamp) -> tuple[AnyMessage, ...]:
    if question.status is QuestionStatus.OPEN:
        return ()  # its task ended and was retried: the agent asks again, and this is about the first time
    answered = question.status is QuestionStatus.ANSWERED or question.has_default
    at = None if question.answered_at is None else rfc3339(question.answered_at)
    request_id = question.request_id or question.id
    if not question.blocking:
        notice = QuestionAnswered(
            question_id=request_id,
            question=question.question,
            answer=question.answer if answered else UNSET,
            task_id=question.task,
            answered_at=at if answered else None,
            timed_out=not answered,
        )
        return (codec.message(notice, mark),)
    withdrawn = question.status is QuestionStatus.WITHDRAWN
    if withdrawn or not answered:
        code, reason, message = (
            (Code.INVALID_REQUEST, Kind.CANCELLED, "The task ended before anybody answered; stop working on it.")
            if withdrawn
            else (Code.TIMEOUT, Kind.TIMEOUT, "Nobody answered the question in time. Ask again, or give a default.")
        )
        details = {"questionId": question.id, "reason": reason.value, "retryable": not withdrawn}
        return (codec.failure(request_id, ErrorBody(code=code, message=message, details=details), mark),)
    metadata: dict[str, Any] = {"answeredAt": at, "questionId": question.id}
    if question.status is QuestionStatus.EXPIRED:
        metadata["default"] = True
    return (codec.success(request_id, {"answer": question.answer, "metadata": metadata}, mark),)


def _message(payload: Payload, outgoing: Outgoing, now: Instant, index: int = 0, **meta: Any) -> AnyMessage:
    delivery = outgoing.delivery
    id = delivery.id if not index else f"{delivery.id}/{index}"
    return codec.message(payload, stamp(id, now), meta={"traceparent": traceparent(outgoing.task, delivery.id), **meta})


# --- what forge shows of tasks and agents ---


def status_of(task: Task) -> TaskStatus:
    """Forge's status of a task (D7, all-D8)."""
    if task.status is Status.QUEUED and task.attempt.count:
        return "retrying"
    if task.status is Status.WAITING and (task.waiting is Waiting.DEPENDENCY or not task.attempt.count):
        return "pending"
    return STATUSES[task.status]


def agent_status(agent: Agent, *, reachable: bool, load: int) -> AgentStatus:
    """Forge's status of an agent, as far as the hub can tell; the supervisor of its process may know more."""
    if not reachable and not agent.connected:
        return "initializing" if agent.last_seen_at is None else "stopped"
    if agent.breaker.state is BreakerState.OPEN:
        return "unhealthy"
    return "busy" if load else "idle"


def agent_view(
    agent: Agent, *, reachable: bool, load: int, current: TaskId | None, status: AgentStatus | None = None
) -> AgentView:
    """An agent. `current` is a task it holds, if the asker may know of it; `status` what its supervisor knows."""
    return AgentView(
        id=agent.id,
        role=agent.role,
        status=status or agent_status(agent, reachable=reachable, load=load),
        capabilities=agent.capabilities,
        current_task=current,
        name=agent.name,
        kind=agent.kind,
        version=agent.version,
        work_types=agent.work_types,
    )


def task_view(task: Task, account: Account | None = None, *, submitted: bool = False) -> TaskView:
    """A task, with its `account` also what went in and what came out. The answer to its submitter shows it as
    queued, as the document has it, even if an idle agent has it already (`submitted`)."""
    if submitted and task.status is Status.ASSIGNED:
        task = replace(task, status=Status.QUEUED, owner=None, attempt=replace(task.attempt, count=0))
    view = TaskView(
        id=task.id,
        type=task.type,
        name=task.name or task.type,
        description=task.description,
        status=status_of(task),
        priority=(task.origin.protocol == PROTOCOL and task.origin.priority) or PRIORITIES[task.priority],
        required_role=task.routing.required_role,
        required_capabilities=task.routing.required_capabilities,
        dependencies=task.lineage.dependencies,
        assigned_to=task.owner,
        submitted_by=task.origin.principal,
        progress=mapping.fraction_out(task.output.progress),
        error=None if task.outcome.fault is None else msgspec.to_builtins(error_out(task.outcome.fault)),
        created_at=rfc3339(task.created_at),
        updated_at=rfc3339(task.updated_at),
        attempt=task.attempt.count,
        waiting_for=UNSET if task.waiting is None else task.waiting.value,
        parent_id=UNSET if task.lineage.parent is None else task.lineage.parent,
        thread=UNSET if task.lineage.thread is None else task.lineage.thread,
        files=tuple(map(mapping.file_out, task.output.files)) or UNSET,
    )
    if account is None:
        return view
    return replace(
        view,
        payload={} if account.input is None else _read(account.input),
        result=None if account.result is None else _read(account.result),
        output=account.output,
        output_truncated=account.truncated or UNSET,
    )


def order_view(task: Task, source: Event, account: Account | None = None) -> dict[str, Any]:
    """A task for the agent that is to do it: with its context, its limits, and who had it before. `source` is the event
    that says what to do. Unknown fields of a forge submitter go along."""
    request = read_request(source.body)
    given = request.given
    view = replace(
        task_view(task, account),
        request_id=task.request_id,  # the same in every attempt of a round
        payload=given if type(given) is dict else {} if given is None else {"input": given},
        answer=request.answer,
        question=UNSET if request.question is None else request.question,
        context=task_context(task, request) or UNSET,
        handover=UNSET if request.handover is None else msgspec.to_builtins(request.handover) or UNSET,
        limits={LIMITS[name]: value for name, value in resource_limits(task, request).items()} or UNSET,
    )
    fields: dict[str, Any] = msgspec.to_builtins(view)
    if source.raw is not None and source.protocol == PROTOCOL:
        for name, value in _read(source.raw).get("payload", {}).items():
            if name not in _KNOWN_FIELDS:
                fields.setdefault(name, value)
    return fields
