"""A parcel of the hub becomes an a2acp message.

    cargo      message                                                        from
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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.bindings.a2acp.contracts import drafted, terms_of
from dragoman.bindings.a2acp.failures import refusal_of
from dragoman.bindings.a2acp.inbound import ENVELOPE
from dragoman.bindings.a2acp.names import PROTOCOL, message_id, thread_of
from dragoman.bindings.told import context_told, fault_told, file_told, limits_told
from dragoman.core.contracts.model import Contract, Standing
from dragoman.core.delivery.model import Cargo, Letter, Parcel
from dragoman.core.errors import Fault, Kind, Refused
from dragoman.core.ids import AgentId, Instant, rfc3339
from dragoman.core.tasks.model import Asking, Event, EventKind, Question, QuestionStatus, Task
from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import Refusal
from dragoman.protocols.a2acp.sealing import KeyGrant, bound
from dragoman.protocols.a2acp.types import MESSAGE_BYTES, PAYLOAD_BYTES, PROTOCOL_VERSION, RESERVED, Agent

REQUEST, RESPONSE, EVENT, ERROR = "request", "response", "event", "error"
_SHORT = 4096
"""Bytes of an ending that may have no result in it."""
_ADDED = 200
"""Bytes that the hub puts into the payload of an answer which had room for nothing more: what it is about."""

_parse = msgspec.json.Decoder(dict[str, Any]).decode
_slices = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_NOTHING = msgspec.Raw(b"{}")

Shut = Callable[[bytes, Callable[[str], bytes]], dict[str, str]]
"""Seals a payload; what it is bound to depends on the key's name."""


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """What a message needs and a pure layer cannot make or know."""

    broker: Agent
    party: Callable[[AgentId], Agent]
    """An agent as others are told of it; the broker for whoever is none."""
    called: Callable[[Task], str]
    """What the agent that works on a task knows it by."""
    token: Callable[[str], str]
    """The broker's word, for one receiver."""
    shut: Callable[[Contract], Shut]
    grant: Callable[[Contract, AgentId], KeyGrant | None]


def wanted(parcel: Parcel) -> str | None:
    """The contract that the words of a parcel need."""
    cargo = parcel.delivery.cargo
    if cargo is Cargo.ANSWER and parcel.event.about is Asking.HANDSHAKE:
        answer = parcel.event.answer
        return answer.get("contract_id") if type(answer) is dict else None
    if cargo is Cargo.LETTER:
        letter: Letter = parcel.event
        return letter.contract
    return None if parcel.task is None else parcel.task.contract


def failure_in(parcel: Parcel) -> Fault | None:
    """Why what was asked came to nothing, where the parcel is the answer to it."""
    if parcel.delivery.cargo is Cargo.ANSWER:
        fault = parcel.event.answer.get("fault")
        return None if fault is None else msgspec.convert(fault, Fault)
    return parcel.task.fault  # type: ignore[no-any-return]


def ends_in_pieces(event: Event) -> bool:
    """Whether an ending has no result of its own, but an output that came before it in pieces."""
    if event.kind is not EventKind.COMPLETED:
        return False
    data = bytes(event.body)
    if len(data) > _SHORT and b'"chunk"' not in data:
        return False
    body = _parse(data)
    return body.get("result") is None and (body.get("chunk") is not None or not body.get("output"))


def wire_of(
    parcel: Parcel,
    receiver: AgentId,
    now: Instant,
    voice: Voice,
    contract: Contract | None,
    *,
    whole: str | None = None,
) -> bytes:
    """The message of a parcel. `contract` is what `wanted` named; `whole` is the output of what `ends_in_pieces`.
    Raises `Refused` for work that no message holds.

    Who took a task over from somebody else is no party to the contract that it was asked under. What that contract
    wants sealed stays so: it can then say no more than that it cannot read it.
    """
    if contract is not None and receiver not in contract.parties and not contract.encrypted:
        contract = None
    said = _Saying(parcel, receiver, now, voice, contract)
    if parcel.delivery.cargo is Cargo.RESULT:
        return _result(said, whole)
    return _WORDS[parcel.delivery.cargo](said)


