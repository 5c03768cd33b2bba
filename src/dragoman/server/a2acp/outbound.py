"""An outgoing message of the hub becomes an a2acp message.

    kind       message                                                        from
    ---------  -------------------------------------------------------------  ---------------------------------------
    WORK       request: the intent, its input, a correlation id               the caller; for a person, the broker
    RESULT     response, or error if the work failed                          the agent that did it
    FAILURE    error                                                          the broker, or the agent that failed
    PROGRESS   event progress                                                 the agent that works
    CANCEL     event cancel; PAUSE, RESUME: events pause, resume              the broker
    PROPOSAL   request accept_handshake: the terms that will stand            the broker
    ANSWER     response initiate_handshake: the contract; or error            the broker
               event answer, to an event question                             the broker
    CONTRACT   event accept_handshake, terminate_collaboration or rotate_key  the broker
    DIRECT     event: as it came; of another protocol, its kind and content   the agent that sent it

    correlation_id towards an agent      the caller's own, so that both write the same into their logs; the task's id
                                         where there is none, where the caller speaks another protocol, and where the
                                         agent works on another task of that name
    correlation_id towards the caller    its own (`Task.origin.called`), or the id of its request
    message_id                           the delivery's id, with the 7 of its version written as a 4

Every message has a token of the broker's for its receiver instead of the sender's own (all-D4). Under a contract that
wants it, the content of messages between agents is sealed. A ciphertext that only the two agents can open is passed on
as it came, in an envelope with the ids that it is bound to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Asking, Event, EventKind, Question, QuestionStatus, Task
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.messages.tasks import Json, Progress, Request, read_failure, read_request, read_result
from dragoman.protocols.a2acp import intents, mapping
from dragoman.protocols.a2acp.errors import Refusal, refusal_of
from dragoman.protocols.a2acp.mapping import TaskFields
from dragoman.protocols.a2acp.sealing import KeyGrant, bound
from dragoman.protocols.a2acp.types import (
    ENVELOPE,
    PROTOCOL,
    RESERVED,
    Agent,
)
from dragoman.server.a2acp.contracts import established, rotated, terminated, terms_of
from dragoman.server.a2acp.frames import Broker, frame, message_id, oversize, thread_of
from dragoman.server.content import file_reference, reported_fault, resource_limits, task_context, traceparent

ADDED = 200
"""Bytes that the hub puts into the payload of an answer which had room for nothing more."""
SHORT = 4096
"""Bytes of an ending that may have no result in it."""
TOO_LARGE = "it is larger than a message may be"
NOT_SHOWN = frozenset({"chunk", "stream", "extra", "envelope"})
"""Fields of progress that are the hub's own."""

_slices = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_parse = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_EMPTY = msgspec.Raw(b"{}")


def wanted_contract(outgoing: Outgoing) -> str | None:
    """The id of the contract that an outgoing message is encoded under."""
    kind = outgoing.delivery.kind
    if kind is MessageKind.ANSWER and outgoing.question.about is Asking.HANDSHAKE:
        answer = outgoing.question.answer
        return answer.get("contract_id") if type(answer) is dict else None
    if kind is MessageKind.DIRECT_MESSAGE:
        return outgoing.direct_message.contract
    return None if outgoing.about_task is None else outgoing.about_task.agreement.contract


def failure_in(outgoing: Outgoing) -> Fault | None:
    """Why a request failed, where the outgoing message is the answer to it."""
    if outgoing.delivery.kind is MessageKind.ANSWER:
        fault = outgoing.question.answer.get("fault")
        return None if fault is None else msgspec.convert(fault, Fault)
    return outgoing.task.outcome.fault


def ends_in_pieces(outgoing: Outgoing) -> bool:
    """Whether it is a result whose output came before it in pieces."""
    if outgoing.delivery.kind is not MessageKind.RESULT:
        return False
    event = outgoing.event
    if event.kind is not EventKind.COMPLETED:
        return False
    data = bytes(event.body)
    if len(data) > SHORT and b'"chunk"' not in data:
        return False
    done = read_result(data)
    return done.value is None and (done.chunk is not None or not done.output)


