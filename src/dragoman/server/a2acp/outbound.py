"""An outgoing message of the hub becomes an a2acp message.

    kind      message                                                        from
    ---------  -------------------------------------------------------------  ---------------------------------------
    WORK       request: the intent, its input, correlation_id (`names`)        whoever asked; a person asks as the hub
    RESULT     response, or error if the work failed                          whoever did it
    FAILURE    error                                                          the broker
    PROGRESS   event progress                                                 whoever works
    CANCEL     event cancel; PAUSE, RESUME: events pause, resume              the broker
    PROPOSAL   request accept_handshake: the terms that will stand            the broker
    ANSWER     response initiate_handshake: the contract; or error            the broker
               event answer, to an event question                             the broker
    CONTRACT   event accept_handshake, terminate_collaboration or rotate_key  the broker
    LETTER     event: as it came; of another protocol, its kind and content    whoever wrote it

Every message has a token of the broker's for its receiver instead of the sender's own (all-D4). Under a contract that
wants it, what agents say to each other is sealed; where only they have the key, the ciphertext goes on as it came, in
an envelope with the ids that it is bound to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.deliveries import DirectMessage, MessageKind, Outgoing
from dragoman.core.model.tasks import Asking, Event, EventKind, Question, QuestionStatus, Task
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import Progress, Request, Result, read_failure, read_request, read_result
from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import refusal_of
from dragoman.protocols.a2acp.types import Agent
from dragoman.server.a2acp.builder import ADDED, EVENT, REQUEST, RESPONSE, MessageBuilder, Voice, came, oversize
from dragoman.server.a2acp.contracts import drafted, terms_of
from dragoman.server.a2acp.names import PROTOCOL, thread_of
from dragoman.server.a2acp.said import ENVELOPE
from dragoman.server.content import file_reference, reported_fault, resource_limits, task_context

_NOT_TOLD = frozenset({"chunk", "stream", "extra", "envelope"})
_SHORT = 4096
"""Bytes of an ending that may have no result in it."""

_parse = msgspec.json.Decoder(dict[str, Any]).decode


def wanted(outgoing: Outgoing) -> str | None:
    """The contract that the words of an outgoing message need."""
    kind = outgoing.delivery.kind
    if kind is MessageKind.ANSWER and outgoing.event.about is Asking.HANDSHAKE:
        answer = outgoing.event.answer
        return answer.get("contract_id") if type(answer) is dict else None
    if kind is MessageKind.DIRECT_MESSAGE:
        direct_message: DirectMessage = outgoing.event
        return direct_message.contract
    return None if outgoing.task is None else outgoing.task.contract


def failure_in(outgoing: Outgoing) -> Fault | None:
    """Why what was asked came to nothing, where the outgoing message is the answer to it."""
    if outgoing.delivery.kind is MessageKind.ANSWER:
        fault = outgoing.event.answer.get("fault")
        return None if fault is None else msgspec.convert(fault, Fault)
    return outgoing.task.fault  # type: ignore[no-any-return]


def ends_in_pieces(event: Event) -> bool:
    """Whether an ending has no result of its own, but an output that came before it in pieces."""
    if event.kind is not EventKind.COMPLETED:
        return False
    data = bytes(event.body)
    if len(data) > _SHORT and b'"chunk"' not in data:
        return False
    said = read_result(data)
    return said.value is None and (said.chunk is not None or not said.output)


def wire_of(
    outgoing: Outgoing,
    receiver: AgentId,
    now: Instant,
    voice: Voice,
    contract: Contract | None,
    *,
    whole: str | None = None,
) -> bytes:
    """The message of an outgoing message. `contract` is what `wanted` named; `whole` is the output of what
    `ends_in_pieces`. Raises `Refused` for work that no message holds, or that none may.

    Who took a task over from somebody else is no party to the contract that it was asked under. What that contract
    wants sealed stays so: it can then say no more than that it cannot read it.
    """
    if contract is not None and receiver not in contract.parties and not contract.encrypted:
        contract = None
    said = MessageBuilder(outgoing, receiver, now, voice, contract)
    if outgoing.delivery.kind is MessageKind.RESULT:
        return _result(said, whole)
    return _WORDS[outgoing.delivery.kind](said)


# -- to whoever works --------------------------------------------------------------------------------------------


def _work(said: MessageBuilder) -> bytes:
    task, request = said.task, read_request(said.event.body)
    source = said.voice.party(task.origin.principal)
    if said.contract is not None and said.contract.end_to_end and request.envelope is not None:
        extra = _unknown(request.extra) | {"task": {"id": task.id}}
        message = said.forward(REQUEST, request.input, request.envelope, source=source, extra=extra)
        return _within(said, message)
    if task.personal and (said.contract is None or not said.contract.encrypted):  # it was handed over, say
        what = f"the work is personal, and there is no key to reach {said.receiver} by; let somebody else do it"
        raise Refused(Fault(kind=Kind.FORBIDDEN, message=what, facts={"pii": True}))
    content = request.given
    if type(content) is not dict:
        content = {} if content is None else {"input": content}
    aside: dict[str, Any] = {"answer": request.answer} if request.is_answered else {}
    if request.handover is not None:
        aside["handover"] = request.handover
    if request.attachments:
        aside["attachments"] = [file_reference(file, task) for file in request.attachments]
    extra = _unknown(request.extra) | _besides(task, None if said.personal else request)
    name = said.voice.called(task)
    # One that its caller did not give it can be answered by the message's id as well.
    spare = ("traceparent",) if name == task.origin.called else ("traceparent", "correlation_id")
    words = {**content, **aside}
    message = said.converse(REQUEST, task.type, words, name, source=source, extra=extra, spare=spare)
    return _within(said, message)


def _within(said: MessageBuilder, message: bytes) -> bytes:
    if large := oversize(message):
        what = f"the work is larger than a message to {said.receiver} may be; ask for less at a time"
        raise Refused(Fault(kind=Kind.TOO_LARGE, message=what, facts=large))
    return message


def _unknown(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields beside the payload that nobody here knows, of whoever spoke this protocol (all-D6)."""
    return {name: value for name, value in (extra or {}).items() if name not in ENVELOPE}


