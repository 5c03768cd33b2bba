"""An outgoing message becomes the chiffon messages that tell of it.

What came in chiffon goes out in the bytes it came in, with only the hub's own fields replaced, so that fields
nobody here knows arrive as well (all-D6). Everything else is put into words from the hub's form.

    kind      says                                         to
    ---------  -------------------------------------------  -------------
    work       work_request                                 the agent
    progress   work_status (or a piece of a work_result)    the requester
    result     work_result, split above 1 MiB (D4)          the requester
    failure    error, or a failed work_result               the requester
    cancel     error 5900                                   the agent
    pause      work_status `paused`                         the agent
    resume     work_status `running`                        the agent
    answer     work_status `running`, with the answer       the agent

A message of ours has the delivery's id as its message id: offered twice, it is recognisably the same.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import msgspec

from dragoman.bindings.chiffon.exchange import (
    HUB_NAME,
    PROTOCOL,
    derived,
    receipts,
    trace_uuid,
    traceparent,
    wire_name,
    wire_request_id,
)
from dragoman.bindings.chiffon.failures import OURS, is_told, payload_of
from dragoman.core.ids import EPOCH, HUB, SECOND, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.model.tasks import Event, EventKind, Question, Status, Task
from dragoman.messages import tasks as messages
from dragoman.messages.error_table import fault_fields
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import read_request, read_result
from dragoman.protocols.chiffon import codec, mapping
from dragoman.protocols.chiffon.errors import TASK_CANCELLED
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    Correlation,
    Hints,
    Payload,
    ResourcesUsed,
    Stamp,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.server.content import (
    converted_or_none,
    reported_fault,
    reported_progress,
    reported_question,
    resource_limits,
    task_context,
)

_PAUSED = frozenset({EventKind.PAUSED, EventKind.ASKED})
_parse = msgspec.json.Decoder(dict[str, Any]).decode
_write = msgspec.json.Encoder().encode


def wire_of(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    """The messages of an outgoing message, in order; nearly always one."""
    return _WORDS[outgoing.delivery.kind](outgoing, receiver, now)


def _work(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    if event.raw is not None and event.protocol == PROTOCOL:
        # The sender's name, its message id and its time stay: the agent is to know who asked, and when.
        replaced = {"to_agent": wire_name(receiver), **_version(receiver)}
        if task.round:
            replaced["request_id"] = wire_request_id(task)
        custom = {**_marks(outgoing, receiver.id), **_attempt(task)}
        if task.files and (attached := read_request(event.body).attachments):
            custom |= {"attachments": attached, "files": None}
        return (codec.reissue(event.raw, replaced, custom),)
    asked = read_request(event.body)
    parameters = asked.given
    if type(parameters) is not dict:
        parameters = {} if parameters is None else {"input": parameters}
    if asked.is_answered:  # B3: the same task again, with what the person said
        parameters = {**parameters, "answer": asked.answer}
    if asked.handover is not None:  # another agent began it: all that is known of it
        parameters = {**parameters, "handover": msgspec.to_builtins(asked.handover)}
    hints = _hints(asked.hints or {})
    if task.limited:  # what is left of it, wherever it was said and in whatever words
        hints = msgspec.structs.replace(hints, max_duration_seconds=max(1, (task.deadline - now) // SECOND))
    request = WorkRequest(task_id=task.id, work_type=task.type, parameters=parameters, hints=hints)
    beyond = asked.beyond or {}
    extra = {**beyond.get("custom", {}), **_attempt(task), **_described(task, asked)}
    frame = _say(request, outgoing, receiver, now, from_agent=HUB_NAME, request_id=wire_request_id(task), extra=extra)
    hinted = {name: value for name, value in (asked.hints or {}).items() if name not in Hints.__struct_fields__}
    if beyond or hinted:
        payload = {**beyond.get("payload", {}), **_parse(frame)["payload"]}
        payload["hints"] |= hinted
        frame = codec.reissue(frame, {**beyond.get("envelope", {}), "payload": payload})
    return (frame,)


def _hints(told: dict[str, Any]) -> Hints:
    """What was hinted at, in chiffon's form: each hint by itself, for one that does not fit says nothing of others."""
    fit = {
        name: getattr(hint, name)
        for name in Hints.__struct_fields__
        if (hint := converted_or_none({name: told.get(name)}, Hints)) is not None
    }
    return Hints(**fit)


