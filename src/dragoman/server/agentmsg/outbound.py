"""An outgoing message becomes the agentmsg message that tells of it.

    kind         says                                              priority      to
    ------------  ------------------------------------------------  ------------  ----------------------------
    work, yours   TASK_ASSIGNMENT                                   high          the agent
    progress      TASK_UPDATE                                       normal, or    who assigned it
                                                                    its agent's
    result        TASK_COMPLETE, or TASK_FAILED                     high          who assigned it
    failure       TASK_FAILED                                       high          who assigned it
    cancel        TASK_UPDATE `cancelled`                           high          the agent
    pause         TASK_UPDATE `paused`                              high          the agent
    resume        TASK_UPDATE `in_progress`                         high          the agent
    answer        HELP_RESPONSE; TASK_HANDOFF to a takeover         high          the agent that asked
    direct        what its sender wrote, word for word              its own       whom it was written to
    undelivered   ERROR_REPORT about the direct message             critical      its sender

What came in agentmsg goes out in the fields it came in, also those that nobody here knows (all-D6), under its sender's
name; everything else comes from the hub. `metadata.delivery_id` is what to acknowledge. Offered again, it is the same
message with a higher `retry_count`.

    the message                                               its id
    --------------------------------------------------------  --------------------------------------------------------
    an agent's, told for the first time: the first order of   the agent's own
    a task, a report in the commit that heard it
    the hub's own; a later attempt; a result told again       follows from the delivery's

What is told to whoever assigned a task correlates with the assignment, unless its agent named something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.core.ids import Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import ESCALATED, DirectMessage, Escalation, MessageKind, Outgoing
from dragoman.core.model.shared_tasks import SHOWN
from dragoman.core.model.tasks import Asking, Event, EventKind, Priority, Question, Task
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Handoff, read_failure, read_request, read_result
from dragoman.protocols.agentmsg import mapping
from dragoman.protocols.agentmsg.codec import lowered
from dragoman.protocols.agentmsg.records import Priority as Urgency
from dragoman.protocols.agentmsg.routing import EFFECTIVE, PRIORITY
from dragoman.protocols.agentmsg.types import HUB, MAX_RETRIES, HelpResponseType, MessageType
from dragoman.server.agentmsg.answers import escalation_view, handoff_response, help_response
from dragoman.server.agentmsg.failures import report
from dragoman.server.agentmsg.names import PROTOCOL, called, derived_v4, doer, is_uuid
from dragoman.server.agentmsg.views import constraints_of, context_of, story_of, update_status
from dragoman.server.content import (
    file_reference,
    output_in_one_message,
    reported_fault,
    reported_progress,
    reported_question,
    resource_limits,
)

_Fields = dict[str, msgspec.Raw]
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
    if kind is MessageKind.DIRECT_MESSAGE:
        return _direct_message(outgoing, agent)
    if kind is MessageKind.RESULT:
        return _result(outgoing, agent, whole)
    return _WORDS[kind](outgoing, agent)


def ends_in_pieces(event: Event) -> bool:
    """Whether an ending has only the last piece of its output, or none because all of it came on the way: updates are
    carried at most once, so whoever waits for the result is told the whole of it (`wire_of`)."""
    if event.kind is not EventKind.COMPLETED:
        return False
    data = bytes(event.body)
    if len(data) > _SHORT and b'"chunk"' not in data:
        return False
    said = read_result(data)
    return said.chunk is not None or (said.value is None and not said.output)


# -- direct messages -----------------------------------------------------------------------------------------------


def _direct_message(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    """The same bytes, but for the metadata and, where the hub chose the receiver, its name; and beside a request for
    help what those said who passed it on."""
    direct_message: DirectMessage = outgoing.event
    if (direct_message.protocol, direct_message.kind) == (HUB, ESCALATED):
        return _escalated(outgoing, direct_message, agent)
    if direct_message.protocol != PROTOCOL:
        return _foreign(outgoing, direct_message, agent)
    delivery = outgoing.delivery
    fields: dict[str, Any] = cast(dict[str, Any], _fields(direct_message.body))
    metadata = _parse(fields.get("metadata", _EMPTY))
    metadata["delivery_id"] = delivery.id
    metadata["retry_count"] = delivery.attempt - 1 if delivery.attempt else 0
    fields["metadata"] = metadata
    if fields["to"] != (to := _name(agent.id)):
        fields["to"] = to
        if direct_message.kind == MessageType.TASK_HANDOFF and "to_agent" in (payload := _fields(fields["payload"])):
            fields["payload"] = {**payload, "to_agent": to}
    if direct_message.escalations:
        said = [escalation_view(one) for one in direct_message.escalations]
        fields["payload"] = {**_fields(fields["payload"]), "escalations": said}
    return _encode(fields), direct_message.message_id


def _escalated(outgoing: Outgoing, direct_message: DirectMessage, agent: Agent) -> tuple[bytes, str]:
    """An agent that was given a request for help as a task passed it on: what a helper of this protocol would say."""
    body = _parse(direct_message.body)
    payload = {
        **escalation_view(msgspec.convert(body, Escalation)),
        "request_id": body["request_id"],
        "response_type": HelpResponseType.ESCALATION.value,
        "follow_up_required": True,
        "estimated_effort": 0,
    }
    own = {"from": _name(direct_message.sender), "id": _name(derived_v4(outgoing.delivery.id))}
    return _say(MessageType.HELP_RESPONSE, payload, outgoing, agent, own=own, correlation=body["request_id"])


def _foreign(outgoing: Outgoing, direct_message: DirectMessage, agent: Agent) -> tuple[bytes, str]:
    """What an agent of another protocol says of its own accord: an update of what the two have in common."""
    body = _parse(direct_message.body)
    content, around = body.get("payload"), body.get("around") or {}
    words = content.get("message") if type(content) is dict else None
    payload = {
        "task_id": body.get("task")
        or around.get("correlation_id")
        or direct_message.contract
        or direct_message.message_id,
        "message": words if type(words) is str and words else direct_message.kind,
        "event": {"intent": direct_message.kind, "payload": content},
    }
    own = {"from": _name(direct_message.sender), "id": _name(derived_v4(outgoing.delivery.id))}
    return _say(MessageType.TASK_UPDATE, payload, outgoing, agent, own=own, priority="high")


def _name(id: str) -> msgspec.Raw:
    return msgspec.Raw(_encode(id))


# -- to the agent ------------------------------------------------------------------------------------------------


def _work(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    request = read_request(event.body)
    own = _own(event, MessageType.TASK_ASSIGNMENT)
    given: dict[str, Any] = {} if own is None else _parse(own["payload"]).get("task") or {}
    handoff, context = request.handover, request.context
    said: dict[str, Any] = given.get("context") or ({} if context is None else msgspec.structs.asdict(context))
    limits = {} if handoff is None else handoff.constraints or {}
    told: dict[str, Any] = {
        **given,
        "task_id": called(task),
        "task_type": task.type,
        "description": given.get("description") or task.description or "",
        "context": context_of(task, said, story_of(handoff)),
        "constraints": constraints_of(task, resource_limits(task, request), given.get("constraints") or {}, limits),
        "input": request.given,
        "attempt": max(1, task.attempts),
    }
    answered = {"answer": request.answer, "question": request.question, "expired": request.expired}
    told |= {name: value for name, value in answered.items() if value is not (UNSET if name == "answer" else None)}
    if request.attachments:
        told["attachments"] = [file_reference(file, task) for file in request.attachments]
    if handoff is not None:
        known = msgspec.to_builtins(handoff)
        told["handover"] = {name: value for name, value in known.items() if name not in _ELSEWHERE}
        told["handover"]["reason"] = (handoff.reason or "").upper()
        if handoff.parts:
            told["handover"]["parts"] = [_part(part) for part in handoff.parts]
    priority = "critical" if task.priority is Priority.CRITICAL else "high"
    first = task.round == 0 and task.attempts <= 1
    return _say(
        MessageType.TASK_ASSIGNMENT, {"task": told}, outgoing, agent, own=own, priority=priority, again=not first
    )


def _part(told: dict[str, Any]) -> dict[str, Any]:
    """A task that a former owner asked for in the course of one that was handed over, as TaskStates name things."""
    agent = told["agent"]
    named = {"task_id": told["called"], "task_type": told["type"], "assigned_by": told["from"]}
    status = SHOWN.get(told["status"], "in_progress" if agent else "pending")
    return {**named, "status": status, **({"assigned_agent": agent} if agent else {})}


_ELSEWHERE = frozenset({"metadata", "dependencies", "history", "story", "constraints", "fault"})
"""Parts of a handover that a task has its own places for, and the hub's own view of the `error`."""