def _besides(task: Task, request: Request | None) -> dict[str, Any]:
    """Which task it is, what other protocols say of it and this one has no word for, and that it was begun before: in a
    field of ours beside the payload. It travels in clear: what is known around personal work stays behind."""
    around: dict[str, Any] = {}
    if request is not None:
        around = {"context": task_context(task, request), "limits": resource_limits(task, request)}
    named = ("id", "name", "description", "thread") if not task.personal else ("id",)
    known = {name: getattr(task, name) for name in named if getattr(task, name)}
    if task.attempts > 1:
        known["attempt"] = task.attempts
    return {"task": known | {name: value for name, value in around.items() if value}}


def _control(intent: str) -> Callable[[MessageBuilder], bytes]:
    def say(said: MessageBuilder) -> bytes:
        payload: dict[str, Any] = {"correlation_id": _thread_towards(said)}
        if said.contract is not None:
            payload["contract_id"] = said.contract.id
        reason = reported_fault(said.task, said.event).message if intent == intents.CANCEL else ""
        if reason and not said.personal:  # it travels in clear
            payload["reason"] = reason
        return said.say(EVENT, intent, payload, extra={"task": {"id": said.task.id}})

    return say


def _thread_towards(said: MessageBuilder) -> str:
    """What the agent that works knows the task by."""
    sealed = said.contract is not None and said.contract.end_to_end
    return thread_of(said.task) if sealed else said.voice.called(said.task)


# -- to whoever asked --------------------------------------------------------------------------------------------


def _result(said: MessageBuilder, whole: str | None) -> bytes:
    task, event = said.task, said.event
    if event.kind is not EventKind.COMPLETED:
        return _failure(said)
    done = read_result(event.body)
    source = said.voice.party(event.agent or task.owner or AgentId(""))
    if said.contract is not None and said.contract.end_to_end and done.envelope is not None:
        extra = _unknown(done.extra)
        if done.value_in is not UNSET:
            extra["value_in"] = done.value_in
        if done.usage is not None:
            extra["usage"] = done.usage
        message = said.forward(RESPONSE, done.value, done.envelope, source=source, extra=extra)
        large = oversize(message, ADDED)
        return _too_long(said, large) if large else message
    content, value_in = _content(done, whole)
    extra = _unknown(done.extra) if event.protocol == PROTOCOL else {}
    if value_in is not None:
        extra["value_in"] = value_in
    if done.usage is not None:
        extra["usage"] = done.usage
    message = said.converse(RESPONSE, task.type, content, thread_of(task), source=source, extra=extra)
    large = oversize(message, ADDED)
    return _too_long(said, large) if large else message


