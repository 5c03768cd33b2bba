"""An outgoing message becomes the frames that the hub sends to a chiffon agent or caller.

What came in chiffon leaves in the bytes it came in, with only the hub's own fields replaced, so that unknown fields
arrive as well (all-D6). Everything else the hub writes from its own form.

    kind       frame                                        to
    ---------  -------------------------------------------  ----------
    work       work_request                                 the agent
    progress   work_status (or a piece of a work_result)    the caller
    result     work_result, split above 1 MiB (D4)          the caller
    failure    error, or a failed work_result               the caller
    cancel     error 5900                                   the agent
    pause      work_status `paused`                         the agent
    resume     work_status `running`                        the agent
    answer     work_status `running`, with the answer       the agent

A message of the hub's own has the delivery's id as its message id: offered twice, it is recognisably the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid5

import msgspec

from dragoman.core.ids import EPOCH, HUB, SECOND, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Status, Task
from dragoman.messages import error_table
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import read_request, read_result
from dragoman.protocols.chiffon import chunks, codec, mapping, requests
from dragoman.protocols.chiffon.errors import ErrorSubject, error_out, is_reported
from dragoman.protocols.chiffon.mapping import HUB_NAME, PROTOCOL
from dragoman.protocols.chiffon.types import PROTOCOL_VERSION, UUID_PATTERN, Correlation, Payload, Registered, Stamp
from dragoman.server.content import (
    reported_fault,
    reported_progress,
    reported_question,
    resource_limits,
    task_context,
    traceparent,
)
from dragoman.wire.errors import Stage

Frames = tuple[bytes, ...]

TO_AGENTS = frozenset({
    MessageKind.WORK, MessageKind.HANDOFF, MessageKind.CANCEL, MessageKind.PAUSE, MessageKind.RESUME,
    MessageKind.ANSWER,
})  # fmt: skip

MALFORMED = frozenset({Stage.DEPTH, Stage.JSON, Stage.SHAPE})
"""Checks whose refusal means 400: the message cannot be read. One that reads well but makes no sense is 422."""

_PAUSED = frozenset({EventKind.PAUSED, EventKind.ASKED})
_ENDINGS = frozenset({MessageKind.RESULT, MessageKind.FAILURE})
_NAMESPACE = UUID("6a1d8d0c-7d5c-5b0e-9c4e-0d1a60a4a2c1")

_uuid = re.compile(UUID_PATTERN).match
_parse = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def wire_of(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    """The frames of an outgoing message, in order; nearly always one."""
    return _WRITERS[outgoing.delivery.kind](outgoing, receiver, now)


# -- ids


def wire_request_id(task: Task) -> str:
    """The request id that an agent sees for this task: the same in every attempt of a round (D7).

    Other protocols' request ids need not be UUIDs; then one is derived, so that it too stays the same.
    """
    request_id = task.request_id
    return request_id if _uuid(request_id) else _derived(task.id, "request", task.attempt.round)


def receipts(delivery_id: str, count: int) -> Sequence[str]:
    """What to acknowledge of a delivery of `count` messages. Only the last has the delivery's own id: an agent that
    acknowledges an earlier one and dies gets all of them again, since the hub knows no delivery of that id."""
    if count == 1:
        return (delivery_id,)
    return (*(_derived(delivery_id, "part", index) for index in range(count - 1)), delivery_id)[:count]


def _derived(*parts: object) -> str:
    """A UUID that follows from its parts."""
    return str(uuid5(_NAMESPACE, "/".join(map(str, parts))))


def _caller_request_id(task: Task) -> str:
    """The request id under which the caller knows the task."""
    return task.origin.request_id if task.origin.protocol == PROTOCOL else wire_request_id(task)


# -- frames


def _frame(
    payload: Payload,
    outgoing: Outgoing,
    receiver: Agent,
    now: Instant,
    *,
    from_agent: str | None = None,
    fields: dict[str, Any] | None = None,
    index: int = 0,
) -> bytes:
    """A message of the hub's own: the `index`-th of a delivery, with custom fields."""
    task, delivery = outgoing.task, outgoing.delivery
    to_agent = delivery.kind in TO_AGENTS
    custom = _marks(outgoing, receiver.id if to_agent else _worker(outgoing))
    custom["traceparent"] = traceparent(task, delivery.id)
    if fields:
        custom.update(fields)
    message = codec.envelope(
        payload,
        Stamp(delivery.id if not index else _derived(delivery.id, index), _time(now)),
        Correlation(
            wire_request_id(task) if to_agent else _caller_request_id(task), mapping.trace_uuid(task.lineage.trace_id)
        ),
        from_agent=from_agent or (HUB_NAME if to_agent else task.routing.kind or _worker(outgoing)),
        to_agent=receiver.called,
        protocol_version=receiver.protocol_version or PROTOCOL_VERSION,
        x_custom_fields=custom,
    )
    return codec.encode(message)


