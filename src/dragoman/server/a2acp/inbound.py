"""A message of an a2acp agent becomes a command of the hub.

    message                                   command
    ----------------------------------------  -----------------------------------------------------------------------
    request discover_capabilities             none: it only reads (`contracts.discovered`)
    request initiate_handshake                ShakeHands
    response accept_handshake, or an error    AnswerHandshake
    request terminate_collaboration           EndContract
    request rotate_key                        RotateKey
    any other request                         Submit, under the contract that it names
    response, error to a request              Finish, ReportFault; its correlation id names the task
    event cancel                              Cancel, by the caller
    event progress                            ReportProgress, by the task's owner
    event question                            AskPerson, by the task's owner; the answer is an event `answer`
    any other event                           Tell: the hub carries it to its target. ReportProgress, by the task's
                                              owner, where the caller speaks a protocol without such events

`judge` has authenticated the sender, verified the token and opened the payload before. Every command names its message
(`seen`), and the seal of a payload that the hub opened: each counts once, also after a restart (D12, D15). A ciphertext
that only the two agents can open is passed on with the ids that it is bound to (`envelope`).
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

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
from dragoman.core.ids import SECOND, AgentId, Instant, QuestionId, TaskId, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract, Secret
from dragoman.core.model.deliveries import DirectMessage
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Kind, Refused, new_fault, refuse
from dragoman.protocols.a2acp import codec, errors, intents, mapping
from dragoman.protocols.a2acp.sealing import TAG_BYTES
from dragoman.protocols.a2acp.types import (
    ENVELOPE,
    PAYLOAD_BYTES,
    PROTOCOL,
    PROTOCOL_VERSION,
    RESERVED,
    Message,
    MessageType,
)
from dragoman.server.a2acp.contracts import patience
from dragoman.server.a2acp.frames import Broker, oversize
from dragoman.server.content import trace_id_in

CANCELLED = "cancelled on request"
LONGEST_REASON = 200
ATTEMPTS = 8
"""How often the hub offers an event to a receiver that does not acknowledge it, as with every other message."""
LONGEST_QUESTION = 366 * 24 * 3600
"""Seconds that a question may wait."""
LARGE = 200_000
"""Bytes of a message that may be too large when the hub sends it on: none becomes four times as long."""

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


class InboundMessage(NamedTuple):
    """A message and what the hub knows of it. `content` is its payload in clear, without the protocol's own fields; or,
    if `sealed`, the ciphertext that only its receiver can open."""

    agent: Agent
    message: Message
    tree: dict[str, Any]
    now: Instant
    granted: tuple[str, ...] = ()
    contract: Contract | None = None
    content: Any = None  # Any: the agents' own JSON
    sealed: bool = False
    task: TaskId | None = None
    handshake: QuestionId | None = None
    secret: Secret | None = None
    sealed_by: str | None = None
    traceparent: str | None = None
    thread: str | None = None
    """The correlation id by which the receiver of an event knows the request that it is about."""
    reports: bool = False
    """It is an event for a caller whose protocol has only progress for it."""
    size: int = 0
    """Bytes of the message as it came."""

    @property
    def payload(self) -> dict[str, Any]:
        return self.message.payload or {}

    @property
    def trace_id(self) -> str | None:
        """The trace that the payload names, else the transport's (all-D7)."""
        return trace_id_in(self.payload.get("traceparent"), self.traceparent)

    @property
    def extra(self) -> dict[str, Any]:
        """Unknown fields beside the payload: a receiver of the same protocol gets them, too (all-D6)."""
        return {name: value for name, value in self.tree.items() if name not in ENVELOPE}

    @property
    def private(self) -> bool:
        """Whether the hub must not keep its content as it came."""
        return self.contract is not None and (self.contract.encrypted or self.contract.offer.pii)

    @property
    def raw(self) -> bytes | None:
        """The message for the record, without the credential (all-D4); None for a private one."""
        if self.private:
            return None
        return _encode({**self.tree, "security": {"encryption": self.message.security.encryption}})

    @property
    def raw_around(self) -> bytes | None:
        """The same; of a private message its type and its unknown fields (all-D6), if it has any."""
        if not self.private or not self.extra:
            return self.raw
        return _encode({"message_type": self.message.message_type, **self.extra})

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The ids that its ciphertext is bound to, beside sender, receiver and intent."""
        if not self.sealed:
            return None
        bound = {name: id for name in ("contract_id", "correlation_id") if (id := self.payload.get(name)) is not None}
        return {"message_id": self.message.message_id, **bound}


def command_of(inbound: InboundMessage) -> Command:
    """The command of a message; raises `Refused`."""
    message = inbound.message
    match message.message_type, message.intent:
        case MessageType.REQUEST, intents.INITIATE:
            return _shake_hands(inbound)
        case MessageType.RESPONSE | MessageType.ERROR, intents.ACCEPT:
            return _answer_handshake(inbound)
        case MessageType.REQUEST, intents.TERMINATE:
            ended = msgspec.convert(message.payload, intents.Terminate)
            collaboration = ended.collaboration_id
            if collaboration is None:
                assert inbound.contract is not None
                collaboration = inbound.contract.collaboration
            return EndContract(
                principal=inbound.agent.id, protocol=PROTOCOL, seen=message.message_id, collaboration=collaboration,
                reason=(ended.reason or "")[:LONGEST_REASON],
            )  # fmt: skip
        case MessageType.REQUEST, intents.ROTATE:
            rotated = msgspec.convert(message.payload, intents.Rotate)
            assert inbound.secret is not None
            return RotateKey(
                principal=inbound.agent.id, protocol=PROTOCOL, seen=message.message_id,
                collaboration=rotated.collaboration_id, secret=inbound.secret,
            )  # fmt: skip
        case MessageType.REQUEST, _:
            return _submit(inbound)
        case MessageType.RESPONSE, _:
            return _finish(inbound)
        case MessageType.ERROR, _:
            return _report_fault(inbound)
        case _, intents.CANCEL:
            assert inbound.task is not None
            reason = str(inbound.payload.get("reason") or CANCELLED)[:LONGEST_REASON]
            return Cancel(
                principal=inbound.agent.id, protocol=PROTOCOL, seen=message.message_id, task_id=inbound.task,
                reason=reason,
            )  # fmt: skip
        case _, mapping.PROGRESS:
            return _report_progress(inbound)
        case _, mapping.QUESTION:
            return _ask_person(inbound)
        case _, mapping.ANSWER | mapping.PAUSE | mapping.RESUME:
            raise refuse(Kind.INVALID, f"the event {message.intent} comes from the broker only", field="intent")
    return _report_event(inbound) if inbound.reports else _tell(inbound)


# -- contracts


def _shake_hands(inbound: InboundMessage) -> ShakeHands:
    message = inbound.message
    asked = msgspec.convert(message.payload, intents.Initiate)
    return ShakeHands(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        request_id=message.message_id,
        digest=codec.fingerprint(inbound.tree).hex(),
        target=AgentId(asked.target_agent_id),
        intent=asked.requested_intent,
        domain=message.source_agent.domain,
        version=message.source_agent.version,
        target_version=asked.target_version,
        request_schema=asked.request_schema,
        response_schema=asked.response_schema,
        granted=inbound.granted,
        end_to_end=asked.mode == "end-to-end",
        encrypt=asked.encrypt,
        secret=inbound.secret,
        collaboration=asked.collaboration_id,
        correlation_id=message.thread,
    )


def _answer_handshake(inbound: InboundMessage) -> AnswerHandshake:
    """An agent that answers a proposal with an error declines it."""
    message = inbound.message
    if message.message_type is MessageType.ERROR:
        error = codec.error(message)
        decision = intents.Decision(accepted=False, reason=f"{error.code.value}: {error.message}")
    else:
        decision = msgspec.convert(message.payload, intents.Decision)
    assert inbound.handshake is not None
    return AnswerHandshake(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        question=inbound.handshake,
        accepted=decision.accepted,
        reason=(decision.reason or "")[:LONGEST_REASON],
        public_key=decision.public_key,
    )


# -- work


def _submit(inbound: InboundMessage) -> Submit:
    message, contract = inbound.message, inbound.contract
    assert contract is not None
    assert message.intent is not None
    seconds = patience(contract)
    deadline = Instant(inbound.now + int(seconds * SECOND))
    return Submit(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        request_id=message.message_id,
        digest=codec.fingerprint(inbound.tree).hex(),
        type=message.intent,
        content=messages.Request(input=inbound.content, envelope=inbound.envelope, extra=inbound.extra or None),
        raw=inbound.raw,
        protocol_version=message.protocol_version,
        called=message.correlation_id,
        sealed_by=inbound.sealed_by,
        routing=Routing(pinned=contract.target.agent),
        timing=Timing(deadline=deadline, idle_seconds=seconds, total_seconds=seconds),
        lineage=Lineage(trace_id=inbound.trace_id),
        agreement=Agreement(contract=contract.id, sealed=inbound.sealed),
    )


def check_room(inbound: InboundMessage, contract: Contract, broker: Broker) -> None:
    """Raises `Refused` for a request that no message to its target holds, with as little as the hub can put there.

    The hub puts its own names, token and task around a payload, and writes its JSON again (`1e15` becomes
    `1000000000000000.0`), so a message that was within the limits (D10) may leave them. Only a `LARGE` one can.
    """
    message, target = inbound.message, contract.target.agent
    payload = {"contract_id": contract.id, **(inbound.content or {})}
    if message.correlation_id is not None:
        payload["correlation_id"] = message.correlation_id
    if contract.encrypted and not inbound.sealed:
        assert contract.secret is not None
        ciphertext = "A" * -(-(len(_encode(inbound.content)) + TAG_BYTES) * 4 // 3)
        around = {name: payload[name] for name in ("contract_id", "correlation_id") if name in payload}
        payload = {
            "alg": "A256GCM", "kid": contract.secret.kid, "nonce": "A" * 16, "ciphertext": ciphertext, **around,
        }  # fmt: skip
    some_id = "0" * 36
    whole = {
        **inbound.extra,
        "task": {"id": some_id, "attempt": 99},
        "protocol_version": PROTOCOL_VERSION,
        "message_id": some_id,
        "timestamp": rfc3339(inbound.now),
        "source_agent": broker.party(inbound.agent.id),
        "target_agent": broker.party(target),
        "message_type": MessageType.REQUEST,
        "intent": message.intent,
        "payload": payload,
        "security": {"auth_token": broker.token(target), "encryption": message.security.encryption},
    }
    if large := oversize(_encode(whole)):
        over = large["size"] - large["limit"]
        what = f"sent on to {target}, it would be {over} bytes larger than a message may be"
        field = "payload" if large["limit"] == PAYLOAD_BYTES else None
        raise Refused(new_fault(Kind.TOO_LARGE, what, next="ask for less at a time", field=field, facts=large))


def _finish(inbound: InboundMessage) -> Finish:
    assert inbound.task is not None
    message = inbound.message
    offer = inbound.agent.offer(message.intent or "")
    is_free = inbound.contract is None and (offer is None or offer.output_schema is True)
    # Sent again after a lost answer, a result has another id and another time: it is the same by its content.
    digest = hashlib.sha256(_canonical(inbound.content)).hexdigest()
    return Finish(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        task_id=inbound.task,
        digest=digest,
        sealed_by=inbound.sealed_by,
        message_id=message.message_id,
        content=mapping.result_in(
            message, inbound.content, is_free=is_free, envelope=inbound.envelope, extra=inbound.extra or None
        ),
        raw=inbound.raw,
    )


def _report_fault(inbound: InboundMessage) -> ReportFault:
    assert inbound.task is not None
    error = codec.error(inbound.message)
    return ReportFault(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=inbound.message.message_id,
        fault=errors.fault_in(error, personal=inbound.private, agreed=inbound.contract is not None),
        task_id=inbound.task,
        message_id=inbound.message.message_id,
        raw=inbound.raw_around,
    )


def _report_progress(inbound: InboundMessage) -> ReportProgress:
    assert inbound.task is not None
    payload: dict[str, Any] = inbound.content if type(inbound.content) is dict else {}
    percent = payload.get("percent")
    is_percent = type(percent) in (int, float, type(None)) and 0 <= (percent or 0) <= 100
    _check("percent", is_percent, "expected a number from 0 to 100")
    for field in ("message", "output"):
        _check(field, type(payload.get(field)) in (str, type(None)), "expected a text")
    content = mapping.progress_in(payload, inbound.envelope)
    return ReportProgress(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=inbound.message.message_id,
        sealed_by=inbound.sealed_by,
        task_id=inbound.task,
        message_id=inbound.message.message_id,
        content=content,
        raw=inbound.raw_around,
        percent=content.percent,
        output=content.output or "",
    )


def _ask_person(inbound: InboundMessage) -> AskPerson:
    assert inbound.task is not None
    if inbound.sealed:
        raise refuse(
            Kind.FORBIDDEN,
            "only the two of you can read it, so no person can be asked",
            next="answer the request with what is missing",
            field="payload.ciphertext",
        )
    payload: dict[str, Any] = inbound.content if type(inbound.content) is dict else {}
    text, options, seconds = payload.get("question"), payload.get("options"), payload.get("timeout_seconds")
    is_patience = seconds is None or (type(seconds) in (int, float) and 0 < seconds <= LONGEST_QUESTION)
    _check("question", type(text) is str and text != "", "expected a text")
    _check("options", type(options) in (list, type(None)), "expected a list")
    _check("timeout_seconds", is_patience, f"expected a number of seconds up to {LONGEST_QUESTION}")
    return AskPerson(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=inbound.message.message_id,
        sealed_by=inbound.sealed_by,
        request_id=inbound.message.message_id,
        ask=mapping.ask_in(payload),
        task_id=inbound.task,
    )


def _check(field: str, fits: bool, what: str) -> None:
    if not fits:
        raise refuse(Kind.INVALID, what, field=f"payload.{field}", stage="shape")


# -- events of the agents' own


def _tell(inbound: InboundMessage) -> Tell:
    """The hub knows sender and receiver of such an event, and not its meaning."""
    message = inbound.message
    around = {name: value for name, value in inbound.payload.items() if name in RESERVED}
    if inbound.thread is not None:
        around["correlation_id"] = inbound.thread
    body: dict[str, Any] = {
        "intent": message.intent, "payload": inbound.content, "around": around, "task": inbound.task,
    }  # fmt: skip
    if inbound.sealed:
        body["envelope"] = inbound.envelope
    if inbound.extra:
        body["extra"] = inbound.extra
    contract = None if inbound.contract is None else inbound.contract.id
    return Tell(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=message.message_id,
        sealed_by=inbound.sealed_by,
        direct_message=DirectMessage(
            sender=inbound.agent.id,
            message_id=message.message_id,
            kind=message.intent or "event",
            digest=codec.fingerprint(inbound.tree).hex(),
            raw=msgspec.Raw(_encode(body)),
            protocol=PROTOCOL,
            attempts=ATTEMPTS,
            personal=inbound.private,
            contract=contract,
        ),
        to=AgentId(message.target_agent.agent_id),
        lane=inbound.task or (None if contract is None else TaskId(contract)),
    )


def _report_event(inbound: InboundMessage) -> ReportProgress:
    """A caller whose protocol has no such events gets the event as progress, with its name as the message."""
    assert inbound.task is not None
    return ReportProgress(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        seen=inbound.message.message_id,
        task_id=inbound.task,
        message_id=inbound.message.message_id,
        content=messages.Progress(message=inbound.message.intent or "event", event=inbound.content),
        raw=inbound.raw_around,
    )