def _content(done: Result, whole: str | None) -> tuple[dict[str, Any], str | None]:
    """A result as the object that a payload is, and in which field of it what the agent returned stands."""
    result, value_in = done.value, done.value_in
    if isinstance(value_in, str):  # as its agent put it
        return ({value_in: result} if value_in else {}), value_in
    if type(result) is dict:
        return result, None
    if result is not None and type(result) is not str:
        return {"result": result}, "result"
    output = result or whole or done.output
    if result is None and not output:
        return ({} if output is None else {"output": ""}), ""
    return {"output": str(output or "")}, "output"


def _too_long(said: MessageBuilder, large: Mapping[str, int]) -> bytes:
    """The work is done, and what came of it is more than a message may have (D10). Half of it would be nothing."""
    what = "the result is larger than a message may be; people find it with the task"
    facts = {**large, "task_id": said.task.id}
    fault = Fault(kind=Kind.TOO_LARGE, message=what, facts=facts)
    return said.complain(refusal_of(fault), thread_of(said.task), said.task.type, None)


def _failure(said: MessageBuilder) -> bytes:
    task, event = said.task, said.event
    fault = reported_fault(said.task, event)
    refusal = refusal_of(fault, personal=said.personal)
    if event.protocol != PROTOCOL or event.agent is None:
        usage = read_failure(event.body).usage
        tells = usage is not None and not said.personal  # an error travels in clear
        message = said.complain(refusal, thread_of(task), task.type, None, {"usage": usage} if tells else None)
        return said.complain(refusal, thread_of(task), task.type, None) if tells and oversize(message) else message
    return said.repeat(refusal, said.voice.party(event.agent))


def _progress(said: MessageBuilder) -> bytes:
    task, event = said.task, said.event
    content = event.content
    report = content if isinstance(content, Progress) else Progress()
    beyond, envelope = report.extra or {}, report.envelope
    told = {name: value for name, value in msgspec.to_builtins(report).items() if name not in _NOT_TOLD}
    if report.file is not None:
        told["file"] = file_reference(report.file, task)
    told |= beyond
    if isinstance(content, messages.Question):
        told = {"message": f"Waiting for an answer: {content.question}"}
    elif event.kind is not EventKind.PROGRESS and not (event.kind is EventKind.PAUSED and told.get("message")):
        told = {"message": event.kind.value.replace("_", " ")}
    source = said.voice.party(event.agent) if event.agent is not None else said.voice.broker
    extra = {name: value for name, value in came(event, EVENT).items() if name not in ENVELOPE}
    if said.contract is not None and said.contract.end_to_end:
        if envelope is not None:
            message = said.forward(EVENT, beyond, envelope, source=source, extra=extra, intent="progress")
            if not oversize(message, ADDED):
                return message
        told = {name: value for name, value in told.items() if name == "percent"}
        payload = {**told, "correlation_id": thread_of(task), "contract_id": said.contract.id}
        return said.say(EVENT, "progress", payload, source=source, extra=extra)
    message = said.converse(EVENT, "progress", told, thread_of(task), source=source, extra=extra)
    if large := oversize(message):  # in other protocols a sign of life may be of any size
        told = {"message": "it is larger than a message may be", **large}
        message = said.converse(EVENT, "progress", told, thread_of(task), source=source)
    return message


# -- beside all requests -----------------------------------------------------------------------------------------


def _event(said: MessageBuilder) -> bytes:
    """What another agent says of its own accord."""
    direct_message: DirectMessage = said.outgoing.event
    source, body = said.voice.party(direct_message.sender), _parse(direct_message.body)
    if direct_message.protocol != PROTOCOL:
        return _foreign(said, direct_message, body.get("payload"), source)
    intent, content, around, extra = body["intent"], body["payload"], body["around"], _unknown(body.get("extra"))
    envelope = body.get("envelope")
    if envelope is not None:
        id = envelope["message_id"]
        return said.say(EVENT, intent, {**content, **around}, source=source, encryption="aes256", id=id, extra=extra)
    if said.contract is None and direct_message.personal:
        content = {}  # its contract was forgotten: nothing of it goes out in clear
    return said.put(EVENT, intent, content, around, source, extra)


def _foreign(said: MessageBuilder, direct_message: DirectMessage, content: Any, source: Agent) -> bytes:
    message = said.say(
        EVENT, direct_message.kind, content if type(content) is dict else {"payload": content}, source=source
    )
    large = oversize(message)
    if not large:
        return message
    return said.say(
        EVENT, direct_message.kind, {"message": "it is larger than a message may be", **large}, source=source
    )