def wire_of(
    outgoing: Outgoing, receiver: AgentId, now: Instant, broker: Broker, contract: Contract | None,
    *, whole: str | None = None,
) -> bytes:  # fmt: skip
    """The message of an outgoing message. `contract` is the one that `wanted_contract` names; `whole` is the output of
    one that `ends_in_pieces`. Raises `Refused` for work that no message holds, or that none may.

    An agent that took a task over is no party to the contract under which it was asked. Content that the contract wants
    sealed stays sealed: the agent can then only answer that it cannot read it.
    """
    if contract is not None and receiver not in contract.parties and not contract.encrypted:
        contract = None
    encoder = _Encoder(outgoing, receiver, now, broker, contract)
    if outgoing.delivery.kind is MessageKind.RESULT:
        return encoder.result(whole)
    return _BY_KIND[outgoing.delivery.kind](encoder)


class _Encoder:
    """One outgoing message, its receiver, and the contract that holds between the two agents."""

    def __init__(
        self, outgoing: Outgoing, receiver: AgentId, now: Instant, broker: Broker, contract: Contract | None
    ) -> None:
        self.outgoing = outgoing
        self.receiver = receiver
        self.now = now
        self.broker = broker
        self.contract = contract

    @property
    def task(self) -> Task:
        return self.outgoing.task

    @property
    def event(self) -> Event:
        return self.outgoing.event

    # -- to the agent that works

    def work(self) -> bytes:
        task, contract, request = self.task, self.contract, read_request(self.event.body)
        source = self.broker.party(task.origin.principal)
        if contract is not None and contract.end_to_end and request.envelope is not None:
            extra = _unknown(request.extra) | {"task": TaskFields(id=task.id)}
            return self._sendable(self._forwarded("request", request.input, request.envelope, source, extra))
        if task.agreement.personal and (
            contract is None or not contract.encrypted
        ):  # another agent handed it over, say
            raise refuse(
                Kind.FORBIDDEN,
                f"the work is personal, and there is no key to reach {self.receiver} by",
                next="let another agent do it",
                pii=True,
            )
        name = self.broker.called(task)
        # The agent can also answer by the message's id, if the correlation id is not the caller's.
        spare = ("traceparent",) if name == task.origin.called else ("traceparent", "correlation_id")
        content = mapping.request_out(request, [file_reference(file, task) for file in request.attachments or ()])
        extra = _unknown(request.extra) | {"task": self._task_fields(request)}
        return self._sendable(self._between("request", task.type, content, name, source, extra, spare=spare))

    def _task_fields(self, request: Request) -> TaskFields:
        """Of personal work nothing that its caller wrote: these fields travel in clear."""
        task = self.task
        attempt = task.attempt.count if task.attempt.count > 1 else None
        context, limits = None, None
        if not self._is_personal:
            context, limits = task_context(task, request) or None, resource_limits(task, request) or None
        if task.agreement.personal:
            return TaskFields(id=task.id, attempt=attempt, context=context, limits=limits)
        return TaskFields(
            id=task.id, name=task.name or None, description=task.description or None,
            thread=task.lineage.thread or None,
            attempt=attempt, context=context, limits=limits,
        )  # fmt: skip

    def _sendable(self, message: bytes) -> bytes:
        if large := oversize(message):
            what = f"the work is larger than a message to {self.receiver} may be"
            raise Refused(new_fault(Kind.TOO_LARGE, what, next="ask for less at a time", facts=large))
        return message

    def control(self, intent: str) -> bytes:
        payload: Json = {"correlation_id": self._owners_thread}
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        reason = reported_fault(self.task, self.event).message if intent == intents.CANCEL else ""
        if reason and not self._is_personal:  # it travels in clear
            payload["reason"] = reason
        return self._frame("event", intent, payload, extra={"task": TaskFields(id=self.task.id)})

    @property
    def _owners_thread(self) -> str:
        sealed = self.contract is not None and self.contract.end_to_end
        return thread_of(self.task) if sealed else self.broker.called(self.task)

    # -- to the caller

    def result(self, whole: str | None) -> bytes:
        task, event = self.task, self.event
        if event.kind is not EventKind.COMPLETED:
            return self.failure()
        done = read_result(event.body)
        source = self.broker.party(event.agent or task.owner or AgentId(""))
        is_end_to_end = self.contract is not None and self.contract.end_to_end and done.envelope is not None
        content: Json = {}
        value_in: object = done.value_in
        if not is_end_to_end:
            content, shown_in = mapping.result_out(done, whole)
            value_in = UNSET if shown_in is None else shown_in
        extra = _unknown(done.extra) if is_end_to_end or event.protocol == PROTOCOL else {}
        if value_in is not UNSET:
            extra["value_in"] = value_in
        if done.usage is not None:
            extra["usage"] = done.usage
        if done.envelope is not None and is_end_to_end:
            message = self._forwarded("response", done.value, done.envelope, source, extra)
        else:
            message = self._between("response", task.type, content, thread_of(task), source, extra)
        large = oversize(message, ADDED)
        if not large:
            return message
        # A part of a result would be no result (D10).
        what, next = "the result is larger than a message may be", "people find it with the task"
        fault = new_fault(Kind.TOO_LARGE, what, next=next, facts={**large, "task_id": task.id})
        return self._error(refusal_of(fault), thread_of(task), task.type)

    def failure(self) -> bytes:
        task, event = self.task, self.event
        refusal = refusal_of(reported_fault(task, event), personal=self._is_personal)
        if event.protocol == PROTOCOL and event.agent is not None:
            return self._agents_error(refusal, self.broker.party(event.agent))
        usage = read_failure(event.body).usage
        if usage is not None and not self._is_personal:  # an error travels in clear
            message = self._error(refusal, thread_of(task), task.type, extra={"usage": usage})
            if not oversize(message):
                return message
        return self._error(refusal, thread_of(task), task.type)

    def _agents_error(self, refusal: Refusal, source: Agent) -> bytes:
        """An agent's own error, with its unknown fields as long as a message holds them."""
        came = _as_it_came(self.event, "error")
        payload: Json = {}
        for name, value in _slices(came.get("payload", _EMPTY)).items():
            if name not in RESERVED:
                payload[name] = value
        unknown = _slices(payload.get("error", _EMPTY))
        payload |= refusal.payload(thread_of(self.task))
        payload["error"] = {**unknown, **payload["error"]}
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        message = self._frame("error", self.task.type, payload, source=source, extra=_unknown(came))
        return self._error(refusal, thread_of(self.task), self.task.type, source) if oversize(message) else message

    def progress(self) -> bytes:
        task, event, contract = self.task, self.event, self.contract
        report = event.content if isinstance(event.content, Progress) else Progress()
        beyond = report.extra or {}
        payload = {name: value for name, value in msgspec.to_builtins(report).items() if name not in NOT_SHOWN}
        if report.file is not None:
            payload["file"] = file_reference(report.file, task)
        payload |= beyond
        if isinstance(event.content, messages.Question):
            payload = {"message": f"Waiting for an answer: {event.content.question}"}
        elif event.kind is not EventKind.PROGRESS and not (event.kind is EventKind.PAUSED and payload.get("message")):
            payload = {"message": event.kind.value.replace("_", " ")}
        source = self.broker.party(event.agent) if event.agent is not None else self.broker.agent
        extra = _unknown(_as_it_came(event, "event"))
        if contract is not None and contract.end_to_end:
            if report.envelope is not None:
                message = self._forwarded("event", beyond, report.envelope, source, extra, intent=mapping.PROGRESS)
                if not oversize(message, ADDED):
                    return message
            clear = {name: value for name, value in payload.items() if name == "percent"}
            clear |= {"correlation_id": thread_of(task), "contract_id": contract.id}
            return self._frame("event", mapping.PROGRESS, clear, source=source, extra=extra)
        message = self._between("event", mapping.PROGRESS, payload, thread_of(task), source, extra)
        if large := oversize(message):  # progress of other protocols may be of any size
            short = {"message": TOO_LARGE, **large}
            message = self._between("event", mapping.PROGRESS, short, thread_of(task), source)
        return message

    # -- beside all requests

    def direct_message(self) -> bytes:
        direct_message = self.outgoing.direct_message
        source, body = self.broker.party(direct_message.sender), _parse(direct_message.raw)
        if direct_message.protocol != PROTOCOL:
            content = body.get("payload")
            payload = content if type(content) is dict else {"payload": content}
            message = self._frame("event", direct_message.kind, payload, source=source)
            if large := oversize(message):
                short = {"message": TOO_LARGE, **large}
                message = self._frame("event", direct_message.kind, short, source=source)
            return message
        intent, content, around, extra = body["intent"], body["payload"], body["around"], _unknown(body.get("extra"))
        if (envelope := body.get("envelope")) is not None:
            id, payload = envelope["message_id"], {**content, **around}
            return self._frame("event", intent, payload, source=source, encryption="aes256", id=id, extra=extra)
        if self.contract is None and direct_message.personal:
            content = {}  # the hub forgot its contract: no content leaves in clear
        return self._sealed("event", intent, content, around, source, extra)

    # -- contracts, questions

    def proposal(self) -> bytes:
        question = self.outgoing.question
        draft = question.details.contract
        assert draft is not None
        terms = terms_of(draft)
        offer = intents.Offer(
            handshake_id=question.id,
            source_agent=terms.source_agent,
            requested_intent=draft.intent,
            contract=terms,
            public_key=draft.secret.source_key if draft.secret is not None and draft.end_to_end else None,
            correlation_id=question.id,
        )
        return self._frame("request", intents.ACCEPT, intents.payload(offer))

    def answer(self) -> bytes:
        question = self.outgoing.question
        if question.about is Asking.HANDSHAKE:
            return self._handshake_ended(question)
        is_answered = question.status is QuestionStatus.ANSWERED or question.has_default
        answer = question.answer if is_answered else UNSET
        payload = mapping.answer_out(question.request_id, question.question, answer)
        extra = {"task": TaskFields(id=self.task.id)}
        return self._between("event", mapping.ANSWER, payload, self._owners_thread, self.broker.agent, extra)

    def _handshake_ended(self, question: Question) -> bytes:
        thread = str(question.details.correlation_id or question.request_id)
        if self.contract is not None:
            payload = established(self.contract, self._key(self.contract), thread)
            return self._frame("response", intents.INITIATE, payload)
        answer = question.answer if type(question.answer) is dict else {}
        fault = Fault(kind=Kind.INTERNAL, message="the handshake came to nothing")
        if answer.get("fault"):
            fault = msgspec.convert(answer["fault"], Fault)
        return self._error(refusal_of(fault), thread, intents.INITIATE)

    def contract_changed(self) -> bytes:
        contract = self.outgoing.contract
        if contract.standing is Standing.TERMINATED:
            return self._frame("event", intents.TERMINATE, terminated(contract))
        # Only the target gets an event when the two agree; the key may have changed again since. A notice that is newer
        # than the newest key is about a later end.
        written = self.outgoing.delivery.created_at
        is_agreement = self.receiver == contract.target.agent and written <= contract.since
        if contract.rotated_at is not None and written <= contract.rotated_at and not is_agreement:
            return self._frame("event", intents.ROTATE, rotated(contract, self._key(contract)))
        return self._frame("event", intents.ACCEPT, established(contract, self._key(contract)))

    def _key(self, contract: Contract) -> KeyGrant | None:
        return self.broker.grant(contract, self.receiver)

    # -- frames

    @property
    def _is_personal(self) -> bool:
        return self.task.agreement.personal or (self.contract is not None and self.contract.encrypted)

    @property
    def _traceparent(self) -> str:
        return traceparent(self.task, self.outgoing.delivery.id)

    def _frame(
        self, kind: str, intent: str | None, payload: Mapping[str, Any], *, source: Agent | None = None,
        encryption: str = "none", id: str | None = None, extra: Mapping[str, Any] | None = None,
    ) -> bytes:  # fmt: skip
        broker = self.broker
        return frame(
            kind, intent, payload, id=id or message_id(self.outgoing.delivery.id), now=self.now,
            source=source or broker.agent, target=broker.party(self.receiver), token=broker.token(self.receiver),
            encryption=encryption, extra=extra,
        )  # fmt: skip

    def _between(
        self, kind: str, intent: str, content: Any, correlation: str, source: Agent,
        extra: Mapping[str, Any] | None = None, *, spare: Sequence[str] = ("traceparent",),
    ) -> bytes:  # fmt: skip
        """A message from one agent to another, sealed where their contract wants it. `spare`: fields of the hub's own
        that are left out where there is no room for them."""
        around: Json = {"correlation_id": correlation, "traceparent": self._traceparent}
        if self.contract is not None:
            around["contract_id"] = self.contract.id
        message = self._sealed(kind, intent, content, around, source, extra)
        for name in spare:
            if not oversize(message):
                break
            del around[name]
            message = self._sealed(kind, intent, content, around, source, extra)
        return message

    def _sealed(
        self, kind: str, intent: str, content: Any, around: Mapping[str, Any], source: Agent,
        extra: Mapping[str, Any] | None,
    ) -> bytes:  # fmt: skip
        """A message whose content is sealed if the contract wants it, and then bound to the ids around it."""
        contract = self.contract
        if contract is None or not contract.encrypted:
            plain = content if type(content) is dict else {"result": content}
            return self._frame(kind, intent, {**plain, **around}, source=source, extra=extra)

        def ids(kid: str) -> bytes:
            return bound(
                kid, message_id=message_id(self.outgoing.delivery.id), source=source.agent_id, target=self.receiver,
                kind=kind, intent=intent, contract_id=around.get("contract_id"),
                correlation_id=around.get("correlation_id"),
            )  # fmt: skip

        payload = {**self.broker.shut(contract)(_encode(content), ids), **around}
        return self._frame(kind, intent, payload, source=source, encryption="aes256", extra=extra)

    def _forwarded(
        self, kind: str, ciphertext: Any, envelope: Json, source: Agent, extra: Mapping[str, Any],
        *, intent: str | None = None,
    ) -> bytes:  # fmt: skip
        """A ciphertext that only the two agents can open, in the envelope that it was made for."""
        payload = {**ciphertext, **{name: value for name, value in envelope.items() if name != "message_id"}}
        id, intent = envelope["message_id"], intent or self.task.type
        traced = {**payload, "traceparent": self._traceparent}
        message = self._frame(kind, intent, traced, source=source, encryption="aes256", id=id, extra=extra)
        if oversize(message):
            message = self._frame(kind, intent, payload, source=source, encryption="aes256", id=id, extra=extra)
        return message

    def _error(
        self, refusal: Refusal, correlation: str | None, intent: str | None, source: Agent | None = None,
        *, extra: Mapping[str, Any] | None = None,
    ) -> bytes:  # fmt: skip
        payload = refusal.payload(correlation)
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        return self._frame("error", intent, payload, source=source, extra=extra)


