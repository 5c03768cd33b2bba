"""An agent's link in a2acp, over a channel.

    the engine sends    a2acp                                     the hub sends                        the engine gets
    ------------------  ----------------------------------------  -----------------------------------  ---------------
    Report              event progress; sealed where the          request                              Assignment
                        contract wants it                         request accept_handshake             Proposal
    Question            event question                            event cancel, pause, resume          Cancel, …
    Outcome             response, or error by one of the codes    event answer                         Answer
    Decline             error                                     an error as answer to a POST         Refused
    ProposalAnswer      response accept_handshake                 a success as answer to a POST        Accepted
    (on opening)        POST /a2acp/agents                        events about contracts               -, the key ring
                                                                  responses, other errors              -, the caller

An answer that is sent again is a new message with a new time, for the broker takes an id once and only for minutes; by
its correlation id it is the same answer. A report or question is sent again under its own id: it counts once.

Errors travel in clear. Under a contract about personal data an error has only what a handler says on purpose
(`task.reject`, a `CallFailed`); the message of another exception stays in the agent's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.messages import tasks
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp import codec, intents, mapping
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.a2acp.errors import TABLE, Code, Refusal
from dragoman.protocols.a2acp.types import PROTOCOL, ROUTING_SECONDS, Agent, Message, MessageType
from dragoman.sdk import trace
from dragoman.sdk.a2acp.channel import Answered, Channel, Unwritten, Write
from dragoman.sdk.a2acp.identity import BROKER, Identity
from dragoman.sdk.a2acp.keyring import Pair, Unopened
from dragoman.sdk.errors import NotSupported
from dragoman.sdk.links import Frame, Introduction, ProtocolCapabilities
from dragoman.sdk.messages import (
    PRIVATE,
    Accepted,
    Answer,
    Assignment,
    Cancel,
    Correlation,
    Decline,
    Inbound,
    Outbound,
    Outcome,
    Pause,
    Proposal,
    ProposalAnswer,
    Question,
    Refused,
    Report,
    Resume,
    failure,
    part,
)
from dragoman.sdk.peers import HandshakeRequest
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.outcome import TIMED_OUT

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(name=PROTOCOL, words_are_receipts=False)
PIECE = 256 * 1024
"""Characters of output in one event: even sealed, and all of them written as escapes, it fits."""
MARGIN = 2.0
"""Seconds that the hub waits longer than a handler may take, so that the agent itself reports a timeout."""
MOST_TRIES = 3
STEERING: dict[str | None, type[Pause | Resume]] = {mapping.PAUSE: Pause, mapping.RESUME: Resume}
SEALED, PERSONAL, THREAD = "sealed", "personal", "thread"
"""In `Correlation.about`: the answer is sealed; errors have no message of an exception; the id that is answered."""


class Memory(msgspec.Struct):
    """What outlives a link: proposals that wait for an answer, and the key pairs of their answers."""

    proposals: dict[str, Message] = {}
    offers: dict[str, Pair] = {}


class A2acpLink:
    """`links.Link` in a2acp."""

    def __init__(self, channel: Channel, identity: Identity, memory: Memory) -> None:
        self._channel = channel
        self._identity = identity
        self._runtime: Runtime = identity.runtime
        self._memory = memory
        self._capabilities: dict[str, Capability] = {}
        self._sent: dict[str, tuple[Outbound, int]] = {}
        self._renewing: set[str] = set()

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return PROTOCOL_CAPABILITIES

    async def open(self, who: Introduction) -> None:
        identity = self._identity
        await identity.find_domain()
        self._capabilities = {one.intent: one for one in map(capability_of, who.capabilities)}
        registration = {
            **msgspec.to_builtins(identity.me),
            "capabilities": list(self._capabilities.values()),
            "max_concurrent": who.concurrency,
        }
        await identity.post.register(msgspec.json.encode(registration))
        await self._channel.open()
        if identity.caller is not None:
            identity.caller.attach(self._channel)

    async def receive(self) -> Sequence[Inbound]:
        while True:
            inbound: list[Inbound] = []
            for received in await self._channel.receive():
                match received:
                    case Frame():
                        inbound += self._decoded(received)
                    case Accepted():
                        inbound += self._accepted(received)
                    case Answered():
                        inbound += self._answered(received)
                    case Unwritten():
                        inbound += self._unwritten(received)
            if inbound:
                return inbound

    def acknowledge(self, receipt: str) -> None:
        self._channel.acknowledge(receipt)

    def send(self, message: Outbound) -> None:
        self._send(message, 1)

    async def drain(self) -> None:
        """The engine itself bounds what it has under way."""

    def quiesce(self) -> None:
        """The hub keeps further work; the answers to the agent's own calls still have to come."""
        if self._identity.caller is None:
            self._channel.quiesce()

    async def close(self) -> None:
        if self._identity.caller is not None:
            self._identity.caller.detach()
        await self._channel.close()

    # --- in ---

    def _decoded(self, frame: Frame) -> Iterator[Inbound]:
        message = self._identity.read(frame.data)
        if message is None:
            return self._drop(frame)
        kind, intent, receipt = message.message_type, message.intent, frame.receipt
        if kind is MessageType.REQUEST and intent == intents.ACCEPT:
            self._memory.proposals[message.thread] = message
            yield proposal_of(message, receipt)
        elif kind is MessageType.REQUEST:
            yield from self._work(message, frame)
        elif kind is MessageType.EVENT and intent == intents.CANCEL:
            reason = (message.payload or {}).get("reason") or "cancelled"
            yield Cancel(task_id=_task_id(message, frame), reason=reason, receipt=receipt)
        elif kind is MessageType.EVENT and intent in STEERING:
            yield STEERING[intent](task_id=_task_id(message, frame), receipt=receipt)
        elif kind is MessageType.EVENT and intent == mapping.ANSWER:
            yield from self._answer(message, frame)
        else:
            caller = self._identity.caller
            is_known = self._identity.contract_changed(message)
            is_known = (caller is not None and caller.receive(message)) or is_known
            if not is_known:
                log.info("the hub sent %s %s, and nothing waits for it", kind.value, intent)
            self._drop(frame)

    def _drop(self, frame: Frame) -> None:
        if frame.receipt is not None:
            self.acknowledge(frame.receipt)

    def _work(self, message: Message, frame: Frame) -> Iterator[Inbound]:
        try:
            opened = self._identity.opened(message)
        except Unopened as error:
            self._locked(message, frame, error)
            return
        capability = self._capabilities.get(message.intent or "")
        work = work_of(opened, frame, capability, self._runtime.mint())
        if self._identity.ring.is_private(message.contract_id):
            work.correlation.about[PRIVATE] = "yes"
        yield work

    def _answer(self, message: Message, frame: Frame) -> Iterator[Inbound]:
        """A person's answer. One that is sealed with a lost key comes again when the work is begun again."""
        try:
            answer = mapping.answer_in(self._identity.opened(message).payload or {})
        except Unopened as error:
            log.warning("an answer stays shut: %s", error)
            return self._drop(frame)
        task_id = _task_id(message, frame)
        yield Answer(id=answer.question_id, task_id=task_id, answer=answer.answer, receipt=frame.receipt)

    def _locked(self, message: Message, frame: Frame, error: Unopened) -> None:
        """Work that cannot be opened. If the key is lost, ask for a new one: the hub seals the work with it."""
        collaboration = self._identity.ring.collaboration(message.contract_id)
        log.warning("a request of %s stays shut: %s", message.source_agent.agent_id, error)
        id = self._runtime.mint()
        if error.is_lost and collaboration is not None and collaboration not in self._renewing:
            self._renewing.add(collaboration)
            pair = Pair()
            self._identity.ring.replace(collaboration, pair)
            body = intents.Rotate(collaboration_id=collaboration, public_key=pair.public_key)
            self._channel.send(id, id, self._identity.ask_broker(intents.ROTATE, body, correlation_id=id))
            return
        what = "the payload cannot be opened here; shake hands again"
        refusal = Refusal(code=Code.SECURITY_POLICY_VIOLATION, message=what, details={"field": "payload"})
        write = self._identity.write(
            MessageType.ERROR,
            id=id,
            to=message.source_agent,
            intent=message.intent,
            payload=_under(message.contract_id, refusal.payload(message.thread)),
            correlation_id=message.thread,
        )
        self._channel.send(id, message.thread, write)
        self._drop(frame)

    # --- what became of the agent's messages ---

    def _accepted(self, accepted: Accepted) -> Iterator[Inbound]:
        caller = self._identity.caller
        for id in accepted.ids:
            self._sent.pop(id, None)
            if caller is None or not caller.accepted(id):
                yield Accepted((id,))

    def _answered(self, answered: Answered) -> Iterator[Inbound]:
        message = self._identity.read(answered.data)
        if message is None:
            return
        if answered.is_refusal:
            yield from self._refused(answered.id, message)
            return
        self._identity.contract_changed(message)
        if message.message_type is MessageType.RESPONSE and message.intent == intents.ROTATE:
            self._rotated(message)
        if self._identity.caller is not None:
            self._identity.caller.receive(message)

    def _rotated(self, message: Message) -> None:
        """The answer to a key request of this link's own."""
        body = msgspec.convert(message.payload, intents.Rotated)
        self._renewing.discard(body.collaboration_id)
        try:
            self._identity.ring.take(body.collaboration_id, body.key)
        except Unopened as error:
            log.warning("the new key is of no use: %s", error)

    def _refused(self, id: str, message: Message) -> Iterator[Inbound]:
        caller = self._identity.caller
        if caller is not None and caller.refused(id, message, None):
            return
        sent, tries = self._sent.pop(id, (None, 0))
        if sent is None:
            return
        error = codec.error(message)
        if self._identity.is_repetition(message):
            yield Accepted((id,))
        elif self._identity.is_stale(message) and tries < MOST_TRIES:
            self._send(sent, tries + 1)
        elif type(sent) in (Report, ProposalAnswer) and not TABLE[error.code].retry:  # no reason to give the work up
            log.info("the hub does not take a %s: %s", type(sent).__name__.lower(), error.message)
            yield Accepted((id,))
        else:
            retryable = TABLE[error.code].retry
            yield Refused(request_id=sent.correlation.request_id, reason=error.message, retryable=retryable)

    def _unwritten(self, unwritten: Unwritten) -> Iterator[Inbound]:
        caller = self._identity.caller
        if caller is not None and caller.refused(unwritten.id, None, unwritten.error):
            return
        sent, tries = self._sent.pop(unwritten.id, (None, 0))
        if type(sent) is Outcome and sent.failure is None:
            text = f"the result cannot be sent: {unwritten.error}; store it and return where"
            error = {"message": text, "code": Code.INTERNAL_ERROR.value, "details": {"retryable": False}}
            content = failure(text, error, usage=sent.content.usage)
            self._send(msgspec.structs.replace(sent, content=content), tries + 1)
        elif sent is not None:
            log.error("a message about task %s cannot be written: %s", sent.correlation.task_id, unwritten.error)
            yield Accepted((unwritten.id,))

    # --- out ---

    def _send(self, message: Outbound, tries: int) -> None:
        self._sent[message.id] = message, tries
        lane = message.correlation.task_id
        match message:
            case Report():
                *pieces, last = self._report(message)
                for id, piece in pieces:  # they go in line, so the receipt of the last is that of all
                    self._channel.send(id, lane, piece)
                write = last[1]
            case Outcome():
                write = self._outcome(message)
            case Decline():
                write = self._error(message, declined(message))
            case Question(id=id, ask=ask):
                write = self._write(MessageType.EVENT, message, mapping.ask_out(ask), id=id, intent=mapping.QUESTION)
            case ProposalAnswer():
                write = self._decision(message)
            case _:
                raise NotSupported(f"a2acp has no {type(message).__name__}")
        self._channel.send(message.id, lane, write)

    def _write(
        self,
        kind: MessageType,
        message: Outbound,
        payload: dict[str, Any],
        *,
        id: str | None = None,
        intent: str | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> Write:
        correlation, about = message.correlation, message.correlation.about
        payload["traceparent"] = f"00-{correlation.trace_id.replace('-', '')}-{trace.span_id(message.id)}-01"
        return self._identity.write(
            kind,
            id=id or self._runtime.mint(),
            to=Agent(agent_id=correlation.sender, domain=about["domain"], version=about["version"]),
            intent=intent or about["intent"],
            payload=_under(about.get("contract_id"), payload),
            correlation_id=about.get(THREAD, correlation.task_id),
            seal=SEALED in about and kind is not MessageType.ERROR,
            beside=beside,
        )

    def _report(self, report: Report) -> list[tuple[str, Write]]:
        """The events of a report: a long output goes in pieces, and the last one has everything else."""
        output, step = report.content.output or "", report.content.named_step
        *pieces, last = [output[start : start + PIECE] for start in range(0, len(output), PIECE)] or [""]
        message = None if step is None else step.name
        content = msgspec.structs.replace(report.content, output=last or None, message=message)
        payload: dict[str, Any] = msgspec.to_builtins(mapping.progress_out(content))
        if content.file is not None:
            payload["file"] = content.file.id
        events = [(part(report.id, number + 1), {"output": piece}) for number, piece in enumerate(pieces)]
        return [
            (id, self._write(MessageType.EVENT, report, fields, id=id, intent=mapping.PROGRESS))
            for id, fields in (*events, (report.id, payload))
        ]

    def _outcome(self, outcome: Outcome) -> Write:
        if outcome.failure is not None:
            return self._error(outcome, failed(outcome.failure, is_personal=PERSONAL in outcome.correlation.about))
        value: Any = msgspec.json.decode(outcome.result_json) if outcome.result_json else (outcome.output or None)
        capability = self._capabilities.get(outcome.correlation.about["intent"])
        payload, value_in = mapping.value_out(value, True if capability is None else capability.output_schema)
        beside: dict[str, Any] = {"value_in": value_in}
        if outcome.content.usage:
            beside["usage"] = outcome.content.usage
        return self._write(MessageType.RESPONSE, outcome, dict(payload), beside=beside)

    def _error(self, message: Outbound, refusal: Refusal) -> Write:
        correlation = message.correlation
        payload = refusal.payload(correlation.about.get(THREAD, correlation.task_id))
        return self._write(MessageType.ERROR, message, payload)

    def _decision(self, answer: ProposalAnswer) -> Write:
        asked = self._memory.proposals.get(answer.proposal)
        contract = None if asked is None else msgspec.convert(asked.payload, intents.Offer).contract
        public_key = None
        if answer.accepted and contract is not None and contract.security.encryption == "aes256":
            pair = self._memory.offers.get(answer.proposal)
            if pair is None:
                pair = self._memory.offers[answer.proposal] = self._identity.ring.pair(contract)
            public_key = pair.public_key
        body = intents.Decision(accepted=answer.accepted, reason=answer.reason, public_key=public_key)
        return self._identity.write(
            MessageType.RESPONSE,
            id=self._runtime.mint(),
            to=BROKER,
            intent=intents.ACCEPT,
            payload=intents.payload(body),
            correlation_id=answer.proposal,
        )


# --- messages of the engine ⇄ a2acp ---


def capability_of(described: dict[str, Any]) -> Capability:
    """One intent, from `Handler.capability`."""
    seconds = described.get("timeout_seconds")
    return Capability(
        intent=described["work_type"],
        input_schema=described["input_schema"],
        output_schema=mapping.output_schema(described["output_schema"]),
        version=described.get("version", "1.0.0"),
        required_capabilities=tuple(described.get("requires", ())),
        pii=described.get("pii", False),
        timeout_seconds=ROUTING_SECONDS if seconds is None else seconds + MARGIN,
        description=described.get("description", ""),
    )


def work_of(message: Message, frame: Frame, capability: Capability | None, fresh: str) -> Assignment:
    """A request whose payload is in clear; `frame` is as it came. `fresh` is a UUID, for a trace if there is none.

    The correlation carries what the answer needs, so that the agent can answer after a restart, too.
    """
    payload, source = message.payload or {}, message.source_agent
    span, fields = trace.parse(payload.get("traceparent")), mapping.task_fields_in(frame.data)
    about = {"intent": message.intent or "", "domain": source.domain, "version": source.version}
    about[THREAD] = message.thread
    if message.contract_id is not None:
        about["contract_id"] = message.contract_id
    if message.security.encryption == "aes256":
        about[SEALED] = "yes"
    if capability is not None and capability.pii:
        about[PERSONAL] = "yes"
    return Assignment(
        correlation=Correlation(
            task_id=fields.id or message.thread,
            request_id=f"{source.agent_id}/{message.message_id}",
            trace_id=fresh.replace("-", "") if span is None else span.trace_id,
            sender=source.agent_id,
            about=about,
        ),
        type=message.intent or "",
        request=mapping.request_in(payload, None if capability is None else capability.input_schema, fields),
        receipt=frame.receipt,
        traceparent=None if span is None else payload["traceparent"],
        thread=fields.thread,
        is_new_round=False,
    )


def _task_id(message: Message, frame: Frame) -> str:
    return mapping.task_fields_in(frame.data).id or message.thread


def _under(contract_id: str | None, payload: dict[str, Any]) -> dict[str, Any]:
    return payload if contract_id is None else {**payload, "contract_id": contract_id}


def proposal_of(message: Message, receipt: str | None) -> Proposal:
    """A request accept_handshake."""
    offer = msgspec.convert(message.payload, intents.Offer)
    request = HandshakeRequest(
        id=message.thread,
        source=offer.source_agent.agent_id,
        domain=offer.source_agent.domain,
        version=offer.source_agent.version,
        intent=offer.requested_intent,
        contract=msgspec.to_builtins(offer.contract),
    )
    return Proposal(id=message.thread, request=request, receipt=receipt)


def failed(failure: tasks.Failure, *, is_personal: bool) -> Refusal:
    """The error of work that failed."""
    report, output = failure.report or {}, failure.output or ""
    if "code" in report:  # the handler chose it
        details: dict[str, Any] = {**(report.get("details") or {})}
        return Refusal(code=Code(report["code"]), message=output, details=details, after=report.get("retry_after"))
    text = output.rstrip().rpartition("\n")[2] or "the work failed"
    is_timeout = failure.exit_code == TIMED_OUT
    if is_personal and report.get("type") != "Rejected" and not is_timeout:
        text = f"the work failed ({report.get('type', 'Error')}); what it said may be personal"
    details = {"retryable": False, "type": report.get("type"), "exit_code": failure.exit_code}
    return Refusal(code=Code.TIMEOUT if is_timeout else Code.INTERNAL_ERROR, message=text, details=details)


def declined(decline: Decline) -> Refusal:
    """The error of work that the agent cannot begin."""
    fault = decline.fault
    if fault.kind is Kind.UNSUPPORTED_WORK:
        facts = fault.facts
        details: dict[str, Any] = {"intent": facts["work_type_requested"], "supported": list(facts["supported_types"])}
        return Refusal(code=Code.CAPABILITY_NOT_FOUND, message=fault.message, details=details)
    field = fault.field and fault.field.replace("parameters", "payload", 1)
    return Refusal(code=Code.SCHEMA_MISMATCH, message=decline.sentence, details={"field": field} if field else {})