class _Saying:
    """One message being made."""

    def __init__(
        self, parcel: Parcel, receiver: AgentId, now: Instant, voice: Voice, contract: Contract | None
    ) -> None:
        self.parcel = parcel
        self.receiver = receiver
        self.now = now
        self.voice = voice
        self.contract = contract
        self.id = message_id(parcel.delivery.id)

    @property
    def task(self) -> Task:
        task: Task = self.parcel.task
        return task

    @property
    def event(self) -> Event:
        event: Event = self.parcel.event
        return event

    @property
    def traceparent(self) -> str:
        return f"00-{self.task.trace_id}-{self.parcel.delivery.id.replace('-', '')[16:]}-01"

    @property
    def personal(self) -> bool:
        return self.task.personal or (self.contract is not None and self.contract.encrypted)

    def say(
        self,
        kind: str,
        intent: str | None,
        payload: Mapping[str, Any],
        *,
        source: Agent | None = None,
        encryption: str = "none",
        id: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        voice = self.voice
        message: dict[str, Any] = dict(extra or {})
        message |= {
            "protocol_version": PROTOCOL_VERSION,
            "message_id": id or self.id,
            "timestamp": rfc3339(self.now),
            "source_agent": source or voice.broker,
            "target_agent": voice.party(self.receiver),
            "message_type": kind,
        }
        if intent is not None:
            message["intent"] = intent
        message["payload"] = payload
        message["security"] = {"auth_token": voice.token(self.receiver), "encryption": encryption}
        return _encode(message)

    def converse(
        self,
        kind: str,
        intent: str,
        content: Any,
        correlation: str,
        *,
        source: Agent,
        extra: Mapping[str, Any] | None = None,
        spare: Sequence[str] = ("traceparent",),
    ) -> bytes:
        """What one agent says to another: sealed where their contract wants it. `spare`: what of the hub's own stays
        behind where the payload has no room for it."""
        around: dict[str, Any] = {"correlation_id": correlation, "traceparent": self.traceparent}
        if self.contract is not None:
            around["contract_id"] = self.contract.id
        message = self._around(kind, intent, content, around, source, extra)
        for name in spare:
            if len(message) <= PAYLOAD_BYTES or len(_slices(message)["payload"]) <= PAYLOAD_BYTES:
                break
            del around[name]
            message = self._around(kind, intent, content, around, source, extra)
        return message

    def _around(
        self,
        kind: str,
        intent: str,
        content: Any,
        around: Mapping[str, Any],
        source: Agent,
        extra: Mapping[str, Any] | None,
    ) -> bytes:
        contract = self.contract
        if contract is None or not contract.encrypted:
            plain = content if type(content) is dict else {"result": content}
            return self.say(kind, intent, {**plain, **around}, source=source, extra=extra)

        def ids(kid: str) -> bytes:
            return bound(
                kid, message_id=self.id, source=source.agent_id, target=self.receiver, kind=kind,
                intent=intent, contract_id=contract.id, correlation_id=around.get("correlation_id"),
            )  # fmt: skip

        sealed = self.voice.shut(contract)(_encode(content), ids)
        return self.say(kind, intent, {**sealed, **around}, source=source, encryption="aes256", extra=extra)

    def forward(
        self, kind: str, sealed: Any, envelope: dict[str, Any], *, source: Agent, extra: Mapping[str, Any]
    ) -> bytes:
        """A ciphertext that only the two agents can open, in the envelope that it was made for."""
        named = {name: value for name, value in envelope.items() if name != "message_id"}
        payload = {**sealed, **named, "traceparent": self.traceparent}
        id, intent = envelope["message_id"], self.task.type
        return self.say(kind, intent, payload, source=source, encryption="aes256", id=id, extra=extra)

    def complain(self, refusal: Refusal, correlation: str | None, intent: str | None, source: Agent | None) -> bytes:
        payload = refusal.payload(correlation)
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        return self.say(ERROR, intent, payload, source=source)

    def repeat(self, refusal: Refusal, source: Agent) -> bytes:
        """An agent's own error, with the fields of it that nobody here knows, as long as a message holds them."""
        came = _came(self.event, ERROR)
        words = _slices(came.get("payload", _NOTHING))
        error = _slices(words.get("error", _NOTHING))
        payload: dict[str, Any] = {name: value for name, value in words.items() if name not in RESERVED}
        payload |= refusal.payload(thread_of(self.task))
        payload["error"] = {**error, **payload["error"]}
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        extra = {name: value for name, value in came.items() if name not in ENVELOPE}
        message = self.say(ERROR, self.task.type, payload, source=source, extra=extra)
        if not oversize(message):
            return message
        return self.complain(refusal, thread_of(self.task), self.task.type, source)


def oversize(message: bytes) -> dict[str, int]:
    """The limit that a message exceeds (D10), and by what; nothing where it exceeds none."""
    if len(message) <= PAYLOAD_BYTES:
        return {}
    size = len(_slices(message)["payload"])
    if size > PAYLOAD_BYTES + _ADDED:
        return {"limit": PAYLOAD_BYTES, "size": size}
    return {"limit": MESSAGE_BYTES, "size": len(message)} if len(message) > MESSAGE_BYTES else {}


# -- to whoever works --------------------------------------------------------------------------------------------


def _work(said: _Saying) -> bytes:
    task, body = said.task, _parse(said.event.body)
    source = said.voice.party(task.origin.principal)
    if said.contract is not None and said.contract.end_to_end and "envelope" in body:
        extra = _unknown(body) | {"task": {"id": task.id}}
        return said.forward(REQUEST, body["input"], body["envelope"], source=source, extra=extra)
    content = body.get("input")
    if type(content) is not dict:
        content = {} if content is None else {"input": content}
    aside: dict[str, Any] = {name: body[name] for name in ("answer", "handover") if name in body}
    if body.get("attachments"):
        aside["attachments"] = [file_told(file, task) for file in body["attachments"]]
    extra = _unknown(body) | _besides(task, {} if said.personal else body)
    name = said.voice.called(task)
    # One that its caller did not give it can be answered by the message's id as well.
    spare = ("traceparent",) if name == task.origin.called else ("traceparent", "correlation_id")
    words = {**content, **aside}
    message = said.converse(REQUEST, task.type, words, name, source=source, extra=extra, spare=spare)
    if large := oversize(message):
        what = f"the work is larger than a message to {said.receiver} may be; ask for less at a time"
        raise Refused(Fault(kind=Kind.TOO_LARGE, message=what, facts=large))
    return message


def _unknown(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields beside the payload that nobody here knows, of whoever spoke this protocol (all-D6)."""
    extra = body.get("extra")
    return {name: value for name, value in extra.items() if name not in ENVELOPE} if type(extra) is dict else {}


def _came(event: Event, kind: str) -> dict[str, msgspec.Raw]:
    """The fields of the message that an event came of, each as its bytes; none where it was not of this kind."""
    came = {} if event.protocol != PROTOCOL or event.raw is None else _slices(event.raw)
    return came if bytes(came.get("message_type", b"")) == _encode(kind) else {}


def _besides(task: Task, body: Mapping[str, Any]) -> dict[str, Any]:
    """Which task it is, what other protocols say of it and this one has no word for, and that it was begun before: in a
    field of ours beside the payload. It travels in clear: what is known around personal work stays behind."""
    around = {"context": context_told(task, body), "limits": limits_told(task, body)} if body else {}
    named = ("id", "name", "description", "thread") if not task.personal else ("id",)
    known = {name: getattr(task, name) for name in named if getattr(task, name)}
    if task.attempts > 1:
        known["attempt"] = task.attempts
    return {"task": known | {name: value for name, value in around.items() if value}}


def _control(intent: str) -> Callable[[_Saying], bytes]:
    def say(said: _Saying) -> bytes:
        payload: dict[str, Any] = {"correlation_id": _thread_towards(said)}
        if said.contract is not None:
            payload["contract_id"] = said.contract.id
        reason = fault_told(_parse(said.event.body), said.task, said.event).message if intent == intents.CANCEL else ""
        if reason:
            payload["reason"] = reason
        return said.say(EVENT, intent, payload, extra={"task": {"id": said.task.id}})

    return say


def _thread_towards(said: _Saying) -> str:
    """What the agent that works knows the task by."""
    sealed = said.contract is not None and said.contract.end_to_end
    return thread_of(said.task) if sealed else said.voice.called(said.task)


# -- to whoever asked --------------------------------------------------------------------------------------------


def _result(said: _Saying, whole: str | None) -> bytes:
    task, event = said.task, said.event
    if event.kind is not EventKind.COMPLETED:
        return _failure(said)
    body = _parse(event.body)
    source = said.voice.party(event.agent or task.owner or AgentId(""))
    result = body.get("result")
    if said.contract is not None and said.contract.end_to_end and "envelope" in body:
        return said.forward(RESPONSE, result, body["envelope"], source=source, extra=_unknown(body))
    if result is None or type(result) is str:
        output = result or whole or body.get("output")
        result = {} if output is None else {"output": str(output)}
    extra = _unknown(body) if event.protocol == PROTOCOL else None
    message = said.converse(RESPONSE, task.type, result, thread_of(task), source=source, extra=extra)
    large = oversize(message)
    return _too_long(said, large) if large else message


def _too_long(said: _Saying, large: Mapping[str, int]) -> bytes:
    """The work is done, and what came of it is more than a message may have (D10). Half of it would be nothing."""
    what = "the result is larger than a message may be; people find it with the task"
    facts = {**large, "task_id": said.task.id}
    fault = Fault(kind=Kind.TOO_LARGE, message=what, facts=facts)
    return said.complain(refusal_of(fault), thread_of(said.task), said.task.type, None)


def _failure(said: _Saying) -> bytes:
    task, event = said.task, said.event
    fault = fault_told(_parse(event.body), said.task, event)
    refusal = refusal_of(fault, personal=said.personal)
    if event.protocol != PROTOCOL or event.agent is None:
        return said.complain(refusal, thread_of(task), task.type, None)
    return said.repeat(refusal, said.voice.party(event.agent))


def _progress(said: _Saying) -> bytes:
    task, event = said.task, said.event
    body = _parse(event.body)
    told = {name: value for name, value in body.items() if name not in ("chunk", "stream") and value is not None}
    if "file" in told:
        told["file"] = file_told(told["file"], task)
    if event.kind is EventKind.ASKED:
        told = {"message": f"Waiting for an answer: {body.get('question')}"}
    elif event.kind is not EventKind.PROGRESS and not (event.kind is EventKind.PAUSED and told.get("message")):
        told = {"message": event.kind.value.replace("_", " ")}
    source = said.voice.party(event.agent) if event.agent is not None else said.voice.broker
    extra = {name: value for name, value in _came(event, EVENT).items() if name not in ENVELOPE}
    if said.contract is not None and said.contract.end_to_end:
        told = {name: value for name, value in told.items() if name == "percent"}
        payload = {**told, "correlation_id": thread_of(task), "contract_id": said.contract.id}
        return said.say(EVENT, "progress", payload, source=source, extra=extra)
    message = said.converse(EVENT, "progress", told, thread_of(task), source=source, extra=extra)
    if large := oversize(message):  # in other protocols a sign of life may be of any size
        told = {"message": "it is larger than a message may be", **large}
        message = said.converse(EVENT, "progress", told, thread_of(task), source=source)
    return message


# -- beside all requests -----------------------------------------------------------------------------------------


def _event(said: _Saying) -> bytes:
    """What another agent says of its own accord."""
    letter: Letter = said.parcel.event
    source, body = said.voice.party(letter.sender), _parse(letter.body)
    if letter.protocol != PROTOCOL:
        return _foreign(said, letter, body.get("payload"), source)
    intent, content, around, extra = body["intent"], body["payload"], body["around"], _unknown(body)
    envelope, contract = body.get("envelope"), said.contract
    if envelope is not None:
        id = envelope["message_id"]
        return said.say(EVENT, intent, {**content, **around}, source=source, encryption="aes256", id=id, extra=extra)
    if contract is None and letter.personal:
        content = {}  # its contract was forgotten: nothing of it goes out in clear
    if contract is None or not contract.encrypted:
        return said.say(EVENT, intent, {**content, **around}, source=source, extra=extra)

    def ids(kid: str) -> bytes:
        return bound(
            kid, message_id=said.id, source=source.agent_id, target=said.receiver, kind=EVENT, intent=intent,
            contract_id=around.get("contract_id"), correlation_id=around.get("correlation_id"),
        )  # fmt: skip

    sealed = said.voice.shut(contract)(_encode(content), ids)
    return said.say(EVENT, intent, {**sealed, **around}, source=source, encryption="aes256", extra=extra)


def _foreign(said: _Saying, letter: Letter, content: Any, source: Agent) -> bytes:
    message = said.say(EVENT, letter.kind, content if type(content) is dict else {"payload": content}, source=source)
    large = oversize(message)
    if not large:
        return message
    return said.say(EVENT, letter.kind, {"message": "it is larger than a message may be", **large}, source=source)


# -- contracts ---------------------------------------------------------------------------------------------------


def _proposal(said: _Saying) -> bytes:
    question: Question = said.parcel.event
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


def _answer(said: _Saying) -> bytes:
    question: Question = said.parcel.event
    return _handshake(said, question) if question.about is Asking.HANDSHAKE else _answered(said, question)


def _answered(said: _Saying, question: Question) -> bytes:
    """What a person said to an event `question`, or that nobody did in time."""
    told: dict[str, Any] = {"question_id": question.request_id, "question": question.question}
    if question.status is QuestionStatus.ANSWERED or question.has_default:
        told["answer"] = question.answer
    else:
        told["timed_out"] = True
    extra = {"task": {"id": said.task.id}}
    return said.converse(EVENT, "answer", told, _thread_towards(said), source=said.voice.broker, extra=extra)


def _handshake(said: _Saying, question: Question) -> bytes:
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


def _news(said: _Saying) -> bytes:
    contract: Contract = said.parcel.event
    if contract.standing is Standing.TERMINATED:
        return said.say(EVENT, intents.TERMINATE, terminated(contract))
    if contract.rotated_at is not None and said.parcel.delivery.created_at >= contract.rotated_at:
        return said.say(EVENT, intents.ROTATE, rotated(contract, said.receiver, said.voice))
    return said.say(EVENT, intents.ACCEPT, established(contract, said.receiver, said.voice, None))


_WORDS: Mapping[Cargo, Callable[[_Saying], bytes]] = {
    Cargo.WORK: _work,
    Cargo.YOURS: _work,
    Cargo.PROGRESS: _progress,
    Cargo.FAILURE: _failure,
    Cargo.CANCEL: _control(intents.CANCEL),
    Cargo.PAUSE: _control("pause"),
    Cargo.RESUME: _control("resume"),
    Cargo.PROPOSAL: _proposal,
    Cargo.ANSWER: _answer,
    Cargo.CONTRACT: _news,
    Cargo.LETTER: _event,
}