def _frames(
    payloads: Sequence[Payload], outgoing: Outgoing, receiver: Agent, now: Instant, fields: Sequence[dict[str, Any]]
) -> Frames:
    """Several messages of one delivery, each with its own receipt."""
    ids = receipts(outgoing.delivery.id, len(payloads))
    return tuple(
        _frame(payload, outgoing, receiver, now, fields={**fields[index], "delivery_id": ids[index]}, index=index)
        for index, payload in enumerate(payloads)
    )


def _reissued(outgoing: Outgoing, receiver: Agent) -> bytes:
    """The agent's own message for its caller, under the ids that the caller knows."""
    task, event = outgoing.task, outgoing.event
    assert event.raw is not None
    replaced = {
        "to_agent": receiver.called,
        "request_id": _caller_request_id(task),
        "trace_id": mapping.trace_uuid(task.lineage.trace_id),
        **_version(receiver),
    }
    custom = _marks(outgoing, _worker(outgoing))
    if b'"file"' in event.raw and (file := messages.read_progress(event.body).file) is not None:
        custom["file"] = file  # the agent named it by its id
    return codec.reissue(event.raw, replaced, custom)


def _is_ours(event: Event) -> bool:
    """Whether the event has the bytes of a chiffon message."""
    return event.raw is not None and event.protocol == PROTOCOL


def _marks(outgoing: Outgoing, agent_id: str) -> dict[str, Any]:
    return {"agent_id": agent_id, "delivery_id": outgoing.delivery.id}


def _worker(outgoing: Outgoing) -> str:
    return outgoing.event.agent or outgoing.task.owner or HUB_NAME


def _version(receiver: Agent) -> dict[str, str]:
    version = receiver.protocol_version
    return {} if version is None else {"protocol_version": version}


def _time(at: Instant) -> datetime:
    return EPOCH + timedelta(microseconds=at)


# -- to the agent


