"""A message of an a2acp agent becomes a command of the hub.

    message                                   command
    ----------------------------------------  -----------------------------------------------------------------------
    request discover_capabilities             none: it only reads (`contracts.discovered`)
    request initiate_handshake                ShakeHands
    response accept_handshake                 AnswerHandshake
    request terminate_collaboration           EndContract
    request rotate_key                        RotateKey
    any other request                         Submit, on the contract that it names
    response, error to a request              Finish, ReportFault; the task is its correlation id
    event cancel                              Cancel, by whoever asked
    event progress                            ReportProgress, by whoever works (`percent`, `message`, `output`)
    event question                            AskPerson, by whoever works (`question`, `options`, `timeout_seconds`,
                                              `default`); the answer is an event of that name
    any other event                           Tell: it is carried to whom it is for. ReportProgress, by whoever works,
                                              where whoever asked speaks a protocol that has only that

Who speaks is known, the token is verified and the payload open when a message comes here; what remains is to say it in
the hub's words. Every command names its message (`seen`), and what came of a payload that the hub opened its seal: both
count once, also after a restart (D12, D15).

What only the two agents can read travels on as it is, with the ids that it is bound to (`envelope`).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from dragoman.core.commands import (
    Agreement,
    AnswerHandshake,
    AskPerson,
    Cancel,
    Command,
    EndContract,
    Finish,
    Lineage,
    ReportFault,
    ReportProgress,
    RotateKey,
    Routing,
    ShakeHands,
    Submit,
    Tell,
    Timing,
)
from dragoman.core.ids import SECOND, AgentId, Instant, TaskId
from dragoman.core.model.deliveries import DirectMessage
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.a2acp import codec, intents, mapping
from dragoman.protocols.a2acp.errors import fault_in
from dragoman.protocols.a2acp.types import RESERVED, Message, MessageType
from dragoman.server.a2acp.contracts import patience
from dragoman.server.a2acp.names import PROTOCOL
from dragoman.server.a2acp.said import Said

THE_BROKERS = frozenset({"answer", "pause", "resume"})
"""Events of ours that steer whoever works."""
CANCELLED = "cancelled on request"
_KEPT = 200
ATTEMPTS = 8
"""How often an event is offered to who does not acknowledge it, as everything else is."""
LONGEST = 366 * 24 * 3600
"""Seconds that a question may wait."""

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def command_of(said: Said) -> Command:
    """What an agent asks by this message; raises `Refused`."""
    message = said.message
    match message.message_type, message.intent:
        case MessageType.REQUEST, intents.INITIATE:
            return _shake_hands(said)
        case MessageType.RESPONSE, intents.ACCEPT:
            return _answer_handshake(said)
        case MessageType.REQUEST, intents.TERMINATE:
            ended = msgspec.convert(message.payload, intents.Terminate)
            named = ended.collaboration_id or (None if said.contract is None else said.contract.collaboration)
            assert named is not None
            return EndContract(
                principal=said.agent.id, protocol=PROTOCOL, seen=message.message_id, collaboration=named,
                reason=(ended.reason or "")[:_KEPT],
            )  # fmt: skip
        case MessageType.REQUEST, intents.ROTATE:
            rotated = msgspec.convert(message.payload, intents.Rotate)
            assert said.secret is not None
            return RotateKey(
                principal=said.agent.id, protocol=PROTOCOL, seen=message.message_id,
                collaboration=rotated.collaboration_id, secret=said.secret,
            )  # fmt: skip
        case MessageType.REQUEST, _:
            return _submit(said)
        case MessageType.RESPONSE, _:
            return _finish(said)
        case MessageType.ERROR, intents.ACCEPT:
            return _unable(said)
        case MessageType.ERROR, _:
            return _fault(said)
        case MessageType.EVENT, intents.CANCEL:
            assert said.task is not None
            reason = str(said.payload.get("reason") or CANCELLED)[:_KEPT]
            return Cancel(
                principal=said.agent.id, protocol=PROTOCOL, seen=message.message_id, task_id=said.task, reason=reason
            )
        case MessageType.EVENT, "progress":
            return _progress(said)
        case MessageType.EVENT, "question":
            return _question(said)
        case MessageType.EVENT, intent if intent in THE_BROKERS:
            raise refuse(Kind.INVALID, f"the event {intent} is only said by the broker", field="intent")
    return _reported(said) if said.reports else _event(said)


def _shake_hands(said: Said) -> ShakeHands:
    message = said.message
    asked = msgspec.convert(message.payload, intents.Initiate)
    return ShakeHands(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        request_id=message.message_id,
        digest=said.digest,
        target=AgentId(asked.target_agent_id),
        intent=asked.requested_intent,
        domain=message.source_agent.domain,
        version=message.source_agent.version,
        target_version=asked.target_version,
        request_schema=asked.request_schema,
        response_schema=asked.response_schema,
        granted=said.granted,
        end_to_end=asked.mode == "end-to-end",
        encrypt=asked.encrypt,
        secret=said.secret,
        collaboration=asked.collaboration_id,
        details={"correlation_id": message.thread},
    )


def _answer_handshake(said: Said) -> AnswerHandshake:
    message = said.message
    decision = msgspec.convert(message.payload, intents.Decision)
    return _decision(said, decision.accepted, decision.reason or "", decision.public_key)


def _unable(said: Said) -> AnswerHandshake:
    """An agent that answers a proposal with an error has declined it."""
    error = codec.error(said.message)
    return _decision(said, False, f"{error.code.value}: {error.message}", None)


def _decision(said: Said, accepted: bool, reason: str, public_key: str | None) -> AnswerHandshake:
    assert said.handshake is not None
    return AnswerHandshake(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=said.message.message_id,
        question=said.handshake,
        accepted=accepted,
        reason=reason[:_KEPT],
        public_key=public_key,
    )


# -- work --------------------------------------------------------------------------------------------------------


def _submit(said: Said) -> Submit:
    message, contract = said.message, said.contract
    assert contract is not None
    assert message.intent is not None
    seconds = patience(contract)
    envelope = _bound(message) if said.sealed else None
    return Submit(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        request_id=message.message_id,
        digest=said.digest,
        type=message.intent,
        content=messages.Request(input=said.content, envelope=envelope, extra=said.extra or None),
        raw=said.raw,
        protocol_version=message.protocol_version,
        called=message.correlation_id,
        sealed_by=said.sealed_by,
        routing=Routing(pinned=contract.target.agent),
        timing=Timing(deadline=Instant(said.now + int(seconds * SECOND)), idle_seconds=seconds, total_seconds=seconds),
        lineage=Lineage(trace_id=said.trace_id),
        agreement=Agreement(contract=contract.id, sealed=said.sealed),
    )


def _finish(said: Said) -> Finish:
    assert said.task is not None
    message = said.message
    says = type(message.value_in) in (str, type(None))  # which field holds what it returned
    result, output = said.content, None
    if not said.sealed and not says and type(result) is dict and type(result.get("output")) is str:
        output = result["output"]  # other protocols have a place for the text of a result
        if len(result) == 1 and _is_free(said):
            result = msgspec.UNSET  # and nothing is said but that
    content = messages.Result(
        result=result,
        output=output,
        value_in=message.value_in if says else msgspec.UNSET,
        usage=message.usage if type(message.usage) is dict else None,
        envelope=_bound(message) if said.sealed else None,
        extra=said.extra or None,
    )
    # What a result is, is what it says: sent again after a lost answer it has another id and another time.
    digest = hashlib.sha256(_canonical(said.content)).hexdigest()
    return Finish(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        task_id=said.task,
        digest=digest,
        sealed_by=said.sealed_by,
        message_id=message.message_id,
        content=content,
        raw=said.raw,
    )


def _is_free(said: Said) -> bool:
    """Whether nobody was promised what form a result has."""
    offer = said.agent.offer(said.message.intent or "")
    return said.contract is None and (offer is None or offer.output_schema is True)


def _fault(said: Said) -> ReportFault:
    assert said.task is not None
    fault = fault_in(codec.error(said.message), personal=said.private, agreed=said.contract is not None)
    return ReportFault(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=said.message.message_id,
        fault=fault,
        task_id=said.task,
        message_id=said.message.message_id,
        raw=said.around,
    )


def _progress(said: Said) -> ReportProgress:
    assert said.task is not None
    told: dict[str, Any] = said.content if type(said.content) is dict else {}
    percent, words, output = told.get("percent"), told.get("message"), told.get("output")
    for field, fits in (
        ("percent", type(percent) in (int, float, type(None)) and 0 <= (percent or 0) <= 100),
        ("message", type(words) in (str, type(None))),
        ("output", type(output) in (str, type(None))),
    ):
        if not fits:
            what = "expected a number from 0 to 100" if field == "percent" else "expected a text"
            raise refuse(Kind.INVALID, what, field=f"payload.{field}", stage="shape")
    content = mapping.progress_in(told, _bound(said.message) if said.sealed else None)
    return ReportProgress(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=said.message.message_id,
        sealed_by=said.sealed_by,
        task_id=said.task,
        message_id=said.message.message_id,
        content=content,
        raw=said.around,
        percent=content.percent,
        output=content.output or "",
    )


def _event(said: Said) -> Tell:
    """An event of the agents' own: the hub knows what to whom, and not what for."""
    message = said.message
    around = {name: value for name, value in said.payload.items() if name in RESERVED}
    if said.thread is not None:
        around["correlation_id"] = said.thread
    body: dict[str, Any] = {"intent": message.intent, "payload": said.content, "around": around, "task": said.task}
    if said.sealed:
        body["envelope"] = _bound(message)
    if said.extra:
        body["extra"] = said.extra
    contract = None if said.contract is None else said.contract.id
    return Tell(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        sealed_by=said.sealed_by,
        direct_message=DirectMessage(
            sender=said.agent.id,
            message_id=message.message_id,
            kind=message.intent or "event",
            digest=said.digest,
            body=msgspec.Raw(_encode(body)),
            protocol=PROTOCOL,
            attempts=ATTEMPTS,
            personal=said.private,
            contract=contract,
        ),
        to=AgentId(message.target_agent.agent_id),
        lane=said.task or (None if contract is None else TaskId(contract)),
    )