def _cancel(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    words = reported_fault(outgoing.task, outgoing.event).message
    return _control(outgoing, agent, "cancelled", words)


def _pause(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    return _control(outgoing, agent, "paused", "paused by a person")


def _resume(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    return _control(outgoing, agent, "in_progress", "go on")


def _control(outgoing: Outgoing, agent: Agent, status: str, words: str) -> tuple[bytes, str]:
    payload = {"task_id": called(outgoing.task), "status": status, "message": words}
    return _say(MessageType.TASK_UPDATE, payload, outgoing, agent, priority="high")


def _answer(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    question: Question = outgoing.event
    if question.about is Asking.TAKEOVER:
        kind, payload = MessageType.TASK_HANDOFF, handoff_response(question, outgoing.task)
    else:
        kind, payload = MessageType.HELP_RESPONSE, help_response(question)
    return _say(kind, payload, outgoing, agent, correlation=question.request_id or question.id)


# -- to whoever assigned it --------------------------------------------------------------------------------------


def _progress(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    own = _own(event, MessageType.TASK_UPDATE)
    if own is not None:
        payload = _retold(own, task)
        if "file" in payload and (file := reported_progress(event).file) is not None:
            payload["file"] = file_reference(file, task)  # the agent named it by its id
        return _report(MessageType.TASK_UPDATE, payload, outgoing, agent, own, priority=_urgency(own))
    report = reported_progress(event)
    words = report.message
    if (asked := reported_question(event)) is not None:
        words = f"Waiting for an answer: {asked.question}"
    elif event.kind is EventKind.HANDED_OVER:
        words = f"Handed over to {(read_request(event.body).handover or Handoff()).to}"
    said: dict[str, Any] = {"task_id": called(task), "status": _status(event, task)}
    if report.percent is not None:
        said["progress"] = max(0, min(100, report.percent))
    if words:
        said["message"] = words
    if report.output:
        said["output"] = output_in_one_message(report)
        if report.chunk is not None:
            said["chunk"], said["stream"] = report.chunk, report.stream
    said |= mapping.asides_out(report)
    if report.file is not None:
        said["file"] = file_reference(report.file, task)
    if event.agent:
        said["agent_id"] = doer(event.agent)
    return _report(MessageType.TASK_UPDATE, said, outgoing, agent)


def _urgency(own: _Fields) -> str:
    """How urgent an update is: as its agent said, and at least normal (D3). The hub tells it so often as that promises
    (`Delivery.leaves_once`)."""
    said = Urgency(_parse(own.get("metadata", _EMPTY)).get("priority", Urgency.NORMAL))
    return EFFECTIVE[MessageType.TASK_UPDATE, said].value


def _status(event: Event, task: Task) -> str:
    """How the task stood. News of one that has ended since are not its end: that follows."""
    if event.kind is EventKind.PAUSED:
        return "paused"
    return "in_progress" if event.kind is EventKind.PROGRESS or task.final else update_status(task)


def _result(outgoing: Outgoing, agent: Agent, whole: str | None) -> tuple[bytes, str]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    if event.kind is not EventKind.COMPLETED:
        return _failure(outgoing, agent)
    own = _own(event, MessageType.TASK_COMPLETE)
    if own is not None:
        payload = _retold(own, task)
        if whole and payload["result"] == _NULL:
            payload["result"] = whole
        return _report(MessageType.TASK_COMPLETE, payload, outgoing, agent, own)
    done = read_result(event.body)
    output = whole or output_in_one_message(done)
    result = done.value
    said: dict[str, Any] = {"task_id": called(task), "result": output or None if result is None else result}
    if output and result is not None and result != output:
        said["output"] = output
    if not whole and done.chunk is not None:
        said["chunk"] = done.chunk
    if done.usage is not None:
        said["usage"] = done.usage
    if event.agent:
        said["agent_id"] = doer(event.agent)
    return _report(MessageType.TASK_COMPLETE, said, outgoing, agent)


def _failure(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    own = _own(event, MessageType.TASK_FAILED)
    if own is not None:
        return _report(MessageType.TASK_FAILED, _retold(own, task), outgoing, agent, own)
    failed = read_failure(event.body)
    fault = reported_fault(task, event)
    error = report(
        fault,
        error_id=derived_v4(f"{task.id}/{event.seq}"),
        task_id=called(task),
        agent_id=doer(event.agent or HUB),
    )
    said: dict[str, Any] = {"task_id": called(task), "error": error, "status": _ended(event, fault)}
    if output := output_in_one_message(failed):
        said["output"] = output
    if failed.usage is not None:
        said["usage"] = failed.usage
    return _report(MessageType.TASK_FAILED, said, outgoing, agent)


def _report(
    kind: MessageType,
    payload: Mapping[str, Any],
    outgoing: Outgoing,
    agent: Agent,
    own: _Fields | None = None,
    priority: str | None = None,
) -> tuple[bytes, str]:
    """How a task goes, to whoever assigned it. Of a later attempt its agent knows only the hub's message, which the
    caller has never seen."""
    task: Task = outgoing.task
    assignment = task.origin.request_id
    named = None if own is None else _parse(own.get("metadata", _EMPTY)).get("correlation_id")
    known = named is not None and not (is_uuid(named) and (task.round or task.attempts > 1))
    correlation = assignment if is_uuid(assignment) and not known else None
    again = outgoing.delivery.created_at != outgoing.event.at
    return _say(kind, payload, outgoing, agent, own=own, priority=priority, correlation=correlation, again=again)


def _ended(event: Event, fault: Fault) -> str:
    cancelled = event.kind is EventKind.CANCELLED or fault.kind is Kind.CANCELLED
    return "cancelled" if cancelled else "failed"


def _undelivered(outgoing: Outgoing, agent: Agent) -> tuple[bytes, str]:
    delivery = outgoing.delivery
    direct_message = delivery.direct_message or cast(DirectMessage, outgoing.event)
    kind = (
        direct_message.kind or MessageType.TASK_ASSIGNMENT.value
    )  # which became a task, and is no direct message any more
    what = f"{kind} {direct_message.message_id} was never acknowledged; see whether its receiver is there, send it anew"
    fault = delivery.reason or Fault(kind=Kind.UNAVAILABLE, message=what, retryable=True)
    facts = {"message_id": direct_message.message_id, "type": kind, **fault.facts}
    told = msgspec.structs.replace(fault, facts=facts)
    error = report(told, error_id=derived_v4(delivery.id))
    return _say(MessageType.ERROR_REPORT, error, outgoing, agent, correlation=direct_message.message_id)


_WORDS: Mapping[MessageKind, Callable[[Outgoing, Agent], tuple[bytes, str]]] = {
    MessageKind.WORK: _work,
    MessageKind.HANDOFF: _work,
    MessageKind.PROGRESS: _progress,
    MessageKind.FAILURE: _failure,
    MessageKind.CANCEL: _cancel,
    MessageKind.PAUSE: _pause,
    MessageKind.RESUME: _resume,
    MessageKind.ANSWER: _answer,
    MessageKind.UNDELIVERED: _undelivered,
}


# -- the message -------------------------------------------------------------------------------------------------


def _say(
    kind: MessageType,
    payload: Mapping[str, Any],
    outgoing: Outgoing,
    agent: Agent,
    *,
    own: _Fields | None = None,
    priority: str | None = None,
    correlation: str | None = None,
    again: bool = False,
) -> tuple[bytes, str]:
    """`own` is the message that it was told by, if that was agentmsg: its sender speaks, and its other fields stay.
    Told `again`, it is another message."""
    delivery = outgoing.delivery
    id: Any = derived_v4(delivery.id)
    metadata: dict[str, Any] = {"priority": priority or PRIORITY[kind].value, "max_retries": MAX_RETRIES}
    message: dict[str, Any] = {}
    sender: Any = HUB
    if own is not None:
        message |= own
        sender = own["from"]
        id = id if again else _decode(own["id"])
        metadata = {**metadata, **_parse(own.get("metadata", _EMPTY))}
        if priority is not None:
            metadata["priority"] = priority
        metadata.pop("ttl_ms", None)  # it came in time, and is the hub's to tell now
    metadata["retry_count"] = delivery.attempt - 1 if delivery.attempt else 0
    metadata["delivery_id"] = delivery.id
    if correlation is not None:
        metadata["correlation_id"] = correlation
    if outgoing.task is not None:
        metadata["traceparent"] = f"00-{outgoing.task.trace_id}-{delivery.id.replace('-', '')[16:]}-01"
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


def _own(event: Event, kind: MessageType) -> _Fields | None:
    """The message that an event was told by, if it was an agentmsg message of this type."""
    if event.raw is None or event.protocol != PROTOCOL:
        return None
    fields = _fields(event.raw)
    return fields if bytes(fields["type"]) == _encode(kind.value) else None


def _retold(own: _Fields, task: Task) -> dict[str, Any]:
    """A payload about a task under the name that its caller knows."""
    payload: dict[str, Any] = cast(dict[str, Any], _fields(own["payload"]))
    name = _name(called(task))
    if payload["task_id"] != name:
        payload["task_id"] = name
        if "error" in payload and "task_id" in (error := _fields(payload["error"])):
            payload["error"] = {**error, "task_id": name}
    return payload