def _work(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    task: Task = outgoing.task
    event: Event = outgoing.event
    if _is_ours(event):
        # The caller's name, message id and time stay: the agent is to know who asked, and when.
        replaced = {"to_agent": receiver.called, **_version(receiver)}
        if task.attempt.round:
            replaced["request_id"] = wire_request_id(task)
        custom = {**_marks(outgoing, receiver.id), **requests.attempt_out(task.attempt.count)}
        if task.output.files and (attached := read_request(event.body).attachments):
            custom |= {"attachments": attached, "files": None}
        return (codec.reissue(event.raw, replaced, custom),)  # type: ignore[arg-type]
    request = read_request(event.body)
    seconds = max(1, (task.timing.deadline - now) // SECOND) if task.timing.limited else None
    described = {
        "name": task.name,
        "description": task.description,
        "thread": task.lineage.thread,
        "attachments": request.attachments,
        "context": task_context(task, request),
        "quality_threshold": resource_limits(task, request).get("quality_threshold"),
    }
    work = requests.work_out(task.id, task.type, request, seconds)
    fields = requests.work_fields_out(request, task.attempt.count, described)
    return (requests.with_unknown_fields(_frame(work, outgoing, receiver, now, fields=fields), request),)


def _cancel(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    task: Task = outgoing.task
    cancel = mapping.cancel_out(task.id, reported_fault(task, outgoing.event).message)
    return (_frame(cancel, outgoing, receiver, now, fields={"task_id": task.id}),)


def _pause(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    return _control(outgoing, receiver, now, "paused")


def _resume(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    return _control(outgoing, receiver, now, "running")


def _answer(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    """Chiffon's own questions end a turn and are answered by work; this one was asked by other means."""
    question = outgoing.question
    fields = {"question_id": question.id, "answer": question.answer, "answered": question.answered_by != HUB}
    return _control(outgoing, receiver, now, "running", fields)


def _control(
    outgoing: Outgoing,
    receiver: Agent,
    now: Instant,
    status: Literal["paused", "running"],
    fields: dict[str, Any] | None = None,
) -> Frames:
    (payload,) = mapping.statuses_out(outgoing.task.id, status, _percent(outgoing.task))
    return (_frame(payload, outgoing, receiver, now, fields=fields),)


# -- to the caller


def _progress(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    task: Task = outgoing.task
    event: Event = outgoing.event
    if _is_ours(event):
        return (_reissued(outgoing, receiver),)
    report, question = reported_progress(event), reported_question(event)
    status: mapping.Status = "paused" if event.kind in _PAUSED else "running"
    if report.status == "step_completed":
        status = "step_completed"
    elif report.status == "paused":
        status = "paused"
    fields = mapping.progress_fields_out(report)
    if question is not None:
        fields |= mapping.question_out(question)
    aside = report.message or (question.question[:200] if question is not None else mapping.step_name(report))
    statuses = mapping.statuses_out(
        task.id,
        status,
        _percent(task) if report.percent is None else report.percent,
        report.named_step or (None if aside is None else messages.Step(name=aside[:200])),
        output=report.output or "",
        place=report.chunk,
        unnamed=task.output.step or task.type,
    )
    return _frames(statuses, outgoing, receiver, now, [fields] * len(statuses))


def _percent(task: Task) -> int:
    """How far the work is, where a status does not say it. A completed task has 100 %, which the result tells: a late
    status about the time before would say that it runs at 100 %."""
    return 0 if task.status is Status.COMPLETED else task.output.progress or 0


def _result(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    event: Event = outgoing.event
    if _is_ours(event):
        return (_reissued(outgoing, receiver),)
    result = read_result(event.body)
    code = (result.exit_code or 1) if event.kind is EventKind.FAILED else 0
    return _results(outgoing, receiver, now, result, _text(result), code)


def _failure(outgoing: Outgoing, receiver: Agent, now: Instant) -> Frames:
    task: Task = outgoing.task
    event: Event = outgoing.event
    if _is_ours(event):
        return (_reissued(outgoing, receiver),)
    failure = messages.read_failure(event.body)
    fault = reported_fault(task, event)
    if fault.kind is Kind.WORK_FAILED:
        # The agent did the work and it failed: in chiffon that is a result, not an error.
        code = failure.exit_code or fault.facts.get("exit_code")
        code = code if type(code) is int and code else 1
        return _results(outgoing, receiver, now, failure, _text(failure) or fault.message, code, fault)
    fields = {"task_id": task.id, "fault": error_table.fault_fields(fault)}
    sender = None if is_reported(fault) else HUB_NAME
    return (_frame(error_of(fault, event.at, task), outgoing, receiver, now, from_agent=sender, fields=fields),)


def _results(
    outgoing: Outgoing,
    receiver: Agent,
    now: Instant,
    result: messages.Result,
    output: str,
    code: int,
    fault: Fault | None = None,
) -> Frames:
    task = outgoing.task
    used, usage = mapping.usage_out(result.usage, max(0, outgoing.event.at - task.created_at) // SECOND)
    fields = mapping.result_fields_out(
        result=msgspec.UNSET if result.value is None else result.value,
        usage=usage,
        fault=None if fault is None else error_table.fault_fields(fault),
    )
    results = mapping.results_out(task.id, code, output, used)
    return _frames(results, outgoing, receiver, now, [*({} for _ in results[1:]), fields])


def _text(result: messages.Result) -> str:
    """The output as text; a result without one is written as JSON."""
    if result.output or result.value is None:
        return result.output or ""
    return result.value if type(result.value) is str else _encode(result.value).decode()


_WRITERS: dict[MessageKind, Callable[[Outgoing, Agent, Instant], Frames]] = {
    MessageKind.WORK: _work,
    MessageKind.HANDOFF: _work,
    MessageKind.PROGRESS: _progress,
    MessageKind.RESULT: _result,
    MessageKind.FAILURE: _failure,
    MessageKind.CANCEL: _cancel,
    MessageKind.PAUSE: _pause,
    MessageKind.RESUME: _resume,
    MessageKind.ANSWER: _answer,
}


# -- the end of a task whose output came in pieces (D4), sent again


def needs_whole_output(outgoing: Outgoing) -> bool:
    """Whether the frames need the whole output (`wire_again`).

    The hub sent each piece as it came, in the commit of its event, and the event of the ending has only the last piece.
    A caller that asks again may have none of them.
    """
    delivery = outgoing.delivery
    if delivery.kind not in _ENDINGS:
        return False
    event = outgoing.event
    if delivery.created_at == event.at or event.protocol != PROTOCOL:
        return False
    place = read_result(event.body).chunk
    return place is not None and place[0] > 0


def wire_again(outgoing: Outgoing, receiver: Agent, whole: str) -> Frames:
    """The agent's last message, once for each block of the whole output."""
    last = _reissued(outgoing, receiver)
    payload, delivery = _parse(last)["payload"], outgoing.delivery.id
    blocks = list(chunks.split(whole))
    ids = receipts(delivery, len(blocks))
    return tuple(
        codec.reissue(
            last,
            {
                "message_id": _derived(delivery, index),
                "payload": {**payload, "output": block.text, "output_chunk": str(block.label)},
            },
            {"delivery_id": ids[index]},
        )
        for index, block in enumerate(blocks)
    )


# -- refusals and registration


def error_of(fault: Fault, at: Instant, task: Task | None = None) -> Payload:
    """The error for a fault. What its context needs and the fault does not say comes from the task."""
    now = _time(at)
    if task is None:
        return error_out(fault, ErrorSubject(at=now, last_attempt=now, agent_id=HUB_NAME))
    subject = ErrorSubject(
        at=now,
        last_attempt=_time(task.last_attempt),
        agent_id=task.owner or task.routing.pinned or task.routing.kind or HUB_NAME,
        task_id=task.id,
        work_type=task.type,
        retries=task.attempt.count - 1,
    )
    return error_out(fault, subject)


def refusal(fault: Fault, *, to_agent: str, now: Instant, message_id: str, about: Correlation | None = None) -> bytes:
    """The `error` envelope that answers a refused message.

    It copies the ids of what it answers (D11), and names the message in `refused_message_id`: over a WebSocket many of
    one request may be under way. Where the ids could not be read, the answer's own id stands in for them.
    """
    custom: dict[str, Any] = {"fault": error_table.fault_fields(fault)}
    if about is not None and about.message_id:
        custom["refused_message_id"] = about.message_id
    answer = codec.envelope(
        error_of(fault, now),
        Stamp(message_id, _time(now)),
        about or Correlation(message_id, message_id),
        from_agent=HUB_NAME,
        to_agent=to_agent,
        x_custom_fields=custom,
    )
    return codec.encode(answer)


def status_of(fault: Fault) -> int:
    """The HTTP status of a refusal."""
    if fault.kind is Kind.INVALID and fault.facts.get("stage") in MALFORMED:
        return 400
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return 404  # no agent of that name is known, rather than none connected
    return error_table.TABLE[fault.kind].agents


def registered(agent: Agent) -> bytes:
    """The answer to a registration."""
    version = agent.protocol_version or PROTOCOL_VERSION
    return _encode(Registered(agent_id=agent.id, agent_type=agent.called, protocol_version=version))
