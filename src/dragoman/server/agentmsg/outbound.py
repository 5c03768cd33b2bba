"""An outgoing message becomes an agentmsg message.

    kind          message                                           priority      to
    ------------  ------------------------------------------------  ------------  ----------------------------
    work, handoff TASK_ASSIGNMENT                                   high          the agent
    progress      TASK_UPDATE                                       normal, or    the caller
                                                                    its agent's
    result        TASK_COMPLETE, or TASK_FAILED                     high          the caller
    failure       TASK_FAILED                                       high          the caller
    cancel        TASK_UPDATE `cancelled`                           high          the agent
    pause         TASK_UPDATE `paused`                              high          the agent
    resume        TASK_UPDATE `in_progress`                         high          the agent
    answer        HELP_RESPONSE; TASK_HANDOFF to a takeover         high          the agent that asked
    direct        the sender's message, word for word               its own       its receiver
    undelivered   ERROR_REPORT about the direct message             critical      its sender

What came in agentmsg leaves in the fields it came in, unknown ones included (all-D6), under its sender's name;
everything else comes from the hub. The receiver acknowledges `metadata.delivery_id`. A redelivery is the same message
with a higher `retry_count`.

    message                                                   id
    --------------------------------------------------------  --------------------------------------------------------
    the first assignment of a task, a report on its first     the agent's own
    delivery: in agentmsg
    the hub's own; a later attempt; a report delivered again  follows from the delivery's

A report to the caller correlates with its assignment, unless the agent named another message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from dragoman.core.ids import Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import ESCALATED, DirectMessage, Escalation, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import (
    Asking,
    Event,
    EventKind,
    Priority,
    Question,
    QuestionStatus,
    Task,
)
from dragoman.messages.faults import Kind, new_fault
from dragoman.messages.tasks import Handoff, Json, read_failure, read_request, read_result
from dragoman.protocols.agentmsg import mapping, records
from dragoman.protocols.agentmsg.codec import lowered
from dragoman.protocols.agentmsg.mapping import PERSON, PROTOCOL
from dragoman.protocols.agentmsg.records import ResourceReference
from dragoman.protocols.agentmsg.routing import EFFECTIVE, PRIORITY
from dragoman.protocols.agentmsg.types import HUB, MAX_RETRIES, HelpResponseType, MessageType
from dragoman.server.agentmsg.answers import error_report
from dragoman.server.agentmsg.ids import agent_or_person, derived_v4, is_uuid, task_name
from dragoman.server.agentmsg.views import (
    UpdateStatus,
    constraints_of,
    context_of,
    handoff_context,
    handover_of,
    update_status,
)
from dragoman.server.content import (
    file_reference,
    output_in_one_message,
    reported_fault,
    reported_progress,
    reported_question,
    resource_limits,
    traceparent,
)

_Fields = dict[str, msgspec.Raw]
"""A JSON object with its values as they came."""
_parse = msgspec.json.Decoder(dict[str, Any]).decode
_fields = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(str).decode
_EMPTY = msgspec.Raw(b"{}")
_NULL = msgspec.Raw(b"null")
_SHORT = 4096
"""Bytes of an ending that may have no result in it."""


def wire_of(outgoing: Outgoing, agent: Agent, now: Instant, *, whole: str | None = None) -> tuple[bytes, str]:
    """The frame of an outgoing message, and the id of its message. `whole` is the output of a result that
    `ends_in_pieces`."""
    kind = outgoing.delivery.kind
    if kind is MessageKind.RESULT:
        return _result(outgoing, agent, whole)
    return _MESSAGES[kind](outgoing, agent)


def ends_in_pieces(event: Event) -> bool:
    """Whether an ending has only the last piece of its output, or none because all of it came before: updates are
    delivered at most once, so the caller gets the whole output with the result (`wire_of`)."""
    if event.kind is not EventKind.COMPLETED:
        return False
    data = bytes(event.body)
    if len(data) > _SHORT and b'"chunk"' not in data:
        return False
    result = read_result(data)
    return result.chunk is not None or (result.value is None and not result.output)


# -- to the agent ------------------------------------------------------------------------------------------------


def _work(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    task = outgoing.task
    event = outgoing.event
    request = read_request(event.body)
    original = _original(event, MessageType.TASK_ASSIGNMENT)
    given: Json = {} if original is None else _parse(original["payload"]).get("task") or {}
    handoff, context = request.handover, request.context
    known: Json = given.get("context") or ({} if context is None else msgspec.structs.asdict(context))
    limits = {} if handoff is None else handoff.constraints or {}
    fields: Json = {
        **given,
        "task_id": task_name(task),
        "task_type": task.type,
        "description": given.get("description") or task.description or "",
        "context": context_of(task, known, handoff_context(handoff)),
        "constraints": constraints_of(task, resource_limits(task, request), given.get("constraints") or {}, limits),
        "input": request.given,
        "attempt": max(1, task.attempt.count),
    }
    if request.is_answered:
        fields["answer"] = request.answer
    if request.question is not None:
        fields["question"] = request.question
    if request.expired is not None:
        fields["expired"] = request.expired
    if request.attachments:
        fields["attachments"] = [file_reference(file, task) for file in request.attachments]
    if handoff is not None:
        fields["handover"] = handover_of(handoff)
    priority = "critical" if task.priority is Priority.CRITICAL else "high"
    first = task.attempt.round == 0 and task.attempt.count <= 1
    return _message(
        MessageType.TASK_ASSIGNMENT,
        {"task": fields},
        outgoing,
        agent,
        original=original,
        priority=priority,
        new_id=not first,
    )


def _cancel(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    return _control(outgoing, agent, "cancelled", reported_fault(outgoing.task, outgoing.event).message)


def _pause(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    return _control(outgoing, agent, "paused", "paused by a person")


def _resume(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    return _control(outgoing, agent, "in_progress", "go on")


def _control(outgoing: Outgoing, agent: Agent, status: UpdateStatus, text: str) -> tuple[bytes, str]:
    payload = {"task_id": task_name(outgoing.task), "status": status, "message": text}
    return _message(MessageType.TASK_UPDATE, payload, outgoing, agent, priority="high")


def _answer(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    question = outgoing.question
    request_id = question.request_id or question.id
    if question.about is Asking.TAKEOVER:
        kind, task = MessageType.TASK_HANDOFF, outgoing.about_task
        answer = question.answer if type(question.answer) is dict else {}
        due = task.timing.deadline if task is not None else question.answered_at or question.created_at
        payload = mapping.handoff_answer_out(answer, agent_id=question.asked_of or HUB, due=rfc3339(due))
    else:
        kind = MessageType.HELP_RESPONSE
        answered = question.status is QuestionStatus.ANSWERED or question.has_default
        fields = mapping.help_out(question.answer, answered=answered)
        payload = {"responder_id": _responder(question), "request_id": request_id, **fields}
    return _message(kind, payload, outgoing, agent, correlation=request_id)


def _responder(question: Question) -> str:
    responder = HUB if question.answered_by == HUB else question.asked_of or question.answered_by
    return PERSON if responder is None else agent_or_person(responder)


# -- to the caller -----------------------------------------------------------------------------------------------


def _progress(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    task = outgoing.task
    event = outgoing.event
    original = _original(event, MessageType.TASK_UPDATE)
    if original is not None:
        payload = _renamed(original, task)
        if "file" in payload and (file := reported_progress(event).file) is not None:
            payload["file"] = file_reference(file, task)  # the agent named it by its id
        return _report(MessageType.TASK_UPDATE, payload, outgoing, agent, original, priority=_urgency(original))
    report = reported_progress(event)
    if (asked := reported_question(event)) is not None:
        report = replace(report, message=f"Waiting for an answer: {asked.question}")
    elif event.kind is EventKind.HANDED_OVER:
        handoff = read_request(event.body).handover or Handoff()
        report = replace(report, message=f"Handed over to {handoff.to}")
    if report.output:
        report = replace(report, output=output_in_one_message(report))
    payload = {"task_id": task_name(task), "status": _status(event, task), **mapping.progress_out(report)}
    if report.file is not None:
        payload["file"] = file_reference(report.file, task)
    if event.agent:
        payload["agent_id"] = agent_or_person(event.agent)
    return _report(MessageType.TASK_UPDATE, payload, outgoing, agent)


def _urgency(original: _Fields) -> str:
    """The priority that the agent gave to its update, and at least normal (D3). The hub delivers it with that
    guarantee (`Delivery.leaves_once`)."""
    own = records.Priority(_parse(original.get("metadata", _EMPTY)).get("priority", records.Priority.NORMAL))
    return EFFECTIVE[MessageType.TASK_UPDATE, own].value


def _status(event: Event, task: Task) -> UpdateStatus:
    """The task's status at the event. A progress report of a task that ended since is not its end: that follows."""
    if event.kind is EventKind.PAUSED:
        return "paused"
    return "in_progress" if event.kind is EventKind.PROGRESS or task.final else update_status(task)