def _reported(said: Said) -> ReportProgress:
    """The same for a caller of a protocol without events: that it happened is progress in words."""
    assert said.task is not None
    name = said.message.intent or "event"
    return ReportProgress(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=said.message.message_id,
        task_id=said.task,
        message_id=said.message.message_id,
        content=messages.Progress(message=name, event=said.content),
        raw=said.around,
    )


def _question(said: Said) -> AskPerson:
    assert said.task is not None
    if said.sealed:
        what = "only the two of you can read it, so no person can be asked; answer the request with what is missing"
        raise refuse(Kind.FORBIDDEN, what, field="payload.ciphertext")
    told: dict[str, Any] = said.content if type(said.content) is dict else {}
    words, options, seconds = told.get("question"), told.get("options"), told.get("timeout_seconds")
    for field, fits, what in (
        ("question", type(words) is str and words, "expected a text"),
        ("options", type(options) in (list, type(None)), "expected a list"),
        (
            "timeout_seconds",
            seconds is None or (type(seconds) in (int, float) and 0 < seconds <= LONGEST),
            f"expected a number of seconds up to {LONGEST}",
        ),
    ):
        if not fits:
            raise refuse(Kind.INVALID, what, field=f"payload.{field}", stage="shape")
    return AskPerson(
        principal=said.agent.id,
        protocol=PROTOCOL,
        seen=said.message.message_id,
        sealed_by=said.sealed_by,
        request_id=said.message.message_id,
        ask=mapping.ask_in(told),
        task_id=said.task,
    )


def _bound(message: Message) -> dict[str, Any]:
    """The ids that a ciphertext is bound to, beside who speaks to whom about what."""
    payload = message.payload or {}
    named = {name: payload[name] for name in ("contract_id", "correlation_id") if payload.get(name) is not None}
    return {"message_id": message.message_id, **named}