# -- contracts ---------------------------------------------------------------------------------------------------


def _proposal(said: MessageBuilder) -> bytes:
    question: Question = said.outgoing.event
    draft = drafted(question.details)
    terms = terms_of(draft)
    offer = intents.Offer(
        handshake_id=question.id,
        source_agent=terms.source_agent,
        requested_intent=draft.intent,
        contract=terms,
        public_key=draft.secret.source_key if draft.secret is not None and draft.end_to_end else None,
        correlation_id=question.id,
    )
    return said.say(REQUEST, intents.ACCEPT, intents.payload(offer))


def _answer(said: MessageBuilder) -> bytes:
    question: Question = said.outgoing.event
    return _handshake(said, question) if question.about is Asking.HANDSHAKE else _answered(said, question)


def _answered(said: MessageBuilder, question: Question) -> bytes:
    """What a person said to an event `question`, or that nobody did in time."""
    told: dict[str, Any] = {"question_id": question.request_id, "question": question.question}
    if question.status is QuestionStatus.ANSWERED or question.has_default:
        told["answer"] = question.answer
    else:
        told["timed_out"] = True
    extra = {"task": {"id": said.task.id}}
    return said.converse(EVENT, "answer", told, _thread_towards(said), source=said.voice.broker, extra=extra)


def _handshake(said: MessageBuilder, question: Question) -> bytes:
    """How a handshake ended, for whoever began it."""
    thread = str(question.details.get("correlation_id") or question.request_id)
    answer = question.answer if type(question.answer) is dict else {}
    if said.contract is None:
        fault = answer.get("fault")
        told = (
            msgspec.convert(fault, Fault)
            if fault
            else Fault(kind=Kind.INTERNAL, message="the handshake came to nothing")
        )
        return said.complain(refusal_of(told), thread, intents.INITIATE, None)
    return said.say(RESPONSE, intents.INITIATE, established(said.contract, said.receiver, said.voice, thread))


def established(contract: Contract, receiver: AgentId, voice: Voice, thread: str | None) -> dict[str, Any]:
    """The contract is in force: its terms, and the key for this receiver."""
    body = intents.Established(
        collaboration_id=contract.collaboration,
        contract=terms_of(contract),
        key=voice.grant(contract, receiver),
        correlation_id=thread,
    )
    return {**intents.payload(body), "contract_id": contract.id}


def terminated(contract: Contract, thread: str | None = None) -> dict[str, Any]:
    body = intents.Terminated(
        collaboration_id=contract.collaboration,
        by=contract.by or "",
        reason=contract.reason,
        correlation_id=thread,
    )
    return {**intents.payload(body), "contract_id": contract.id}


def rotated(contract: Contract, receiver: AgentId, voice: Voice, thread: str | None = None) -> dict[str, Any]:
    key = voice.grant(contract, receiver)
    assert key is not None
    body = intents.Rotated(
        collaboration_id=contract.collaboration, contract_id=contract.id, key=key, correlation_id=thread
    )
    return intents.payload(body)


def _news(said: MessageBuilder) -> bytes:
    contract: Contract = said.outgoing.event
    if contract.standing is Standing.TERMINATED:
        return said.say(EVENT, intents.TERMINATE, terminated(contract))
    # Only the target hears by an event that they agreed, and when they did; the key may have changed again since.
    agreed = said.receiver == contract.target.agent and said.outgoing.delivery.created_at <= contract.since
    if contract.rotated_at is not None and not agreed:
        return said.say(EVENT, intents.ROTATE, rotated(contract, said.receiver, said.voice))
    return said.say(EVENT, intents.ACCEPT, established(contract, said.receiver, said.voice, None))


_WORDS: Mapping[MessageKind, Callable[[MessageBuilder], bytes]] = {
    MessageKind.WORK: _work,
    MessageKind.HANDOFF: _work,
    MessageKind.PROGRESS: _progress,
    MessageKind.FAILURE: _failure,
    MessageKind.CANCEL: _control(intents.CANCEL),
    MessageKind.PAUSE: _control("pause"),
    MessageKind.RESUME: _control("resume"),
    MessageKind.PROPOSAL: _proposal,
    MessageKind.ANSWER: _answer,
    MessageKind.CONTRACT: _news,
    MessageKind.DIRECT_MESSAGE: _event,
}