_BY_KIND: Mapping[MessageKind, Callable[[_Encoder], bytes]] = {
    MessageKind.WORK: _Encoder.work,
    MessageKind.HANDOFF: _Encoder.work,
    MessageKind.PROGRESS: _Encoder.progress,
    MessageKind.FAILURE: _Encoder.failure,
    MessageKind.CANCEL: lambda encoder: encoder.control(intents.CANCEL),
    MessageKind.PAUSE: lambda encoder: encoder.control(mapping.PAUSE),
    MessageKind.RESUME: lambda encoder: encoder.control(mapping.RESUME),
    MessageKind.PROPOSAL: _Encoder.proposal,
    MessageKind.ANSWER: _Encoder.answer,
    MessageKind.CONTRACT: _Encoder.contract_changed,
    MessageKind.DIRECT_MESSAGE: _Encoder.direct_message,
}


def _unknown(fields: Mapping[str, Any] | None) -> Json:
    """Fields beside the payload that the protocol does not know (all-D6)."""
    return {name: value for name, value in (fields or {}).items() if name not in ENVELOPE}


def _as_it_came(event: Event, kind: str) -> dict[str, msgspec.Raw]:
    """The fields of the message that an event came of, each as its bytes; none where it was not of this type."""
    came = {} if event.protocol != PROTOCOL or event.raw is None else _slices(event.raw)
    return came if bytes(came.get("message_type", b"")) == _encode(kind) else {}