def _described(task: Task, request: messages.Request) -> dict[str, Any]:
    """What other protocols say of work beside its parameters."""
    said = {
        "name": task.name,
        "description": task.description,
        "thread": task.thread,
        "attachments": request.attachments,
        "context": task_context(task, request),
        "quality_threshold": resource_limits(task, request).get("quality_threshold"),
    }
    return {key: value for key, value in said.items() if value}


def _attempt(task: Task) -> dict[str, Any]:
    """Which attempt this is, where it is not the first: an agent may want to look whether it did half of it."""
    return {"attempt": task.attempts} if task.attempts > 1 else {}


def _progress(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    event: Event = outgoing.event
    if event.raw is not None and event.protocol == PROTOCOL:
        return (reissued(outgoing, receiver),)
    report, asked = reported_progress(event), reported_question(event)
    status: Literal["running", "step_completed", "paused"] = "paused" if event.kind in _PAUSED else "running"
    if report.status == "step_completed":
        status = "step_completed"
    elif report.status == "paused":
        status = "paused"
    task: Task = outgoing.task
    blocks, asides = mapping.blocks_of(report.output or "", report.chunk), mapping.asides_out(report)
    if asked is not None:
        asides["question"] = {"question": asked.question, "options": asked.options or []}
    percent = _so_far(task) if report.percent is None else report.percent
    aside = report.message or (asked.question[:200] if asked is not None else mapping.aside_in_short(report))
    step = report.named_step or (None if aside is None else messages.Step(name=aside[:200]))
    unnamed, ids = task.step or task.type, receipts(outgoing.delivery.id, len(blocks))
    return tuple(
        _say(
            mapping.status_out(task.id, status, percent, step, output=text, label=label, unnamed=unnamed),
            outgoing,
            receiver,
            now,
            index=index,
            extra={**asides, "delivery_id": ids[index]},
        )
        for index, (text, label) in enumerate(blocks)
    )


def _so_far(task: Task) -> int:
    """How far the work is, where a status does not say it itself. That of a completed task is of its end, of which the
    result tells: what is told of the time before, late, would be running at 100 %."""
    return 0 if task.status is Status.COMPLETED else task.progress or 0


def _result(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    event: Event = outgoing.event
    if event.raw is not None and event.protocol == PROTOCOL:
        return (reissued(outgoing, receiver),)
    done = read_result(event.body)
    code = (done.exit_code or 1) if event.kind is EventKind.FAILED else 0
    return _result_messages(outgoing, receiver, now, done, _text(done), code)


def _result_messages(
    outgoing: Outgoing,
    receiver: Agent,
    now: Instant,
    done: messages.Result,
    output: str,
    code: int,
    fault: Fault | None = None,
) -> tuple[bytes, ...]:
    blocks = mapping.blocks_of(output)
    last, ids = len(blocks) - 1, receipts(outgoing.delivery.id, len(blocks))
    said = done.usage
    usage = converted_or_none(said, ResourcesUsed) or ResourcesUsed()
    if usage.duration_seconds is None:  # other protocols do not say it, and every result of this one does
        seconds = max(0, outgoing.event.at - outgoing.task.created_at) // SECOND
        usage = msgspec.structs.replace(usage, duration_seconds=seconds)
    extra = {} if done.value is None else {"result": done.value}
    if fault is not None:
        extra["fault"] = fault_fields(fault)
    told = msgspec.to_builtins(usage)
    if said is not None and any(told.get(name) != value for name, value in said.items()):
        extra["usage"] = said  # tokens, money: what no field has
    return tuple(
        _say(
            WorkResult(
                task_id=outgoing.task.id,
                status="failed" if code else "success",
                exit_code=code,
                output=text,
                output_chunk=label,
                resources_used=usage,
            ),
            outgoing,
            receiver,
            now,
            index=index,
            extra={**(extra if index == last else {}), "delivery_id": ids[index]},
        )
        for index, (text, label) in enumerate(blocks)
    )


def _failure(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    if event.raw is not None and event.protocol == PROTOCOL:
        return (reissued(outgoing, receiver),)
    failed = messages.read_failure(event.body)
    fault = reported_fault(task, event)
    if fault.kind is Kind.WORK_FAILED:
        # The work was done and failed: chiffon says that by a result, not by an error.
        code = failed.exit_code or fault.facts.get("exit_code")
        code = code if type(code) is int and code else 1
        return _result_messages(outgoing, receiver, now, failed, _text(failed) or fault.message, code, fault)
    said = payload_of(fault, event.at, task=task)
    sender = None if is_told(fault) else HUB_NAME
    extra = {"task_id": task.id, "fault": fault_fields(fault)}
    return (_say(said, outgoing, receiver, now, from_agent=sender, extra=extra),)


def _cancel(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    task: Task = outgoing.task
    told = reported_fault(task, outgoing.event)
    fault = Fault(kind=Kind.CANCELLED, message=told.message)
    said = msgspec.structs.replace(payload_of(fault, now, task=task), error_message=OURS[TASK_CANCELLED])
    extra = {"task_id": task.id}
    return (_say(said, outgoing, receiver, now, from_agent=HUB_NAME, request_id=wire_request_id(task), extra=extra),)


def _pause(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    return _control(outgoing, receiver, now, "paused")


def _resume(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    return _control(outgoing, receiver, now, "running")


def _answer(outgoing: Outgoing, receiver: Agent, now: Instant) -> tuple[bytes, ...]:
    """Chiffon's own questions end a turn and are answered by work; this one was asked by other means."""
    question: Question = outgoing.event
    extra = {"question_id": question.id, "answer": question.answer, "answered": question.answered_by != HUB}
    return _control(outgoing, receiver, now, "running", extra)


def _control(
    outgoing: Outgoing,
    receiver: Agent,
    now: Instant,
    status: Literal["paused", "running"],
    extra: dict[str, Any] | None = None,
) -> tuple[bytes, ...]:
    task: Task = outgoing.task
    said = WorkStatus(task_id=task.id, status=status, progress_percent=_so_far(task))
    request_id = wire_request_id(task)
    return (_say(said, outgoing, receiver, now, from_agent=HUB_NAME, request_id=request_id, extra=extra),)


_WORDS: dict[MessageKind, Callable[[Outgoing, Agent, Instant], tuple[bytes, ...]]] = {
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


def reissued(outgoing: Outgoing, receiver: Agent) -> bytes:
    """What the agent said, for the one who asked: under the ids that the asker knows."""
    task: Task = outgoing.task
    assert outgoing.event.raw is not None
    replaced = {
        "to_agent": wire_name(receiver),
        "request_id": _asked(task),
        "trace_id": trace_uuid(task.trace_id),
        **_version(receiver),
    }
    custom = _marks(outgoing, _worker(outgoing))
    if b'"file"' in outgoing.event.raw and (file := messages.read_progress(outgoing.event.body).file) is not None:
        custom["file"] = file  # the agent named it by its id
    return codec.reissue(outgoing.event.raw, replaced, custom)


def _say(
    said: Payload,
    outgoing: Outgoing,
    receiver: Agent,
    now: Instant,
    *,
    from_agent: str | None = None,
    request_id: str | None = None,
    extra: dict[str, Any] | None = None,
    index: int = 0,
) -> bytes:
    task: Task = outgoing.task
    delivery = outgoing.delivery
    own = delivery.kind in _TO_AGENTS
    custom = _marks(outgoing, receiver.id if own else _worker(outgoing))
    custom["traceparent"] = traceparent(task, delivery.id)
    if extra:
        custom.update(extra)
    message = codec.envelope(
        said,
        Stamp(delivery.id if not index else derived(delivery.id, index), EPOCH + timedelta(microseconds=now)),
        Correlation(request_id or _asked(task), trace_uuid(task.trace_id)),
        from_agent=from_agent or task.kind or _worker(outgoing),
        to_agent=wire_name(receiver),
        protocol_version=receiver.protocol_version or PROTOCOL_VERSION,
        x_custom_fields=custom,
    )
    return codec.encode(message)


_TO_AGENTS = frozenset(
    {
        MessageKind.WORK,
        MessageKind.HANDOFF,
        MessageKind.CANCEL,
        MessageKind.PAUSE,
        MessageKind.RESUME,
        MessageKind.ANSWER,
    }
)


def _marks(outgoing: Outgoing, agent_id: str) -> dict[str, Any]:
    return {"agent_id": agent_id, "delivery_id": outgoing.delivery.id}


def _worker(outgoing: Outgoing) -> str:
    return outgoing.event.agent or outgoing.task.owner or HUB_NAME


def _asked(task: Task) -> str:
    """The request id under which the requester knows the task."""
    return task.origin.request_id if task.origin.protocol == PROTOCOL else wire_request_id(task)


def _version(receiver: Agent) -> dict[str, str]:
    spoken = receiver.protocol_version
    return {} if spoken is None else {"protocol_version": spoken}


def _text(done: messages.Result) -> str:
    """The output as text; a result without one is written out."""
    if done.output or done.value is None:
        return done.output or ""
    return done.value if type(done.value) is str else _write(done.value).decode()