def _result(outgoing: Outgoing, agent: Agent, whole: str | None) -> tuple[bytes, str]:
    task = outgoing.task
    event = outgoing.event
    if event.kind is not EventKind.COMPLETED:
        return _failure(outgoing, agent)
    original = _original(event, MessageType.TASK_COMPLETE)
    if original is not None:
        payload = _renamed(original, task)
        if whole and payload["result"] == _NULL:
            payload["result"] = whole
        return _report(MessageType.TASK_COMPLETE, payload, outgoing, agent, original)
    done = read_result(event.body)
    done = replace(done, output=whole or output_in_one_message(done), chunk=None if whole else done.chunk)
    payload = {"task_id": task_name(task), **mapping.result_out(done)}
    if event.agent:
        payload["agent_id"] = agent_or_person(event.agent)
    return _report(MessageType.TASK_COMPLETE, payload, outgoing, agent)


def _failure(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    task = outgoing.task
    event = outgoing.event
    original = _original(event, MessageType.TASK_FAILED)
    if original is not None:
        return _report(MessageType.TASK_FAILED, _renamed(original, task), outgoing, agent, original)
    failure, fault = read_failure(event.body), reported_fault(task, event)
    cancelled = event.kind is EventKind.CANCELLED or fault.kind is Kind.CANCELLED
    error = error_report(
        fault,
        error_id=derived_v4(f"{task.id}/{event.seq}"),
        task=task_name(task),
        agent_id=agent_or_person(event.agent or HUB),
    )
    payload: Json = {
        "task_id": task_name(task),
        "error": error,
        "status": "cancelled" if cancelled else "failed",
    }
    if output := output_in_one_message(failure):
        payload["output"] = output
    if failure.usage is not None:
        payload["usage"] = failure.usage
    return _report(MessageType.TASK_FAILED, payload, outgoing, agent)


def _report(
    kind: MessageType,
    payload: Json,
    outgoing: Outgoing,
    agent: Agent,
    original: _Fields | None = None,
    priority: str | None = None,
) -> tuple[bytes, str]:
    """How a task goes, to its caller. The agent of a later attempt correlates with a message of the hub that the caller
    has never seen."""
    task = outgoing.task
    assignment = task.origin.request_id
    named = None if original is None else _parse(original.get("metadata", _EMPTY)).get("correlation_id")
    known = named is not None and not (is_uuid(named) and (task.attempt.round or task.attempt.count > 1))
    correlation = assignment if is_uuid(assignment) and not known else None
    new_id = outgoing.delivery.created_at != outgoing.event.at
    return _message(
        kind, payload, outgoing, agent, original=original, priority=priority, correlation=correlation, new_id=new_id
    )


# -- direct messages -----------------------------------------------------------------------------------------------


def _direct_message(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    """The same bytes, but for the metadata and, where the hub chose the receiver, its name; and, in a request for help,
    the answers of the helpers that escalated it."""
    direct_message = outgoing.direct_message
    if (direct_message.protocol, direct_message.kind) == (HUB, ESCALATED):
        return _escalated(outgoing, direct_message, agent)
    if direct_message.protocol != PROTOCOL:
        return _foreign(outgoing, direct_message, agent)
    delivery = outgoing.delivery
    fields: Json = cast(Json, _fields(direct_message.raw))
    metadata = _parse(fields.get("metadata", _EMPTY))
    metadata["delivery_id"] = delivery.id
    metadata["retry_count"] = delivery.attempt - 1 if delivery.attempt else 0
    fields["metadata"] = metadata
    if fields["to"] != (to := _raw(agent.id)):
        fields["to"] = to
        if direct_message.kind == MessageType.TASK_HANDOFF and "to_agent" in (payload := _fields(fields["payload"])):
            fields["payload"] = {**payload, "to_agent": to}
    if direct_message.escalations:
        escalations = [_escalation(one) for one in direct_message.escalations]
        fields["payload"] = {**_fields(fields["payload"]), "escalations": escalations}
    return _encode(fields), direct_message.message_id


def _escalated(outgoing: Outgoing, direct_message: DirectMessage, agent: Agent) -> tuple[bytes, str]:
    """The HELP_RESPONSE of an agent of another protocol that escalated a request for help."""
    body = _parse(direct_message.raw)
    payload = {
        **_escalation(msgspec.convert(body, Escalation)),
        "request_id": body["request_id"],
        "response_type": HelpResponseType.ESCALATION.value,
        "follow_up_required": True,
        "estimated_effort": 0,
    }
    original = {"from": _raw(direct_message.sender), "id": _raw(derived_v4(outgoing.delivery.id))}
    kind = MessageType.HELP_RESPONSE
    return _message(kind, payload, outgoing, agent, original=original, correlation=body["request_id"])


def _escalation(escalation: Escalation) -> Json:
    """The fields of a HelpResponse that an escalation has."""
    fields: Json = {"responder_id": agent_or_person(escalation.agent), "content": escalation.content}
    if escalation.resources and mapping.fits(escalation.resources, tuple[ResourceReference, ...]):
        fields["resources"] = escalation.resources
    return fields


def _foreign(outgoing: Outgoing, direct_message: DirectMessage, agent: Agent) -> tuple[bytes, str]:
    """A direct message of another protocol: a TASK_UPDATE about what the two agents have in common."""
    body = _parse(direct_message.raw)
    content, around = body.get("payload"), body.get("around") or {}
    text = content.get("message") if type(content) is dict else None
    common = body.get("task") or around.get("correlation_id") or direct_message.contract
    payload = {
        "task_id": common or direct_message.message_id,
        "message": text if type(text) is str and text else direct_message.kind,
        "event": {"intent": direct_message.kind, "payload": content},
    }
    original = {"from": _raw(direct_message.sender), "id": _raw(derived_v4(outgoing.delivery.id))}
    return _message(MessageType.TASK_UPDATE, payload, outgoing, agent, original=original, priority="high")


def _undelivered(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    delivery = outgoing.delivery
    direct_message = delivery.direct_message or outgoing.direct_message
    kind = direct_message.kind or MessageType.TASK_ASSIGNMENT.value  # which became a task
    fault = delivery.reason or new_fault(
        Kind.UNAVAILABLE,
        f"{kind} {direct_message.message_id} was never acknowledged",
        next="see whether its receiver is there, and send it again",
        retryable=True,
    )
    facts = {"message_id": direct_message.message_id, "type": kind, **fault.facts}
    error = error_report(replace(fault, facts=facts), error_id=derived_v4(delivery.id))
    return _message(MessageType.ERROR_REPORT, error, outgoing, agent, correlation=direct_message.message_id)


# -- the message -------------------------------------------------------------------------------------------------


def _message(
    kind: MessageType,
    payload: Json,
    outgoing: Outgoing,
    agent: Agent,
    *,
    original: _Fields | None = None,
    priority: str | None = None,
    correlation: str | None = None,
    new_id: bool = False,
) -> tuple[bytes, str]:
    """`original` is the agentmsg message that it came in: it keeps its sender, its other fields and, unless `new_id`,
    its id."""
    delivery = outgoing.delivery
    id: Any = derived_v4(delivery.id)
    metadata: Json = {"priority": priority or PRIORITY[kind].value, "max_retries": MAX_RETRIES}
    message: Json = {}
    sender: Any = HUB
    if original is not None:
        message |= original
        sender = original["from"]
        id = id if new_id else _decode(original["id"])
        metadata = {**metadata, **_parse(original.get("metadata", _EMPTY))}
        if priority is not None:
            metadata["priority"] = priority
        metadata.pop("ttl_ms", None)  # it came in time, and the hub has accepted it
    metadata["retry_count"] = delivery.attempt - 1 if delivery.attempt else 0
    metadata["delivery_id"] = delivery.id
    if correlation is not None:
        metadata["correlation_id"] = correlation
    if outgoing.about_task is not None:
        metadata["traceparent"] = traceparent(outgoing.task, delivery.id)
    message |= {
        "id": id,
        "timestamp": rfc3339(delivery.created_at),
        "from": sender,
        "to": agent.id,
        "type": kind.value,
        "payload": payload,
        "metadata": metadata,
    }
    return _encode(message), lowered(id)


def _original(event: Event, kind: MessageType) -> _Fields | None:
    """The message that an event came in, if it was an agentmsg message of this type."""
    if event.raw is None or event.protocol != PROTOCOL:
        return None
    fields = _fields(event.raw)
    return fields if bytes(fields["type"]) == _encode(kind.value) else None


def _renamed(original: _Fields, task: Task) -> Json:
    """The payload of a report, with the name by which the caller knows the task."""
    payload: Json = cast(Json, _fields(original["payload"]))
    name = _raw(task_name(task))
    if payload["task_id"] != name:
        payload["task_id"] = name
        if "error" in payload and "task_id" in (error := _fields(payload["error"])):
            payload["error"] = {**error, "task_id": name}
    return payload


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(_encode(text))


_MESSAGES: Mapping[MessageKind, Callable[[Outgoing, Agent], tuple[bytes, str]]] = {
    MessageKind.WORK: _work,
    MessageKind.HANDOFF: _work,
    MessageKind.PROGRESS: _progress,
    MessageKind.FAILURE: _failure,
    MessageKind.CANCEL: _cancel,
    MessageKind.PAUSE: _pause,
    MessageKind.RESUME: _resume,
    MessageKind.ANSWER: _answer,
    MessageKind.DIRECT_MESSAGE: _direct_message,
    MessageKind.UNDELIVERED: _undelivered,
}
